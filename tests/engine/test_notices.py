"""What measures warn of, said once for all layers."""

import warnings

import torch

from repsim_cli.engine.estimates import file_warnings, say_notices
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.measures.base import MeasureWarning


def matrix(*notices):
    return SimilarityMatrix(
        values=torch.eye(1), se=None, estimate="full", rows=9, batches=1, statistics={}, notices=notices
    )


def test_one_warning_of_several_layers_is_one_line():
    tied = [f"embed of '{model}': {count} of 40 rows are tied" for model, count in (("a", 3), ("b", 4), ("c", 5))]
    said = list(say_notices({"knn": matrix(*tied), "cycle": matrix(tied[0]), "cka": matrix("few rows")}))
    assert said == [
        "knn, cycle: embed of 'a', and likewise in 2 more layers (there 4 to 5): 3 of 40 rows are tied",
        "cka: few rows",
    ]


def test_one_layer_and_other_warnings_keep_their_words():
    lines = ["embed of 'a': 3 of 40 rows are tied", "embed of 'a': all rows are equal"]
    assert list(say_notices({"knn": matrix(*lines)})) == [f"knn: {line}" for line in lines]
    two = ["a of 'm': 3 rows", "b of 'm': 4 rows"]
    assert list(say_notices({"knn": matrix(*two)})) == ["knn: a of 'm', and likewise in 1 more layer (there 4): 3 rows"]


def test_warnings_are_filed_under_the_measures_that_they_concern():
    of_knn = MeasureWarning("ties")
    of_knn.measures = ("knn",)
    notices = {"knn": ["before"]}
    with file_warnings(notices, ["knn", "cka"]):
        warnings.warn(of_knn, stacklevel=1)
        warnings.warn(MeasureWarning("few rows"), stacklevel=1)
    assert notices == {"knn": ["before", "ties", "few rows"], "cka": ["few rows"]}
