"""Groups of models: means by depth with bands, distances by kind of pair, and the models in the order of their tree."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from repsim_cli.plots.agreement import add_tree
from repsim_cli.plots.heatmap import heatmap

from repsim_cli.results import read_array, slug

Curves = list[dict[str, Any]]
PANEL = (4.2, 3.0)  # inches
LATE = 0.75  # share of the blocks beyond which the figure is shaded
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "os^Dv<"
VIOLIN = 8  # pairs from which a violin says more than the points


def figures(folder: Path, results: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """QUANTITY-POINT-groups; and of each distance NAME-distances and NAME-models."""
    curves = [one for one in results["curves"].values() if isinstance(one, dict) and "pairs_of" in one]
    for quantity, point in dict.fromkeys((one["quantity"], one["point"]) for one in curves):
        own = [one for one in curves if (one["quantity"], one["point"]) == (quantity, point)]
        yield f"{slug(quantity)}-{slug(point)}-groups", partial(_by_depth, own)
    for number, (name, found) in enumerate(results.get("distances", {}).items()):
        stem = f"{slug(name)}-{number}" if number else slug(name)
        yield f"{stem}-distances", partial(_distances, name, found)
        yield f"{stem}-models", partial(_models, folder, name, found)


def _by_depth(curves: Curves) -> Any:
    """A line and a band over models for each kind of pair; single pairs where there is no band."""
    from matplotlib.figure import Figure

    first = curves[0]
    figure = Figure(figsize=PANEL)
    axes = figure.add_axes((0, 0, 1, 1))
    at = np.arange(len(first["layers"]))
    late = [i for i, share in enumerate(first["shares"]) if share > LATE]
    if late:
        axes.axvspan(late[0] - 0.5, at[-1] + 0.5, color="0.94", linewidth=0)
        axes.text(
            at[-1] + 0.42,
            0.02,
            "beyond 75 %",
            ha="right",
            fontsize=7,
            color="0.4",
            transform=axes.get_xaxis_transform(),
        )
    for one, colour, marker in zip(
        curves, _repeated(COLOURS, len(curves)), _repeated(MARKERS, len(curves)), strict=True
    ):
        pairs = len(one["models"])
        label = f"{' – '.join(one['pairs_of'])} ({pairs} {'pair' if pairs == 1 else 'pairs'})"
        axes.plot(at, one["mean"], color=colour, marker=marker, markersize=4, linewidth=1.6, label=label, zorder=3)
        if one["low"] is not None:
            axes.fill_between(at, one["low"], one["high"], color=colour, alpha=0.15, linewidth=0)
            for edge in ("low", "high"):
                axes.plot(at, one[edge], color=colour, alpha=0.6, linewidth=0.6)
        else:
            axes.plot(at, np.transpose(one["values"]), color=colour, alpha=0.3, linewidth=0.6)
    axes.set_xlim(-0.5, at[-1] + 0.5)
    step = -(-len(at) // 24)
    axes.set_xticks(at[::step], [_short(name) for name in first["layers"][::step]], fontsize=8)
    axes.set_xlabel("block" if "@" in first["layers"][0] else "layer")
    axes.set_ylabel(first["label"])
    axes.grid(axis="y", alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    bands = any(one["low"] is not None for one in curves)
    said = (
        f"\nmean over pairs, {100 * first['level']:.0f} % bands from draws of models" if bands else "\nmean over pairs"
    )
    axes.set_title(f"{first['quantity']}, {first['point']}, by groups of models{said}", loc="left", parse_math=False)
    return figure


def _distances(name: str, found: dict[str, Any]) -> Any:
    """Box, violin and the points of every kind of pair."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 + 1.2 * len(found["pairs"]), PANEL[1]))
    axes = figure.add_axes((0, 0, 1, 1))
    rng = np.random.default_rng(0)  # points beside each other, the same in every drawing
    for place, (pairs, colour) in enumerate(
        zip(found["pairs"].values(), _repeated(COLOURS, len(found["pairs"])), strict=True)
    ):
        values = np.array(pairs["values"])
        if len(values) >= VIOLIN and np.ptp(values):
            drawn: Any = axes.violinplot(values, [place], widths=0.8, showextrema=False)
            drawn["bodies"][0].set(facecolor=colour, alpha=0.2)
        axes.boxplot(
            values,
            positions=[place],
            widths=0.28,
            showfliers=False,
            medianprops={"color": "black", "linewidth": 1.4},
            boxprops={"color": "0.3"},
            whiskerprops={"color": "0.3"},
            capprops={"color": "0.3"},
        )
        aside = rng.uniform(-0.1, 0.1, len(values))
        axes.plot(place + aside, values, "o", color=colour, markersize=3.5, alpha=0.65, markeredgewidth=0, zorder=3)
    names = [
        f"{kind.replace('-', ' –' + chr(10), 1)}\n{len(pairs['values'])} pairs"
        for kind, pairs in found["pairs"].items()
    ]
    axes.set_xticks(range(len(names)), names, fontsize=8, parse_math=False)
    axes.set_ylabel(f"distance\n(root of the sum over layers of {found['label']}²)", fontsize=8)
    axes.grid(axis="y", alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"Distances between models\n{name}", loc="left", parse_math=False)
    return figure


def _models(folder: Path, name: str, found: dict[str, Any]) -> Any:
    """The matrix of distances in the order of the tree's leaves; names in the colours of their groups."""
    from scipy.cluster.hierarchy import leaves_list

    linkage = read_array(folder, found["linkage"])
    order = leaves_list(linkage)
    values = read_array(folder, found["values"])[np.ix_(order, order)]
    names = [found["models"][i] for i in order]
    agreement = [f"{method} {one['value']:.2f} (p = {one['p']:.2g})" for method, one in found["agreement"].items()]
    apart = values[~np.eye(len(values), dtype=bool)]
    figure, axes = heatmap(
        values,
        names,
        names,
        f"Distances between models: {name}\nclusters against groups, adjusted Rand:\n{', '.join(agreement)}",
        "distance (smaller is closer)",
        (float(apart.min()), float(apart.max())),
        "viridis_r",
        "{:.2f}",
    )
    colours = dict(zip(found["groups"], _repeated(COLOURS[::2] + COLOURS[1::2], len(found["groups"])), strict=True))
    of = {model: group for group, models in found["groups"].items() for model in models}
    for axis in (axes.xaxis, axes.yaxis):
        for label in axis.get_ticklabels():
            label.set_color(colours[of[label.get_text()]])
    tree = add_tree(figure, axes, linkage, "distance")
    tree.set_xlim(0.9 * linkage[0, 2], None)
    height = figure.get_size_inches()[1]
    for i, (group, colour) in enumerate(colours.items()):
        tree.text(
            0,
            -(0.55 + 0.18 * i) / height,
            f"■ {group}",
            color=colour,
            fontsize=8,
            va="top",
            parse_math=False,
            transform=tree.transAxes,
        )
    return figure


def _repeated(values: Sequence[str], count: int) -> list[str]:
    return [values[i % len(values)] for i in range(count)]


def _short(layer: str) -> str:
    """`3` of `mlp_out@3`."""
    return layer.rpartition("@")[2]
