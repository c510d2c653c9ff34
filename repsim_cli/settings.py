"""The groups of settings that studies share: how rows are made, on what they are computed, how they are judged."""

from dataclasses import dataclass
from typing import Annotated, Literal

import psutil
from pydantic import Field

from repsim_cli.errors import BadInput

# a setting's type bounds it: numbers beyond would overflow, take all memory or never end
Positive = Annotated[int, Field(ge=1, le=10**9)]
Several = Annotated[int, Field(ge=2, le=10**9)]
NotNegative = Annotated[int, Field(ge=0, le=10**9)]
Small = Annotated[int, Field(ge=1, le=1000)]
Medium = Annotated[int, Field(ge=1, le=10**6)]
Modulus = Annotated[int, Field(ge=2, le=1000)]  # all pairs of numbers below it are run
Tries = Annotated[int, Field(ge=0, le=1000)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Layer = Annotated[int, Field(ge=-10_000, le=10_000)]
Above0 = Annotated[float, Field(gt=0, le=1e9)]
From0 = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Finite = Annotated[float, Field(ge=-1e30, le=1e30)]
ESTIMATES = Literal["full", "per_batch", "ratio_of_sums", "moments"]


LARGEST = 1e15  # of activations: the squares of larger ones, summed, leave the range of float32


@dataclass(frozen=True, kw_only=True)
class Extract:
    """From text to rows (n, d): which activations are read, on which tokens, and how the estimate uses them.

    hook_points: e.g. `resid_post` (every layer), `resid_post@3`, `embed`, `q@2.h1`, `module:dotted.name`.
    layers: block indices from 0 (negative from the end) for hook points without `@`; `all` by default.
    unit: what one row is: a `token` (or an image's patch), a `word`, or a pooled sequence: the `mean` of its tokens,
    its `first` ([CLS], where there is one) or its `last`, or a `sequence`: the activations of all its tokens, one after
    the other (sequences of one length alone). padding: `drop` leaves padding, BOS and other special tokens
    out of tokens and means, `keep` keeps them, and tokens of labelled examples are padded to `length`; no pooled row
    reads padding, `first` and `last` are special or not.
    piece: which of its tokens stands for a word, the `last`, the `first` or their `mean`. long: sentences of more
    tokens than `length` are `split` at words, at the same ones for all models, or refused.
    length: tokens per packed sequence; an example, or a document of pooled rows, is cut to `length` tokens; `auto` in a
    configuration is the shortest context of its models, 512 at most. sequences: how many are drawn, under the seed.
    pool: of text the first `pool` packed sequences (of pooled rows, documents) from which they are drawn; examples and
    images are drawn from all. separator: of packed text, the token put before each document: `auto` takes eos, sep or
    bos, whichever the tokenizer has.
    estimate: `full` on `rows` rows sampled once; `per_batch` the mean over batches of `batch_rows` rows, with
    its standard error; `ratio_of_sums` HSIC summed over batches and normalised at the end; `moments` exact second
    moments of all rows, summed over batches, by blocks of layers that fit into memory.
    """

    hook_points: Annotated[list[str], Field(min_length=1)]
    layers: Literal["all"] | list[Layer] = "all"
    unit: Literal["token", "word", "mean", "first", "last", "sequence"] = "token"
    piece: Literal["last", "first", "mean"] = "last"
    padding: Literal["drop", "keep"] = "drop"
    length: Medium = 128
    long: Literal["split", "refuse"] = "split"
    sequences: Positive = 64
    pool: Positive = 1024
    separator: Literal["auto", "eos", "sep", "bos", "none"] = "auto"
    estimate: ESTIMATES = "per_batch"
    batch_rows: Positive = 1024
    rows: Positive = 4096


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """device: a torch device, where similarity is computed. devices: of the models, a list taken in turn or
    {label: device} (null: the device of the run). dtype: of the forward pass; rows are float32 in any case.

    batch_size: sequences per forward pass. tile: side of a Gram tile, in rows. threads: torch's threads (null:
    torch's own choice). processes: that solve pairs of slow measures (gromov_wasserstein) and fit probes, on one
    thread each (null: as many as CPUs can be used; 1: the run's own alone). memory_gb: refuse a run whose estimate is
    above this (null: 80 % of the machine's memory).
    """

    device: str = "cpu"
    devices: list[str] | dict[str, str] | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    batch_size: Medium = 8
    tile: Annotated[int, Field(ge=16, le=2**16)] = 512
    threads: Small | None = None
    processes: Small | None = None
    memory_gb: Above0 | None = None

    @property
    def workers(self) -> int:
        """Processes for slow pairs."""
        from joblib import cpu_count  # heeds affinity and the limits of containers

        return self.processes or cpu_count()

    @property
    def memory_limit(self) -> float:
        """Bytes."""
        if self.memory_gb is not None:
            return self.memory_gb * 1e9
        return 0.8 * psutil.virtual_memory().total


@dataclass(frozen=True, kw_only=True)
class Significance:
    """How far a similarity is from chance; nothing by default.

    method: `closed_form` for measures that are inner products of matrices, on rows that do not depend on each other;
    `permutation` for every measure, from `permutations` random pairings of the rows (the same for all layers).
    clusters: what depends on what. With `document` the rows of a document may depend on each other: segments of equal
    length trade places, one per document; a sample (estimate full) is then of whole sequences. With `row` all rows are
    independent of each other. alpha: the level of the calibrated score and of what figures mark. jackknife: standard
    errors of normalised inner products on one sample (estimate full). bands: t intervals of `level` over batches.
    """

    method: Literal["none", "closed_form", "permutation"] = "none"
    permutations: Annotated[int, Field(ge=19, le=10**6)] = 199
    clusters: Literal["document", "row"] = "document"
    alpha: Fraction = 0.05
    jackknife: bool = False
    bands: bool = False
    level: Fraction = 0.95


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A group of models: the `top` or the `bottom` ones by a metric that they were saved with, e.g. `accuracy`."""

    by: str
    top: Several | None = None
    bottom: Several | None = None

    def __post_init__(self):
        if (self.top is None) == (self.bottom is None):
            raise BadInput(f"one of top and bottom says which models, got {self.top} and {self.bottom}; give one")

    def __str__(self) -> str:
        return f"the top {self.top} by {self.by}" if self.top is not None else f"the bottom {self.bottom} by {self.by}"


Group = list[str] | Ranked


@dataclass(frozen=True, kw_only=True)
class SubNetworks:
    """Groups of a model's layers that are close to each other and far from the rest, from each matrix of one model.

    method: `spectral` clusters, contiguous `segments`, or both. clusters: how many (null: chosen `by` eigengap or
    silhouette of the spectral clusters, by the cost of the segments; one is a possible answer). given: by model, groups
    to compare with, each as ranges of its layers in the order of the network, from 0: [0-11 73-92, 12-72].
    """

    method: Literal["spectral", "segments", "both"] = "both"
    clusters: Several | None = None
    by: Literal["eigengap", "silhouette"] = "eigengap"
    given: dict[str, list[str]] | None = None
