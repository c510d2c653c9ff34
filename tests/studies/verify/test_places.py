"""A planted fault is found where it was planted and nowhere else, with its kind or none; benign changes are no fault."""

import copy
import json
import math

import pytest
import torch
import torch.nn.functional as F
from planted import FAULTS, planted
from plants import batches, built, weight
from torch import nn

import repsim_cli
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.studies.verify import inputs
from repsim_cli.studies.verify.answer import DIFFERENT, IDENTICAL, ROUNDING, Answer, Difference
from repsim_cli.studies.verify.rounding import have_same_values
from repsim_cli.studies.verify.study import verify_models

# one architecture or two for each kind of fault
PLANTED = {
    "bias_lost": "gpt2", "bias_added": "llama", "scaled": "llama", "head_scaled": "llama", "neuron_scaled": "gpt2",
    "gain_changed": "llama", "gain_without_one": "gemma2", "heads_swapped": "bert", "rotary_halves": "llama",
    "neurons_permuted": "llama", "projections_swapped": "llama", "transposed": "llama", "negated": "opt",
    "rotary_base": "llama", "rotary_positions": "llama", "positions_shifted": "gpt2", "future_seen": "gpt2",
    "window": "mistral", "epsilon": "llama", "norm_missing": "gpt2", "norm_without_mean": "gpt_neox", "activation": "gpt2",
    "cap_of_scores": "gemma2", "cap_of_logits": "gemma2", "row_of_zeros": "llama", "rows_swapped": "gpt2",
    "embeddings_scaled": "gemma2", "block_skipped": "llama", "blocks_swapped": "gpt2", "residual": "llama",
    "other_checkpoint": "llama", "adapter": "gpt2", "coarser": "llama", "stream_in_16_bits": "gpt2",
    "module_in_16_bits": "llama", "experts_permuted": "mixtral", "router": "mixtral", "one_weight": "bert",
}  # fmt: skip


@pytest.fixture(scope="module")
def models():
    made = {}

    def model(name):
        if name not in made:
            made[name] = built(name)
        return made[name]

    return model


@pytest.mark.parametrize(("fault", "name"), PLANTED.items())
def test_a_planted_fault_is_found_and_named(models, fault, name):
    kind, sizes, _ = FAULTS[fault]
    reference = models(name)
    broken, places = planted(reference, fault, sizes[-1])
    answer = verify_models(reference, broken, batches())
    assert answer.verdict == DIFFERENT
    first = answer.differences[0]
    assert (first.unit, first.place) in places
    assert first.kind in {kind, "unnamed"}
    assert fault in ("norm_missing", "experts_permuted", "scores_scaled") or first.kind == kind, first.about
    if fault not in ("block_skipped", "blocks_swapped", "other_checkpoint", "window"):
        assert {(each.unit, each.place) for each in answer.differences} <= places
        assert {each.unit for each in answer.differences}.isdisjoint(answer.right)


def test_what_is_said_of_a_lost_bias(models):
    reference = models("gpt2")
    broken = copy.deepcopy(reference)
    broken.transformer.h[1].mlp.c_proj.bias.data.zero_()
    lines = verify_models(reference, broken, batches()).lines()
    assert lines[0] == "DIFFERENT   first at block 1, mlp_out (mlp.c_proj) (all before agree to rounding)"
    assert lines[1].startswith("  kind    its bias is zero")
    assert lines[2] == "  weights h.1.mlp.c_proj.bias differs in 32 of 32 values; no other tensor does"
    assert lines[3] == "  from    the first token on; 0 of 64 positions agree"
    text = batches()[0]
    with torch.no_grad():  # the same by a plain run
        p, q = (F.log_softmax(m(**text.given).logits.double(), -1) for m in (reference, broken))
    kl, same = (p.exp() * (p - q)).sum(-1).mean(), (p.argmax(-1) == q.argmax(-1)).double().mean()
    assert lines[4] == f"  effect  next token: KL {float(kl):.2g} nats, the same choice in {100 * float(same):.1f} %"
    assert "block 1: mlp_out (mlp.c_proj); " in lines[5]
    assert "block 0, block 2, final_norm, head are right when given right inputs" in lines[5]


def test_the_size_of_an_error_is_that_of_a_plain_run(models):
    reference = models("gpt2")
    broken = copy.deepcopy(reference)
    weight(broken.transformer.h[0].mlp.c_fc).mul_(1.01)
    seen = {}
    reference.transformer.h[0].mlp.c_fc.register_forward_hook(lambda m, args, out: seen.update(x=args[0], r=out))
    with torch.no_grad():
        reference(**batches()[0].given)
        off = broken.transformer.h[0].mlp.c_fc(seen["x"]) - seen["r"]
    reference.transformer.h[0].mlp.c_fc._forward_hooks.clear()
    first = verify_models(reference, broken, batches()).differences[0]
    assert first.relative == pytest.approx(float(off.norm() / seen["r"].norm()), rel=1e-5)


def test_two_faults_are_both_found(models):
    reference = models("llama")
    broken = copy.deepcopy(reference)
    broken.model.layers[0].self_attn.v_proj.weight.data[3] *= 1.5
    broken.model.layers[2].mlp.down_proj.weight.data.neg_()
    answer = verify_models(reference, broken, batches())
    assert [(each.unit, each.place, each.kind) for each in answer.differences] == [
        ("block 0", "self_attn.v_proj", "part"),
        ("block 2", "mlp.down_proj", "sign"),
    ]


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5"])
def test_a_model_is_identical_with_its_copy(models, name):
    reference = models(name) if name != "t5" else _t5()
    given = batches()
    if name == "t5":
        given = [inputs.add_decoder_inputs(batch, reference.config) for batch in given]
    answer = verify_models(reference, copy.deepcopy(reference), given)
    assert answer.verdict == IDENTICAL
    assert answer.same
    assert not answer.differences


def _t5():
    from plants import tiny_config
    from transformers import T5Config, T5ForConditionalGeneration

    settings = tiny_config("t5")
    settings.pop("model_type")
    return T5ForConditionalGeneration(T5Config(**settings, dropout_rate=0.0, use_cache=False)).eval()


def test_a_fault_of_a_decoder_names_its_side():
    reference = _t5()
    broken = copy.deepcopy(reference)
    broken.decoder.block[1].layer[2].DenseReluDense.wo.weight.data.mul_(2)
    answer = verify_models(
        reference, broken, [inputs.add_decoder_inputs(batch, reference.config) for batch in batches()]
    )
    assert [(each.unit, each.place) for each in answer.differences] == [
        ("decoder block 1", "layer.2.DenseReluDense.wo")
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "mixtral", "bert"])
def test_another_attention_kernel_is_rounding(models, name, dtype):
    reference = copy.deepcopy(models(name)).to(dtype)
    other = copy.deepcopy(reference)
    other.set_attn_implementation("sdpa")
    answer = verify_models(reference, other, batches())
    assert answer.verdict == ROUNDING
    assert max(answer.worst) < 4


def test_permuted_neurons_are_the_same_function(models):
    reference = models("llama")
    other = copy.deepcopy(reference)
    mlp, order = other.model.layers[1].mlp, torch.randperm(48)
    for module in (mlp.gate_proj, mlp.up_proj):
        module.weight.data = module.weight.data[order]
    mlp.down_proj.weight.data = mlp.down_proj.weight.data[:, order]
    answer = verify_models(reference, other, batches())
    assert answer.verdict == ROUNDING
    assert "the same function, another layout inside: block 1, mlp." in str(answer)


def test_padding_alone_shows_that_it_is_attended_to(models):
    reference = models("llama")
    broken = copy.deepcopy(reference)
    forward = broken.model.forward
    broken.model.forward = lambda *args, attention_mask=None, **kw: forward(*args, **kw)
    first = verify_models(reference, broken, batches()).differences[0]
    assert (first.unit, first.place, first.kind) == ("block 0", "self_attn:scores", "mask")
    assert "text" not in first.inputs
    assert "padding is attended to" in first.about


def test_a_row_of_the_vocabulary_that_no_text_has_is_found(models):
    reference = models("llama")
    broken = copy.deepcopy(reference)
    table = broken.get_input_embeddings()
    table.weight = nn.Parameter(table.weight.data.clone())
    table.weight.data[0] = 1.0  # that of padding
    first = verify_models(reference, broken, batches()).differences[0]
    assert first.unit == "embed"
    assert first.inputs == ["every row of the vocabulary"]
    assert first.about == "row 0 of its weights differs"


def test_a_vocabulary_that_was_made_longer_is_named_and_its_probability_counts(models):
    reference = models("llama")
    longer = copy.deepcopy(reference)
    size = longer.config.vocab_size
    longer.resize_token_embeddings(size + 64, mean_resizing=False)
    longer.get_output_embeddings().weight.data[size:] = 0  # logits of 0
    answer = verify_models(reference, longer, batches())
    (only,) = answer.differences
    assert (answer.verdict, only.unit) == (DIFFERENT, "head")
    assert only.about.endswith(f"the first {size} features are the same")
    first = batches()[0]
    with torch.no_grad():
        whole = longer(first.ids, attention_mask=first.mask).logits.double().log_softmax(-1)[first.mask]
    lost = -whole[:, :size].logsumexp(-1).mean()  # KL(p, q) where q is p but for what the other tokens take
    assert answer.effect["kl"] == pytest.approx(float(lost), rel=1e-3)
    longer.get_output_embeddings().weight.data[3] += 1
    head = next(each for each in verify_models(reference, longer, batches()).differences if each.unit == "head")
    assert head.about.endswith("features differ")


def test_a_row_that_a_tied_head_shows_is_not_called_hidden(models):
    reference = models("gpt2")
    broken = copy.deepcopy(reference)
    table = broken.get_input_embeddings().weight.data
    unused = next(row for row in range(len(table)) if not (batches(reference)[0].ids == row).any())
    table[unused] *= 1.5
    answer = verify_models(reference, broken, batches(reference))
    assert [each.unit for each in answer.differences] == ["embed", "head"]
    assert answer.lines()[0] == "DIFFERENT   first at embed"
    (said,) = (line for line in answer.lines() if line.startswith("  input "))
    assert said.endswith("first shows head")


def test_weights_that_no_input_uses_are_different(models):
    reference = models("gpt2")
    broken = copy.deepcopy(reference)
    broken.transformer.wpe.weight.data[63] += 1  # of a position that no row reaches
    first = verify_models(reference, broken, batches(context=32)).differences[0]
    assert (first.unit, first.kind) == ("wpe", "weights")
    assert not first.inputs


def test_a_candidate_that_is_not_determined_is_refused(models):
    reference = models("gpt2")
    broken = copy.deepcopy(reference).train()
    broken.transformer.drop.p = 0.5
    with pytest.raises(BadInput, match=r"candidate: two passes .* differ, .*training mode; call eval\(\)"):
        verify_models(reference, broken, batches())


def test_models_of_other_depth_are_refused(models):
    reference = models("gpt2")
    broken = copy.deepcopy(reference)
    broken.transformer.h = broken.transformer.h[:2]
    with pytest.raises(BadInput, match="models: not comparable, got 3 blocks in the reference and 2 in the candidate"):
        verify_models(reference, broken, batches())


def test_any_two_modules_with_lists_of_blocks():
    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner, self.out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x):
            return x + self.out(torch.tanh(self.inner(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block(16) for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    reference = Model()
    broken = copy.deepcopy(reference)
    broken.blocks[2].inner.bias.data += 0.1
    answer = verify_models(reference, broken, [inputs.read_batch("text", torch.randn(12, 16))])
    assert [(each.unit, each.place, each.kind) for each in answer.differences] == [("block 2", "inner", "offset")]
    assert math.isfinite(answer.effect["relative"])


def test_a_candidate_that_does_not_run_is_named(models):
    reference = models("gpt2")
    broken = copy.deepcopy(reference)
    broken.transformer.h[1].mlp.forward = lambda x: x[..., 1:]
    with pytest.raises(RunFailed, match="candidate: it fails on a row of 64 tokens, got RuntimeError"):
        verify_models(reference, broken, batches())


def _hooked(model, change):
    model.transformer.h[1].mlp.c_fc.register_forward_hook(lambda _, args, out: change(out))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.clamp(-0.5, 0.5),
        lambda x: x.abs(),
        lambda x: x + 0.01 * x * x,
        lambda x: x * (torch.arange(x.shape[1]) > 0)[:, None],
    ],
    ids=["clamped", "absolute", "squared", "first token lost"],
)
def test_a_fault_of_no_kind_is_unnamed(models, change):
    broken = copy.deepcopy(models("gpt2"))
    _hooked(broken, change)
    (difference,) = verify_models(models("gpt2"), broken, batches()).differences
    assert (difference.unit, difference.place, difference.kind) == ("block 1", "mlp.c_fc", "unnamed")


def test_weights_of_a_shared_expert_that_something_makes_up_for_are_no_fault(models):
    """A shared expert is used by every token, unlike the others: what its map gives decides."""
    other = copy.deepcopy(models("glm4_moe"))
    module = other.model.layers[1].mlp.shared_experts.gate_proj
    a, b = torch.randn(len(module.weight), 2) / 8, torch.randn(2, module.weight.shape[1]) / 8
    module.weight.data -= a @ b
    module.forward = lambda x: F.linear(x, module.weight) + F.linear(F.linear(x, b), a)
    assert verify_models(models("glm4_moe"), other, batches()).verdict == ROUNDING


def test_the_error_of_an_unmerged_adapter_has_its_rank(models):
    broken = copy.deepcopy(models("gpt2"))
    a, b = torch.randn(2, 128), torch.randn(32, 2)
    module = broken.transformer.h[1].mlp.c_fc
    module.register_forward_hook(lambda _, args, out: out + 0.01 * args[0] @ b @ a)
    (difference,) = verify_models(models("gpt2"), broken, batches()).differences
    assert difference.kind == "adapter"
    assert "rank 2 of" in difference.about


def holding(models, value, name="llama"):
    """A copy of which one weight of block 1 and one row of the embeddings are this value."""
    broken = copy.deepcopy(models(name))
    down = broken.model.layers[1].mlp.down_proj.weight
    down.data[3, 7] = value
    broken.get_input_embeddings().weight.data[5, 2] = value
    return broken


@pytest.mark.parametrize(("value", "said"), [(math.nan, "1 NaN"), (math.inf, "1 inf")])
def test_weights_that_are_not_finite_are_named(models, value, said):
    reference, broken = models("llama"), holding(models, value)
    answer = verify_models(reference, broken, batches())
    assert answer.verdict == DIFFERENT
    assert [(each.kind, each.about) for each in answer.differences if each.unit in ("embed", "block 1")] == [
        ("not finite", f"embed_tokens.weight holds {said}"),
        ("not finite", f"layers.1.mlp.down_proj.weight holds {said}"),
    ]
    assert json.dumps(answer.record(), allow_nan=False)
    with pytest.raises(BadInput, match=rf"^reference: weights that are not finite, got {said} in embed_tokens.weight"):
        verify_models(broken, reference, batches())


def test_equal_infinite_weights_are_no_fault():
    """Biases that forbid a token have such weights."""
    a = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    a[2].bias.data[1] = -math.inf
    rows = [inputs.read_batch("rows", torch.randn(10, 4))]
    assert verify_models(a, copy.deepcopy(a), rows).verdict == IDENTICAL
    b = copy.deepcopy(a)
    b[0].weight.data *= 1.01
    assert verify_models(a, b, rows).effect["relative"] == pytest.approx(0.01, abs=0.01)


def make_net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("seed", [0, 1])
def test_input_that_tells_nothing_is_refused(value, seed):
    with pytest.raises(BadInput, match="reference: no value of its output is finite on this input; give other input"):
        repsim_cli.verify(make_net(0), make_net(seed), [torch.full((8, 4), value)])


def test_rows_that_are_no_numbers_are_alike_in_the_same_model():
    rows = torch.randn(8, 4)
    rows[3] = float("nan")
    assert repsim_cli.verify(make_net(0), make_net(0), [rows]).verdict == IDENTICAL
    assert repsim_cli.verify(make_net(0), make_net(1), [rows]).verdict == DIFFERENT


def test_values_are_the_same_where_none_is_a_number():
    x = torch.tensor([1.0, float("nan"), float("inf")])
    assert have_same_values(x, x.clone())
    assert not have_same_values(x, x.nan_to_num())
    assert not have_same_values(x, torch.tensor([2.0, float("nan"), float("inf")]))
    assert not have_same_values(x, x[:2])


@pytest.mark.parametrize(
    ("count", "end"), [(3, "no other tensor does"), (4, "1 other of 9 differs"), (5, "2 others of 9 differ")]
)
def test_further_tensors_and_settings_are_counted(count, end):
    differ = [(f"w{i}", 1, 4, 0.1) for i in range(count)]
    place = Difference("embed", None, "", None, "noise", "noise", 0.1, 9.0, 0, 4, 0, ["text"])
    weights = {"common": 9, "differ": differ, "only_reference": [], "only_candidate": []}
    config = [f"s{i} 1, not 2" for i in range(count)]
    said = "\n".join(Answer(DIFFERENT, "a", "b", [place], weights=weights, config=config).lines())
    assert f"w2 differs in 1 of 4 values; {end}" in said
    assert ("; 1 setting more" in said, "; 2 settings more" in said) == (count == 4, count == 5)
