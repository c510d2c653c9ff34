"""Stitched models: penalties by layer and pair of models, layer by layer for one pair, and the curves of training."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from repsim_cli.plots.heatmap import heatmap

from repsim_cli.plots import DPI
from repsim_cli.results import slug

Job = tuple[str, Callable[[], Any]]
Records = list[dict[str, Any]]
PANEL, ROW = 2.6, 0.19  # width of a panel and height of a bar, inches
METRICS = {
    "loss": ("penalty", "penalty se", "loss added to the tail's own, nats"),
    "accuracy": ("accuracy lost", "accuracy lost se", "accuracy lost against the tail's own"),
    "kl": ("KL", "KL se", "KL of the outputs from the tail's own, nats"),
}
SCRAMBLED = ("(random weights)", "(rows shuffled)")


def figures(folder: Path, results: dict[str, Any]) -> Iterator[Job]:
    """stitching-METRIC-all and -baselines, a panel per layer; of a grid, a heatmap per pair; stitching-curves-all."""
    if "stitching" not in results:
        return
    about, table = results["stitching"], results["tables"]["stitching"]
    records = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    plain = [one for one in records if not one["head"].endswith(SCRAMBLED)]
    others = [one for one in records if one["head"].endswith(SCRAMBLED)]
    metrics = list(dict.fromkeys([about["metric"], *(["accuracy"] if about["predicts"] == "label" else ["kl"])]))
    for metric in metrics:
        if about["grid"]:
            for number, pair in enumerate(dict.fromkeys((one["head"], one["tail"]) for one in records)):
                own = [one for one in records if (one["head"], one["tail"]) == pair]
                yield f"stitching-{metric}-{number:02d}-{slug(pair[0])}-{slug(pair[1])}", partial(_grid, own, metric)
            continue
        for name, group in (("all", plain), ("baselines", others)):
            if group:
                yield f"stitching-{metric}-{name}", partial(_bars, group, about, metric, name)
    curves = [
        one
        for one in results["curves"].values()
        if not one["head"].endswith(SCRAMBLED) and one["head layer"] == one["tail layer"]
    ]
    if curves:
        yield "stitching-curves-all", partial(_curves, curves, about)


def _bars(records: Records, about: Mapping[str, Any], metric: str, name: str) -> Any:
    """A panel per layer, a bar per pair with its standard error; trainings that diverged say so."""
    from matplotlib.figure import Figure

    value, error, label = METRICS[metric]
    layers = list(dict.fromkeys(one["head layer"] for one in records))
    pairs = sorted({(one["head"], one["tail"]) for one in records}, key=lambda pair: _order(pair, about["kinds"]))
    figure = Figure(figsize=(PANEL * len(layers), max(1.6, ROW * len(pairs) + 0.4)), dpi=DPI)
    panels = np.atleast_1d(figure.subplots(1, len(layers), sharey=True, sharex=True, gridspec_kw={"wspace": 0.12}))
    colours = _colours([_direction(pair, about["kinds"]) for pair in pairs])
    for panel, layer in zip(panels, layers, strict=True):
        own = {(one["head"], one["tail"]): one for one in records if one["head layer"] == layer}
        for row, pair in enumerate(pairs):
            one = own.get(pair)
            if one is None:
                continue
            if one[value] is None:
                panel.text(0, row, f" {one['ended']}", fontsize=6, va="center")
                continue
            colour = colours[_direction(pair, about["kinds"])]
            panel.barh(row, one[value], xerr=one[error], color=colour, height=0.75, error_kw={"linewidth": 0.9})
        panel.set_title(layer, loc="left", parse_math=False)
        panel.axvline(0, color="black", linewidth=0.6)
        panel.locator_params(axis="x", nbins=4)
        panel.grid(axis="x", alpha=0.25, linewidth=0.5)
        panel.set_axisbelow(True)
    panels[0].set_yticks(range(len(pairs)), [f"{head} → {tail}" for head, tail in pairs], fontsize=7, parse_math=False)
    panels[0].set_ylim(len(pairs) - 0.4, -0.6)
    panels[len(panels) // 2].set_xlabel(label)
    layer = f"stitch layer {about['layer'].replace('_', ' ')}"
    steps = f", {about['steps']:,} steps" if about["steps"] else ""
    what = "Baselines" if name == "baselines" else "Stitched models"
    figure.suptitle(
        f"{what}: {layer}{steps}; bars: standard error over {about['evaluation_sequences']:,} sequences",
        x=panels[0].get_position().x0,
        y=panels[0].get_position().y1 + 0.34 / figure.get_figheight(),
        ha="left",
        va="bottom",
        fontsize=10,
    )
    if len(colours) > 1:
        handles = [panels[-1].barh([np.nan], [np.nan], color=c, label=word) for word, c in colours.items()]
        panels[-1].legend(
            handles=handles, title="head → tail", fontsize=7, title_fontsize=7, frameon=False, loc="center left",
            bbox_to_anchor=(1.02, 0.5),
        )  # fmt: skip
    return figure


def _plain(head: str) -> str:
    for ending in SCRAMBLED:
        head = head.removesuffix(f" {ending}")
    return head


def _kind(label: str, kinds: Mapping[str, str]) -> str:
    """What the model is, without its depth."""
    return kinds[_plain(label)].split(", ")[0].removesuffix("_ln")


def _direction(pair: tuple[str, str], kinds: Mapping[str, str]) -> str:
    ending = next((f" {word}" for word in SCRAMBLED if pair[0].endswith(word)), "")
    itself = ", itself" if pair[0] == pair[1] else ""
    return f"{_kind(pair[0], kinds)}{ending} → {_kind(pair[1], kinds)}{itself}"


def _order(pair: tuple[str, str], kinds: Mapping[str, str]) -> tuple:
    return (*(_kind(label, kinds) for label in pair), pair[0] != pair[1], pair)


def _colours(names: Sequence[str]) -> dict[str, Any]:
    from matplotlib import colormaps

    order = list(dict.fromkeys(names))
    palette = colormaps["tab20"](np.arange(20)) if len(order) > 10 else colormaps["tab10"](np.arange(10))
    return {name: palette[i % len(palette)] for i, name in enumerate(order)}


def _grid(records: Records, metric: str) -> Any:
    """Rows: after which layer of the head; columns: into which of the tail. Cells without a value are crossed out."""
    value, _, label = METRICS[metric]
    rows, columns = (list(dict.fromkeys(one[side] for one in records)) for side in ("head layer", "tail layer"))
    values = np.full((len(rows), len(columns)), np.nan)
    for one in records:
        if one[value] is not None:
            values[rows.index(one["head layer"]), columns.index(one["tail layer"])] = one[value]
    low, high = min(0.0, float(np.nanmin(values))), max(float(np.nanmax(values)), 1e-9)
    figure, axes = heatmap(
        values,
        rows,
        columns,
        title=f"{records[0]['head']} → {records[0]['tail']}",
        bar_label=label,
        limits=(low, high),
        colours="viridis_r",
        form="{:.2f}",
        crossed=np.isnan(values),
    )
    axes.set_ylabel(f"head: {records[0]['head']}", parse_math=False)
    axes.set_xlabel(f"tail: {records[0]['tail']}", parse_math=False)
    return figure


def _curves(curves: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> Any:
    """Training loss, a panel per layer, coloured by direction."""
    from matplotlib.figure import Figure

    layers = list(dict.fromkeys(one["head layer"] for one in curves))
    figure = Figure(figsize=(PANEL * len(layers), 2.6), dpi=DPI)
    panels = np.atleast_1d(figure.subplots(1, len(layers), sharey=True, gridspec_kw={"wspace": 0.08}))
    ordered = sorted(curves, key=lambda one: _order((one["head"], one["tail"]), about["kinds"]))
    colours = _colours([_direction((one["head"], one["tail"]), about["kinds"]) for one in ordered])
    for panel, layer in zip(panels, layers, strict=True):
        for one in (one for one in ordered if one["head layer"] == layer):
            direction = _direction((one["head"], one["tail"]), about["kinds"])
            panel.plot(one["steps"], one["values"], color=colours[direction], linewidth=0.7, alpha=0.8)
        panel.set_title(layer, loc="left", parse_math=False)
        panel.grid(alpha=0.25, linewidth=0.5)
    panels[0].set_ylabel("training loss, nats")
    panels[len(panels) // 2].set_xlabel(f"step, of {about['tokens_per_step']:,} tokens")
    handles = [panels[-1].plot([], [], color=colour, label=word)[0] for word, colour in colours.items()]
    panels[-1].legend(
        handles=handles, title="head → tail", fontsize=7, title_fontsize=7, frameon=False, loc="center left",
        bbox_to_anchor=(1.02, 0.5),
    )  # fmt: skip
    return figure
