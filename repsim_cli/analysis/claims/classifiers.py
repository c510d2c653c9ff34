"""Claims on classifiers, from the metrics that they were saved with."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from repsim_cli.analysis.claims.finding import Finding, untestable

Metrics = Mapping[str, float]
OVERLAP = "hans_lexical_overlap"  # over both labels: readiness to answer one of them is no understanding


def seeds_differ_beyond_their_training(classifiers: Sequence[Metrics]) -> Finding:
    """McCoy et al. 2020 (Brown et al. 2023, section 4.2): seeds are alike in distribution and differ on HANS."""
    statistic = "range over seeds of HANS accuracy (lexical overlap, both labels) minus range of accuracy"
    threshold = 0.1  # the hundred published seeds: about 0.2
    both = [one for one in classifiers if {"accuracy", OVERLAP} <= one.keys()]
    if len(both) < 2:
        return untestable(statistic, threshold, f"needs two classifiers with {OVERLAP}, got {len(both)}")
    value = float(np.ptp([one[OVERLAP] for one in both]) - np.ptp([one["accuracy"] for one in both]))
    return Finding(statistic, threshold, value >= threshold, value)


CLASSIFIER_CLAIMS: dict[str, Callable[[Sequence[Metrics]], Finding]] = {
    function.__name__: function for function in (seeds_differ_beyond_their_training,)
}
