"""Claims on classifiers, from the metrics that they were saved with."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from repsim_cli.analysis.claims.finding import Finding, judged, untestable
from repsim_cli.findings.evidence import by_jackknife

Metrics = Mapping[str, float]
OVERLAP = "hans_lexical_overlap"  # over both labels: readiness to answer one of them is no understanding
SPREAD = 0.02  # a range of 0.1 over a hundred normal values; the hundred published seeds have twice that


def seeds_differ_beyond_their_training(classifiers: Sequence[Metrics]) -> Finding:
    """McCoy et al. 2020 (Brown et al. 2023, section 4.2): seeds are alike in distribution and differ on HANS."""
    statistic = "standard deviation over seeds of HANS accuracy (lexical overlap, both labels) minus that of accuracy"
    both = np.array([[one[OVERLAP], one["accuracy"]] for one in classifiers if {"accuracy", OVERLAP} <= one.keys()])
    if len(both) < 3:
        return untestable(statistic, SPREAD, f"needs three classifiers with {OVERLAP}, got {len(both)}")

    def wider(values: np.ndarray) -> float:
        hans, own = values.std(0, ddof=1)
        return float(hans - own)

    left_out = [wider(np.delete(both, seed, 0)) for seed in range(len(both))]
    evidence = by_jackknife(wider(both), SPREAD, left_out, f"standard error over {len(both)} seeds")
    return judged(statistic, SPREAD, wider(both), evidence)


CLASSIFIER_CLAIMS: dict[str, Callable[[Sequence[Metrics]], Finding]] = {
    function.__name__: function for function in (seeds_differ_beyond_their_training,)
}
