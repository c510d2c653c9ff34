"""Layers identified in another seed: by hand, of an oracle and of noise, in both directions of a measure, of a run."""

import numpy as np
import pytest
from helpers.recorded import recorded

from repsim_cli.base.errors import BadInput
from repsim_cli.findings.analysis import Finished, LayerMap, Planned
from repsim_cli.findings.layer_identification import (
    COLUMNS,
    LayerIdentification,
    compute_jackknife_interval,
    identify,
    layer_identification,
    mark_most_similar,
    weigh_identification,
)
from repsim_cli.runs import reader
from repsim_cli.runs.content import Facts, Measured, Results

SEEDS, DEPTH = 4, 5
SITES = ("attn_out", "mlp_out")


def facts(entry="net", depth=DEPTH):
    names = [f"{site}@{i}" for site in SITES for i in range(depth)]
    return Facts(kind="live", family="bert", entry=entry, layers=names, widths=[8] * len(names), blocks=depth)


def finished(tmp_path, values, larger=True, models=None):
    """A run of four seeds of a network of five blocks, read at two sites. values: of all layers of all models."""
    models = models or {f"net_{i}": facts() for i in range(SEEDS)}
    manifest = {"facts": {model: vars(about) for model, about in models.items()}, "models": dict.fromkeys(models)}
    run = Finished(folder=tmp_path, manifest=manifest, results=Results(study="similarity"))
    measured = Measured(
        name="m", label="m", settings={}, estimate={}, card={"larger_is_closer": larger}, matrices=[]
    )  # fmt: skip
    names = [name for about in models.values() for name in about.layers]
    ends = np.cumsum([0, *(len(about.layers) for about in models.values())])
    places = {model: slice(ends[i], ends[i + 1]) for i, model in enumerate(models)}
    run.__dict__["maps"] = {"m": LayerMap(measured, values if larger else -values, names, [8] * len(names), places)}
    return run


def rows_of(run):
    part = layer_identification(run, LayerIdentification(), [])
    (table,) = part.tables.values()
    return [dict(zip(COLUMNS, row, strict=True)) for row in table.rows], part


def oracle(rng):
    """Each layer is most similar to itself in every seed; layers of the other site are more similar still."""
    count = len(SITES) * DEPTH
    block = np.eye(count) + 0.5 * rng.random((count, count))
    block[:DEPTH, DEPTH:] += 2
    block[DEPTH:, :DEPTH] += 2
    return np.tile(block, (SEEDS, SEEDS))


@pytest.mark.parametrize("larger", [True, False])
def test_an_oracle_identifies_every_layer_whatever_the_other_sites_say(tmp_path, larger):
    rows, part = rows_of(finished(tmp_path, oracle(np.random.default_rng(0)), larger))
    assert [(row["models"], row["hook point"], row["layers"], row["seeds"]) for row in rows] == [
        ("net", "attn_out", DEPTH, SEEDS),
        ("net", "mlp_out", DEPTH, SEEDS),
    ]
    for row in rows:
        assert (row["identified"], row["low"], row["high"], row["chance"]) == (1, None, None, 1 / DEPTH)
        assert row["p"] == 1 / 2000  # of the orders that are drawn, the observed one alone
    assert len(part.matrices) == 2
    for values, matrix in part.matrices.values():
        assert (values == np.eye(DEPTH)).all()
        assert matrix.rows.layers == [f"{matrix.about['hook point']}@{i}" for i in range(DEPTH)]


def test_noise_identifies_as_often_as_chance(tmp_path):
    shares = []
    for seed in range(40):
        size = SEEDS * len(SITES) * DEPTH
        values = np.random.default_rng(seed).random((size, size))
        shares += [row["identified"] for row in rows_of(finished(tmp_path, values))[0]]
    error = np.std(shares) / np.sqrt(len(shares))
    assert abs(np.mean(shares) - 1 / DEPTH) < 4 * error < 0.05


def test_p_keeps_its_level_where_one_layer_is_the_nearest_of_all():
    """Noise, and layers that are near to whatever layer of another seed; five layers in order by hand."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 2, 2, 5, 5)) + 2 * rng.normal(size=(200, 2, 1, 1, 5))
    blocks = np.array([[[mark_most_similar(x) for x in row] for row in each] for each in values])
    p_values = np.array([weigh_identification(each) for each in blocks])
    assert (p_values <= 0.05).mean() < 0.09
    found = np.tile(np.eye(5), (2, 2, 1, 1))
    assert weigh_identification(found) == pytest.approx(1 / 120)
    assert weigh_identification(np.full((2, 2, 5, 5), 0.2)) == 1


def test_a_constant_measure_has_chance(tmp_path):
    rows, part = rows_of(finished(tmp_path, np.ones((SEEDS * 10, SEEDS * 10))))
    assert all(row["identified"] == pytest.approx(1 / DEPTH) for row in rows)
    for values, _ in part.matrices.values():
        np.testing.assert_allclose(values, 1 / DEPTH)


def test_by_hand():
    """Model 0 finds layers 0 and 1 of 3 in model 1, which finds layer 2 and, with a tie of two, half of layer 0."""
    there = mark_most_similar(np.array([[3.0, 1, 2], [0, 5, 4], [1, 2, 0]]))
    back = mark_most_similar(np.array([[2.0, 2, 1], [3, 1, 2], [0, 0, 1]]))
    blocks = np.array([[np.eye(3), there], [back, np.eye(3)]])
    np.testing.assert_allclose(identify(blocks), [[np.nan, 2 / 3], [1.5 / 3, np.nan]])


def test_the_band_is_a_jackknife_over_models():
    rng = np.random.default_rng(3)
    shares = rng.random((4, 4))
    np.fill_diagonal(shares, np.nan)
    left = [np.nanmean(np.delete(np.delete(shares, i, 0), i, 1)) for i in range(4)]
    half = np.std(left) * np.sqrt(3) * 3.182446  # t of 3 degrees of freedom at 97.5 %
    low, high = compute_jackknife_interval(shares, 0.95)
    assert low == pytest.approx(max(0, np.nanmean(shares) - half), abs=1e-6)
    assert high == pytest.approx(min(1, np.nanmean(shares) + half), abs=1e-6)
    assert compute_jackknife_interval(shares[:2, :2], 0.95) == (None, None)


def test_networks_are_told_apart_by_entry_and_layers(tmp_path):
    """Seeds of an entry, and models without one of the same family and layers; a model alone is left out."""
    models = {
        "a_0": facts("a"), "x": facts(""), "a_1": facts("a"), "y": facts(""), "alone": facts("", DEPTH - 2),
    }  # fmt: skip
    size = sum(len(about.layers) for about in models.values())
    rows, _ = rows_of(finished(tmp_path, np.random.default_rng(0).random((size, size)), models=models))
    assert [(row["models"], row["hook point"], row["seeds"], row["low"]) for row in rows] == [
        ("a", "attn_out", 2, None), ("a", "mlp_out", 2, None), ("bert", "attn_out", 2, None), ("bert", "mlp_out", 2, None),
    ]  # fmt: skip


def test_two_seeds_are_needed():
    planned = Planned(
        study="similarity", models={"a": facts("a"), "b": facts("b")}, measures={}, groups={}, base=None
    )  # fmt: skip
    with pytest.raises(BadInput, match="two seeds of a network are needed, got a, b; give e.g. `seeds: "):
        LayerIdentification().check(planned)
    LayerIdentification().check(
        Planned(study="similarity", models={"a": facts("a"), "b": facts("a")}, measures={}, groups={}, base=None)
    )


@pytest.mark.drawn
@pytest.mark.slow
def test_a_run_on_two_seeds_of_a_language_model(repsim, newest):
    words = ("extract.sequences=8", "extract.rows=100", "measure=[cka]", "~measure.cka_rbf_narrow")
    words += ("figures.which=all", "figures.format=[png]")
    code, _, err = repsim("run", "-q", "experiment=tiny/layer_identification", *words)
    assert code == 0, err
    folder, record = newest(), recorded(newest())
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in record["tables"]["identification of layers"]["rows"]]
    assert [row["hook point"] for row in rows] == ["resid_post", "attn_out", "mlp_out"]
    (matrix,) = (m for m in record["measures"][0]["matrices"] if m["rows"]["model"] != m["columns"]["model"])
    values = reader.read_array(folder, matrix["values"])
    for i, row in enumerate(rows):
        assert matrix["rows"]["layers"][6 * i] == f"{row['hook point']}@0"
        block = values[6 * i : 6 * i + 6, 6 * i : 6 * i + 6]
        same = [*(block.argmax(1) == np.arange(6)), *(block.argmax(0) == np.arange(6))]
        assert row["identified"] == pytest.approx(np.mean(same))
    names = {path.name for path in (folder / "figures").iterdir()}
    assert {"identification-gpt_neox.png", "identified-mlp_out-gpt_neox.png"} <= names
