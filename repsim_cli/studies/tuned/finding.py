"""What differs between models and the base that they were made from: by layer, and in what they predict."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from repsim_cli.base.plain import join_into_ranges, name_blocks, write_percent
from repsim_cli.figures.colours import choose_colours
from repsim_cli.figures.frame import COLOURS, add_legend_beside, choose_line_styles
from repsim_cli.figures.heatmap import draw_heatmap, name_by_block
from repsim_cli.figures.lines import PANEL, draw_light_grid, list_layer_figures, mark_gaps
from repsim_cli.figures.panels import list_models, make_panels, set_headline, split_into_pages
from repsim_cli.findings.analysis import FEW, Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.runs.content import (
    CARRIED,
    COSINE,
    DIRECTIONS,
    KL,
    NEXT,
    OF_BLOCKS,
    OF_BLOCKS_COLUMNS,
    OF_WEIGHTS,
    OWN,
    RELATIVE,
    WHERE,
    Axis,
    Band,
    Curve,
    Matrix,
    Numbers,
    Table,
)

BANDS = {"half of the tokens": (25, 75), "nine tenths": (5, 95)}
QUANTILES = (50, 90, 99)
OUTPUTS = [
    "model",
    "tokens",
    "mean KL, nats",
    *(f"{percent} %" for percent in QUANTILES),
    "largest",
    "other next token",
]
BINS = 60
LEAST = 1e-8  # nats that the histogram shows; smaller divergences are rounding
NAMED, TICKS, MOST = 3, 12, 8  # names in a sentence, blocks along an axis, models of a figure
LITTLE = 0.05  # of the change, below which what texts share of it is not a direction


@dataclass(frozen=True, kw_only=True)
class TunedOptions:
    """Curves by layer of how much each token changes, where the blocks are that changed, and how far the predictions
    change. It has no settings."""


def make_layer_curve(run: Finished, matrix: Matrix) -> Curve:
    """The mean over tokens at every layer, and bands that hold a share of the tokens; a layer of which none has a value
    is a gap."""
    values = run.array(matrix.values)
    base, missing = run.base, int(np.isnan(values).sum())
    left_out = f"\n{missing:,} of {values.size:,} cells have no value" if missing else ""
    said = {RELATIVE: f"norm of the difference / norm in {base}", COSINE: f"cosine with {base}"}
    kind = matrix.about["kind"]

    def summarise_known(number: Callable[[np.ndarray], float]) -> Numbers:
        known = [row[~np.isnan(row)] for row in values]
        return [float(number(row)) if len(row) else None for row in known]

    def percentile(percent: int) -> Numbers:
        return summarise_known(lambda row: np.percentile(row, percent))

    return Curve(
        x=Axis(name="layer"),
        y=Axis(name=said[kind] + left_out),
        at=matrix.rows.layers,
        lines={"mean over tokens": summarise_known(np.mean)},
        bands={name: Band(low=percentile(low), high=percentile(high), of=name) for name, (low, high) in BANDS.items()},
        bounds=[0.0, None] if kind == RELATIVE else [-1.0, 1.0],
        about={"quantity": kind, "model": matrix.rows.model},
    )


def summarise_output_divergence(run: Finished, matrix: Matrix, following: Matrix) -> list[Any]:
    values, (before, after) = run.array(matrix.values)[0], run.array(following.values)
    quantiles = np.percentile(values, QUANTILES).tolist()
    return [matrix.rows.model, len(values), float(values.mean()), *quantiles, float(values.max()),
            float((before != after).mean())]  # fmt: skip


# ---- where it changed ----


@dataclass(frozen=True, kw_only=True)
class ChangedBlocks:
    """The table of blocks for one model, by block. above: those whose own change is above rounding; rounded:
    those of which the weights were rounded and nothing else."""

    own: list[float]
    carried: list[float]
    weights: list[float | None]
    rounding: list[float]
    above: list[int]
    rounded: list[int]
    restored: list[float | None]

    @property
    def unchanged(self) -> list[int]:
        return [block for block in range(len(self.own)) if block not in (*self.above, *self.rounded)]


def read_changed_blocks(run: Finished) -> dict[str, ChangedBlocks]:
    """Reads the table of blocks by model; empty where no blocks were run on the base's input."""
    table = run.results.tables.get(OF_BLOCKS, Table(columns=OF_BLOCKS_COLUMNS, rows=[]))
    made = {}
    for model in dict.fromkeys(table.column("model")):
        own = Table(columns=table.columns, rows=[row for row in table.rows if row[0] == model])
        beyond = own.column("above rounding")
        made[model] = ChangedBlocks(
            own=[value or 0.0 for value in own.column(OWN)],
            carried=[value or 0.0 for value in own.column(CARRIED)],
            weights=own.column("weights"),
            rounding=own.column("rounding"),
            above=[block for block, said in enumerate(beyond) if said == "yes"],
            rounded=[block for block, said in enumerate(beyond) if said not in ("yes", "no")],
            restored=own.column("effect restored"),
        )
    return made


def _format_range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    low, high = (f"{end(known):.2g}" for end in (min, max))
    return low if low == high else f"{low} to {high}"


def say_changed_blocks(blocks: ChangedBlocks, outside: Sequence[tuple[str, float | None]]) -> str:
    """A sentence: every range of blocks with a change of its own, and those without. outside: weights that changed
    outside of blocks, and how much.

    >>> more = dict(carried=[], weights=[0, 0, 0.1, 0.1, 0], rounding=[], rounded=[], restored=[])
    >>> say_changed_blocks(ChangedBlocks(own=[0, 0, .1, .31, 0], above=[2, 3], **more), [])
    'blocks 2 to 3: own change 0.1 to 0.31; blocks 0 to 1, 4: none above rounding'
    """
    parts = [
        f"{name_blocks(part)}: own change {_format_range([blocks.own[block] for block in part])}"
        for part in join_into_ranges(blocks.above)
    ]
    if blocks.rounded:
        parts.append(f"{name_blocks(blocks.rounded)}: the base's weights, rounded to 16 bits")
    within = [block for block in blocks.unchanged if blocks.weights[block]]
    if within:
        parts.append(f"{name_blocks(within)}: other weights, but their own change is within rounding")
    untouched = [block for block in blocks.unchanged if block not in within]
    if untouched:
        everywhere = len(untouched) == len(blocks.own)
        parts.append(
            "no block changes anything above rounding"
            if everywhere
            else f"{name_blocks(untouched)}: none above rounding"
        )
    if outside:
        named = [f"{name} by {size:.2g}" if size is not None else name for name, size in outside[:NAMED]]
        rest = f" and {len(outside) - NAMED} more" if len(outside) > NAMED else ""
        parts.append(f"outside the blocks {', '.join(named)}{rest}")
    return "; ".join(parts)


def say_restored_effect(blocks: ChangedBlocks) -> str:
    """Says what putting back the base's block restores; empty where that was not measured."""
    known = {block: value for block, value in enumerate(blocks.restored) if value is not None and block in blocks.above}
    if not known:
        return ""
    best = max(known, key=lambda block: known[block])
    if known[best] <= 0:
        more = _format_range([-value for value in known.values()])
        return (
            "no block of the base in place of the model's restores anything of the effect on the next token: each "
            f"makes it larger, by {more} of it"
        )
    return (
        f"the base's block in place of the model's restores {_format_range(list(known.values()))} of the effect on the "
        f"next token, most at block {best}"
    )


def say_mean_direction(table: Table, model: str) -> str:
    """The mean change at the end of the last block, where it has a direction: more than little of the change is what
    tokens of different texts have in common. Empty where there is one text."""
    rows = [row for row in table.rows if row[0] == model]
    if not rows or (share := rows[-1][3]) is None:
        return ""
    _, block, _, _, up, down = rows[-1]
    if share < LITTLE:
        return f"no one direction: texts share {max(share, 0.0):.2g} of the change after block {block}"
    return (
        f"one direction, the mean change, has {share:.2g} of the change after block {block}; it promotes "
        f"{' '.join(_list_first_tokens(up))} and demotes {' '.join(_list_first_tokens(down))}"
    )


def _list_first_tokens(tokens: str) -> list[str]:
    return re.findall(r"'.*?'(?= '|$)", tokens)[:NAMED]


def say_predictions(row: Sequence[Any]) -> str:
    """Says how far the predictions are from the base's, from a row of OUTPUTS.

    >>> say_predictions(["tuned", 7936, 0.0799, 0.05, 0.17, 0.52, 2.1, 0.1774])
    'next token: KL 0.08 nats on the mean, another choice for 17.7 % of 7,936 tokens'
    """
    said = dict(zip(OUTPUTS, row, strict=True))
    return (
        f"next token: KL {said['mean KL, nats']:.2g} nats on the mean, another choice for "
        f"{write_percent(said['other next token'], '.3g')} of {said['tokens']:,} tokens"
    )


def list_answers(
    run: Finished, of_blocks: Mapping[str, ChangedBlocks], outputs: Sequence[Sequence[Any]]
) -> list[list[str]]:
    """Lists the answers, a model and a sentence each. outputs: rows of OUTPUTS."""
    empty = Table(columns=["model", "tensor", "block", "relative change"], rows=[])
    weights, directions = (run.results.tables.get(name, empty) for name in (OF_WEIGHTS, DIRECTIONS))
    made, next_tokens = [], {row[0]: say_predictions(row) for row in outputs}
    for model, blocks in of_blocks.items():
        outside = [(name, size) for of, name, block, size in weights.rows if of == model and block is None]
        said = (
            say_changed_blocks(blocks, outside),
            say_restored_effect(blocks),
            next_tokens.get(model),
            say_mean_direction(directions, model),
        )
        made += [[model, sentence] for sentence in said if sentence]
    return made


def make_block_curve(model: str, blocks: ChangedBlocks) -> Curve:
    """Makes the curve of own change, carried change and change of the weights by block, beside rounding."""
    lines = {OWN: blocks.own, CARRIED: blocks.carried, "weights": blocks.weights, "rounding": blocks.rounding}
    return Curve(
        x=Axis(name="block"),
        y=Axis(name="norm of the change / norm in the base"),
        at=[f"resid_post@{block}" for block in range(len(blocks.own))],
        lines={name: list(line) for name, line in lines.items()},
        bounds=[0.0, None],
        about={"quantity": "blocks", "model": model},
    )


# ---- figures ----


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """blocks, by-layer-MEASURE_with_BASE, by-layer-relative_difference, outputs-KL; with many models, or on demand,
    relative-difference-all; on demand by-layer-cosine"""
    if blocks := [curve for curve in run.results.curves.values() if curve.about["quantity"] == "blocks"]:
        for name, some in split_into_pages("blocks", blocks, MOST):
            yield name, partial(_draw_block_changes, some)
    yield from list_layer_figures(run.results.curves, "", run.seeds)
    curves = {name: x for name, x in run.results.curves.items() if whole or x.about["quantity"] != COSINE}
    yield from list_layer_figures(curves, "tuned", run.seeds)
    divergences = run.select_kind(KL)
    if divergences:
        yield "outputs-KL", partial(_draw_divergence_histogram, run, divergences)
    relative = run.select_kind(RELATIVE)
    if whole or len(relative) > FEW:
        yield "relative-difference-all", partial(_draw_map, run, relative)


def _draw_divergence_histogram(run: Finished, divergences: Sequence[Matrix]) -> Any:
    """The share of tokens by their divergence, on a logarithmic axis; smaller ones than LEAST are in the first bin."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=PANEL)
    axes = figure.subplots()
    values = {matrix.rows.model: np.maximum(run.array(matrix.values)[0], LEAST) for matrix in divergences}
    ends = [np.log10(max(x.max() for x in values.values()) * 1.01), np.log10(min(x.min() for x in values.values()))]
    edges = np.logspace(ends[1], max(ends[0], ends[1] + 1), BINS + 1)
    for (model, divergence), style in zip(values.items(), choose_line_styles(len(values)), strict=True):
        shares = np.histogram(divergence, edges)[0] / len(divergence)
        axes.stairs(
            shares,
            edges,
            color=style["color"],
            linestyle=style["linestyle"],
            label=f"{model}, mean {divergence.mean():.2g}",
        )
    axes.set_xscale("log")
    axes.set_xlabel(f"KL({run.base} || model) of the next token, nats", fontsize=8, parse_math=False)
    axes.set_ylabel("share of tokens", fontsize=8)
    axes.tick_params(labelsize=7)
    draw_light_grid(axes)
    add_legend_beside(axes)
    set_headline(figure, f"How far the predictions of {list_models(list(values))} are from those of {run.base}")
    return figure


def _draw_block_changes(curves: Sequence[Curve]) -> Any:
    """A panel per model, on a logarithmic axis, as far down as the smallest rounding; what is less stands there."""
    figure, axes = make_panels(len(curves), min(2, len(curves)), 3.1, 2.3, gaps=(0.6, 0.8))
    least = min(float(mark_gaps(curve.lines["rounding"]).min()) for curve in curves) / 2
    styles = {OWN: ("o", "-"), CARRIED: ("s", "-"), "weights": ("D", "--"), "rounding": ("", ":")}
    for panel, curve in zip(axes, curves, strict=True):
        names, said = name_by_block(curve.at)
        for (line, (marker, dashes)), colour in zip(styles.items(), [*COLOURS[:3], "0.4"], strict=True):
            values = np.maximum(mark_gaps(curve.lines[line]), least)
            label = f"{line} (at the bottom: less)" if line == "rounding" else line
            panel.plot(
                values, marker=marker, linestyle=dashes, color=colour, markersize=3.5, linewidth=1.3, label=label
            )
        panel.set_yscale("log")
        panel.set_ylim(top=max(panel.get_ylim()[1], 100 * least))
        at = range(0, len(names), -(-len(names) // TICKS))
        panel.set_xticks(at, [names[i] for i in at], fontsize=7)
        panel.set_xlabel(said.replace("resid_post by block", "block"), fontsize=8)
        panel.set_title(curve.about["model"], loc="left", fontsize=9, parse_math=False)
        panel.tick_params(axis="y", labelsize=7)
        draw_light_grid(panel)
    axes[0].set_ylabel(str(curves[0].y), fontsize=8, parse_math=False)
    add_legend_beside(axes[min(1, len(axes) - 1)])
    set_headline(figure, "Which blocks changed, and which change they carry on")
    return figure


def _draw_map(run: Finished, relative: Sequence[Matrix]) -> Any:
    """The mean relative difference of every layer (rows) of every model (columns)."""
    means = [make_layer_curve(run, matrix).lines["mean over tokens"] for matrix in relative]
    values = np.array(means, dtype=float).T  # None is NaN
    layers, said = name_by_block(relative[0].rows.layers)
    title = f"How far each layer has moved from {run.base}\nmean relative difference" + (f", {said}" if said else "")
    figure, _ = draw_heatmap(
        values,
        layers,
        [matrix.rows.model for matrix in relative],
        title=title,
        bar_label="norm of the difference / norm in the base",
        limits=(0.0, float(values[~np.isnan(values)].max(initial=1e-12))),
        colours=choose_colours(small_is_bright=True),
        form="{:.2g}",
    )
    return figure


@analysis(studies=("tuned",), unasked=lambda planned: True, figures=draw_figures)
def tuned(run: Finished, options: TunedOptions, claims: Sequence[Claim]) -> Part:
    curves = [make_layer_curve(run, matrix) for kind in (RELATIVE, COSINE) for matrix in run.select_kind(kind)]
    following = {matrix.rows.model: matrix for matrix in run.select_kind(NEXT)}
    rows = [summarise_output_divergence(run, matrix, following[matrix.rows.model]) for matrix in run.select_kind(KL)]
    tables = {"changes of the outputs": Table(columns=OUTPUTS, rows=rows)} if rows else {}
    if of_blocks := read_changed_blocks(run):
        tables[WHERE] = Table(columns=["model", "where"], rows=list_answers(run, of_blocks, rows))
        curves += [make_block_curve(model, blocks) for model, blocks in of_blocks.items()]
    return Part(tables=tables, curves={f"{x.about['quantity']}, {x.about['model']}": x for x in curves})
