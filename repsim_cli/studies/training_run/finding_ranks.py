"""Whether layers that converge early have matrices, and gradients, of large effective rank."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Share
from repsim_cli.findings.analysis import Finished, Part, analysis, select_claims
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import FEWEST, weigh_mean
from repsim_cli.runs.content import Curve, Table
from repsim_cli.studies.training_run.finding_convergence import (
    AT_20,
    correlate_with_size,
    find_early_checkpoints,
    select_to_last,
    take_values_at_share,
)

COLUMNS = ["model", "matrices", "of", "layers", "early", "large rank", "both", "matthews", "undefined because"]
TABLE = "early convergence and large rank"


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The Matthews correlation, over layers, of early convergence with large effective rank, per model and kind of
    matrix.

    early_similarity: a layer converges early if it reaches this similarity to the last checkpoint within `early_share`.
    early_share: of the training steps.
    large_parameters: the parameters of a layer are of large rank from this proportional rank at the last checkpoint.
    large_gradients: the gradients of a layer are of large rank from this proportional rank, over that of the largest
        layer.
    """

    early_similarity: Share = 0.45
    early_share: Share = 0.1
    large_parameters: Share = 0.95
    large_gradients: Share = 0.9


def find_early_layers(curve: Curve, similarity: float, share: float) -> list[bool] | None:
    """Marks the layers that reach `similarity` in the first `share` of training; None without a checkpoint there."""
    places = find_early_checkpoints(curve, share)
    return [any((line[i] or 0.0) >= similarity for i in places) for line in curve.lines.values()] if places else None


def find_large_layers(curve: Curve, threshold: float, relative: bool) -> list[bool]:
    """Marks the layers that are at or above the threshold at the last checkpoint. relative: to the largest of them."""
    last = take_final_values(curve)
    bar = threshold * max(last) if relative else threshold
    return [value >= bar for value in last]


def take_final_values(curve: Curve) -> list[float]:
    """The values of all layers at the last checkpoint, which is always there."""
    return [float(line[-1] or 0.0) for line in curve.lines.values()]


def compute_matthews(first: Sequence[bool], second: Sequence[bool], names: tuple[str, str]) -> tuple[float | None, str]:
    """Matthews correlation of two binary variables in [-1, 1]; None and the reason where one has one class only.

    >>> compute_matthews([True, True, False, False], [True, False, False, False], ("early", "large"))[0]
    0.5773502691896258
    >>> compute_matthews([True, True], [True, False], ("early", "large"))
    (None, 'all early')
    """
    for side, name in ((first, names[0]), (second, names[1])):
        if len(set(side)) < 2:
            return None, f"{'all' if side[0] else 'none'} {name}"
    x, y = (np.asarray(side, dtype=np.float64) for side in (first, second))
    return float(np.clip(((x - x.mean()) * (y - y.mean())).mean() / (x.std() * y.std()), -1.0, 1.0)), ""


def tabulate_matthews(similarity: Sequence[Curve], ranks: Sequence[Curve], options: Ranks) -> Table:
    """Tabulates layers that converge early, layers of large rank, and their Matthews correlation.
    The rows are models and kinds of matrices.

    Raises BadInput where the two have other layers.
    """
    rows = []
    for rank in ranks:
        model, point, of = (rank.about[key] for key in ("model", "point", "quantity"))
        pair = [curve for curve in similarity if (curve.about["model"], curve.about["point"]) == (model, point)]
        if not pair or list(pair[0].lines) != list(rank.lines):
            got = list(pair[0].lines) if pair else "none"
            raise BadInput(f"extract: the table needs the similarity of {list(rank.lines)}, got {got}; read all layers")
        relative = of == "gradients"
        rises = find_early_layers(pair[0], options.early_similarity, options.early_share)
        wide = find_large_layers(rank, options.large_gradients if relative else options.large_parameters, relative)
        head = [model, point, of, len(wide)]
        if rises is None:
            why = f"no checkpoint in the first {100 * options.early_share:.0f} %"
            rows.append([*head, None, sum(wide), None, None, why])
            continue
        both = sum(a and b for a, b in zip(rises, wide, strict=True))
        value, why = compute_matthews(rises, wide, ("early", "of large rank"))
        rows.append([*head, sum(rises), sum(wide), both, value, why])
    return Table(columns=COLUMNS, rows=rows)


PAPER = "Diehl Martinez et al. 2024"


def select_by_quantity(curves: Sequence[Curve], quantity: str) -> list[Curve]:
    return [curve for curve in curves if curve.about["quantity"] == quantity]


@claim(
    PAPER,
    statistic="Spearman's rho over models between parameters and mean proportional effective rank at the end",
    threshold=0.5,
    unit="model",
    on="curves",
)
def larger_models_have_larger_parameter_rank(curves: Sequence[Curve]) -> Weighed | Untestable:
    """Parameters of larger models span a larger share of their dimensions."""
    return correlate_with_size(select_by_quantity(curves, "parameters"), take_final_values, 0.5)


@claim(
    PAPER,
    statistic="Spearman's rho over models between parameters and mean proportional effective rank of gradients",
    threshold=0.5,
    unit="model",
    on="curves",
)
def larger_models_have_larger_gradient_rank(curves: Sequence[Curve]) -> Weighed | Untestable:
    """Throughout training, gradients of larger models span a larger share of dimensions."""

    def list_means(curve: Curve) -> list[float]:
        return [mean for mean in curve.mean or () if mean is not None]

    return correlate_with_size(select_by_quantity(curves, "gradients"), list_means, 0.5)


@claim(
    PAPER,
    statistic="Spearman's rho over models between parameters and the fall of the mean parameter rank after 20 %",
    threshold=-0.5,
    unit="model",
    published="below",
    on="curves",
)
def rank_keeps_falling_in_small_models(curves: Sequence[Curve]) -> Weighed | Untestable:
    """Parameter rank stabilises early in large models, keeps falling in small ones."""

    def fall(curve: Curve) -> list[float] | None:
        then = take_values_at_share(curve, AT_20)
        return None if then is None else [float(np.mean(then)) - float((curve.mean or [0.0])[-1] or 0.0)]

    return correlate_with_size(select_by_quantity(curves, "parameters"), fall, -0.5)


@claim(
    f"{PAPER}, table 1",
    statistic="mean over models of the Matthews correlation of attention, parameters and gradients",
    threshold=0.5,
    unit="model",
    on="table",
)
def early_attention_has_large_rank(early_and_large: Table) -> Weighed | Untestable:
    """Attention layers that converge early have large rank, at every size."""
    by_model: dict[str, list[float]] = {}
    for model, point, *_, value, _ in early_and_large.rows:
        if point == "attn_out" and value is not None:
            by_model.setdefault(model, []).append(value)
    if not by_model:
        return Untestable(f"needs {FEWEST} models with a defined Matthews correlation")
    means = [float(np.mean(values)) for values in by_model.values()]
    return Weighed(float(np.mean(means)), weigh_mean(means, 0.5, "model"))


@analysis(studies=("effective_rank",), unasked=lambda planned: True)
def ranks(run: Finished, options: Ranks, claims: Sequence[Claim]) -> Part:
    curves = list(run.results.curves.values())
    similarity = select_to_last(curves)
    measure = similarity[0].about["measure"]
    ranked = [curve for curve in curves if curve.about["quantity"] in ("parameters", "gradients")]
    matthews_table = tabulate_matthews(similarity, ranked, options)
    verdicts = [claim.verdict(measure, curves) for claim in select_claims(claims, "curves")]
    verdicts += [claim.verdict(measure, matthews_table) for claim in select_claims(claims, "table")]
    return Part(tables={TABLE: matthews_table}, claims=verdicts)
