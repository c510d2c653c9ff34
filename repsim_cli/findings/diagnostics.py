"""Whether a map can mean something: warns of layers where a few features, or few rows, hold most of the variance."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from repsim_cli.base.settings import Positive, Share
from repsim_cli.figures.lines import draw_quantities
from repsim_cli.figures.panels import set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.layers import order_layers, read_block_number, read_hook_point
from repsim_cli.runs.content import (
    DIAGNOSTICS,
    FEATURE_SHARE,
    NORMS,
    PARTICIPATION,
    PLACES,
    ROWS_SHARE,
    Axis,
    Curve,
    Table,
)

STUDIES = ("similarity", "views", "probes", "convergence", "effective_rank", "parallel", "layers")
REMEDIES = {"skip": "4", "normalise": "directions", "drop_features": "0.05"}  # that a warning proposes
RATIO = "norm at the first place over that elsewhere"
BOUNDS = {FEATURE_SHARE: 1.0, ROWS_SHARE: 1.0}


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """How the variance of every layer is spread over features and rows, and a warning where few of them hold most.

    share: a layer is named in the warning where its largest feature, or the largest 1 % of its rows, has more than this
        share of the variance.
    participation: or where its participation ratio is below this.
    features: layers of fewer features are not named.
    """

    share: Share = 0.5
    participation: float = 3.0
    features: Positive = 8


def is_concentrated(row: dict[str, Any], options: Diagnostics) -> bool:
    """Tells whether few features or rows hold most of the variance of this layer."""
    if row["features"] < options.features or row[PARTICIPATION] is None:
        return False
    shares = [row[FEATURE_SHARE], row[ROWS_SHARE] or 0.0]
    return max(shares) > options.share or row[PARTICIPATION] < options.participation


def join_layer_names(names: Sequence[str]) -> str:
    """Names of layers, consecutive blocks of one hook point, or of one module in each block, joined.

    >>> join_layer_names(["embed", "resid_post@2", "resid_post@11", "resid_post@12", "resid_post@13"])
    'embed, resid_post@2, resid_post@11 to resid_post@13'
    >>> join_layer_names(["h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp"])
    'h.0.attn to h.1.attn, h.0.mlp to h.1.mlp'
    """
    kinds: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for name in names:
        match = re.fullmatch(r"([^@]*@|(?:[^@]*\.)?)(\d+)((?:\..*)?)", name)
        kinds.setdefault((match[1], match[3]) if match else (name, ""), []).append(
            (int(match[2]) if match else 0, name)
        )
    joined = []
    for named in kinds.values():
        for _, run in groupby(range(len(named)), key=lambda i, named=named: named[i][0] - i):
            first, *others = [named[i][1] for i in run]
            joined.append(f"{first} to {others[-1]}" if others else first)
    return ", ".join(joined)


def describe_concentrated_layers(
    run: Finished, layers: dict[str, list[dict[str, Any]]], options: Diagnostics
) -> Iterator[str]:
    """Says which layers of which model are concentrated, a line each; what is to be done once, unless it differs."""
    cards = {measured.label: measured.card for measured in run.results.measures}
    used = run.manifest.get("remedies", {})
    looking = [label for label, card in cards.items() if card.get("sees_scale_of_features", True)]
    if cards and not looking:
        seen = "none of the measures in use depends on the scale of features"
    else:
        seen = f"{', '.join(looking) or 'what follows'} {'say' if len(looking) > 1 else 'says'} little about the rest"
    said = set[str]()
    for model, rows in layers.items():
        named = [row["layer"] for row in rows if is_concentrated(row, options)]
        if named:
            # rows of images and stored activations have no place in a sequence
            placed = any(row[norm] is not None for row in rows for norm in NORMS[:PLACES])
            fit = {key: value for key, value in REMEDIES.items() if key not in used and (placed or key != "skip")}
            untried = " or ".join(f"extract.{key}={value}" for key, value in fit.items())
            if untried in said:
                yield f"model.{model}: likewise in {len(named)} of {len(rows)} layers ({join_layer_names(named)})"
                continue
            said.add(untried)
            yield (
                f"model.{model}: in {len(named)} of {len(rows)} layers a single feature or 1 % of the rows has more "
                f"than {100 * options.share:g} % of the variance, or the participation ratio is below "
                f"{options.participation:g} ({join_layer_names(named)}); {seen}; "
                f"{f'try {untried}, or all' if untried else 'compare remedies'} by analyses.robustness={{}}"
            )


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """diagnostics, a panel per quantity, where a layer is named in a warning, or on demand"""
    options = Diagnostics(**run.results.analyses["diagnostics"]["options"])
    table = run.results.tables[DIAGNOSTICS] if DIAGNOSTICS in run.results.tables else Table(columns=[], rows=[])
    if not whole and not any(
        is_concentrated(dict(zip(table.columns, row, strict=True)), options) for row in table.rows
    ):
        return
    curves = [curve for curve in run.results.curves.values() if curve.analysis == "diagnostics"]
    groups = {curve.about["quantity"]: [] for curve in curves}
    for curve in curves:
        groups[curve.about["quantity"]].append(curve)
    if groups:
        yield "diagnostics", partial(_draw, list(groups.values()))


def _draw(groups: Sequence[Sequence[Curve]]) -> Any:
    figure = draw_quantities(groups, (PARTICIPATION, RATIO))
    set_headline(figure, "How much of each layer a few features, or a few rows, are")
    return figure


def group_by_hook_point(layers: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The layers of each model and hook point, where a model has several of these: a line of its own for each."""
    parted: dict[str, list[dict[str, Any]]] = {}
    for model, rows in layers.items():
        points = {read_hook_point(row["layer"]) for row in rows if read_block_number(row["layer"]) is not None}
        for row in rows:
            point = read_hook_point(row["layer"])
            parted.setdefault(f"{model}, {point}" if len(points) > 1 and point in points else model, []).append(row)
    return parted


def compute_norm_ratio(row: dict[str, Any]) -> float | None:
    first, elsewhere = row[NORMS[0]], row[NORMS[PLACES]]
    return first / elsewhere if first is not None and elsewhere else None


@analysis(studies=STUDIES, unasked=lambda planned: True, figures=draw_figures, within=True)
def diagnostics(run: Finished, options: Diagnostics, claims: Sequence[Claim]) -> Part:
    table = run.results.tables.get(DIAGNOSTICS, Table(columns=[], rows=[]))
    layers: dict[str, list[dict[str, Any]]] = {}
    for values in table.rows:
        row = dict(zip(table.columns, values, strict=True))
        layers.setdefault(row["model"], []).append(row)
    layers = {model: [rows[i] for i in order_layers([row["layer"] for row in rows])] for model, rows in layers.items()}
    curves = {}
    for quantity in (FEATURE_SHARE, ROWS_SHARE, PARTICIPATION, RATIO):
        for model, rows in group_by_hook_point(layers).items():
            line = [compute_norm_ratio(row) if quantity == RATIO else row[quantity] for row in rows]
            if any(value is not None for value in line):
                curves[f"{quantity}, {model}"] = Curve(
                    x=Axis(name="layer"),
                    y=Axis(name=quantity),
                    at=[row["layer"] for row in rows],
                    lines={quantity: line},
                    bounds=[0.0, BOUNDS.get(quantity)],
                    about={"quantity": quantity, "model": model},
                )
    return Part(curves=curves, warnings=list(describe_concentrated_layers(run, layers, options)))
