"""The targets of probes: labels of the data, or classes that stored representations stand for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from repsim_cli.activations.places import list_row_examples, list_row_words
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Data, Sequences
from repsim_cli.training.probes import Split, Targets, find_largest_class

TARGETS = ["target", "classes", "largest class", "its share", "error of the largest class"]


def describe_targets(targets: Targets, split: Split, largest: Mapping[str, float]) -> Iterator[list[Any]]:
    """Describes each target by its classes and the largest of the rows that this split holds out. largest: the error of
    the largest class of held-out rows, mean over splits, of which its share is the rest."""
    for name, classes in targets.classes.items():
        most, _ = find_largest_class(classes, split)
        said = targets.names[name][most] if name in targets.names else str(most)
        yield [name, len(np.unique(classes)), said, 1 - largest[name], largest[name]]


def refuse_unlabelled(data: Data, extract: Extract) -> BadInput:
    """The refusal of data without labels of its rows."""
    words = "" if extract.unit == "word" else ", ".join(data.labels_of_words())
    return BadInput(
        f"data: it has no labels of rows that are a {extract.unit}, got {data.source}; "
        + (f"its words have {words}: use extract=words" if words else "use labelled data, e.g. data=overlap_nli")
    )


def make_label_targets(
    data: Data,
    sequences: Sequences,
    extract: Extract,
    numbers: np.ndarray,
    documents: np.ndarray,
    wanted: Sequence[str] | None,
    together: str | None = None,
) -> Targets:
    """The labels that the data has of the rows of these numbers, of examples or of words. Rows with the same label
    `together` count as one document. Raises BadInput where the data has no labels, or not those that are wanted."""
    of_words = data.labels_of_words() if extract.unit == "word" else {}
    example = None if sequences.example is None else list_row_examples(sequences, extract)[numbers]
    known: Mapping[str, Sequence[Any]] = of_words or (data.labels_of_examples() if example is not None else {})
    if not known:
        raise refuse_unlabelled(data, extract)
    for key, names in (("labels", wanted or ()), ("keep_together", (together,) if together else ())):
        for name in names:
            if name not in known:
                raise BadInput(f"options.{key}: the data has no such labels, got '{name}'; {did_you_mean(name, known)}")
    assert example is not None
    chosen = {name: known[name] for name in (*(wanted or known), *((together,) if together else ()))}
    units = documents
    if of_words:
        word, sentences = list_row_words(sequences, extract)[numbers], data.sentences()
        places = list(zip(example.tolist(), word.tolist(), strict=True))
        chosen = {name: [labels[i][j] for i, j in places] for name, labels in chosen.items()}
        units = np.unique([sentences[i][j] for i, j in places], return_inverse=True)[1]
    else:
        chosen = {name: [labels[i] for i in example.tolist()] for name, labels in chosen.items()}
    if together:
        documents = np.unique(chosen.pop(together), return_inverse=True)[1]
    if not chosen:
        raise BadInput(f"options.keep_together: no other labels are left as targets, got '{together}'; drop it")
    if wanted is None:
        chosen = {name: labels for name, labels in chosen.items() if len({*labels}) > 1} or chosen
    classes, names = {}, {}
    for name, labels in chosen.items():
        values, classes[name] = np.unique(labels, return_inverse=True)
        names[name] = values.tolist()
        if len(values) < 2:
            raise BadInput(f"options.labels: all rows have the same {name}, got '{values[0]}'; choose other labels")
    return Targets(classes, names, documents, units, typed=bool(of_words))


def decode_classes(name: str, x: np.ndarray) -> np.ndarray:
    """The class of every row, from an indicator of each class or from whole numbers."""
    if x.shape[1] == 1 and (x == np.round(x)).all():
        classes = x[:, 0].astype(np.int64) - int(x.min())
    elif x.shape[1] > 1 and ((x == 0) | (x == 1)).all() and (x.sum(1) == 1).all():
        classes = x.argmax(1)
    else:
        raise BadInput(
            f"options.targets: '{name}' is neither one whole number nor one 1 among zeros per row; code it so"
        )
    if len(np.unique(classes)) < 2:
        raise BadInput(f"options.targets: '{name}' has one class only, got {classes[0]}; give more rows, or drop it")
    return classes
