"""Maps of all layers: the orders in which they are drawn."""

import dataclasses
import shutil

import numpy as np
import pytest
from helpers.small_run import SMALL
from PIL import Image

import repsim_cli
from repsim_cli.figures.heatmap import find_matrix_axes
from repsim_cli.figures.lines import UNKNOWN, draw_by_layer, list_layer_figures, merge_seeds
from repsim_cli.findings import map_figures, maps, multiples
from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.chance import find_chance_of_values
from repsim_cli.findings.layer_maps import ClaimMap
from repsim_cli.findings.localization import Localization, localization
from repsim_cli.runs import reader
from repsim_cli.runs.content import CHANCE, Axis, Curve, Matrix, Measured, Results, Side


@pytest.mark.parametrize("order", ["depth", "cluster"])
def test_layers_are_drawn_in_the_order_of_the_analysis(repsim, finished, tmp_path, order):
    folder = shutil.copytree(finished(*SMALL), tmp_path / "outputs" / "day" / "run")
    before = reader.read_results(folder)
    assert repsim("analyse", folder, f"+analyses.maps={{order: {order}}}")[0] == 0
    run = Finished(folder=folder, manifest=reader.read_manifest(folder), results=reader.read_results(folder))
    assert run.results.analyses["maps"]["options"] == {"order": order}
    figure = dict(map_figures.draw_figures(run, False))["cka-all"]()
    (axes,) = find_matrix_axes(figure)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert axes.get_xlabel() == f"layers by {order}, resid_post by block"
    if order == "depth":
        assert names[:4] == ["tiny_a 0", "tiny_b 0", "tiny_a 1", "tiny_b 1"]
    else:
        assert sorted(names) == sorted(f"{model} {block}" for model in ("tiny_a", "tiny_b") for block in range(6))
    # cells come with their names
    everywhere = [f"{model} {block}" for model in ("tiny_a", "tiny_b") for block in range(6)]
    at = [everywhere.index(name) for name in names]
    (drawn,) = (image.get_array() for image in axes.images)
    np.testing.assert_allclose(drawn, run.maps["cka"].values[np.ix_(at, at)], atol=1e-12)
    assert reader.read_results(folder).measures == before.measures


def test_an_order_that_does_not_exist(repsim, finished):
    code, _, err = repsim("analyse", finished(*SMALL), "+analyses.maps={order: size}")
    assert code == 2
    assert "analyses.maps.order: wrong value, got 'size'; give 'model', 'depth' or 'cluster'" in err


def run_of(tmp_path, null=None, trained=True):
    """Two models of two layers under a distance, with the level of chance where it was tested."""
    layers, values = ["resid_post@0", "resid_post@1"], {"a": 1.0, "b": 4.0}
    sides = {model: Side(model=model, layers=layers) for model in values}
    matrices = []
    for row, column in ("aa", "ab", "bb"):
        stem = row + column
        np.save(tmp_path / f"{stem}.npy", np.full((2, 2), values[row] * values[column]))
        np.save(tmp_path / f"{stem}-chance.npy", [[3.0, 5.0], [5.0, 8.0]])
        details = {CHANCE: f"{stem}-chance.npy"} if null else {}
        matrices.append(Matrix(rows=sides[row], columns=sides[column], values=f"{stem}.npy", details=details))
    card = {"label": "distance", "larger_is_closer": False, "bounds": [0.0, None], "symmetric": True}
    measured = Measured(
        name="procrustes", label="procrustes", settings={}, card=card, matrices=matrices, null=null,
        estimate={"kind": "full", "rows": 9, "batches": 1},
    )  # fmt: skip
    facts = {model: {"kind": "live", "family": "llama", "layers": layers, "widths": [4, 4]} for model in values}
    facts["b"]["trained"] = trained
    manifest = {"facts": facts, "models": list(values)}
    results = Results(study="similarity", measures=[measured], analyses={"maps": {}})
    return Finished(folder=tmp_path, manifest=manifest, results=results)


@pytest.mark.parametrize(
    ("null", "trained", "levels"),
    [
        ({"alpha": 0.05}, True, {"closer than 95 % of random pairings": [3.0, 5.0, 8.0]}),
        (None, False, {}),
        (None, True, {}),
    ],
)
def test_curves_over_layers_have_the_level_of_chance(tmp_path, null, trained, levels):
    """The level is from the null, and not from an untrained model, whose layers are alike; it is a line, with a band
    where it differs between cells."""
    curves = localization(run_of(tmp_path, null, trained), Localization(), []).curves
    assert [curve.about["levels"] for curve in curves.values()] == [levels, levels]
    panel = draw_by_layer([*curves.values()]).axes[0]
    assert (UNKNOWN in [text.get_text() for text in panel.get_legend().get_texts()]) is (not levels)
    lines = {line.get_label(): line.get_ydata() for line in panel.lines}
    spans = [patch.get_extents().height for patch in panel.patches]
    for name, (low, middle, high) in levels.items():
        assert list(lines[name]) == [middle, middle]
        assert len(spans) == (low < high)


def test_pairs_of_models_have_one_scale_of_colours(tmp_path):
    jobs = dict(map_figures.draw_figures(run_of(tmp_path), True))
    pairs = [name for name in jobs if name != "procrustes-all"]
    assert len(pairs) == 3
    for name in pairs:
        (image,) = find_matrix_axes(jobs[name]())[0].images
        assert image.get_clim() == (0.0, 16.0)


def test_one_pair_under_all_measures(tmp_path):
    """Each pair of models has one figure of several measures, in parts where there are many; one bar of colours where
    all have the same scale and no level of chance."""
    one = run_of(tmp_path, {"alpha": 0.05})
    assert not [name for name in dict(map_figures.draw_figures(one, True)) if name.startswith("measures-")]
    for null in (True, False):
        run = run_of(tmp_path, {"alpha": 0.05} if null else None)
        (measured,) = run.results.measures
        several = [dataclasses.replace(measured, label=f"{measured.label}_{i}") for i in range(13)]
        run = dataclasses.replace(run, results=dataclasses.replace(run.results, measures=several))
        jobs = {name: make for name, make in map_figures.draw_figures(run, False) if name.startswith("measures-")}
        pair_names = {name.rsplit("-", 1)[0] for name in jobs}
        assert len(pair_names) == 1
        assert [name[-3:] for name in jobs] == ["-01", "-02"]
        drawn = [make() for make in jobs.values()]
        titled = [axes for figure in drawn for axes in figure.axes if axes.get_title(loc="left")]
        assert [axes.get_title(loc="left") for axes in titled] == [x.label for x in several]
        bars = sum(len(figure.axes) for figure in drawn) - len(titled)
        assert bars == (13 if null else 2)
        assert ("not drawn" in drawn[0].get_suptitle()) is not null
        if null:
            continue
        cards = [{**measured.card, "label": f"another {i}"} for i in range(13)]
        parts = [dataclasses.replace(x, card=card) for x, card in zip(several, cards, strict=True)]
        mixed = dataclasses.replace(run, results=dataclasses.replace(run.results, measures=parts))
        figure = dict(map_figures.draw_figures(mixed, False))[next(iter(jobs))]()
        labels = {axes.get_ylabel() for axes in figure.axes} & {"smaller is closer", "larger is closer"}
        assert len(labels) == 1  # the bar is of all measures and has the name of none


def test_titles_say_which_family_is_meant():
    assert (
        map_figures.choose_tests({"alpha": 0.05, "family": "max_t"})[1] == "family-wise by max-T, per map of two models"
    )
    assert (
        map_figures.choose_tests({"alpha": 0.05, "family": "holm", "family_of": "run"})[1]
        == "family-wise by Holm, over all maps of the run"
    )


def test_seeds_of_one_training_are_drawn_as_their_mean_and_range():
    def curve(model, line):
        about = {"quantity": "q", "model": model}
        return Curve(x=Axis(name="layer"), y=Axis(name="q"), at=["a", "b"], lines={"q": line}, about=about)

    every = [curve("s0", [1.0, None]), curve("s1", [3.0, 5.0]), curve("other", [0.0, 0.0])]
    merged, other = merge_seeds(every, {"s0": "tiny", "s1": "tiny"})
    assert merged.lines == {"q": [2.0, None]}
    assert (merged.bands["q"].low, merged.bands["q"].high) == ([1.0, None], [3.0, None])
    assert merged.about["model"] == "tiny (mean of 2 seeds)"
    assert other is every[2]
    named = {f"c{i}": dataclasses.replace(each, analysis="x") for i, each in enumerate(every)}
    jobs = dict(list_layer_figures(named, "x", {"s0": "tiny", "s1": "tiny"}))
    assert list(jobs) == ["by-layer-q", "by-layer-q-seeds"]
    legend = jobs["by-layer-q-seeds"]().axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()][-1] == "shaded: range over seeds"
    assert list(dict(list_layer_figures(named, "x", {}))) == ["by-layer-q"]


@pytest.mark.parametrize("faults", [[], ["rows are alike"]])
@pytest.mark.parametrize(
    ("p", "said"),
    [
        ([[0.01, 0.5], [0.01, 0.01]], "×: p > 0.05, "),
        ([[0.01, np.nan], [0.01, 0.01]], "×: p > 0.05 or not known, "),
        ([[0.01, 0.02], [0.01, 0.01]], "no ×: every p ≤ 0.05, "),
    ],
)
@pytest.mark.parametrize("family", [{"family": "max_t"}, {}])
def test_a_title_says_whether_p_is_valid_and_why_no_cell_is_crossed(tmp_path, p, said, faults, family):
    run = run_of(tmp_path, {"alpha": 0.05, "share": 1, **family, **({"not_valid": faults} if faults else {})})
    (measured,) = run.results.measures
    np.save(tmp_path / "p.npy", p)
    which = map_figures.choose_tests(measured.null)[0]
    matrices = [dataclasses.replace(matrix, **{which: "p.npy"}) for matrix in measured.matrices]
    run.results.measures[:] = [dataclasses.replace(measured, matrices=matrices)]
    for name in ("procrustes-all", "procrustes-00-01-a-b"):
        title = dict(map_figures.draw_figures(run, True))[name]().texts
        (line,) = (line for text in title for line in text.get_text().splitlines() if "p ≤" in line or "p >" in line)
        assert f"({said}" in line
        assert line.endswith("; p is not valid, see the warnings)") == bool(faults)


def test_values_that_are_all_of_untrained_models_are_no_level_of_chance(tmp_path):
    run = run_of(tmp_path, None, False)
    (measured,) = run.results.measures
    values = np.arange(4.0).reshape(2, 2)
    assert find_chance_of_values(run, measured, values, ["a", "a"], ["b", "b"]) == (None, "")
    level, _ = find_chance_of_values(run, measured, values, ["a", "b"], ["a", "b"])
    assert (level.low, level.high) == (1.0, 2.0)


@pytest.mark.slow
def test_a_title_says_where_chance_gives_as_much(repsim, tmp_path):
    """No layers of two unrelated models answer to each other."""
    rng, documents = np.random.default_rng(4), np.repeat(np.arange(30), 10)

    def model():
        effects = rng.normal(size=(30, 12))[documents]
        return {f"layer_{i}": effects @ rng.normal(size=(12, 16)) + rng.normal(size=(300, 16)) for i in range(3)}

    settings = {"extract.estimate": "full", "cache": False}
    compared = {"a": model(), "b": model()}
    found = repsim_cli.compare(compared, documents=documents, measures=["cka_unbiased"], settings=settings)
    found.save(tmp_path / "run")
    assert repsim("plot", tmp_path / "run")[0] == 0
    with Image.open(tmp_path / "run" / "figures" / "cka_unbiased-00-01-a-b.png") as image:
        assert image.info["Title"] == "a and b have nothing in common beyond chance"
    assert "framed" not in (tmp_path / "run" / "figures" / "cka_unbiased-00-01-a-b.svg").read_text()


def test_how_far_one_of_four_models_stands_apart_by_hand():
    """Distances of 0.4 from 2.8b and 0.1 among the others: log 0.4 minus log of the mean of 0.1, 0.1 and 0.4. Cells of
    a model with itself, and those at other depths, say nothing."""
    names = ["pythia_1b", "pythia_1_4b", "pythia_2_8b", "pythia_6_9b"]
    places = {name: slice(3 * i, 3 * i + 3) for i, name in enumerate(names)}
    owner = np.repeat(np.arange(4), 3)
    values = np.where((owner[:, None] == 2) | (owner == 2), 0.6, 0.9)
    values[owner[:, None] == owner] = 0.3
    values[(np.arange(12) % 3)[:, None] != np.arange(12) % 3] = 0.1
    of = {"families": dict.fromkeys(names, "gpt_neox"), "names": [], "widths": [32] * 12, "rows": 4000}
    found = maps.pythia_2_8b_stands_apart.function(ClaimMap(models=places, values={"cka": values}, **of), values)
    assert found.value == pytest.approx(np.log(0.4 / 0.2))


@pytest.mark.parametrize("known", [True, False])
def test_a_line_is_named_where_one_is_drawn(finished, tmp_path, known):
    folder = shutil.copytree(finished(*SMALL), tmp_path / "run")
    whole = reader.read_results(folder)
    for measured in whole.measures if not known else ():
        for matrix in measured.matrices:
            np.save(folder / matrix.values, np.full_like(np.load(folder / matrix.values), np.nan))
    run = Finished(folder=folder, manifest=reader.read_manifest(folder), results=whole)
    (make,) = [make for _, make in multiples.draw_figures(run, True)]
    assert ("line: the closest of tiny_b; " in make().get_suptitle()) == known
