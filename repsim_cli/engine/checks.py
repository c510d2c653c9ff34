"""Checks of what the similarity of all layers is asked for: each raises BadInput, before any weights load."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from repsim_cli.activations.readings import Layer, Reading
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import say_count
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.settings import STREAMED, Extract, Group, Significance
from repsim_cli.engine.estimates import check_estimate
from repsim_cli.engine.grouped import check_metrics
from repsim_cli.measures import Measure
from repsim_cli.models.source import AnySource, Precomputed, PrecomputedWords, Source
from repsim_cli.runs.results import Run

T = TypeVar("T")

FEWEST = 3  # rows; after centring, two rows are alike in all representations
FEWEST_DOCUMENTS = 3  # of whose rows pairs can be left out
FEW = 30  # rows, that many measures say little about


def select_suitable(
    measures: Mapping[str, T], check: Callable[[T], None], skip: bool
) -> tuple[dict[str, T], dict[str, str]]:
    """The measures that `check` accepts, and by label why each of the others is skipped.

    Raises BadInput for the first measure that `check` refuses, where none may be skipped or all would be.
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


def count_rows_at_once(extract: Extract, total: int) -> int:
    """Counts the rows that one value is computed from. total: all rows."""
    if extract.estimate in STREAMED:
        return total
    return min(total, extract.rows) if extract.estimate == "full" else extract.batch_rows


def check_measure(bound: Measure, layers: Sequence[Layer], extract: Extract, *, labelled: bool) -> None:
    """Raises BadInput where the measure does not suit the layers or settings. labelled: whether rows have a class."""
    check_estimate(bound, extract.estimate)
    if bound.card.equal_widths and extract.drop_features < 1:
        raise BadInput(
            f"extract.drop_features: {bound.name} compares feature by feature, got {extract.drop_features}; use "
            "extract.normalise=features, or another measure"
        )
    key = "rows" if extract.estimate == "full" else "batch_rows"
    rows = sys.maxsize if extract.estimate in STREAMED else getattr(extract, key)
    if rows < bound.rows_needed:
        advice = "raise it, or give more data" if key == "rows" else "raise it"
        raise BadInput(f"extract.{key}: {bound.name} needs at least {bound.rows_needed} rows, got {rows}; {advice}")
    check_widths(bound, layers, rows)
    if bound.card.labelled and not labelled:
        raise BadInput(f"measure: {bound.name} needs a label per row, got data without labels; use e.g. data=mnli")


def check_widths(bound: Measure, layers: Sequence[Layer], rows: int) -> None:
    """Checks that the measure takes these widths, with this number of rows."""
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
    """Raises BadInput where a value is computed from too few rows. rows: counted, as by `count_rows_at_once`."""
    if rows < (needed := max(bound.rows_needed, FEWEST)):
        raise BadInput(
            f"data: {bound.name} needs at least {needed} rows, got {rows}; give more rows (more text, or a larger "
            "extract.sequences)"
        )
    check_widths(bound, layers, rows)


def warn_of_few_rows(
    run: Run, measures: Mapping[str, Measure], layers: Sequence[Layer], rows: int, used: int, significance: Significance
) -> None:
    """Warns of what inflates values, unless chance stands beside them (significance). rows: of an estimate at a time,
    of `used` in all."""
    if used < FEW:
        advice = "" if significance.method != "none" else ", or use significance=permutation"
        run.warn(f"{used} rows are few: values scatter widely by chance; give more{advice}")
    wide = None if significance.chance else next((layer for layer in layers if rows <= layer.width), None)
    for name, bound in measures.items():
        if bound.card.width_limit and wide:
            run.warn(f"{name}: {rows} rows for {wide.width} features ({wide}); {bound.card.width_limit}")


def needs_clusters(significance: Significance) -> bool:
    """Tells whether a test or an error of these settings depends on which rows depend on each other."""
    return significance.method != "none" or significance.jackknife


def are_documents_known(models: Mapping[str, AnySource]) -> bool:
    """Tells whether it is known which rows are of one document."""
    return any(isinstance(x, Source | PrecomputedWords) or x.documents is not None for x in models.values())


def check_documents(significance: Significance, models: Mapping[str, AnySource]) -> None:
    """Raises BadInput where a test needs to know which stored rows depend on each other, and nothing says so."""
    if needs_clusters(significance) and significance.clusters == "document" and not are_documents_known(models):
        raise BadInput(
            f"significance.clusters: nothing says which rows of '{next(iter(models))}' depend on each "
            "other; give the document of each row (`documents` beside the arrays, or documents=[...] from Python), "
            "or declare the rows independent with significance.clusters=row"
        )


def check_pairs(extract: Extract, models: Mapping[str, AnySource]) -> None:
    """Raises BadInput where pairs of rows of one document are to be left out, and nothing says which these are."""
    if extract.pairs == "other_documents" and not are_documents_known(models):
        raise BadInput(
            f"extract.pairs: nothing says which rows of '{next(iter(models))}' are of one document, got "
            "other_documents; give the document of each row (`documents` beside the arrays, or documents=[...] from "
            "Python), or set extract.pairs=all"
        )


def check_constant(models: Mapping[str, AnySource], measures: Mapping[str, Measure]) -> None:
    """Raises BadInput where no two layers have a value, since all rows are equal in most of the stored ones."""
    stored = {label: source for label, source in models.items() if isinstance(source, Precomputed)}
    if len(stored) < len(models) or any(measure.card.takes_constant for measure in measures.values()):
        return
    equal = [
        f"'{name}' of '{label}'" for label, source in stored.items() for name in source.names if name in source.constant
    ]
    layers = sum(len(source.names) for source in stored.values())
    if equal and layers - len(equal) < min(2, layers):
        more = f" and {len(equal) - 1} more of {layers} layers" if len(equal) > 1 else ""
        raise BadInput(
            f"model: no two layers have a value, since all rows are equal in stored ones, got {equal[0]}{more}; "
            "store other rows"
        )


def say_lacking_pairs(sizes: Sequence[int], measures: Mapping[str, Measure]) -> str:
    """Says why a batch has too few pairs of rows of different documents, if so. sizes: rows of each document."""
    if len(sizes) < FEWEST_DOCUMENTS:
        return f"rows of {say_count(len(sizes), 'document')}, where {FEWEST_DOCUMENTS} are needed"
    left, needed = sum(sizes) - max(sizes), max(bound.rows_needed for bound in measures.values() if bound.apart)
    return "" if left >= needed else f"{left} rows beside those of its largest document, where {needed} are needed"


def check_groups(
    groups: Mapping[str, Group],
    models: Mapping[str, AnySource],
    readings: Sequence[Reading],
) -> None:
    """Checks that the models of all groups have the same layers."""
    if not groups:
        return
    check_metrics(groups, models)
    first, *others = readings
    for reading in others:
        names, wanted = ([layer.name for layer in either.layers] for either in (reading, first))
        if names != wanted:
            raise BadInput(
                f"groups: models of equal depth are needed, got {len(wanted)} layers of '{first.label}' and "
                f"{len(names)} of '{reading.label}'; leave one of them out, or choose extract.layers that both have"
            )


def check_targets(targets: str | None, models: Mapping[str, AnySource]) -> None:
    if targets is not None and targets not in models:
        raise BadInput(f"options.targets: no such model, got '{targets}'; {did_you_mean(targets, models)}")
    if targets is not None and len(models) < 2:
        raise BadInput(f"options.targets: a model to compare with is needed, got '{targets}' alone; add one")


def check_within(asked: Mapping[str, object]) -> None:
    """Raises BadInput where pairs within models are compared, and a setting needs the layers of all models.

    asked: by key, the settings that do.
    """
    for key, value in asked.items():
        if value:
            raise BadInput(
                f"options.within: {key} needs the layers of all models, got pairs within models alone; drop one"
            )
