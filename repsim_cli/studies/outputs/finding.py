"""Says which models predict alike, and how often each is right."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

from repsim_cli.base.plain import say_count
from repsim_cli.findings.analysis import Finished, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.extremes import list_alike, say_ends, say_others
from repsim_cli.runs.content import ACCURACY, CHANCE, DIFFER, Measured, Table


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Says which models predict alike, and how often each is right. There are no settings."""


def say_answers(run: Finished) -> Iterator[list[str]]:
    for measured in run.results.measures:
        for word, what in _say_measure(run, measured):
            yield [", ".join(filter(None, [measured.card["label"], word])), what]
    if ACCURACY in run.results.tables:
        labels, values, errors = zip(*run.results.tables[ACCURACY].rows, strict=True)
        freedom = read_freedom(run.results.about)
        best = max(range(len(values)), key=lambda place: values[place])
        told = "" if errors[best] is None else say_others(labels, list_alike(values, errors, best, freedom), best)
        yield ["most accurate", f"{labels[best]}, right for {values[best]:.3g}{_say_error(errors[best])}{told}"]


def _say_measure(run: Finished, measured: Measured) -> Iterator[list[str]]:
    """Says which pairs are closest and furthest; of two models, how far they are apart, each way where a divergence is
    of the second from the first, `first || second`."""
    (matrix,) = measured.matrices
    labels, values = matrix.rows.layers, run.array(matrix.values)
    errors = None if matrix.se is None else run.array(matrix.se)
    chance = run.array(matrix.details[CHANCE]) if CHANCE in matrix.details else None
    symmetric, documents = measured.card["symmetric"], run.results.about["documents"]
    pairs = list((combinations if symmetric else permutations)(range(len(labels)), 2))
    on = f"{matrix.n:,} rows" + (f" of {say_count(documents, 'document')}" if documents != matrix.n else "")

    def say(place: int) -> str:
        pair = pairs[place]
        beside = "" if chance is None else f", where answers that are paired at random give {chance[pair]:.3g}"
        error = _say_error(None if errors is None else errors[pair])
        return f"{values[pair]:.3g}{error} on {on}{beside}"

    names = [f"{labels[a]} {'with' if symmetric else '||'} {labels[b]}" for a, b in pairs]
    if len(labels) == 2:
        yield ["", "; ".join(f"{name}: {say(place)}" for place, name in enumerate(names))]
        return
    told = None if errors is None else [errors[pair] for pair in pairs]
    for word, what in say_ends(names, [values[pair] for pair in pairs], told, read_freedom(run.results.about), say):
        yield [word, what]


def read_freedom(about: Mapping[str, Any]) -> int:
    """Reads the degrees of freedom of errors; of a run of before, of documents that all have as many rows."""
    return about.get("freedom", about["documents"] - 1)


def _say_error(error: float | None) -> str:
    return " (of one document no error is known)" if error is None else f" (se {error:.2g})"


@analysis(studies=("outputs",), unasked=lambda planned: True)
def outputs(run: Finished, options: OutputOptions, claims: Sequence[Claim]) -> Part:
    """Says which models predict alike, and how often each is right."""
    return Part(tables={DIFFER: Table(columns=["models", "what"], rows=list(say_answers(run)))})
