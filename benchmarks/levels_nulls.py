"""Promises of chance, of nulls for dependent rows, and of what says that such a null does not hold."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from levels import LEAST, Promise

from repsim_cli import measures
from repsim_cli.activations.exchange import Exchange, find_exchange
from repsim_cli.activations.segments import BOTH, find_segments
from repsim_cli.base.settings import Significance
from repsim_cli.engine import chance
from repsim_cli.engine import significance as judging
from repsim_cli.engine.expected import index_row_places
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.validity import make_rows_observer

PERMUTATIONS, WIDTH = {"level": 19, "power": 99}, 8  # of 19 one in 20 has p = 0.05, as of many
Sides = list[torch.Tensor]
Rng = np.random.Generator


def laid(lengths: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The document of every row, what the row begins, and its place."""
    sizes = np.array(lengths)
    beginnings = np.zeros(sizes.sum(), int)
    beginnings[sizes.cumsum() - sizes] = BOTH
    return np.repeat(np.arange(len(sizes)), sizes), beginnings, np.concatenate([np.arange(size) for size in sizes])


def unrelated(rng: Rng, documents: np.ndarray, effects: Callable[[Rng, int], np.ndarray], shared: float = 0.0) -> Sides:
    """Two models with effects of documents, that share a signal of this strength in every row."""
    count, n = documents.max() + 1, len(documents)
    signal = shared * rng.normal(size=(n, WIDTH))
    return [
        torch.from_numpy(effects(rng, count)[documents] + rng.normal(size=(n, WIDTH)) + signal @ mix).float()
        for mix in rng.normal(size=(2, WIDTH, WIDTH)) / np.sqrt(WIDTH)
    ]


def independent(rng: Rng, count: int) -> np.ndarray:
    return rng.normal(size=(count, WIDTH))


def autoregressive(r: float, rng: Rng, count: int) -> np.ndarray:
    effects = rng.normal(size=(count, WIDTH))
    for i in range(1, count):
        effects[i] = r * effects[i - 1] + np.sqrt(1 - r**2) * effects[i]
    return effects


def by_group(groups: int, spread: float, rng: Rng, count: int) -> np.ndarray:
    """Documents of `groups` in turn, whose effects have something in common."""
    return rng.normal(size=(count, WIDTH)) + spread * rng.normal(size=(groups, WIDTH))[np.arange(count) % groups]


def in_blocks(size: int, spread: float, rng: Rng, count: int) -> np.ndarray:
    """Documents in blocks of `size` that follow each other, whose effects have something in common."""
    return (
        rng.normal(size=(count, WIDTH)) + spread * rng.normal(size=(-(-count // size), WIDTH))[np.arange(count) // size]
    )


def heavy(rng: Rng, count: int) -> np.ndarray:
    return rng.standard_t(3, size=(count, WIDTH))


def twice(rng: Rng, count: int) -> np.ndarray:
    return np.repeat(rng.normal(size=(count // 2, WIDTH)), 2, axis=0)


def judged(
    rng: Rng,
    sides: Sides,
    name: str,
    documents: np.ndarray,
    beginnings: np.ndarray,
    *,
    alike: np.ndarray | None = None,
    order: str = "any",
    properties: Mapping[str, np.ndarray] | None = None,
    permutations: int = PERMUTATIONS["level"],
    apart: bool = False,
) -> judging.JudgedValues:
    """Judges two models of one layer as a run with permutations does. apart: pairs of different documents alone."""
    settings = Significance(method="permutation", permutations=permutations, order=order)  # type: ignore[arg-type]
    exchanged = find_segments([documents], [beginnings], None if alike is None else [alike])
    known = properties or {}
    measure = measures.get(name)
    found = judging.draw_pairings(
        settings,
        {name: measure},
        exchanged,
        names=["a", "b"],
        seed=int(rng.integers(1 << 30)),
        tile=512,
        labels=lambda batch: torch.from_numpy(known["label"]) if "label" in known else None,
        sizes=lambda batch: known.get("length"),
        documents=lambda batch: torch.from_numpy(documents) if apart else None,
        notes=lambda batch, label, shape: np.full(shape, np.nan),
    )(0, sides)
    statistics = {key[1]: value for key, value in found.items() if len(key) == 2}
    values = statistics["tested"]
    matrix = SimilarityMatrix(
        values=values, se=None, estimate="full", rows=len(documents), batches=1, statistics=statistics
    )
    return judging.judge_significance(settings, measure, matrix, exchanged, [slice(0, 1), slice(1, 2)])


def rejects(draw: Callable[[Rng], judging.JudgedValues], rng: Rng) -> bool:
    p = draw(rng).p
    assert p is not None
    return bool(p[0, 1] <= 0.05)


def says_invalid(draw: Callable[[Rng], judging.JudgedValues], rng: Rng) -> bool:
    return bool((draw(rng).null or {}).get("not_valid"))


def of_documents(
    lengths: Callable[[Rng], list[int]],
    effects: Callable[[Rng, int], np.ndarray],
    name: str,
    rng: Rng,
    *,
    shared: float = 0.0,
    order: str = "any",
    within: int = 0,
    labelled: int = 0,
    clusters: int = 0,
    permutations: int = PERMUTATIONS["level"],
    apart: bool = False,
) -> judging.JudgedValues:
    """within, labelled, clusters: of so many groups of documents, in turn, those of one group trade places, are known
    as a label, or are exchanged as one."""
    documents, beginnings, _ = laid(lengths(rng))
    sides = unrelated(rng, documents, effects, shared)
    alike = documents % within if within else None
    if clusters:
        documents = documents % clusters
    known: dict = {"label": documents % labelled} if labelled else {}
    more = {"alike": alike, "order": order, "properties": known, "permutations": permutations, "apart": apart}
    return judged(rng, sides, name, documents, beginnings, **more)


def first_row_the_same(rng: Rng) -> judging.JudgedValues:
    documents, beginnings, places = laid([4] * 24)
    sides = unrelated(rng, documents, independent)
    for side in sides:
        side[torch.from_numpy(places == 0)] = 1.0
    return judged(rng, sides, "mutual_knn", documents, beginnings)


def of_tokens(context: float, name: str, permutations: int, rng: Rng) -> judging.JudgedValues:
    """Independent rows: a table of each model for 30 tokens, noise, and context that both may see."""
    n = 240
    tokens, rows = rng.integers(30, size=n), np.arange(n)
    seen = rng.normal(size=(n, WIDTH))
    sides = [
        torch.from_numpy(
            rng.normal(size=(30, WIDTH))[tokens] + 0.7 * rng.normal(size=(n, WIDTH)) + context * seen @ mix
        ).float()
        for mix in rng.normal(size=(2, WIDTH, WIDTH)) / np.sqrt(WIDTH)
    ]
    return judged(rng, sides, name, rows, np.full(n, BOTH), alike=tokens, permutations=permutations)


def says_doubtful(effects: Callable[[Rng, int], np.ndarray], count: int, rng: Rng) -> bool:
    """Says whether rows that are taken for independent are said to depend on each other, where nothing is tested."""
    sides = unrelated(rng, np.arange(count), effects)
    watch = make_rows_observer(["cka"], lambda batch: np.arange(count), int(rng.integers(1 << 30)))
    depends = watch(0, sides)["cka", "depends"]
    matrix = SimilarityMatrix(
        values=torch.eye(2), se=None, estimate="full", rows=count, batches=1, statistics={"depends": depends}
    )
    return bool(judging.explain_doubtful_chance(matrix, [slice(0, 1), slice(1, 2)]))


def beyond_chance(lengths: Callable[[Rng], list[int]], name: str, tokens: int, rng: Rng) -> float:
    """The value of unrelated models minus the level of chance. tokens: of how many they share, if chance is within."""
    documents, beginnings, places = laid(lengths(rng))
    n = len(documents)
    sides = unrelated(rng, documents, independent)
    units: Exchange | None = Exchange(documents, places, "documents")
    if tokens:
        token = rng.integers(tokens, size=n)
        sides = [side + torch.from_numpy(rng.normal(size=(tokens, WIDTH))[token]).float() for side in sides]
        units = find_exchange(documents, beginnings, [np.arange(n)], held=token)
    assert units is not None
    found: dict[str, torch.Tensor] = {}

    def observe(label, measure, prepared, values):
        seen = chance.observe_chance(units, lambda batch: np.arange(n), 1, int(rng.integers(1 << 30)))(
            0, measure, prepared, values
        )
        level = (seen["chance"] if "chance" in seen else seen["drawn"])[0, 1]
        found["gap"] = values[0, 1] - level

    compute_all_pairs({name: measures.get(name)}, sides, observe=observe, places=index_row_places(units, 2))
    return float(found["gap"])


def over_pairs(lengths: Callable[[Rng], list[int]], rng: Rng) -> float:
    """The value of unrelated models over pairs of rows of different documents."""
    documents, *_ = laid(lengths(rng))
    sides, name = unrelated(rng, documents, independent), "cka_unbiased"
    return float(
        compute_all_pairs({name: measures.get(name)}, sides, documents=torch.from_numpy(documents))[name][0, 1]
    )


def even(count: int, size: int) -> Callable[[Rng], list[int]]:
    return lambda rng: [size] * count


def uneven(rng: Rng) -> list[int]:
    return np.clip(np.exp(rng.normal(1.8, 0.7, 24)).round(), 1, 30).astype(int).tolist()


P, CHANCE, CHECK = "p of significance=permutation", "level of chance", "not valid: REASON"
DOUBT = "chance of rows without a test: warning that they depend on each other"
APART = "value over pairs of other documents"
TESTED = {
    "24 documents of 6 rows": (even(24, 6), independent, {}),
    "24 documents of uneven length": (uneven, independent, {}),
    "within a topic, 3 topics of 12 documents": (even(36, 4), partial(by_group, 3, 1.0), {"within": 3}),
    "clusters, 16 authors of 4 documents": (even(64, 3), partial(by_group, 16, 1.0), {"clusters": 16}),
    "shifts, 60 paragraphs, AR .7": (even(60, 3), partial(autoregressive, 0.7), {"order": "shifts"}),
    "pairs of other documents, uneven length": (uneven, independent, {"apart": True}),
}
FAULTS = {
    "60 paragraphs, AR .7": (even(60, 3), partial(autoregressive, 0.7), {}),
    "60 paragraphs, AR .9, shifts": (even(60, 3), partial(autoregressive, 0.9), {"order": "shifts"}),
    "24 documents, each twice": (even(48, 3), twice, {}),
    "3 labels of 12 documents": (even(36, 4), partial(by_group, 3, 1.5), {"labelled": 3}),
    "60 paragraphs in blocks of 5, shifts": (even(60, 3), partial(in_blocks, 5, 2.0), {"order": "shifts"}),
    "120 paragraphs in blocks of 10, shifts": (even(120, 3), partial(in_blocks, 10, 1.5), {"order": "shifts"}),
}
# a check that finds no fault
SOUND = {
    "24 independent documents of uneven length": (uneven, independent, {"labelled": 3}),
    "60 independent documents, shifts": (even(60, 3), independent, {"order": "shifts"}),
    "60 paragraphs, AR .5, shifts": (even(60, 3), partial(autoregressive, 0.5), {"order": "shifts"}),
    "120 paragraphs, AR .7, shifts": (even(120, 3), partial(autoregressive, 0.7), {"order": "shifts"}),
    "60 documents of heavy tails, shifts": (even(60, 3), heavy, {"order": "shifts"}),
}
ROWS = {
    "200 independent rows": (independent, 200, "level", 0.05),
    "1,000 independent rows": (independent, 1000, "level", 0.05),
    "400 rows of heavy tails": (heavy, 400, "level", 0.05),
    "400 rows, AR .8": (partial(autoregressive, 0.8), 400, "power", LEAST),
    "400 rows in blocks of 10": (partial(in_blocks, 10, 1.5), 400, "power", LEAST),
}
NAMES = ("cka_unbiased", "mutual_knn")


def tests_of(kind: str, nominal: float, draws: int, added: str, **given: float) -> list[Promise]:
    """The promises of how often unrelated documents, or those that share a signal, are found related."""
    return [
        Promise(
            P, f"{setting}{added}; {name}", kind, nominal, draws,
            partial(
                rejects,
                partial(of_documents, lengths, effects, name, permutations=PERMUTATIONS[kind], **more, **given),
            ),
        )
        for setting, (lengths, effects, more) in TESTED.items()
        for name in NAMES
    ]  # fmt: skip


def tests_of_tokens(kind: str, nominal: float, draws: int, setting: str, context: float) -> list[Promise]:
    return [
        Promise(
            P, f"within a token, {setting}; {name}", kind, nominal, draws,
            partial(rejects, partial(of_tokens, context, name, PERMUTATIONS[kind])),
        )
        for name in NAMES
    ]  # fmt: skip


UNITS = {
    "documents of 6 rows": (even(24, 6), 0),
    "uneven documents": (uneven, 0),
    "within 10 tokens": (even(24, 6), 10),
}


PROMISES: list[Promise] = [
    *tests_of("level", 0.05, 500, ""),
    *tests_of("power", 0.8, 100, ", a shared signal", shared=2.5),
    Promise(P, "24 documents that begin alike; mutual_knn", "level", 0.05, 500, partial(rejects, first_row_the_same)),
    *tests_of_tokens("level", 0.05, 500, "independent rows", 0.0),
    *tests_of_tokens("power", 0.8, 100, "context is shared", 0.7),
    *(
        Promise(
            CHECK, setting, kind, nominal, draws,
            partial(says_invalid, partial(of_documents, lengths, effects, "cka_unbiased", **more)),
        )
        for kind, nominal, draws, settings in (("level", 0.05, 500, SOUND), ("power", LEAST, 100, FAULTS))
        for setting, (lengths, effects, more) in settings.items()
    ),
    *(
        Promise(DOUBT, setting, kind, nominal, 200, partial(says_doubtful, effects, count))
        for setting, (effects, count, kind, nominal) in ROWS.items()
    ),
    *(
        Promise(
            CHANCE, f"value of unrelated models minus it, {setting}; {name}", "value", 0.0, 200,
            partial(beyond_chance, lengths, name, tokens),
        )
        for setting, (lengths, tokens) in UNITS.items()
        for name in (*NAMES, "procrustes")
    ),
    *(
        Promise(APART, f"unrelated models, {setting}; cka_unbiased", "value", 0.0, 200, partial(over_pairs, lengths))
        for setting, (lengths, _) in UNITS.items()
        if "within" not in setting
    ),
]  # fmt: skip
