"""Runs in memory: models, layers and measured maps, for figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from repsim_cli.findings.analysis import Finished
from repsim_cli.runs.content import Facts, Matrix, Measured, Results, Side

CARD = {
    "label": "CKA (unbiased)", "larger_is_closer": True, "bounds": [None, 1.0], "symmetric": True, "is_metric": False,
}  # fmt: skip


ESTIMATE = {"kind": "per_batch", "batches": 31, "rows": 31744}


LONG = "ROBERTA_large_finetuned_on_mnli_seed"


@dataclass(frozen=True, kw_only=True)
class InMemory(Finished):
    """A run whose arrays are not in files."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def array(self, path: str) -> np.ndarray:
        return self.arrays[path]


def named(count: int, stem: str = "m") -> list[str]:
    return [f"{stem}_{i}" for i in range(count)]


def layers(count: int, points: tuple[str, ...] = ("resid_post",)) -> list[str]:
    return [f"{point}@{i}" for i in range(count) for point in points]


def in_memory(arrays: Mapping[str, np.ndarray], manifest: Mapping[str, Any] | None = None, **results: Any) -> InMemory:
    return InMemory(folder=None, manifest=manifest or {}, results=Results(study="made", **results), arrays=arrays)  # type: ignore[arg-type]


def measured(
    models: list[str],
    names: list[str],
    scale: float = 1.0,
    shift: float = 0.0,
    label: str = "cka_unbiased",
    card: Mapping[str, Any] = CARD,
) -> tuple[Measured, dict[str, np.ndarray], dict[str, Any]]:
    """A measure of all pairs of these models, the arrays of its matrices, and what the manifest says of the models."""
    rng = np.random.default_rng(0)
    arrays = {f"{label} {a} {b}": scale * rng.uniform(size=(len(names),) * 2) + shift
              for a, b in combinations_with_replacement(models, 2)}  # fmt: skip
    matrices = [
        Matrix(rows=Side(model=a, layers=names), columns=Side(model=b, layers=names), values=f"{label} {a} {b}")
        for a, b in combinations_with_replacement(models, 2)
    ]
    facts = {
        model: Facts(kind="live", family="llama", layers=names, widths=[8] * len(names)).__dict__ for model in models
    }
    whole = Measured(name=label, label=label, settings={}, estimate=ESTIMATE, card=dict(card), matrices=matrices)
    return whole, arrays, {"models": {key: {} for key in models}, "facts": facts, "seed": 0}
