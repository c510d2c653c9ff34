"""Claims on training curves and on the Matthews table."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from repsim_cli.analysis.claims.finding import Finding, judged, record, untestable
from repsim_cli.analysis.convergence import at_share
from repsim_cli.findings.evidence import by_chance, by_units, correlated, orders, ranks

Curves = Sequence[Mapping[str, Any]]
TableRows = Sequence[Sequence[Any]]
AT_20 = 0.2  # the share of training at which the paper looks


def larger_models_converge_earlier(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024, figure 2: after 20 % of training larger models are nearer to their final state."""
    statistic = "Spearman's rho over models between parameters and mean similarity to the last checkpoint at 20 %"
    return _with_size(statistic, curves, "to last", lambda curve: at_share(curve, AT_20))


def larger_models_have_larger_parameter_rank(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024: parameters of larger models span a larger share of their dimensions."""
    statistic = "Spearman's rho over models between parameters and mean proportional effective rank at the end"
    return _with_size(statistic, curves, "parameters", lambda curve: [row[-1] for row in curve["values"]])


def larger_models_have_larger_gradient_rank(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024: throughout training, gradients of larger models span a larger share of dimensions."""
    statistic = "Spearman's rho over models between parameters and mean proportional effective rank of gradients"
    return _with_size(statistic, curves, "gradients", _whole_training)


def earlier_layers_converge_faster(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024: earlier layers converge faster to their final state than later ones."""
    statistic = "mean over models of Spearman's rho between layer and its mean similarity before the last checkpoint"
    threshold = 0.0
    by_model: dict[
        tuple[str, int], list[np.ndarray]
    ] = {}  # curves of one model share its layers, and are no cases of their own
    for curve in _of(curves, "to last"):
        means = [float(np.mean([v for v in row[:-1] if v is not None])) for row in curve["values"]]
        if len(means) >= 4 and len(set(means)) > 1:
            by_model.setdefault((curve["model"], len(means)), []).append(ranks(means))
    if not by_model:
        return untestable(statistic, threshold, "no model has four layers that differ in similarity")
    sides = [(ranks(range(len(own[0]))), np.mean(own, axis=0)) for own in by_model.values()]
    permuted, count = orders([len(layers) for layers, _ in sides])
    rhos = np.mean([means[order] @ layers for (layers, means), order in zip(sides, permuted, strict=True)], axis=0)
    value = float(np.mean([means @ layers for layers, means in sides]))
    evidence = by_chance(value, rhos, f"{count} orders of each model's layers")
    return judged(statistic, threshold, value, evidence, published="below")


def rank_keeps_falling_in_small_models(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024: parameter rank stabilises early in large models, keeps falling in small ones."""
    statistic = "Spearman's rho over models between parameters and the fall of the mean parameter rank after 20 %"

    def fall(curve: Mapping[str, Any]) -> list[float] | None:
        then = at_share(curve, AT_20)
        return None if then is None else [float(np.mean(then)) - curve["mean"][-1]]

    return _with_size(statistic, curves, "parameters", fall, published="below")


def early_attention_has_large_rank(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024, table 1: attention layers that converge early have large rank, at every size."""
    statistic, threshold = "mean over models of the Matthews correlation of attention, parameters and gradients", 0.5
    found: dict[str, list[float]] = {}
    for row in rows:
        if row[1] == "attn_out" and row[-2] is not None:
            found.setdefault(row[0], []).append(row[-2])
    if len(found) < 2:
        return untestable(
            statistic, threshold, f"needs two models with a defined Matthews correlation, got {len(found)}"
        )
    means = [float(np.mean(own)) for own in found.values()]
    evidence = by_units(means, threshold, f"standard error over {len(means)} models")
    return judged(statistic, threshold, float(np.mean(means)), evidence)


def _of(curves: Curves, what: str) -> list[Mapping[str, Any]]:
    return [curve for curve in curves if curve["quantity"].endswith(what)]


def _whole_training(curve: Mapping[str, Any]) -> list[float]:
    return [value for value in curve["mean"] if value is not None]


def _with_size(
    statistic: str,
    curves: Curves,
    what: str,
    values: Callable[[Mapping[str, Any]], list[float] | None],
    published: str = "above",
) -> Finding:
    """Rank correlation over models of three sizes or more with the mean of `values` over the model's curves."""
    threshold = 0.5 if published == "above" else -0.5
    by_size: dict[int, list[float]] = {}
    for curve in _of(curves, what):
        found = values(curve)
        if found is not None:
            by_size.setdefault(curve["parameters"], []).append(float(np.mean(found)))
    means = [float(np.mean(found)) for found in by_size.values()]
    if len(by_size) < 3 or len(set(means)) < 2:
        return untestable(
            statistic, threshold, f"needs three sizes that differ, with a checkpoint early enough, got {len(by_size)}"
        )
    return judged(
        statistic,
        threshold,
        *correlated([(np.array(list(by_size)), np.array(means))], "the sizes"),
        published=published,
    )


TRAINING_CLAIMS: dict[str, Callable[[Curves, TableRows], Finding]] = {
    function.__name__: function
    for function in (
        larger_models_converge_earlier,
        earlier_layers_converge_faster,
        larger_models_have_larger_parameter_rank,
        larger_models_have_larger_gradient_rank,
        rank_keeps_falling_in_small_models,
        early_attention_has_large_rank,
    )
}


def training_verdicts(names: Sequence[str], measure: str, curves: Curves, rows: TableRows) -> list[dict[str, Any]]:
    """Claims on one measure's training curves and on the rows of the Matthews table, as results.json keeps them."""
    claims = [TRAINING_CLAIMS[name] for name in names]
    return [record(claim, measure, claim(curves, rows)) for claim in claims]
