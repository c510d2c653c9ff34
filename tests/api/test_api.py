"""Comparison from Python: the same numbers as the command line, and models that are left as they were."""

import json
import re
from contextlib import ExitStack

import datasets
import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import repsim_cli
from repsim_cli.api.entries import compose_configuration, make_data_entry
from repsim_cli.base import registry
from repsim_cli.base.errors import BadConfig, BadInput
from repsim_cli.config.binding import bind_model
from repsim_cli.config.presets import find_conf_folder
from repsim_cli.config.run import validate
from repsim_cli.models import memory
from repsim_cli.models.checkpoints import find_shipped
from repsim_cli.models.memory import record_modules
from repsim_cli.runs import reader, results

SMALL = {"extract.sequences": 8, "extract.batch_rows": 400}
TEXTS = [f"rain falls on {i} roofs and runs down the wall of house number {i * i}" for i in range(120)]


@pytest.fixture(scope="module")
def of_texts():
    return repsim_cli.compare({"a": "tiny_a", "b": str(find_shipped("tiny_b"))}, TEXTS, settings=SMALL)


def test_the_same_bits_as_both_commands(of_texts, repsim, newest, tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    words = [f"{key}={value}" for key, value in SMALL.items()]
    other = f"+model.b={{kind: transformers, path: {find_shipped('tiny_b')}}}"
    code, _, err = repsim(
        "run",
        "model=[]",
        "+model.a={kind: shipped, name: tiny_a}",
        other,
        "data=local_text",
        f"data.path={file}",
        *words,
    )
    assert code == 0, err
    for measure in of_texts.measures:
        by_command = repsim_cli.load(newest()).matrix("a", "b", measure)
        np.testing.assert_array_equal(of_texts.matrix("a", "b", measure).values, by_command.values)
    code, out, err = repsim("compare", "tiny_a", find_shipped("tiny_b"), "--data", file, "--measure", "cka_unbiased")
    assert code == 0, err
    assert re.search(
        r"\n  data: all \d+ sequences of .*texts.jsonl\n  rows: without the first 4 places; no direction above 5 % of the variance \(what",
        out,
    ), out
    assert out.count("\n") <= 20
    assert re.search(
        r"^    closest: block \d of tiny_a and block \d of tiny_b, 0\.\d{2}; block \d and block ", out, re.M
    )
    whole = repsim_cli.compare(["tiny_a", str(find_shipped("tiny_b"))], TEXTS, measures=["cka_unbiased"])
    by_command = repsim_cli.load(newest()).matrix("tiny_a", "tiny_b")
    np.testing.assert_array_equal(by_command.values, whole.matrix("tiny_a", "tiny_b").values)
    assert repsim("run", "--from", newest(), "measure=[cka]")[0] == 0  # its configuration is one like any other


@pytest.mark.drawn
def test_a_comparison_ends_with_its_page(repsim, newest):
    code, out, err = repsim("compare", "tiny_a", "tiny_a_step100", "--measure", "cka", "--set", "extract.sequences=10")
    assert code == 0, err
    assert out.splitlines()[-1].endswith("/report.html")
    assert (newest() / "report.html").is_file()
    assert any((newest() / "figures").iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tiny_a", "tiny_c"],
            "error: MODEL: neither a model nor a folder, got 'tiny_c'; did you mean 'tiny_b'",
        ),
        (["tiny_a", "TABLE"], "models.a_csv: MODEL: unknown kind of file, got '.*a.csv'; use a folder, or .gguf, .npy"),
        (["tiny_a", "tiny_b", "--data", "nowhere.txt"], "data: neither a file nor a data set, got 'nowhere.txt'"),
        (
            ["tiny_a", "tiny_b", "--column", "review"],
            "--column: of a table, got 'review' without one; name it with --dat",
        ),
        (
            ["tiny_a", "tiny_b", "--data", "TABLE"],
            r"data: .*a.csv, line 2: no column 'text', got 'review', 'stars'; set data.text \(--column\)",
        ),
        (["tiny_a", "tiny_b", "--data", __file__], "data: unknown kind of file, got '.*'; use .txt, .*, .csv, .tsv"),
        (["tiny_a", "tiny_b", "--measure", "cka,cka"], "measures: not distinct, got cka, cka; name each once"),
        (
            ["tiny_a", "tiny_b", "--significance", "permutation", "--set", "significance=none"],
            "significance: given twice, got 'permutation' and significance=none; give one of them",
        ),
        (
            ["tiny_a", "tiny_b", "--rows", "words", "--set", "extract=tokens"],
            "rows: given twice, got 'words' and extract",
        ),
        (
            ["tiny_a", "tiny_b", "--measure", "cka", "--set", "measure=[rsa]"],
            "measures: given twice, got .*cka.* and me",
        ),
        (
            ["tiny_a", "tiny_b", "--budget", "--set", "significance.budget=false"],
            "budget: given twice, got false and t",
        ),
        (
            ["tiny_a", "tiny_b", "--data", "TABLE", "--column", "stars"],
            "a.csv: it has no examples, got 1 with an empty text",
        ),
        (["tiny_a", "nosuch/"], "models?.nosuch.path: no such folder, got 'nosuch'"),
        (["tiny_aa", "tiny_bb"], "compare: neither a run nor a model, got 'tiny_aa'; did you mean 'tiny_a'"),
        (["tiny_a", "tiny_b", "--measure", "rsa, ckaa"], "measures: no such measure, got 'ckaa'; did you mean 'cka'"),
    ],
)
def test_bad_words(repsim, words, message, tmp_path):
    (tmp_path / "a.csv").write_text("review,stars\nfine,\n")
    code, _, err = repsim("compare", *(str(tmp_path / "a.csv") if word == "TABLE" else word for word in words))
    assert code == 2
    assert re.search(message, err), err
    assert err.count("\n") == 1


def test_comparisons_of_one_second_have_a_folder_each(repsim, tmp_path, monkeypatch):
    import datetime

    class Stopped(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 1, tzinfo=tz)

    monkeypatch.setattr(datetime, "datetime", Stopped)
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(20, 3)))
    first = tmp_path / "outputs/2026-01-01/00-00-00-compare"
    first.mkdir(parents=True)
    (first / "manifest.json").touch()
    code, _, err = repsim("compare", tmp_path / "a.npy", tmp_path / "a.npy", "--measure", "cka")
    assert code == 0, err
    assert repsim("compare", tmp_path / "a.npy", "nowhere.npy", "--measure", "cka")[0] == 2
    assert sorted(each.name for each in first.parent.iterdir()) == [first.name, f"{first.name}-2"]


def test_two_rows_are_too_few():
    """Biased CKA is 1 for any two rows of any models."""
    with pytest.raises(BadInput, match="data: cka needs at least 3 rows, got 2; give more text"):
        repsim_cli.compare({"a": np.eye(2), "b": np.ones((2, 2)) - np.eye(2)}, measures=["cka"])


def test_fewer_texts_than_usual_are_a_warning_only_where_more_were_requested():
    few = "extract.rows: 1024 rows were requested, the data have"
    for settings, warnings in (
        ({}, []),
        (
            {"extract.sequences": 200, "extract.rows": 1024},
            [
                "extract.sequences: 120 texts in memory gave 120 sequences, 200 were requested; all are used",
                f"{few} 120; all are used",
            ],
        ),
        (
            {"extract.sequences": 50},
            ["extract.sequences: 50 rows are all that 50 sequences have; raise extract.sequences for more"],
        ),
    ):
        found = repsim_cli.compare(
            ["tiny_a", "tiny_b"], TEXTS, measures=["cka"], rows="pooled", layers=["embed"], settings=settings
        )
        assert [warning for warning in found.warnings if warning.startswith("extract.")] == warnings


def test_tables(tmp_path):
    """A file with columns, a folder of `datasets` and an id of the hub are tables; settings of one may be given."""
    (tmp_path / "a.csv").write_text("review,stars\nfine,5\n")
    for given, entry in {
        str(tmp_path / "a.csv"): {"kind": "table", "path": str(tmp_path / "a.csv")},
        str(tmp_path): {"kind": "table", "path": str(tmp_path)},
        "someone/reviews": {"kind": "table", "path": "someone/reviews"},
    }.items():
        assert make_data_entry(given) == entry
    settings = {"path": "a.csv", "text": "review"}
    assert make_data_entry(settings) == {"kind": "table", **settings}


def test_a_result_in_all_forms(of_texts, tmp_path):
    assert of_texts.measures == ["cka_unbiased", "mutual_knn"]
    matrix = of_texts.matrix("a", "b")
    assert matrix.values.shape == (6, 6)
    assert matrix.rows == [f"resid_post@{layer}" for layer in range(6)]
    np.testing.assert_array_equal(of_texts.matrix("b", "a").values, matrix.values.T)
    row, column, value = of_texts.closest("a", "b")
    assert matrix.values[matrix.rows.index(row), matrix.columns.index(column)] == value == matrix.values.max()
    frame = of_texts.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 2 * 3 * 36  # measures, pairs of models, pairs of layers
    at = frame[(frame.measure == "cka_unbiased") & (frame.model == "a") & (frame.other_model == "b")]
    np.testing.assert_array_equal(at.value.to_numpy().reshape(6, 6), matrix.values)
    figure = of_texts.plot("mutual_knn")
    assert len(figure.axes) >= 1
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    html = of_texts._repr_html_()
    assert "mutual_knn" in html
    assert "<img" in html
    assert not (of_texts.folder / "figures").exists()  # they are drawn when it is saved
    saved = of_texts.save(tmp_path / "kept")
    again = repsim_cli.load(tmp_path / "kept")
    np.testing.assert_array_equal(again.matrix("a", "b").values, matrix.values)
    assert (saved.folder / "report.html").is_file()
    assert "figures/cka_unbiased-all.png" in again.manifest["files"]
    assert (again.save(tmp_path / "copy").folder / "figures" / "cka_unbiased-all.png").is_file()
    with pytest.raises(BadInput, match="save: it exists, got '.*kept'; name a new folder"):
        of_texts.save(tmp_path / "kept")
    with pytest.raises(BadInput, match="no such pair of models, got 'a' and 'c'; known: a, b"):
        of_texts.matrix("a", "c")
    with pytest.raises(BadInput, match="measure: not of this run, got 'cka'; known: cka_unbiased, mutual_knn"):
        of_texts.matrix("a", "b", "cka")
    with pytest.raises(BadInput, match="measure: not of this run, got 'rsa'"):
        of_texts.plot("rsa")


def test_a_transformers_model_is_left_as_it_was(of_texts):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(find_shipped("tiny_a"))
    model.train()
    model.config.use_cache = True
    before, random = {name: x.clone() for name, x in model.state_dict().items()}, torch.random.get_rng_state()
    found = repsim_cli.compare({"a": model, "b": "tiny_b"}, TEXTS, settings=SMALL)
    np.testing.assert_array_equal(found.matrix("a", "b").values, of_texts.matrix("a", "b").values)
    assert model.training
    assert model.config.use_cache
    assert all(weights.requires_grad for weights in model.parameters())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)
    # what it says of the model in memory cannot be run again elsewhere
    assert json.loads((found.folder / "manifest.json").read_text())["models"]["a"]["source"].startswith("in memory")
    with pytest.raises(BadConfig, match="key: the model was in the memory of another process, got '[0-9a-f]+'; call"):
        bind_model("a", {"kind": "memory", "key": "0f"})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.second(torch.relu(self.norm(self.first(x))))
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def images():
    return torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_any_module(images):
    net = Net()
    net.first.eval()  # a mixture of modes
    loader = DataLoader(TensorDataset(images, torch.zeros(40)), batch_size=16)
    given = {"measures": ["cka"], "layers": ["first", "second", "head"], "maps": "pooled"}
    found = repsim_cli.compare({"net": net, "twin": net}, loader, **given)
    assert (net.training, net.first.training, net.norm.training) == (True, False, True)
    assert not net.first._forward_hooks
    with torch.no_grad():
        net.eval()
        conv = net.first(images)
        expected = [x.flatten(2).mean(2) if x.ndim == 4 else x for x in (conv, net.second(torch.relu(net.norm(conv))), net(images))]  # fmt: skip
    x, y, z = ((rows - rows.mean(0)).double() for rows in expected)

    def cka(a, b):
        return float((a.T @ b).square().sum() / torch.linalg.norm(a.T @ a) / torch.linalg.norm(b.T @ b))

    values = found.matrix("net", "twin").values
    assert found.matrix("net", "twin").rows == ["first", "second", "head"]
    np.testing.assert_allclose(values, [[cka(a, b) for b in (x, y, z)] for a in (x, y, z)], atol=1e-6)
    once = (batch for batch in DataLoader(TensorDataset(images), batch_size=16, shuffle=True))
    shuffled = repsim_cli.compare({"net": net, "twin": net}, once, **given)  # rows stay paired
    np.testing.assert_allclose(shuffled.matrix("net", "twin").values, values, atol=1e-6)
    by_forward = repsim_cli.compare(
        {"net": net}, {"x": images}.items(), forward=lambda net, pair: net(pair[1]), **given
    )
    np.testing.assert_allclose(by_forward.matrix("net").values, values, atol=1e-6)
    flat = repsim_cli.compare({"net": net}, images, measures=["cka"])
    assert flat.matrix("net").rows == ["first", "norm", "second", "head"]
    assert flat.manifest["facts"]["net"]["widths"] == [6 * 36, 6 * 36, 4 * 16, 2]
    places = repsim_cli.compare({"net": net}, images, measures=["cka"], layers=["first"], maps="positions")
    assert places.results.measures[0].estimate["rows_available"] == 40 * 36
    tested = {"layers": ["first"], "measures": ["cka"], "significance": "permutation"}
    with pytest.raises(BadInput, match="significance.clusters: nothing says which rows of 'net' depend on each other"):
        repsim_cli.compare({"net": net}, images, maps="positions", **tested)
    with pytest.raises(BadInput, match="positions of one input depend on each other, got row with maps='positions'"):
        repsim_cli.compare({"net": net}, images, maps="positions", settings={"significance.clusters": "row"}, **tested)
    told = repsim_cli.compare({"net": net}, images, maps="positions", documents=range(40), **tested)
    assert told.results.measures[0].null["segments"] == 40
    with pytest.raises(BadInput, match="data: one DataLoader, got 2 in a list"):
        repsim_cli.compare({"net": net}, [DataLoader(TensorDataset(images))] * 2)


def test_minibatch_cka_of_modules_is_exact(images):
    """On the terms of other packages: sums over the batches of the DataLoader (benchmarks/modules.py)."""
    import modules

    pair, loader = (Net().eval(), Net().eval()), DataLoader(TensorDataset(images + 30), batch_size=20)
    layers = ["first", "norm", "second"]
    expected = modules.exact(pair, loader, layers).numpy()
    np.testing.assert_allclose(modules.ours(pair, loader, layers).numpy(), expected, atol=2e-6)


def test_rows_of_a_batch_are_not_copied(images):
    kept = record_modules({"net": Net()}, images.split(20), ["first"])["net"]
    assert kept.is_held(slice(20, 40))
    assert not kept.is_held(slice(10, 30))


def test_rows_beyond_the_memory_are_in_files():
    parts = [torch.randn(10, 2).numpy() for _ in range(3)]
    with ExitStack() as stack:
        rows = memory._Rows(["layer"], 2 * parts[0].nbytes, stack)
        for part in parts:
            rows.add({"layer": part}, len(part))
    kept = rows.keep("in memory", None)
    assert [kept.is_held(slice(start, start + 10)) for start in (0, 10, 20)] == [True, True, False]
    np.testing.assert_array_equal(kept.read("layer", slice(5, 30)), np.concatenate(parts)[5:])


def test_outputs_that_are_changed_in_place(images):
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 2, 3)
    both = {
        "in_place": nn.Sequential(first, nn.ReLU(inplace=True), second),
        "apart": nn.Sequential(first, nn.ReLU(), second),
    }
    found = repsim_cli.compare(both, images, measures=["cka"])
    assert found.matrix("in_place", "apart").values.diagonal().tolist() == pytest.approx([1.0, 1.0], abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": ["frist"]}, "models.net.layers: no such module, got 'frist'; did you mean 'first'?"),
        ({"layers": ["first", "head"], "maps": "positions"}, "models.net.layers: they differ in their number of positions, got \\[40, 1440\\] rows"),
        ({"forward": lambda net, x: net.head(x.mean((2, 3))[:, :1].expand(-1, 4))}, "models.net.layer 'first': it did not run"),
        ({"forward": lambda net, x: (net(x), net(x))}, "models.net.layer 'first': it runs twice in a forward pass"),
    ],
)  # fmt: skip
def test_bad_layers(images, settings, message):
    with pytest.raises(BadInput, match=message):
        repsim_cli.compare({"net": Net()}, images, **settings)


def test_modules_that_give_no_rows(images):
    class Odd(nn.Module):
        def __init__(self, give):
            super().__init__()
            self.part, self.give = nn.Identity(), give

        def forward(self, x):
            self.part.forward = self.give
            return self.part(x)

    for give, message in [
        (lambda x: {"a": x}, "layer 'part': it gives no tensor, got dict"),
        (lambda x: x.sum(), "layer 'part': no row per item, got torch.float32 \\(\\)"),
    ]:
        with pytest.raises(BadInput, match=message):
            repsim_cli.compare({"odd": Odd(give)}, images, layers=["part"])
    sizes = [torch.randn(4, 3, 8, 8), torch.randn(4, 3, 10, 10)]
    with pytest.raises(BadInput, match="layer 'first': batches differ in shape, got 216 and 384 features; give inputs"):
        repsim_cli.compare({"net": Net()}, sizes, layers=["first"])
    with pytest.raises(BadInput, match="data: no batch was given"):
        repsim_cli.compare({"net": Net()}, [])


def test_batches_in_other_forms(images):
    """A numpy array, a Dataset, a layer by its name alone, and modules without labels give the same values."""
    net = Net()

    def values(models, data):
        return repsim_cli.compare(models, data, measures="cka", layers="second").matrix("Net").values

    expected = values({"Net": net}, images)
    for models, data in [({"Net": net}, images.numpy()), ([net], TensorDataset(images)), ([net], [images.numpy()])]:
        np.testing.assert_allclose(values(models, data), expected, atol=1e-6)


def test_rows_of_others_are_those_of_the_batches(images):
    rows, loader = images.flatten(1), DataLoader(TensorDataset(images), batch_size=16, shuffle=True)
    with pytest.raises(
        BadInput, match="data: rows of 'x' are paired with batches in order, got .* RandomSampler; give"
    ):
        repsim_cli.compare({"net": Net(), "x": rows}, loader)
    with pytest.raises(
        BadInput, match="models.x: a model of texts beside modules, got batches; give arrays of the same"
    ):
        repsim_cli.compare({"net": Net(), "x": "tiny_a"}, images)
    repsim_cli.compare({"net": Net(), "x": rows}, images, layers=["head"], measures=["cka"])


def test_batches_that_modules_do_not_take(images):
    with pytest.raises(RuntimeError) as failed:
        repsim_cli.compare({"net": Net()}, images[:, :1])
    shape = f"got a Tensor with {tuple(images[:, :1].shape)} of torch.float32; give batches as"
    assert failed.value.__notes__[0].startswith(f"data: the module failed on a batch, {shape}")
    with pytest.raises(repsim_cli.BadInput, match="forward: not callable, got 'x'; use lambda module, batch: module"):
        repsim_cli.compare({"net": Net()}, images, forward="x")
    assert failed.value.__notes__[1] == "in models.net"
    with pytest.raises(BadInput, match="layers: no module with weights and no parts, got 0; name some"):
        repsim_cli.compare({"net": nn.Sequential(nn.ReLU())}, images)
    with pytest.raises(
        BadInput, match=r"layer '0': its first dimension is not the batch, got \(5, 7, 3\) for 7 items; ch"
    ):
        repsim_cli.compare({"net": nn.Sequential(nn.Linear(2, 3))}, [torch.zeros(7, 5, 2)], forward=lambda net, x: net(x.transpose(0, 1)))  # fmt: skip


def test_tables_in_memory_are_read_by_their_column(of_texts):
    frame = pandas.DataFrame({"label": 1, "text": TEXTS})
    found = repsim_cli.compare({"a": "tiny_a", "b": str(find_shipped("tiny_b"))}, frame, settings=SMALL)
    np.testing.assert_array_equal(found.matrix("a", "b").values, of_texts.matrix("a", "b").values)
    split = datasets.Dataset.from_dict({"text": TEXTS})
    for data, message in (
        (frame.rename(columns={"text": "review"}), "data: no column 'text', got label, review; rename one"),
        (datasets.DatasetDict({"train": split}), "data: several splits, got train; give one of them"),
    ):
        with pytest.raises(BadInput, match=message):
            repsim_cli.compare(["tiny_a", "tiny_b"], data)
    for alone in ("tiny_a", Net()):
        with pytest.raises(BadInput, match=r"models: a list or a mapping, got '(tiny_a|Net).*; put it into a list"):
            repsim_cli.compare(alone)


def test_arrays_of_other_types():
    x = np.random.default_rng(0).normal(size=(50, 4))
    for kind in (">f4", ">f8", np.longdouble, np.float16):
        assert repsim_cli.compare({"a": x, "b": x.astype(kind)}, measures=["cka"]).matrix("a", "b").values > 0.999
    for kind in (object, int, complex):
        with pytest.raises(
            BadInput, match=r"models.b: array 'rows': not \(n, d\) of floats, got .* \(50, 4\); give it"
        ):
            repsim_cli.compare({"a": x, "b": x.astype(kind)}, measures=["cka"])


def test_arrays():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 6))
    found = repsim_cli.compare(
        {"x": x, "y": {"l1": x @ draw.normal(size=(6, 6)), "l2": torch.randn(200, 3)}}, measures=["mean_cca"]
    )
    assert found.matrix("y", "x").rows == ["l1", "l2"]
    assert found.matrix("y", "x").values[0, 0] == pytest.approx(1.0)
    for wrong, message in [
        ({"x": np.arange(6).reshape(2, 3)}, "models.x: array 'rows': not \\(n, d\\) of floats, got int64 \\(2, 3\\)"),
        ({"x": {"a": x, "b": x[:5]}}, "models.x: arrays: layers have different numbers of rows, got \\[5, 200\\]"),
        ({"x": 3}, "models.x: not a model, got int; give a folder"),
        ({}, "models: none is named; name two"),
    ]:  # fmt: skip
        with pytest.raises(BadInput, match=message):
            repsim_cli.compare(wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": 3}, "data: neither texts nor \\(text, label\\) pairs, got int"),
        ({"data": "embeded"}, "data: neither a file nor a data set, got 'embeded'; did you mean 'embedded'"),
        ({"measures": ["ckaa"]}, "measures: no such measure, got 'ckaa'; did you mean 'cka'"),
        ({"rows": "word"}, "rows: unknown, got 'word'; use auto, tokens, words or pooled"),
        ({"maps": "flat"}, "maps: unknown, got 'flat'; use flattened, pooled or positions"),
        ({"significance": "permute"}, "significance: no such name, got 'permute'; did you mean 'permutation'"),
        ({"layers": ["resid_pots"]}, "extract.hook_points, model.tiny_a: no such module, got 'module:resid_pots'"),
        ({"settings": {"seed.x": 3}}, "seed: wrong value, got {'x': 3}; give integer"),
        ({"settings": {"extract.sequence": 3}}, "extract.sequence: unknown key"),
    ],
)
def test_bad_settings(given, message):
    with pytest.raises(BadInput, match=message):
        repsim_cli.compare(["tiny_a"], **given)


def test_models_are_named_in_a_word(repsim, newest):
    place = find_shipped("tiny_a")
    code, _, err = repsim("run", f"model.mine={place}", "model.other=tiny_b", "measure=[cka]", "extract.sequences=9")
    assert code == 0, err
    assert list(repsim_cli.load(newest()).manifest["models"]) == ["mine", "other"]
    code, out, err = repsim("run", f"model.mine={place}", "model=[tiny_b]", "dry_run=true")
    assert code == 0, err
    assert all(label in out for label in ("mine", "tiny_b"))
    code, out, err = repsim("run", "model.mine=tiny_nli", "data=overlap_nli", "extract=pooled", "dry_run=true")
    assert code == 0, err  # an entry of several levels, and a family
    assert "mine_19" in out
    code, _, err = repsim("run", "model.mine=tiny_c")
    assert code == 2
    assert err.startswith("error: MODEL: neither a model nor a folder, got 'tiny_c'; did you mean 'tiny_b' or")


def test_the_level_of_chance_of_a_comparison(repsim, newest, tmp_path):
    draw = np.random.default_rng(0)
    shared = draw.normal(size=(60, 4))
    for label in "ab":
        np.savez(tmp_path / f"{label}.npz", h0=shared @ draw.normal(size=(4, 6)), h1=draw.normal(size=(60, 5)))
    words = ["compare", tmp_path / "a.npz", tmp_path / "b.npz", "--measure", "cka_unbiased"]
    code, out, err = repsim(*words)
    assert code == 0, err
    assert "  chance: 0.00, the mean of random pairings of rows, a single pairing within 0.033 (sd)\n" in out
    code, _, err = repsim(*words, "--significance", "permutation")
    assert code == 2
    assert "or declare the rows independent with significance.clusters=row" in err
    code, out, err = repsim(*words, "--significance", "permutation", "--set", "significance.clusters=row")
    assert code == 0, err
    result = repsim_cli.load(newest())
    chance = result.chance("b", "a", "cka_unbiased")
    assert "chance 0.00; calibrated 0.847, p 0.005, family-wise p 0.005\n" in out
    assert "  chance: 0.00, the mean of random pairings of rows, a single pairing within 0.033 (sd)\n" in out
    assert -0.1 < chance.low <= chance.middle <= chance.high < 0.3
    values = result.matrix("a", "b").values
    assert values[0, 0] > chance.high > values[1, 1]
    code, out, err = repsim(*words[:-1], "linear_regression")
    assert code == 0, err
    assert "\n    a x b\n" in out
    assert "\n    b x a\n" in out  # the measure has a direction
    code, _, err = repsim(*words, "--significance", "permutaton")
    assert (code, err) == (2, "error: significance: no such name, got 'permutaton'; did you mean 'permutation'?\n")


def test_few_rows_are_a_warning(tmp_path):
    draw = np.random.default_rng(0)
    for rows, warned in ((29, True), (30, False)):
        a, b = draw.normal(size=(2, rows, 4))
        found = repsim_cli.compare({"a": a, "b": b}, measures=["mutual_knn"])
        assert any(warning.startswith(f"{rows} rows are few: ") for warning in found.warnings) is warned
    file = tmp_path / "whole.png"
    found.plot().savefig(file, dpi=100)
    cut = tmp_path / "cut.png"
    found.plot().savefig(cut, dpi=100, bbox_inches=None)
    assert file.stat().st_size > cut.stat().st_size  # names and titles stand outside the size of the figure


def test_ids_that_are_python_objects(tmp_path):
    ids, x = np.array([f"i{i}" for i in range(40)]), np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "a.npz", ids=ids, h=x)
    np.savez(tmp_path / "b.npz", ids=ids.astype(object), h=x)
    with pytest.raises(
        BadInput, match=r"b.npz: 'ids' is of Python objects, got dtype object; save numbers, ids with .astype\(str\)"
    ):
        repsim_cli.compare([str(tmp_path / "a.npz"), str(tmp_path / "b.npz")])


def test_settings_of_a_comparison_in_words(repsim, newest, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("\n\n".join(TEXTS))
    words = [
        "compare",
        "tiny_a",
        "tiny_b",
        "--data",
        file,
        "--measure",
        "cka_unbiased",
        "--set",
        "data.sample_by=paragraph",
    ]
    code, out, err = repsim(*words, "--set", "extract.batch_rows=300", "--significance", "permutation", "--set", "significance.permutations=19")  # fmt: skip
    assert code == 0, err
    assert "    chance: " in out
    run = repsim_cli.load(newest())
    assert run.results.measures[0].null["permutations"] == 19
    code, out, err = repsim(*words, "--set", "extract.sequences=2", "--set", "extract.batch_rows=100")
    assert code == 0, err
    assert re.search(r"\n  data: 2 of \d+ sequences of .*; more by --set extract.sequences=N\n", out), out
    code, out, err = repsim(*words, "--set", "extract.sequences=2", "--set", "extract.pool=3", "--set", "extract.batch_rows=100")  # fmt: skip
    assert code == 0, err
    assert "\n  data: 2 of the first 3 sequences of " in out
    for given, message in {
        "extract.batch_row=3": "extract.batch_row: ",
        "extract": "overrides: cannot be read, got extract; write KEY=VALUE",
        "extract.rows=[1": """overrides: cannot be read, got extract.rows=[1; write 'extract.rows="[1"';""",
        "sed=1": "sed: unknown key, got 'sed=1'; did you mean 'seed'?",
        "extract=word": "extract: no such name, got 'word'; did you mean 'words'?",
        "experiment=tiny/pythia_cka": "experiment: unknown key of a comparison, got 'experiment'; use repsim run",
        "model=[tiny_a]": "model: unknown key of a comparison, got 'model'; use repsim run",
    }.items():
        code, _, err = repsim(*words, "--set", given)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    code, _, err = repsim("compare", newest(), "latest")
    assert (code, err) == (
        2,
        f"error: compare: of models, got the run '{newest()}'; use repsim diff {newest()} latest\n",
    )
    code, _, err = repsim("compare", "tiny_a", "latest")
    assert (code, "error: compare: a run and a model cannot be compared, got the run 'latest' and the" in err) == (
        2,
        True,
    )


def test_a_comparison_takes_what_a_run_takes(repsim, newest):
    """Selections, switches and additions of Hydra; and the plan alone."""
    words = [
        "compare",
        "tiny_a",
        "tiny_b",
        "--set",
        "measure=[cka,rsa]",
        "--set",
        "extract=pooled",
        "--set",
        "extract.rows=64",
    ]
    code, out, err = repsim(*words, "--set", "dry_run=true")
    assert (code, err) == (0, "")
    assert out.startswith("plan of compare (nothing was run)\n  models\n    tiny_a: ")
    assert "\n  measures: cka, rsa\n" in out
    assert not list(results.find_outputs_root().rglob("manifest.json"))
    code, out, err = repsim(*words, "--set", "+analyses.blocks={least: 5}", "--set", "figures=all")
    assert code == 0, err
    config = reader.read_config(newest())
    assert list(config["measure"]) == ["cka", "rsa"]
    assert (config["extract"]["unit"], config["extract"]["rows"], config["figures"]["which"]) == ("mean", 64, "all")
    assert config["analyses"]["blocks"] == {"least": 5}
    with pytest.raises(BadInput, match="dry_run: a plan has no result, got true; use repsim compare A B --set dry_run"):
        repsim_cli.compare(["tiny_a", "tiny_b"], settings={"dry_run": True})


def test_models_are_no_runs(repsim, tmp_path, tiny_folder):
    """`compare` is of models, `diff` of runs; each says so."""
    for model in ("tiny_a", str(tiny_folder("gpt2")), "x.npy"):
        code, _, err = repsim("diff", model, "latest")
        assert (code, err) == (2, f"error: diff: of runs, got the model '{model}'; use repsim compare MODEL MODEL\n")
    code, _, err = repsim("diff", "nosuch", "latest")
    assert (code, err[:22]) == (2, "error: RUN: no runs in")


def test_the_hydra_of_a_program_stays_as_it_was():
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_dir(str(find_conf_folder()), version_base="1.3"):
        before = GlobalHydra.instance().hydra
        assert configuration_of({})["name"] == "compare"
        assert GlobalHydra.instance().hydra is before
        assert compose("config", ["seed=3"]).seed == 3


@pytest.mark.parametrize("text", ["a b", "a\\", 'a\\"b', "ä\n'c'", "", "1", "null", "{x"])
def test_settings_are_what_a_program_gives(text):
    """Whatever the grammar of Hydra makes of quotes and symbols."""
    given = {"data.path": text, "options": {"a b": [text, None], "c=d": {"e": 0.5}}, "groups": {"g": [text, "b"]}}
    config = configuration_of(given)
    assert config["data"]["path"] == text
    assert config["options"] == given["options"]
    assert config["groups"] == given["groups"]


def test_a_word_for_figures_beside_their_settings():
    chosen = configuration_of({"figures": "all", "figures.width": "column"})
    assert {**chosen["figures"], "which": "all", "width": "column"} == chosen["figures"]
    assert configuration_of({"figures.width": "column", "figures": "all"})["figures"] == chosen["figures"]
    with pytest.raises(BadInput, match="seed: wrong value, got {'more': 1}; give integer"):
        validate(configuration_of({"seed.more": 1}))


def configuration_of(settings):
    return compose_configuration({"a": {"kind": "shipped", "name": "tiny_a"}}, None, [], "tokens", "none", settings)


def test_a_measure_that_is_not_paired_has_no_null_of_pairings():
    """Said of one that does not claim it, and not of one that random pairings move."""

    def row_norm_ratio(x, y):
        return (x.norm(dim=1).mean() / y.norm(dim=1).mean()).log().abs()

    draw = np.random.default_rng(0)
    models = {"x": draw.normal(size=(60, 4)), "y": 3 + draw.normal(size=(60, 4))}
    repsim_cli.register_measure("row_norm_ratio", larger_is_closer=False)(row_norm_ratio)
    try:
        found = repsim_cli.compare(
            models, measures=["row_norm_ratio", "cka"], significance="permutation",
            settings={"significance.clusters": "row"},
        )  # fmt: skip
    finally:
        registry.measures.forget()
    nulls = {measured.name: measured.null for measured in found.results.measures}
    assert "not_valid" not in nulls["cka"]
    (said,) = nulls["row_norm_ratio"]["not_valid"]
    assert said.startswith("no pairing of the rows that was drawn changes a value")
    assert any(said in warning for warning in found.warnings)
