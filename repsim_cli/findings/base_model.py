"""What fine-tuning changed: the similarity of every layer with the same layer of the model that others come from, and
with that of other seeds of the same training and of other trainings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import find_free_key, slug
from repsim_cli.figures.heatmap import draw_small_heatmaps, name_by_block
from repsim_cli.figures.lines import list_layer_figures
from repsim_cli.findings.analysis import Finished, Job, LayerMap, Part, Planned, analysis, select_claims
from repsim_cli.findings.chance import find_chance_mark, list_chance_levels
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import (
    DEEP,
    FEWEST,
    compare_outer_thirds,
    require_shared_trend,
    weigh_by_jackknife,
    weigh_mean,
)
from repsim_cli.findings.layer_maps import ClaimMap, map_of
from repsim_cli.runs.content import Axis, Curve, Table

BASE, SEEDS, OTHERS = "same layer", "other seeds", "other trainings"  # what a layer is compared with
TABLE = "similarity with the base"
COLUMNS = ["measure", "training", "models", "third", "with the base", "with other seeds", "with other trainings"]


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """Similarity of every layer with the same layer of `base`, for all models of its architecture, depth and width.

    Where entries of `model` stand for several seeds, also with the same layer of the other seeds of its training: the
    difference of the two is what a training changes alike in every seed. Where there are several trainings, also with
    the same layer of models of the others. There are no settings.
    """

    def check(self, planned: Planned) -> None:
        if planned.base is None:
            raise BadInput("no base to compare with; set base=LABEL")


def compute_similarity_to_base(
    values: Float[np.ndarray, "r r"], whole: ClaimMap, base: str
) -> dict[str, Float[np.ndarray, " l"]]:
    """Takes the similarity of each model's layers with the same layers of the base, the base's layer explained by the
    model's. A model may come from the base if it has its architecture, depth and widths; others are left out."""
    rows = whole.models[base]
    return {
        label: values[rows, place].diagonal()
        for label, place in whole.models.items()
        if label != base and whole.shape(label) == whole.shape(base)
    }


def compare_with_base(
    values: Float[np.ndarray, "r r"], whole: ClaimMap, base: str
) -> dict[str, dict[str, Float[np.ndarray, " l"]]]:
    """Takes, by model, the similarity of its layers with the same layers of the base (BASE), and, where every model has
    them, the mean similarity with those of other seeds of its training (SEEDS) and of models of other trainings
    (OTHERS).
    """
    bases = compute_similarity_to_base(values, whole, base)
    lines = {label: {BASE: line} for label, line in bases.items()}
    for name, same in ((SEEDS, True), (OTHERS, False)):
        beside = {
            label: [x for x in bases if x != label and (whole.entry(x) == whole.entry(label)) == same]
            for label in bases
        }
        for label, others in beside.items() if all(beside.values()) else ():
            place = whole.models[label]
            lines[label][name] = np.mean([values[place, whole.models[x]].diagonal() for x in others], axis=0)
    return lines


CHANGE = "mean similarity with the same layer of the base, over trainings: lower third minus upper third"
BASES = f"needs a base of {DEEP} layers or more, and {FEWEST} trainings of models of its layers"


@claim("Wu et al. 2020, section 6", statistic=CHANGE, threshold=0.0, unit="task", on="cka")
def top_layers_change_most(whole: ClaimMap) -> Weighed | Untestable:
    """Fine-tuning changes the top layers most."""
    if "cka" not in whole.values:
        return Untestable("needs the measure cka")
    return _measure_late_changes(whole, whole.values["cka"])


@claim("Wu et al. 2020, section 6, figure 6", statistic=CHANGE, threshold=0.0, unit="task", on="map")
def top_attention_changes_most(whole: ClaimMap, values: np.ndarray) -> Weighed | Untestable:
    """Fine-tuning changes the attention of the top layers most."""
    return _measure_late_changes(whole, values)


def _measure_late_changes(whole: ClaimMap, values: np.ndarray) -> Weighed | Untestable:
    """Weighs how much more late layers change than early ones. Seeds of one training are one unit. All units are of
    this base, whose layers they share."""
    if whole.base is None:
        return Untestable(BASES)
    by_training: dict[str, list[np.ndarray]] = {}
    for label, curve in compute_similarity_to_base(values, whole, whole.base).items():
        if label not in whole.untrained and len(curve) >= DEEP:
            by_training.setdefault(whole.entry(label), []).append(curve)
    if not by_training:
        return Untestable(BASES)
    curves = [np.mean(of_seeds, axis=0) for of_seeds in by_training.values()]
    falls = [compare_outer_thirds(curve) for curve in curves]
    return Weighed(
        float(np.mean(falls)), require_shared_trend(weigh_mean(falls, 0.0, "task"), [-curve for curve in curves])
    )


@claim(
    "Wu et al. 2020, section 6, figures 5 and 6",
    statistic="mean similarity with the same layer of models of other trainings: lower third minus upper third",
    threshold=0.0,
    unit="task",
    on="map",
)
def tasks_diverge_at_the_top(whole: ClaimMap, values: np.ndarray) -> Weighed | Untestable:
    """Bottom layers remain similar to one another even when fine-tuning on different tasks, top layers diverge."""
    if whole.base is None:
        return Untestable(BASES)
    tuned = [label for label in compute_similarity_to_base(values, whole, whole.base) if label not in whole.untrained]
    curves = {
        (a, b): (values[whole.models[a], whole.models[b]] + values[whole.models[b], whole.models[a]].T).diagonal() / 2
        for a, b in combinations(tuned, 2)
        if whole.entry(a) != whole.entry(b)
    }
    if not curves or len(next(iter(curves.values()))) < DEEP:
        return Untestable(BASES)

    def average_over_model_pairs(left_out: str = "") -> np.ndarray:
        """Averages over pairs of models, without those of one training, since pairs share trainings."""
        rest = [x for pair, x in curves.items() if left_out not in map(whole.entry, pair)]
        return np.mean(rest, axis=0) if rest else np.full(len(next(iter(curves.values()))), np.nan)

    without = [
        compare_outer_thirds(average_over_model_pairs(training)) for training in dict.fromkeys(map(whole.entry, tuned))
    ]
    evidence = weigh_by_jackknife(compare_outer_thirds(average_over_model_pairs()), 0.0, without, "task")
    return Weighed(
        compare_outer_thirds(average_over_model_pairs()), require_shared_trend(evidence, [-average_over_model_pairs()])
    )


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """by-layer-MEASURE_with_BASE, MEASURE-with-BASE"""
    yield from list_layer_figures(run.results.curves, "base_model", run.seeds)
    for label, layers in run.maps.items() if run.base in run.models else ():
        yield slug(label, "with", str(run.base)), partial(_draw_beside_base, run, layers, str(run.base))


def _draw_beside_base(run: Finished, layers: LayerMap, base: str) -> Any:
    """Draws a small matrix of every model: the layers of the base against its layers."""
    measure, rows = layers.measure, layers.places[base]
    matrices = [
        (model, layers.values[rows, place], layers.names[rows], layers.names[place])
        for model, place in layers.places.items()
        if model != base
    ]
    _, said = name_by_block(layers.names)
    title = f"{measure.card['label']} with {base}" + (f", {said}" if said else "")
    owners = [model for model, place in layers.places.items() for _ in layers.names[place]]
    chance, level = find_chance_mark(run, measure, layers.values, owners, owners)
    figure, axes = draw_small_heatmaps(matrices, measure.card, title + (f"\n{level}" if level else ""), chance)
    axes[0].set_ylabel(base, fontsize=7, parse_math=False)
    return figure


def _tabulate(label: str, lines: Mapping[str, Mapping[str, np.ndarray]], whole: ClaimMap) -> Iterator[list[Any]]:
    """Means over the models of a training and over a third of its layers."""
    for entry in dict.fromkeys(whole.entry(model) for model in lines):
        of_entry = [line for model, line in lines.items() if whole.entry(model) == entry]
        third = len(of_entry[0][BASE]) // 3
        if third == 0:
            continue
        parts = {"lower": slice(third), "middle": slice(third, -third), "upper": slice(-third, None)}
        for part, layers in parts.items():
            means = [
                float(np.mean([line[name][layers] for line in of_entry])) if name in of_entry[0] else None
                for name in (BASE, SEEDS, OTHERS)
            ]
            yield [label, entry, len(of_entry), part, *means]


@analysis(
    studies=("similarity", "attention"),
    unasked=lambda planned: planned.base is not None and not planned.options.get("within"),
    figures=draw_figures,
)
def base_model(run: Finished, options: BaseModel, claims: Sequence[Claim]) -> Part:
    lines: dict[str, Curve] = {}
    rows: list[list[Any]] = []
    whole, labels = map_of(run)
    for label, layers in run.maps.items() if run.base in run.models else ():
        by_model = compare_with_base(layers.values, whole, str(run.base))
        name, levels = f"{label} with {run.base}", list_chance_levels(run, layers)
        for model, values in by_model.items():
            lines[find_free_key(f"{name}, {model}", lines)] = Curve(
                x=Axis(name="layer"),
                y=Axis(
                    name=layers.measure.card["label"]
                    if len(values) > 1
                    else f"{layers.measure.card['label']} with {run.base}"
                ),
                at=layers.names[layers.places[str(run.base)]],
                lines={way: line.tolist() for way, line in values.items()},
                about={"quantity": name, "model": model, "levels": levels},
            )
        rows += _tabulate(label, by_model, whole)
    verdicts = [claim.verdict(label, whole, whole.values[name])
                for claim in select_claims(claims, "map") for name, label in labels.items()]  # fmt: skip
    verdicts += [claim.verdict(labels.get("cka", "cka"), whole) for claim in select_claims(claims, "cka")]
    tables = {TABLE: Table(columns=COLUMNS, rows=rows)} if rows else {}
    return Part(curves=lines, tables=tables, claims=verdicts)
