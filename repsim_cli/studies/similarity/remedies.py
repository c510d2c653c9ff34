"""The map of a run under each remedy, for the analysis `robustness`: the same models, other rows or scales."""

from collections.abc import Mapping
from dataclasses import replace

from repsim_cli.activations.remedies import skip_in_all
from repsim_cli.activations.rows import count_run_rows
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import find_free_key
from repsim_cli.base.remedies import REMEDIES
from repsim_cli.base.settings import Extract, Significance
from repsim_cli.data.base import Sequences
from repsim_cli.engine.checks import check_measure, check_rows, count_rows_at_once
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.matrices import compute_matrices
from repsim_cli.engine.record import measure_record
from repsim_cli.engine.without_value import NoValue
from repsim_cli.measures import Measure
from repsim_cli.runs.content import REMEDY, Matrix
from repsim_cli.runs.results import Run

NONE = {"skip": 0, "skip_tokens": [], "drop_features": 1.0, "normalise": "none"}
NOTED = ("models_run", "matrices_cached")  # in the manifest, of the run's own maps


def compare_under_remedies(run: Run, comparison: Comparison, sequences: Mapping[str, Sequences]) -> dict[str, Matrix]:
    """The matrices of every measure under each remedy that the rows have. What a remedy cannot be applied to is left
    out, with a warning; only models of sequences have places to skip.

    The activations come from the cache; without one, the models run again for each remedy.
    """
    noted = {key: run.manifest.get(key) for key in NOTED}
    matrices: dict[str, Matrix] = {}
    for name, settings in REMEDIES.items():
        if "skip" in settings and not sequences:
            continue
        extract = replace(comparison.extract, **{**NONE, **settings})
        try:
            made = _compare_under_remedy(run, comparison, name, extract, sequences)
        except (BadInput, NoValue) as error:
            run.warn(f"robustness: the remedy '{name}' is left out ({error})")
            continue
        matrices |= made
    run.manifest.update(noted)
    return matrices


def _compare_under_remedy(
    run: Run, comparison: Comparison, name: str, extract: Extract, sequences: Mapping[str, Sequences]
) -> dict[str, Matrix]:
    """The matrices of one remedy. Raises BadInput where it does not suit the rows, or no measure of the run."""
    raw = {label: replace(given, skip=None, left_out=None) for label, given in sequences.items()}
    given = skip_in_all(raw, comparison.tokenizers, extract)
    total = count_run_rows(comparison.readings, given, extract)
    treated = replace(comparison, extract=extract, total=total, significance=Significance(chance=False, floor=False))
    treated = replace(treated, measures=_select_suitable_measures(run, comparison, name, extract, total)).add_clusters(
        run, given
    )
    made, _ = compute_matrices(run, treated, given, identities=run.manifest["models"])
    matrices = {}
    for label, matrix in made.items():
        about = {"kind": REMEDY, "measure": label.removesuffix(f", {name}"), "remedy": name}
        for part in measure_record(run, treated, label, matrix).matrices:
            matrices[find_free_key(f"{label}, {part.rows.model}, {part.columns.model}", matrices)] = replace(
                part, about=about
            )
    return matrices


def _select_suitable_measures(
    run: Run, comparison: Comparison, name: str, extract: Extract, total: int
) -> dict[str, Measure]:
    """The measures that the remedy leaves enough to, by the names of their matrices."""
    kept, problems = {}, []
    for label, bound in comparison.measures.items():
        try:
            check_measure(bound, comparison.layers, extract, labelled=True)
            check_rows(bound, comparison.layers, count_rows_at_once(extract, total))
            if extract.estimate in ("per_batch", "ratio_of_sums") and total < extract.batch_rows:
                raise BadInput(f"extract.batch_rows: too few rows are left, got {total}; lower it")
        except BadInput as error:
            problems.append(error)
            continue
        kept[f"{label}, {name}"] = bound
    if not kept:
        raise problems[0]
    for problem in problems:
        run.warn(f"robustness: under the remedy '{name}' a measure is left out ({problem})")
    return kept
