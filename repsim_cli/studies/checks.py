"""What the similarity of all layers may be asked for: each function raises BadInput, before any weight loads."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from repsim_cli.activations.rows import Layer, Reading
from repsim_cli.analysis.claims.sub_networks import LAYER_CLAIMS
from repsim_cli.analysis.sub_networks import FEWEST, Labels, parsed
from repsim_cli.errors import BadInput
from repsim_cli.measures import Measure
from repsim_cli.measures.base import cosine
from repsim_cli.models.source import AnySource
from repsim_cli.registry import did_you_mean
from repsim_cli.results import Run
from repsim_cli.settings import Extract, Group, SubNetworks
from repsim_cli.similarity import check_estimate
from repsim_cli.studies.grouped import check_metrics

T = TypeVar("T")


def suitable(measures: Mapping[str, T], check: Callable[[T], None], skip: bool) -> tuple[dict[str, T], dict[str, str]]:
    """The measures that `check` accepts, and by label the reason why each other one is skipped.

    Raises BadInput for the first that it refuses, where none may be skipped or all would be.
    """
    kept, skipped = {}, {}
    for label, bound in measures.items():
        try:
            check(bound)
        except BadInput as error:
            skipped[label] = str(error)
        else:
            kept[label] = bound
    if skipped and not (skip and kept):
        first, *others = skipped.values()
        unsuitable = f" ({len(skipped)} of {len(measures)} measures are unsuitable)" if others else ""
        raise BadInput(f"{first}{unsuitable}" + ("; skip_unsuitable=true runs the others" if kept else ""))
    return kept, skipped


def check_measure(bound: Measure, layers: Sequence[Layer], extract: Extract, *, labelled: bool) -> None:
    """labelled: whether rows can have a class."""
    check_estimate(bound, extract.estimate)
    key = "rows" if extract.estimate == "full" else "batch_rows"
    rows = sys.maxsize if extract.estimate == "moments" else getattr(extract, key)
    if rows < bound.rows_needed:
        raise BadInput(f"extract.{key}: {bound.name} needs at least {bound.rows_needed} rows, got {rows}; raise it")
    check_widths(bound, layers, rows)
    if bound.card.labelled and not labelled:
        raise BadInput(f"measure: {bound.name} needs a label per row, got data without labels; use e.g. data=mnli")


def check_widths(bound: Measure, layers: Sequence[Layer], rows: int) -> None:
    """Whether the measure takes these widths, with this number of rows."""
    wide = max(layers, key=lambda layer: layer.width)
    narrow = min(layers, key=lambda layer: layer.width)
    if bound.card.equal_widths and wide.width != narrow.width:
        raise BadInput(
            f"measure: {bound.name} needs equal widths, got {narrow.width} ({narrow}) and {wide.width} ({wide}); "
            "use procrustes or cka_unbiased, or models of one width"
        )
    if bound.card.infinite_to_itself:
        raise BadInput(
            f"measure: {bound.name} of a layer with itself is infinite, got all pairs of layers; "
            "compare two arrays with `repsim measure`, or use mean_cca"
        )
    if bound.card.refuses_wide and rows <= wide.width:
        raise BadInput(
            f"measure: {bound.name} needs more rows than features, got {rows} for {wide.width} ({wide}); "
            "give it more rows, or use cka_unbiased"
        )


def check_rows(bound: Measure, layers: Sequence[Layer], rows: int) -> None:
    """Whether so many rows at a time are enough, once they are counted."""
    if rows < bound.rows_needed:
        raise BadInput(f"data: {bound.name} needs at least {bound.rows_needed} rows, got {rows}; give more text")
    check_widths(bound, layers, rows)


def warn_of_few_rows(run: Run, measures: Mapping[str, Measure], layers: Sequence[Layer], rows: int) -> None:
    wide = next((layer for layer in layers if rows <= layer.width), None)
    for name, bound in measures.items():
        if bound.card.width_limit and wide:
            run.warn(f"{name}: {rows} rows for {wide.width} features ({wide}); {bound.card.width_limit}")


def check_groups(
    groups: Mapping[str, Group],
    models: Mapping[str, AnySource],
    readings: Sequence[Reading],
    *,
    distances: bool,
) -> None:
    """Whether models of groups have counterparts, and whether there are enough groups for distances."""
    if distances and len(groups) < 2:
        raise BadInput(f"options.distances: clusters need 2 groups, got {len(groups)}; set groups")
    if not groups:
        return
    check_metrics(groups, models)
    first, *others = readings
    for reading in others:
        own, wanted = ([layer.name for layer in one.layers] for one in (reading, first))
        if own != wanted:
            raise BadInput(
                f"groups: models of equal depth are needed, got {len(wanted)} layers of '{first.label}' and "
                f"{len(own)} of '{reading.label}'; leave one of them out, or choose extract.layers that both have"
            )


def check_distance(bound: Measure) -> None:
    """Whether distances of models follow from the measure."""
    if not bound.card.is_metric and (bound.inner is None or bound.inner.value is not cosine):
        raise BadInput(
            f"options.distances: {bound.name} is neither a metric nor a cosine, got no angle; use cka_unbiased"
        )


def check_targets(targets: str | None, models: Mapping[str, AnySource]) -> None:
    if targets is not None and targets not in models:
        raise BadInput(f"options.targets: no such model, got '{targets}'; {did_you_mean(targets, models)}")
    if targets is not None and len(models) < 2:
        raise BadInput(f"options.targets: a model to compare with is needed, got '{targets}' alone; add one")


def check_within(claims: Sequence[str], **asked: object) -> None:
    """asked: by key, what compares layers of different models."""
    for key, value in {**asked, "options.claims": [name for name in claims if name not in LAYER_CLAIMS]}.items():
        if value:
            raise BadInput(
                f"options.within: {key} needs the layers of all models, got pairs within models alone; drop one"
            )


def given_groups(asked: SubNetworks | None, readings: Sequence[Reading], targets: str | None) -> dict[str, Labels]:
    """The groups of layers that sub-networks are compared with, by model."""
    if asked is None:
        return {}
    where, count = "options.sub_networks", asked.clusters or 1
    depths = {reading.label: len(reading.layers) for reading in readings if reading.label != targets}
    if max(depths.values()) < FEWEST:
        raise BadInput(f"{where}: {FEWEST} layers of a model are needed, got {max(depths.values())}; read more")
    for label, depth in depths.items():
        if FEWEST <= depth < count:
            raise BadInput(f"{where}.clusters: more than the layers of '{label}', got {count} of {depth}; lower it")
    given = {}
    for label, groups in (asked.given or {}).items():
        if label not in depths:
            raise BadInput(f"{where}.given: no such model, got '{label}'; {did_you_mean(label, depths)}")
        try:
            given[label] = parsed(groups, depths[label])
        except BadInput as error:
            raise BadInput(f"{where}.given.{label}: {error}") from None
    return given


def check_couplings(measures: Mapping[str, Measure], extract: Extract) -> None:
    """Whether there is one matching of rows for a pair of layers."""
    if not any(bound.slow and bound.slow.matches for bound in measures.values()):
        raise BadInput(
            f"options.couplings: no measure matches rows, got {', '.join(measures)}; select gromov_wasserstein"
        )
    if extract.estimate != "full":
        raise BadInput(f"options.couplings: they are of one sample, got {extract.estimate}; use extract.estimate=full")
