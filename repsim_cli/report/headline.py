"""The head of a run's page: what was asked, what the run says in sentences, and how a paper says and cites it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from repsim_cli.base.remedies import say_treatment
from repsim_cli.findings import answering
from repsim_cli.findings.sentences import say_how_alike as written
from repsim_cli.report import studies
from repsim_cli.report.studies import Said, find_question, list_findings, pick_main
from repsim_cli.runs import reader
from repsim_cli.runs.behind import Kept, read_rows
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

# what a row is, by `extract.unit`
UNITS = {
    "token": "tokens",
    "word": "words",
    "span": "marked spans",
    "sequence": "whole sequences",
    "mean": "examples, each the mean over its tokens",
    "first": "examples, each its first token",
    "last": "examples, each its last token",
}


def name_run(manifest: Mapping[str, Any], whole: Results) -> str:
    """Names a run by its models, or by its own name where there is one model or many."""
    models = list(manifest.get("facts") or manifest.get("models", {}))
    if compared := whole.about.get("verify"):
        models = [compared["reference"], compared["candidate"]]
    if not 2 <= len(models) <= LISTED:
        return manifest["name"]
    return f"{', '.join(models[:-1])} and {models[-1]}"


def say_question(manifest: Mapping[str, Any], whole: Results) -> str:
    """Says what a study asks, or else a comparison of layers; empty for what is neither."""
    if asked := find_question(manifest["study"]):
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


class Sentences(NamedTuple):
    """What a run says. answer: the lines of its answer. found: of its study or, where it compares layers, of every two
    models. shown: how many of these a command prints."""

    answer: list[Said]
    found: list[Said]
    shown: int

    def say_all(self) -> list[str]:
        return [text for _, text in (*self.answer, *self.found)]

    def say_main(self) -> list[str]:
        return [*(text for _, text in self.answer), *pick_main(self.found, self.shown)]


def list_sentences(folder: Path, whole: Results) -> Sentences:
    """Lists the sentences of a run, which commands and `--json` share."""
    read, found = partial(reader.read_array, folder), list_findings(whole)
    pairs = {} if find_question(whole.study) else _group_by_two_models(whole.measures)
    kept = read_rows(folder) if pairs else None
    for of_two in list(pairs.values())[: _count_pairs(whole)]:
        (a, b), _ = _name_both_ways([measured.matrices for measured in of_two])
        found += [(f"{a} and {b}", text) for text in written(replace(whole, measures=of_two), read, a, b, kept)]
    answer = [(who, f"{who}: {what}") for who, what in whole.answers]
    return Sentences(answer, found, len(found) if len(pairs) == 1 else studies.MOST)


def _group_by_two_models(measures: Sequence[Measured]) -> dict[frozenset[str], list[Measured]]:
    """Groups the matrices between two models: by the two, each measure with theirs."""
    between: dict[frozenset[str], list[list[Matrix]]] = {}
    for i, measured in enumerate(measures):
        for matrix in measured.matrices:
            pair = frozenset((matrix.rows.model, matrix.columns.model))
            if len(pair) == 2:
                between.setdefault(pair, [[] for _ in measures])[i].append(matrix)
    return {
        pair: [replace(measured, matrices=some) for measured, some in zip(measures, matrices, strict=True)]
        for pair, matrices in between.items()
    }


def _count_pairs(whole: Results) -> int:
    """Counts the pairs of models that are put into words."""
    return MOST // max(1, len(whole.measures))


def list_pair_sentences(whole: Results, read: answering.Read, kept: Kept | None) -> list[list[Any]]:
    """Lists for every two models, in both orders, and each measure what it says of them: the models, the measure's
    label, and the sentences, of the other measures after it. Of very many models only the first pairs."""
    read, said = cache(read), []
    between = _group_by_two_models(whole.measures).values()
    ways = [(of_two, way) for of_two in between for way in _name_both_ways([m.matrices for m in of_two])]
    for of_two, (a, b) in ways[: _count_pairs(whole)]:
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
    unit = estimate.get("unit") or UNITS.get(data.get("unit", ""), "rows")
    rows = f"{estimate['rows']:,} {unit}"
    source = f"{',' * (',' in unit)} of {data['source']}" if data.get("source") else ""
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
