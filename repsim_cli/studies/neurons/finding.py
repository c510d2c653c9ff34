"""How many neurons of a model have a counterpart in others, beyond what a random rotation of those reaches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from repsim_cli.base.plain import write_share
from repsim_cli.base.settings import Finite, Medium0
from repsim_cli.engine.proportions import compute_wilson_interval
from repsim_cli.figures.frame import COLOURS, add_legend_beside, repeat_values
from repsim_cli.figures.lines import PANEL, draw_light_grid, list_layer_figures
from repsim_cli.figures.panels import list_models, set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import weigh_by_jackknife
from repsim_cli.runs.content import COUNTERPARTS, Axis, Curve, Matrix, Table

SHARE, EXCESS = "share of universal neurons", "mean excess correlation"
LOW, HIGH = "universal, low", "universal, high"  # 95 % interval over neurons
MODELS = ["model", "neurons", "constant", "others", "mean correlation", "mean in rotated bases", EXCESS, "universal",
          "universal in rotated bases", LOW, HIGH]  # fmt: skip
PAIRS = ["model", "other", "mean correlation", "mean in rotated bases", EXCESS, "above the threshold"]
NEURONS = ["model", "layer", "neuron", "excess", "rotated bases with as much", "counterparts"]
PAPER = "Gurnee et al. 2024, section 4.1"
PUBLISHED = 0.5  # excess above which a neuron is universal


@dataclass(frozen=True, kw_only=True)
class UniversalNeuronOptions:
    """The share of universal neurons, by model and by layer. The excess of a neuron is its largest correlation with a
    neuron of another model minus the largest in a rotated basis (mean over rotations), averaged over the other models.
    As a control, each rotated basis is compared with the other rotated ones in the same way.

    threshold: a neuron is universal if its excess is above this.
    examples: how many neurons of each model are listed, those of the largest excess.
    """

    threshold: Finite = 0.5
    examples: Medium0 = 5


class VaryingNeurons(NamedTuple):
    """The neurons of a model that vary: of which layer, their number in it, their excess in each other model, and that
    of each rotated basis over the other ones."""

    layer: Int[np.ndarray, " n"]
    number: Int[np.ndarray, " n"]
    excess: Float[np.ndarray, "others n"]
    control: Float[np.ndarray, "others rotations n"]


def split_correlations(values: Float[np.ndarray, "properties n"]) -> tuple[np.ndarray, np.ndarray]:
    """The correlations of a matrix of counterparts, and those in rotated bases."""
    return values[4], values[5:]


def compute_excess_correlation(values: Float[np.ndarray, "properties n"]) -> tuple[np.ndarray, np.ndarray]:
    """Computes the excess of correlations over the mean of rotated bases, and of each such basis over the others."""
    correlation, rotated = split_correlations(values)
    others = (rotated.sum(0) - rotated) / (len(rotated) - 1)
    return correlation - rotated.mean(0), rotated - others


def compute_neuron_excess(matrices: Sequence[np.ndarray]) -> VaryingNeurons:
    """Computes the excess of the neurons of a model. matrices: those of this model with each other model."""
    each, control = zip(*map(compute_excess_correlation, matrices), strict=True)
    layer, number = matrices[0][:2].astype(int)
    return VaryingNeurons(layer, number, np.stack(each), np.stack(control))


def make_layer_curves(
    model: str, layers: Sequence[str], neurons: VaryingNeurons, threshold: float
) -> Iterator[tuple[str, Curve]]:
    """Draws over the layers of a model the share of its neurons that are universal, and their mean excess.

    layers: their names.
    threshold: the excess above which a neuron is universal.
    """
    mean = neurons.excess.mean(0)
    at = [i for i in range(len(layers)) if (neurons.layer == i).any()]
    for quantity, values in ((SHARE, mean > threshold), (EXCESS, mean)):
        yield (
            f"{quantity}, {model}",
            Curve(
                x=Axis(name="layer"),
                y=Axis(name=quantity),
                at=[layers[i] for i in at],
                lines={"neurons": [float(values[neurons.layer == i].mean()) for i in at]},
                bounds=[0.0, 1.0] if quantity == SHARE else [None, None],
                about={"quantity": quantity, "model": model},
            ),
        )


Excesses = Mapping[str, Mapping[str, Float[np.ndarray, " n"]]]  # of a model's neurons in each other model


@claim(
    PAPER,
    statistic="largest correlation of a neuron with one of another model, minus that in rotated bases: mean",
    threshold=0.0,
    unit="model",
)
def neurons_match_better_than_rotated_bases(excesses: Excesses) -> Weighed | Untestable:
    """Neurons of models that differ in their seed correlate more than directions of a randomly rotated basis."""
    return _average_over_models(excesses, 0.0, lambda others: float(np.mean([x.mean() for x in others])))


@claim(PAPER, statistic="share of universal neurons: mean over models", threshold=0.01, unit="model")
def one_percent_of_neurons_are_universal(excesses: Excesses) -> Weighed | Untestable:
    """One to five percent of neurons are universal."""
    step = max((1 / len(x) for others in excesses.values() for x in others.values()), default=0.0)
    return _average_over_models(
        excesses, 0.01, lambda others: float((np.mean(others, axis=0) > PUBLISHED).mean()), step
    )


def _average_over_models(
    excesses: Excesses, threshold: float, of: Callable[[list[np.ndarray]], float], step: float = 0.0
) -> Weighed | Untestable:
    """The mean over models of what their neurons have in the others; models are left out, for pairs share them."""

    def mean(left_out: str = "") -> float:
        kept = [
            [values for other, values in others.items() if other != left_out]
            for model, others in excesses.items()
            if model != left_out
        ]
        return float(np.mean([of(others) for others in kept])) if kept and all(kept) else float("nan")

    return Weighed(mean(), weigh_by_jackknife(mean(), threshold, [mean(model) for model in excesses], "model", step))


# ---- figures ----


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """universal-neurons, by-layer-mean_excess_correlation; on demand by-layer-share_of_universal_neurons"""
    yield "universal-neurons", partial(_draw_excesses, run, run.results.analyses["universal_neurons"]["options"])
    curves = {name: x for name, x in run.results.curves.items() if whole or x.about["quantity"] == EXCESS}
    yield from list_layer_figures(curves, "universal_neurons", run.seeds)


def _draw_excesses(run: Finished, options: Mapping[str, Any]) -> Any:
    """The share of neurons of at least each excess, by model, and dashed that of rotated bases."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 * PANEL[0], PANEL[1]))
    axes = figure.subplots()
    models = _group_matrices_by_model(run)
    for (model, matrices), colour in zip(models.items(), repeat_values(COLOURS, len(models)), strict=True):
        neurons = compute_neuron_excess([run.array(matrix.values) for matrix in matrices])
        for values, style in ((neurons.excess.mean(0), "-"), (neurons.control.mean(0).ravel(), ":")):
            label = model if style == "-" else None
            axes.step(np.sort(values), 1 - np.arange(len(values)) / len(values), color=colour, ls=style, label=label)
    axes.plot([], [], color="0.4", ls=":", label="rotated bases")
    axes.axvline(options["threshold"], color="0.4", linewidth=0.8)
    axes.text(options["threshold"], 1.03, " universal", fontsize=7, color="0.4", transform=axes.get_xaxis_transform())
    axes.set_yscale("log")
    axes.set_xlabel("excess correlation, mean over the other models", fontsize=8)
    axes.set_ylabel("share of neurons of at least this", fontsize=8)
    axes.tick_params(labelsize=7)
    draw_light_grid(axes)
    add_legend_beside(axes)
    set_headline(figure, f"{list_models(list(models))}: how many neurons have a counterpart in the other models")
    return figure


def _group_matrices_by_model(run: Finished) -> dict[str, list[Matrix]]:
    """The matrices of each model."""
    matrices = run.select_kind(COUNTERPARTS)
    names = dict.fromkeys(matrix.rows.model for matrix in matrices)
    return {name: [matrix for matrix in matrices if matrix.rows.model == name] for name in names}


def _list_example_neurons(
    matrices: Sequence[Matrix], arrays: Sequence[np.ndarray], neurons: VaryingNeurons, count: int
) -> list[Any]:
    """Lists the neurons of the largest excess, each with how many of the rotated bases have a direction of as much."""
    mean, layers = neurons.excess.mean(0), matrices[0].about["layers"]
    reached = neurons.control.mean(0).max(1)  # by the best direction of each rotated basis
    rows = []
    for i in np.argsort(-mean, kind="stable")[:count]:
        partners = [
            f"{about['other']} {about['layers of the other'][int(x[2, i])]} {int(x[3, i])} ({write_share(x[4, i])})"
            for about, x in zip((matrix.about for matrix in matrices), arrays, strict=True)
        ]
        layer = layers[neurons.layer[i]]
        as_much = f"{np.count_nonzero(reached >= mean[i])} of {len(reached)}"
        known = [matrices[0].rows.model, layer, int(neurons.number[i]), float(mean[i])]
        rows.append([*known, as_much, ", ".join(partners)])
    return rows


@analysis(studies=("universal_neurons",), unasked=lambda planned: True, figures=draw_figures)
def universal_neurons(run: Finished, options: UniversalNeuronOptions, claims: Sequence[Claim]) -> Part:
    models, pairs, examples, curves = [], [], [], {}
    excesses: dict[str, dict[str, np.ndarray]] = {}
    for model, matrices in _group_matrices_by_model(run).items():
        arrays = [run.array(matrix.values) for matrix in matrices]
        neurons = compute_neuron_excess(arrays)
        means = np.array([[part.mean() for part in split_correlations(x)] for x in arrays])
        above = neurons.excess.mean(0) > options.threshold
        controls = neurons.control.mean(0) > options.threshold
        about = matrices[0].about
        models.append(
            [model, about["neurons"], about["constant"], len(matrices), *means.mean(0).tolist(),
             float(neurons.excess.mean()), float(above.mean()), float(controls.mean()),
             *compute_wilson_interval(above.astype(float), np.arange(len(above)))]
        )  # fmt: skip
        if model not in run.untrained:
            beside = zip(matrices, neurons.excess, strict=True)
            excesses[model] = {m.about["other"]: x for m, x in beside if m.about["other"] not in run.untrained}
        for matrix, mean, excess in zip(matrices, means, neurons.excess, strict=True):
            share = float((excess > options.threshold).mean())
            pairs.append([model, matrix.about["other"], *mean.tolist(), float(excess.mean()), share])
        examples += _list_example_neurons(matrices, arrays, neurons, options.examples)
        curves |= dict(make_layer_curves(model, about["layers"], neurons, options.threshold))
    return Part(
        tables={
            "universal neurons": Table(columns=MODELS, rows=models),
            "counterparts by pair of models": Table(columns=PAIRS, rows=pairs),
            "neurons of the largest excess": Table(columns=NEURONS, rows=examples),
        },
        curves=curves,
        claims=[each.verdict("excess correlation", excesses) for each in claims],
    )
