"""Maps between vectors: planted rotations with noise against closed forms; intervals; files; what users do and get wrong."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors
import safetensors.numpy
import scipy.spatial
import scipy.stats
from helpers.recorded import recorded

import repsim_cli
from repsim_cli.studies.vectors.fits import KINDS, PENALTIES, centre_pair
from repsim_cli.studies.vectors.readers import LabelledRows, has_two_classes, score_largest_class, score_readers
from repsim_cli.studies.vectors.scores import (
    DIRECTION,
    MAIN,
    PROBE,
    VECTOR_MAPS,
    compute_chance_recall,
    divide_over_documents,
    hold_out,
    retrieve_nearest,
    score_mapped_rows,
    score_retrieved_neighbours,
)
from repsim_cli.studies.vectors.stored import load_map

PAGE = Path(__file__).parents[3] / "docs" / "how_to" / "keep_vectors.md"
NOISE = (0.0, 0.1, 0.3, 0.6, 1.0)
D, FITTED, HELD = 16, 200, 400


def planted(noise, seed, n=FITTED + HELD):
    """Rows, the same rows rotated, moved and with noise in every number, and the rotated rows without noise."""
    rng = np.random.default_rng(seed)
    x, turn = rng.normal(size=(n, D)), np.linalg.qr(rng.normal(size=(D, D)))[0]
    clean = x @ turn + 2
    return x, clean + noise * rng.normal(size=(n, D)), clean


def expected(kind, noise):
    """R^2 of new rows: 1 - (noise and the errors of the fit, per number) / (variance of the rows, mean of the fit)."""
    n, s = FITTED, noise**2
    error = {
        "affine": s * (n + 1) * (n - 2) / (n * (n - D - 2)),  # least squares on Gaussian rows, exact
        "rotation": s * (1 + (D - 1) / (2 * n) + 1 / n),  # of its generators, to the first order, and the mean
    }[kind]
    return 1 - error / ((1 + s) * (1 + 1 / n))


@pytest.mark.parametrize("noise", NOISE)
def test_planted_rotations_are_recovered_as_well_as_theory_says(noise):
    """R^2 against its closed form, and the neighbours against those that the true rotation finds."""
    found = {kind: [] for kind in ("affine", "rotation")}
    for seed in range(4):
        x, y, clean = planted(noise, seed)
        half = slice(FITTED), slice(FITTED, None)
        out = hold_out(x[half[1]], y[half[1]], np.arange(HELD))
        oracle = score_mapped_rows(out, clean[half[1]], y[half[0]].mean(0))[MAIN].value
        for kind, values in found.items():
            fit = KINDS[kind](centre_pair(x[half[0]], y[half[0]]), D)
            of = score_mapped_rows(out, fit(out.x), y[half[0]].mean(0))
            values.append([of["R^2"].value, of[MAIN].value, oracle])
    for kind, values in found.items():
        r2, recall, oracle = np.mean(values, 0)
        assert r2 == pytest.approx(expected(kind, noise), abs=0.012), kind
        assert oracle - 0.05 <= recall <= oracle + 0.02, kind
        if noise == 0:
            assert (r2, recall) == (pytest.approx(1), 1), kind


@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("n", [8, 20, 40])
def test_a_ridge_map_has_the_penalty_that_leaving_rows_out_chooses(n, noise):
    x, y, _ = planted(noise, 0, n=n)
    total = np.square(x - x.mean(0)).sum()

    def solve(penalty, kept):
        a, b = x[kept] - x[kept].mean(0), y[kept] - y[kept].mean(0)
        return np.linalg.solve(a.T @ a + penalty * total * np.eye(D), a.T @ b)

    def left_out(penalty):
        errors = []
        for row in range(len(x)):
            kept = np.arange(len(x)) != row
            errors.append(y[row] - y[kept].mean(0) - (x[row] - x[kept].mean(0)) @ solve(penalty, kept))
        return np.square(errors).sum()

    fit = KINDS["ridge"](centre_pair(x, y), D)
    errors = [left_out(penalty) for penalty in PENALTIES]
    assert fit.facts["penalty"] == PENALTIES[int(np.argmin(errors))]
    np.testing.assert_allclose(fit.weight, solve(fit.facts["penalty"], slice(None)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_origin_and_the_unit_of_rows_change_no_map(kind):
    """Columns that say the same again change none either; of rows that are all equal the mean is predicted."""
    x, y, _ = planted(0.5, 0, n=60)
    fit = KINDS[kind](centre_pair(x, y), 3)
    moved = KINDS[kind](centre_pair(1e3 * x + 50, y), 3)
    np.testing.assert_allclose(moved(1e3 * x + 50), fit(x), rtol=1e-6, atol=1e-6)
    if kind != "rotation":
        twice = KINDS[kind](centre_pair(np.hstack([x, x]) / 2**0.5, y), 3)
        np.testing.assert_allclose(twice(np.hstack([x, x]) / 2**0.5), fit(x), rtol=1e-6, atol=1e-6)
    equal = KINDS[kind](centre_pair(np.ones((60, 4)), y), 3)
    np.testing.assert_allclose(equal(np.full((5, 4), 7.0)), np.tile(y.mean(0), (5, 1)))


def test_a_map_of_low_rank_is_as_good_as_what_is_planted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, D))
    y = x @ rng.normal(size=(D, 3)) @ rng.normal(size=(3, 24)) + 0.1 * rng.normal(size=(500, 24))
    given, r2 = centre_pair(x[:300], y[:300]), {}
    for rank in (2, 3):
        fit = KINDS["low_rank"](given, rank)
        assert np.linalg.matrix_rank(fit.weight) == rank == fit.facts["rank"]
        r2[rank] = 1 - np.square(y[300:] - fit(x[300:])).sum() / np.square(y[300:] - y[:300].mean(0)).sum()
    assert r2[3] > 0.99 > 0.95 > r2[2]


def test_widths_may_differ():
    """A rotation lays the narrower side into the wider one, and back."""
    x, _, clean = planted(0.0, 1)
    wide = np.hstack([clean, np.zeros((len(clean), 5))])
    there, back = KINDS["rotation"](centre_pair(x, wide), D), KINDS["rotation"](centre_pair(wide, x), D)
    assert there(x) == pytest.approx(wide, abs=1e-9)
    assert back(wide) == pytest.approx(x, abs=1e-9)


def test_neighbours_are_rows_of_other_documents():
    x = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    assert retrieve_nearest(x, x, np.arange(4))[:, 0].tolist() == [1, 0, 3, 2]
    assert retrieve_nearest(x, x, np.array([0, 0, 1, 1]))[:, 0].tolist() == [3, 3, 1, 1]


def test_neighbours_are_by_cosine():
    """The lengths of rows change nothing, and a row of zeros is as far from all."""
    rng = np.random.default_rng(0)
    x, store = rng.normal(size=(2, 30, 4))
    lengths = 10.0 ** rng.integers(-3, 4, (2, 30, 1))
    found = retrieve_nearest(x, store, np.arange(30))
    assert (retrieve_nearest(lengths[0] * x, lengths[1] * store, np.arange(30)) == found).all()
    away = [scipy.spatial.distance.cosine(x[3], row) for row in store]
    assert found[3].tolist() == [i for i in np.argsort(away) if i != 3][:10]
    x[0] = 0
    assert retrieve_nearest(x, store, np.arange(30))[0].tolist() == list(range(1, 11))


def test_intervals_over_documents_are_students_and_of_ratios_the_jackknifes():
    """Intervals of documents of one row are so exactly; of uneven documents within a few percent."""
    rng = np.random.default_rng(1)
    part = rng.normal(size=6) - 3
    found = divide_over_documents(part, np.ones(6), np.arange(6), np.inf)
    low, high = scipy.stats.ttest_1samp(part, 0).confidence_interval(0.95)
    assert found == pytest.approx((part.mean(), low, high))
    assert divide_over_documents(part, np.ones(6), np.arange(6), -3.0).high == -3
    documents = np.repeat(np.arange(60), rng.integers(1, 9, 60))
    whole = 1 + rng.random(len(documents))
    part = whole * (0.4 + 0.2 * rng.normal(size=60)[documents])
    found = divide_over_documents(part, whole, documents)
    left = [part[documents != each].sum() / whole[documents != each].sum() for each in range(60)]
    error = np.std(left) * 59**0.5
    assert (found.high - found.low) / 2 == pytest.approx(scipy.stats.t.ppf(0.975, 59) * error, rel=0.04)


def test_chance_is_what_random_rows_find():
    """The mean of 400 random stores; one document leaves eight rows of others, which all are among the nearest ten."""
    rng, documents = np.random.default_rng(2), np.repeat(np.arange(8), [4, 2, 1, 1, 1, 1, 1, 1])
    out = hold_out(*rng.normal(size=(2, 12, 3)), documents)
    drawn = [score_retrieved_neighbours(out, rng.normal(size=(12, 3))) for _ in range(400)]
    chance = compute_chance_recall(out, list(rng.normal(size=(4, 12, 3))))
    assert chance.keys() == drawn[0].keys()
    for name, found in chance.items():
        assert found.low <= found.value <= found.high
        assert np.mean([each[name].value for each in drawn]) == pytest.approx(found.value, abs=0.02), name
    assert score_retrieved_neighbours(out, out.y)[MAIN].value == 1


def test_what_random_pairings_reach_holds_where_few_rows_are_near_to_many():
    """Intervals over documents alone, of rows whose variance lies in few features, would tell 0.2 of noise from
    chance."""
    rng, documents, beyond = np.random.default_rng(4), np.repeat(np.arange(30), 5), []
    for _ in range(60):
        rows = rng.normal(size=(3, 150, 16)) / np.arange(1, 17)
        out = hold_out(rows[0], rows[1], documents)
        recall = score_retrieved_neighbours(out, rows[2])[MAIN].value
        beyond.append(recall > compute_chance_recall(out, [rows[2]])[MAIN].high)
    assert np.mean(beyond) <= 0.1


def test_scores_of_mapped_rows_by_hand():
    """R^2 against the mean of the fitted rows and the cosine; an interval is as far to both sides, up to 1."""
    rng = np.random.default_rng(3)
    x, y, mean = rng.normal(size=(50, 4)), rng.normal(size=(50, 4)), np.ones(4)
    out = hold_out(x, y, np.arange(50))
    for noise, clipped in ((1.0, False), (0.0, False), (1e-3, True)):
        mapped = y + noise * rng.normal(size=y.shape)
        if clipped:
            mapped[0] = -y[0]
        found = score_mapped_rows(out, mapped, mean)
        r2, cosine = found["R^2"], found["cosine"]
        assert r2.value == pytest.approx(1 - ((y - mapped) ** 2).sum() / ((y - mean) ** 2).sum())
        assert cosine.value == pytest.approx(
            np.mean([1 - scipy.spatial.distance.cosine(*pair) for pair in zip(mapped, y, strict=True)])
        )
        for score in (r2, cosine):
            assert score.high == pytest.approx(1 if clipped else 2 * score.value - score.low)


def test_intervals_cover():
    """Intervals of R^2 of one map over draws of documents of 3 rows each that share most of their error."""
    rng, inside = np.random.default_rng(0), []
    for _ in range(400):
        documents = np.repeat(np.arange(40), 3)
        error = np.square(0.3 * rng.normal(size=120) + rng.normal(size=40)[documents])
        total = error + rng.normal(size=40)[documents] ** 2 * 3
        found = divide_over_documents(error, total, documents, np.inf)
        inside.append(found.low <= 1.09 / 4.09 <= found.high)
    assert 0.91 <= np.mean(inside) <= 0.98


@pytest.fixture
def place(tmp_path, monkeypatch):
    """What the page begins with: rows of the same texts by an old and a new model, and a store of old rows."""
    monkeypatch.chdir(tmp_path)
    x, y, _ = planted(0.3, 0, n=120)
    np.save("old.npy", x.astype(np.float32))
    np.save("new.npy", y.astype(np.float32))
    keys = [f"t{i}" for i in range(50)]
    pq.write_table(pa.table({"id": keys, "vector": list(x[:50].astype(np.float32))}), "store.parquet")
    Path("texts.csv").write_text("\n".join(["text", *(f"some words of text {i} and {i * i}" for i in range(120))]))
    return tmp_path


def test_the_page_can_be_followed(repsim, place):
    """Each command that it prints, one after the other."""
    page = PAGE.read_text()
    commands = [
        shlex.split(line.removeprefix("$ repsim "))
        for block in re.findall(r"```console\n(.*?)```", page, re.S)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    assert [command[:2] for command in commands[:2]] == [["map", "fit"], ["map", "apply"]]
    for command in commands:
        code, out, err = repsim(*command)
        assert code == 0, err
        assert out
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    given = {"old": np.load("old.npy"), "new": np.load("new.npy")}
    exec(block, given)
    mapped = pq.read_table("mapped.parquet")
    assert mapped["id"].to_pylist() == [f"t{i}" for i in range(50)]
    fitted = load_map("map.safetensors")
    rows = np.array(mapped["vector"].to_pylist())
    assert rows == pytest.approx(fitted(given["old"][:50]), abs=1e-5)
    assert np.square(rows - given["new"][:50]).mean() < 0.2


def test_a_column_may_be_numbered_and_rows_that_stand_twice_are_said(repsim, tmp_path, monkeypatch, newest):
    """A number is a place, whatever names the first line has, which here is an example: its label is 0."""
    monkeypatch.chdir(tmp_path)
    Path("labelled.tsv").write_text("".join(f"some words of text {i} and {i * i}\t{i % 2}\n" for i in range(60)))
    fit = ("map", "fit", "tiny_a_step400", "tiny_a", "--data", "labelled.tsv", "--kind", "rotation", "--column")
    for column, copied in (("0", False), ("1", True)):
        code, _, err = repsim(*fit, column)
        assert code == 0, err
        assert ("of 'tiny_a' are copies of other" in err) == copied, err
        assert recorded(newest())["tables"][VECTOR_MAPS]["rows"][-1][7:9] == [12, 12]


def test_a_map_keeps_its_record_and_is_checked(repsim, place, newest):
    code, out, err = repsim("map", "fit", "old.npy", "new.npy", "--kind", "ridge,rotation", "--out", "map.safetensors")
    assert code == 0, err
    fitted = load_map("map.safetensors")
    assert {"kind", "from", "to", "counts", "held out", "seed", "sha256", "repsim"} <= {*fitted.record}
    assert (fitted.record["from"]["model"], fitted.record["to"]["model"]) == ("old", "new")
    assert fitted.record["counts"] == {"rows": 96, "documents": 96, "rows held out": 24, "documents held out": 24}
    assert f"recall@10 of new neighbours  {fitted.record['held out'][MAIN]['value']:.3f}" in out
    table = recorded(newest())["tables"][VECTOR_MAPS]
    assert {row[4] for row in table["rows"]} == {"ridge", "rotation", "chance", "as they are", "all rows made anew"}
    again = repsim_cli.fit_map("old.npy", "new.npy", kinds=["ridge"])[0]
    (ridge,) = (load_map(file) for file in (newest() / "maps").glob("ridge*"))
    assert again.record["held out"] == ridge.record["held out"]
    assert np.array_equal(again.weight, ridge.weight)
    with safetensors.safe_open("map.safetensors", framework="numpy") as archive:
        about = archive.metadata()
    safetensors.numpy.save_file({"weight": fitted.weight * 2, "bias": fitted.bias}, "changed.safetensors", about)
    safetensors.numpy.save_file({"rows": np.load("old.npy"), "number": np.arange(3)}, "rows.safetensors")
    safetensors.numpy.save_file({"weight": fitted.weight * np.inf, "bias": fitted.bias}, "infinite.safetensors", about)
    np.save("wide.npy", np.ones((3, 5), np.float32))
    np.save("nan.npy", np.full((3, D), np.nan, np.float32))
    code, _, err = repsim("map", "apply", "map.safetensors", "rows.safetensors", "mapped.safetensors")
    assert code == 0, err
    mapped = safetensors.numpy.load_file("mapped.safetensors")
    assert mapped["rows"] == pytest.approx(repsim_cli.apply_map("map.safetensors", np.load("old.npy")), abs=1e-6)
    assert mapped["number"].tolist() == [0, 1, 2]
    for words, problem in (
        (("apply", "none.safetensors", "old.npy", "o.npy"), "map: no such file, got 'none.safetensors'"),
        (
            ("apply", "rows.safetensors", "old.npy", "o.npy"),
            "rows.safetensors: not a map of repsim map fit, got number",
        ),
        (("apply", "old.npy", "old.npy", "o.npy"), "old.npy: not a map of repsim map fit"),
        (("apply", "changed.safetensors", "old.npy", "o.npy"), "a map that was changed after it was written"),
        (
            ("apply", "infinite.safetensors", "old.npy", "o.npy"),
            "infinite.safetensors: not a map of repsim map fit, got a",
        ),
        (("apply", "map.safetensors", "wide.npy", "o.npy"), "rows: numbers (n, 16) are mapped, got float32 (3, 5)"),
        (("apply", "map.safetensors", "nan.npy", "o.npy"), "rows: numbers must be finite, got others in row 0"),
        (("apply", "map.safetensors", "old.npy", "o.parquet"), "out: a .npy file in a folder that exists is written"),
        (("apply", "map.safetensors", "texts.csv", "o.csv"), "rows: unknown kind of file, got 'texts.csv'"),
        (("apply", "map.safetensors", "gone.npy", "o.npy"), "rows: no such file, got 'gone.npy'"),
        (("apply", "map.safetensors", "old.npy", "new.npy"), "out: the file exists, got 'new.npy'"),
        (("apply", "map.safetensors", "store.parquet", "o.parquet", "--array", "id"), "no such array in"),
        (
            ("apply", "map.safetensors", "changed.safetensors", "o.safetensors", "--array", "bias"),
            "rows: numbers (n, 16)",
        ),
        (("fit", "old.npy", "gone.npy"), "model.gone.path: no such file, got 'gone.npy'"),
        (("fit", "old.npy", "wide.npy"), "rows must be paired"),
        (("fit", "old.npy", "new.npy", "--kind", "rige"), "options.kinds: no such kind of map, got 'rige'"),
        (("fit", "old.npy", "new.npy", "--layers", "rows"), "options.layers: pairs of layers, got ['rows']"),
        (("fit", "old.npy", "new.npy", "--layers", "rows,row"), "options.layers: not read, got 'row'; did you mean"),
        (("fit", "old.npy", "new.npy", "--set", "options.train_share=0.99"), "data: too few documents, got 119 to fit"),
        (("fit", "old.npy", "new.npy", "--data", "texts.csv"), "data: of models that run, got 'texts.csv'"),
        (("fit", "old.npy", "new.npy", "--column", "text"), "--column: of a table, got 'text' without one"),
        (("fit", "old.npy", "new.npy", "--out", "map.bin"), "map: it is written as .safetensors"),
        (("fit", "old.npy", "new.npy", "--set", "extract.estimate=per_batch"), "extract.estimate: maps are fitted on"),
    ):
        code, _, err = repsim("map", *words)
        assert (code, err.count("\n"), "Traceback" in err) == (2, 1, False), (words, err)
        assert problem in err, err
    assert not list(place.glob(".*.partial"))
    code, _, err = repsim("run", "study=vector_map", "model=[tiny_a]", "extract=pooled")
    assert code == 2
    assert "model: two are needed, the old one first, got 1" in err


def test_models_have_the_names_and_texts_the_column_that_are_given(repsim, place):
    Path("said.csv").write_text(Path("texts.csv").read_text().replace("text\n", "said\n", 1))
    words = ("--data", "said.csv", "--column", "said", "--names", "before,after", "--kind", "ridge")
    code, out, err = repsim(
        "map",
        "fit",
        "tiny_a_step400",
        "tiny_a",
        *words,
        "--layers",
        "resid_post@3,resid_post@5",
        "--out",
        "one.safetensors",
    )
    assert code == 0, err
    record = load_map("one.safetensors").record
    assert [(record[side]["model"], record[side]["layer"]) for side in ("from", "to")] == [
        ("before", "resid_post@3"),
        ("after", "resid_post@5"),
    ]
    assert record["counts"]["documents"] + record["counts"]["documents held out"] == 120
    (written,) = [line.split(": ")[1] for line in out.splitlines() if line.startswith("  written: ")]
    assert written == "one.safetensors"
    (run,) = [line.split(": ")[1] for line in out.splitlines() if line.startswith("  run: ")]
    assert f"  {next((Path(run) / 'maps').iterdir())}" in out.splitlines()
    assert out.count("  warning: ") == out.count("rows that follow each other are alike (before") == 1  # they count up


@pytest.mark.drawn
def test_models_are_mapped_too(repsim, newest):
    """Two steps of a training, at two layers: the map is better than vectors as they are, and the figure is drawn."""
    small = ("extract.sequences=100", "extract.length=32", "extract.layers=[4,5]", "options.kinds=[ridge]")
    code, out, err = repsim("run", "experiment=tiny/vector_map", *small, "hardware.threads=1")
    assert code == 0, err
    found = recorded(newest())
    for layer in ("resid_post@4", "resid_post@5"):
        name = f"tiny_a_step400 {layer} to tiny_a {layer}"
        assert f"{name}: mapped by ridge they find 0." in out
        rows = {
            (row[4], row[5]): row[10]
            for row in found["tables"][VECTOR_MAPS]["rows"]
            if row[1] == layer and row[9] == MAIN
        }
        assert rows["all rows made anew", 0] == 1.0
        assert rows["chance", 0] == pytest.approx(10 / 19)
        assert rows["ridge", 80] > rows["as they are", 0]
    record = json.loads(json.dumps(load_map(next((newest() / "maps").iterdir())).record))
    assert record["from"]["weights_hash"]
    assert record["data"]["hash"]
    assert len(list((newest() / "figures").glob("maps-*.png"))) == 2


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_probes_and_directions_are_carried_over_by_the_true_rotation(noise):
    """Probes are as right as they were where nothing is lost; not without the map."""
    x, y, _ = planted(noise, 3)
    classes = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(int) * 4 + 3  # codes of any kind
    half, documents = (slice(FITTED), slice(FITTED, None)), np.arange(HELD)
    fit = KINDS["rotation"](centre_pair(x[half[0]], y[half[0]]), D)
    on = {side: LabelledRows(rows[half[1]], classes[half[1]]) for side, rows in (("old", x), ("new", y))}

    def found(rows, side):
        return score_readers(LabelledRows(rows, classes[half[0]]), on[side], documents)

    before, after = found(x[half[0]], "old"), found(fit(x[half[0]]), "new")
    anew, unmapped = found(y[half[0]], "new"), found(x[half[0]], "new")
    for name in (PROBE, DIRECTION):
        assert before[name].value > 0.85
        assert after[name].value == pytest.approx((anew if noise else before)[name].value, abs=0.05 if noise else 0.01)
        assert unmapped[name].value < before[name].value - 0.2
        assert after[name].low < after[name].value < after[name].high
    three = np.arange(len(x)) % 3
    assert set(score_readers(LabelledRows(x, three), LabelledRows(x, three), np.arange(len(x)))) == {PROBE}


def test_two_rows_of_each_of_two_classes_are_enough_for_a_probe():
    for fitted, enough in (([3, 3, 5, 5], True), ([3, 3, 3, 5], False), ([3, 3], False)):
        assert has_two_classes(np.array(fitted)) == enough


def test_the_largest_class_is_that_of_the_fitted_rows():
    """Two of five held-out rows have it, though another has more of these; there is no direction between three."""
    held_out, documents = LabelledRows(np.zeros((5, 2)), np.array([4, 4, 7, 7, 7])), np.arange(5)
    for fitted, scores in (([4, 7, 4], {PROBE, DIRECTION}), ([4, 7, 4, 9], {PROBE})):
        found = score_largest_class(np.array(fitted), held_out, documents)
        assert set(found) == scores
        assert all(each.value == 0.4 for each in found.values())


def test_a_run_on_labelled_data_says_what_a_probe_is_worth(repsim, newest):
    code, out, err = repsim(
        "run", "study=vector_map", "model=[tiny_a_step400,tiny_a]", "data=overlap_nli", "data.examples=120",
        "extract=pooled", "extract.layers=[-1]", "extract.length=40", "extract.sequences=120", "options.kinds=[ridge]",
    )  # fmt: skip
    assert code == 0, err
    rows = json.loads((newest() / "results.json").read_text())["tables"][VECTOR_MAPS]["rows"]
    by_map = {row[4]: row[10] for row in rows if row[9] == PROBE}
    assert by_map.keys() == {"ridge", "chance", "all rows made anew", "old rows on old rows", "as they are"}
    said = " ".join(out.split())
    assert "; a probe that is carried over is right for 0." in said
    assert " of new rows (in the old model 0." in said


def test_maps_of_rows_that_depend_on_each_other_are_warned_of(repsim, tmp_path):
    """Unrelated random walks, and documents of neighbouring rows; not independent rows, one side alone, nor documents
    that are given."""
    rng = np.random.default_rng(0)
    alone, (walk, other) = rng.normal(size=(400, D)), rng.normal(size=(2, 400, D)).cumsum(1)
    of = np.repeat(np.arange(40), 10)
    texts, others = rng.normal(size=(2, 40, D))[:, of] + rng.normal(size=(2, 400, D))
    caveat, told = "(see the warnings)", {"documents": of}
    for name, old, new, beside, warned in (
        ("walks", walk, other, {}, True),
        ("texts", texts, others, {}, True),
        ("independent", alone, alone @ rng.normal(size=(D, D)) + rng.normal(size=(400, D)), {}, False),
        ("one", walk, alone, {}, False),
        ("told", texts, others, told, False),
    ):
        files = [tmp_path / f"{name}-{side}.npz" for side in ("old", "new")]
        for file, rows in zip(files, (old, new), strict=True):
            np.savez(file, layer=rows, **beside)
        code, out, err = repsim("map", "fit", *map(str, files), "--kind", "affine")
        assert code == 0, err
        found = " ".join(out.split())
        assert (caveat in found) == ("rows that follow each other are alike" in found) == warned, (name, out)
