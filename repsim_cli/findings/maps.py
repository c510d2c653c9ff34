"""Maps of all layers of all models, and what publications say of such maps; `map_figures.py` draws them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from jaxtyping import Float

from repsim_cli.findings.analysis import Finished, Part, analysis, select_claims
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import (
    DEEP,
    FEWEST,
    compare_outer_thirds,
    find_rho_step,
    list_group_arrangements,
    log_of,
    normalise_ranks,
    require_shared_trend,
    weigh_against_null,
    weigh_by_jackknife,
    weigh_lone_value,
    weigh_mean,
)
from repsim_cli.findings.layer_maps import ClaimMap, TrainedMap, find_trained, map_of
from repsim_cli.findings.map_figures import Order, draw_figures

# ---- claims on one map: which layers of which models are alike ----

BROWN, WU = "Brown et al. 2023, section 4", "Wu et al. 2020, section 5.1"
NO_FAMILIES = "needs models of two families"


@claim(
    BROWN,
    statistic="mean over models of Spearman's rho between similarity and layer distance",
    threshold=-0.5,
    unit="model",
    published="below",
    on="map",
)
def falls_with_layer_distance(whole: ClaimMap, values: np.ndarray) -> Weighed | Untestable:
    """Within a model, similarity falls with the distance between layers."""
    found = find_trained(whole, values)
    squares = found.squares(DEEP + 1)
    if not squares or any(np.ptp(_take_upper_cells(square)) == 0 for square in squares):
        return Untestable(f"needs {FEWEST} trained models of {DEEP + 1} layers or more that differ in similarity")
    rhos = [
        float(normalise_ranks(_take_upper_cells(square)) @ normalise_ranks(_compute_layer_lags(len(square))))
        for square in squares
    ]
    step = find_rho_step(min(len(_take_upper_cells(square)) for square in squares))
    evidence = require_shared_trend(
        weigh_mean(rhos, -0.5, "model", step), [_average_by_lag(square) for square in squares], -0.5
    )
    return found.weigh(float(np.mean(rhos)), evidence)


def _compute_layer_lags(layers: int) -> np.ndarray:
    """Counts how many layers apart the cells above the diagonal are."""
    a, b = np.triu_indices(layers, k=1)
    return b - a


def _take_upper_cells(square: np.ndarray) -> np.ndarray:
    return square[np.triu_indices(len(square), k=1)]


def _average_by_lag(square: np.ndarray) -> np.ndarray:
    """The mean similarity of layers so far apart, from neighbours on."""
    return np.array([square.diagonal(lag).mean() for lag in range(1, len(square))])


@claim(
    BROWN,
    statistic="similarity across models at equal relative depth: first third minus last third",
    threshold=0.0,
    unit="model",
    on="map",
    across="models",
)
def early_layers_agree(whole: ClaimMap, values: np.ndarray) -> Weighed | Untestable:
    """Across models, early layers are more similar than late ones."""
    return _weigh_decline_over_pairs(find_trained(whole, values), lambda a, b: True, "")


@claim(
    BROWN,
    statistic="log of the mean distance (1 - similarity) at equal relative depth: of 2.8b minus mean of the others'",
    threshold=0.0,
    unit="model",
    on="map",
    across="models",
)
def pythia_2_8b_stands_apart(whole: ClaimMap, values: np.ndarray) -> Weighed | Untestable:
    """2.8b is less similar to 1b, 1.4b and 6.9b than these are to each other."""
    odd, *others = names = ["pythia_2_8b", "pythia_1b", "pythia_1_4b", "pythia_6_9b"]
    if absent := [name for name in names if name not in whole.models]:
        return Untestable(f"needs {', '.join(absent)}")
    steps = min(whole.models[name].stop - whole.models[name].start for name in names)

    def measure_distance_from_others(model: str) -> float:
        """Takes the log of the mean distance from the other three. Each of the four shares its pairs alike."""
        rows = whole.models[model]
        curves = [_take_equal_depths(values[rows, whole.models[x]], steps) for x in names if x != model]
        return log_of(1 - np.mean(curves))

    away = {name: measure_distance_from_others(name) for name in names}
    rest = [away[name] for name in others]
    return Weighed(away[odd] - float(np.mean(rest)), weigh_lone_value(away[odd], rest, "model"))


def _weigh_decline_over_pairs(found: TrainedMap, kept: Callable[[str, str], bool], needs: str) -> Weighed | Untestable:
    """First third minus last third of the similarity at equal relative depth, mean over pairs of models. Pairs share
    models, so models are left out."""
    places = {label: place for label, place in found.whole.models.items() if place.stop - place.start >= DEEP}
    pairs = [(a, b) for a, b in combinations(places, 2) if kept(a, b)]
    if not pairs:
        return Untestable(f"needs {FEWEST} trained models of {DEEP} layers or more{needs}")
    steps = min(place.stop - place.start for place in places.values())
    curves = {(a, b): _take_equal_depths(found.values[places[a], places[b]], steps) for a, b in pairs}
    mean = np.mean([*curves.values()], axis=0)

    def compute_without(model: str) -> float:
        rest = [curve for pair, curve in curves.items() if model not in pair]
        return compare_outer_thirds(np.mean(rest, axis=0)) if rest else float("nan")

    models = list(dict.fromkeys(model for pair in pairs for model in pair))
    over = weigh_by_jackknife(compare_outer_thirds(mean), 0.0, [compute_without(model) for model in models], "model")
    return found.weigh(compare_outer_thirds(mean), require_shared_trend(over, [-mean]))


def _take_equal_depths(block: np.ndarray, steps: int) -> np.ndarray:
    """The entries at equal relative depth, in `steps` steps from the first layers to the last."""
    rows, columns = (np.round(np.linspace(0, size - 1, steps)).astype(int) for size in block.shape)
    return block[rows, columns]


@claim(
    WU,
    statistic="mean similarity of layers of different trained models: of one family minus of two",
    threshold=0.0,
    unit="model",
    on="map",
    across="models",
)
def same_family_is_closer(whole: ClaimMap, values: np.ndarray) -> Weighed | Untestable:
    """Models of one family are more similar than models of different families."""
    found = find_trained(whole, values)
    places = list(found.whole.models.values())
    sums, counts = (
        np.array([[float(part[row, column].sum()) for column in places] for row in places]).reshape(-1, len(places))
        for part in (found.values, np.ones_like(found.values))
    )
    a, b = np.nonzero(~np.eye(len(places), dtype=bool))
    family = np.unique([whole.families[model] for model in found.whole.models], return_inverse=True)[1]

    def gaps(labels: np.ndarray) -> Float[np.ndarray, " k"]:
        same = labels[:, a] == labels[:, b]
        within, between = ((side @ sums[a, b]) / (side @ counts[a, b]) for side in (same, ~same))
        return within - between

    if len(set(family)) < 2 or not (family[a] == family[b]).any():
        return Untestable("needs two families of trained models, one of them of two; 3 + 3 models would do")
    labels, exact = list_group_arrangements(family, seed=0)
    how = f"{len(labels):,} {'' if exact else 'drawn '}ways to deal the families to the models"
    value = float(gaps(family[None])[0])
    evidence = weigh_against_null(
        value, gaps(labels), how, len(places), "4 models of one family and 3 of another, or more"
    )
    return found.weigh(value, evidence)


@claim(
    WU,
    statistic="similarity across families at equal relative depth: first third minus last third",
    threshold=0.0,
    unit="model",
    on="map",
    across="models",
)
def lower_layers_agree_across_families(whole: ClaimMap, values: np.ndarray) -> Weighed | Untestable:
    """Across architectures, lower layers are more similar than higher ones."""
    if len(set(whole.families.values())) < 2:
        return Untestable(NO_FAMILIES)
    return _weigh_decline_over_pairs(
        find_trained(whole, values), lambda a, b: whole.families[a] != whole.families[b], ", of two families"
    )  # fmt: skip


@claim(
    WU,
    statistic="mean over models of similarity: adjacent layers minus layers further apart",
    threshold=0.0,
    unit="model",
    on="map",
)
def adjacent_layers_are_closer(whole: ClaimMap, values: np.ndarray) -> Weighed | Untestable:
    """Within a model, adjacent layers are more similar than others."""
    found = find_trained(whole, values)
    squares = found.squares(DEEP + 1)
    if not squares:
        return Untestable(f"needs {FEWEST} trained models of {DEEP + 1} layers or more")
    gaps = []
    for square in squares:
        adjacent = _compute_layer_lags(len(square)) == 1
        gaps.append(float(_take_upper_cells(square)[adjacent].mean() - _take_upper_cells(square)[~adjacent].mean()))
    evidence = require_shared_trend(weigh_mean(gaps, 0.0, "model"), [-_average_by_lag(square) for square in squares])
    return found.weigh(float(np.mean(gaps)), evidence)


# ---- claims on the maps of two measures together ----

ABOVE_NOISE = "mean similarity above that of independent normal rows (for cka above its upper bound)"
OVER_FAMILIES = "across families over that within them (without a layer itself)"


@claim(
    "Wu et al. 2020, section 5.1",
    statistic=f"{ABOVE_NOISE}, {OVER_FAMILIES}: cka minus neuronsim",
    threshold=0.0,
    unit="model",
    on="neuronsim and cka",
)
def neurons_are_block_diagonal(whole: ClaimMap) -> Weighed | Untestable:
    """neuronsim is block-diagonal by family, ckasim much less so."""
    return _compare_over_families(whole, "neuronsim", "cka")


@claim(
    "Wu et al. 2020, section 5.2, figure 4",
    statistic=f"{ABOVE_NOISE}, {OVER_FAMILIES}: attention_js minus attention_cka",
    threshold=0.0,
    unit="model",
    on="attention_js and attention_cka",
)
def single_heads_match_across_families(whole: ClaimMap) -> Weighed | Untestable:
    """Models share pairs of heads (Jensen-Shannon) more than layers (ckasim)."""
    return _compare_over_families(whole, "attention_cka", "attention_js")


@claim(
    "Wu et al. 2020, section 5.1",
    statistic=f"{ABOVE_NOISE}, between models over that within one (without a layer itself): cka minus neuronsim",
    threshold=0.0,
    unit="model",
    on="neuronsim and cka",
)
def neurons_differ_between_models(whole: ClaimMap) -> Weighed | Untestable:
    """Between models neurons are very different, whole representations less so."""
    return _compare_shared(replace(whole, families={model: model for model in whole.models}), "neuronsim", "cka")


def _compare_over_families(whole: ClaimMap, less: str, more: str) -> Weighed | Untestable:
    return _compare_shared(whole, less, more) if len(set(whole.families.values())) > 1 else Untestable(NO_FAMILIES)


def _compare_shared(whole: ClaimMap, less: str, more: str) -> Weighed | Untestable:
    """Weighs whether measure `more` keeps more across families of what it has within them than measure `less` does, of
    the trained models."""
    whole = whole.keep_layers(~np.isin(whole.owners(), list(whole.untrained)))
    if absent := [name for name in (more, less) if name not in whole.values]:
        return Untestable(f"needs the measure {absent[0]}")
    noise = {name: whole.compute_values_of_noise(name) for name in (more, less)}
    same, across, owners = whole.cells(True), whole.cells(False), whole.owners()

    def gap(kept: np.ndarray, share: float) -> float:
        """share: of the level of noise of `more`, which is an upper bound: of few directions it is lower."""
        inside, outside = (cells & kept[:, None] & kept for cells in (same, across))
        if not inside.any() or not outside.any():
            return float("nan")
        apart = {more: whole.values[more] - share * noise[more], less: whole.values[less] - noise[less]}
        left = {name: x[outside].mean() / x[inside].mean() for name, x in apart.items()}
        return float(left[more] - left[less])

    def weigh(share: float) -> Weighed | Untestable:
        left_out = [gap(owners != model, share) for model in whole.models]
        if not np.isfinite(left_out).all():
            return Untestable("needs three models, and two families whichever model is left out")
        value = gap(np.ones(len(owners), bool), share)
        return Weighed(value, weigh_by_jackknife(value, 0.0, left_out, "model"))

    least, most = weigh(1.0), weigh(0.0)
    if isinstance(least, Untestable) or isinstance(most, Untestable):
        return least
    # with so much noise the value is too low: it holds by it, and fails only without any
    below = max(least.evidence.below, most.evidence.below)
    return Weighed(least.value, replace(least.evidence, below=below))


@dataclass(frozen=True, kw_only=True)
class Maps:
    """Heatmaps of every measure over all layers of all models.

    order: of the layers: by `model`; by `depth`, their share of the way through their model; or by `cluster`, the
        leaves of a tree of average linkage.
    """

    order: Order = "model"


@analysis(
    studies=("similarity", "attention", "outputs", "likelihoods", "convergence", "training_view", "parallel"),
    unasked=lambda planned: True,
    figures=draw_figures,
)
def maps(run: Finished, options: Maps, claims: Sequence[Claim]) -> Part:
    if not claims or not run.maps:
        return Part()
    whole, labels = map_of(run)
    verdicts = [claim.verdict(label, whole, whole.values[name])
                for claim in select_claims(claims, "map") for name, label in labels.items()]  # fmt: skip
    pairs = [claim.verdict(" and ".join(labels.get(name, name) for name in claim.on.split(" and ")), whole)
             for claim in claims if claim.on != "map"]  # fmt: skip
    return Part(claims=[*verdicts, *pairs])
