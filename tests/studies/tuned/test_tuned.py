"""Models against their base: a known perturbation, rows of zeros, one pass per model, and what is refused."""

import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers.composing import composed
from helpers.recorded import recorded
from scipy.special import softmax
from scipy.stats import entropy
from transformers import AutoModelForCausalLM

from repsim_cli.base.errors import BadConfig
from repsim_cli.config.run import validate
from repsim_cli.models.checkpoints import SHIPPED
from repsim_cli.runs import reader
from repsim_cli.runs.content import CARRIED, COSINE, KL, NEXT, OF_BLOCKS, OWN, RELATIVE, WHERE
from repsim_cli.studies.tuned import models

SHORT = ("study=tuned", "extract.skip=0", "extract.sequences=6", "extract.length=32", "extract.batch_rows=64",
         "hardware.batch_size=4", "hardware.threads=1", "measure=[cka,mutual_knn]", "base=tiny_a")  # fmt: skip


# ---- whole runs ----


def matrix(folder, kind, model):
    return np.load(folder / recorded(folder)["matrices"][f"{kind}, {model}"]["values"])


def test_a_model_does_not_differ_from_itself(repsim, newest):
    code, _, err = repsim("run", "-q", *SHORT, "model=[tiny_a]", "+model.same={kind: shipped, name: tiny_a}")
    assert code == 0, err
    assert not matrix(newest(), RELATIVE, "same").any()
    assert not matrix(newest(), KL, "same").any()
    assert matrix(newest(), COSINE, "same") == pytest.approx(1, abs=1e-12)
    found = recorded(newest())
    assert list(found["matrices"]) == [f"{kind}, same" for kind in (RELATIVE, COSINE, KL, NEXT, OWN, CARRIED)]
    assert not matrix(newest(), OWN, "same").any()
    assert not matrix(newest(), CARRIED, "same").any()
    tokens = found["matrices"][f"{KL}, same"]["n"]
    assert found["tables"][WHERE]["rows"] == [
        ["same", "no block changes anything above rounding"],
        ["same", f"next token: KL 0 nats on the mean, another choice for 0 % of {tokens:,} tokens"],
    ]
    assert repsim("show", newest())[1].splitlines()[1] == "  same: no block changes anything above rounding"
    for measure in ("cka", "mutual_knn"):
        curve = found["curves"][f"{measure} with tiny_a, same"]
        assert curve["lines"]["same layer"] == pytest.approx([1.0] * 6, abs=1e-6)
    ((model, of_tokens, *numbers),) = found["tables"]["changes of the outputs"]["rows"]
    assert of_tokens == tokens
    assert (model, numbers) == ("same", [0.0] * 6)


def test_pieces_of_local_texts_are_listed_only_where_they_may_be_kept(repsim, newest, tmp_path):
    (tmp_path / "mine.txt").write_text("\n\n".join(f"A secret Zebrawombat of number {i} ran home." for i in range(40)))
    given = ("data=local_text", f"data.path={tmp_path}/mine.txt", "data.sample_by=paragraph", "model=[tiny_a,tiny_b]")
    for more, kept in ((), False), (("extract.keep_texts=true",), True):
        code, _, err = repsim("run", "-q", *SHORT, *given, *more)
        assert code == 0, err
        assert ("Zebraw" in (newest() / "results.json").read_text()) == kept
        assert ("tokens that change most" in recorded(newest())["tables"]) == kept
        told = "extract.keep_texts: of local files no tokens and texts that change most are listed; set it to true"
        assert (told not in reader.read_manifest(newest())["warnings"]) == kept


def altered(folder, part, change) -> Path:
    """tiny_a whose weights of this part are changed."""
    shutil.copytree(SHIPPED / "tiny_a", folder)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    names = [name for name in weights if part in name]
    assert names
    weights |= {name: change(weights[name]) for name in names}
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def louder(tmp_path) -> Path:
    """tiny_a with twice the final norm, and so twice the logits."""
    return altered(tmp_path / "louder", "final_layer_norm", lambda x: 2 * x)


def test_a_known_change_is_found_token_by_token(repsim, newest, louder):
    words = (*SHORT, "model=[tiny_a]", f"+model.louder={{kind: transformers, path: {louder}}}")
    code, _, err = repsim("run", "-q", *words, "extract.hook_points=[resid_post,final_norm]", "options.examples=3")
    assert code == 0, err
    relative, cosine = (matrix(newest(), kind, "louder") for kind in (RELATIVE, COSINE))
    assert not relative[:6].any()
    assert relative[6] == pytest.approx(1, abs=1e-6)
    assert cosine == pytest.approx(1, abs=1e-12)
    # the same tokens, one after the other and by hand
    read = validate(composed(*words)).study.comparison
    sequences = read.data.sequences(read.tokenizers["tiny_a"], read.extract, 0)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(SHIPPED / "tiny_a", dtype=torch.float32)(
            torch.from_numpy(sequences.ids).long()
        ).logits
    rows = logits[torch.from_numpy(sequences.text)].double().numpy()
    expected = [entropy(softmax(x), softmax(2 * x)) for x in rows]
    assert matrix(newest(), KL, "louder")[0] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    found = recorded(newest())["tables"]
    first, *_ = (row for row in found["tokens that change most"]["rows"] if row[1] == "KL of the outputs, nats")
    assert first[2] == pytest.approx(max(expected), rel=1e-4)
    where, place = sequences.text.nonzero()
    at = int(np.argmax(expected))
    token = read.tokenizers["tiny_a"].decode([sequences.ids[where[at], place[at]]])
    assert first[4] == f"'{token}'" or not token.isprintable()
    assert first[6] == first[7]  # twice the logits rank the tokens alike
    assert len(found["tokens that change most"]["rows"]) == 2 * 3
    assert len(found["texts that change most"]["rows"]) == 2 * 3


@pytest.fixture
def with_zeros(shared):
    """with_zeros(count): tiny_a with zeros as the embeddings of its first `count` tokens, or of all (None)."""

    def make(count: int | None) -> Path:
        def empty(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([0 * x[:count], x[len(x[:count]) :]])

        return shared(f"zeros-{count}", lambda folder: altered(folder / "model", "embed_in", empty)) / "model"

    return make


def name_words_of_zeros(folder, base):
    """The words of a run of tiny_a and of a model with embeddings of zeros, one of which is the base."""
    words = (*SHORT[:-1], f"base={base}", "model=[tiny_a]", f"+model.some={{kind: transformers, path: {folder}}}")
    return *words, "extract.hook_points=[embed,resid_post]"


@pytest.fixture(params=["tiny_a", "some"])
def of_zeros(request, finished, with_zeros):
    """A run where some embeddings are zeros, in the base or in the other model: its folder, the base, the other."""
    base = request.param
    return finished(*name_words_of_zeros(with_zeros(300), base)), base, {"tiny_a": "some", "some": "tiny_a"}[base]


def test_rows_of_zeros_have_no_value(of_zeros):
    """No cosine on either side, and no relative difference where the base is zero."""
    folder, base, other = of_zeros
    relative, cosine = (matrix(folder, kind, other) for kind in (RELATIVE, COSINE))
    empty = np.isnan(cosine[0])
    assert 0 < empty.sum() < len(empty)
    assert not np.isnan(cosine[1:]).any()
    np.testing.assert_array_equal(np.isnan(relative[0]), empty & (base == "some"))
    assert "NaN" not in (folder / "results.json").read_text()


def test_rows_of_zeros_are_counted_and_listed(of_zeros):
    folder, base, other = of_zeros
    found, cosine = recorded(folder), matrix(folder, COSINE, other)
    empty, tokens = int(np.isnan(cosine).sum()), cosine.shape[1]
    why = "a row of zeros has no direction"
    assert f"{COSINE}: {empty:,} of {cosine.size:,} cells without a value: {why}" in found["warnings"]
    listed = {row[0]: row for row in found["tables"]["cells without a value"]["rows"] if row[0] in (RELATIVE, COSINE)}
    assert set(listed) == ({RELATIVE, COSINE} if base == "some" else {COSINE})
    assert listed[COSINE][1:] == [base, other, "embed", "embed", f"{empty:,} of {tokens:,} tokens: {why}"]


def test_means_and_largest_changes_leave_rows_of_zeros_out(of_zeros):
    folder, _, other = of_zeros
    found, cosine = recorded(folder), matrix(folder, COSINE, other)
    mean = found["curves"][f"{COSINE}, {other}"]["lines"]["mean over tokens"]
    assert mean == pytest.approx(np.nanmean(cosine, axis=1))
    assert all(row[2] is not None for row in found["tables"]["tokens that change most"]["rows"])


@pytest.mark.drawn
@pytest.mark.slow
def test_a_layer_of_zeros_has_no_mean_and_is_hatched(repsim, newest, with_zeros):
    code, _, err = repsim("run", "-q", *name_words_of_zeros(with_zeros(None), "some"), "figures=all")
    assert code == 0, err
    cosine = matrix(newest(), COSINE, "tiny_a")
    assert np.isnan(cosine[0]).all()
    mean = recorded(newest())["curves"][f"{COSINE}, tiny_a"]["lines"]["mean over tokens"]
    assert mean == [None, *map(pytest.approx, cosine[1:].mean(1))]
    assert "hatched: no value" in (newest() / "figures" / "relative-difference-all.svg").read_text()


@pytest.mark.slow
def test_skipped_places_are_left_out(repsim, newest):
    words = (*SHORT, "model=[tiny_a,tiny_b]", "options.examples=2")
    assert repsim("run", "-q", *words)[0] == 0
    whole = matrix(newest(), KL, "tiny_b")
    read = validate(composed(*words)).study.comparison
    _, place = read.data.sequences(read.tokenizers["tiny_a"], read.extract, 0).text.nonzero()
    code, _, err = repsim("run", "-q", *words, "extract.skip=5")
    assert code == 0, err
    assert np.array_equal(matrix(newest(), KL, "tiny_b"), whole[:, place >= 5])
    row = recorded(newest())["tables"]["tokens that change most"]["rows"][0]
    assert row[2] == whole[0, place >= 5].max()
    assert len(row[3])  # five tokens at least are before it


@pytest.mark.slow
def test_every_model_runs_once_and_what_is_known_does_not_run(repsim, newest, monkeypatch, edited):
    from transformers import GPTNeoXForCausalLM

    passes = []
    forward = GPTNeoXForCausalLM.forward
    monkeypatch.setattr(GPTNeoXForCausalLM, "forward", lambda self, *a, **k: passes.append(1) or forward(self, *a, **k))
    assert repsim("run", "-q", *SHORT, "model=[tiny_a,tiny_b]")[0] == 0
    batches = -(-6 // 4)
    assert len(passes) == 2 * batches
    assert repsim("run", "-q", *SHORT, "model=[tiny_a,tiny_b,tiny_a_step400]")[0] == 0
    assert reader.read_manifest(newest())["models_run"] == ["tiny_a", "tiny_a_step400"]
    assert len(passes) == 4 * batches
    both = {path: (newest() / path).read_bytes() for path in reader.read_manifest(newest())["files"]}
    assert repsim("run", "-q", *SHORT, "model=[tiny_a,tiny_b,tiny_a_step400]")[0] == 0
    assert (reader.read_manifest(newest())["models_run"], len(passes)) == ([], 4 * batches)
    for path, content in both.items():
        assert path == "config.yaml" or (newest() / path).read_bytes() == content, path
    edited("repsim_cli.studies.tuned.changes")
    assert repsim("run", "-q", *SHORT, "model=[tiny_a,tiny_b]")[0] == 0
    assert reader.read_manifest(newest())["models_run"] == ["tiny_a", "tiny_b"]


@pytest.mark.slow
def test_the_base_and_one_model_at_a_time_give_the_same_bits(repsim, newest, monkeypatch):
    load, alive, most = models.load_next_token_model, [], []

    def counted(source, how):
        module = load(source, how)
        alive.append(weakref.ref(module))
        most.append(sum(one() is not None for one in alive))
        return module

    monkeypatch.setattr(models, "load_next_token_model", counted)
    found = {}
    for resident in ("all", "one"):
        words = [*SHORT, "model=[tiny_a,tiny_b,tiny_a_step400]", f"hardware.resident={resident}", "cache=false"]
        code, _, err = repsim("run", *words, "measure=[cka]")
        assert code == 0, err
        written = reader.read_manifest(newest())
        assert written["models_run"] == ["tiny_a", "tiny_b", "tiny_a_step400"]
        found[resident] = {path: (newest() / path).read_bytes() for path in written["files"] if path != "config.yaml"}
        read = written["data"]["tokens_read"]
    assert most == [1, 2, 3, 1, 2, 1, 2]
    assert found["one"] == found["all"]
    # the base twice in each of two turns; another model once, and twice for its blocks
    assert read["tiny_a"] / 4 == read["tiny_b"] / 3 == read["tiny_a_step400"] / 3
    _, out, _ = repsim("run", *words, "dry_run=true")
    assert "in memory together: tiny_a and tiny_b, tiny_a and tiny_a_step400" in out
    assert f"forward passes, unless stored: {10 * -(-6 // 4)}" in out
    _, out, _ = repsim("run", *words, "dry_run=true", "options.blocks=0")
    assert f"forward passes, unless stored: {4 * -(-6 // 4)}" in out
    _, out, _ = repsim("run", *words, "dry_run=true", "options.patching=true")
    assert f"forward passes of patching, at most: {2 * 8 * -(-6 // 4)}" in out


def test_models_without_a_next_token_head(repsim, newest):
    bert = "{kind: random, config: {model_type: bert, vocab_size: 512, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 16}, tokenizer: tiny_a, seed: %d}"
    models = ("model=[]", f"+model.tiny_a={bert % 0}", f"+model.other={bert % 1}")
    code, _, err = repsim("run", *SHORT, *models)
    assert code == 0, err
    assert (
        "WARNING: model.tiny_a: changes of the outputs are left out (it has no output head for the next token, " in err
    )
    found = recorded(newest())
    assert set(found["matrices"]) == {f"{kind}, other" for kind in (RELATIVE, COSINE, OWN, CARRIED)}
    assert "directions of change" not in found["tables"]
    assert found["tables"][WHERE]["rows"][0][1].startswith("blocks 0 to 1: own change ")
    assert "changes of the outputs" not in found["tables"]
    assert matrix(newest(), RELATIVE, "other").min() > 0


@pytest.mark.drawn
@pytest.mark.slow
def test_the_tiny_study(repsim, newest):
    code, out, err = repsim("run", "experiment=tiny/tuned", "extract.sequences=16", "hardware.threads=1")
    assert code == 0, err
    assert "changes of the outputs:" in out
    names = {file.stem for file in (newest() / "figures").iterdir()}
    assert names == {"blocks", "by-layer-cka_unbiased_with_tiny_a_step400", "by-layer-mutual_knn_with_tiny_a_step400",
                     "by-layer-relative_difference", "outputs-KL"}  # fmt: skip
    assert repsim("plot", newest(), "--all")[0] == 0
    names = {file.stem for file in (newest() / "figures").iterdir()} - names
    assert names == {"by-layer-cosine", "relative-difference-all"}
    curves = recorded(newest())["curves"]
    table = recorded(newest())["tables"][OF_BLOCKS]
    assert curves["blocks, tiny_b"]["lines"][OWN] == [row[2] for row in table["rows"] if row[0] == "tiny_b"]
    assert [row[2] for row in table["rows"]] == pytest.approx(
        [*matrix(newest(), OWN, "tiny_a").mean(1), *matrix(newest(), OWN, "tiny_b").mean(1)]
    )
    assert "  tiny_a: blocks 0 to 5: own change 0.1" in out
    values, curve = matrix(newest(), RELATIVE, "tiny_b"), curves["relative difference, tiny_b"]
    assert curve["lines"] == {"mean over tokens": values.mean(1).tolist()}
    assert curve["bands"]["half of the tokens"]["high"] == np.percentile(values, 75, axis=1).tolist()
    assert curve["bands"]["nine tenths"]["low"] == np.percentile(values, 5, axis=1).tolist()
    later, apart = (
        curves[f"cka_unbiased with tiny_a_step400, {x}"]["lines"]["same layer"] for x in ("tiny_a", "tiny_b")
    )
    assert all(np.array(later) > np.array(apart))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=[tiny_a,tiny_b]", "base=null"], "base: the model that the others were made from is needed; set base=LABEL"),
        (["model=[tiny_a]"], r"model: a model to compare with the base is needed, got \['tiny_a'\]; select two or more"),
        (["model=[tiny_a,tiny_b]", "options.patching=true", "options.blocks=0"], "options.patching: it needs sequences to run on, got options.blocks=0; leave"),
        (["model=[tiny_a,tiny_b]", "options.patching=true", "hardware.devices={tiny_b: meta}"], "options.patching: the blocks of two models are exchanged, got models on several devices; put"),
        (["model=[tiny_a,tiny_b]", "extract.unit=mean"], "extract.unit: a row must be one token, got mean; use extract=tokens"),
        (["model=[tiny_a,tiny_b]", "extract.piece=mean"], "extract.unit: a row must be one token, got piece=mean; use"),
        (["model=[tiny_a,tiny_b]", "measure=[cka]", "extract.estimate=moments"], "extract.estimate: layers are compared pair by pair, got moments; use per"),
        (["model=[tiny_a,tiny_b]", "extract.normalise=rows"], "extract.normalise: the study tuned reads features as models give them, got rows; leave it at its default"),
        (["model=[tiny_a]", "+model.small={kind: random, config: {model_type: gpt_neox, vocab_size: 512, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2}, tokenizer: tiny_a}"],
         "model.small: its layers are not those of the base 'tiny_a', got 2 of width 32 for 6 of width 64; compare"),
        (["model=[tiny_a]", "+model.other={kind: random, config: {model_type: gpt_neox}, tokenizer: characters}"], "model.other: its tokenizer lacks tokens of the base 'tiny_a', or numbers"),
        (["model=[tiny_a]", "+model.vit={kind: random, config: {model_type: vit, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2}}"], "model.vit: it reads no text, got a model of images; compare language models"),
        (["model=[tiny_a,tiny_b]", "base=tiny_c"], "base: no such model, got 'tiny_c'; did you mean"),
    ],
)  # fmt: skip
def test_what_is_refused(overrides, message):
    with pytest.raises(BadConfig, match=message):
        validate(composed(*SHORT, *overrides))


def test_stored_activations_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.ones((4, 3)))
    stored = f"+model.stored={{kind: precomputed, path: {tmp_path / 'x.npz'}}}"
    with pytest.raises(BadConfig, match="model.stored: it reads no text, got stored activations; compare language"):
        validate(composed(*SHORT, "model=[tiny_a]", stored))
