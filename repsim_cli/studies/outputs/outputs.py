"""How far models differ in what they predict: measures of outputs, for all pairs of models, from one pass per model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.measures import Card

Logs = Float[Tensor, "m n c"]  # log probabilities of m models, on the same n rows, over the same c classes
Rows = Float[Tensor, "m m n"]


def output_jsd(logs: Logs) -> Rows:
    """Jensen-Shannon divergence of two predictive distributions, in bits: 0 for equal ones, 1 for disjoint ones."""
    probabilities = logs.exp()
    entropies = _entropy(probabilities)
    divergences = logs.new_zeros(len(logs), *entropies.shape)
    for a in range(len(logs)):
        # one model against all that follow: no (m, m, n, c) tensor is made
        mixed = _entropy((probabilities[a] + probabilities[a + 1 :]) / 2)
        mean = (entropies[a] + entropies[a + 1 :]) / 2
        divergences[a, a + 1 :] = divergences[a + 1 :, a] = (mixed - mean) / log(2)
    return divergences.clamp(0, 1)  # rounding leaves -1e-17


def output_kl(logs: Logs) -> Rows:
    """Kullback-Leibler divergence of the column model's distribution from the row model's, in nats."""
    return torch.stack([(row.exp() * (row - logs)).sum(-1) for row in logs]).clamp(min=0)


def disagreement(answers: Int[Tensor, "m n"]) -> Rows:
    """1 where two models give different answers, 0 where the same."""
    return (answers[:, None] != answers[None]).double()


def _entropy(p: Float[Tensor, "... c"]) -> Float[Tensor, "..."]:
    """Entropy of a distribution, in nats."""
    return torch.special.entr(p).sum(-1)


def _make_output_card(label: str, upper: float | None, cost: str, source: str, **claims: bool) -> Card:
    return Card(
        label=label,
        larger_is_closer=False,
        bounds=(0.0, upper),
        symmetric=claims.get("symmetric", True),
        is_metric=claims.get("is_metric", False),
        invariant_to=frozenset(),
        minimum_rows=1,
        cost=cost,
        source=source,
        reads="outputs",
        labelled=claims.get("labelled", False),
    )


CARDS: Mapping[str, Card] = {
    "output_jsd": _make_output_card("output JSD, bits", 1.0, "n c per pair", "Lin 1991; Klabunde et al. 2025"),
    "output_kl": _make_output_card(
        "output KL, nats", None, "n c per pair", "Kullback and Leibler 1951", symmetric=False
    ),
    "disagreement": _make_output_card("disagreement", 1.0, "n per pair", "Klabunde et al. 2025", is_metric=True),
    "accuracy_difference": _make_output_card(
        "accuracy difference", 1.0, "1 per pair", "Klabunde et al. 2025", is_metric=True, labelled=True
    ),
}


@dataclass
class OutputSums:
    """Running sums over rows: of each measure per pair and of its square, and of right answers per model.

    rows: seen so far.
    """

    measures: Sequence[str]
    rows: int = 0
    correct: Float[Tensor, " m"] | None = None
    totals: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def add(self, logits: Float[Tensor, "m n c"], answers: Int[Tensor, "m n"], right: Int[Tensor, " n"] | None) -> None:
        """Adds rows. logits: over the same classes in the same order. answers: of each model, right: the true ones."""
        logs = logits.double().log_softmax(-1)
        by_row: dict[str, Callable[[], Rows]] = {
            "output_jsd": lambda: output_jsd(logs),
            "output_kl": lambda: output_kl(logs),
            "disagreement": lambda: disagreement(answers),
        }
        for name in self.measures:
            if name in by_row:
                values = by_row[name]()
                total, squares = self.totals.get(name, (0.0, 0.0))
                self.totals[name] = (total + values.sum(-1), squares + values.square().sum(-1))
        if right is not None:
            now = (answers == right).double().sum(-1)
            self.correct = now if self.correct is None else self.correct + now
        self.rows += answers.shape[1]

    def accuracy(self) -> Float[Tensor, " m"] | None:
        return None if self.correct is None else self.correct / self.rows

    def matrix(self, name: str) -> tuple[Float[Tensor, "m m"], Float[Tensor, "m m"] | None]:
        """The measure for all pairs: the mean over rows with its standard error (None where it is no mean of rows)."""
        if name == "accuracy_difference":
            accuracy = self.accuracy()
            assert accuracy is not None
            return (accuracy[:, None] - accuracy[None]).abs(), None
        total, squares = self.totals[name]
        mean = total / self.rows
        variance = (squares / self.rows - mean.square()).clamp(min=0)
        return mean, (variance / max(self.rows - 1, 1)).sqrt()
