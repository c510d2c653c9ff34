"""Stitched models: penalties by layer and pair of models, layer by layer for one pair, and the curves of training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from repsim_cli.base.plain import slug
from repsim_cli.figures.frame import DPI, legend_beside
from repsim_cli.figures.heatmap import by_block, chosen, heatmap
from repsim_cli.figures.lines import UNKNOWN, draw_levels, gaps, shared_levels
from repsim_cli.figures.panels import pages
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import FEWEST, all_of, by_units
from repsim_cli.runs.content import Curve, Results, Table

Records = Sequence[Mapping[str, Any]]
Kinds = Mapping[str, str]
Direction = tuple[str, str]  # the kinds of head and tail
PAPER = "Brown et al. 2023"
DIRECTIONS = ["layer", "from", "into", "models", "pairs", "penalty", "se over pairs"]
PANEL, ROW = 2.6, 0.16  # width of a panel and height of a bar, inches
BARS, LAYERS = 60, 12  # of a figure at most
NAMED = 10  # pairs of models up to which each has a colour
METRICS = {
    "loss": ("penalty", "penalty se", "loss added to the tail's own, nats"),
    "accuracy": ("accuracy lost", "accuracy lost se", "accuracy lost against the tail's own"),
    "kl": ("KL", "KL se", "KL of the outputs from the tail's own, nats"),
}
SCRAMBLED = ("(random weights)", "(rows shuffled)")
BOTH_WAYS = [
    "layer",
    "model",
    "other",
    "other into model",
    "model into other",
    "model into itself",
    "other into itself",
]


@dataclass(frozen=True, kw_only=True)
class Stitching:
    """Penalties of stitched models by layer and pair, and averaged over pairs of models of two kinds.

    metric: which loss the figures show, beside the accuracy of classifiers or the KL of language models.
    """

    metric: Literal["loss", "accuracy", "kl"] = "loss"


def records_of(results: Results) -> list[dict[str, Any]]:
    table = results.tables["stitching"]
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def directions(records: Records, kinds: Kinds) -> Table:
    """Penalties of stitches at equal layers, averaged over the pairs of models of two kinds.

    records: as of the study stitching. kinds: of the models by label. A model before itself is counted apart.
    """
    rows = []
    for key, pairs in _by_direction(records, kinds).items():
        values = [penalty for penalty, _ in pairs]
        error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
        rows.append([*key, len(values), float(np.mean(values)), error])
    return Table(columns=DIRECTIONS, rows=rows)


def both_ways(records: Records) -> Table:
    """For every two models and layer, which share of the loss that a head of random weights adds is recovered by the
    other model as the head, in both ways, and by the model itself.

    1: nothing is lost; 0: the head is no better than one that was never trained. None where there is no such stitch, or
    random weights add nothing.
    """
    equal = [stitch for stitch in records if stitch["head layer"] == stitch["tail layer"]]
    penalties = {(stitch["head"], stitch["tail"], stitch["head layer"]): stitch["penalty"] for stitch in equal}

    def recovered(head: str, tail: str, layer: str) -> float | None:
        lost, most = (penalties.get((name, tail, layer)) for name in (head, f"{tail} {SCRAMBLED[0]}"))
        return None if lost is None or most is None or most <= 0 else 1 - lost / most

    plain = [way for way in penalties if not way[0].endswith(SCRAMBLED) and way[0] != way[1]]
    rows = [
        [layer, a, b, recovered(b, a, layer), recovered(a, b, layer), recovered(a, a, layer), recovered(b, b, layer)]
        for layer, a, b in dict.fromkeys((layer, *sorted((head, tail))) for head, tail, layer in plain)
    ]
    return Table(columns=BOTH_WAYS, rows=[row for row in rows if any(share is not None for share in row[3:])])


def _by_direction(records: Records, kinds: Kinds) -> dict[tuple[str, str, str, str], list[tuple[float, float]]]:
    """By layer, kind of head, kind of tail and whether these are one model: penalty and its error, of every pair."""
    by_direction: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for stitch in records:
        if stitch["head"] in kinds and stitch["head layer"] == stitch["tail layer"] and stitch["penalty"] is not None:
            same = "the same" if stitch["head"] == stitch["tail"] else "different"
            key = (stitch["head layer"], kinds[stitch["head"]], kinds[stitch["tail"]], same)
            by_direction.setdefault(key, []).append((stitch["penalty"], stitch["penalty se"]))
    return by_direction


@claim(
    f"{PAPER}, figure 1",
    statistic="penalty of solu -> gelu minus that of gelu -> solu: mean over layers and pairs of equal depth",
    threshold=0.0,
    unit="pair of models",
)
def solu_into_gelu_costs_more(records: Records, kinds: Kinds) -> Weighed | Untestable:
    """At every layer a SoLU head before a GELU tail costs more than a GELU head before a SoLU tail."""
    return _gaps(records, kinds, [(("solu", "gelu"), ("gelu", "solu"))])


@claim(
    f"{PAPER}, section 3",
    statistic="penalty of gelu to the same gelu minus that of solu to the same solu: mean over layers and pairs of "
    "equal depth",
    threshold=0.0,
    unit="pair of models",
)
def solu_stitches_better_to_itself(records: Records, kinds: Kinds) -> Weighed | Untestable:
    """SoLU models stitch better to themselves than GELU models do."""
    return _gaps(records, kinds, [(("gelu", "gelu"), ("solu", "solu"))])


@claim(
    f"{PAPER}, section 3",
    statistic="penalty between solu and gelu minus that of gelu to the same gelu: mean over layers and over pairs of "
    "equal depth, the lower of both ways",
    threshold=0.0,
    unit="pair of models",
)
def crossing_costs_more_than_gelu_to_itself(records: Records, kinds: Kinds) -> Weighed | Untestable:
    """Both directions between SoLU and GELU cost more than a GELU model to itself."""
    return _gaps(records, kinds, [(("solu", "gelu"), ("gelu", "gelu")), (("gelu", "solu"), ("gelu", "gelu"))])


def _gaps(records: Records, kinds: Kinds, wanted: Sequence[tuple[Direction, Direction]]) -> Weighed | Untestable:
    """Differences of the penalties of two directions, mean over layers, of every pair of a SoLU and a GELU model of
    equal depth, each model in one pair. All wanted ones must lie above 0; the value is the lowest."""
    penalties: dict[tuple[str, str], list[float]] = {}
    for stitch in records:
        equal = stitch["head layer"] == stitch["tail layer"] != "embed"
        if equal and stitch["penalty"] is not None and stitch["head"] in kinds:
            penalties.setdefault((stitch["head"], stitch["tail"]), []).append(stitch["penalty"])
    gaps: list[list[float]] = [[] for _ in wanted]
    for pair in _pairs(kinds):
        for found, (more, less) in zip(gaps, wanted, strict=True):
            sides = [penalties.get((pair[head], pair[tail])) for head, tail in (more, less)]
            if all(sides):
                found.append(float(np.mean(sides[0] or [])) - float(np.mean(sides[1] or [])))
    if not all(gaps):
        return Untestable(f"needs {FEWEST} pairs of a SoLU and a GELU model of equal depth, stitched both ways")
    means = [float(np.mean(found)) for found in gaps]
    parts = [by_units(found, 0.0, "pair of models") for found in gaps]
    return Weighed(min(means), replace(all_of(parts), se=parts[int(np.argmin(means))].se))


def _pairs(kinds: Kinds) -> list[dict[str, str]]:
    """The models by their activation, `gelu` and `solu`, of every pair of equal depth: the first of each kind, the
    second of each, and so on."""
    by_depth: dict[str, dict[str, list[str]]] = {}
    for label, kind in kinds.items():
        name, depth = kind.split(", ")
        by_depth.setdefault(depth, {}).setdefault(name.split("_")[0], []).append(label)
    return [
        {"gelu": gelu, "solu": solu}
        for of in by_depth.values()
        for gelu, solu in zip(of.get("gelu", []), of.get("solu", []), strict=False)
    ]


def figures(run: Finished, whole: bool) -> Iterator[Job]:
    """stitching-METRIC-all and -baselines, a panel per layer; of a grid, a heatmap per pair; stitching-curves-all."""
    about, records = run.results.about, records_of(run.results)
    plain = [stitch for stitch in records if not stitch["head"].endswith(SCRAMBLED)]
    baselines = [stitch for stitch in records if stitch["head"].endswith(SCRAMBLED)]
    chosen = run.results.analyses["stitching"]["options"]["metric"]
    for metric in dict.fromkeys([chosen, "accuracy" if about["predicts"] == "label" else "kl"]):
        if about["grid"]:
            for number, pair in enumerate(dict.fromkeys((stitch["head"], stitch["tail"]) for stitch in records)):
                cells = [stitch for stitch in records if (stitch["head"], stitch["tail"]) == pair]
                yield slug("stitching", metric, f"{number:02d}", *pair), partial(_grid, cells, metric)
            continue
        for name, group in (("all", plain), ("baselines", baselines)):
            layers = list(dict.fromkeys(stitch["head layer"] for stitch in group))
            most = max(1, BARS // max(1, len({(stitch["head"], stitch["tail"]) for stitch in group})))
            for stem, some in pages(f"stitching-{metric}-{name}", layers, min(most, LAYERS)):
                kept = [stitch for stitch in group if stitch["head layer"] in some]
                yield stem, partial(_bars, kept, about, metric, name, random_heads(baselines, metric))
    curves = [
        curve
        for curve in run.results.curves.values()
        if not curve.about["head"].endswith(SCRAMBLED) and curve.about["head layer"] == curve.about["tail layer"]
    ]
    if curves:
        yield "stitching-curves-all", partial(_curves, curves, about)


def random_heads(baselines: Records, metric: str) -> dict[str, list[float]]:
    """What heads of random weights lose, by layer: lowest, median and highest."""
    by_layer: dict[str, list[float]] = {}
    for stitch in baselines:
        if stitch["head"].endswith(SCRAMBLED[0]) and stitch[METRICS[metric][0]] is not None:
            by_layer.setdefault(stitch["head layer"], []).append(stitch[METRICS[metric][0]])
    return {layer: [min(x), float(np.median(x)), max(x)] for layer, x in by_layer.items()}


def _bars(records: Records, about: Mapping[str, Any], metric: str, name: str, chance: Mapping[str, list[float]]) -> Any:
    """A panel per layer, a bar per pair with its standard error; trainings that diverged say so. chance: by layer what
    heads of random weights lose."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    value, error, label = METRICS[metric]
    layers = list(dict.fromkeys(stitch["head layer"] for stitch in records))
    pairs = sorted(
        {(stitch["head"], stitch["tail"]) for stitch in records}, key=lambda pair: _order(pair, about["kinds"])
    )
    figure = Figure(figsize=(PANEL * len(layers), max(1.6, ROW * len(pairs) + 0.4)), dpi=DPI)
    panels = np.atleast_1d(figure.subplots(1, len(layers), sharey=True, sharex=True, gridspec_kw={"wspace": 0.12}))
    colours = _colours([_direction(pair, about["kinds"]) for pair in pairs])
    for panel, layer in zip(panels, layers, strict=True):
        by_pair = {(stitch["head"], stitch["tail"]): stitch for stitch in records if stitch["head layer"] == layer}
        for row, pair in enumerate(pairs):
            stitch = by_pair.get(pair)
            if stitch is None:
                continue
            if stitch[value] is None:
                panel.text(0, row, f" {stitch['ended']}", fontsize=6, va="center")
                continue
            colour = colours[_direction(pair, about["kinds"])]
            panel.barh(row, stitch[value], xerr=stitch[error], color=colour, height=0.75, error_kw={"linewidth": 0.9})
        if name != "baselines" and layer in chance:
            draw_levels(panel, {"": chance[layer]}, upright=True)
        panel.set_title(layer, loc="left", parse_math=False)
        panel.axvline(0, color="black", linewidth=0.6)
        panel.xaxis.set_major_locator(MaxNLocator(4, prune="upper"))
        panel.grid(axis="x", alpha=0.25, linewidth=0.5)
        panel.set_axisbelow(True)
    names = [f"{_ending(head) or head} → {tail}" for head, tail in pairs]
    panels[0].set_yticks(range(len(pairs)), names, fontsize=7, parse_math=False)
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
    handles = [panels[-1].barh([np.nan], [np.nan], color=c, label=word) for word, c in colours.items()]
    if name != "baselines":
        style = ":" if chance else " "
        handles += panels[-1].plot([], [], style, color="grey", label="heads of random weights" if chance else UNKNOWN)
    legend_beside(panels[-1], handles=handles, title="head → tail", title_fontsize=7, bbox_to_anchor=(1.02, 0.5))
    return figure


def _ending(head: str) -> str:
    """What was done to the weights or rows of a head that is a baseline, the same model as its tail; else nothing."""
    return next((ending.strip("()") for ending in SCRAMBLED if head.endswith(ending)), "")


def _plain(head: str) -> str:
    return head.removesuffix(f" ({_ending(head)})")


def _kind(label: str, kinds: Mapping[str, str]) -> str:
    """What the model is, without its depth."""
    return kinds[_plain(label)].split(", ")[0].removesuffix("_ln")


def _direction(pair: tuple[str, str], kinds: Mapping[str, str]) -> str:
    itself = ", itself" if pair[0] == pair[1] else ""
    return f"{_ending(pair[0]) or _kind(pair[0], kinds)} → {_kind(pair[1], kinds)}{itself}"


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
    rows, columns = (list(dict.fromkeys(stitch[side] for stitch in records)) for side in ("head layer", "tail layer"))
    _, said = by_block([*rows, *columns])
    values = np.full((len(rows), len(columns)), np.nan)
    for stitch in records:
        if stitch[value] is not None:
            values[rows.index(stitch["head layer"]), columns.index(stitch["tail layer"])] = stitch[value]
    low, high = min(0.0, float(np.nanmin(values))), max(float(np.nanmax(values)), 1e-9)
    figure, axes = heatmap(
        values,
        by_block(rows)[0] if said else rows,
        by_block(columns)[0] if said else columns,
        title=f"{records[0]['head']} → {records[0]['tail']}",
        bar_label=label,
        limits=(low, high),
        colours=chosen(small_is_bright=True),
        form="{:.2f}",
        crossed=np.isnan(values),
    )
    for set_label, part in ((axes.set_ylabel, "head"), (axes.set_xlabel, "tail")):
        set_label(f"{part}: {records[0][part]}" + (f"\n{said}" if said else ""), parse_math=False)
    return figure


def _curves(curves: Sequence[Curve], about: Mapping[str, Any]) -> Any:
    """Training loss, a panel per layer, coloured by pair; by kinds of models where there are more pairs than colours
    and several kinds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    def ways(curve: Curve) -> tuple[str, str]:
        return curve.about["head"], curve.about["tail"]

    layers = list(dict.fromkeys(curve.about["head layer"] for curve in curves))
    figure = Figure(figsize=(PANEL * len(layers), 2.6), dpi=DPI)
    panels = np.atleast_1d(figure.subplots(1, len(layers), sharey=True, gridspec_kw={"wspace": 0.08}))
    ordered = sorted(curves, key=lambda curve: _order(ways(curve), about["kinds"]))
    kinds = {ways(curve): _direction(ways(curve), about["kinds"]) for curve in ordered}
    by_kind = len(kinds) > NAMED and len(set(kinds.values())) > 2
    names = {pair: kind if by_kind else f"{pair[0]} → {pair[1]}" for pair, kind in kinds.items()}
    colours = _colours(list(names.values()))
    for panel, layer in zip(panels, layers, strict=True):
        there = [curve for curve in ordered if curve.about["head layer"] == layer]
        draw_levels(panel, shared_levels(there))
        for curve in there:
            colour = colours[names[ways(curve)]]
            panel.plot(curve.at, gaps(curve.lines["loss"]), color=colour, linewidth=0.9, alpha=0.8)
        panel.xaxis.set_major_locator(MaxNLocator(4, prune="upper", integer=True))
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.set_title(layer, loc="left", parse_math=False)
        panel.grid(alpha=0.25, linewidth=0.5)
    panels[0].set_ylabel("training loss, nats")
    panels[len(panels) // 2].set_xlabel(f"step, of {about['tokens_per_step']:,} tokens")
    levels = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    handles = [panels[-1].plot([], [], color=colour, label=word)[0] for word, colour in colours.items()]
    handles += levels.values()
    legend_beside(panels[-1], handles=handles, title="head → tail", title_fontsize=7, ncols=1 + len(colours) // 16)
    return figure


@analysis(studies=("stitching",), unasked=lambda planned: not planned.groups, figures=figures)
def stitching(run: Finished, options: Stitching, claims: Sequence[Claim]) -> Part:
    records, kinds = records_of(run.results), run.results.about["kinds"]
    verdicts = [each.verdict("stitching penalty", records, kinds) for each in claims]
    tables = {"directions": directions(records, kinds)}
    if (recovered := both_ways(records)).rows:
        tables["recovered both ways"] = recovered
    return Part(tables=tables, claims=verdicts)
