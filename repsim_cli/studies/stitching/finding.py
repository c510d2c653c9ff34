"""Stitched models: penalties by layer and pair of models, layer by layer for one pair, and the curves of training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from repsim_cli.findings.analysis import Finished, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import FEWEST, require_all_parts, weigh_mean
from repsim_cli.runs.content import Table
from repsim_cli.studies.stitching.drawing import SCRAMBLED, Kinds, Records, draw_figures, read_stitching_records

Direction = tuple[str, str]  # the kinds of head and tail
PAPER = "Brown et al. 2023"
DIRECTIONS = ["layer", "from", "into", "models", "pairs", "penalty", "se over pairs"]
BOTH_WAYS = [
    "layer",
    "model",
    "other",
    "other into model",
    "model into other",
    "model into itself",
    "other into itself",
]


@dataclass(frozen=True, kw_only=True)
class StitchingOptions:
    """Penalties of stitched models by layer and pair, and averaged over pairs of models of two kinds.

    metric: which loss the figures show, beside the accuracy of classifiers or the KL of language models.
    """

    metric: Literal["loss", "accuracy", "kl"] = "loss"


def tabulate_directions(records: Records, kinds: Kinds) -> Table:
    """Penalties of stitches at equal layers, averaged over the pairs of models of two kinds.

    records: as of the study stitching. kinds: of the models by label. A model before itself is counted apart.
    """
    rows = []
    for key, pairs in _group_by_direction(records, kinds).items():
        values = [penalty for penalty, _ in pairs]
        error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
        rows.append([*key, len(values), float(np.mean(values)), error])
    return Table(columns=DIRECTIONS, rows=rows)


def compute_recovered_shares(records: Records) -> Table:
    """Computes, for every two models and layer, the share of the loss that a head of random weights adds which is
    recovered by the other model as the head, in both ways, and by the model itself.

    1: nothing is lost; 0: the head is no better than one that was never trained. None where there is no such stitch, or
    random weights add nothing.
    """
    equal = [stitch for stitch in records if stitch["head layer"] == stitch["tail layer"]]
    penalties = {(stitch["head"], stitch["tail"], stitch["head layer"]): stitch["penalty"] for stitch in equal}

    def recover(head: str, tail: str, layer: str) -> float | None:
        lost, most = (penalties.get((name, tail, layer)) for name in (head, f"{tail} {SCRAMBLED[0]}"))
        return None if lost is None or most is None or most <= 0 else 1 - lost / most

    plain = [way for way in penalties if not way[0].endswith(SCRAMBLED) and way[0] != way[1]]
    rows = [
        [layer, a, b, recover(b, a, layer), recover(a, b, layer), recover(a, a, layer), recover(b, b, layer)]
        for layer, a, b in dict.fromkeys((layer, *sorted((head, tail))) for head, tail, layer in plain)
    ]
    return Table(columns=BOTH_WAYS, rows=[row for row in rows if any(share is not None for share in row[3:])])


def _group_by_direction(records: Records, kinds: Kinds) -> dict[tuple[str, str, str, str], list[tuple[float, float]]]:
    """Groups penalties and their errors by layer, kind of head, kind of tail, and whether these are one model."""
    by_direction: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for stitch in records:
        if stitch["head"] in kinds and stitch["head layer"] == stitch["tail layer"] and stitch["penalty"] is not None:
            same = "the same" if stitch["head"] == stitch["tail"] else "different"
            key = (stitch["head layer"], kinds[stitch["head"]], kinds[stitch["tail"]], same)
            by_direction.setdefault(key, []).append((stitch["penalty"], stitch["penalty se"]))
    return by_direction


@claim(
    f"{PAPER}, figure 1",
    statistic="penalty of solu -> gelu minus that of gelu -> solu: mean over layers and pairs of equal depth",
    threshold=0.0,
    unit="pair of models",
)
def solu_into_gelu_costs_more(records: Records, kinds: Kinds) -> Weighed | Untestable:
    """At every layer a SoLU head before a GELU tail costs more than a GELU head before a SoLU tail."""
    return _compare_direction_penalties(records, kinds, [(("solu", "gelu"), ("gelu", "solu"))])


@claim(
    f"{PAPER}, section 3",
    statistic="penalty of gelu to the same gelu minus that of solu to the same solu: mean over layers and pairs of "
    "equal depth",
    threshold=0.0,
    unit="pair of models",
)
def solu_stitches_better_to_itself(records: Records, kinds: Kinds) -> Weighed | Untestable:
    """SoLU models stitch better to themselves than GELU models do."""
    return _compare_direction_penalties(records, kinds, [(("gelu", "gelu"), ("solu", "solu"))])


@claim(
    f"{PAPER}, section 3",
    statistic="penalty between solu and gelu minus that of gelu to the same gelu: mean over layers and over pairs of "
    "equal depth, the lower of both ways",
    threshold=0.0,
    unit="pair of models",
)
def crossing_costs_more_than_gelu_to_itself(records: Records, kinds: Kinds) -> Weighed | Untestable:
    """Both directions between SoLU and GELU cost more than a GELU model to itself."""
    return _compare_direction_penalties(
        records, kinds, [(("solu", "gelu"), ("gelu", "gelu")), (("gelu", "solu"), ("gelu", "gelu"))]
    )


def _compare_direction_penalties(
    records: Records, kinds: Kinds, wanted: Sequence[tuple[Direction, Direction]]
) -> Weighed | Untestable:
    """Differences of the penalties of two directions, mean over layers, of every pair of a SoLU and a GELU model of
    equal depth, each model in one pair. All wanted ones must lie above 0; the value is the lowest."""
    penalties: dict[tuple[str, str], list[float]] = {}
    for stitch in records:
        equal = stitch["head layer"] == stitch["tail layer"] != "embed"
        if equal and stitch["penalty"] is not None and stitch["head"] in kinds:
            penalties.setdefault((stitch["head"], stitch["tail"]), []).append(stitch["penalty"])
    gaps: list[list[float]] = [[] for _ in wanted]
    for pair in _pair_models_by_depth(kinds):
        for found, (more, less) in zip(gaps, wanted, strict=True):
            sides = [penalties.get((pair[head], pair[tail])) for head, tail in (more, less)]
            if all(sides):
                found.append(float(np.mean(sides[0] or [])) - float(np.mean(sides[1] or [])))
    if not all(gaps):
        return Untestable(f"needs {FEWEST} pairs of a SoLU and a GELU model of equal depth, stitched both ways")
    means = [float(np.mean(found)) for found in gaps]
    parts = [weigh_mean(found, 0.0, "pair of models") for found in gaps]
    return Weighed(min(means), replace(require_all_parts(parts), se=parts[int(np.argmin(means))].se))


def _pair_models_by_depth(kinds: Kinds) -> list[dict[str, str]]:
    """The models by their activation, `gelu` and `solu`, of every pair of equal depth: the first of each kind, the
    second of each, and so on."""
    by_depth: dict[str, dict[str, list[str]]] = {}
    for label, kind in kinds.items():
        name, depth = kind.split(", ")
        by_depth.setdefault(depth, {}).setdefault(name.split("_")[0], []).append(label)
    pairs = []
    for of in by_depth.values():
        gelu, solu = of.get("gelu", []), of.get("solu", [])
        count = min(len(gelu), len(solu))
        pairs += [{"gelu": a, "solu": b} for a, b in zip(gelu[:count], solu[:count], strict=True)]
    return pairs


def warn_of_unpaired(kinds: Kinds) -> Iterator[str]:
    """Names the models that claims on pairs leave out, where there are pairs."""
    paired = {label for pair in _pair_models_by_depth(kinds) for label in pair.values()}
    alone = [label for label, kind in kinds.items() if kind.startswith(("gelu", "solu")) and label not in paired]
    if paired and alone:
        yield f"left out of the claims, since no model of equal depth has the other activation: {', '.join(alone)}"


@analysis(studies=("stitching",), unasked=lambda planned: not planned.groups, figures=draw_figures)
def stitching(run: Finished, options: StitchingOptions, claims: Sequence[Claim]) -> Part:
    records, kinds = read_stitching_records(run.results), run.results.about["kinds"]
    verdicts = [each.verdict("stitching penalty", records, kinds) for each in claims]
    tables = {"directions": tabulate_directions(records, kinds)}
    if (recovered := compute_recovered_shares(records)).rows:
        tables["recovered both ways"] = recovered
    return Part(tables=tables, claims=verdicts, warnings=list(warn_of_unpaired(kinds) if claims else ()))
