"""How pairs that are solved one by one were solved, and what another solver finds for some of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.measures import Measure
from repsim_cli.measures.cards import Audit, Detail
from repsim_cli.runs.content import Table
from repsim_cli.runs.results import Run

PAIRS_SOLVED, AUDIT = "pairs solved one by one", "audit of pairs by another solver"


def record_solved(
    run: Run, names: Sequence[str], measures: Mapping[str, Measure], matrices: Mapping[str, SimilarityMatrix]
) -> dict[str, Table]:
    """Makes tables of how the pairs of slow measures were solved: means over batches, without a layer with itself.

    names: of all layers, with their models.
    """
    rows, audits = [], []
    for label, matrix in matrices.items():
        slow, numbers = measures[label].slow, {k: v.cpu().numpy() for k, v in matrix.statistics.items()}
        if slow is None or not slow.details or len(names) < 2:
            continue
        rows += [[label, *row] for row in summarise_pair_details(slow.details, matrix.values.cpu().numpy(), numbers)]
        if slow.audit is not None and "audit_value" in numbers:
            rows_of, wrong, notice = record_audited(label, slow.audit, names, numbers)
            audits += rows_of
            checked = f"audited pairs not {slow.audit.claim} what {slow.audit.solver} finds, of {len(rows_of)}"
            rows.append([label, checked, wrong])
            if notice is not None:
                run.warn(notice)
    tables = {
        PAIRS_SOLVED: Table(columns=["measure", "number", "value"], rows=rows),
        AUDIT: Table(columns=AUDIT_COLUMNS, rows=audits),
    }
    return {name: table for name, table in tables.items() if table.rows}


AUDIT_COLUMNS = ["measure", "layer a", "layer b", "value", "reference", "relative difference", "tied distances"]


def record_audited(
    label: str, audit: Audit, names: Sequence[str], numbers: Mapping[str, np.ndarray]
) -> tuple[list[list[Any]], int, str | None]:
    """The pairs that another solver solved too; how many contradict the measure's claim where costs are not tied; and a
    warning where some do."""
    rows, wrong = [], []
    for a, b in np.argwhere(~np.isnan(numbers["audit_reference"])):
        value, reference, tied = (float(numbers[f"audit_{key}"][a, b]) for key in ("value", "reference", "tied"))
        off = (value - reference) / reference if reference else value
        rows.append([label, names[a], names[b], value, reference, off, "yes" if tied else "no"])
        if not tied and not audit.agrees(value, reference):
            wrong.append(rows[-1])
    if not wrong:
        return rows, 0, None
    _, a, b, value, reference, *_ = max(wrong, key=lambda row: abs(row[5]))
    return (
        rows,
        len(wrong),
        (
            f"{label}: {len(wrong)} of {len(rows)} audited pairs are not {audit.claim} what {audit.solver} finds, "
            f"e.g. {a} and {b}: {value:.10g}, {reference:.10g} by {audit.solver}"
        ),
    )


def summarise_pair_details(
    details: Mapping[str, Detail], values: Float[np.ndarray, "r r"], numbers: Mapping[str, np.ndarray]
) -> list[list[str | int | float]]:
    """[number, value] over pairs of different layers: how often each start won, steps, and how far bounds are below.

    numbers: (r, r) of every detail. NaN: not compared. A gap is (value - bound) / value, of the pairs whose value is
    not 0.
    """
    above = np.triu(~np.isnan(values), 1)
    off_diagonal = values[above]
    rows: list[list[str | int | float]] = [["pairs", len(off_diagonal)]]
    for name, detail in details.items():
        of_pairs = numbers[name][above]
        if detail.kind == "won":
            rows.append([f"won from {detail.label}, pairs", float(of_pairs.sum())])
        elif detail.kind == "bound":
            positive = off_diagonal > 0
            gaps = (off_diagonal - of_pairs)[positive] / off_diagonal[positive]
            if len(gaps):
                rows.append([f"gap to the {detail.label}, median", float(np.median(gaps))])
        else:
            rows.append([f"{detail.label}, median", float(np.median(of_pairs))])
            rows.append([f"{detail.label}, mean", float(of_pairs.mean())])
    return rows
