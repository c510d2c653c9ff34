"""What fine-tuning changed: the similarity of every layer with the same layer of the model that others come from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from repsim_cli.content import Axis, Curve
from repsim_cli.draw.lines import of_layers
from repsim_cli.errors import BadInput
from repsim_cli.findings.analysis import Finished, Job, Part, Planned, analysis, asked
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import thirds
from repsim_cli.findings.maps import Map, map_of

Places = Mapping[str, slice]


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """Similarity of every layer with the same layer of `base`, for all models as deep as it. It has no settings."""

    def check(self, planned: Planned) -> None:
        if planned.base is None:
            raise BadInput("no base to compare with, got base=null; set base=LABEL")


def to_base(values: Float[np.ndarray, "r r"], places: Places, base: str) -> dict[str, Float[np.ndarray, " l"]]:
    """Of every model as deep as the base: the similarity of its layers with the same layers of the base, the base's
    layer explained by the model's."""
    rows = places[base]
    return {
        label: values[rows, place].diagonal()
        for label, place in places.items()
        if label != base and place.stop - place.start == rows.stop - rows.start
    }


CHANGE = "mean similarity with the same layer of the base: lower third minus upper third"


@claim("Wu et al. 2020, section 6", statistic=CHANGE, threshold=0.0, on="cka")
def top_layers_change_most(whole: Map) -> Weighed | Untestable:
    """Fine-tuning changes the top layers most."""
    if "cka" not in whole.values:
        return Untestable("needs the measure cka")
    return _changes_at_the_top(whole, whole.values["cka"])


@claim("Wu et al. 2020, section 6, figure 6", statistic=CHANGE, threshold=0.0, on="map")
def top_attention_changes_most(whole: Map, values: np.ndarray) -> Weighed | Untestable:
    """Fine-tuning changes the attention of the top layers most."""
    return _changes_at_the_top(whole, values)


def _changes_at_the_top(whole: Map, values: np.ndarray) -> Weighed | Untestable:
    if whole.base is None:
        return Untestable("needs a base")
    curves = [curve for curve in to_base(values, whole.models, whole.base).values() if len(curve) > 2]
    if not curves:
        return Untestable("no model has the base's layers, three or more")
    return Weighed(*thirds(np.mean(curves, axis=0)))


def figures(run: Finished, whole: bool) -> Iterator[Job]:
    """by-layer-MEASURE_with_BASE"""
    yield from of_layers(run.results.curves, "base_model")


@analysis(studies=("similarity", "attention"), unasked=lambda planned: planned.base is not None, figures=figures)
def base_model(run: Finished, options: BaseModel, claims: Sequence[Claim]) -> Part:
    lines: dict[str, Curve] = {}
    for label, layers in run.maps.items() if run.base in run.models else ():
        for model, values in to_base(layers.values, layers.places, str(run.base)).items():
            name = f"{label} with {run.base}"
            lines[f"{name}, {model}"] = Curve(
                x=Axis(name="layer"),
                y=Axis(name=f"{layers.measure.card['label']} with {run.base}"),
                at=layers.names[layers.places[str(run.base)]],
                lines={"same layer": values.tolist()},
                about={"quantity": name, "model": model},
            )
    whole, labels = map_of(run)
    verdicts = [one.verdict(label, whole, whole.values[name])
                for one in asked(claims, "map") for name, label in labels.items()]  # fmt: skip
    verdicts += [one.verdict(labels.get("cka", "cka"), whole) for one in asked(claims, "cka")]
    return Part(curves=lines, claims=verdicts)
