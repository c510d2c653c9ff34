"""Promises of the similarity budget: planted shares, and intervals that cover them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from levels import Promise

from repsim_cli.engine import shares

Rng = np.random.Generator
WIDTH, TOKENS, LATENT = 10, 36, 2
NOISE, DOCUMENTS = 0.9, 0.6  # sd of the noise of a row and of a document
ALIKE = 0.4  # share of the variance of contexts that the rows of a document have in common
USED = 1 / np.arange(2, TOKENS + 2)
USED /= USED.sum()


class Planted(NamedTuple):
    """A model: what it makes of tokens (t, w), and of two contexts (l, w), of which twins have the first too."""

    tokens: np.ndarray
    context: np.ndarray
    learned: np.ndarray


def planted(seed: int, alike: float, own: float, context: float, learned: float) -> list[Planted]:
    """Two models that agree on tokens in three directions, and see the same contexts."""
    rng = np.random.default_rng(seed)
    kinds = rng.normal(size=(TOKENS, 3))
    return [
        Planted(
            alike * kinds @ rng.normal(size=(3, WIDTH)) + own * rng.normal(size=(TOKENS, WIDTH)),
            context * rng.normal(size=(LATENT, WIDTH)),
            learned * rng.normal(size=(LATENT, WIDTH)),
        )
        for _ in range(2)
    ]


def truth(models: Sequence[Planted], twins: Sequence[Planted] = ()) -> dict[str, float]:
    """The shares in the population."""
    noise = NOISE**2 + DOCUMENTS**2

    def means(a: Planted, b: Planted) -> np.ndarray:
        return (a.tokens * USED[:, None]).T @ b.tokens - np.outer(USED @ a.tokens, USED @ b.tokens)

    def within(a: Planted, b: Planted) -> np.ndarray:
        return a.context.T @ b.context + a.learned.T @ b.learned

    a, b = models
    whole = means(a, b) + within(a, b)
    sizes = [np.linalg.norm(means(m, m) + within(m, m) + noise * np.eye(WIDTH)) for m in models]

    def share(part: np.ndarray) -> float:
        return float((whole * part).sum() / np.prod(sizes))

    found = {shares.VALUE: share(whole), shares.TOKEN: share(means(a, b)), shares.REST: share(within(a, b))}
    if twins:
        seen = np.concatenate([twin.context for twin in twins], 1)
        solved = np.linalg.inv(seen.T @ seen + noise * np.eye(seen.shape[1]))
        found[shares.UNTRAINED] = share(a.context.T @ seen @ solved @ seen.T @ b.context)
        found[shares.LEARNED] = found.pop(shares.REST) - found[shares.UNTRAINED]
    return found


def rows(
    rng: Rng, count: int, length: int, models: Sequence[Planted], following: float = 0.0
) -> tuple[np.ndarray, np.ndarray, list]:
    """Documents of unequal lengths, each with favourite tokens, a context and effects of its own: the document and the
    token of every row, and the rows of each model. following: what effects keep from one document to the next."""
    sizes = rng.integers(length // 2, length + length // 2 + 1, count)
    document = np.repeat(np.arange(count), sizes)
    tokens = np.concatenate([rng.choice(TOKENS, size, p=rng.dirichlet(6 * TOKENS * USED)) for size in sizes])
    contexts = [
        np.sqrt(1 - ALIKE) * rng.normal(size=(len(document), LATENT))
        + np.sqrt(ALIKE) * rng.normal(size=(count, LATENT))[document]
        for _ in range(2)
    ]
    made = []
    for model in models:
        effects = rng.normal(size=(count, WIDTH))
        for i in range(1, count) if following else ():
            effects[i] = following * effects[i - 1] + np.sqrt(1 - following**2) * effects[i]
        noise = rng.normal(size=(len(document), WIDTH)), effects[document]
        x = model.tokens[tokens] + contexts[0] @ model.context + contexts[1] @ model.learned
        x = x + NOISE * noise[0] + DOCUMENTS * noise[1]
        made.append(torch.from_numpy(x - x.mean(0)).float())
    return document, tokens, made


def drawn(
    count: int, length: int, models: Sequence[Planted], twins: Sequence[Planted], following: float, rng: Rng
) -> Mapping[str, float]:
    """The shares of a sample, and whether their intervals hold those of the population."""
    torch.set_num_threads(1)
    document, tokens, (x, y, *fresh) = rows(rng, count, length, [*models, *twins], following)
    design = shares.make_design(tokens, document, twins=bool(twins))
    read = shares.read_out(design, x, y, shares.compute_twin_features(design, fresh)) if twins else None
    parts = shares.split_shares(shares.compute_part_products(design, x, y), read)
    found = shares.compute_part_shares(
        parts, (shares.compute_squared_norm(design, x), shares.compute_squared_norm(design, y)), 0.95
    )
    true = truth(models, twins)
    return {
        **{part: found[part].value for part in true},
        **{f"{part} covered": abs(found[part].value - true[part]) <= found[part].half for part in true},
    }


def promises(
    setting: str, draws: int, count: int, length: int, given: Sequence[Sequence[Planted]], following: float = 0.0
) -> list[Promise]:
    """The promises of the value and of all its parts."""
    models, twins = given
    draw, true = partial(drawn, count, length, models, twins, following), truth(models, twins)
    said = f"{count} documents of about {length} rows, {setting}"
    return [
        *(Promise(f"{part}, with budget", said, "cover", 0.95, draws, draw, f"{part} covered") for part in true),
        *(Promise(f"{part}, with budget", said, "value", round(x, 3), draws, draw, part) for part, x in true.items()),
    ]


def p_beyond(count: int, length: int, models: Sequence[Planted], following: float, rng: Rng) -> float:
    """Tests a sample for something beyond the token; NaN where no p is given."""
    torch.set_num_threads(1)
    document, tokens, (x, y) = rows(rng, count, length, models, following)
    return shares.compute_p_beyond(shares.make_design(tokens, document, twins=False), x, y)


def rejects(draw: Callable[[Rng], float], rng: Rng) -> bool:
    return draw(rng) <= 0.05


def refuses(draw: Callable[[Rng], float], rng: Rng) -> bool:
    return bool(np.isnan(draw(rng)))


def of_p(
    setting: str, kind: str, nominal: float, draws: int, models: Sequence[Planted], following: float = 0.0
) -> list[Promise]:
    return [
        Promise(
            "p beyond the token, with budget", f"{count} documents of about {length} rows, {setting}",
            kind, nominal, draws,
            partial(rejects, partial(p_beyond, count, length, models, following)),
        )
        for count, length in ((40, 8), (80, 8), (60, 20))
    ]  # fmt: skip


BOTH = planted(21, 0.7, 0.7, 0.5, 0.6)
ALONE = planted(22, 0.8, 0.6, 0.0, 0.0)
TWINS = planted(23, 0.4, 1.0, 0.8, 0.0)
PROMISES = [
    *promises("token and context shared", 2000, 80, 8, (BOTH, ())),
    *promises("the token alone shared, AR .5", 2000, 80, 8, (ALONE, ()), 0.5),
    *promises("the token alone shared", 2000, 80, 8, (ALONE, ())),
    *of_p("the token alone shared", "level", 0.05, 2000, ALONE),
    *of_p("the token alone shared, documents AR .4", "level", 0.05, 2000, ALONE, 0.4),
    *of_p("the token alone shared, documents AR .8", "level", 0.05, 2000, ALONE, 0.8),
    Promise(
        "no p beyond the token, with budget",
        "80 documents of about 8 rows, AR .8",
        "power",
        0.8,
        500,
        partial(refuses, partial(p_beyond, 80, 8, ALONE, 0.8)),
    ),
    *of_p("token and context shared", "power", 0.8, 500, BOTH),
    *promises("with untrained twins", 400, 80, 24, (BOTH, TWINS)),
]
