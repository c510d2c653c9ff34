"""Heatmaps of similarity: all models in one grid, each pair of models, and the standard errors."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.results import read_array, slug

MOST_PAIRS = 60  # pairs of models of all measures up to which each has a figure of its own
WRITTEN = 144  # cells up to which their values are written into them
INCHES_PER_CELL = 0.32
SMALLEST, LARGEST = 2.6, 11.0  # side of the matrix, inches
BAR, BAR_GAP = 0.15, 0.15  # width of the colour bar and its distance, inches
SMALL, ACROSS = 1.9, 4  # side of a small matrix in inches, and how many stand side by side
TICK, TIGHT = 0.15, 0.09  # inches that a layer's name needs, and at least where heads stand together

Job = tuple[str, Callable[[], Any]]


def figures(folder: Path, results: dict[str, Any]) -> Iterator[Job]:
    """The figures of every measure: NAME-all, NAME-all-se, and NAME-MODEL-MODEL where these are not too many (nor
    summed up by groups), or NAME-panels where models are compared with themselves alone; each with a function that
    draws it. Where pairs of models were left out there is no NAME-all; and what another figure shows with its
    sub-networks is not drawn twice."""
    few = sum(len(measure["matrices"]) for measure in results["measures"]) <= MOST_PAIRS and "groups" not in results
    for number, measure in enumerate(results["measures"]):
        matrices = measure["matrices"]
        stem = slug(measure["label"])
        if stem in {slug(other["label"]) for other in results["measures"][:number]}:
            stem += f"-{number}"
        models = list(dict.fromkeys(m["rows"]["model"] for m in matrices))
        shown = results.get("sub_networks", {}).get(measure["label"], {})
        pairs = {frozenset((m["rows"]["model"], m["columns"]["model"])) for m in matrices}
        whole = len(pairs) == len(models) * (len(models) + 1) // 2 and not (shown and len(models) == 1)
        if len(models) > 1 and not shown and all(m["rows"] == m["columns"] for m in matrices):  # each stands alone
            yield f"{stem}-panels", partial(_panels, folder, measure)
            continue
        layers = {m["rows"]["model"]: m["rows"]["layers"] for m in matrices}
        if whole:
            yield f"{stem}-all", partial(_grid, folder, measure, models, layers, "values")
        if whole and matrices[0]["se"] is not None:
            yield f"{stem}-all-se", partial(_grid, folder, measure, models, layers, "se")
        for m in matrices if few and len(models) > 1 else ():
            i, j = (models.index(m[side]["model"]) for side in ("rows", "columns"))
            if i == j and models[i] in shown:
                continue
            name = f"{stem}-{i:02d}-{j:02d}-{slug(models[i])}-{slug(models[j])}"
            yield name, partial(_pair, folder, measure, m, shown)


def _grid(folder: Path, measure: dict, models: list[str], layers: dict[str, list[str]], what: str) -> Any:
    ends = np.cumsum([0, *(len(layers[model]) for model in models)])

    def whole(what: str) -> np.ndarray:
        """The matrices of all pairs of models, joined."""
        joined = np.full((ends[-1], ends[-1]), np.nan)
        for m in measure["matrices"]:
            i, j = (models.index(m[side]["model"]) for side in ("rows", "columns"))
            block = read_array(folder, m[what])
            joined[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] = block
            if measure["card"]["symmetric"]:
                joined[ends[j] : ends[j + 1], ends[i] : ends[i + 1]] = block.T
        return joined

    names = [name for model in models for name in layers[model]]
    p = whole("p") if what == "values" and measure.get("null") else None
    figure, axes = _measured(whole(what), p, names, names, measure, what, ends[:-1].tolist())
    for end in ends[1:-1]:
        axes.axhline(end - 0.5, color="white", linewidth=1.2)
        axes.axvline(end - 0.5, color="white", linewidth=1.2)
    for which in "xy":
        outer_names(axes, which, models, ends, _inches(len(names)), max(map(len, names)))
    return figure


def _panels(folder: Path, measure: dict) -> Any:
    """A small matrix per model, in one scale of colours."""
    from matplotlib.figure import Figure

    matrices, card = measure["matrices"], measure["card"]
    values = [read_array(folder, m["values"]) for m in matrices]
    low, high = colour_range(np.concatenate([x.ravel() for x in values]), card, "values")
    across = min(ACROSS, len(values))
    down = -(-len(values) // across)
    figure = Figure(figsize=(across * SMALL, down * SMALL))
    grid = figure.subplots(down, across, squeeze=False, gridspec_kw={"wspace": 0.12, "hspace": 0.25})
    for axes in grid.flat[len(values) :]:
        axes.remove()
    used = list(grid.flat[: len(values)])
    image: Any = None
    for number, axes in enumerate(used):
        image = axes.imshow(values[number], cmap=colours(card, "values"), vmin=low, vmax=high)
        axes.set_title(matrices[number]["rows"]["model"], fontsize=7, pad=3, parse_math=False)
        names = matrices[number]["rows"]["layers"]
        step = max(1, int(np.ceil(TICK * len(names) / (0.8 * SMALL))))
        at = range(0, len(names), step)
        first, lowest = number % across == 0, number + across >= len(values)
        axes.set_yticks(at, [names[i] for i in at] if first else [], fontsize=5, parse_math=False)
        axes.set_xticks(at, [names[i] for i in at] if lowest else [], fontsize=5, rotation=90, parse_math=False)
        axes.tick_params(length=1.5)
    better = "larger" if card["larger_is_closer"] else "smaller"
    bar = figure.colorbar(image, ax=used, fraction=BAR / (across * SMALL), pad=0.02)
    bar.set_label(f"{card['label']} ({better} is closer)", fontsize=7)
    bar.ax.tick_params(labelsize=6)
    figure.suptitle(
        measure["label"], x=0.125, y=0.9 + 0.25 / (down * SMALL), ha="left", va="bottom", fontsize=9, parse_math=False
    )
    return figure


def _pair(folder: Path, measure: dict, m: dict, ordered: dict[str, Any]) -> Any:
    """ordered: by model, in which order its layers are drawn, where not in that of the file."""
    rows, columns = m["rows"], m["columns"]
    orders = [ordered.get(side["model"], {}).get("order", range(len(side["layers"]))) for side in (rows, columns)]
    cells = np.ix_(*orders)
    values, p = (
        read_array(folder, m["values"])[cells],
        read_array(folder, m["p"])[cells] if measure.get("null") else None,
    )
    down, across = [[side["layers"][i] for i in order] for side, order in zip((rows, columns), orders, strict=True)]
    figure, axes = _measured(values, p, down, across, measure, "values")
    axes.set_ylabel(rows["model"], parse_math=False)
    axes.set_xlabel(columns["model"], parse_math=False)
    return figure


def _measured(
    values: np.ndarray,
    p: np.ndarray | None,
    rows: list[str],
    columns: list[str],
    measure: dict,
    what: str,
    starts: Sequence[int] = (0,),
) -> tuple[Any, Any]:
    """A heatmap of a measure's values or standard errors, in the colours of its card; chance is crossed out."""
    card, estimate = measure["card"], measure["estimate"]
    batches = "1 batch" if estimate["batches"] == 1 else f"{estimate['batches']:,} batches"
    sampled = {
        "full": "one sample",
        "per_batch": f"mean over {batches}",
        "ratio_of_sums": f"HSIC summed over {batches}",
        "moments": "second moments of all rows",
    }
    alpha = 1.0 if p is None else measure["null"]["alpha"]
    chance = np.zeros(values.shape, bool) if p is None else p > alpha
    better = "larger" if card["larger_is_closer"] else "smaller"
    return heatmap(
        values,
        rows,
        columns,
        title=f"{card['label']}{': standard error' if what == 'se' else ''}\n"
        f"{sampled[estimate['kind']]}, {estimate['rows']:,} {estimate.get('unit', 'rows')}"
        f"{f' (×: p > {alpha:g}, uncorrected)' if chance.any() else ''}",
        bar_label="standard error" if what == "se" else f"{card['label']} ({better} is closer)",
        limits=colour_range(values, card, what),
        colours=colours(card, what),
        form="{:.2g}" if what == "se" or card.get("reads") == "outputs" else "{:.2f}",
        starts=starts,
        crossed=chance,
    )


def heatmap(
    values: np.ndarray,
    rows: list[str],
    columns: list[str],
    title: str,
    bar_label: str,
    limits: tuple[float, float],
    colours: str,
    form: str,
    starts: Sequence[int] = (0,),
    crossed: np.ndarray | None = None,
) -> tuple[Any, Any]:
    """A matrix with the names of its rows and columns; values are written into the cells where there are few.

    starts: where tick labels begin anew (the first layer of each model). crossed: cells that are crossed out.
    Returns the figure and its axes.
    """
    from matplotlib.figure import Figure

    side = _inches(max(values.shape))
    height, width = (max(side * n / max(values.shape), 1.2) for n in values.shape)
    # labels stand outside this canvas; the figure is cropped to what is drawn
    figure = Figure(figsize=(width + BAR + BAR_GAP, height))
    axes = figure.add_axes((0, 0, width / (width + BAR + BAR_GAP), 1))
    image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    beside = figure.add_axes((1 - BAR / (width + BAR + BAR_GAP), 0.1, BAR / (width + BAR + BAR_GAP), 0.8))
    figure.colorbar(image, cax=beside).set_label(bar_label)
    for axis, names, inches in ((axes.yaxis, rows, height), (axes.xaxis, columns, width)):
        if TICK * len(names) > inches >= TIGHT * len(heads := together(names)) and len(heads) < len(names):
            axis.set_ticks(*zip(*heads, strict=True), fontsize=6, parse_math=False)
            continue
        step = max(1, int(np.ceil(TICK * len(names) / inches)))
        at = [i for a, b in pairwise([*starts, len(names)]) for i in range(a, max(b - step // 2, a + 1), step)]
        axis.set_ticks(at, [names[i] for i in at], fontsize=7, parse_math=False)
    axes.tick_params(axis="x", rotation=90)
    axes.tick_params(length=2)
    if values.size <= WRITTEN:
        for (i, j), value in np.ndenumerate(values):
            if np.isnan(value):  # a cell without a value, which is crossed out
                continue
            red, green, blue, _ = image.cmap(image.norm(value))
            ink = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
            axes.text(j, i, form.format(value), ha="center", va="center", fontsize=6, color=ink)
    if crossed is not None and crossed.any():
        i, j = crossed.nonzero()
        points = 72 * side / max(values.shape)
        for ink, width in (("white", points / 5), ("black", points / 11)):
            axes.scatter(j, i, marker="x", s=(0.8 * points) ** 2, c=ink, linewidths=min(1.6, width))
    axes.set_title(title, loc="left", parse_math=False)
    return figure, axes


def together(names: Sequence[str]) -> list[tuple[float, str]]:
    """The heads of one hook point under one name, at their middle.

    >>> together(["q@0.h0", "q@0.h1", "resid_post@0"])
    [(0.5, 'q@0'), (2.0, 'resid_post@0')]
    """
    stems = [name.partition(".h")[0] for name in names]
    runs = [list(run) for _, run in groupby(range(len(stems)), key=lambda i: stems[i])]
    return [((run[0] + run[-1]) / 2, stems[run[0]] if len(run) > 1 else names[run[0]]) for run in runs]


def _inches(cells: int) -> float:
    return float(np.clip(INCHES_PER_CELL * cells, SMALLEST, LARGEST))


def outer_names(axes: Any, which: str, models: list[str], ends: np.ndarray, inches: float, layer_name: int) -> None:
    """Model names below (x) or left of (y) the layer names, in the size that the narrowest model leaves room for."""
    room = inches * np.diff(ends) / ends[-1]
    size = float(np.clip(110 * min(r / len(name) for name, r in zip(models, room, strict=True)), 5, 9))
    models = [_shortened(name, max(3, int(110 * r / size))) for name, r in zip(models, room, strict=True)]
    upright = which == "y"
    axis = axes.secondary_yaxis("left") if upright else axes.secondary_xaxis("bottom")
    axis.set_ticks((ends[:-1] + ends[1:] - 1) / 2, models, fontsize=size, parse_math=False, rotation=90 * upright)
    for label in axis.get_yticklabels() if upright else ():
        label.set_verticalalignment("center")
    axis.tick_params(length=0, pad=8 + 4.2 * layer_name)
    axis.spines[:].set_visible(False)


def _shortened(name: str, most: int) -> str:
    """The ends of a name that is too long for its place."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[len(name) - (most - 1) // 2 :]}"


def colour_range(values: np.ndarray, card: dict, what: str) -> tuple[float, float]:
    """From the card's bounds; where a side has none, from the data (0 included)."""
    if what == "se":
        return 0.0, max(float(values.max()), 1e-12)
    # models of one training say nearly the same: on the whole range their differences would not be seen
    low, high = (0.0, None) if card.get("reads") == "outputs" else card["bounds"]
    low = min(0.0, float(values.min())) if low is None else low
    high = max(0.0, float(values.max())) if high is None else high
    return low, high


def colours(card: dict, what: str) -> str:
    """Perceptually uniform; bright is close."""
    if what == "se":
        return "cividis"
    return "viridis" if card["larger_is_closer"] else "viridis_r"
