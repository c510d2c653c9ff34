"""Scores of a measure on models of which the answer is known: arrays in, numbers out.

Every score is of `Models` under a single measure. Noise has the score's `chance` on average and an oracle has 1. A
score that has no value for a measure raises Degenerate, which says why.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from repsim_cli.base.errors import Degenerate
from repsim_cli.findings.evidence import ROUNDING, list_permutations, normalise_ranks

Square = Float[np.ndarray, "m m"]
FEWEST = 4  # models, for a correlation over their pairs


@dataclass(frozen=True, kw_only=True)
class Truncated:
    """The l layers of m models, each with more and more components deleted, k times.

    similar: to the whole layer, larger is closer. accuracy: of a probe on each, whole: on the whole layer.
    """

    similar: Float[np.ndarray, "m l k"]
    accuracy: Float[np.ndarray, "m l k"]
    whole: Float[np.ndarray, "m l"]

    @property
    def loss(self) -> Float[np.ndarray, "m l k"]:
        return self.whole[..., None] - self.accuracy

    @property
    def damaged(self) -> Bool[np.ndarray, "m l k"]:
        """Says where a probe loses more accuracy than seeds differ in it at this layer."""
        return self.loss > np.ptp(self.whole, 0)[:, None] + ROUNDING


@dataclass(frozen=True, kw_only=True)
class Models:
    """The similarity of m models at l layers of a hook point under a measure; larger is closer.

    similar: [a, b, i, j] of layer i of model a and layer j of model b. groups: the number of each model's group.
    apart: by name, how far two models are in something that is known, e.g. in accuracy. truncated: None where nothing
    was deleted.
    """

    similar: Float[np.ndarray, "m m l l"]
    groups: Int[np.ndarray, " m"]
    apart: Mapping[str, Square]
    truncated: Truncated | None = None

    def keep_models(self, kept: Int[np.ndarray, " k"]) -> "Models":
        """Keeps only these models."""
        square, cut = np.ix_(kept, kept), self.truncated
        return Models(
            similar=self.similar[square],
            groups=self.groups[kept],
            apart={name: values[square] for name, values in self.apart.items()},
            truncated=cut and Truncated(similar=cut.similar[kept], accuracy=cut.accuracy[kept], whole=cut.whole[kept]),
        )

    @property
    def count(self) -> int:
        return len(self.groups)

    @property
    def layers(self) -> int:
        return self.similar.shape[-1]

    @property
    def last(self) -> Square:
        """Similarity of the last layers, both directions averaged."""
        values = self.similar[..., -1, -1]
        return (values + values.T) / 2

    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of different models of the same group."""
        pairs = itertools.combinations(range(self.count), 2)
        return [(a, b) for a, b in pairs if self.groups[a] == self.groups[b]]


# ---- layers of models that differ in their seeds ----


def identification(models: Models) -> float:
    """Share of layers whose most similar layer in another model is the same layer; equal candidates share the point."""
    shares = []
    for a, b in models.pairs():
        for block in (models.similar[a, b], models.similar[b, a]):
            best = block >= block.max(1, keepdims=True) - ROUNDING
            shares.append((best.diagonal() / best.sum(1)).mean())
    return float(np.mean(shares))


def _list_one_sided_similarities(models: Models) -> Iterator[Float[np.ndarray, " k"]]:
    """Lists the similarities of each layer to those on each side of it, the nearest first; a side has two at least."""
    for model in range(models.count):
        block = models.similar[model, model]
        values = (block + block.T) / 2
        for layer in range(len(values)):
            yield from (side for side in (values[layer, layer + 1 :], values[layer, :layer][::-1]) if len(side) > 1)


def monotonicity(models: Models) -> float:
    """Share of cases in which the nearer of two layers is the more similar one; ties count half."""

    def conform(side: Float[np.ndarray, " k"]) -> float:
        nearer, farther = np.triu_indices(len(side), 1)
        return float((1 + _sign(side[nearer] - side[farther])).mean() / 2)

    return float(np.mean([conform(side) for side in _list_one_sided_similarities(models)]))


def order_of_layers(models: Models) -> float:
    """Spearman's rho of similarity and closeness of layers, averaged over layers and directions."""
    return _average_rho((side, -np.arange(len(side))) for side in _list_one_sided_similarities(models))


# ---- groups of models ----


class GroupPairs(NamedTuple):
    """The similarities of the pairs of a group, and of its models with others."""

    within: Float[np.ndarray, " p"]
    across: Float[np.ndarray, " q"]


def _list_group_pairs(models: Models) -> list[GroupPairs]:
    pairs = []
    for group in np.unique(models.groups):
        members = models.groups == group
        within = models.last[np.ix_(members, members)]
        pairs.append(
            GroupPairs(within[np.triu_indices(len(within), 1)], models.last[np.ix_(members, ~members)].ravel())
        )
    return [each for each in pairs if len(each.within) and len(each.across)]


def separation(models: Models) -> float:
    """Average precision of the pairs within a group among all pairs with a model of it, averaged over groups."""
    from sklearn.metrics import average_precision_score

    precisions = [
        average_precision_score([1] * len(within) + [0] * len(across), np.concatenate([within, across]))
        for within, across in _list_group_pairs(models)
    ]
    return float(np.mean(precisions))


def compute_chance_precision(positives: int, pairs: int) -> float:
    """The expected average precision of a random order without ties: more than the share of positives."""
    first = float((1 / np.arange(1, pairs + 1)).sum()) / pairs  # of a single positive
    return first + (positives - 1) / (pairs - 1) * (1 - first) if pairs > 1 else first


def conformity(models: Models) -> float:
    """Share of cases in which a pair within a group is more similar than one across groups; ties count as no."""
    return float(
        np.mean([(_sign(within[:, None] - across) > 0).mean() for within, across in _list_group_pairs(models)])
    )


# ---- differences that are known ----


def _take_upper_triangle(square: Square) -> Float[np.ndarray, " pairs"]:
    return square[np.triu_indices(len(square), 1)]


def make_correlation_score(name: str) -> Callable[[Models], float]:
    """Spearman's rho, over pairs of models, of their distance and how far they are `apart`."""
    return lambda models: _correlate_ranks(-_take_upper_triangle(models.last), _take_upper_triangle(models.apart[name]))


def make_correlation_p(name: str) -> Callable[[Models], float]:
    """Makes the function that computes p: the share of orders of the models with a correlation at least as large. These
    are all orders, or of more than 5040 the observed one and 1999 drawn."""

    def p(models: Models) -> float:
        (permuted,), _ = list_permutations([models.count])
        above = np.triu_indices(models.count, 1)
        placed = np.zeros((models.count, models.count))
        placed[above] = normalise_ranks(_take_upper_triangle(models.apart[name]))
        placed += placed.T
        rhos = placed[permuted[:, above[0]], permuted[:, above[1]]] @ normalise_ranks(-models.last[above])
        return float((rhos >= make_correlation_score(name)(models) - ROUNDING).mean())

    return p


def compute_accuracy_differences(accuracy: Float[np.ndarray, " m"]) -> Square:
    return np.abs(accuracy[:, None] - accuracy)


def compute_js_divergence(probabilities: Float[np.ndarray, "m n c"]) -> Square:
    """Jensen-Shannon divergence of predicted distributions in bits, averaged over rows."""

    def entropy(p: np.ndarray) -> np.ndarray:
        return scipy.special.entr(p).sum(-1) / np.log(2)

    pairs = [
        [(entropy((a + b) / 2) - (entropy(a) + entropy(b)) / 2).mean() for b in probabilities] for a in probabilities
    ]
    return np.array(pairs)


def compute_disagreement(probabilities: Float[np.ndarray, "m n c"]) -> Square:
    """Share of rows for which two models predict different classes."""
    answers = probabilities.argmax(-1)
    return (answers[:, None] != answers).mean(-1)


# ---- layers with components deleted ----


def sensitivity(models: Models) -> float:
    """Spearman's rho of the distance of a truncated layer to the whole one and the accuracy that a probe loses,
    averaged over layers and models of which it loses any."""
    cut = _cut(models)
    layers = zip(_flatten_layers(cut.similar), _flatten_layers(cut.loss), strict=True)
    return _average_rho((-similar, loss) for similar, loss in layers if np.ptp(loss))


def specificity(models: Models) -> float:
    """The mean of two shares: how often a layer is closer to another seed's than to itself with damaging deletions, and
    how often it is closer to itself with harmless ones than to another seed's. Ties count as no."""
    cut = _cut(models)
    same = models.similar.diagonal(axis1=2, axis2=3)  # (m, m, l): a layer and the same layer of another seed
    same = (same + same.transpose(1, 0, 2)) / 2
    others = np.array([np.delete(same[model], model, 0) for model in range(models.count)])
    nearer = _sign(cut.similar[:, None] - others[..., None]).transpose(0, 2, 3, 1)
    return float(((nearer[cut.damaged] < 0).mean() + (nearer[~cut.damaged] > 0).mean()) / 2)


def _flatten_layers(values: Float[np.ndarray, "m l k"]) -> Float[np.ndarray, "_ k"]:
    return values.reshape(-1, values.shape[-1])


def _cut(models: Models) -> Truncated:
    assert models.truncated is not None
    return models.truncated


# ---- all of them ----


def _sign(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) <= ROUNDING, 0, np.sign(values))


def _correlate_ranks(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rho. Raises Degenerate where x, which a measure gives, is constant."""
    if np.ptp(x) <= ROUNDING:
        raise Degenerate("all similarities are equal")
    return float(normalise_ranks(x) @ normalise_ranks(y))


def _average_rho(pairs: Iterator[tuple[np.ndarray, np.ndarray]]) -> float:
    """Averages Spearman's rho over pairs (x, y). A constant x counts 0. Raises Degenerate where all are constant."""
    rhos = [float(normalise_ranks(x) @ normalise_ranks(y)) if np.ptp(x) > ROUNDING else None for x, y in pairs]
    if all(rho is None for rho in rhos):
        raise Degenerate("all similarities are equal")
    return float(np.mean([rho or 0.0 for rho in rhos]))


@dataclass(frozen=True, kw_only=True)
class TestScore:
    """compute(models): the score, at most 1. chance: what a measure of noise is expected to have. lowest: the least
    score. applies: whether the models are such that it is defined, whatever the measure. p: of a score at least as
    large."""

    compute: Callable[[Models], float]
    chance: Callable[[Models], float]
    applies: Callable[[Models], bool]
    lowest: float = 0.0
    p: Callable[[Models], float] | None = None


def _correlate_known(name: str) -> TestScore:
    return TestScore(
        compute=make_correlation_score(name),
        chance=lambda models: 0.0,
        applies=lambda models: (
            models.count >= FEWEST
            and name in models.apart
            and np.ptp(_take_upper_triangle(models.apart[name])) > ROUNDING
        ),
        lowest=-1.0,
        p=make_correlation_p(name),
    )


def _has_damage(models: Models) -> bool:
    """Says whether some deletions damage and others do not, and there is another seed."""
    return models.truncated is not None and models.count > 1 and len(np.unique(models.truncated.damaged)) == 2


ACCURACY, DIVERGENCE, DISAGREEMENT = "accuracy", "output divergence", "output disagreement"
SCORES: Mapping[str, TestScore] = {
    "identification": TestScore(
        compute=identification,
        chance=lambda models: 1 / models.layers,
        applies=lambda models: models.layers > 1 and bool(models.pairs()),
    ),
    "monotonicity": TestScore(
        compute=monotonicity, chance=lambda models: 0.5, applies=lambda models: models.layers > 2
    ),
    "order of layers": TestScore(
        compute=order_of_layers, chance=lambda models: 0.0, applies=lambda models: models.layers > 2, lowest=-1.0
    ),
    **{name: _correlate_known(name) for name in (ACCURACY, DIVERGENCE, DISAGREEMENT)},
    "sensitivity": TestScore(
        compute=sensitivity,
        chance=lambda models: 0.0,
        applies=lambda models: models.truncated is not None and bool(np.ptp(models.truncated.loss, 2).any()),
        lowest=-1.0,
    ),
    "specificity": TestScore(compute=specificity, chance=lambda models: 0.5, applies=_has_damage),
    "separation": TestScore(
        compute=separation,
        chance=lambda models: float(
            np.mean(
                [
                    compute_chance_precision(len(within), len(within) + len(across))
                    for within, across in _list_group_pairs(models)
                ]
            )
        ),
        applies=lambda models: bool(_list_group_pairs(models)),
    ),
    "conformity": TestScore(
        compute=conformity, chance=lambda models: 0.5, applies=lambda models: bool(_list_group_pairs(models))
    ),
}
