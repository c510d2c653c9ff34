"""The numbers of all layers of a model, gathered while its rows pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.activations.rows import RowBlock
from repsim_cli.studies.layers.scores import compute_block_influences, compute_curvatures, compute_prompt_entropies

STRAIGHT, MIXED = 3, 2  # tokens of a text of which there are two steps, and an entropy


@dataclass
class OfLayer:
    """Holds numbers of one layer, text by text. last: the last row of each text; sums: of its rows at norm 1; entropy,
    curvature, influence (of the block before): numbers of the texts that have one, NaN of the others."""

    last: list[Tensor] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)
    entropy: list[np.ndarray] = field(default_factory=list)
    curvature: list[np.ndarray] = field(default_factory=list)
    influence: list[np.ndarray] = field(default_factory=list)

    def whole(self, name: str) -> np.ndarray:
        return np.concatenate(getattr(self, name)) if getattr(self, name) else np.zeros(0)


def gather(stream: Iterator[RowBlock], counts: Int[np.ndarray, " N"], layers: int) -> list[OfLayer]:
    """counts: how many rows each sequence gives; those without rows are not texts. A block has whole sequences."""
    made, sizes, at = [OfLayer() for _ in range(layers)], counts[counts > 0], 0
    ends = sizes.cumsum()
    for first, rows in stream:
        count = int(np.searchsorted(ends, first + len(rows[0]), side="right")) - at
        lengths = sizes[at : at + count]
        assert lengths.sum() == len(rows[0])
        before: Tensor | None = None
        for layer, x in zip(made, rows, strict=True):
            _add(layer, x, before, lengths)
            before = x
        at += count
    return made


def _add(layer: OfLayer, x: Float[Tensor, "n d"], before: Tensor | None, lengths: Int[np.ndarray, " s"]) -> None:
    """before: the rows of the layer before, where it has as many features."""
    ends = lengths.cumsum()
    layer.last.append(x[torch.from_numpy(ends - 1).to(x.device)].cpu())
    unit = torch.nn.functional.normalize(x.double(), dim=1)
    text = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(x.device)
    layer.sums.append(
        torch.zeros(len(lengths), x.shape[1], dtype=unit.dtype, device=x.device).index_add(0, text, unit).cpu()
    )
    entropy, curvature = (np.full(len(lengths), np.nan) for _ in range(2))
    for length in np.unique(lengths):
        some = np.flatnonzero(lengths == length)
        places = (ends[some] - length)[:, None] + np.arange(length)
        texts = x[torch.from_numpy(places).to(x.device)]
        if length >= MIXED:
            entropy[some] = compute_prompt_entropies(texts).cpu().numpy()
        if length >= STRAIGHT:
            curvature[some] = compute_curvatures(texts).cpu().numpy()
    layer.entropy.append(entropy)
    layer.curvature.append(curvature)
    if before is not None and before.shape == x.shape:
        changed = compute_block_influences(before, x).cpu()
        sums = torch.zeros(len(lengths), dtype=changed.dtype).index_add(0, text.cpu(), changed)
        layer.influence.append((sums / torch.from_numpy(lengths)).numpy())


def select_text_values(counts: Int[np.ndarray, " N"], of_sequence: Sequence[int] | np.ndarray) -> np.ndarray:
    """Keeps what is said of sequences for those that are texts."""
    return np.asarray(of_sequence)[counts > 0]
