"""The all-pairs engine: representations, whole or as a stream of batches, x measures -> similarity matrices."""

from repsim_cli.similarity.attention import estimate_attention
from repsim_cli.similarity.counterparts import Counterparts, estimate_counterparts
from repsim_cli.similarity.estimates import Beside, Key, State, check_estimate, estimate_all_pairs, joined, of_sums
from repsim_cli.similarity.known import KnownPairs
from repsim_cli.similarity.moments import moment_pairs
from repsim_cli.similarity.pairs import Prepared, SimilarityMatrix, Statistics, Wanted, all_pairs, note_name, pairs
from repsim_cli.similarity.processes import Work

__all__ = [
    "Beside",
    "Counterparts",
    "Key",
    "KnownPairs",
    "Prepared",
    "SimilarityMatrix",
    "State",
    "Statistics",
    "Wanted",
    "Work",
    "all_pairs",
    "check_estimate",
    "estimate_all_pairs",
    "estimate_attention",
    "estimate_counterparts",
    "joined",
    "moment_pairs",
    "note_name",
    "of_sums",
    "pairs",
]
