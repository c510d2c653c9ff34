"""Promises of claims: each is fed with what its units give where there is nothing to find, and with a planted effect.

Nulls: curves over 6 to 48 layers that wander (autocorrelation 0 to 0.95), of each model or shared by all; smooth bends
shared by all; models, or seeds of one base, that differ in the scale of their values by log-normal factors; pairs that
share models; tasks that several models share. A threshold other than 0 is tested with values that scatter about it.
"""

from collections.abc import Callable
from functools import partial

from levels import LEAST, Promise
from levels_made import (
    Curves,
    Make,
    Rng,
    blocks,
    by_distance,
    by_pairs,
    courses,
    groups,
    modular,
    of_one_base,
    own,
    pairs_of,
    planted,
    probed,
    scaled,
    scattered,
    seeds,
    shared,
    shared_bend,
    sizes,
    tasks,
    to_base,
    trainings,
)

from repsim_cli.base import registry
from repsim_cli.findings.claims import FAILS, HOLDS, Claim, find_claims
from repsim_cli.runs.content import BY_BLOCK

CLAIMS: dict[str, Claim] = {each.name: each for each in find_claims(registry.claims.names())}
DRAWS, POWER_DRAWS, LEVEL = 2000, 500, 0.05
LENGTHS, AUTOCORRELATIONS, SCALES = (6, 12, 24, 48), (0.0, 0.5, 0.8, 0.95), (0.05, 0.3, 0.8)


def said(name: str, make: Make, rng: Rng) -> str:
    return CLAIMS[name](*make(rng)).verdict


def level(name: str, setting: str, make: Make, verdicts: tuple[str, ...] = (HOLDS, FAILS)) -> list[Promise]:
    draw = partial(said, name, make)
    return [Promise(f"claim {name}: {x} by chance", setting, "level", LEVEL, DRAWS, draw, x) for x in verdicts]


def power(name: str, setting: str, make: Make, verdict: str = HOLDS) -> Promise:
    return Promise(f"claim {name}: {verdict}", setting, "power", LEAST, POWER_DRAWS, partial(said, name, make), verdict)


# claims on curves, by how they are given them: over units of their own, over pairs of units, and others of both kinds
OVER_UNITS, OVER_PAIRS = "top_layers_change_most", "early_layers_agree"
ON_CURVES: dict[str, Callable[[Curves, int, int], Make]] = {
    OVER_UNITS: to_base,
    OVER_PAIRS: by_pairs,
    "adjacent_layers_are_closer": by_distance,
    "earlier_layers_converge_faster": trainings,
    "lower_layers_agree_across_families": partial(by_pairs, families=4),
    "top_attention_changes_most": partial(to_base, one=False),
    "tasks_diverge_at_the_top": partial(by_pairs, families=1, base="m0"),
}
KINDS: dict[str, Curves] = {
    "log-normal scale, sd 0.8": scaled(0.8),
    "curve that all share, autocorrelation 0.8": shared(0.8),
    "smooth bend that all share": shared_bend,
}
MORE: dict[str, Curves] = {
    "seeds of one base": of_one_base,
    **{f"log-normal scale, sd {sd}": scaled(sd) for sd in SCALES[:-1]},
    **{f"curve that all share, autocorrelation {r}": shared(r) for r in (0.0, 0.5, 0.95)},
}


def of_curves() -> list[Promise]:
    found: list[Promise] = []
    for name, make in ON_CURVES.items():
        both, slow = name in (OVER_UNITS, OVER_PAIRS), name == "earlier_layers_converge_faster"
        kinds = KINDS | MORE if both else {} if slow else KINDS
        for kind, curves in kinds.items():
            found += level(name, f"4 models, 12 layers, {kind}", make(curves, 4, 12))
        for layers in LENGTHS if name == OVER_UNITS else (6, 24) if both else (12,):
            for r in AUTOCORRELATIONS if name == OVER_UNITS else (0.8, 0.95) if both else (0.8,):
                found += level(name, f"5 models, {layers} layers, autocorrelation {r}", make(own(r), 5, layers))
        found.append(power(name, "4 models, 12 layers, a line of 20 times the noise", make(planted(1), 4, 12)))
    return found


def of_thresholds() -> list[Promise]:
    name, steps = "larger_models_converge_earlier", "distances_grow_in_training"
    found = [x for count in (5, 8, 12) for x in level(name, f"{count} sizes, true rho 0.5", sizes(count, 0.5))]
    found += [
        power(name, "8 sizes, true rho 0.98", sizes(8, 0.98)),
        power(name, "40 sizes, true rho 0.1", sizes(40, 0.1), FAILS),
        power(steps, "3 trainings, 12 checkpoints, a line of 20 times the noise", courses(planted(1), 3, 12)),
        power(steps, "3 trainings that fall", courses(planted(-1), 3, 12), FAILS),
    ]
    for r in AUTOCORRELATIONS:
        found += level(steps, f"3 trainings, 12 checkpoints, autocorrelation {r}", courses(own(r), 3, 12), (HOLDS,))
        found += level(
            steps, f"3 trainings that share it, autocorrelation {r}", courses(shared(r), 3, 12), (HOLDS,)
        )  # fmt: skip
        setting = f"4 models, 12 layers, autocorrelation {r}"
        found += level("falls_with_layer_distance", setting, by_distance(own(r), 4, 12), (HOLDS,))
    found.append(power("falls_with_layer_distance", "4 models, 12 layers, a line", by_distance(planted(1), 4, 12)))
    return found


def of_units() -> list[Promise]:
    found: list[Promise] = []
    for sd in SCALES:
        found += level("fine_tuning_parts_blocks", f"base and 4 models, log sd {sd}", blocks(5, sd))
        found += level("layer_wise_distances_are_larger", f"3 + 3 seeds, log sd {sd}", modular(sd, 3))
        found += level("attention_makes_the_first_differences", f"4 seeds, log sd {sd}", modular(sd, 4))
        found += level("groups_differ_late", f"4 + 4 models, log sd {sd}", groups(4, 0.0, sd))
        found += level("one_code_serves_other_models", f"4 models, log sd {sd}", pairs_of(4, 0.0, sd))
    found += level("one_code_serves_other_models", "3 models", pairs_of(3, 0.0))
    apart = "between_group_distances_are_larger"
    for count, larger, spread in ((4, 0, 3.0), (5, 0, 2.0), (4, 4, 3.0), (8, -4, 3.0)):
        setting = f"{count} + {count + larger} models of one centre, the others spread {spread:g} times as much"
        found += level(apart, setting, scattered(count, spread, 0.0, larger), (HOLDS,))
    found.append(power(apart, "5 + 5 models of one spread, apart by 4 of it", scattered(5, 1.0, 4.0)))
    found += level("groups_alike_early", "5 + 5 models, a quarter of the late gap", groups(5, 1.0, 0.0, 0.25))
    found += level("early_layers_cost_little", "4 + 4 models at 0.02", groups(4, 0.0, 0.0, 0.0, 0.02))
    found += level("within_groups_cost_little", "4 + 4 models at 0.02", groups(4, 0.0, 0.0, 0.0, 0.02))
    for count in (8, 12, 20):
        found += level("seeds_differ_beyond_their_training", f"{count} seeds at 0.02", seeds(count, 0.03))
    found += level("freezing_the_bottom_costs_less", "4 tasks of two models each", tasks(4, 0.0))
    found += level("frozen_bottom_layers_cost_little", "4 tasks of two models each, at 0.01", tasks(4, 0.01))
    for count in (3, 5):
        found += level(
            "linear_probes_find_all_sums_in_model_l", f"{count} seeds at 0.01", probed(BY_BLOCK, count, 0.01, 0.002)
        )
    return [
        *found,
        power("fine_tuning_parts_blocks", "base and 4 models, log sd 0.3, 4 times the distance", blocks(5, 0.3, 1.4)),
        power("layer_wise_distances_are_larger", "3 + 3 seeds, log sd 0.3, 3 times", modular(0.3, 3, 1.1)),
        power("groups_differ_late", "4 + 4 models, 0.2", groups(4, 0.2)),
        power("groups_alike_early", "5 + 5 models, none early", groups(5, 1.0)),
        power("one_code_serves_other_models", "4 models, 0.5", pairs_of(4, 0.5)),
        power("seeds_differ_beyond_their_training", "10 seeds, 0.1", seeds(10, 0.1)),
        power("frozen_bottom_layers_cost_little", "4 tasks, 5 points", tasks(4, -0.05), HOLDS),
        power("frozen_bottom_layers_cost_little", "4 tasks, 8 points lost", tasks(4, 0.08), FAILS),
        power("linear_probes_find_all_sums_in_model_l", "5 seeds, none", probed(BY_BLOCK, 5, 0.0, 0.0)),
    ]


PROMISES: list[Promise] = of_curves() + of_thresholds() + of_units()
