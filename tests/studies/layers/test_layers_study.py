"""Layers one by one, end to end: numbers again from the model itself, blocks left out, and what is refused."""

import shutil

import numpy as np
import pytest
import torch
from helpers.tiny import TINY, perturb
from transformers import AutoModelForCausalLM

from repsim_cli.figures.lines import draw_quantities
from repsim_cli.models.configs import inline_config
from repsim_cli.runs import reader
from repsim_cli.runs.content import BY_SCALE, OF_LAYER_DIFFERENCES, OF_LAYER_ERRORS, STANDS_OUT, Axis, Curve
from repsim_cli.studies.layers.columns import OF_LAYER, OF_LAYER_COLUMNS
from repsim_cli.studies.layers.finding import find_best, group_by_model, read_apart, say_answers, say_extreme

WORDS = ("run", "-q", "study=layers", "extract=texts", "data=embedded", "model=[]", "extract.length=16", "extract.skip=2",
         "extract.sequences=60", "hardware.threads=1")  # fmt: skip

NUMBERS = OF_LAYER_COLUMNS[2:]


def of(folder, kind="transformers"):
    return f"+model.mine={{kind: {kind}, path: {folder}}}"


@pytest.fixture
def headed(shared, tokenizer_folder):
    """A Llama with its head."""

    def make(folder):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(inline_config(TINY["llama"]))
        perturb(model)
        model.save_pretrained(folder)
        shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)

    return shared("llama-headed", make)


def table(folder, name=OF_LAYER):
    return group_by_model(reader.read_results(folder).tables[name])["mine"]


@pytest.mark.slow
@pytest.mark.drawn
def test_numbers_equal_a_plain_recomputation(repsim, newest, headed, monkeypatch):
    from repsim_cli.studies.layers import study

    seen = []
    whole = study.gather
    sizes = []

    def gather(stream, counts, layers):
        sizes.extend(counts)
        return whole(spied(stream, seen), counts, layers)

    monkeypatch.setattr(study, "gather", gather)
    code, _, err = repsim(*WORDS, of(headed), "options.without=5")
    assert code == 0, err
    rows = [np.concatenate([x.double().numpy() for x in layer]) for layer in zip(*seen, strict=True)]
    found, errors = table(newest()), table(newest(), OF_LAYER_ERRORS)
    assert [row["layer"] for row in found] == ["embed", "resid_post@0", "resid_post@1", "resid_post@2"]
    for layer in range(1, 4):
        x, y = rows[layer - 1], rows[layer]
        cosines = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
        assert found[layer]["influence"] == pytest.approx(
            1 - cosines.mean(), rel=0.02
        )  # there: the mean over documents
        unit = np.split(y / np.linalg.norm(y, axis=1, keepdims=True), np.cumsum(sizes)[:-1])
        pairs = [(i, j) for i in range(len(unit)) for j in range(len(unit)) if i != j]
        cross = np.concatenate([(unit[i] @ unit[j].T).ravel() for i, j in pairs])
        assert found[layer]["cosine"] == pytest.approx(cross.mean())
        last = y[np.cumsum(sizes) - 1]
        shares = np.linalg.eigvalsh(np.cov(last.T)).clip(1e-300)
        shares /= shares.sum()
        assert found[layer]["rank"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-5)
        assert errors[layer]["entropy"] > 0
    apart = table(newest(), OF_LAYER_DIFFERENCES)
    lost, of_each, of_pair = ([row["KL without"] for row in rows[1:]] for rows in (found, errors, apart))
    least = int(np.argmin(lost))
    assert of_pair[least] == 0
    sums = np.hypot(of_each, of_each[least])
    assert all(0 < of_pair[i] <= np.sqrt(2) * sums[i] for i in range(3) if i != least)
    assert found[0]["influence"] is None
    assert found[0]["KL without"] is None
    assert {row["k"] for row in group_by_model(reader.read_results(newest()).tables[BY_SCALE])["mine"]} == {1, 2, 4, 8}
    assert (newest() / "figures" / "layers.png").is_file()
    ((model, sentence),) = reader.read_results(newest()).tables[STANDS_OUT].rows
    assert model == "mine"
    assert "the next token changes least without" in sentence or "no layer stands out by KL" in sentence


def spied(stream, seen):
    for block in stream:
        seen.append(block.rows)
        yield block


def test_a_block_is_left_out(repsim, newest, headed):
    """Numbers are as if the model had been built without it."""
    code, _, err = repsim(*WORDS, of(headed), "options.without=3")
    assert code == 0, err
    found = table(newest())
    from repsim_cli.base import registry
    from repsim_cli.data.packing import pack

    source = registry.models.get("transformers").function(path=str(headed))
    made = pack(
        registry.data.get("embedded_text").function(),
        source.tokenizer(),
        length=16,
        sequences=60,
        pool=1024,
        separator="auto",
        seed=0,
    )
    ids = torch.from_numpy(made.ids[:3]).long()
    follows = torch.from_numpy(made.document[:3, 1:] == made.document[:3, :-1])
    model = AutoModelForCausalLM.from_pretrained(headed).eval()
    with torch.inference_mode():
        whole = model(ids).logits[:, :-1].double().log_softmax(-1)[follows]
        for block in range(3):
            blocks = list(model.model.layers)
            model.model.layers = torch.nn.ModuleList(blocks[:block] + blocks[block + 1 :])
            without = model(ids, use_cache=False).logits[:, :-1].double().log_softmax(-1)[follows]
            model.model.layers = torch.nn.ModuleList(blocks)
            kl = (whole.exp() * (whole - without)).sum(-1).mean()
            loss = (whole - without).gather(1, ids[:, 1:][follows][:, None]).mean()
            assert found[block + 1]["KL without"] == pytest.approx(float(kl), rel=1e-4)
            assert found[block + 1]["loss without"] == pytest.approx(float(loss), rel=1e-4, abs=1e-6)


def test_classes_of_texts_and_a_model_without_a_head(repsim, newest, tiny_folder):
    words = [word for word in WORDS if word != "data=embedded"]
    code, _, err = repsim(*words, "data=overlap_nli", of(tiny_folder("bert")), "-q")
    assert code == 0, err
    first, *_ = found = table(newest())
    assert 0 < first["class by chance"] < 1
    assert all(row["KL without"] is None for row in found)
    assert "no block is left out (" in " ".join(reader.read_manifest(newest())["warnings"])


def test_texts_of_one_class_tell_nothing(repsim, newest, tmp_path):
    rows = "".join(f"the {'cat ' * (1 + i % 7)}sat on mat {i},1\n" for i in range(40))
    (tmp_path / "one.csv").write_text("text,label\n" + rows)
    words = [word for word in WORDS if word != "data=embedded"]
    given = ("data=table", f"data.path={tmp_path}/one.csv", "data.text=text", "data.label=label", "options.without=0")
    code, out, err = repsim(*words, *given, "+model.mine={kind: shipped, name: tiny_a}")
    assert code == 0, err
    assert (
        {row["same class"] for row in table(newest())} == {row["class by chance"] for row in table(newest())} == {None}
    )
    assert "share a class" not in out
    said = "mine: the texts that are read are of one class alone: whether neighbours share it says nothing"
    assert said in reader.read_manifest(newest())["warnings"]


def test_a_warning_about_the_input_of_one_model_names_it(repsim, newest):
    code, _, err = repsim(*WORDS, "model=[tiny_a,tiny_b]", "extract.skip=4", "options.without=0")
    assert code == 0, err
    warnings = reader.read_manifest(newest())["warnings"]
    said = [warning for warning in warnings if "rows are left out, as some model skips their places" in warning]
    assert [warning.split(" 240 of ")[0] for warning in said] == ["tiny_a: extract.skip:", "tiny_b: extract.skip:"]


def test_shares_of_classes_stand_beside_chance():
    layers = [{"layer": f"resid_post@{i}", "same class": 0.5 + i / 99, "class by chance": 0.498} for i in range(3)]
    said = say_extreme(layers, [{"same class": 0.4}] * 3, "same class")
    assert said == "no layer stands out by neighbours of the same class (0.5 to 0.52, chance 0.498)"


def test_layers_that_cannot_be_told_apart_are_named_together():
    layers = [{"layer": f"resid_post@{i}", "dimension": value} for i, value in enumerate((3.0, 7.0, 8.0, 4.0))]
    apart = [{"dimension": 0.7} for _ in layers]
    assert say_extreme(layers, apart, "dimension") == (
        "texts take most directions at one of blocks 1 to 2 (intrinsic dimension 7 to 8; 4 at block 3, the last)"
    )
    nowhere = "no layer stands out by intrinsic dimension of texts (3 to 8)"
    assert say_extreme(layers, [{"dimension": 4.2}] * 4, "dimension") == nowhere
    assert say_extreme(layers, [{"dimension": None}] * 4, "dimension") == nowhere
    assert say_extreme(layers[:1], apart, "dimension") == ""


def test_losses_without_blocks_are_as_sure_as_the_few_documents_that_they_are_of():
    losses = (0.1, 0.2, 0.3)
    layers = [{"layer": f"resid_post@{i}", **dict.fromkeys(NUMBERS), "KL without": of} for i, of in enumerate(losses)]
    apart = [{**dict.fromkeys(NUMBERS), "KL without": 0.035} for _ in layers]
    counts = [{"documents": 80, "documents of blocks left out": of_losses} for of_losses in (8, 80, 3)]
    said = [next(say_answers({"m": layers}, {"m": apart}, about))[1] for about in counts]
    assert said == [
        "the next token changes least without one of blocks 0 to 1 (KL 0.1 to 0.2 nats; 0.3 at block 2, the last)",
        "the next token changes least without block 0 (KL 0.1 nats; 0.3 at block 2, the last)",
        "no layer stands out by KL without the block (0.1 to 0.3)",
    ]


def test_a_run_without_errors_of_differences_takes_layers_to_be_independent(repsim, newest, headed):
    code, _, err = repsim(*WORDS, of(headed), "options.without=0")
    assert code == 0, err
    tables = dict(reader.read_results(newest()).tables)
    del tables[OF_LAYER_DIFFERENCES]
    errors = [row["influence"] for row in table(newest(), OF_LAYER_ERRORS)]
    of_best = errors[find_best(table(newest()), "influence")]
    apart = [row["influence"] for row in read_apart(tables)["mine"]]
    assert apart == [None, *(pytest.approx(np.hypot(of_best, error)) for error in errors[1:])]


def test_documents_of_losses_are_counted(repsim, newest, headed):
    code, _, err = repsim(*WORDS, of(headed), "options.without=3")
    assert code == 0, err
    about = reader.read_results(newest()).about
    assert about["documents"] > about["documents of blocks left out"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["extract.unit=mean"], "extract.unit: the study follows tokens through a text, got mean; use token (extract=texts)"),
        (["extract.sequences=10"], "extract.sequences: an intrinsic dimension needs 40 texts, got 10; read more"),
        (["options.k=0"], "options.k: wrong value, got 0; give greater than or equal to 1"),
        (["options.k=40"], "options.k: neighbours 40 and 80 are needed, the data have 60 texts; lower it, or read more texts"),
        (["model=[]"], "model: no model is selected; e.g. model=[tiny_a,tiny_b]"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(repsim, tiny_folder, words, message):
    given = [word for word in WORDS if word.partition("=")[0] not in {w.partition("=")[0] for w in words}]
    mine = [] if words == ["model=[]"] else ["model=[]", of(tiny_folder("llama"))]
    code, _, err = repsim(
        *[w for w in given if w != "model=[]"], *mine, *[w for w in words if w != "model=[]"] or ["model=[]"]
    )
    assert (code, err.splitlines()[-1]) == (2, f"error: {message}")


def test_a_model_has_one_style_in_all_panels():
    """The style stays where another model has no value."""

    def curve(quantity, model):
        about = {"quantity": quantity, "model": model}
        return Curve(x=Axis(name="layer"), y=Axis(name=quantity), at=["embed"], lines={quantity: [1.0]}, about=about)

    figure = draw_quantities([[curve("rank", "a"), curve("rank", "b")], [curve("KL", "b")]], ())
    first, second = (panel.lines for panel in figure.axes[:2])
    assert first[1].get_color() == second[0].get_color() != first[0].get_color()


def test_one_document_is_told_by_its_sequences(repsim, newest, headed, tmp_path):
    (tmp_path / "one.txt").write_text(" ".join(f"word {i % 97} and {i % 13}." for i in range(2000)))
    words = [word for word in WORDS if word != "data=embedded"]
    code, _, err = repsim(
        *words, "data=local_text", f"data.path={tmp_path / 'one.txt'}", of(headed), "options.without=4"
    )
    assert code == 0, err
    assert "the text is one document, got its 60 sequences" in " ".join(reader.read_manifest(newest())["warnings"])
    errors = table(newest(), OF_LAYER_ERRORS)
    assert all(row["KL without"] > 0 and row["curvature"] > 0 for row in errors[1:])


def test_rows_of_all_models_are_counted(repsim, newest, headed):
    other = f"+model.other={{kind: transformers, path: {headed}}}"
    assert repsim(*WORDS, of(headed), other, "options.without=0")[0] == 0
    manifest = reader.read_manifest(newest())
    assert repsim(*WORDS, of(headed), "options.without=0")[0] == 0
    one = reader.read_manifest(newest())
    assert manifest["rows"] == 2 * one["rows"]
    assert manifest["remedies"]["rows_left_out"] == 2 * one["remedies"]["rows_left_out"]
