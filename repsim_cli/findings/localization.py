"""A number per layer: its mean similarity with all others, and how far what it shares is in single neurons."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from repsim_cli.figures.lines import list_layer_figures
from repsim_cli.findings.analysis import Finished, Job, LayerMap, Part, analysis
from repsim_cli.findings.chance import list_chance_levels
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import (
    DEEP,
    FEWEST,
    find_rho_step,
    normalise_ranks,
    require_shared_trend,
    weigh_lone_value,
    weigh_mean,
)
from repsim_cli.findings.layer_maps import ClaimMap, map_of
from repsim_cli.runs.content import Axis, Curve

WHOLE, NEURONS = "svcca", "neuronsim"
BOTH = f"{NEURONS} and {WHOLE}"


@dataclass(frozen=True, kw_only=True)
class Localization:
    """The mean similarity of every layer with all other layers, under each measure.

    With the measures neuronsim and svcca also their difference, localization: the more of what a layer shares with
    others lies in single neurons, the higher it is. There are no settings.
    """


def average_over_others(values: Float[np.ndarray, "r r"]) -> dict[str, Float[np.ndarray, " r"]]:
    """Averages the row of every layer (its own neurons, followed by the others') and its column (the others' neurons,
    followed by its own) over all other layers: of the other models and of its own, without itself.

    >>> means = average_over_others(np.array([[1.0, 0.2, 0.4], [0.6, 1.0, 0.8], [0.0, 0.1, 1.0]]))
    >>> means["row"].round(6).tolist(), means["column"].round(6).tolist()
    ([0.3, 0.7, 0.05], [0.3, 0.15, 0.6])
    """
    others, itself = len(values) - 1, values.diagonal()
    return {"row": (values.sum(1) - itself) / others, "column": (values.sum(0) - itself) / others}


def measure_localization(
    neurons: Float[np.ndarray, "r r"], spread: Float[np.ndarray, "r r"]
) -> dict[str, Float[np.ndarray, " r"]]:
    """Means of a measure of single neurons minus those of a measure of whole representations (Wu et al. 2020, section
    5.1: neuronsim minus svsim). Higher: more of what a layer shares with others is in single neurons."""
    single, distributed = average_over_others(neurons), average_over_others(spread)
    return {way: single[way] - distributed[way] for way in single}


def make_curves(
    quantity: str,
    label: str,
    means: Mapping[str, np.ndarray],
    layers: LayerMap,
    levels: Mapping[str, list[float]] | None = None,
) -> dict[str, Curve]:
    """Makes, by name, a curve per model. label: of the axis. levels: what chance gives, by what that is."""
    return {
        f"{quantity}, {model}": Curve(
            x=Axis(name="layer"),
            y=Axis(name=label),
            at=layers.names[place],
            lines={way: values[place].tolist() for way, values in means.items()},
            about={"quantity": quantity, "model": model, **({} if levels is None else {"levels": dict(levels)})},
        )
        for model, place in layers.places.items()
    }


# ---- claims ----


@claim(
    "Wu et al. 2020, section 5.1, figure 3",
    statistic="mean over models of Spearman's rho between block and localization (row means)",
    threshold=0.5,
    unit="model",
    on=BOTH,
)
def localization_rises_with_depth(whole: ClaimMap) -> Weighed | Untestable:
    """Higher layers are more localized than lower ones."""
    trained = _find_trained_blocks(whole)
    if isinstance(trained, str):
        return Untestable(trained)
    scores = _score_localization(trained)
    deep = [scores[place] for place in trained.models.values() if place.stop - place.start >= DEEP]
    if not deep or any(len(set(score)) < 2 for score in deep):
        return Untestable(f"needs {FEWEST} trained models of {DEEP} blocks or more that differ in localization")
    rhos = [float(normalise_ranks(range(len(score))) @ normalise_ranks(score)) for score in deep]
    over = weigh_mean(rhos, 0.5, "model", find_rho_step(min(map(len, deep))))
    return Weighed(float(np.mean(rhos)), require_shared_trend(over, deep, 0.5))


@claim(
    "Wu et al. 2020, section 6, figure 7",
    statistic="mean localization (row means) of the top third of blocks: the base's minus the fine-tuned models'",
    threshold=0.0,
    unit="task",
    on=BOTH,
)
def fine_tuning_delocalizes_the_top(whole: ClaimMap) -> Weighed | Untestable:
    """Fine-tuned models lose localization in their top layers."""
    trained = _find_trained_blocks(whole)
    if whole.base is None or isinstance(trained, str):
        return Untestable("needs a base" if whole.base is None else str(trained))
    if whole.base not in trained.models:
        return Untestable("needs a base that is trained")
    scores, base = _score_localization(trained), trained.models[whole.base]
    depth = base.stop - base.start
    top = {
        label: float(scores[place][-max(1, depth // 3) :].mean())
        for label, place in trained.models.items()
        if place.stop - place.start == depth
    }
    by_training: dict[str, list[float]] = {}
    for label, score in top.items():
        if label != whole.base:
            by_training.setdefault(whole.entry(label), []).append(score)
    others = [float(np.mean(scores)) for scores in by_training.values()]
    if not others:
        return Untestable(f"needs {FEWEST} trainings of models of the base's depth")
    return Weighed(top[whole.base] - float(np.mean(others)), weigh_lone_value(top[whole.base], others, "task"))


def _find_trained_blocks(whole: ClaimMap) -> ClaimMap | str:
    """Leaves out the embeddings and the models with fresh weights; or says why localization says nothing here."""
    if absent := [name for name in (NEURONS, WHOLE) if name not in whole.values]:
        return f"needs the measure {absent[0]}"
    kept = np.array([name != "embed" for name in whole.names]) & ~np.isin(whole.owners(), list(whole.untrained))
    return whole.keep_layers(kept) if kept.sum() > 1 else "needs trained models"


def _score_localization(whole: ClaimMap) -> np.ndarray:
    """Localization of every layer by row means."""
    return measure_localization(whole.values[NEURONS], whole.values[WHOLE])["row"]


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """by-layer-QUANTITY"""
    yield from list_layer_figures(run.results.curves, "localization", run.seeds)


@analysis(studies=("similarity", "attention"), figures=draw_figures)
def localization(run: Finished, options: Localization, claims: Sequence[Claim]) -> Part:
    lines: dict[str, Curve] = {}
    for label, layers in run.maps.items():
        mean = f"mean {label}"
        means, levels = average_over_others(layers.values), list_chance_levels(run, layers, within=True)
        lines |= make_curves(mean, f"{mean} over all other layers", means, layers, levels)
    named = {layers.measure.name: layers for layers in run.maps.values()}
    if {NEURONS, WHOLE} <= set(named):
        difference = measure_localization(named[NEURONS].values, named[WHOLE].values)
        lines |= make_curves("localization", f"localization ({NEURONS} - {WHOLE})", difference, named[NEURONS])
    whole, labels = map_of(run)
    measure = " and ".join(labels.get(name, name) for name in (NEURONS, WHOLE))
    return Part(curves=lines, claims=[claim.verdict(measure, whole) for claim in claims])
