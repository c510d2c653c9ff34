"""Carries over what read the old rows: a probe, and the direction from one class to the other."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from repsim_cli.studies.vectors.fits import Rows
from repsim_cli.studies.vectors.scores import DIRECTION, PROBE, MapScore, share_over_documents
from repsim_cli.training.probes import PROBES

KIND = "ridge_classification"  # in closed form: one probe for the same rows, whatever the seed
LEAST = 2  # fitted rows of a class


class LabelledRows(NamedTuple):
    """Rows and the code of their class."""

    rows: Rows
    classes: Int[np.ndarray, " n"]


def has_two_classes(fitted: Int[np.ndarray, " n"]) -> bool:
    """Tells whether there are two classes of enough rows to fit a probe on."""
    counts = np.unique(fitted, return_counts=True)[1]
    return len(counts) > 1 and bool(counts.min() >= LEAST)


def score_readers(
    fitted: LabelledRows, held_out: LabelledRows, documents: Int[np.ndarray, " k"]
) -> dict[str, MapScore]:
    """Scores on held-out rows what was fitted on other rows of the same space, by name: a linear probe; of two
    classes, also the direction between their means, with the side of its middle that a row is on."""
    probe = PROBES[KIND].make(0).fit(fitted.rows, fitted.classes)
    right: dict[str, Bool[np.ndarray, " k"]] = {PROBE: probe.predict(held_out.rows) == held_out.classes}
    names = np.unique(fitted.classes)
    if len(names) == 2:
        low, high = (fitted.rows[fitted.classes == name].mean(0) for name in names)
        above = (held_out.rows - (low + high) / 2) @ (high - low) > 0
        right[DIRECTION] = names[above.astype(int)] == held_out.classes
    return {name: score_rows(each, documents) for name, each in right.items()}


def score_rows(right: Bool[np.ndarray, " k"], documents: Int[np.ndarray, " k"]) -> MapScore:
    return share_over_documents(right.astype(float), documents)


def score_largest_class(
    fitted: Int[np.ndarray, " n"], held_out: LabelledRows, documents: Int[np.ndarray, " k"]
) -> Mapping[str, MapScore]:
    """Scores the class that most fitted rows have."""
    names, counts = np.unique(fitted, return_counts=True)
    chance = score_rows(held_out.classes == names[counts.argmax()], documents)
    return {PROBE: chance} | ({DIRECTION: chance} if len(names) == 2 else {})
