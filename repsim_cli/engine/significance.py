"""How far a similarity is from chance: permutation nulls in closed form or sampled, and standard errors.

Under the null, the rows of one side are paired at random with those of the other. Where rows depend on each other
(tokens of a document), segments of equal length trade places, one per document (see `segments.py`), and there is no
closed form. The tested similarity is then that of the rows in these segments.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.activations.segments import Segments
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Significance
from repsim_cli.engine.chance import compute_chance_mean
from repsim_cli.engine.closed_null import compute_tail_p, score_against_null
from repsim_cli.engine.corrections import correct, count_needed_permutations, drop_families, group_into_families
from repsim_cli.engine.estimates import Beside, Key
from repsim_cli.engine.expected import index_row_places
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.permuted import Progress, iterate_silently, permute_pairs
from repsim_cli.engine.prepared import Prepared, PreparedProducts, SimilarityMatrix, Statistics
from repsim_cli.engine.scatter import jackknife, measure_scatter
from repsim_cli.engine.validity import (
    BATCHES,
    COPIED,
    LOOKED,
    UNPAIRED,
    explain_invalid_null,
    is_unmoved,
    measure_dependence,
)
from repsim_cli.measures import Card, InnerProduct, Measure
from repsim_cli.measures.base import MeasureWarning, is_cosine
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.kernels import Documents

SKEWED, HEAVY = 3.0, 5.0  # skewness and heaviness of a null above which the closed form does not know its tail


def check_measure(settings: Significance, measure: Measure) -> None:
    """Raises BadInput where the settings do not suit the measure."""
    if settings.method == "closed_form" and not isinstance(measure, InnerProduct):
        raise BadInput(
            f"significance.method: {measure.name} has no closed form; use "
            "significance=permutation, or measures that are inner products, e.g. measure=[cka_unbiased,rsa] "
            "(repsim compare: --measure cka_unbiased,rsa)"
        )
    if settings.method == "permutation" and not measure.card.paired:
        raise BadInput(
            f"significance.method: {measure.name} does not depend on how rows are paired, so that random pairs are "
            "not a null for it, got permutation; leave it out, or use significance.bands=true"
        )
    if settings.jackknife and not is_cosine(measure):
        raise BadInput(
            f"significance.jackknife: {measure.name} is not a normalised inner product; use measures that are, e.g. "
            "measure=[cka_unbiased] (repsim compare: --measure cka_unbiased), or extract.estimate=per_batch, which "
            "has standard errors for every measure"
        )


def check(settings: Significance, estimate: str, dependent: bool) -> None:
    """Raises BadInput where the settings do not suit the estimate, or rows that depend on each other."""
    kept = [key for key, on in {"within": settings.held, "order": settings.order != "any"}.items() if on]
    if settings.method == "closed_form" and kept:
        raise BadInput(
            f"significance.{kept[0]}: the closed form is of rows in any order, got closed_form; use "
            "significance=permutation, or leave it out"
        )
    if settings.method == "closed_form" and dependent:
        raise BadInput(
            "significance.method: tokens of a document depend on each other and the closed form takes rows as "
            "independent, got closed_form; use significance=permutation, pooled rows, or significance.clusters=row"
        )
    if settings.method == "closed_form" and settings.family == "max_t":
        raise BadInput(
            "significance.family: max_t needs permutations, got closed_form; use holm, or significance=permutation"
        )
    if estimate == "sampled" and (settings.method != "none" or settings.jackknife or settings.bands):
        raise BadInput(
            "significance: values of sampled rows have their standard error and no null, got estimate sampled; use "
            "significance=none, or extract.estimate=full"
        )
    if estimate == "moments" and (settings.method != "none" or settings.jackknife or settings.bands):
        raise BadInput(
            "significance: sums over all rows have neither null nor standard error, got estimate moments; use "
            "significance=none, or extract.estimate=full"
        )
    if settings.method != "none" and estimate == "ratio_of_sums":
        raise BadInput(
            "significance.method: sums over batches have no null, got ratio_of_sums; use "
            "extract.estimate=per_batch or full"
        )
    if settings.jackknife and estimate != "full":
        raise BadInput(f"significance.jackknife: it needs a single sample, got {estimate}; use extract.estimate=full")
    if settings.bands and estimate == "full":
        raise BadInput(
            "significance.bands: they need several batches, got full; use extract.estimate=per_batch, or "
            "significance.jackknife=true"
        )


def make_statistics_observer(
    settings: Significance,
    clusters: Callable[[int], np.ndarray],
    chance: Statistics,
    *,
    scatter: bool = False,
    models: Sequence[slice] = (),
) -> Statistics:
    """The statistics that are averaged over batches. clusters(batch): an id per row; a cluster moves as a whole.
    chance: what batches say of it. scatter: whether it is measured of values, of one batch, that have no error of a
    jackknife. models: the layers of each.
    """

    def observe(batch: int, measure: Measure, prepared: Prepared, values: Matrix) -> dict[str, Tensor]:
        observed = chance(batch, measure, prepared, values)
        if isinstance(prepared, PreparedProducts):
            if settings.method == "closed_form":
                observed |= score_against_null(prepared)
            if settings.jackknife:
                observed["se"] = jackknife(prepared, values, clusters(batch))
        if scatter and not settings.jackknife:
            observed |= measure_scatter(measure, prepared, values, clusters(batch), models=models)
        return observed

    return observe


Notes = Callable[[int, str, Sequence[int]], np.ndarray]


def draw_pairings(
    settings: Significance,
    measures: Mapping[str, Measure],
    segments: Segments,
    *,
    names: Sequence[str],
    seed: int,
    tile: int,
    labels: Callable[[int], Tensor | None],
    notes: Notes,
    sizes: Callable[[int], np.ndarray | None] = lambda batch: None,
    documents: Callable[[int], Documents | None] = lambda batch: None,
    progress: Progress = iterate_silently,
) -> Beside:
    """Makes the function that computes, for every batch, the values on the rows in segments (`tested`) and those under
    random pairings (`null`); NaN where there are none.

    labels(batch): a class code per row. sizes(batch): of the document of each row; None: all are of one size.
    documents(batch): of each row, where pairs of rows of one document are left out. Whole documents trade places, so
    that the same pairs are left out under all pairings.
    notes(batch, label, shape): a file of numbers for each measure, initially NaN, from which a stopped run resumes.
    progress(steps, measure): iterates over the permutations of a measure in a batch, and shows the progress.
    """

    def draw_batch(batch: int, representations: Sequence[Tensor], *_: Any) -> dict[Key, Tensor]:
        values_by_key: dict[Key, Tensor] = {}
        rows = torch.from_numpy(segments.rows(batch))
        if not len(rows):
            return values_by_key
        shifted = settings.order == "shifts"
        orders = torch.from_numpy(segments.orders(batch, settings.permutations, [seed, batch], shifted))
        codes = labels(batch)
        groups = segments.batches[batch]
        of_rows = {"label": None if codes is None else codes.numpy(), "length": sizes(batch)}
        held = {name: [x[group[:, 0]] for group in groups] for name, x in of_rows.items() if x is not None}
        depends = torch.stack([measure_dependence(x, groups, held, seed) for x in representations])

        def observe(label: str, measure: Measure, prepared: Prepared, values: Matrix) -> None:
            noted = notes(batch, label, (len(orders), *values.shape))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MeasureWarning)  # of the same rows as those of the values
                null = permute_pairs(prepared, orders, progress, noted)
                away = compute_chance_mean(prepared, units, [seed, batch])
            if measure.card.symmetric:  # permuting either side is equivalent: both entries share the null
                null = torch.where(torch.ones_like(null[0], dtype=torch.bool).triu(), null, null.mT)
            null[:, values.cpu().isnan()] = torch.nan
            found = {"tested": values, "null": null, "away": away, "depends": depends}
            values_by_key.update({(label, name): part for name, part in found.items()})

        chosen, units = [x[rows.to(x.device)] for x in representations], segments.exchange(batch)
        given = {
            "places": index_row_places(units, len(chosen), chosen[0].device),
            "tile": tile,
            "labels": None if codes is None else codes[rows],
            "documents": None if (of := documents(batch)) is None else of[rows].unique(return_inverse=True)[1],
        }
        compute_all_pairs(measures, chosen, names, observe=observe, lack=lambda *_: None, **given)
        return values_by_key

    return draw_batch


class JudgedValues(NamedTuple):
    """The significance of all values of a measure.

    p: under the null that rows are paired at random. p_family, q: p corrected for the cells of the map of two models,
        or of all maps; NaN in maps where they cannot be small or not be known.
    calibrated: the score above the value that a share alpha of random pairings are at least as close as, in [0, 1].
    tested: the values that p and calibrated refer to, if not those of all rows.
    null: a record of the method.
    """

    p: Matrix | None = None
    p_family: Matrix | None = None
    q: Matrix | None = None
    calibrated: Matrix | None = None
    tested: Matrix | None = None
    null: dict[str, Any] | None = None


def judge_significance(
    settings: Significance,
    measure: Measure,
    matrix: SimilarityMatrix,
    segments: Segments | None,
    places: Sequence[slice],
) -> JudgedValues:
    """The significance from the observed statistics.

    places: where the layers of each model stand.
    """
    if settings.method == "closed_form":
        return _judge_in_closed_form(settings, measure.card, matrix, places)
    if segments is not None:
        return _judge_by_permutations(settings, measure.card, matrix, segments, places)
    return JudgedValues()


def _judge_in_closed_form(
    settings: Significance, card: Card, matrix: SimilarityMatrix, places: Sequence[slice]
) -> JudgedValues:
    """The significance from the moments of random pairings: p is that of z summed over batches."""
    observed, root = matrix.statistics, math.sqrt(matrix.batches)
    skewness = observed["skewness"].masked_fill(matrix.values.isnan(), torch.nan) / root
    heaviness = observed["heaviness"] / matrix.batches
    p = compute_tail_p(observed["z"] * root, skewness, heaviness)
    among = group_into_families(matrix.values, card, places, settings.family_of)
    family, rate = correct(p, matrix.values, None, card, among)
    unknown = (skewness > SKEWED) | (heaviness > HEAVY)
    left_out = [cells for cells in among if (unknown.cpu() & cells).any()]
    null: dict[str, Any] = {"method": "closed_form", "clusters": "row", "alpha": settings.alpha, "family": "holm"}
    null |= {"family_of": settings.family_of, "families": len(among), "heavy": len(left_out)}
    null |= {"not_valid": faults} if (faults := explain_doubtful_chance(matrix, places)) else {}
    family, rate = (drop_families(values, left_out, places, card) for values in (family, rate))
    return JudgedValues(p, family, rate, null=null)


def _judge_by_permutations(
    settings: Significance, card: Card, matrix: SimilarityMatrix, segments: Segments, places: Sequence[slice]
) -> JudgedValues:
    """The significance from values of rows that were paired at random."""
    observed, holm = matrix.statistics, settings.family == "holm"
    null: dict[str, Any] = {
        "method": "permutation",
        "permutations": settings.permutations,
        "clusters": settings.clusters,
        "alpha": settings.alpha,
        "family": "holm" if holm else "max_t",
        "segments": segments.count,
        "share": segments.share,
    }
    drawn_values = observed["null"]
    tested = observed["tested"].masked_fill(drawn_values.isnan().any(0), torch.nan)
    p = p_values(tested, drawn_values, card)
    among = group_into_families(tested, card, places, settings.family_of)
    family, rate = correct(p, tested, None if holm else drawn_values, card, among)
    needed = [count_needed_permutations(int(cells.sum()), settings.alpha) for cells in among]
    few = [cells for cells, least in zip(among, needed, strict=True) if settings.permutations < least]
    faults = _explain_permutations(settings, matrix, segments, places)
    faults += [UNPAIRED] if is_unmoved(tested, drawn_values) else []
    null |= {"not_valid": faults} if faults else {}
    null |= {"within": settings.held} if settings.held else {}
    null |= {"family_of": settings.family_of, "families": len(among)}
    null |= {"permutations_for_q": max(needed)} if few else {}
    # without the similarity that random pairings keep by leaving rows in place
    threshold = (
        compute_null_quantile(tested, drawn_values, card, settings.alpha) - drawn_values.mean(0) + observed["away"]
    )
    calibration = calibrate(tested, threshold, card)
    return JudgedValues(
        p,
        family,
        drop_families(rate, few, places, card),
        calibrated=calibration.masked_fill(tested.isnan(), torch.nan),
        tested=tested if segments.share < 1 else None,
        null=null,
    )


def _explain_permutations(
    settings: Significance, matrix: SimilarityMatrix, segments: Segments, places: Sequence[slice]
) -> list[str]:
    """Says why permutations of these segments tell too little, where it was looked at."""
    depends = matrix.statistics.get("depends")
    if depends is None:
        return []
    each = segments.count / matrix.batches
    about = {"documents": each, "shifted": settings.order == "shifts", "by_row": settings.clusters == "row"}
    return explain_invalid_null(depends, matrix.batches, places, **about)


def explain_doubtful_chance(matrix: SimilarityMatrix, places: Sequence[slice]) -> list[str]:
    """Says why random pairings of single rows tell too little, where each is a unit and nothing else says so."""
    depends = matrix.statistics.get("depends")
    if depends is None:
        return []
    looked, batches = min(matrix.rows / matrix.batches, LOOKED), min(matrix.batches, BATCHES)
    return explain_invalid_null(depends, batches, places, documents=looked, by_row=True, copies=COPIED * looked)


def p_values(observed: Float[Tensor, "r c"], null: Float[Tensor, "k r c"], card: Card) -> Float[Tensor, "r c"]:
    """(1 + the number of permutations that are at least as close) / (1 + the number of permutations)."""
    sign = 1 if card.larger_is_closer else -1
    # equal values may differ by rounding
    as_close = sign * null >= sign * observed - 1e-12 * observed.abs()
    return ((1 + as_close.sum(0)).double() / (1 + len(null))).masked_fill(observed.isnan(), torch.nan)


def calibrate(observed: Float[Tensor, "r r"], threshold: Float[Tensor, "r r"], card: Card) -> Matrix:
    """The score above the threshold, as a share of the possible range (Groeger et al. 2026).

    In [0, 1], or the excess itself for measures without a best value; 0 if no closer than the threshold.
    """
    sign = 1 if card.larger_is_closer else -1
    excess = (sign * (observed - threshold)).clamp_min(0)
    best = card.bounds[1] if card.larger_is_closer else card.bounds[0]
    return excess if best is None else (excess / (sign * (best - threshold)).clamp_min(1e-12)).clamp_max(1)


def compute_null_quantile(
    observed: Float[Tensor, "r r"], null: Float[Tensor, "k r r"], card: Card, alpha: float
) -> Matrix:
    """The 1 - alpha quantile of the null in the direction of closeness; the observed value is part of the null."""
    sign = 1 if card.larger_is_closer else -1
    pool = torch.cat([sign * observed[None], sign * null]).sort(0).values
    return sign * pool[math.ceil((1 - alpha) * len(pool)) - 1]


def compute_t_intervals(
    values: Float[Tensor, "..."], se: Float[Tensor, "..."], batches: int, settings: Significance, card: Card
) -> tuple[Tensor, Tensor]:
    """(low, high): t intervals of a mean over batches, clipped to the card's bounds.

    They are of the value that batches of this size have on average, not of the value of all rows that there could be.
    The values of batches are assumed independent and their mean normal, with batches - 1 degrees of freedom.
    """
    half = float(scipy.stats.t.ppf((1 + settings.level) / 2, batches - 1)) * se
    lowest, highest = card.bounds
    low, high = values - half, values + half
    return low if lowest is None else low.clamp_min(lowest), high if highest is None else high.clamp_max(highest)


def compute_jackknife_errors(
    per_batch: Float[np.ndarray, "b r r"], finish: Callable[[Tensor], Tensor]
) -> Float[Tensor, "r r"]:
    """Standard errors of finish(the mean over batches), from the leave-one-batch-out jackknife (Efron 1982)."""
    count = len(per_batch)
    total = torch.from_numpy(per_batch.sum(0))
    left = torch.stack([finish((total - torch.from_numpy(np.array(batch))) / (count - 1)) for batch in per_batch])
    return ((count - 1) / count * (left - left.mean(0)).square().sum(0)).sqrt()
