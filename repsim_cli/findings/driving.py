"""Names the rows behind the similarity of two models: the tokens or texts with the largest shares of it, and those on
which nearest rows differ most."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from repsim_cli.base.plain import escape
from repsim_cli.figures.panels import list_models
from repsim_cli.figures.texts import shorten
from repsim_cli.findings.answering import make_layer_namer
from repsim_cli.runs.behind import Kept

MOST, FEWEST = 3, 3  # tokens that are named at each end; rows of a token that is
LETTERS = 40  # of a text


def say_driving(kept: Kept, first: str, second: str) -> Iterator[str]:
    """Says which tokens or texts make most of the similarity of the two closest layers, among those with shares, and on
    which their ten nearest rows agree least; where texts are not kept, how to keep them. Layers with the same nearest
    rows, such as those of a copy, are taken only where there are no others."""
    about, arrays = kept
    of = [{about["layers"][a][0], about["layers"][b][0]} == {first, second} for a, b in arrays.get("pairs", ())]
    if not any(of):
        return
    nearest = arrays["nearest"]
    differ = [not np.array_equal(nearest[a], nearest[b]) for a, b in arrays["pairs"].tolist()]
    of = np.logical_and(of, differ) if np.logical_and(of, differ).any() else of
    place = int(np.argmax(np.where(of, arrays["values"], -np.inf)))
    layers, shares = arrays["pairs"][place].tolist(), arrays["shares"][place]
    if not shares.sum() > 0:  # nothing that rows could have a share of
        return
    word, _ = make_layer_namer([about["layers"][layer][1] for layer in layers])
    where = " and ".join(word(about["layers"][layer][1]) for layer in layers)
    if not about["texts"]:
        if about["without"]:
            yield f"which {about['unit']}s are behind it is not kept: {about['without']}"
        return
    groups = _group_rows_by_token(about["tokens"], len(shares))
    sums = np.array([shares[rows].sum() for rows in groups])
    top = np.argsort(-sums, kind="stable")[:MOST]
    names = _quote_row_texts(kept, [int(groups[i][0]) for i in range(len(groups))])
    rows = sum(len(groups[i]) for i in top)
    share = 100 * sums[top].sum() / shares.sum()
    most = f"{list_models([names[i] for i in top])} ({rows} of {len(shares)} rows) make {share:.0f} %"
    unit = "texts" if about["tokens"] is None else f"{about['unit']}s"
    said = f"the {unit} behind it, at {where}: {most} of the similarity"
    alike = count_shared_neighbours(nearest[layers[0]], nearest[layers[1]])
    enough = [i for i, group in enumerate(groups) if about["tokens"] is None or len(group) >= FEWEST]
    least = sorted(enough, key=lambda i: float(alike[groups[i]].mean()))[:MOST]
    if least and differ[place]:
        of_each = [f"{names[i]} {alike[groups[i]].mean():.1f}" for i in least]
        said += f"; fewest shared neighbours of {nearest.shape[-1]}: {', '.join(of_each)}"
    yield said


def count_shared_neighbours(a: Int[np.ndarray, "n k"], b: Int[np.ndarray, "n k"]) -> Int[np.ndarray, " n"]:
    """Counts of each row how many of its nearest rows two layers share.

    >>> count_shared_neighbours(np.array([[1, 2]]), np.array([[2, 3]])).tolist()
    [1]
    """
    return (a[:, :, None] == b[:, None, :]).sum((1, 2))


def _group_rows_by_token(tokens: Sequence[int] | None, rows: int) -> list[Int[np.ndarray, " k"]]:
    """The rows of each token; where rows belong to no token, each row alone."""
    if tokens is None:
        return [np.array([row]) for row in range(rows)]
    _, of = np.unique(tokens, return_inverse=True)
    return np.split(np.argsort(of, kind="stable"), np.bincount(of).cumsum()[:-1])


def _quote_row_texts(kept: Kept, rows: Sequence[int]) -> list[str]:
    """The text of these rows, in quotes."""
    texts: dict[int, str] = {}
    for passage in kept.about["texts"]:
        for piece, row in zip(passage["pieces"], passage["rows"], strict=True):
            texts[row] = texts.get(row, "") + piece
    found = (texts.get(row, "") for row in rows)
    return [f"'{shorten(escape(text.strip(' ') or text), LETTERS)}'" for text in found]
