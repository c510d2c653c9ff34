"""Promises of shares: of latents that two dictionaries share or a crosscoder has, of intervals of shares of rows of
documents, of what stitches cost, and of probes that are held against the largest class."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import torch
from levels import LEAST, Promise

from repsim_cli.engine.proportions import compute_wilson_interval, count_like_freedom
from repsim_cli.findings.extremes import list_alike
from repsim_cli.studies.dictionaries.compare import (
    draw_mirrored,
    match_latents,
    measure_dictionary_quality,
    take_alive_directions,
)
from repsim_cli.studies.dictionaries.crosscoders import Crosscoder
from repsim_cli.studies.dictionaries.finding import compute_matched_shares
from repsim_cli.studies.dictionaries.formats import load
from repsim_cli.studies.dictionaries.other_sides import compute_shares_from_others
from repsim_cli.studies.dictionaries.study import MIRRORS
from repsim_cli.studies.dictionaries.train import DictionaryRecipe, list_model_folders, train_dictionary
from repsim_cli.studies.stitching.evaluate import estimate_ratio
from repsim_cli.training.probes import PROBES, Targets, fit_probe

Rng = np.random.Generator
ROWS, FEATURES, FALL = 1000, 32, np.arange(1, 33)
RECIPE = DictionaryRecipe(width=64, k=4, steps=150, batch_size=128, learning_rate=0.01)

# ---- latents that dictionaries share ----


def normal(power: float, massive: float = 1.0) -> Callable[[Rng], np.ndarray]:
    """Rows whose variances fall as this power of the number of the axis, the first scaled."""
    scale = FALL ** (-power / 2)
    scale[0] *= massive
    return lambda rng: rng.normal(size=(ROWS, FEATURES)) * scale


def sparse(rng: Rng, directions: np.ndarray) -> np.ndarray:
    code = (rng.random((ROWS, len(directions))) < 4 / len(directions)) * rng.uniform(1, 2, (ROWS, len(directions)))
    return 5 * code @ directions + 0.1 * rng.normal(size=(ROWS, FEATURES))


def directions(rng: Rng, power: float) -> np.ndarray:
    drawn = rng.normal(size=(48, FEATURES))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * FALL ** (-power / 2)


def few_dimensions(rng: Rng) -> np.ndarray:
    return np.pad(rng.normal(size=(ROWS, 6)), ((0, 0), (0, FEATURES - 6))) + 0.05 * rng.normal(size=(ROWS, FEATURES))


def massive(rng: Rng) -> np.ndarray:
    """A massive feature that is always positive."""
    rows = rng.normal(size=(ROWS, FEATURES))
    rows[:, 0] = 10 * rng.lognormal(size=ROWS)
    return rows


UNRELATED: dict[str, Callable[[Rng], np.ndarray]] = {
    "normal rows, variances 1/i": normal(1),
    "normal rows, variances 1/i²": normal(2),
    "normal rows, one feature of 15 deviations": normal(0, 15),
    "a positive massive feature": massive,
    "planted directions": lambda rng: sparse(rng, directions(rng, 0)),
    "planted directions, variances 1/i": lambda rng: sparse(rng, directions(rng, 1)),
    "rows of six dimensions": few_dimensions,
    "Student's t of 2 degrees": lambda rng: rng.standard_t(2, (ROWS, FEATURES)),
}
SHARED = {"normal rows, variances 1/i": 0.04, "normal rows, variances 1/i²": 0.14, "rows of six dimensions": 0.53}


def share_latents(make: Callable[[Rng], tuple[np.ndarray, np.ndarray]], rng: Rng) -> Mapping[str, float]:
    """Whether two dictionaries share more latents than all mirrors, and what they share by decoder."""
    rows, alive = [torch.from_numpy(x).float() for x in make(rng)], []
    with TemporaryDirectory() as folder, patch.dict(os.environ, REPSIM_CACHE=folder):
        for number, x in enumerate(rows):
            trained = train_dictionary([x], RECIPE, seed=int(rng.integers(2**31)), digest=str(number))
            dictionary = load(list_model_folders(trained, 1)[0])
            quality = measure_dictionary_quality(dictionary, x[: -ROWS // 10], x[-ROWS // 10 :])
            alive.append(take_alive_directions(dictionary, quality.alive))
    a, b = alive
    others = draw_mirrored(b, rows[0], MIRRORS, int(rng.integers(2**31)))
    shared, *chance = (
        compute_matched_shares(np.stack(match_latents(a, each, absolute=False)), 0.7) for each in (b, *others)
    )
    by_decoder, _, by_both = np.array(shared) > np.array(chance).max(0)
    return {"by decoder": by_decoder, "both": by_both, "share": shared[0]}


def of_dictionaries() -> list[Promise]:
    found = []
    for setting, make in UNRELATED.items():
        draw = partial(share_latents, lambda rng, make=make: (make(rng), make(rng)))
        for counted in ("by decoder", "both"):
            what = f"latents that dictionaries share, {counted}: more than chance"
            found.append(Promise(what, f"unrelated: {setting}", "level", 0.05, 100, draw, counted))
        if setting in SHARED:
            what = "latents that dictionaries share, by decoder"
            found.append(Promise(what, f"unrelated: {setting}", "value", SHARED[setting], 100, draw, "share"))

    def same(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
        planted = directions(rng, 1)
        return sparse(rng, planted), sparse(rng, planted)

    what = "latents that dictionaries share, by decoder: more than chance"
    setting = "the same planted directions, other rows"
    return [*found, Promise(what, setting, "power", LEAST, 100, partial(share_latents, same), "by decoder")]


# ---- latents of a crosscoder ----


def stand_in_other_side(shared: float, rng: Rng) -> bool:
    """Whether latents of a random crosscoder are said to stand in the rows of the sides, of 40 documents. shared: what
    the second side has of the first."""
    documents, decoder = np.repeat(np.arange(40), 10), rng.normal(size=(2, 48, 16)) / 4
    arrays = decoder.transpose(0, 2, 1), np.full(48, -0.5), decoder, np.zeros((2, 16))
    first, second = (rng.normal(size=(40, 16))[documents] + rng.normal(size=(400, 16)) for _ in range(2))
    second = second + shared * first @ (decoder[0].T @ decoder[1])
    *parts, one, other = (torch.from_numpy(x).float() for x in (*arrays, first, second))
    found = compute_shares_from_others(Crosscoder(*parts), [one, other], documents, int(rng.integers(2**31)), 400)
    median, reach = found.find_median(np.ones(48, bool)) or (0.0, 0.0)
    return median > reach


def of_crosscoders() -> list[Promise]:
    what, setting = "latents of a crosscoder stand in the other side: more than chance", "40 documents of 10 rows"
    return [
        Promise(what, f"independent sides, {setting}", "level", 0.01, 200, partial(stand_in_other_side, 0.0)),
        Promise(what, f"related sides, {setting}", "power", LEAST, 100, partial(stand_in_other_side, 0.3)),
    ]


# ---- what stitches cost ----


def tell_stitches_apart(sizes: tuple[int, ...], gain: float, rng: Rng) -> bool:
    """Whether a stitch after some of eight layers is told apart from the one that costs least, by the rows of each
    document. gain: by how much the first costs less."""
    documents, weights = np.repeat(np.arange(len(sizes)), sizes), np.array(sizes, float)
    both, found = 0.5 * rng.normal(size=len(sizes)), []
    for layer in range(8):
        of = both + 0.5 * rng.normal(size=len(sizes)) - gain * (layer == 0)
        costs = of[documents] + rng.normal(size=len(documents))
        found.append(estimate_ratio(np.bincount(documents, costs), weights))
    values, errors = zip(*found, strict=True)
    best = int(np.argmin(values))
    return len(list_alike(values, errors, best, count_like_freedom(weights))) < (8 if gain == 0 else 2)


def of_stitches() -> list[Promise]:
    settings = {
        "40 documents of 8 rows": (8,) * 40,
        "12 documents of 3 to 80 rows": (40, 3, 80, 12, 7, 22, 15, 60, 5, 9, 33, 18),
        "one document of 150 rows and 11 of 6": (150, *[6] * 11),
    }
    what, (even, *_) = "layers after which a stitch costs more", settings
    return [
        *(
            Promise(what, f"all cost as much, {setting}", "level", 0.05, 1000, partial(tell_stitches_apart, sizes, 0.0))
            for setting, sizes in settings.items()
        ),
        Promise(
            what, f"one costs less, {even}", "power", LEAST, 500, partial(tell_stitches_apart, settings[even], 1.0)
        ),
    ]


# ---- intervals of shares ----


def holds_share(count: int, sd: float, share: float, alike: float, rng: Rng) -> bool:
    """Whether an interval holds the share of hits of all documents, of log-normal length.

    alike: of the variance of hits, the share that lies between documents.
    """
    sizes = np.maximum(1, rng.lognormal(1.8, sd, count).round().astype(int))
    strength = 1 / alike - 1 if alike else np.inf
    of = rng.beta(share * strength, (1 - share) * strength, count) if alike else np.full(count, share)
    units = np.repeat(np.arange(count), sizes)
    low, high = compute_wilson_interval((rng.random(len(units)) < of[units]).astype(float), units)
    return low <= share <= high


def of_intervals() -> list[Promise]:
    """Where most documents are hits alone or none, and few of them are hits, 0.93 is promised."""
    return [
        Promise(
            "interval of a share of rows",
            f"{count} documents, log length sd {sd}, share {share}, {alike:.0%} between documents",
            "cover",
            0.93 if alike == 0.5 else 0.95,
            1000,
            partial(holds_share, count, sd, share, alike),
        )
        for count in (5, 12, 20, 60)
        for sd in (0.0, 1.2, 2.0)
        for share, alike in ((0.3, 0.0), (0.3, 0.2), (0.1, 0.5), (0.98, 0.1))
    ]


# ---- probes ----


def make_lengths(rare: int, common: int, giant: int, told: np.ndarray) -> np.ndarray:
    """The rows of each document of the rare class and of the other one; the first of the rare class has more."""
    lengths = np.where(told == 1, rare, common)
    lengths[told.argmax()] = max(giant, rare)
    return lengths


def tells_class(share: float, rare: int, common: int, giant: int, shared: float, rng: Rng) -> bool:
    """Says whether a probe tells the class of documents better than the largest class. share: of the rare class.
    shared: what rows know of their class."""
    told = (rng.random(60) < share).astype(int)
    told[:4] = 0, 1, 0, 1
    documents = np.repeat(np.arange(60), make_lengths(rare, common, giant, told))
    classes = told[documents]
    rows = rng.normal(size=(len(documents), 12)) + 0.5 * rng.normal(size=(60, 12))[documents]
    rows[:, 0] += shared * classes
    split = Targets({}, {}, documents, documents).split(0.7, int(rng.integers(2**30)))
    p = fit_probe(PROBES["ridge_classification"], rows, classes, split, 0).p
    return p is not None and p <= 0.05


def of_probes() -> list[Promise]:
    what = "a probe tells more than the largest class"
    settings = {
        "documents of 8 rows": (0.5, 8, 8, 0),
        "documents of 8 rows, a tenth of the rare class": (0.1, 8, 8, 0),
        "a quarter of the documents four times as long, of one class": (0.25, 16, 4, 0),
        "one document of a rare class longer than all others": (0.25, 6, 6, 600),
    }
    levels = [
        Promise(what, f"labels without meaning, {setting}", "level", 0.05, 500, partial(tells_class, *given, 0.0))
        for setting, given in settings.items()
    ]
    given = settings["documents of 8 rows"]
    told = partial(tells_class, *given, 4.0)
    return [*levels, Promise(what, "documents of 8 rows, told with a few errors in each", "power", LEAST, 100, told)]


PROMISES = [*of_dictionaries(), *of_crosscoders(), *of_intervals(), *of_stitches(), *of_probes()]
