"""Drawing primitives: names that do not touch, scales that tell values apart, chance beside the numbers."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_rgb
from matplotlib.text import Text

import repsim_cli
from repsim_cli.figures import lines
from repsim_cli.figures.frame import COLUMN, STYLE, Style, _fit_figure
from repsim_cli.figures.heatmap import (
    Chance,
    Panel,
    add_model_names,
    add_strips,
    add_tree,
    draw_heatmap,
    draw_small_heatmaps,
    find_matrix_axes,
)
from repsim_cli.figures.lines import draw_by_layer
from repsim_cli.figures.steps import make_step_panel
from repsim_cli.findings import map_figures, sub_network_figures
from repsim_cli.findings.analysis import Finished
from repsim_cli.runs.content import Axis, Band, Curve, Matrix, Measured, Results, Side, Table
from repsim_cli.studies.probes import finding as probes
from repsim_cli.studies.stitching import drawing as stitching
from repsim_cli.studies.training_run import finding_convergence as convergence
from repsim_cli.studies.universality import finding as universality

DRAWN: Any = STYLE
IN_COLUMN: Any = COLUMN


def texts(figure):
    """The boxes of all that is written."""

    def within(axis):  # ticks outside the view are not drawn
        low, high = sorted(axis.get_view_interval())
        return [
            label for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False) if low <= at <= high
        ]

    return [
        (label.get_text(), label.get_window_extent())
        for axes in figure.axes
        for label in (*axes.texts, *(x for axis in (axes.xaxis, axes.yaxis) for x in (*within(axis), axis.label)))
        if label.get_text() and label.get_visible()
    ]


def overlaps(figure):
    figure.draw_without_rendering()
    return [
        (first, second)
        for (first, a), (second, b) in combinations(texts(figure), 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]


@pytest.mark.parametrize(
    ("steps", "scale"),
    [
        ((0, 1, 10, 1000), "symlog"),
        ((9601, 9801, 10001), "linear"),
        ((0, 2000, 4200, 6201), "linear"),
        ((0,), "linear"),
    ],
)
def test_steps_have_one_axis_whose_ticks_do_not_touch(steps, scale):
    figure, panel = make_step_panel(steps)
    assert panel.get_xscale() == scale
    assert overlaps(figure) == []
    assert panel.get_xlabel() == ("step (logarithmic)" if scale == "symlog" else "step")


@pytest.mark.parametrize("targets", [["c1", "c2"], ["part of speech of the next word", "c2"]])
@pytest.mark.parametrize("count", [2, 100])
def test_names_of_targets_and_probes_do_not_touch(tmp_path, targets, count):
    layers = [f"{point}@{i}" for i in range(count) for point in ("resid_mid", "resid_post")]
    np.save(tmp_path / "errors.npy", np.linspace(0, 1, len(layers) * len(targets)).reshape(len(layers), len(targets)))
    matrix = Matrix(
        rows=Side(model="a", layers=layers),
        columns=Side(model="targets", layers=targets),
        values="errors.npy",
        details={"control": "errors.npy"},
        about={"label": "2-layer MLP, classification", "error": "1 - accuracy"},
    )
    run = Finished(folder=tmp_path, manifest={}, results=Results(study="probes"))
    assert overlaps(probes._draw_probe_maps(run, [matrix])) == []


def a_curve(head, tail, layer):
    about = {"head": head, "tail": tail, "head layer": layer, "tail layer": layer}
    return Curve(x=Axis(name="step"), y=Axis(name="loss"), at=[0, 9601], lines={"loss": [6.0, 4.0]}, about=about)


def test_both_ways_of_stitching_one_family_have_colours_of_their_own():
    pairs = [("run_a", "run_c"), ("run_c", "run_a")]
    curves = [a_curve(*ways, layer) for layer in ("resid_post@0", "resid_post@1", "resid_post@2") for ways in pairs]
    about = {"kinds": dict.fromkeys(("run_a", "run_c"), "llama, 6 blocks"), "tokens_per_step": 512}
    figure = stitching._draw_training_curves(curves, about)
    legend = figure.axes[-1].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["run_a → run_c", "run_c → run_a"]
    assert len({to_rgb(line.get_color()) for line in legend.get_lines()}) == 2
    assert overlaps(figure) == []


def test_panels_that_share_an_axis_show_the_largest_value_of_both_from_zero():
    """Whichever of them has it; values below 0 keep an axis of their own."""
    for lines_, expected in (({"row": [0.2, 0.9], "column": [0.1, 0.3]}, (0, 1.02)), ({"row": [-0.2, 0.1], "column": [0.1, 0.3]}, None)):  # fmt: skip
        curve = Curve(x=Axis(name="layer"), y=Axis(name="CKA"), at=["a@0", "a@1"], lines=lines_, about={"model": "m"})
        for panel in lines.draw_by_layer([curve]).axes:
            low, high = panel.get_ylim()
            assert (low, high) == expected if expected else low < -0.2


def levels_of(panel):
    return {line.get_label(): line.get_ydata()[0] for line in panel.lines if line.get_linestyle() == ":"}


def test_losses_of_stitching_show_those_of_random_heads_or_say_that_chance_is_not_known():
    about = {"kinds": dict.fromkeys("abc", "llama, 6 blocks"), "tokens_per_step": 512}
    both = [a_curve(head, "c", "resid_post@0") for head in "ab"]
    cases = [([{"heads": 5.0}, {"heads": 7.0}], {"heads": 6.0}, ["heads"]), ([{}, {}], {}, [lines.UNKNOWN]), ([None, None], {}, [])]  # fmt: skip
    for levels, drawn, said in cases:
        more = [{} if level is None else {"levels": level} for level in levels]
        figure = stitching._draw_training_curves(
            [replace(x, about=x.about | y) for x, y in zip(both, more, strict=True)], about
        )
        assert levels_of(figure.axes[0]) == drawn
        assert [text.get_text() for text in figure.axes[-1].get_legend().get_texts()] == ["a → c", "b → c", *said]


def over_training(quantity, at, mean, **about):
    bands = {"quartiles": Band(low=mean, high=mean, of="25th to 75th percentile of layers")}
    kept = {"quantity": quantity, "point": "resid_post", "model": "m", "parameters": 10, **about}
    return Curve(x=Axis(name="step"), y=Axis(name="CKA"), at=at, lines={"0": mean}, mean=mean, bands=bands, about=kept)


def test_training_curves_show_untrained_weights_or_say_that_chance_is_not_known():
    curves = [over_training("cka to last", [0, 10, 90], [start, 0.5, 1.0], levels={"mean at step 0": start}) for start in (0.1, 0.3)]  # fmt: skip
    panel = convergence._draw_means_by_model(curves).axes[0]
    assert levels_of(panel) == {"mean at step 0": pytest.approx(0.2)}
    for quantity, said in {"cka to last": True, "effective rank": False}.items():
        curve = over_training(quantity, [10, 90], [0.5, 1.0], **({"levels": {}} if said else {}))
        panel = convergence._draw_means_by_model([curve]).axes[0]
        assert levels_of(panel) == {}
        assert (lines.UNKNOWN in [text.get_text() for text in panel.get_legend().get_texts()]) is said


@pytest.mark.parametrize(
    ("quantity", "said"),
    {
        "cka to last": "m: CKA with the last checkpoint, over the training",
        "cka to previous": "m: CKA with the checkpoint before, over the training",
        "cka between layers": "m: CKA of each layer with the others, mean, over the training",
        "gradients": "m: CKA over the training",
    }.items(),
)
def test_titles_of_training_curves_say_what_a_layer_is_compared_with(quantity, said):
    figure = convergence._draw_means_by_model([over_training(quantity, [10, 90], [0.5, 1.0], levels={})])
    assert said in figure.get_suptitle()


@pytest.mark.parametrize("heads", [["a (random weights)", "b (random weights)"], ["a (rows shuffled)"]])
def test_stitching_shows_what_random_heads_lose_or_says_that_it_is_not_known(heads):
    keys = ("head", "tail", "head layer", "penalty", "penalty se", "ended")
    plain: Any = [dict(zip(keys, ("a", "b", "resid_post@0", 0.5, 0.1, "done"), strict=True))]
    baselines: Any = [
        dict(zip(keys, (head, "b", "resid_post@0", 2.0 + i, 0.1, "done"), strict=True)) for i, head in enumerate(heads)
    ]
    about = {"kinds": {"a": "llama", "b": "llama"}, "layer": "affine", "steps": 9, "evaluation_sequences": 7}
    figure = stitching._draw_pair_bars(plain, about, "loss", "all", stitching.summarise_random_heads(baselines, "loss"))
    drawn = [
        line.get_xdata()[0] for line in figure.axes[0].lines if line.get_linestyle() == ":" and len(line.get_xdata())
    ]
    known = heads[0].endswith("(random weights)")
    assert drawn == ([2.5] if known else [])
    said = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
    assert said == ["heads of random weights" if known else lines.UNKNOWN]


@pytest.mark.parametrize(
    ("over", "said"),
    [({}, "over 9 sequences"), ({"evaluation_documents": 4}, "over 4 documents")],
    ids=["of before", "of today"],
)
def test_errors_of_stitching_are_over_what_the_run_says(over, said):
    about = {"layer": "affine", "steps": 9, "evaluation_sequences": 9, **over}
    assert stitching._say(about, "seen", "bands")[1].endswith(said)


def test_maps_of_all_kinds_have_the_chosen_colours():
    """Small penalties are bright, as small distances are; no finding names the default map for itself."""
    metric = next(iter(stitching.METRICS))
    sides = {"head": "a", "tail": "b", "head layer": "resid_post@0", "tail layer": "resid_post@1"}
    for chosen, expected in (("magma", "magma_r"), ("magma_r", "magma")):
        with rc_context({"image.cmap": chosen}):
            figure = stitching._draw_layer_grid([sides | {stitching.METRICS[metric][0]: 0.5}], metric)
        assert figure.axes[0].images[0].get_cmap().name == expected
    package = Path(repsim_cli.__file__).parent
    files = [*package.glob("findings/*.py"), *package.glob("studies/*/finding*.py")]
    named = {file.parent.name for file in files if "viridis" in file.read_text()}
    assert named == {"classifiers"}  # points of seeds, not a map


def square(count):
    return np.random.default_rng(0).uniform(size=(count, count))


def test_a_tree_stands_above_its_matrix():
    names = [f"model_{i}" for i in range(4)]
    figure, axes = draw_heatmap(square(4), names, names, "", "distance\nof models", (1e-7, 3e-7), "viridis", "{:.2f}")
    top = max(part.get_window_extent().y1 for part in figure.axes)
    tree = add_tree(figure, axes, np.array([[0, 1, 0.1, 2], [2, 3, 0.2, 2], [4, 5, 0.3, 4]]), "distance")
    assert tree.get_window_extent().y0 > top
    assert tree.get_xlim() == axes.get_xlim()


def test_chance_is_marked_on_the_colour_bar_and_the_calibrated_map_stands_beside():
    names = ["0", "1", "2"]
    beside = Panel(values=square(3) / 2, label="calibrated score", limits=(0.0, 1.0), colours="viridis")
    figure, axes = draw_heatmap(
        square(3), names, names, "", "CKA", (0.0, 1.0), "viridis", "{:.2f}",
        chance=Chance(low=0.1, middle=0.2, high=0.4), beside=beside,
    )  # fmt: skip
    first, second = find_matrix_axes(figure)
    assert first is axes
    np.testing.assert_array_equal(second.images[0].get_array(), beside.values)
    bars = [part for part in figure.axes if part not in (first, second)]
    marks = [[line.get_ydata().tolist() for line in bar.lines] for bar in bars]
    assert [[0.1, 0.4], [0.2]] in marks
    assert not {axes.get_label() for axes in bars} & {"matrix"}
    assert overlaps(figure) == []


def test_what_rounds_to_zero_has_no_sign():
    values = np.array([[-0.001, 0.001], [-0.6, -0.006]])
    _, axes = draw_heatmap(values, ["a", "b"], ["c", "d"], "", "", (-1.0, 1.0), "viridis", "{:.2f}")
    assert [text.get_text() for text in axes.texts] == ["0.00", "0.00", "-0.60", "-0.01"]


def test_strips_show_shares_above_the_columns():
    figure, axes = draw_heatmap(
        square(3), ["0", "1", "2"], ["0", "1", "2"], "CKA", "CKA", (0.0, 1.0), "viridis", "{:.2f}"
    )
    shares = {"largest feature": np.array([0.1, 0.2, 0.9]), "largest 1 % of rows": np.array([0.0, 0.5, 0.3])}
    add_strips(axes, shares)
    strips = {part.get_yticklabels()[0].get_text(): part for part in figure.axes[2:]}
    for name, share in shares.items():
        np.testing.assert_array_equal(strips[name].images[0].get_array(), share[None])
        assert strips[name].get_position().y0 > axes.get_position().y1


def test_the_power_of_ten_of_small_values_stands_in_the_label_of_the_colours(tmp_path):
    """The power would be read as part of the name of a panel beside it."""
    card = {"label": "MSID", "larger_is_closer": False, "bounds": (0.0, None)}
    layers = ["resid_post@0", "resid_post@1"]
    small = [(model, 1e-5 * np.eye(2), layers, layers) for model in ("a", "b")]
    for width in ("column", None):
        with rc_context(DRAWN):
            figure = _fit_figure(
                lambda: draw_small_heatmaps(small, card, "msid")[0], Style(width=width), tmp_path / "labels.txt"
            )
        figure.draw_without_rendering()
        bar = figure.axes[-1]
        assert bar.get_ylabel().replace("\n", " ").replace("\u2212", "-") == "MSID (smaller is closer), in 1e-5"
        assert not bar.yaxis.get_offset_text().get_visible()


def test_what_is_shaded_is_said_without_titles():
    """Papers have captions instead of titles; the legend stays."""

    def said(figure):
        return [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]

    band = Band(low=[0.1, 0.2], high=[0.3, 0.4], of="range over seeds")
    curve = Curve(x=Axis(name="layer"), y=Axis(name="CKA"), at=["0", "1"], lines={"row": [0.2, 0.3]}, bands={"row": band}, about={"quantity": "cka", "model": "m"})  # fmt: skip
    assert said(draw_by_layer([curve])) == ["m", "shaded: range over seeds"]
    assert said(draw_by_layer([replace(curve, bands={}, errors={"row": [0.1, 0.1]})]))[1:] == [
        "shaded: one standard error"
    ]
    training = over_training("cka to last", [0, 10, 90], [0.1, 0.5, 1.0])
    assert said(convergence._draw_means_by_model([training]))[1:] == ["shaded: 25th to 75th percentile of layers"]


def test_baselines_of_stitching_are_named_by_what_was_done():
    """The head is the same model as the tail, whose name is enough."""
    keys = ("head", "tail", "head layer", "penalty", "penalty se", "ended")
    rows: Any = [dict(zip(keys, (f"long_name_{x} (rows shuffled)", f"long_name_{x}", "resid_post@0", 2.0, 0.1, "done"), strict=True)) for x in "ab"]  # fmt: skip
    about = {"kinds": {"long_name_a": "llama", "long_name_b": "gpt2"}, "layer": "affine", "steps": 9, "evaluation_sequences": 7}  # fmt: skip
    figure = stitching._draw_pair_bars(rows, about, "loss", "baselines", {})
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert sorted(names) == ["rows shuffled → long_name_a", "rows shuffled → long_name_b"]
    assert figure.axes[-1].get_legend() is None  # which would say the same again


def test_names_of_models_are_shortened_before_the_map_is(tmp_path):
    """Four models with names of middle length, in a column: the map has half of the width."""
    models, ends = ["tiny_a_step400", "tiny_a", "gpt2_like", "bert_like"], np.array([0, 7, 14, 19, 24])

    def whole():
        layers = ["embed", *(str(i) for i in range(6)), "embed", *(str(i) for i in range(6)), *(["embed", "0", "1", "2", "3"] * 2)]  # fmt: skip
        figure, axes = draw_heatmap(square(24), layers, layers, "", "CKA (larger is closer)", (0.0, 1.0), "viridis", "", ends[:-1].tolist())  # fmt: skip
        for which in "xy":
            add_model_names(axes, which, models, ends, "resid_post by block")
        return figure

    with rc_context(DRAWN | IN_COLUMN):
        figure = _fit_figure(whole, Style(width="column"), tmp_path / "labels.txt")
    assert find_matrix_axes(figure)[0].get_window_extent().width / figure.dpi > 3.25 / 2
    named = [label.get_text() for label in find_matrix_axes(figure)[0].child_axes[0].get_xticklabels()]
    assert len(set(named)) == 4
    assert named[1] == "tiny_a"


def test_the_legend_of_verdicts_stands_clear_of_the_colours():
    rows = [["cka", "width", 1, 1.0, 1.0, 0.1, "same"], ["svcca", "width", 1, 0.5, 0.9, 0.1, "related"]]
    figure = universality._draw_factor_verdicts(Table(columns=universality.OF_FACTORS, rows=rows), None)
    figure.draw_without_rendering()
    legend = figure.axes[0].get_legend()
    assert legend.get_texts()[0].get_text() == "same (margin 0.1)"
    assert not figure.axes[-1].yaxis.label.get_window_extent().overlaps(legend.get_window_extent())


def test_layers_of_one_hook_point_are_named_by_block(tmp_path):
    layers = [f"resid_post@{i}" for i in range(6)]
    np.save(tmp_path / "values.npy", square(6))
    matrix = Matrix(rows=Side(model="m", layers=layers), columns=Side(model="m", layers=layers), values="values.npy")
    card = {"label": "GW", "larger_is_closer": False, "bounds": (0.0, None)}
    measure = Measured(name="gw", label="gw", settings={}, estimate={"rows": 9}, card=card, matrices=[matrix])
    labels = Curve(x=Axis(name="layer"), y=Axis(name=""), at=layers, lines={"spectral": [0, 0, 0, 1, 1, 1]})
    following = Curve(
        x=Axis(name="layer"), y=Axis(name=""), at=layers[:-1], lines={sub_network_figures.NEXT: [0.1] * 5}
    )
    run = Finished(folder=tmp_path, manifest={}, results=Results(study="similarity"))
    figure = sub_network_figures.draw_sub_networks(run, measure, matrix, labels, following)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list("012345")
    assert figure.axes[1].get_xlabel() == "resid_post by block"
    assert figure.axes[0].child_axes == []
    said = []
    for doubtful in ([], ["spectral"]):
        labels = replace(labels, about={"as walks": doubtful})
        drawn = sub_network_figures.draw_sub_networks(run, measure, matrix, labels, following)
        said.append(" ".join(text.get_text() for text in drawn.findobj(Text)))
    assert "m: where its layers part" in said[0]
    assert "m: how far apart its layers are" in said[1]


@pytest.mark.parametrize("known", [True, False])
def test_small_maps_have_the_mark_of_chance_or_say_that_it_is_not_known(tmp_path, known):
    layers = ["resid_post@0", "resid_post@1"]
    np.save(tmp_path / "values.npy", square(2))
    np.save(tmp_path / "chance.npy", np.full((2, 2), 0.25))
    sides = [Side(model=model, layers=layers) for model in "ab"]
    details = {"chance": "chance.npy"} if known else {}
    matrices = [Matrix(rows=side, columns=side, values="values.npy", details=details) for side in sides]
    card = {"label": "CKA", "larger_is_closer": True, "bounds": (0.0, 1.0)}
    measure = Measured(name="cka", label="cka", settings={}, estimate={"rows": 9}, card=card, matrices=matrices, null={"alpha": 0.05} if known else None, chance=None if known else {"unknown": "why"})  # fmt: skip
    figure = map_figures._draw_model_panels(
        Finished(folder=tmp_path, manifest={}, results=Results(study="similarity")), measure
    )
    marks = [line.get_ydata()[0] for line in figure.axes[-1].lines if line.get_marker() == ">"]
    assert marks == ([0.25] if known else [])
    assert ("chance is not known here: why" in figure.get_suptitle()) is not known


@pytest.mark.parametrize("names", [["attn_out@0"], ["attn_out@0", "attn_out@1"]])
def test_small_maps_of_one_training_are_not_said_to_be_of_models(tmp_path, names):
    np.save(tmp_path / "values.npy", square(2))
    sides = [Side(model=name, layers=["step 0", "step 9"]) for name in names]
    card = {"label": "CKA", "larger_is_closer": True, "bounds": (0.0, 1.0)}
    measure = Measured(name="cka", label="cka between checkpoints of m", settings={}, estimate={"rows": 9}, card=card, matrices=[Matrix(rows=side, columns=side, values="values.npy") for side in sides])  # fmt: skip
    title = map_figures.draw_map(
        Finished(folder=tmp_path, manifest={}, results=Results(study="convergence")), measure
    ).get_suptitle()
    assert title == "How alike the checkpoints of a training are, layer by layer\ncka between checkpoints of m"


def test_what_is_shaded_is_not_cut_where_very_many_models_are_named(tmp_path):
    training = [over_training("cka to last", [0, 10, 90], [0.1, 0.5, 1.0], model=f"a_model_with_a_long_name_{i}") for i in range(40)]  # fmt: skip
    with rc_context(DRAWN | IN_COLUMN):
        figure = _fit_figure(
            lambda: convergence._draw_means_by_model(training), Style(width="column"), tmp_path / "labels.txt"
        )
    (legend,) = figure.legends
    assert legend.get_title().get_text() == "shaded: 25th to 75th percentile of layers"
    assert len(legend.get_texts()) == 40
