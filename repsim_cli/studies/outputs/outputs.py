"""How far models differ in what they predict: measures of outputs, for all pairs of models, from one pass per model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import NamedTuple

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
    """Running sums over the rows of each document: of each measure per pair, and of right answers per model.

    rows: (d,) of each document, seen so far.
    totals: by measure, (m, m, d).
    correct: (m, d).
    answered: (m, c) how often each model gave each answer.
    """

    measures: Sequence[str]
    documents: int
    rows: Float[Tensor, " d"] = field(init=False)
    totals: dict[str, Tensor] = field(default_factory=dict)
    correct: Float[Tensor, "m d"] | None = None
    answered: Float[Tensor, "m c"] | None = None

    def __post_init__(self) -> None:
        self.rows = torch.zeros(self.documents, dtype=torch.float64)

    def add(
        self,
        logits: Float[Tensor, "m n c"],
        answers: Int[Tensor, "m n"],
        right: Int[Tensor, " n"] | None,
        of: Int[Tensor, " n"],
    ) -> None:
        """Adds rows. logits: over the same classes in the same order. answers: of each model, right: the true ones.
        of: the document of each row."""
        logs = logits.double().log_softmax(-1)
        by_row: dict[str, Callable[[], Rows]] = {
            "output_jsd": lambda: output_jsd(logs),
            "output_kl": lambda: output_kl(logs),
            "disagreement": lambda: disagreement(answers),
        }
        for name in self.measures:
            if name in by_row:
                self.totals[name] = self._add_to(self.totals.get(name), by_row[name](), of)
        if right is not None:
            self.correct = self._add_to(self.correct, (answers == right).double(), of)
        counts = torch.stack([each.bincount(minlength=logits.shape[-1]) for each in answers]).double()
        self.answered = counts if self.answered is None else self.answered + counts
        self.rows.index_add_(0, of, torch.ones(len(of), dtype=torch.float64))

    def _add_to(self, total: Tensor | None, values: Float[Tensor, "... n"], of: Int[Tensor, " n"]) -> Tensor:
        total = values.new_zeros(*values.shape[:-1], self.documents) if total is None else total
        return total.index_add_(-1, of, values)

    def compute_accuracy(self) -> "OutputMeans | None":
        """Computes the accuracy of each model, (m,)."""
        return None if self.correct is None else self._average(self.correct)

    def compute_matrix(self, name: str) -> "OutputMeans":
        """Computes the measure for all pairs, (m, m)."""
        if name != "accuracy_difference":
            return self._average(self.totals[name])
        assert self.correct is not None
        found = self._average(self.correct[:, None] - self.correct[None])
        return OutputMeans(found.values.abs(), found.se)

    def compute_chance(self, name: str) -> Float[Tensor, "m m"] | None:
        """Computes how far models differ whose answers are paired at random; None where it is not known: of
        distributions this would need them all again."""
        if name != "disagreement" or self.answered is None:
            return None
        shares = self.answered / self.answered.sum(1, keepdim=True)
        return 1 - shares @ shares.T

    def _average(self, totals: Float[Tensor, "... d"]) -> "OutputMeans":
        """Averages over rows, with the standard error over documents, whose rows depend on each other (of a ratio of
        sums, linearised); None of one document."""
        seen = self.rows > 0
        rows, count = self.rows[seen], int(seen.sum())
        values = totals.sum(-1) / rows.sum()
        left = totals[..., seen] - values[..., None] * rows
        if count < 2:
            return OutputMeans(values, None)
        return OutputMeans(values, (left.square().sum(-1) * count / (count - 1)).sqrt() / rows.sum())


class OutputMeans(NamedTuple):
    """values: means over rows. se: their standard errors over documents."""

    values: Tensor
    se: Tensor | None
