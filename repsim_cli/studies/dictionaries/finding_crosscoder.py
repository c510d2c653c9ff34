"""Says what a crosscoder explains of each side and whose its latents are, and draws their decoder norms."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.base.plain import write_percent, write_share
from repsim_cli.figures.frame import add_legend_beside, choose_line_styles
from repsim_cli.figures.lines import draw_light_grid
from repsim_cli.figures.panels import set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.runs.content import CODED, Axis, Curve, Table
from repsim_cli.studies.dictionaries.columns import ALL_SIDES, BETWEEN_SIDES, NORMS, OF_LATENTS, OF_SIDES

BINS = 20
FOUND = 0.5  # of their strength on their own side: latents that the other sides have too
PANEL = (3.6, 2.4)  # inches


@dataclass(frozen=True, kw_only=True)
class CrosscoderOptions:
    """Says whose latents a crosscoder has, and draws their decoder norms. There are no settings."""


def say_answers(sides: Table, latents: Table) -> Iterator[list[str]]:
    """Says of each model how much of it the crosscoder explains and which latents are of it alone; then of the shared
    ones.

    sides: the table of models.
    latents: the table of kinds of latents.
    """
    kinds = {row[0]: dict(zip(latents.columns, row, strict=True)) for row in latents.rows}
    for row in sides.rows:
        side, explained, error, shuffled = row[0], *row[3:6]
        alone = kinds[side]
        said = f"{write_percent(alone['share'], '.1f')} of the latents are of it alone"
        if alone["latents"]:
            said += f" ({write_percent(alone['never active'])} of them never active)"
        if (beyond := alone["in the errors of others"]) is not None:
            doubt = "; so the others have them too" if beyond > FOUND else ""
            said += f", whose directions stand in the others' errors {beyond:.2f} times as strongly{doubt}"
        within = "" if error is None else f" (se {error:.2g})"
        yield [
            side,
            f"the crosscoder explains {write_share(explained)} of its variance{within}, {write_share(shuffled)} "
            f"shuffled; {said}",
        ]
    every, between = kinds[ALL_SIDES], kinds[BETWEEN_SIDES]
    yield [
        ALL_SIDES,
        f"{write_percent(every['share'], '.1f')} of the latents have about the same norm on them"
        f"{_say_never_active(every)}, {write_percent(between['share'], '.1f')} are neither of one alone nor of all "
        f"alike{_say_from_others(every)}",
    ]


def _say_from_others(row: Any) -> str:
    """Says how strongly latents of all sides stand in a side where the code has seen the others alone."""
    if (share := row.get("from the others' rows")) is None:
        return ""
    reach = row["by chance, at most"]
    doubt = "" if share > reach else "; so their norms show nothing that the sides have in common"
    return (
        f"; in the rows of a side they are {share:.2f} times as strong when the code reads the other sides alone "
        f"(chance at most {reach:.2f}){doubt}"
    )


def _say_never_active(row: Any) -> str:
    return "" if row["never active"] is None else f" ({write_percent(row['never active'])} of them never active)"


def compute_norm_shares(norms: Float[np.ndarray, "m s"]) -> Float[np.ndarray, "m s"]:
    """Divides the decoder norms of each latent by their sum over sides."""
    return norms / np.maximum(norms.sum(1, keepdims=True), np.finfo(float).tiny)


def make_curves(run: Finished) -> Iterator[Curve]:
    """A curve per side, of two sides of the second alone: how many latents have a share of their norm on it."""
    matrix = run.results.matrices[NORMS]
    norms, active = np.asarray(run.array(matrix.values)), np.asarray(run.array(matrix.about["active"]))
    ends = np.linspace(0, 1, BINS + 1)
    sides = matrix.columns.layers
    for at, side in list(enumerate(sides))[-1 if len(sides) == 2 else 0 :]:
        share = compute_norm_shares(norms)[:, at]
        counts = {
            "active": np.histogram(share[active > 0], ends)[0],
            "never active": np.histogram(share[active == 0], ends)[0],
        }
        yield Curve(
            x=Axis(name=f"share of the decoder norm on {side}"),
            y=Axis(name="latents"),
            at=((ends[1:] + ends[:-1]) / 2).round(6).tolist(),
            lines={name: [int(count) for count in values] for name, values in counts.items()},
            bounds=[0.0, None],
            about={"quantity": "decoder norms", "model": side},
        )


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """crosscoder: how many latents have which share of their decoder norm on each side"""
    yield "crosscoder", partial(_draw, [x for x in run.results.curves.values() if x.analysis == "crosscoder"], run)


def _draw(curves: Sequence[Curve], run: Finished) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL[0] * len(curves), PANEL[1]))
    axes = figure.subplots(1, len(curves), squeeze=False, sharey=True)[0]
    styles = choose_line_styles(2)
    for panel, curve in zip(axes, curves, strict=True):
        below = np.zeros(BINS)
        for (name, counts), style in zip(curve.lines.items(), styles, strict=True):
            panel.bar(curve.at, counts, 0.9 / BINS, bottom=below, color=style["color"], label=name)
            below = below + np.array(counts)
        panel.set_xlabel(str(curve.x), fontsize=8, parse_math=False)
        panel.set_xlim(0, 1)
        panel.tick_params(labelsize=7)
        draw_light_grid(panel)
    axes[0].set_ylabel("latents", fontsize=8)
    add_legend_beside(axes[-1])
    sides = run.results.tables[OF_SIDES]
    explained = ", ".join(f"{write_share(row[3])} of {row[0]}" for row in sides.rows)
    set_headline(
        figure,
        f"A crosscoder explains {explained}",
        f"{sides.rows[0][6]:,} rows of {sides.rows[0][7]:,} documents; norms in spreads of each side's rows",
    )
    return figure


@analysis(studies=("crosscoder",), unasked=lambda planned: True, figures=draw_figures)
def crosscoder(run: Finished, options: CrosscoderOptions, claims: Sequence[Claim]) -> Part:
    """Says what a crosscoder explains of each side, and whose its latents are."""
    said = list(say_answers(run.results.tables[OF_SIDES], run.results.tables[OF_LATENTS]))
    return Part(
        tables={CODED: Table(columns=["side", "what"], rows=said)},
        curves={f"decoder norms, {curve.about['model']}": curve for curve in make_curves(run)},
    )
