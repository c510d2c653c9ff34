"""Measures graded by tests of which the answer is known, and ranked: the leaderboard of a run."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.figures.colours import choose_colours
from repsim_cli.figures.frame import COLOURS, OPTIONS
from repsim_cli.figures.layout import find_available_width
from repsim_cli.figures.panels import add_colour_bar, set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.groups import group_layers_by_point
from repsim_cli.findings.permuted_groups import number_groups
from repsim_cli.runs.content import COMPARED, COSTS, TRUNCATED, UNMEASURED, Measured, Table
from repsim_cli.studies.grounding import scores
from repsim_cli.studies.grounding.grading import (
    GRADES,
    MEASURES,
    Case,
    compute_measure_costs,
    grade_all,
    list_grades,
    list_standings,
)
from repsim_cli.studies.grounding.scores import Models, Truncated

GROUPS = ["data", "models of", "group", "models", "mean", "least", "largest"]
ROW, COLUMN, RANKS = 0.15, 0.3, 2.4  # inches of a measure, of a test and of the panel of ranks
SAID = {"separation": "{models}: groups apart", "conformity": "{models}: each pair in order"}
DEFAULTS = ("cka_unbiased", "mutual_knn")  # always named beside their cost
FAR = (1, 5, 10)  # how far from its mark a name may stand that has to
LEADER = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}


@dataclass(frozen=True, kw_only=True)
class Grades:
    """Grades every measure of a run by tests of which the answer is known, and ranks the measures. Models that differ
    in their seeds alone are wanted; with `groups`, within each group.

    `identification`: the share of layers whose most similar layer in another model is the same layer (Kornblith et al.
    2019); equal candidates share the point. `order of layers`: Spearman's rho of similarity and closeness of layers,
    `monotonicity`: how often the nearer of two layers is the more similar one, ties counted half, each averaged over
    layers and both directions. `accuracy`, `output divergence`, `output disagreement`: Spearman's rho, over pairs of
    models, of their distance and how far they are apart in it, with p over orders of the models. `separation`: with
    groups, average precision of pairs within a group among all pairs with a model of that group, averaged over groups;
    `conformity`: how often such a pair is more similar than one across groups, ties counted as no (Klabunde et al.
    2024). `sensitivity`: Spearman's rho of the distance of a layer with components deleted to the whole layer, and the
    accuracy that a probe loses; `specificity`: balanced accuracy of the rule "farther than another seed" in telling
    deletions that hurt the probe from those that do not (after Ding et al. 2021). `accuracy`, outputs and groups look
    at the last layer of a hook point.

    metric: the metric of trained models for `accuracy` where their outputs were not read; left out where models lack
        it.
    """

    metric: str = "accuracy"


def read_cases(run: Finished, metric: str) -> list[Case]:
    """Reads the cases of a run: those of `grounding`, else one per hook point. Without groups all models are one."""
    return list(_read_test_cases(run) if run.results.study == "grounding" else _read_map_cases(run, metric))


def _choose_similarity_sign(measured: Measured) -> float:
    return 1.0 if measured.larger_is_closer else -1.0


def _read_test_cases(run: Finished) -> Iterator[Case]:
    about = run.results.about["samples"]
    failed: dict[tuple[str, str, str], dict[str, str]] = {}
    for measure, data, test, point, why in run.results.tables[UNMEASURED].rows:
        failed.setdefault((data, test, point), {})[measure] = why
    matrices: dict[tuple[str, str, str], dict[str, dict[str, Float[np.ndarray, ...]]]] = {}
    for measured in run.results.measures:
        for matrix in measured.matrices:
            where = tuple(matrix.about[key] for key in ("data", "test", "point"))
            values = run.array(matrix.values) * _choose_similarity_sign(measured)
            matrices.setdefault(where, {}).setdefault(measured.label, {})[matrix.about["kind"]] = values
    for data, sample in about.items():
        for test, groups in sample["tests"].items():
            labels = [model for members in groups.values() for model in members]
            apart = _measure_output_differences(run, sample, labels) if len(groups) == 1 else {}
            for point in sample["points"]:
                where = (data, test, point)
                models = {
                    label: Models(
                        similar=split_by_model(kinds[COMPARED], len(labels)),
                        groups=number_groups(groups),
                        apart=apart,
                        truncated=compare_truncated(
                            kinds.get(TRUNCATED), sample["probes"].get(f"{test}, {point}"), len(labels)
                        ),
                    )
                    for label, kinds in matrices.get(where, {}).items()
                }
                yield Case(data, test, point, groups, models, failed.get(where, {}))


def split_by_model(values: Float[np.ndarray, "r r"], models: int) -> Float[np.ndarray, "m m l l"]:
    layers = len(values) // models
    return values.reshape(models, layers, models, layers).transpose(0, 2, 1, 3)


def compare_truncated(similar: np.ndarray | None, probes: Mapping[str, Any] | None, models: int) -> Truncated | None:
    if similar is None or probes is None:
        return None
    accuracy, whole = np.array(probes["accuracy"]), np.array(probes["whole"])
    by_layer = (models, len(whole) // models)
    return Truncated(
        similar=similar.reshape(*by_layer, -1), accuracy=accuracy.reshape(*by_layer, -1), whole=whole.reshape(by_layer)
    )


def _measure_output_differences(
    run: Finished, sample: Mapping[str, Any], labels: Sequence[str]
) -> dict[str, scores.Square]:
    """Measures how far these models are apart in accuracy and in what they predict; empty where one has no outputs."""
    predicted = [sample["outputs"].get(label) for label in labels]
    if None in predicted:
        return {}
    apart = {scores.ACCURACY: scores.compute_accuracy_differences(np.array([each["accuracy"] for each in predicted]))}
    if all(each["labels"] == predicted[0]["labels"] for each in predicted):
        probabilities = np.array([run.array(each["probabilities"]) for each in predicted])
        apart[scores.DIVERGENCE] = scores.compute_js_divergence(probabilities)
        apart[scores.DISAGREEMENT] = scores.compute_disagreement(probabilities)
    return apart


def _read_map_cases(run: Finished, metric: str) -> Iterator[Case]:
    """Reads, at every hook point, the models whose layers there are those of the first model, under each measure."""
    measured = next(iter(run.maps.values()), None)
    if measured is None:
        return
    groups = run.groups or {"": list(measured.places)}
    names = [model for members in groups.values() for model in members]
    points = {model: group_layers_by_point(run.models[model]) for model in names}

    def layers_at(model: str, point: str) -> list[str]:
        return [run.models[model].layers[i] for i in points[model][point].places] if point in points[model] else []

    for point in points[names[0]]:
        kept = [i for i, model in enumerate(names) if layers_at(model, point) == layers_at(names[0], point)]
        known = [run.manifest["models"][names[i]].get("metrics", {}).get(metric, np.nan) for i in kept]
        apart = {} if np.isnan(known).any() else {scores.ACCURACY: scores.compute_accuracy_differences(np.array(known))}
        models = {}
        for label, layers in run.maps.items():
            at = np.array([[layers.places[names[i]].start + p for p in points[names[i]][point].places] for i in kept])
            similar = layers.values[at[:, None, :, None], at[None, :, None, :]] * _choose_similarity_sign(
                layers.measure
            )
            models[label] = Models(
                similar=similar, groups=number_groups(groups)[kept], apart=apart if not run.groups else {}
            )
        yield Case("", "", point, groups, models, {})


def list_group_accuracies(run: Finished, cases: Sequence[Case], metric: str) -> list[list[Any]]:
    """Lists the mean, lowest and highest accuracy of every group, which shows whether models differ as they should."""
    rows = {}
    for case in cases:
        outputs = run.results.about.get("samples", {}).get(case.data, {}).get("outputs", {})
        known = {model: predicted["accuracy"] for model, predicted in outputs.items()}
        for group, models in case.groups.items():
            values = [known.get(m, run.manifest["models"][m].get("metrics", {}).get(metric)) for m in models]
            values = [value for value in values if value is not None]
            numbers = [float(np.mean(values)), min(values), max(values)] if values else [None] * 3
            rows[case.data, case.test, group] = [case.data, case.test, group, len(models), *numbers]
    return list(rows.values())


# ---- figures ----


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """grades-POINT: the mean rank of every measure with its band, the smallest at the top, and its rank in every test.
    grades-cost: mean rank against time."""
    table, standing = run.results.tables["grades"], run.results.tables["measures by grade"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    for point in dict.fromkeys(row["hook point"] for row in rows):
        here = [row for row in rows if row["hook point"] == point]
        yield slug("grades", point), partial(_draw_measure_ranks, point, here, standing, run.level)
    if any(standing.column("seconds per pair")):
        yield "grades-cost", partial(_draw_ranks_against_cost, standing)


def _draw_measure_ranks(point: str, rows: Sequence[Mapping[str, Any]], standing: Table, level: float) -> Any:
    from matplotlib.figure import Figure

    order = standing.column("measure")
    tests = list(dict.fromkeys((row["test"], row["data"], row["models of"]) for row in rows))
    values = np.full((len(order), len(tests)), np.nan)
    for row in rows:
        if row["score"] is not None:
            place = order.index(row["measure"]), tests.index((row["test"], row["data"], row["models of"]))
            values[place] = row["rank"]
    limit, height = find_available_width(), ROW * len(order)
    wide = COLUMN if limit is None else min(COLUMN, 0.7 * limit / len(tests))
    ranks = RANKS if limit is None else min(RANKS, limit - wide * len(tests))
    width = ranks + 0.08 + wide * len(tests)
    figure = Figure(figsize=(width, height))
    left = figure.add_axes((0, 0, ranks / width, 1))
    right = figure.add_axes((1 - wide * len(tests) / width, 0, wide * len(tests) / width, 1))
    for y, (low, mean, high) in enumerate(zip(*map(standing.column, ("low", "mean rank", "high")), strict=True)):
        if low is not None:
            left.plot([low, high], [y, y], color=COLOURS[0], linewidth=1.2)
        left.plot(mean, y, "o", color=COLOURS[0], markersize=3.5)
    left.set_ylim(len(order) - 0.5, -0.5)
    left.set_yticks(range(len(order)), order, fontsize=7, parse_math=False)
    left.set_xlabel("mean rank", fontsize=7)
    left.tick_params(axis="x", labelsize=6)
    left.grid(alpha=0.25, linewidth=0.5)
    shown = right.imshow(values, cmap=choose_colours(small_is_bright=True), aspect="auto")
    right.set_facecolor("0.85")
    right.set_yticks([])
    names = [f"{SAID[test].format(models=models) if test in SAID else test}, {data}" for test, data, models in tests]
    right.set_xticks(
        range(len(tests)),
        [name.removesuffix(", ") for name in names],
        fontsize=6,
        rotation=90,
        parse_math=False,
    )
    right.tick_params(axis="x", top=True, bottom=False, labeltop=True, labelbottom=False)
    add_colour_bar(figure, shown, "rank in the test; equal where it does not separate measures; grey: no score")
    bands = [f"lines: {100 * level:g} % over models"] if any(standing.column("low")) else []
    known = "ahead of" in standing.columns  # runs of before do not say it
    told = ["none is told to be ahead of another"] if known and not any(standing.column("ahead of")) else []
    said = f"{len(order)} measures in tests with known answers, by their mean rank: {point}"
    set_headline(figure, said, "; ".join([*bands, *told]))
    return figure


def _draw_ranks_against_cost(table: Table) -> Any:
    """Mean rank against seconds; the line joins measures of which none is both faster and better."""
    from matplotlib.figure import Figure

    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    rows = sorted((row for row in rows if row["seconds per pair"] is not None), key=lambda row: row["seconds per pair"])
    figure = Figure(figsize=(6.5, 4.5), dpi=OPTIONS["png"]["dpi"])  # names are placed by their width in the file
    axes = figure.add_axes((0, 0, 1, 1))
    best, front = np.inf, []
    for row in rows:
        if row["mean rank"] < best:
            best = row["mean rank"]
            front.append(row)
    lines = axes.plot(*_list_seconds_and_ranks(front), color=COLOURS[1], linewidth=1, zorder=1)
    axes.plot(*_list_seconds_and_ranks(rows), "o", color=COLOURS[0], markersize=4)
    axes.plot(*_list_seconds_and_ranks(front), "o", color=COLOURS[1], markersize=5)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.autoscale_view()  # now, since names are placed by what is where
    for row in [row for row in rows if row in front or row["measure"] in DEFAULTS]:
        style = {"fontsize": 6, "color": COLOURS[row in front]}
        any(_label(axes, row, rows, met, far, **style) for far in FAR for met in (lines, []))
    for row in rows:
        if row not in front and row["measure"] not in DEFAULTS:
            _label(axes, row, rows, lines, fontsize=5, color="0.35")
    axes.set_xlabel("seconds of CPU time per pair of layers")
    axes.set_ylabel("mean rank")
    set_headline(
        figure, "Grade and cost of measures", "line: none is both faster and better; names where there is room"
    )
    axes.grid(alpha=0.25, linewidth=0.5)
    return figure


def _label(
    axes: Any, row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], lines: Any, far: float = 1, **style: Any
) -> bool:
    """Names a measure beside its mark, or `far` times as far from it, at the end of a line, where its name meets no
    other name, no mark and none of the lines; False where there is no room."""
    at, inside = (row["seconds per pair"], row["mean rank"]), axes.get_window_extent()
    marks = axes.transData.transform(np.transpose(_list_seconds_and_ranks(rows)))
    paths = [line.get_path().transformed(axes.transData) for line in lines]
    for across, down in itertools.product((3, -3, 0), (2, -2, 0)):
        if not across and not down:
            continue
        offset = np.multiply((across, down) if across and down else (1.3 * across, 2 * down), far)
        name = axes.annotate(
            row["measure"], at, offset, textcoords="offset points",
            ha={3: "left", 0: "center", -3: "right"}[across], va={2: "bottom", 0: "center", -2: "top"}[down],
            parse_math=False, **style,
        )  # fmt: skip
        box = name.get_window_extent().padded(1)
        names = (other.get_window_extent() for other in axes.texts if other is not name)
        crossed = any(path.intersects_bbox(box, filled=False) for path in paths)
        met = crossed or box.padded(3).count_contains(marks) or any(box.overlaps(other) for other in names)
        if inside.containsx(box.x0) and inside.containsx(box.x1) and not met:
            if far > 1:
                axes.annotate(
                    "", at, offset, textcoords="offset points", arrowprops={**LEADER, "color": style["color"]}
                )
            return True
        name.remove()
    return False


def _list_seconds_and_ranks(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    return [row["seconds per pair"] for row in rows], [row["mean rank"] for row in rows]


# ---- the analysis ----


@analysis(
    studies=("similarity", "grounding"), unasked=lambda planned: planned.study == "grounding", figures=draw_figures
)
def grades(run: Finished, options: Grades, claims: Sequence[Claim]) -> Part:
    cases = read_cases(run, options.metric)
    tests = [each for case in cases for each in grade_all(case)]
    if not any(each.scores for each in tests):
        raise BadInput(
            "no test applies, got a run without two models of the same layers and without three layers of one hook "
            "point; select more layers, or models of several seeds"
        )
    cost = compute_measure_costs(run.results.tables[COSTS]) if COSTS in run.results.tables else {}
    rows = [[*standing, *cost.get(standing.measure, [None] * 3)] for standing in list_standings(tests, run.level)]
    return Part(
        tables={
            "grades": Table(columns=GRADES, rows=list(list_grades(tests, run.level))),
            "measures by grade": Table(columns=MEASURES, rows=rows),
            f"{options.metric} of groups": Table(
                columns=GROUPS, rows=list_group_accuracies(run, cases, options.metric)
            ),
        }
    )
