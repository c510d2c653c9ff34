"""Whether a classifier and a data set mean the same by their labels, and how its predictions are scored."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from repsim_cli.base.errors import BadInput

# HANS and QNLI distinguish only entailment among the three labels of MNLI
TWO_WAY = {
    "entailment": "entailment",
    "neutral": "non-entailment",
    "contradiction": "non-entailment",
    "non-entailment": "non-entailment",
    "not_entailment": "non-entailment",
}


@dataclass(frozen=True)
class Scoring:
    """The classes that are compared, by name. model, data: the class of each label of the model and of the data."""

    names: tuple[str, ...]
    model: Int[np.ndarray, " m"]
    data: Int[np.ndarray, " d"]

    def correct(self, answers: Int[np.ndarray, " N"], codes: Int[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
        """Marks the answers, which are labels of the model, that have the class of the data's label."""
        return self.model[answers] == self.data[codes]


def match_labels(model: Sequence[str], data: Sequence[str], who: str) -> Scoring:
    """Matches the labels of model and data by name, in any order; a model may have labels that the data lacks. Between
    three-way and two-way entailment, the answers `neutral` and `contradiction` count as `non-entailment`; the answer is
    the largest of the three logits, as HANS is scored.

    who: for the error message. Raises BadInput where names do not match.
    """
    if sorted(model) == sorted(data):
        names = tuple(data)
        return Scoring(names, np.array([names.index(label) for label in model]), np.arange(len(names)))
    if set(data) <= set(model):
        names = tuple(model)
        return Scoring(names, np.arange(len(names)), np.array([names.index(label) for label in data]))
    if {*model, *data} <= TWO_WAY.keys():
        names = ("entailment", "non-entailment")
        classes = (np.array([names.index(TWO_WAY[label]) for label in labels]) for labels in (model, data))
        return Scoring(names, *classes)
    raise BadInput(
        f"{who}: its labels are not those of the data, got {list(model)} for {list(data)}; "
        "name them in the model's entry (labels: [NAME, ...], in the order of its logits), or choose other data"
    )
