"""Curves of training by layer: which layers and models are early near their final state."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from repsim_cli.base.plain import slug
from repsim_cli.figures.frame import add_legend_beside, choose_shades
from repsim_cli.figures.lines import draw_levels, find_shared_levels, mark_gaps, name_bands
from repsim_cli.figures.panels import set_headline
from repsim_cli.figures.steps import make_step_panel
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import (
    DEEP,
    FEWEST,
    find_rho_step,
    normalise,
    normalise_ranks,
    require_shared_trend,
    weigh_mean,
    weigh_rank_correlation,
)
from repsim_cli.runs.content import Curve

SIZES = 5  # of which a rank correlation can be told from another
AT_20 = 0.2  # the share of training at which the paper looks
NAMED = 16  # layers up to which the legend has each, of more every second or third
FEW = 2  # models up to which the layers of each are drawn in the overview
BESIDE = {  # by the end of a quantity, what a layer is compared with
    " to last": " with the last checkpoint,",
    " to previous": " with the checkpoint before,",
    " between layers": " of each layer with the others, mean,",
}
STUDIES = ("convergence", "effective_rank", "training_view")


@dataclass(frozen=True, kw_only=True)
class ConvergenceOptions:
    """How layers converge during training. It has no settings."""


def find_early_checkpoints(curve: Curve, share: float) -> list[int]:
    """The places of the checkpoints within the first `share` of training, without gaps."""
    return [i for i, mean in enumerate(curve.mean or ()) if mean is not None and curve.at[i] <= share * curve.at[-1]]


def take_values_at_share(curve: Curve, share: float) -> list[float] | None:
    """The values of all layers at the last checkpoint within the first `share` of training; None without one."""
    places = find_early_checkpoints(curve, share)
    return [float(line[places[-1]] or 0.0) for line in curve.lines.values()] if places else None


def select_to_last(curves: Sequence[Curve]) -> list[Curve]:
    return [curve for curve in curves if curve.about["quantity"].endswith(" to last")]


def correlate_with_size(
    curves: Sequence[Curve], values: Callable[[Curve], list[float] | None], threshold: float
) -> Weighed | Untestable:
    """Rank correlation over models of several sizes with the mean of `values` over the model's curves."""
    by_size: dict[int, list[float]] = {}
    for curve in curves:
        numbers = values(curve)
        if numbers is not None:
            by_size.setdefault(curve.about["parameters"], []).append(float(np.mean(numbers)))
    means = [float(np.mean(numbers)) for numbers in by_size.values()]
    if len(set(means)) < 2:
        return Untestable(f"needs {SIZES} sizes that differ, with a checkpoint early enough, got {len(by_size)}")
    return Weighed(*weigh_rank_correlation(list(by_size), means, threshold, "model"))


@claim(
    "Diehl Martinez et al. 2024, figure 2",
    statistic="Spearman's rho over models between parameters and mean similarity to the last checkpoint at 20 %",
    threshold=0.5,
    unit="model",
)
def larger_models_converge_earlier(curves: Sequence[Curve]) -> Weighed | Untestable:
    """After 20 % of training larger models are nearer to their final state."""
    return correlate_with_size(select_to_last(curves), lambda curve: take_values_at_share(curve, AT_20), 0.5)


@claim(
    "Diehl Martinez et al. 2024",
    statistic="mean over models of Spearman's rho between layer and its mean similarity before the last checkpoint",
    threshold=0.0,
    unit="model",
    published="below",
)
def earlier_layers_converge_faster(curves: Sequence[Curve]) -> Weighed | Untestable:
    """Earlier layers converge faster to their final state than later ones."""
    # curves of one model share its layers, and are not cases of their own
    by_model: dict[tuple[str, int], list[np.ndarray]] = {}
    for curve in select_to_last(curves):
        means = [float(np.mean([v for v in line[:-1] if v is not None])) for line in curve.lines.values()]
        if len(means) >= DEEP and len(set(means)) > 1:
            by_model.setdefault((curve.about["model"], len(means)), []).append(normalise(means))
    if not by_model:
        return Untestable(f"needs {FEWEST} models of {DEEP} layers that differ in similarity")
    means = [np.mean(scaled, axis=0) for scaled in by_model.values()]
    rhos = [float(normalise_ranks(each) @ normalise_ranks(range(len(each)))) for each in means]
    over = weigh_mean(rhos, 0.0, "model", find_rho_step(min(map(len, means))))
    return Weighed(float(np.mean(rhos)), require_shared_trend(over, means))


# ---- figures ----


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """QUANTITY-POINT-all with the means of all models, and QUANTITY-POINT-NUMBER-MODEL with the layers of each, on
    demand or of few models."""
    curves = [curve for curve in run.results.curves.values() if "point" in curve.about and curve.x.name == "step"]
    for quantity, point in dict.fromkeys((curve.about["quantity"], curve.about["point"]) for curve in curves):
        kept = [curve for curve in curves if (curve.about["quantity"], curve.about["point"]) == (quantity, point)]
        stem = slug(quantity, point)
        yield slug(stem, "all"), partial(_draw_means_by_model, kept)
        for number, curve in enumerate(kept) if whole or len(kept) <= FEW else ():
            yield slug(stem, f"{number:02d}", curve.about["model"]), partial(_draw_layer_curves, curve)


def _draw_means_by_model(curves: Sequence[Curve]) -> Any:
    """Mean over layers and the band between the quartiles, a colour per model, smallest first."""
    figure, panel = _make_convergence_panel(curves, "all models" if len(curves) > 1 else curves[0].about["model"])
    order = sorted(curves, key=lambda curve: curve.about["parameters"])
    for curve, colour in zip(order, choose_shades(len(order)), strict=True):
        _draw_mean(
            panel, curve, colour, "quartiles", f"{curve.about['model']} ({curve.about['parameters']:,} parameters)"
        )
    draw_levels(panel, find_shared_levels(curves))
    name_bands(panel, [curve.bands["quartiles"].of for curve in curves])
    panel.set_ylabel(f"{curves[0].y}, mean over layers", fontsize=8)
    add_legend_beside(panel)
    return figure


def _draw_layer_curves(curve: Curve) -> Any:
    """A thin line per layer from dark to bright, the mean over layers and the band of the 10th to 90th percentile."""
    figure, panel = _make_convergence_panel([curve], curve.about["model"])
    step = -(-len(curve.lines) // NAMED)
    for number, ((name, values), colour) in enumerate(
        zip(curve.lines.items(), choose_shades(len(curve.lines)), strict=True)
    ):
        label = "_" if number % step else name
        panel.plot(curve.at, mark_gaps(values), color=colour, linewidth=0.9, marker=".", markersize=3, label=label)
    _draw_mean(panel, curve, "black", "deciles", "mean over layers")
    draw_levels(panel, find_shared_levels([curve]))
    name_bands(panel, [curve.bands["deciles"].of])
    add_legend_beside(panel, fontsize=6)
    return figure


def _draw_mean(panel: Any, curve: Curve, colour: Any, band: str, label: str) -> None:
    about = curve.bands[band]
    panel.fill_between(curve.at, mark_gaps(about.low), mark_gaps(about.high), color=colour, alpha=0.15, linewidth=0)
    panel.plot(
        curve.at, mark_gaps(curve.mean or []), color=colour, linewidth=1.6, marker="o", markersize=3, label=label
    )


def _make_convergence_panel(curves: Sequence[Curve], models: str) -> tuple[Any, Any]:
    first = curves[0]
    figure, panel = make_step_panel([step for curve in curves for step in curve.at])
    low, high = first.bounds
    panel.set_ylim(low, high if high is None else 1.02 * high)
    panel.set_ylabel(str(first.y), fontsize=8)
    beside = next((said for ending, said in BESIDE.items() if first.about["quantity"].endswith(ending)), "")
    seen = f"{models}: {first.y}{beside} over the training"
    set_headline(figure, seen, f"{first.about['quantity']}, {first.about['point']}")
    return figure, panel


@analysis(studies=STUDIES, unasked=lambda planned: True, figures=draw_figures)
def convergence(run: Finished, options: ConvergenceOptions, claims: Sequence[Claim]) -> Part:
    by_measure: dict[str, list[Curve]] = {}
    for curve in run.results.curves.values():
        if curve.about.get("larger_is_closer"):
            by_measure.setdefault(curve.about["measure"], []).append(curve)
    return Part(claims=[claim.verdict(label, curves) for label, curves in by_measure.items() for claim in claims])
