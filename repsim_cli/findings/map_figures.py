"""Heatmaps of all layers of all models: in one, in panels, and of each pair of models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.cluster import hierarchy

from repsim_cli.base.plain import slug
from repsim_cli.base.remedies import say_treatment
from repsim_cli.figures.colours import choose_card_colours, choose_colour_range, write_bar_label
from repsim_cli.figures.heatmap import (
    WRITTEN,
    Chance,
    Panel,
    add_model_names,
    add_strips,
    draw_heatmap,
    draw_small_heatmaps,
    find_matrix_axes,
    name_by_block,
)
from repsim_cli.figures.panels import draw_path, list_models
from repsim_cli.findings import multiples, sub_networks
from repsim_cli.findings.analysis import Finished, Job
from repsim_cli.findings.answering import (
    find_both_directions,
    find_closest_columns,
    find_near_columns,
    say_closest,
)
from repsim_cli.findings.chance import find_chance_mark
from repsim_cli.findings.distances import build_linkage_tree
from repsim_cli.findings.layers import order_layers
from repsim_cli.findings.multiples import MOST_PAIRS
from repsim_cli.findings.sentences import find_least_lead, judge_chance
from repsim_cli.runs.content import DIAGNOSTICS, FEATURE_SHARE, ROWS_SHARE, Matrix, Measured

OF_TRAININGS = {  # by study, what its matrices show, which are of one model: one of each layer, or of each checkpoint
    "convergence": "How alike the checkpoints of a training are, layer by layer",
    "training_view": "How alike the layers of a model are, checkpoint by checkpoint",
}


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """NAME-all of every measure, or NAME-panels where models are compared with themselves alone. On demand, or where
    there are few pairs of models, NAME-MODEL-MODEL of each, and measures-MODEL-MODEL of it under all measures; on
    demand NAME-all-se. What another analysis draws with its sub-networks is not drawn twice."""
    yield from multiples.draw_figures(run, whole)
    drawn_with_layers = sub_networks.are_drawn(run, whole)
    count = sum(len(measured.matrices) for measured in run.results.measures)
    each = (whole or count <= MOST_PAIRS) and not run.groups
    for measured in run.results.measures:
        matrices, label = measured.matrices, measured.label
        models = _list_models(measured)
        alone = drawn_with_layers and len(models) == 1
        complete = _has_all_pairs(measured) and not alone
        if not drawn_with_layers and _are_apart(run, measured):
            yield slug(label, "panels"), partial(_draw_model_panels, run, measured)
            continue
        if complete:
            yield slug(label, "all"), partial(_draw_joint_matrix, run, measured, "values")
        if complete and whole and matrices[0].se is not None:
            yield slug(label, "all", "se"), partial(_draw_joint_matrix, run, measured, "se")
        for matrix in matrices if each and len(models) > 1 else ():
            if drawn_with_layers and matrix.rows == matrix.columns:
                continue
            i, j = (models.index(side.model) for side in (matrix.rows, matrix.columns))
            name = slug(label, f"{i:02d}", f"{j:02d}", models[i], models[j])
            yield name, partial(_draw_pair_map, run, measured, matrix, drawn_with_layers)


def draw_map(run: Finished, measured: Measured) -> Any:
    """Draws all layers under a measure as `draw_figures` does in NAME-all or NAME-panels; where pairs of models are
    lacking, the first pair."""
    if _are_apart(run, measured):
        return _draw_model_panels(run, measured)
    if _has_all_pairs(measured):
        return _draw_joint_matrix(run, measured, "values")
    return _draw_pair_map(run, measured, measured.matrices[0], ordered=False)


def _list_models(measured: Measured) -> list[str]:
    matrices = measured.matrices
    return list(dict.fromkeys([*(each.rows.model for each in matrices), *(each.columns.model for each in matrices)]))


def _has_all_pairs(measured: Measured) -> bool:
    pairs = {frozenset((matrix.rows.model, matrix.columns.model)) for matrix in measured.matrices}
    count = len(_list_models(measured))
    return len(pairs) == count * (count + 1) // 2


def _are_apart(run: Finished, measured: Measured) -> bool:
    """Says whether there are several models, and each is compared with itself alone, or the matrices are of one
    training."""
    several = len(_list_models(measured)) > 1 or run.results.study in OF_TRAININGS
    return several and all(matrix.rows == matrix.columns for matrix in measured.matrices)


def _draw_joint_matrix(run: Finished, measured: Measured, quantity: str) -> Any:
    """The matrices of all pairs of models in one, its layers in the order of the analysis."""
    layers = {matrix.rows.model: matrix.rows.layers for matrix in measured.matrices}
    models = list(layers)
    places = {model: i for i, model in enumerate(models)}
    ends = np.cumsum([0, *map(len, layers.values())])
    larger = measured.card["larger_is_closer"]
    order = run.results.analyses.get("maps", {}).get("options", {}).get("order", "model")

    def join(quantity: str) -> np.ndarray:
        cells = np.full((ends[-1], ends[-1]), np.nan)
        for matrix in measured.matrices:
            i, j = (places[side.model] for side in (matrix.rows, matrix.columns))
            file = getattr(matrix, quantity)
            block = (
                np.full((len(layers[models[i]]), len(layers[models[j]])), np.nan) if file is None else run.array(file)
            )
            cells[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] = block
            if measured.card["symmetric"]:
                cells[ends[j] : ends[j + 1], ends[i] : ends[i + 1]] = np.transpose(block)
        return cells

    raw = join("values")
    at = ORDERS[order](np.diff(ends), raw if larger else -raw)
    cells = np.ix_(at, at)
    everywhere = [(model, name) for model in models for name in layers[model]]
    owners, names = map(list, zip(*(everywhere[i] for i in at), strict=True))
    values = quantity == "values"
    p = join(choose_tests(measured.null)[0])[cells] if values and measured.null else None
    score = join("calibrated")[cells] if values and has_quantity(measured, "calibrated") else None
    level = find_chance_mark(run, measured, raw[cells], owners, owners) if values else None
    shown, said = name_by_block(names)
    mixed = order != "model"
    labels = [f"{model} {name}" for model, name in zip(owners, shown, strict=True)] if mixed else names
    starts = (0,) if mixed else ends[:-1].tolist()
    whole = (raw if values else join(quantity))[cells]
    drawn = DrawnMap(whole, p, score, level, quantity)
    sides = "models" if measured.card.get("reads") == "outputs" else "their layers"
    seen = f"{list_models(models)}: how alike {sides} are"
    if len(models) == 2 and values:
        first, second = (np.arange(ends[k], ends[k + 1]) for k in (0, 1))
        between = raw[np.ix_(first, second)]
        seen = _say_seen(run, measured, (models[0], models[1]), layers[models[0]], layers[models[1]], between)
    figure, _ = _draw_measured(measured, drawn, labels, labels, seen=seen, starts=starts)
    for number, each in enumerate(find_matrix_axes(figure)):
        if mixed:
            each.set_xlabel(", ".join(filter(None, [f"layers by {order}", said])), fontsize=7)
            continue
        for end in ends[1:-1]:
            each.axhline(end - 0.5, color="white", linewidth=1.2)
            each.axvline(end - 0.5, color="white", linewidth=1.2)
        for which in (
            "x" if number and each.get_position().y0 == find_matrix_axes(figure)[0].get_position().y0 else "xy"
        ):
            add_model_names(each, which, models, ends, said)
    if values:
        _diagnose(run, figure, list(zip(owners, names, strict=True)))
    return figure


def order_by_depth(counts: Sequence[int] | np.ndarray, closeness: np.ndarray) -> np.ndarray:
    """Places of all layers by their share of the way through their model. counts: the layers of each model.

    >>> order_by_depth([2, 3], np.eye(5)).tolist()
    [0, 2, 3, 1, 4]
    """
    return np.argsort(np.concatenate([np.linspace(0, 1, count) for count in counts]), kind="stable")


def order_by_cluster(counts: Sequence[int] | np.ndarray, closeness: np.ndarray) -> np.ndarray:
    """Places of all layers as the leaves of a tree of average linkage, neighbours as close as the tree allows. Pairs
    that were not compared are as far apart as any.

    >>> order_by_cluster([4], np.array([[3, 0, 2, 0], [0, 3, 0, 2], [2, 0, 3, 1], [0, 2, 1, 3]])).tolist()
    [0, 2, 3, 1]
    """
    both = (closeness + closeness.T) / 2
    apart = np.nanmax(both) - np.where(np.isnan(both), np.nanmin(both), both)
    np.fill_diagonal(apart, 0)
    return hierarchy.leaves_list(build_linkage_tree(apart))


Order = Literal["model", "depth", "cluster"]
ORDERS: dict[Order, Callable[[Any, np.ndarray], np.ndarray]] = {
    "model": lambda counts, closeness: np.arange(len(closeness)),
    "depth": order_by_depth,
    "cluster": order_by_cluster,
}


def has_quantity(measured: Measured, quantity: str) -> bool:
    return all(getattr(matrix, quantity) is not None for matrix in measured.matrices)


def _diagnose(run: Finished, figure: Any, columns: Sequence[tuple[str, str]]) -> None:
    """Strips above a matrix whose columns are these (model, layer): how much of their variance a single feature, and
    the largest rows, have."""
    table = run.results.tables.get(DIAGNOSTICS)
    if table is None:
        return
    rows = {(row["model"], row["layer"]): row for row in (dict(zip(table.columns, x, strict=True)) for x in table.rows)}
    if not all(layer in rows for layer in columns):
        return
    shares = {
        name: np.array([rows[layer][share] or 0.0 for layer in columns], float)
        for name, share in (("largest feature", FEATURE_SHARE), ("largest 1 % of rows", ROWS_SHARE))
    }
    for axes in find_matrix_axes(figure)[:1]:
        add_strips(axes, shares)


def _draw_model_panels(run: Finished, measured: Measured) -> Any:
    """A small matrix per model, or per layer or checkpoint of a training, which the label of the measure names."""
    matrices = measured.matrices
    squares = [(x.rows.model, run.array(x.values), x.rows.layers, x.rows.layers) for x in matrices]
    _, said = name_by_block([name for matrix in matrices for name in matrix.rows.layers])
    models = [matrix.rows.model for matrix in matrices]
    chance, level = find_chance_mark(run, measured, np.full((len(models), len(models)), np.nan), models, models)
    of = f"{measured.label}, {said}" if said else measured.label
    seen = OF_TRAININGS.get(run.results.study, f"{list_models(models)}: how alike the layers of each are")
    title = "\n".join(filter(None, [seen, of, level]))
    return draw_small_heatmaps(squares, measured.card, title, chance)[0]


def _draw_pair_map(
    run: Finished,
    measured: Measured,
    matrix: Matrix,
    ordered: bool,
) -> Any:
    """Draws the matrix of two models. ordered: layers are in the order of the network, not in that of the file."""
    orders = [
        order_layers(side.layers) if ordered else list(range(len(side.layers)))
        for side in (matrix.rows, matrix.columns)
    ]
    cells = np.ix_(*orders)
    values = run.array(matrix.values)[cells]
    file = getattr(matrix, choose_tests(measured.null)[0]) if measured.null else None
    p = run.array(file)[cells] if file else np.full(values.shape, np.nan) if measured.null else None
    down, across = (
        [side.layers[i] for i in order] for side, order in zip((matrix.rows, matrix.columns), orders, strict=True)
    )
    score = None if matrix.calibrated is None else run.array(matrix.calibrated)[cells]
    models = matrix.rows.model, matrix.columns.model
    level = find_chance_mark(run, measured, values, [models[0]] * len(down), [models[1]] * len(across))
    drawn = DrawnMap(values, p, score, level)
    line, written = [], values.size <= WRITTEN
    seen = f"{models[0]}: how alike its layers are"
    if models[0] != models[1]:
        seen = _say_seen(run, measured, models, down, across, values)
    if models[0] != models[1] and not _judge_pair(run, measured, models):
        line = find_closest_columns(values, measured.larger_is_closer)
        seen += f"\n{'framed' if written else 'line'}: the closest of {models[1]}"
    figure, axes = _draw_measured(measured, drawn, down, across, seen=seen, limits=run.limits(measured))
    draw_path(axes, line, outlined=written)
    _, said = name_by_block([*down, *across])
    axes.set_ylabel(models[0], parse_math=False)
    for each in find_matrix_axes(figure):
        each.set_xlabel(models[1] + (f"\n{said}" if said else ""), parse_math=False)
    _diagnose(run, figure, [(models[1], layer) for layer in across])
    return figure


def _say_seen(
    run: Finished,
    measured: Measured,
    models: tuple[str, str],
    rows: Sequence[str],
    columns: Sequence[str],
    values: np.ndarray,
) -> str:
    """Says which layers of two models answer to each other, or that chance would give as much. values: of these rows
    and columns."""
    closest = find_closest_columns(values, measured.larger_is_closer)
    if by_chance := _judge_pair(run, measured, models):
        return f"{models[0]} and {models[1]} {by_chance}"
    found, near = find_both_directions(measured, run.array, *models), None
    if found and (least := find_least_lead(measured, found[0])) is not None:
        near = find_near_columns(values, measured.larger_is_closer, least)
    return say_closest(models, rows, columns, closest, near)


def _judge_pair(run: Finished, measured: Measured, models: tuple[str, str]) -> str:
    """Says whether two models have nothing in common beyond chance; empty where they have, or that is not known."""
    found = find_both_directions(measured, run.array, *models)
    return judge_chance(measured, found[0]) if found else ""


FAMILY = {"max_t": "family-wise by max-T", "holm": "family-wise by Holm"}
OF = {"map": "per map of two models", "run": "over all maps of the run"}


def choose_tests(null: Mapping[str, Any]) -> tuple[str, str]:
    """Chooses the p values that cross out cells, and says for which cells they are corrected, where the run did so, and
    whether they are not valid."""
    invalid = "; p is not valid, see the warnings" if null.get("not_valid") else ""
    if "family" not in null:
        return "p", f"uncorrected{invalid}"
    return "p_family", f"{FAMILY[null['family']]}, {OF[null.get('family_of', 'map')]}{invalid}"


SAMPLED = {
    "full": "one sample",
    "per_batch": "mean over {}",
    "ratio_of_sums": "HSIC summed over {}",
    "moments": "second moments of all rows",
    "sampled": "sampled rows among all",
}


class DrawnMap(NamedTuple):
    """The values or standard errors (`quantity`) of a measure, their p, by which chance is crossed out, the calibrated
    scores beside them, and the level of chance with what is said of it."""

    values: np.ndarray
    p: np.ndarray | None
    score: np.ndarray | None
    level: tuple[Chance | None, str] | None
    quantity: str = "values"


def _draw_measured(
    measured: Measured,
    drawn: DrawnMap,
    rows: list[str],
    columns: list[str],
    *,
    seen: str,
    starts: Sequence[int] = (0,),
    limits: tuple[float, float] | None = None,
) -> tuple[Any, Any]:
    """A heatmap in the colours of the measure's card. seen: the first line of the title, and what belongs below it.
    limits: of the colours, by default those of these values."""
    values, p, score, level, quantity = drawn
    card, estimate = measured.card, measured.estimate
    batches = "1 batch" if estimate["batches"] == 1 else f"{estimate['batches']:,} batches"
    alpha = measured.null["alpha"] if p is not None and measured.null else 1.0
    chance = np.zeros(values.shape, bool) if p is None else ~(p <= alpha) & np.isfinite(values)
    _, said = name_by_block([*rows, *columns])
    parts = [
        f"{card['label']}{': standard error' if quantity == 'se' else ''}",
        SAMPLED[estimate["kind"]].format(batches),
        f"{estimate['rows']:,} {estimate.get('unit', 'rows')}",
    ]
    treated = say_treatment(estimate.get("remedies", {}))
    crosses = ""
    if measured.null and p is not None:
        unknown = " or not known" if np.isnan(p[chance]).any() else ""
        crossed = f"×: p > {alpha:g}{unknown}" if chance.any() else f"no ×: every p ≤ {alpha:g}"
        crosses = f" ({crossed}, {choose_tests(measured.null)[1]})"
    lines = [
        seen,
        "; ".join(filter(None, [f"{', '.join(parts)}{crosses}", treated, measured.pairs])),
        level[1] if level else "",
        measured.token_alone if quantity == "values" else "",
    ]
    return draw_heatmap(
        values,
        name_by_block(rows)[0] if said else rows,
        name_by_block(columns)[0] if said else columns,
        title="\n".join(filter(None, lines)),
        bar_label="standard error" if quantity == "se" else write_bar_label(card),
        limits=limits or choose_colour_range(values, card, quantity),
        colours=choose_card_colours(card, quantity),
        form="{:.2g}" if quantity == "se" or card.get("reads") == "outputs" else "{:.2f}",
        starts=starts,
        crossed=chance,
        chance=level[0] if level else None,
        beside=None if score is None else Panel(values=score, **_scale_calibrated(score, card)),
    )


def _scale_calibrated(score: np.ndarray, card: Mapping[str, Any]) -> dict[str, Any]:
    """Chooses how calibrated scores are drawn: as shares of the way from chance to the best value, if there is one."""
    best = card["bounds"][1] if card["larger_is_closer"] else card["bounds"][0]
    limits = (0.0, 1.0 if best is not None else float(score[np.isfinite(score)].max(initial=1e-12)))
    return {
        "label": "calibrated score (0: chance)",
        "limits": limits,
        "colours": choose_card_colours({"larger_is_closer": True}, ""),
    }
