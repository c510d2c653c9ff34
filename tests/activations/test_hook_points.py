"""Hook points by arithmetic: on perturbed weights, each captured tensor follows from the others and the weights."""

import math
import re
from dataclasses import replace

import pytest
import torch
from helpers.hooked import DEPTH, HEADS, LENGTH, WIDTH, activations, by_head, close, some_ids
from helpers.tiny import TINY, perturb

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import ATTENTION, BY_HEAD, HookPoint, expand, parse_hook_point
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.models.architectures import ARCHITECTURES

pytestmark = pytest.mark.usefixtures("no_gradients")

KINDS = list(TINY)
CAUSAL = ("gpt_neox", "gpt2", "llama", "openai-gpt")
BLOCKS = {
    "gpt2": "h",
    "openai-gpt": "h",
    "bert": "encoder.layer",
    "roberta": "encoder.layer",
    "distilbert": "transformer.layer",
    "albert": "encoder.albert_layer_groups.0.albert_layers",
    "xlnet": "layer",
}
# of one block: the projection that ends the attention, the one that ends the MLP
OUTPUTS = {
    "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h"),
    "gpt2": ("attn.c_proj", "mlp.c_proj"),
    "llama": ("self_attn.o_proj", "mlp.down_proj"),
    "bert": ("attention.output.dense", "output.dense"),
    "roberta": ("attention.output.dense", "output.dense"),
    "distilbert": ("attention.out_lin", "ffn.lin2"),
    "albert": ("attention.dense", "ffn_output"),
    "openai-gpt": ("attn.c_proj", "mlp.c_proj"),
    "xlnet": (None, "ff.layer_2"),
}
# where a norm follows each addition: the two norms of one block
NORMS = {
    "bert": ("attention.output.LayerNorm", "output.LayerNorm"),
    "roberta": ("attention.output.LayerNorm", "output.LayerNorm"),
    "distilbert": ("sa_layer_norm", "output_layer_norm"),
    "albert": ("attention.LayerNorm", "full_layer_layer_norm"),
    "openai-gpt": ("ln_1", "ln_2"),
    "xlnet": ("rel_attn.layer_norm", "ff.layer_norm"),
}
TANH_GELU = ("gpt2", "openai-gpt", "albert")


@pytest.fixture(scope="module", params=KINDS)
def read(request, tiny_folder):
    """(kind, source, model, activations of every hook point on two sequences, the second one padded)."""
    source = registry.models.get("transformers").function(path=str(tiny_folder(request.param)))
    model = source.load(True)
    kinds = [k for k in source.architecture.block]
    outside = ["embed"] + (["final_norm"] if source.architecture.final_norm else [])
    points = expand([*outside, *kinds], "all", source)
    ids = torch.randint(0, 400, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, 8:] = False
    with capture(model, source, points) as reader:
        found = {str(point): x for point, x in reader(ids, mask).items()}
    return request.param, source, model, found, ids, mask


def block(kind, model, layer):
    blocks = model.get_submodule(BLOCKS.get(kind, "layers"))
    return blocks[0 if kind == "albert" else layer]


@pytest.mark.parametrize("layer", range(DEPTH))
def test_attention_arithmetic(read, layer):
    """pattern = softmax(q k'), z = pattern v, attn_out = W_O z; q and k are already rotated."""
    kind, source, model, found, _, mask = read
    here = block(kind, model, layer)
    if kind == "xlnet":
        attention, x = here.rel_attn, found[f"resid_pre@{layer}"]
        v = torch.einsum("bsd,dnh->bnsh", x, attention.v)
        z = found[f"pattern@{layer}"] @ v
        close(found[f"attn_out@{layer}"], torch.einsum("bnsh,dnh->bsd", z, attention.o))
        return
    q, k, v, z, pattern = (found[f"{name}@{layer}"] for name in ("q", "k", "v", "z", "pattern"))
    q, k, v = by_head(q, HEADS), by_head(k, source.kv_heads), by_head(v, source.kv_heads)
    k, v = (side.repeat_interleave(HEADS // source.kv_heads, dim=1) for side in (k, v))
    scores = q @ k.mT / math.sqrt(WIDTH // HEADS)
    allowed = mask[:, None, None, :].expand(2, 1, LENGTH, LENGTH).clone()
    if kind in CAUSAL:
        allowed &= torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    rows = mask[:, None, :, None].expand_as(scores)
    close(pattern[rows], scores.masked_fill(~allowed, -torch.inf).softmax(-1)[rows])
    close(by_head(z, HEADS)[rows[..., :8]], (pattern @ v)[rows[..., :8]])
    close(found[f"attn_out@{layer}"], here.get_submodule(OUTPUTS[kind][0])(z))


@pytest.mark.parametrize("layer", range(DEPTH))
def test_mlp_arithmetic(read, layer):
    """mlp_out = W_out mlp_post, and mlp_post = activation(mlp_pre) (times the gated branch in Llama)."""
    kind, _, model, found, _, _ = read
    here = block(kind, model, layer)
    pre, post, out = (found[f"mlp_{name}@{layer}"] for name in ("pre", "post", "out"))
    close(out, here.get_submodule(OUTPUTS[kind][1])(post))
    if kind == "llama":
        normed = here.post_attention_layernorm(found[f"resid_mid@{layer}"])
        close(post, torch.nn.functional.silu(pre) * here.mlp.up_proj(normed))
    else:
        approximate = "tanh" if kind in TANH_GELU else "none"
        close(post, torch.nn.functional.gelu(pre, approximate=approximate))


@pytest.mark.parametrize("layer", range(DEPTH))
def test_residual_stream_arithmetic(read, layer):
    kind, _, model, found, _, _ = read
    pre, post, attention, mlp = (
        found[f"{name}@{layer}"] for name in ("resid_pre", "resid_post", "attn_out", "mlp_out")
    )
    close(pre, found[f"resid_post@{layer - 1}"] if layer else found["embed"], atol=0)
    here = block(kind, model, layer)
    if kind == "gpt_neox":
        close(post, pre + attention + mlp)
    elif kind in NORMS:
        first, second = (here.get_submodule(name) for name in NORMS[kind])
        mid = found[f"resid_mid@{layer}"]
        close(mid, first(pre + attention))
        close(post, second(mid + mlp))
    else:
        close(found[f"resid_mid@{layer}"], pre + attention)
        close(post, found[f"resid_mid@{layer}"] + mlp)


def test_against_the_library_outputs(read):
    """embed and resid_post are the library's hidden states; the last one is after the final norm there."""
    _, source, model, found, ids, mask = read
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True, output_attentions=True)
    close(found["embed"], output.hidden_states[0], atol=0)
    for layer in range(DEPTH - 1):
        close(found[f"resid_post@{layer}"], output.hidden_states[layer + 1], atol=0)
    last = found["final_norm"] if source.architecture.final_norm else found[f"resid_post@{DEPTH - 1}"]
    close(last, output.hidden_states[-1], atol=0)
    for layer in range(DEPTH):
        close(found[f"pattern@{layer}"], output.attentions[layer], atol=0)


def test_padding_changes_nothing(read):
    _, source, model, found, ids, _ = read
    points = expand(["embed", "resid_post"], "all", source)
    with capture(model, source, points) as reader:
        alone = reader(ids[1:, :8], torch.ones(1, 8, dtype=torch.bool))
    for point in points:
        close(found[str(point)][1:, :8], alone[point])


def test_heads_are_slices(read):
    _, source, model, found, ids, mask = read
    for name in (name for name in BY_HEAD if name in source.architecture.block):
        heads = source.kv_heads if name in ("k", "v") else HEADS
        points = [HookPoint(name, 1, head) for head in range(heads)]
        with capture(model, source, points) as reader:
            single = reader(ids, mask)
        parts = [single[point] for point in points]
        joined = torch.stack(parts, 1) if name in ATTENTION else torch.cat(parts, -1)
        close(joined, found[f"{name}@1"], atol=0)
        assert expand([f"{name}.h*"], [1], source) == points


def test_hooks_are_gone_afterwards_and_the_forward_stops(read):
    _, source, model, _, ids, mask = read
    depth_reached = []
    last = block(read[0], model, DEPTH - 1).register_forward_hook(lambda *a: depth_reached.append(True))
    before = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    with (
        pytest.raises(ZeroDivisionError),
        capture(model, source, expand(["resid_post@1"], "all", source)) as reader,
    ):
        reader(ids, mask)
        1 / 0  # noqa: B018
    assert before == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    assert len(depth_reached) == (2 if read[0] == "albert" else 0)  # its block runs once for every layer
    last.remove()


def test_other_modules_by_name(read):
    kind, source, model, found, ids, mask = read
    path = source.architecture.find("resid_post", 1).module
    points = expand([f"module:{path}"], "all", source)
    first_call = 0 if kind == "albert" else 1
    with capture(model, source, points) as reader:
        close(reader(ids, mask)[points[0]], found[f"resid_post@{first_call}"], atol=0)


def test_a_module_is_read_before_the_next_one_changes_its_output_in_place(tiny_folder):
    source = registry.models.get("transformers").function(path=str(tiny_folder("gpt2")))
    model = source.load(False)
    model.h[0].mlp.act = torch.nn.ReLU(inplace=True)
    points = expand(["module:h.0.mlp.c_fc", "module:h.0.mlp.c_proj"], "all", source)
    with capture(model, source, points) as read:
        found = read(torch.arange(8)[None], None)
    assert (found[points[0]] < 0).any()


@pytest.mark.parametrize(
    ("kind", "pattern", "paths"),
    [
        ("llama", "layers.*.mlp", [f"layers.{i}.mlp" for i in range(DEPTH)]),
        ("llama", "layers.[02].self_attn.?_proj", [f"layers.{i}.self_attn.{p}_proj" for i in (0, 2) for p in "qkvo"]),
        ("llama", "*", ["embed_tokens", "norm", "rotary_emb"]),  # `layers` is a list of modules
        ("llama", "model.layers.*", [f"layers.{i}" for i in range(DEPTH)]),
        ("llama", "model.norm", ["norm"]),
        ("gpt2", "transformer.h.1.ln_*", ["h.1.ln_1", "h.1.ln_2"]),
        ("bert", "bert.encoder.layer.0.output", ["encoder.layer.0.output"]),
        ("distilbert", "transformer.layer.0", ["transformer.layer.0"]),
        ("distilbert", "distilbert.transformer.layer.0", ["transformer.layer.0"]),
    ],
)
def test_modules_by_glob_and_by_their_path_in_the_whole_model(tiny_folder, kind, pattern, paths):
    source = registry.models.get("transformers").function(path=str(tiny_folder(kind)))
    assert [point.module for point in expand([f"module:{pattern}"], "all", source)] == paths


def test_a_list_of_modules_has_no_output(tiny_folder):
    source = registry.models.get("transformers").function(path=str(tiny_folder("llama")))
    message = "a list of modules has no output, got 'module:model.layers'; write 'module:model.layers.*'"
    with pytest.raises(BadInput, match=re.escape(message)):
        expand(["module:model.layers"], "all", source)


def test_a_module_that_never_runs_is_an_error(tiny_folder):
    source = registry.models.get("transformers").function(path=str(tiny_folder("bert")))
    model = source.load(False)
    model.pooler = torch.nn.Identity()
    source.skeleton.unused = torch.nn.Identity()
    model.unused = torch.nn.Identity()
    ids = torch.ones(1, 4, dtype=torch.long)
    with (
        capture(model, source, expand(["module:unused"], "all", source)) as reader,
        pytest.raises(RunFailed, match="module:unused: never reached in a forward pass of bert; choose another"),
    ):
        reader(ids, ids.bool())


@pytest.mark.parametrize(
    ("names", "layers", "message"),
    [
        (["resid_pots"], "all", "unknown hook point, got 'resid_pots'; did you mean 'resid_post'"),
        (["resid_post@9"], "all", "resid_post@9: layer out of range, got 9; the model has layers 0 to 2"),
        (["resid_post"], [3], "layer out of range, got 3; the model has layers 0 to 2"),
        (
            ["resid_mid"],
            "all",
            r"gpt_neox has no resid_mid \(its attention and MLP run in parallel\), got 'resid_mid@0'",
        ),
        (["embed@1"], "all", "embed has no layer or head, got 'embed@1'; write embed"),
        (
            ["resid_post@1.h0"],
            "all",
            "resid_post has no heads, got 'resid_post@1.h0'; heads belong to q, k, v, z",
        ),
        (["q@1.h4"], "all", r"head out of range, got 'q@1.h4'; the model has heads 0 to 3"),
        (["module:layer.1"], "all", "no such module, got 'module:layer.1'; did you mean 'layers.1'"),
        (["module:layers.*.mpl"], "all", r"no such module, got 'module:layers.\*.mpl'; did you mean 'layers.2.mlp'"),
        (
            ["module:no.such.thing"],
            "all",
            "no such module, got 'module:no.such.thing'; the model consists of embed_in, emb",
        ),
        (["module:layers.*", "module:gpt_neox.layers.1"], "all", "'module:layers.1' occurs twice; name each once"),
        (["resid_post", "resid_post@-1"], "all", "'resid_post@2' occurs twice; name each once"),
    ],
)
def test_bad_names(tiny_folder, names, layers, message):
    source = registry.models.get("transformers").function(path=str(tiny_folder("gpt_neox")))
    with pytest.raises(BadInput, match=message):
        expand(names, layers, source)


def test_serial_gpt_neox_has_resid_mid():
    source = registry.models.get("random").function(
        config={"model_type": "gpt_neox", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
                "intermediate_size": 64, "vocab_size": 50, "use_parallel_residual": False}
    )  # fmt: skip
    model = source.load(False)
    points = expand(["resid_pre", "resid_mid", "attn_out"], "all", source)
    ids = torch.arange(6)[None]
    with capture(model, source, points) as reader:
        found = {p.kind: x for p, x in reader(ids, torch.ones_like(ids, dtype=torch.bool)).items()}
    close(found["resid_mid"], found["resid_pre"] + found["attn_out"])


@pytest.mark.parametrize("kind", ["bert", "albert", "xlnet"])
def test_the_texts_of_a_pair_are_told_apart(tiny_folder, kind):
    source = registry.models.get("transformers").function(path=str(tiny_folder(kind)))
    assert source.segments
    model = source.load(False)
    ids, mask = some_ids()
    types = torch.zeros_like(ids)
    types[:, 5:] = 1
    (point,) = expand(["resid_post@1"], "all", source)
    with capture(model, source, [point]) as reader:
        apart, alike = reader(ids, mask, token_type_ids=types)[point], reader(ids, mask)[point]
    given = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types}
    close(apart, model(**given, output_hidden_states=True).hidden_states[2], atol=0)
    assert (apart - alike)[mask].abs().max() > 0.01
    if kind == "bert":
        lens = registry.models.get("transformer_lens").function(path=str(tiny_folder(kind)))
        assert lens.segments
        with capture(lens.load(False), lens, [point]) as reader:
            close(reader(ids, mask, token_type_ids=types)[point], apart, atol=1e-5)


def test_albert_with_several_groups_counts_the_calls_within_each(tmp_path):
    """Layers 0 and 1 share one block, layers 2 and 3 another."""
    config = {**TINY["albert"], "num_hidden_layers": 4, "num_hidden_groups": 2}
    source = registry.models.get("random").function(config=config)
    model = source.load(False)
    perturb(model)
    ids, mask = some_ids()
    found = activations(source, ["embed", "resid_pre", "resid_mid", "mlp_out", "resid_post"], ids, mask, model)
    hidden = model(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True).hidden_states
    close(found["embed"], hidden[0], atol=0)
    for layer in range(4):
        close(found[f"resid_pre@{layer}"], hidden[layer], atol=0)
        close(found[f"resid_post@{layer}"], hidden[layer + 1], atol=0)
        here = model.encoder.albert_layer_groups[layer // 2].albert_layers[0]
        mid = found[f"resid_mid@{layer}"]
        close(here.full_layer_layer_norm(mid + found[f"mlp_out@{layer}"]), hidden[layer + 1])
    with pytest.raises(BadInput, match="config.inner_group_num: only 1 is read, got 2; use another model"):
        registry.models.get("random").function(config={**TINY["albert"], "inner_group_num": 2})


def test_half_of_a_batch_after_a_whole_one():
    """The calls of a shared module are counted anew in every forward pass."""
    source = registry.models.get("random").function(config=TINY["albert"])
    ids, mask = some_ids()
    with capture(source.load(False), source, expand(["resid_post@1"], "all", source)) as reader:
        (whole,), (half,) = reader(ids, mask).values(), reader(ids[:1], mask[:1]).values()
    close(half, whole[:1])


@pytest.fixture
def without_table(monkeypatch):
    """A Llama, as if the type had no table."""
    monkeypatch.delitem(ARCHITECTURES, "llama")
    return registry.models.get("random").function(config=TINY["llama"])


def test_the_stream_of_a_type_without_a_table(without_table):
    source, (ids, mask) = without_table, some_ids()
    model = source.load(False)
    found = activations(source, ["embed", "resid_post", "final_norm", "module:layers.0.mlp"], ids, mask, model)
    hidden = model(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True).hidden_states
    expected = zip(["embed", "resid_post@0", "resid_post@1", "final_norm"], hidden, strict=True)
    for name, stream in expected:
        close(found[name], stream, atol=0)
    why = r"llama has no q \(the type has no table, and its stream alone was found\), got 'q@0'; choose another"
    with pytest.raises(BadInput, match=why):
        expand(["q"], "all", source)


def test_a_guessed_stream_is_checked(without_table):
    ids, mask = some_ids()
    model = without_table.load(False)
    model.layers[1].register_forward_hook(lambda module, args, output: output + 1)
    model.layers[2].register_forward_pre_hook(lambda module, args: (args[0] * 2, *args[1:]))
    with pytest.raises(RunFailed, match="what enters block 2 is not what leaves block 1, got llama, whose blocks were"):
        activations(without_table, ["resid_post@0"], ids, mask, model)


@pytest.mark.parametrize("name", ["q", "k", "v", "z"])
def test_what_xlnet_lacks_is_refused_by_name(name):
    source = registry.models.get("random").function(config=TINY["xlnet"])
    message = rf"xlnet has no {name} \(its attention computes it in no module\), got '{name}@1'; choose another"
    with pytest.raises(BadInput, match=message):
        expand([f"{name}@1"], "all", source)


def test_the_modules_of_a_skeleton_are_listed_once(tiny_folder):
    """Listing them takes a millisecond of every block, and is done once however many hook points there are."""
    source, calls = registry.models.get("transformers").function(path=str(tiny_folder("llama"))), []
    counted = replace(source, modules=lambda model: calls.append(1) or source.modules(model))
    assert len(expand(["resid_post", "q.h*"], "all", counted)) == 3 + 12
    assert calls == []
    assert len(expand(["module:layers.*", "module:norm"], "all", counted)) == 3 + 1
    assert len(calls) == 1


def test_names_round_trip():
    for name in ("embed", "final_norm", "resid_post@3", "q@3.h2", "module:a.b.0"):
        assert str(parse_hook_point(name)) == name
