"""Claims on what probes of the models of modular sums find; Models E and L are known by their labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import scipy.stats

from repsim_cli.analysis.claims.finding import FAILS, Finding, judged, record, untestable
from repsim_cli.analysis.claims.modular import of_letter
from repsim_cli.findings.evidence import LEVEL, Evidence, all_of

Errors = Mapping[tuple[str, str], float]  # the lowest error over layers, by model and target
MISSED = 0.1  # from this error on a target counts as not told (published: 0.52 and 0.93)


@dataclass(frozen=True, kw_only=True)
class Probed:
    """lowest: of one probe. mlp: of the MLP that tells classes, where it was fitted. number: whether the error is a
    share of variance, else of rows. perfect: an error up to here counts as none. held_out: rows that errors are of."""

    lowest: Errors
    mlp: Errors
    number: bool
    perfect: float
    held_out: int

    def of(self, letter: str, errors: Errors | None = None) -> list[tuple[str, float]]:
        """Of the first model of this letter, the lowest error of each target in order."""
        errors = self.lowest if errors is None else errors
        model = of_letter(letter, (model for model, _ in errors))
        return [(target, value) for (other, target), value in errors.items() if other == model]

    def against(self, error: float, threshold: float, number: bool | None = None) -> Evidence:
        """An error rate by the binomial distribution; 1 - R², a ratio of mean squares, by the F distribution."""
        rows = self.held_out
        if self.number if number is None else number:
            ratio = error / threshold
            above, below = scipy.stats.f.sf(ratio, rows, rows), scipy.stats.f.cdf(ratio, rows, rows)
            return Evidence(float(above), float(below), f"F distribution, {rows} rows held out")
        wrong = round(error * rows)
        above, below = (scipy.stats.binom.sf(wrong - 1, rows, threshold), scipy.stats.binom.cdf(wrong, rows, threshold))
        return Evidence(float(above), float(below), f"binomial distribution, {rows} rows held out")


def linear_probes_find_all_sums_in_model_l(found: Probed) -> Finding:
    """Gao et al. 2024, table 4: in Model L a linear probe tells c1, c2 and c perfectly."""
    return _all_found("highest error over targets of the best layer of Model L", found, "l")


def linear_probes_miss_inner_sums_in_model_e(found: Probed) -> Finding:
    """Gao et al. 2024, table 4: in Model E no layer tells c1 (0.522) or c2 (0.93) linearly, and a 2-layer MLP does."""
    statistic = "lowest error over layers and targets before the last, Model E"
    inner = [value for _, value in found.of("e")[:-1]]
    if not inner:
        return untestable(statistic, MISSED, "needs a Model E and two targets")
    linear = judged(statistic, MISSED, min(inner), found.against(min(inner), MISSED))
    by_mlp = found.of("e", found.mlp)[:-1]
    if linear.verdict == FAILS:
        return linear
    if not by_mlp:
        return untestable(statistic, MISSED, "needs an MLP probe beside it: a model may not know the sums at all")
    target, worst = max(by_mlp, key=lambda one: one[1])
    told = found.against(worst, MISSED, number=False)
    if told.below > LEVEL:
        return untestable(statistic, MISSED, f"no MLP tells {target} either (error {worst:.2g}): it may not be known")
    both = all_of([found.against(min(inner), MISSED), Evidence(told.below, told.above, told.how)], told.how)
    return judged(statistic, MISSED, min(inner), both)


def linear_probes_find_the_last_sum_in_model_e(found: Probed) -> Finding:
    """Gao et al. 2024, table 4: in Model E a linear probe tells c perfectly."""
    statistic = "error of the last target at the best layer of Model E"
    if not (own := found.of("e")):
        return untestable(statistic, found.perfect, "needs a Model E")
    return judged(statistic, found.perfect, own[-1][1], found.against(own[-1][1], found.perfect), published="below")


def mlp_probes_find_all_sums_in_model_e(found: Probed) -> Finding:
    """Gao et al. 2024, table 4: in Model E a 2-layer MLP tells c1, c2 and c perfectly."""
    return _all_found("highest error over targets of the best layer of Model E", found, "e")


def _all_found(statistic: str, found: Probed, letter: str) -> Finding:
    if not (own := found.of(letter)):
        return untestable(statistic, found.perfect, f"needs a Model {letter.upper()}")
    _, worst = max(own, key=lambda one: one[1])
    return judged(statistic, found.perfect, worst, found.against(worst, found.perfect), published="below")


PROBE_CLAIMS: dict[str, Callable[[Probed], Finding]] = {
    function.__name__: function
    for function in (
        linear_probes_find_all_sums_in_model_l,
        linear_probes_miss_inner_sums_in_model_e,
        linear_probes_find_the_last_sum_in_model_e,
        mlp_probes_find_all_sums_in_model_e,
    )
}


def probe_verdicts(
    names: Sequence[str], lowest: Mapping[tuple[str, str, str], float], perfect: float, held_out: int
) -> list[dict[str, Any]]:
    """Each claim on each probe of its kind (linear, MLP). lowest: by model, target and probe; perfect, held_out: as of
    Probed."""
    probes = list(dict.fromkeys(probe for *_, probe in lowest))
    own = {p: {(m, t): value for (m, t, other), value in lowest.items() if other == p} for p in probes}
    return [
        record(PROBE_CLAIMS[name], probe, PROBE_CLAIMS[name](
            Probed(
                lowest=own[probe],
                mlp=own.get("mlp_classification", {}),
                number=probe.endswith("_regression"),
                perfect=perfect,
                held_out=held_out,
            )
        ))
        for name in names
        for probe in probes
        if probe.split("_")[0] == name.split("_")[0]
    ]  # fmt: skip
