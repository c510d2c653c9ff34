"""The rows behind a map: what a page needs to show which texts drive the similarity of two layers, and which break it.

For the first rows of the first batch, a run keeps the ten nearest rows of each in every layer, and the share of each in
the similarity of layers that answer to each other, under the first measure that is made of HSIC. The shares of a pair
of layers add up to its similarity on these rows.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors.torch import save
from torch import Tensor

from repsim_cli.activations.places import list_row_identities, list_row_places
from repsim_cli.base.errors import Degenerate
from repsim_cli.base.settings import WORDS, Extract
from repsim_cli.data.base import Sequences
from repsim_cli.engine.cached import Content, open_units
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.estimates import Beside
from repsim_cli.engine.extraction import Extraction
from repsim_cli.engine.undefined import compute_defined_values, list_undefined_cells, make_with_stand_ins
from repsim_cli.measures.base import (
    InnerProduct,
    MeasureWarning,
    OfHsic,
    clamp_to_bounds,
    compute_self_products,
    restrict_to_other_documents,
)
from repsim_cli.measures.inner import compute_inner_products
from repsim_cli.measures.kernels import AnyKernel, Documents, prepare_states
from repsim_cli.measures.nearest import find_neighbours
from repsim_cli.runs.content import BEHIND, TEXTS
from repsim_cli.runs.results import Run, compact, write

MOST, LEAST = 2000, 32  # rows that are kept
CELLS = 20_000  # rows times layers: 400 kB of neighbours
SHARES = 100_000  # numbers
NEAREST = 10
BEFORE = 12  # tokens before one that are decoded with it
AROUND = 30  # characters on each side of a token that stand beside it
UNFINISHED = "\ufffd"  # what a part of a character is decoded as


@contextmanager
def keep_rows_behind(
    run: Run, comparison: Comparison, sequences: Mapping[str, Sequences], content: Content | None
) -> Iterator[Beside]:
    """Gives what observes the rows of a batch, and writes what it kept into the run folder in the end: from the cache
    where that has it. Nothing is kept of layers that are in memory in groups alone."""
    measure = next((label for label, bound in comparison.measures.items() if isinstance(bound, OfHsic)), "")
    unit = None if content is None else content.of_rows(comparison.measures[measure] if measure else None)
    with open_units(run, "rows", {"rows": unit}) as (known, keep):
        kept, observed = dict(known.get("rows", {})), False

        def observe(batch: int, representations: Any, *_: Any) -> Mapping[Any, Tensor]:
            nonlocal observed
            observed = True
            if not batch and not kept and all(isinstance(x, Tensor) for x in representations):
                kept.update(find_nearest(comparison, representations, measure))
                if kept:
                    keep("rows", kept)
            return {}

        yield observe
    if not kept:
        run.manifest["rows_behind"] = _say_why_none(comparison, observed)
    if kept:
        write(run.folder / BEHIND, save({name: part.contiguous() for name, part in kept.items()}))
        run.write_text(TEXTS, compact(describe_kept_rows(comparison, sequences, len(kept["nearest"][0]), measure)))


def _say_why_none(comparison: Comparison, observed: bool) -> str:
    """Says why no rows are kept. observed: whether any were read."""
    if not observed:
        return "none are kept, since the cache had the matrices and not these; cache=false computes both"
    rows = min(comparison.total, comparison.extract.rows if comparison.batches == 1 else comparison.extract.batch_rows)
    if min(rows, CELLS // len(comparison.layers)) < LEAST:
        return (
            f"none are kept, since a batch of {rows:,} rows of {len(comparison.layers):,} layers is too small or wide"
        )
    return "none are kept, since the layers are in memory in groups alone; raise hardware.memory_gb"


def find_nearest(comparison: Comparison, rows: Sequence[Tensor], measure: str) -> dict[str, Tensor]:
    """Finds what is kept of a batch: `nearest` (layers, n, 10), the rows nearest first, -1 where a layer has none;
    `pairs` (p, 2), `values` (p,) and `shares` (p, n) of layers that answer to each other, under this measure.

    Empty where the batch has too few rows.
    """
    n = min(MOST, len(rows[0]), CELLS // len(rows))
    if n < LEAST:
        return {}
    some = [x[:n] for x in rows]
    documents = comparison.documents_apart(0)
    documents = None if documents is None else torch.unique(documents[:n], return_inverse=True)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeasureWarning)  # of fewer rows than the run's
        found = {"nearest": torch.stack([_index_nearest_rows(x, documents) for x in some])}
        if measure:
            bound = restrict_to_other_documents(comparison.measures[measure], documents)
            assert isinstance(bound, OfHsic)
            found |= compute_row_shares(bound, some, comparison.names, comparison.places, comparison.hardware.tile)
    return {name: part.cpu() for name, part in found.items()}


def _index_nearest_rows(x: Float[Tensor, "n d"], documents: Documents | None) -> Int[Tensor, "n k"]:
    try:
        return find_neighbours(x, k=NEAREST, documents=documents).lists.T.to(torch.int16)
    except Degenerate:
        return torch.full((len(x), NEAREST), -1, dtype=torch.int16, device=x.device)


def compute_row_shares(
    measure: InnerProduct,
    rows: Sequence[Float[Tensor, "n _"]],
    names: Sequence[str],
    places: Sequence[slice],
    tile: int,
) -> dict[str, Tensor]:
    """Finds the share of each row in the similarity of layers of different models that answer to each other: of each
    layer the closest of each other model, and layers of the same number.

    places: where the layers of each model stand. Returns `pairs` (p, 2) of layers, their `values` (p,), and `shares`
    (p, n), which add up to them; empty where no pair has a value.

    >>> rows = [torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [1.0], [2.0]])]
    >>> from repsim_cli import measures
    >>> found = compute_row_shares(measures.get("cka"), rows, ["a", "b"], [slice(0, 1), slice(1, 2)], 512)
    >>> found["shares"].round(decimals=3).tolist(), found["values"].tolist()
    ([[0.5, 0.0, 0.5]], [1.0])
    """
    kernel, n = measure.row, len(rows[0])
    states, failed = make_with_stand_ins(lambda a: prepare_states([kernel], rows[a], {})[kernel], range(len(rows)))
    if len(failed) == len(rows):
        return {}
    sums = _RowSums(kernel, places, n)
    (cross,) = compute_inner_products([(kernel, kernel)], {kernel: states}, n, tile, sums.add)
    dtype = torch.promote_types(rows[0].dtype, torch.float32)
    undefined = list_undefined_cells(failed, failed, len(rows))
    values = compute_defined_values(
        measure, cross, compute_self_products(measure, cross, n, dtype), states, states, names, undefined
    )
    values = clamp_to_bounds(measure, values)
    for cell in undefined:
        values[cell] = torch.nan
    pairs = [pair for i, j in sums.models for pair in _find_answers(values, places[i], places[j], measure)]
    pairs = pairs[: SHARES // n]
    if not pairs:
        return {}
    at = torch.tensor(pairs)
    parts = [sums.take(a, b) for a, b in pairs]
    shares = [part * (values[pair] / part.sum()).to(part) for pair, part in zip(pairs, parts, strict=True)]
    return {"pairs": at.to(torch.int16), "values": values[at[:, 0], at[:, 1]], "shares": torch.stack(shares).float()}


class _RowSums:
    """What each row adds to the inner products of the layers of every two models, summed tile by tile."""

    def __init__(self, kernel: AnyKernel, places: Sequence[slice], rows: int):
        self.kernel, self.places, self.rows = kernel, places, rows
        self.models = [(i, j) for j in range(len(places)) for i in range(j)]
        self.sums: dict[tuple[int, int], Tensor] = {}

    def add(self, weight: int, at: slice, columns: slice | None, blocks: Mapping[AnyKernel, Tensor]) -> None:
        """Adds a tile, as `compute_inner_products` shows it."""
        cells = blocks[self.kernel].double()
        for i, j in self.models:
            a, b = cells[self.places[i]], cells[self.places[j]]
            of_rows = self.sums.setdefault((i, j), cells.new_zeros(len(a), len(b), self.rows))
            if columns is None:  # of the diagonal
                of_rows[:, :, at] += a[:, None] * b
                continue
            shape = at.stop - at.start, columns.stop - columns.start
            a, b = a.unflatten(1, shape), b.unflatten(1, shape)
            of_rows[:, :, at] += torch.einsum("arc,brc->abr", a, b)
            if weight == 2:  # it also stands for its mirror image
                of_rows[:, :, columns] += torch.einsum("arc,brc->abc", a, b)

    def take(self, a: int, b: int) -> Float[Tensor, " n"]:
        """The sums of a pair of layers, by their numbers among all."""
        (i, row), (j, column) = self._find(a), self._find(b)
        return self.sums[i, j][row, column]

    def _find(self, layer: int) -> tuple[int, int]:
        """The model of a layer, and its number there."""
        return next(
            (i, layer - place.start) for i, place in enumerate(self.places) if place.start <= layer < place.stop
        )


def _find_answers(values: Float[Tensor, "r r"], a: slice, b: slice, measure: InnerProduct) -> list[tuple[int, int]]:
    """The pairs of layers of two models where one is the closest to the other, or both have the same number."""
    near = values[a, b].cpu() if measure.card.larger_is_closer else -values[a, b].cpu()
    near = near.nan_to_num(-torch.inf, neginf=-torch.inf)
    forth, back = near.argmax(1).tolist(), near.argmax(0).tolist()
    same = ((i, i) for i in range(min(len(forth), len(back))))
    cells = sorted({*enumerate(forth), *((i, j) for j, i in enumerate(back)), *same})
    return [(a.start + i, b.start + j) for i, j in cells if near[i, j].isfinite()]


def describe_kept_rows(
    comparison: Comparison, sequences: Mapping[str, Sequences], n: int, measure: str
) -> dict[str, Any]:
    """Describes the kept rows: the layers, what a row is, which token or word it is of, and the texts that it stands
    in, where they may be kept."""
    extract, numbers = comparison.extract, comparison.numbers(0)[:n]
    label, given = next(iter(sequences.items()), ("", None))
    of_text = _is_of_text(comparison, given)
    texts, identities = [], None
    if given is not None and of_text:
        tokens = list_row_identities(given, extract)
        identities = None if tokens is None else tokens[numbers]
        if may_keep_texts(comparison):
            texts = list_row_passages(given, comparison.tokenizers[label], extract, numbers)
        elif identities is not None:  # numbers of the vocabulary could be read as text
            identities = np.unique(identities, return_inverse=True)[1]
    why = "" if texts or not of_text else "texts of local files are kept with extract.keep_texts=true"
    return {
        "layers": [[layer.model, layer.name] for layer in comparison.layers],
        "measure": measure,
        "unit": extract.unit,
        "rows": n,
        "of": comparison.total,
        "tokens": None if identities is None else identities.tolist(),
        "texts": texts,
        "without": why,
    }


def _is_of_text(extraction: Extraction, given: Sequences | None) -> bool:
    return given is not None and given.inputs.ndim == 2 and extraction.data.modality == "text"


def may_keep_texts(extraction: Extraction) -> bool:
    """Tells whether the run folder may hold pieces of the texts."""
    return extraction.extract.keep_texts or extraction.data.public


def list_row_texts(
    extraction: Extraction, sequences: Mapping[str, Sequences], numbers: Int[np.ndarray, " n"]
) -> list[str] | None:
    """Gives each of these rows of the run its text, `before [token] behind` where it is of a part of a sequence; None
    where rows have no text, or it may not be kept."""
    label, given = next(iter(sequences.items()), ("", None))
    if given is None or not _is_of_text(extraction, given) or not may_keep_texts(extraction):
        return None
    tokenizer, found = extraction.tokenizers[label], [""] * len(numbers)
    for passage in list_row_passages(given, tokenizer, extraction.extract, numbers):
        added = {*tokenizer.all_special_tokens}
        pieces = [" " if piece.strip() in added else piece for piece in passage["pieces"]]
        rows = np.array(passage["rows"])
        for row in np.unique(rows[rows >= 0]).tolist():
            of = np.flatnonzero(rows == row)
            first, last = of[0], of[-1] + 1
            parts = ["".join(pieces[first:last])]
            if not extraction.extract.pooled:
                before, behind = "".join(pieces[:first])[-AROUND:], "".join(pieces[last:])[:AROUND]
                parts = [before, f"[{parts[0]}]", behind]
            found[row] = " ".join("".join(parts).split())
    return found


def list_row_passages(
    sequences: Sequences, tokenizer: Any, extract: Extract, numbers: Int[np.ndarray, " n"]
) -> list[dict[str, Any]]:
    """Lists the sequences that these rows of the run stand in: their tokens as text, and the row of each token, -1
    where it belongs to none. All pieces of a word have the row of that word, and all tokens of a pooled sequence that
    of the sequence."""
    places = list_row_places(sequences, extract)[numbers]
    found = []
    for sequence in dict.fromkeys(places[:, 0].tolist()):
        mine = np.flatnonzero(places[:, 0] == sequence)
        length = max(int(sequences.mask[sequence].sum()), int(places[mine, 1].max()) + 1)  # padding may have rows
        rows = np.full(length, -1)
        if extract.pooled:
            rows[:] = mine[0]
        for row, place in zip(mine.tolist(), places[mine, 1].tolist(), strict=True):
            if extract.unit in WORDS and sequences.word is not None:
                rows[sequences.word[sequence, :length] == sequences.word[sequence, place]] = row
            elif not extract.pooled:
                rows[place] = row
        pieces = spell(tokenizer, sequences.ids[sequence, :length].tolist())
        found.append({"pieces": pieces, "rows": rows.tolist()})
    return found


def spell(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """The text that every token adds to those before it; empty where a token ends within a character, whose text its
    last token has."""

    def text(some: Sequence[int]) -> str:
        return tokenizer.decode(list(some), clean_up_tokenization_spaces=False)

    made, start = [], 0
    for i in range(len(tokens)):
        start = max(start, i - BEFORE)
        before, now = text(tokens[start:i]), text(tokens[start : i + 1])
        made.append("" if now.endswith(UNFINISHED) else now[len(before.rstrip(UNFINISHED)) :])
    return made
