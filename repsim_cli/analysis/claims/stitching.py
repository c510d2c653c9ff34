"""Claims on the penalties of stitched models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from repsim_cli.analysis.claims.finding import Finding, judged, record, untestable
from repsim_cli.findings.evidence import all_of, by_error

Records = Sequence[Mapping[str, Any]]
Kinds = Mapping[str, str]
DIRECTIONS = ["layer", "from", "into", "models", "pairs", "penalty", "se over pairs"]


def directions(records: Records, kinds: Kinds) -> list[list[Any]]:
    """Penalties of stitches at equal layers, averaged over the pairs of models of two kinds, as rows of DIRECTIONS.

    records: as of the study stitching. kinds: of the models by label. A model before itself is counted apart.
    """
    rows = []
    for key, pairs in _by_direction(records, kinds).items():
        values = [penalty for penalty, _ in pairs]
        error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
        rows.append([*key, len(values), float(np.mean(values)), error])
    return rows


def _by_direction(records: Records, kinds: Kinds) -> dict[tuple[str, str, str, str], list[tuple[float, float]]]:
    """By layer, kind of head, kind of tail and whether these are one model: penalty and its error, of every pair."""
    found: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for one in records:
        if one["head"] in kinds and one["head layer"] == one["tail layer"] and one["penalty"] is not None:
            same = "the same" if one["head"] == one["tail"] else "different"
            key = (one["head layer"], kinds[one["head"]], kinds[one["tail"]], same)
            found.setdefault(key, []).append((one["penalty"], one["penalty se"]))
    return found


def solu_into_gelu_costs_more(records: Records, kinds: Kinds) -> Finding:
    """Brown et al. 2023, figure 1: at every layer a SoLU head before a GELU tail costs more than a GELU head before a
    SoLU tail."""
    statistic = "penalty of solu -> gelu minus that of gelu -> solu: lowest over depths and layers"
    return _gaps(statistic, records, kinds, [(("solu", "gelu", "different"), ("gelu", "solu", "different"))])


def solu_stitches_better_to_itself(records: Records, kinds: Kinds) -> Finding:
    """Brown et al. 2023, section 3: SoLU models stitch better to themselves than GELU models do."""
    statistic = "penalty of gelu to the same gelu minus that of solu to the same solu: lowest over depths and layers"
    return _gaps(statistic, records, kinds, [(("gelu", "gelu", "the same"), ("solu", "solu", "the same"))])


def crossing_costs_more_than_gelu_to_itself(records: Records, kinds: Kinds) -> Finding:
    """Brown et al. 2023, section 3: both directions between SoLU and GELU cost more than a GELU model to itself."""
    statistic = "penalty between solu and gelu minus that of gelu to the same gelu: lowest over both ways and layers"
    own = ("gelu", "gelu", "the same")
    both = [(("solu", "gelu", "different"), own), (("gelu", "solu", "different"), own)]
    return _gaps(statistic, records, kinds, both)


Direction = tuple[str, str, str]


def _gaps(statistic: str, records: Records, kinds: Kinds, wanted: Sequence[tuple[Direction, Direction]]) -> Finding:
    """The lowest difference of mean penalties of two directions, over models of equal depth and over blocks: it is
    above 0 where each of them is. Errors are over pairs of models where both directions have two or more, else over the
    evaluation sequences, as many as there are."""
    threshold, places = 0.0, {}
    for (layer, head, tail, models), pairs in _by_direction(records, kinds).items():
        (one, depth), (other, its) = (kind.split(", ") for kind in (head, tail))
        if depth == its and layer != "embed":
            way = (one.split("_")[0], other.split("_")[0], models)
            places.setdefault((depth, layer), {})[way] = np.array(pairs)
    compared = [
        (found[more], found[less]) for found in places.values() for more, less in wanted if {more, less} <= found.keys()
    ]
    if not compared:
        return untestable(statistic, threshold, "needs SoLU and GELU models of equal depth, stitched both ways")
    gaps = [float(more[:, 0].mean() - less[:, 0].mean()) for more, less in compared]
    over_pairs = min(len(side) for both in compared for side in both) > 1
    parts = []
    for gap, both in zip(gaps, compared, strict=True):
        shares = [
            x[:, 0].var(ddof=1) / len(x) if over_pairs else float((x[:, 1] ** 2).sum()) / len(x) ** 2 for x in both
        ]
        freedom = np.inf
        if over_pairs and sum(shares):  # Welch's
            freedom = sum(shares) ** 2 / sum(share**2 / (len(x) - 1) for share, x in zip(shares, both, strict=True))
        parts.append(by_error(gap, threshold, float(np.sqrt(sum(shares))), float(freedom), ""))
    over = "pairs of models" if over_pairs else "evaluation sequences"
    how = f"standard errors over {over}, of {len(parts)} differences that must all be above 0"
    lowest = parts[int(np.argmin(gaps))]
    return judged(statistic, threshold, min(gaps), replace(all_of(parts, how), se=lowest.se))


STITCHING_CLAIMS: dict[str, Callable[[Records, Kinds], Finding]] = {
    function.__name__: function
    for function in (
        solu_into_gelu_costs_more,
        solu_stitches_better_to_itself,
        crossing_costs_more_than_gelu_to_itself,
    )
}


def stitching_verdicts(names: Sequence[str], measure: str, records: Records, kinds: Kinds) -> list[dict[str, Any]]:
    """Claims on the penalties of stitched models, as results.json keeps them."""
    claims = [STITCHING_CLAIMS[name] for name in names]
    return [record(claim, measure, claim(records, kinds)) for claim in claims]
