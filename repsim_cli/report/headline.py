"""The head of a run's page: what was asked, what the run says in sentences, and how a paper says and cites it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from repsim_cli.base.remedies import say_treatment
from repsim_cli.findings import answering
from repsim_cli.findings.sentences import sentences as written
from repsim_cli.report.studies import QUESTIONS
from repsim_cli.runs.behind import Kept
from repsim_cli.runs.content import Matrix, Measured, Results

MOST = 600  # ordered pairs of models under measures that are put into words
OTHERS = 3  # further measures beside each
LISTED = 3  # models that a title names
ESTIMATES = {
    "full": "one sample",
    "per_batch": "the mean over {batches} batches",
    "ratio_of_sums": "HSIC summed over {batches} batches",
    "moments": "second moments of all rows",
    "sampled": "{rows:,} sampled rows among all",
}


def write_title(manifest: Mapping[str, Any], whole: Results) -> str:
    """Names the models of a run, a training by its name, or the run where they are many."""
    models = list(manifest.get("facts") or manifest.get("models", {}))
    if compared := whole.about.get("verify"):
        models = [compared["reference"], compared["candidate"]]
    if not 2 <= len(models) <= LISTED:
        return manifest["name"]
    return f"{', '.join(models[:-1])} and {models[-1]}"


def say_question(manifest: Mapping[str, Any], whole: Results) -> str:
    """Says what a study asks, or else a comparison of layers; empty for what is neither."""
    if asked := QUESTIONS.get(manifest["study"]):
        return asked
    models = list(manifest.get("models", {}))
    matrices = [matrix for measured in whole.measures for matrix in measured.matrices]
    if not matrices:
        return ""
    if all(matrix.rows.model == matrix.columns.model for matrix in matrices):
        return "Which layers of a model are alike, and how much is above chance?"
    if len(models) == 2:
        return f"Which layers of {models[0]} and {models[1]} answer to each other, and how much is above chance?"
    return f"Which layers of {len(models)} models answer to each other, and how much is above chance?"


def sentences(whole: Results, read: answering.Read, kept: Kept | None) -> list[list[Any]]:
    """Lists for every two models, in both orders, and each measure what it says of them: the models, the measure's
    label, and the sentences, of the other measures after it. Of very many models only the first pairs."""
    between: dict[frozenset[str], list[list[Matrix]]] = {}  # by two models, the matrices of each measure
    for i, measured in enumerate(whole.measures):
        for matrix in measured.matrices:
            pair = frozenset((matrix.rows.model, matrix.columns.model))
            between.setdefault(pair, [[] for _ in whole.measures])[i].append(matrix)
    read, said = cache(read), []
    ways = [(pair, way) for pair, of in between.items() if len(pair) == 2 for way in _name_both_ways(of)]
    for pair, (a, b) in ways[: MOST // max(1, len(whole.measures))]:
        of_two = [replace(m, matrices=some) for m, some in zip(whole.measures, between[pair], strict=True)]
        for first in of_two:
            ordered = [first, *(each for each in of_two if each is not first)][: 1 + OTHERS]
            some = list(written(replace(whole, measures=ordered), read, a, b, kept))
            said.append([a, b, first.label, some])
    return said


def _name_both_ways(matrices: Iterable[Sequence[Matrix]]) -> list[tuple[str, str]]:
    """Names two models in both orders, that of their first matrix first."""
    first = next(matrix for some in matrices for matrix in some)
    a, b = first.rows.model, first.columns.model
    return [(a, b), (b, a)]


def write_methods(manifest: Mapping[str, Any], whole: Results) -> str:
    """Writes what a methods section says of a comparison: models, rows, remedies, measures, chance, seed and version;
    empty for a run without measures."""
    if not whole.measures:
        return ""
    estimate, data = whole.measures[0].estimate, manifest.get("data") or {}
    treated = say_treatment(manifest.get("remedies", {}))
    rows = f"{estimate['rows']:,} {estimate.get('unit', 'rows')}"
    source = f" of {data['source']}" if data.get("source") else ""
    parts = [
        f"We compared the layers of {', '.join(manifest.get('models', {}))} on {rows}{source}",
        f"({treated})" if treated else "",
        f"by {'; '.join(map(_measure, whole.measures))}.",
        next(filter(None, map(_explain_chance, whole.measures)), ""),
        f"Seed {manifest['seed']}; repsim {_read_version(manifest)}.",
    ]
    return " ".join(filter(None, parts))


def list_citations(manifest: Mapping[str, Any], whole: Results) -> list[str]:
    """Lists what a paper on the run cites: repsim in the version that made it, and the source of each measure."""
    sources = dict.fromkeys(m.card.get("source") for m in whole.measures)
    return [f"repsim, version {_read_version(manifest)} (CITATION.cff)", *(str(source) for source in sources if source)]


def _read_version(manifest: Mapping[str, Any]) -> str:
    return manifest["packages"].get("repsim-cli") or "unknown"


def _measure(measured: Measured) -> str:
    kind = str(measured.estimate["kind"])
    estimate = ESTIMATES.get(kind, kind)
    settings = ", ".join(f"{key} = {value}" for key, value in measured.settings.items() if value is not None)
    said = [settings, estimate.format(**measured.estimate), measured.pairs]
    return f"{measured.card['label']} ({', '.join(filter(None, said))})"


def _explain_chance(measured: Measured) -> str:
    units = (measured.chance or {}).get("units")
    return f"Chance is the mean over random pairings of {units}." if units else ""
