"""A stored stream alone, as serving engines write it: its layouts, the block that is wrong, and what is refused."""

import copy

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import safetensors.torch
import torch
from planted import FAULTS, planted
from plants import built

import repsim_cli
from repsim_cli.base.errors import BadInput
from repsim_cli.studies.verify.dump import read_dump
from repsim_cli.studies.verify.stream import replay_on
from repsim_cli.studies.verify.units import find_hook_point_table

IDS = torch.randint(3, 96, (3, 16), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def models():
    made = {}
    return lambda name: made.setdefault(name, None) or made.update({name: built(name)}) or made[name]


def states(model, dtype=torch.float32, ids=IDS):
    """(sequences, tokens, layers, d) as transformers gives them: the last layer is taken after the final norm."""
    with torch.no_grad():
        given = copy.deepcopy(model).to(dtype)(input_ids=ids, output_hidden_states=True).hidden_states
    return torch.stack(given, 2)


def written(place, x, ids=IDS, **more):
    """A file for each prompt, as vLLM writes them."""
    place.mkdir()
    for number, (rows, tokens) in enumerate(zip(x, ids, strict=True)):
        held = {"hidden_states": rows.contiguous(), "token_ids": tokens.clone(), **more}
        safetensors.torch.save_file(held, place / f"{number}.safetensors")
    return place


# the block that has the fault, by what is planted and with which seed
BROKEN = {
    ("bias_lost", "gpt2"): 5, ("projections_swapped", "llama"): 2, ("gain_without_one", "gemma2"): 1,
    ("norm_missing", "opt"): 3, ("negated", "gpt_neox"): 4, ("activation", "mistral"): 6,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("fault", "name"), BROKEN)
def test_the_broken_block_is_named(models, tmp_path, fault, name, dtype):
    right = models(name)
    broken, places = planted(right, fault, FAULTS[fault][1][-1], BROKEN[fault, name])
    ((unit, _),) = {(unit, "") for unit, _ in places}
    dump = read_dump(written(tmp_path / "broken", states(broken, dtype)), "broken")
    for first in (False, True):
        answer = replay_on(dump, right, ("r", "c"), first=first)
        assert answer.verdict == "DIFFERENT"
        assert {each.unit.removesuffix(" and the final norm") for each in answer.differences} == {unit}
        assert answer.effect["kl"] >= 0
        assert "precision" not in {each.kind for each in answer.differences}
    good = read_dump(written(tmp_path / "good", states(right, dtype)), "good")
    answer = replay_on(good, right, ("r", "c"))
    assert answer.same
    assert "the last layer of the dump is taken after the final norm" in answer.notes
    assert (dtype == torch.float32) == (answer.verdict == "IDENTICAL")


def test_what_is_said(models, tmp_path):
    right = models("gpt2")
    broken = copy.deepcopy(right)
    broken.transformer.h[1].mlp.c_proj.bias.data.add_(0.1)
    place = written(tmp_path / "states", states(broken))
    lines = repsim_cli.verify(right, place).lines()
    assert lines[0] == "DIFFERENT   first at block 1, resid_post (all before agree to rounding)"
    assert lines[1].startswith("  kind    an offset that is the same for all tokens: a bias is missing or differs")
    assert lines[2] == "  from    the first token on; 0 of 48 positions agree"
    assert lines[4] == (
        "  alone   on the dump's own stream block 1: resid_post; embed, block 0, block 2 and the final norm are right "
        "when given right inputs"
    )


def test_a_right_first_token_points_at_what_tokens_see(models, tmp_path):
    right = models("llama")
    broken, _ = planted(right, "rotary_halves", 1, 1)
    answer = repsim_cli.verify(right, written(tmp_path / "states", states(broken)))
    assert "first tokens, which see themselves alone, are right: queries, keys, rotary" in answer.differences[0].about
    assert "token 1 of a row on" in str(answer)


def test_another_checkpoint(models, tmp_path):
    place = written(tmp_path / "states", states(built("llama", seed=1)))
    first = repsim_cli.verify(models("llama"), place).differences[0]
    assert (first.unit, first.kind) == ("embed", "checkpoint")


def streams(model, ids=IDS[:1]):
    """What one sequence gives: the stream of all layers before the final norm, and before each MLP."""
    point, ends, middles = find_hook_point_table(model).block["resid_mid"], [], []
    blocks = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    handles = [blocks[0].register_forward_pre_hook(lambda _, args: ends.append(args[0][0]))]
    for block in blocks:
        inner = block.get_submodule(point.module)
        handles.append(inner.register_forward_pre_hook(lambda _, args: middles.append(args[0][0])))
        handles.append(block.register_forward_hook(lambda _, args, out: ends.append(out.reshape(len(ids[0]), -1))))
    with torch.no_grad():
        model(input_ids=ids)
    for handle in handles:
        handle.remove()
    return torch.stack(ends, 1), torch.stack(middles, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_two_streams(models, tmp_path, name, dtype):
    """vLLM's blocks give what their MLP adds, and apart from it the stream before."""
    model, (ends, middles) = models(name), streams(models(name))
    added = torch.cat([ends[:, :1], ends[:, 1:] - middles], 1).to(dtype)
    before = torch.cat([torch.zeros_like(ends[:, :1]), middles], 1).to(dtype)
    both = repsim_cli.verify(model, written(tmp_path / "both", added[None], IDS[:1], residual=before))
    assert both.same
    assert both.notes[0] == "the dump holds two streams; their sum is the residual stream"
    whole = ends.to(dtype)
    other = repsim_cli.verify(model, written(tmp_path / "other", whole[None], IDS[:1], residual=before))
    assert other.same
    assert other.notes[0] == "the dump holds two streams; `hidden_states` alone is the residual stream"
    for part, what in ((added, "what the MLP of a block adds"), (before, "the stream before the MLP of a block")):
        (found,) = repsim_cli.verify(model, written(tmp_path / what, part[None], IDS[:1])).differences
        assert found.kind == "stream"
        assert f"it holds {what}, one of the two streams that some engines keep apart" in found.about


def test_layouts(models, tmp_path):
    model, (ends, _) = models("llama"), streams(models("llama"))
    layers, ids = list(ends.unbind(1)), IDS[0].numpy()
    names = ["embed", *(f"resid_post@{number}" for number in range(len(layers) - 1))]
    arrays = {name: x.numpy() for name, x in zip(names, layers, strict=True)}
    np.savez(tmp_path / "vllm.npz", hidden_states=ends.numpy(), token_ids=ids)
    np.savez(tmp_path / "turned.npz", hidden_states=ends.transpose(0, 1).numpy(), token_ids=ids)
    np.savez(tmp_path / "lens.npz", residual_stream=ends[:, 1:].transpose(0, 1).numpy(), token_ids=ids)
    np.savez(tmp_path / "named.npz", **arrays, input_ids=ids)
    np.savez(tmp_path / "sparse.npz", hidden_states=ends[:, [1, 3]].numpy(), token_ids=ids, layer_ids=[1, 3])
    table = pyarrow.table({"token_ids": ids, **{name: list(x) for name, x in arrays.items()}})
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet")
    for name in ("vllm.npz", "turned.npz", "lens.npz", "named.npz", "table.parquet", "sparse.npz"):
        answer = repsim_cli.verify(model, tmp_path / name)
        assert answer.verdict == "IDENTICAL", name
        count = {"lens.npz": 3, "sparse.npz": 2}.get(name, 4)
        assert len(answer.right) == count, name
    assert answer.right == ["embed to block 0", "blocks 1 to 2"]
    (tmp_path / "prompts").mkdir()
    (tmp_path / "table.parquet").rename(tmp_path / "prompts" / "0.parquet")
    assert repsim_cli.verify(tmp_path / "prompts", model).verdict == "IDENTICAL"


def test_sequences_of_one_file(models, tmp_path):
    model = models("llama")
    x = states(model)
    rows = {f"resid_pre@{number}": x[:2, :, number].flatten(0, 1).numpy() for number in range(3)}
    np.savez(tmp_path / "two.npz", **rows, token_ids=IDS[:2].flatten().numpy(), documents=["a"] * 16 + ["b"] * 16)
    answer = repsim_cli.verify(model, tmp_path / "two.npz")
    assert (answer.verdict, answer.inputs) == ("IDENTICAL", ["the 2 sequences of the dump"])
    np.savez(tmp_path / "one.npz", **rows, token_ids=IDS[:2].flatten().numpy())
    assert not repsim_cli.verify(model, tmp_path / "one.npz").same  # as one sequence, the second sees the first


def test_values_of_16_bits_have_their_tolerance(models, tmp_path):
    x = states(models("llama"), torch.bfloat16).float()
    answer = repsim_cli.verify(models("llama"), written(tmp_path / "states", x))
    assert answer.verdict == "ROUNDING"
    assert "all values of states are those of bfloat16" in answer.notes


def test_two_dumps(models, tmp_path):
    right = models("gpt2")
    broken, _ = planted(right, "bias_added", 1.0, 3)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype)
        a = written(tmp_path / f"a{name}", states(right, dtype), layer_ids=torch.arange(4))
        b = written(tmp_path / f"b{name}", states(broken, dtype), layer_ids=torch.arange(4))
        assert repsim_cli.verify(a, a).verdict == "IDENTICAL"
        answer = repsim_cli.verify(a, b)
        (first,) = answer.differences
        assert [first.unit] == [unit for unit, _ in planted(right, "bias_added", 1.0, 3)[1]]
        assert first.where.endswith("resid_post")
        assert any(note.startswith("two dumps: no block is run") for note in answer.notes)
        assert "alone" not in str(answer)
    exact = written(tmp_path / "exact", states(right), layer_ids=torch.arange(4))
    assert repsim_cli.verify(exact, tmp_path / f"a{torch.bfloat16}").verdict == "ROUNDING"


def test_nothing_is_before_the_first_layer(tmp_path):
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    draw = np.random.default_rng(0)
    rows = {f"layer{i}": draw.standard_normal((50, 8)).astype("f4") for i in range(3)}
    np.savez(a, **rows)
    np.savez(b, **{**rows, "layer0": -rows["layer0"]})
    assert repsim_cli.verify(a, b).lines()[0] == "DIFFERENT   first at layer0"
    np.savez(b, **{**rows, "layer2": -rows["layer2"]})
    assert repsim_cli.verify(a, b).lines()[0] == "DIFFERENT   first at layer2 (all before agree to rounding)"


def test_rows_of_two_dumps_pair_by_their_ids(tmp_path):
    x, names = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32), np.array(list("abcdef"))
    np.savez(tmp_path / "a.npz", h1=x, h2=x + 1, ids=names)
    np.savez(tmp_path / "b.npz", h1=x[::-1], h2=x[::-1] + 1.5, ids=names[::-1])
    answer = repsim_cli.verify(tmp_path / "a.npz", tmp_path / "b.npz")
    assert (answer.differences[0].where, answer.differences[0].kind, answer.right) == ("h2", "offset", ["h1"])
    assert "token ids are not compared: a has none" in answer.notes
    np.savez(tmp_path / "c.npz", h1=x, h2=x, ids=np.array(list("abcdeg")))
    with pytest.raises(BadInput, match="ids: rows do not pair, got no 'f' in c; write the same rows in both"):
        repsim_cli.verify(tmp_path / "a.npz", tmp_path / "c.npz")


def test_token_ids_come_first(models, tmp_path):
    x = states(models("llama"))
    a, other = written(tmp_path / "a", x), IDS.clone()
    other[1, 7] += 1
    answer = repsim_cli.verify(a, written(tmp_path / "b", x, other))
    assert answer.lines()[0] == "DIFFERENT   first at token ids"
    said = f"token 7 of sequence 1 is {IDS[1, 7]} in the reference and {other[1, 7]} in the candidate"
    assert answer.differences[0].about == said
    assert "layers are not compared, since their rows are of other tokens" in answer.notes
    with pytest.raises(BadInput, match="b2: not comparable, got 2 sequences for 3 of a; give the same prompts"):
        repsim_cli.verify(a, written(tmp_path / "b2", x[:2], IDS[:2]))


def test_prompts_whose_ids_differ(repsim, tmp_path):
    model, tokenizer = repsim_of_tiny()
    prompts = ["Some words of a text,", "and a second prompt."]
    place = tmp_path / "states"
    place.mkdir()
    for number, prompt in enumerate(prompts):
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        written(place / str(number), states(model, ids=ids), ids)
        (place / str(number) / "0.safetensors").rename(place / f"{number}.safetensors")
        (place / str(number)).rmdir()
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(prompts))
    code, out, _ = repsim("verify", "tiny_a", place, "--text", file)
    assert (code, out.split()[0]) == (0, "ROUNDING")
    file.write_text("\n".join([prompts[0], "and a second one."]))
    code, out, _ = repsim("verify", "tiny_a", place, "--text", file)
    assert (code, out.splitlines()[0]) == (1, "DIFFERENT   first at token ids")
    assert "alone   on the dump's own stream embed, blocks 0 to 4, block 5 and the final norm are right" in out
    assert repsim("verify", place, "tiny_a", "--quick")[0] == 0
    code, out, _ = repsim("verify", "tiny_a", place, "--layer-ids", "0-5,6")
    assert (code, out.split()[0]) == (0, "ROUNDING")


def repsim_of_tiny():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from repsim_cli.models.checkpoints import SHIPPED

    return [kind.from_pretrained(SHIPPED / "tiny_a") for kind in (AutoModelForCausalLM, AutoTokenizer)]


X, T = np.ones((5, 7, 64), np.float32), np.arange(5)
NAN = np.where(np.arange(64) == 3, np.nan, X).astype(np.float32)
REFUSED = {
    "no token ids": ({"hidden_states": X}, "got no token ids; write them as `token_ids`, one a row in order"),
    "other counts of rows": (
        {"hidden_states": X, "token_ids": np.arange(4)},
        "`hidden_states` must be (4 tokens, layers, d), got (5, 7, 64); write one row for each token id",
    ),
    "not finite": ({"hidden_states": NAN, "token_ids": T}, "'hidden_states' is not finite, got nan at [0, 0, 3]"),
    "other width": ({"hidden_states": X[..., :32], "token_ids": T}, "not comparable, got rows (sequences, tokens, d)"),
    "layers that are missing": (
        {"hidden_states": X[:, :5], "token_ids": T},
        "it does not say which layers it holds, got 5 for 6 blocks; give the ids that the engine was given",
    ),
    "layers beyond the model": (
        {"hidden_states": X, "token_ids": T, "layer_ids": np.arange(1, 8)},
        "it holds the stream behind block 6, got a model of 6 blocks, counted from 0",
    ),
    "a layer twice": (
        {"hidden_states": X, "token_ids": T, "layer_ids": np.zeros(7, int)},
        "layer ids must be one for each layer, each once",
    ),
    "ids beyond the vocabulary": (
        {"hidden_states": X, "token_ids": T + 10**6},
        "token ids go beyond the model's vocabulary, got 1000004",
    ),
    "ids that are none": (
        {"hidden_states": X, "token_ids": T / 2},
        "'token_ids' must be (tokens,) of whole numbers, got float64 (5,); write one id a row",
    ),
    "ids below none": ({"hidden_states": X, "token_ids": T - 1}, "'token_ids' must be (tokens,) of whole numbers"),
    "no floats": ({"hidden_states": X.astype(int), "token_ids": T}, "must be of floats of 16 bits or more, got int64"),
    "no layers": ({"token_ids": T}, "layers must be arrays (tokens, d) of their own, or `hidden_states`"),
    "other streams": (
        {"hidden_states": X, "residual": X[:, :6], "token_ids": T},
        "`residual` and `hidden_states` must be alike, got",
    ),
    "other hook points": (
        {"embed": X[:, 0], "attn_out@1": X[:, 0], "token_ids": T},
        "hook points of the residual stream alone are compared, got 'attn_out@1'; leave it out",
    ),
    "several precisions": (
        {"embed": X[:, 0], "resid_post@0": X[:, 0].astype(np.float16), "token_ids": T},
        "layers have several precisions",
    ),
    "layers of other shapes": (
        {"embed": X[:, 0], "resid_post@0": X[:4, 0], "token_ids": T},
        "layers must have one shape (tokens, d), got [(4, 64), (5, 64)] for 5 token ids; write paired rows",
    ),
    "documents in pieces": (
        {"hidden_states": X, "token_ids": T, "documents": np.array(list("aabba"))},
        "must name one document a row, whose rows follow each other",
    ),
}


@pytest.fixture(scope="module")
def tiny():
    return repsim_of_tiny()[0]


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_dump_of_the_model_is_refused(tiny, tmp_path, what):
    arrays, message = REFUSED[what]
    np.savez(tmp_path / "states.npz", **arrays)
    with pytest.raises(BadInput) as raised:
        repsim_cli.verify(tiny, tmp_path / "states.npz")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_refusals_end_with_2(repsim, tmp_path):
    file = tmp_path / "states.safetensors"
    whole = {"hidden_states": torch.ones(5, 7, 64), "token_ids": torch.arange(5)}
    safetensors.torch.save_file(whole, file)
    for words, message in (
        ((file, file, "--quick"), "--quick: two dumps have their own tokens, and nothing is run; drop it"),
        (
            ("tiny_a", "tiny_a", "--layer-ids", "0"),
            "--layer-ids: only for stored activations, got [0] with two models; drop it",
        ),
        (("tiny_a", file, "--layer-ids", "0-x"), "--layer-ids: not numbers and ranges, got '0-x'; write them as 0,4-6"),
        ((file, "--save", tmp_path / "new.safetensors"), "--save: only for a model that runs, got stored activations"),
    ):
        code, _, err = repsim("verify", *words)
        assert (code, message in err, len(err.strip().splitlines())) == (2, True, 1), err
    file.write_bytes(file.read_bytes()[:-8])
    code, _, err = repsim("verify", "tiny_a", file)
    assert (code, "not a complete .safetensors file of numbers" in err, len(err.strip().splitlines())) == (2, True, 1)
    file.write_bytes((2**62).to_bytes(8, "little") + b"{}")  # a header beyond the file
    code, _, err = repsim("verify", "tiny_a", file)
    assert (code, "not a complete .safetensors file of numbers" in err, len(err.strip().splitlines())) == (2, True, 1)


def test_layers_that_do_not_pair(tmp_path):
    np.savez(tmp_path / "a.npz", h1=X[:, 0], h2=X[:, 0])
    np.savez(tmp_path / "b.npz", h1=X[:, 0])
    with pytest.raises(BadInput, match=r"layers: not comparable, got 2 \(h1, ...\) and 1 \(h1, ...\); write the same"):
        repsim_cli.verify(tmp_path / "a.npz", tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", h1=X[:, 0, :9], h2=X[:, 0, :9])
    with pytest.raises(BadInput, match="h1: widths differ, got 64 and 9; give dumps of one shape"):
        repsim_cli.verify(tmp_path / "a.npz", tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", h1=X[:3, 0], h2=X[:3, 0])
    with pytest.raises(BadInput, match="rows: not comparable, got 5 and 3; write the same rows in both"):
        repsim_cli.verify(tmp_path / "a.npz", tmp_path / "d.npz")


def test_files_of_several_dumps_are_refused(tmp_path):
    for number, (width, dtype) in enumerate([(8, np.float32), (9, np.float32), (8, np.float16)]):
        place = tmp_path / str(number)
        place.mkdir()
        np.savez(place / "0.npz", hidden_states=np.ones((2, 1, 8), np.float32), token_ids=T[:2])
        np.savez(place / "1.npz", hidden_states=np.ones((2, 1, width), dtype), token_ids=T[:2])
    with pytest.raises(BadInput, match="its width or streams are not those of"):
        read_dump(tmp_path / "1", "states")
    with pytest.raises(BadInput, match="its dtype are not those of"):
        read_dump(tmp_path / "2", "states")


def test_a_saved_reference_and_a_dump_run_nothing(tmp_path):
    file = repsim_cli.api.verify.save_reference("tiny_a", tmp_path / "ref.safetensors", ["Some words of a text."])
    np.savez(tmp_path / "states.npz", hidden_states=X, token_ids=T)
    with pytest.raises(BadInput, match="states: a file that --save wrote needs a model to run, got stored act"):
        repsim_cli.verify(file, tmp_path / "states.npz")


def test_an_encoder_decoder_is_refused(tmp_path):
    np.savez(tmp_path / "states.npz", hidden_states=X, token_ids=T)
    with pytest.raises(BadInput, match="it holds one stream, got a model of several or none; give the model that ran"):
        repsim_cli.verify(torch.nn.Linear(2, 2), tmp_path / "states.npz")


def test_entries_of_a_configuration(models, tmp_path):
    place = written(tmp_path / "states", states(models("llama")))
    entry = {"kind": "precomputed", "path": str(place), "layer_ids": [0, 1, 2, 3]}
    assert repsim_cli.verify(models("llama"), entry).verdict == "IDENTICAL"
    with pytest.raises(BadInput, match="candidate: unknown settings of stored activations, got layer; drop them"):
        repsim_cli.verify(models("llama"), {**entry, "layer": []})
