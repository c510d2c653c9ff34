"""The all-pairs engine: representations, whole or as a stream of batches, x measures -> similarity matrices."""

from repsim_cli.similarity.attention import estimate_attention
from repsim_cli.similarity.counterparts import Counterparts, estimate_counterparts
from repsim_cli.similarity.estimates import Beside, Key, State, check_estimate, estimate_all_pairs, joined, of_sums
from repsim_cli.similarity.known import KnownPairs
from repsim_cli.similarity.moments import moment_pairs
from repsim_cli.similarity.one_by_one import note_name, pairs
from repsim_cli.similarity.pairs import Prepared, SimilarityMatrix, Statistics, all_pairs
from repsim_cli.similarity.processes import Work
from repsim_cli.similarity.undefined import Cell, Undefined, Wanted, masked, value_of

__all__ = [
    "Beside",
    "Cell",
    "Counterparts",
    "Key",
    "KnownPairs",
    "Prepared",
    "SimilarityMatrix",
    "State",
    "Statistics",
    "Undefined",
    "Wanted",
    "Work",
    "all_pairs",
    "check_estimate",
    "estimate_all_pairs",
    "estimate_attention",
    "estimate_counterparts",
    "joined",
    "masked",
    "moment_pairs",
    "note_name",
    "of_sums",
    "pairs",
    "value_of",
]
