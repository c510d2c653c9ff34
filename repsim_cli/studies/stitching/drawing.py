"""Drawings of stitched models: penalties over depth, bars of few layers, maps of pairs of layers, training losses."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from repsim_cli.base.plain import slug
from repsim_cli.figures.colours import choose_colours
from repsim_cli.figures.frame import DPI, add_legend_beside, choose_line_styles
from repsim_cli.figures.heatmap import draw_heatmap, name_by_block
from repsim_cli.figures.lines import UNKNOWN, draw_levels, draw_light_grid, find_shared_levels, mark_gaps, name_lines
from repsim_cli.figures.panels import set_headline, split_into_pages
from repsim_cli.findings.analysis import Finished, Job
from repsim_cli.runs.content import Curve, Results

Records = Sequence[Mapping[str, Any]]
Kinds = Mapping[str, str]
PANEL, ROW = 2.6, 0.16  # width of a panel and height of a bar, inches
BARS, LAYERS = 60, 12  # of a figure at most
NAMED = 10  # pairs of models up to which each has a colour
CURVED = 3  # layers from which on penalties are lines over depth
DEPTH = (4.6, 3.2)  # inches of their panel
NAMED_LAYERS = 14  # along it
METRICS = {
    "loss": ("penalty", "penalty se", "loss added to the tail's own, nats"),
    "accuracy": ("accuracy lost", "accuracy lost se", "accuracy lost against the tail's own"),
    "kl": ("KL", "KL se", "KL of the outputs from the tail's own, nats"),
    "shared": ("shared", "shared se", "share of the tail's rows that the head's explain"),
}
MISLEADS = "works though the rows share almost nothing"

SCRAMBLED = ("(random weights)", "(rows shuffled)", "(answers and noise)")


def read_stitching_records(results: Results) -> list[dict[str, Any]]:
    table = results.tables["stitching"]
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """stitching-METRIC-all and -baselines, lines over depth, or a panel per layer where there are few; of a grid, a
    heatmap per pair; stitching-curves-all."""
    about, records = run.results.about, read_stitching_records(run.results)
    whole_heads = [stitch for stitch in records if not stitch["head"].endswith(SCRAMBLED)]
    baselines = [stitch for stitch in records if stitch["head"].endswith(SCRAMBLED)]
    chosen = run.results.analyses["stitching"]["options"]["metric"]
    shared = ["shared"] if any(stitch.get("shared") is not None for stitch in records) else []
    for metric in dict.fromkeys([chosen, "accuracy" if about["predicts"] == "label" else "kl", *shared]):
        if about["grid"]:
            for number, pair in enumerate(dict.fromkeys((stitch["head"], stitch["tail"]) for stitch in records)):
                cells = [stitch for stitch in records if (stitch["head"], stitch["tail"]) == pair]
                yield slug("stitching", metric, f"{number:02d}", *pair), partial(_draw_layer_grid, cells, metric)
            continue
        for name, group in (("all", whole_heads), ("baselines", baselines)):
            layers = list(dict.fromkeys(stitch["head layer"] for stitch in group))
            if len(layers) >= CURVED:
                yield (
                    f"stitching-{metric}-{name}",
                    partial(
                        _draw_depth_lines,
                        group,
                        about,
                        metric,
                        summarise_random_heads(baselines, metric) if name == "all" else {},
                    ),
                )
                continue
            most = max(1, BARS // max(1, len({(stitch["head"], stitch["tail"]) for stitch in group})))
            for stem, some in split_into_pages(f"stitching-{metric}-{name}", layers, min(most, LAYERS)):
                kept = [stitch for stitch in group if stitch["head layer"] in some]
                yield (
                    stem,
                    partial(_draw_pair_bars, kept, about, metric, name, summarise_random_heads(baselines, metric)),
                )
    curves = [
        curve
        for curve in run.results.curves.values()
        if not curve.about["head"].endswith(SCRAMBLED) and curve.about["head layer"] == curve.about["tail layer"]
    ]
    if curves:
        yield "stitching-curves-all", partial(_draw_training_curves, curves, about)


def summarise_random_heads(baselines: Records, metric: str) -> dict[str, list[float]]:
    """Summarises what heads of random weights lose, by layer: lowest, median and highest."""
    by_layer: dict[str, list[float]] = {}
    for stitch in baselines:
        if stitch["head"].endswith(SCRAMBLED[0]) and stitch[METRICS[metric][0]] is not None:
            by_layer.setdefault(stitch["head layer"], []).append(stitch[METRICS[metric][0]])
    return {layer: [min(x), float(np.median(x)), max(x)] for layer, x in by_layer.items()}


def _draw_pair_bars(
    records: Records, about: Mapping[str, Any], metric: str, name: str, chance: Mapping[str, list[float]]
) -> Any:
    """A panel per layer, a bar per pair with its standard error; trainings that diverged say so. chance: by layer what
    heads of random weights lose."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    value, error, label = METRICS[metric]
    layers = list(dict.fromkeys(stitch["head layer"] for stitch in records))
    pairs = sorted(
        {(stitch["head"], stitch["tail"]) for stitch in records}, key=lambda pair: _sort_pairs(pair, about["kinds"])
    )
    figure = Figure(figsize=(PANEL * len(layers), max(1.6, ROW * len(pairs) + 0.4)), dpi=DPI)
    panels = np.atleast_1d(figure.subplots(1, len(layers), sharey=True, sharex=True, gridspec_kw={"wspace": 0.12}))
    names = _name(pairs, about["kinds"])
    colours = {name: style["color"] for name, style in _assign_line_styles(names.values()).items()}
    for panel, layer in zip(panels, layers, strict=True):
        by_pair = {(stitch["head"], stitch["tail"]): stitch for stitch in records if stitch["head layer"] == layer}
        for row, pair in enumerate(pairs):
            stitch = by_pair.get(pair)
            if stitch is None:
                continue
            if stitch[value] is None:
                panel.text(0, row, f" {stitch['ended']}", fontsize=6, va="center")
                continue
            colour = colours[names[pair]]
            style = {"hatch": "////", "edgecolor": "white"} if _is_marked(stitch, metric) else {}
            panel.barh(
                row, stitch[value], xerr=stitch[error], color=colour, height=0.75, error_kw={"linewidth": 0.9}, **style
            )
        if name != "baselines" and layer in chance:
            draw_levels(panel, {"": chance[layer]}, upright=True)
        panel.set_title(layer, loc="left", parse_math=False)
        panel.axvline(0, color="black", linewidth=0.6)
        panel.xaxis.set_major_locator(MaxNLocator(4, prune="upper"))
        panel.grid(axis="x", alpha=0.25, linewidth=0.5)
        panel.set_axisbelow(True)
    ends = [f"{_say_ending(head) or head} → {tail}" for head, tail in pairs]
    panels[0].set_yticks(range(len(pairs)), ends, fontsize=7, parse_math=False)
    panels[0].set_ylim(len(pairs) - 0.4, -0.6)
    panels[len(panels) // 2].set_xlabel(label)
    what = "Baselines" if name == "baselines" else "Stitched models"
    set_headline(figure, *_say(about, f"{what}: {_describe_quantity(metric)}", "bars: standard error"))
    several = len(colours) < len(pairs)  # each name stands for several bars, which have their own beside them
    handles: list[Any] = [
        panels[-1].barh([np.nan], [np.nan], color=c, label=word) for word, c in colours.items() if several
    ]
    if any(_is_marked(stitch, metric) for stitch in records):
        handles.append(
            panels[-1].barh([np.nan], [np.nan], color="grey", hatch="////", edgecolor="white", label=MISLEADS)
        )
    if name != "baselines":
        style = ":" if chance else " "
        handles += panels[-1].plot([], [], style, color="grey", label="heads of random weights" if chance else UNKNOWN)
    if handles:
        title = "head → tail" if several else None
        add_legend_beside(panels[-1], handles=handles, title=title, title_fontsize=7, bbox_to_anchor=(1.02, 0.5))
    return figure


def _say_ending(head: str) -> str:
    """Says what was done to the weights or rows of a head that is its tail as a baseline; empty for other heads."""
    return next((ending.strip("()") for ending in SCRAMBLED if head.endswith(ending)), "")


def _drop_ending(head: str) -> str:
    return head.removesuffix(f" ({_say_ending(head)})")


def _read_model_kind(label: str, kinds: Mapping[str, str]) -> str:
    """Reads the kind of a model from its description, without its depth."""
    return kinds[_drop_ending(label)].split(", ")[0].removesuffix("_ln")


def _name_direction(pair: tuple[str, str], kinds: Mapping[str, str]) -> str:
    itself = ", itself" if pair[0] == pair[1] else ""
    return f"{_say_ending(pair[0]) or _read_model_kind(pair[0], kinds)} → {_read_model_kind(pair[1], kinds)}{itself}"


def _sort_pairs(pair: tuple[str, str], kinds: Mapping[str, str]) -> tuple[Any, ...]:
    return (*(_read_model_kind(label, kinds) for label in pair), pair[0] != pair[1], pair)


def _assign_line_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A style of lines for each name, the first to come the first of the palette."""
    order = list(dict.fromkeys(names))
    return dict(zip(order, choose_line_styles(len(order)), strict=True))


def _name(pairs: Sequence[tuple[str, str]], kinds: Kinds) -> dict[tuple[str, str], str]:
    """Names each pair: by its models, or by their kinds where there are more pairs than colours."""
    by_kind = {pair: _name_direction(pair, kinds) for pair in pairs}
    if len(pairs) > NAMED and len(set(by_kind.values())) > 2:
        return by_kind
    return {pair: f"{_say_ending(pair[0]) or pair[0]} → {pair[1]}{', itself' * (pair[0] == pair[1])}" for pair in pairs}


def _draw_depth_lines(
    records: Records, about: Mapping[str, Any], metric: str, chance: Mapping[str, list[float]]
) -> Any:
    """The penalty over the layers at which models are stitched, a line per pair with a band of two standard errors to
    each side; trainings that diverged leave gaps. chance: by layer what heads of random weights lose."""
    from matplotlib.figure import Figure

    value, error, label = METRICS[metric]
    pairs = sorted(
        {(each["head"], each["tail"]) for each in records}, key=lambda pair: _sort_pairs(pair, about["kinds"])
    )
    layers = list(dict.fromkeys(stitch["head layer"] for stitch in records))
    names, at = _name(pairs, about["kinds"]), np.arange(len(layers))
    styles, drawn, marked = _assign_line_styles(names.values()), {}, False
    figure = Figure(figsize=DEPTH)
    panel = figure.add_axes((0, 0, 1, 1))
    for pair in pairs:
        found = {each["head layer"]: each for each in records if (each["head"], each["tail"]) == pair}
        middle, spread = (mark_gaps([found.get(layer, {}).get(key) for layer in layers]) for key in (value, error))
        style = styles[names[pair]]
        panel.fill_between(at, middle - 2 * spread, middle + 2 * spread, color=style["color"], alpha=0.2, linewidth=0)
        (line,) = panel.plot(at, middle, **style, markersize=3.5, linewidth=1.3)
        drawn.setdefault(names[pair], line)
        misleads = np.array([_is_marked(found.get(layer, {}), metric) for layer in layers])
        marked |= misleads.any()
        panel.plot(at[misleads], middle[misleads], "o", mfc="white", mec=style["color"], markersize=5, zorder=3)
    for name, line in drawn.items():
        line.set_label(name)
    if random := [chance[layer] for layer in layers if layer in chance]:
        low, middle, high = np.array(random).T
        there = [i for i, layer in enumerate(layers) if layer in chance]
        panel.fill_between(there, low, high, color="grey", alpha=0.12, linewidth=0)
        panel.plot(there, middle, ":", color="grey", linewidth=1.2, label="heads of random weights")
    shown, said = name_by_block(layers)
    step = -(-len(layers) // NAMED_LAYERS)
    panel.set_xticks(at[::step], shown[::step], fontsize=7, rotation=0 if said else 90, parse_math=False)
    panel.set_xlabel(f"stitched after: {said}" if said else "stitched after", fontsize=8, parse_math=False)
    panel.set_ylabel(label, fontsize=8)
    panel.axhline(0, color="black", linewidth=0.6)
    if marked:
        panel.text(0, 1.01, f"○ {MISLEADS}", transform=panel.transAxes, fontsize=7, va="bottom")
    draw_light_grid(panel)
    name_lines(panel, list(drawn.values()))
    set_headline(
        figure, *_say(about, f"Stitched models: {_describe_quantity(metric)}, by depth", "bands: two standard errors")
    )
    return figure


def _is_marked(stitch: Mapping[str, Any], metric: str) -> bool:
    return stitch.get("misleads") == "yes" and metric != "shared"


def _describe_quantity(metric: str) -> str:
    return "what rows share beyond the answers" if metric == "shared" else "what each loses"


def _say(about: Mapping[str, Any], seen: str, shown: str) -> tuple[str, str]:
    """The title of penalties: what is seen, and how it was made."""
    steps = f", {about['steps']:,} steps" if about["steps"] else ""
    layer = f"stitch layer {about['layer'].replace('_', ' ')}{steps}"
    unit = "documents" if "evaluation_documents" in about else "sequences"  # of a run of before
    return seen, f"{layer}; {shown}, over {about[f'evaluation_{unit}']:,} {unit}"


def _draw_layer_grid(records: Records, metric: str) -> Any:
    """Rows: after which layer of the head; columns: into which of the tail. Cells without a value are crossed out."""
    value, _, label = METRICS[metric]
    rows, columns = (list(dict.fromkeys(stitch[side] for stitch in records)) for side in ("head layer", "tail layer"))
    _, said = name_by_block([*rows, *columns])
    values = np.full((len(rows), len(columns)), np.nan)
    for stitch in records:
        if stitch[value] is not None:
            values[rows.index(stitch["head layer"]), columns.index(stitch["tail layer"])] = stitch[value]
    low, high = min(0.0, float(np.nanmin(values))), max(float(np.nanmax(values)), 1e-9)
    figure, axes = draw_heatmap(
        values,
        name_by_block(rows)[0] if said else rows,
        name_by_block(columns)[0] if said else columns,
        title=f"{records[0]['head']} → {records[0]['tail']}",
        bar_label=label,
        limits=(low, high),
        colours=choose_colours(small_is_bright=True),
        form="{:.2f}",
        crossed=np.isnan(values),
    )
    for set_label, part in ((axes.set_ylabel, "head"), (axes.set_xlabel, "tail")):
        set_label(f"{part}: {records[0][part]}" + (f"\n{said}" if said else ""), parse_math=False)
    return figure


def _draw_training_curves(curves: Sequence[Curve], about: Mapping[str, Any]) -> Any:
    """Training loss, a panel per layer, coloured by pair; by kinds of models where there are more pairs than colours
    and several kinds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    def ways(curve: Curve) -> tuple[str, str]:
        return curve.about["head"], curve.about["tail"]

    layers = list(dict.fromkeys(curve.about["head layer"] for curve in curves))
    figure = Figure(figsize=(PANEL * len(layers), 2.6), dpi=DPI)
    panels = np.atleast_1d(figure.subplots(1, len(layers), sharey=True, gridspec_kw={"wspace": 0.08}))
    ordered = sorted(curves, key=lambda curve: _sort_pairs(ways(curve), about["kinds"]))
    names = _name(list(dict.fromkeys(map(ways, ordered))), about["kinds"])
    styles = _assign_line_styles(names.values())
    for panel, layer in zip(panels, layers, strict=True):
        there = [curve for curve in ordered if curve.about["head layer"] == layer]
        draw_levels(panel, find_shared_levels(there))
        for curve in there:
            style = {**styles[names[ways(curve)]], "marker": None}
            panel.plot(curve.at, mark_gaps(curve.lines["loss"]), **style, linewidth=0.9, alpha=0.8)
        panel.xaxis.set_major_locator(MaxNLocator(4, prune="upper", integer=True))
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.set_title(layer, loc="left", parse_math=False)
        panel.grid(alpha=0.25, linewidth=0.5)
    panels[0].set_ylabel("training loss, nats")
    panels[len(panels) // 2].set_xlabel(f"step, of {about['tokens_per_step']:,} tokens")
    levels = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    handles = [panels[-1].plot([], [], **{**style, "marker": None}, label=word)[0] for word, style in styles.items()]
    handles += levels.values()
    add_legend_beside(panels[-1], handles=handles, title="head → tail", title_fontsize=7, ncols=1 + len(styles) // 16)
    set_headline(figure, "How stitched models learn, by the layer after which they are stitched")
    return figure
