"""The groups of settings that studies share: extraction of rows, hardware, significance, groups of models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from repsim_cli.base.errors import BadInput
from repsim_cli.base.memory import count_installed

# the types bound the settings: larger numbers would overflow, take all memory or run without end
Positive = Annotated[int, Field(ge=1, le=10**9)]
Several = Annotated[int, Field(ge=2, le=10**9)]
Medium0 = Annotated[int, Field(ge=0, le=10**6)]
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
ESTIMATES = Literal["full", "per_batch", "ratio_of_sums", "moments", "sampled"]

WORDS = ("word", "span")  # units of rows that are parts of a text, whatever its tokens
IN_BATCHES = ("per_batch", "ratio_of_sums")  # estimates
STREAMED = ("moments", "sampled")  # those that all rows pass for, in order
OF_SAMPLE = ("full", "sampled")  # those for which `rows` are drawn
EVERYTHING = 1 << 30  # sequences, where all are wanted
LEFT_OUT = 0.1  # of the rows, where batches are whole, without a word
LARGEST = 1e15  # of activations: the squares of larger ones, summed, leave the range of float32


@dataclass(frozen=True, kw_only=True)
class Extract:
    """From text to rows (n, d): which activations are read, on which tokens, and how the estimate uses them.

    hook_points: which activations: `resid_post` (every block), `resid_post@3` (block 3), `embed`, `q@2.h1` (one head),
        `module:dotted.name` (any module), `module:layers.*.mlp` (all modules that match; `*` stays within a part of the
        name). A model's entry may name others (`model.LABEL.hook_points`).
    layers: block indices from 0, negative ones from the end, for hook points without `@`.
    unit: what a row is: a `token` (of images, a patch), a `word`, a `span` that the data marks, or a whole sequence:
        the `mean` of its tokens, its `first` token ([CLS] where there is one), its `last` token, or all its tokens side
        by side (`sequence`, for sequences of equal length). A treebank marks its words; those of other text follow
        Unicode's rules (UAX 29), or white space where `data.alignment` pairs them, and have a letter or a digit. They
        are the same for all models, whatever their tokenizers.
    piece: which of its tokens stands for a word or span: the `last`, the `first`, or their `mean`.
    padding: `drop` leaves padding, and what the tokenizer, its chat template or packing adds (BOS, separators), out of
        rows and means; `keep` keeps them, and pads labelled examples to `length`. A special token that the text spells
        out is a token like any other. Pooled rows never read padding; `first` and `last` may be added tokens.
    length: tokens per packed sequence. Labelled examples, and the documents of pooled rows, are cut to it. The shortest
        context of the models is the most; more is lowered to it, with a warning. `auto` in a configuration is that
        context, at most 512; where one sample of the words of running text is taken, 2.5 `rows` / `sequences`, but 128
        at least: about the tokens of these words, since others would be run in vain.
    long: with words, sentences and examples of more tokens than `length` are `split` between words, at the same words
        for all models, or refused (`refuse`). A pair of texts is left out.
    sequences: how many sequences, examples or images are drawn under the seed. With words, a document is cut into
        sequences of at most `length` tokens. `auto` in a configuration: 64 where rows are tokens, or words of running
        text; 2048 examples for words; 1024 for pooled rows.
    at_most: `sequences` and `rows` where the data may have fewer of them without a warning, `batch_rows` where batches
        may have fewer. `auto` in a configuration: where they are `auto`.
    pool: of how many packed sequences, from the first of a text, the sequences are drawn (for pooled rows, documents).
        Examples and images are drawn from the whole data set.
    separator: the token put before each document of packed text; `auto` takes eos, sep or bos, the first that the
        tokenizer has.
    estimate: `full`: one value from `rows` rows, sampled once. `per_batch`: the mean over batches of `batch_rows` rows,
        with its standard error. `ratio_of_sums`: HSIC summed over batches and normalised at the end. `moments`: exact
        second moments of all rows, in as few passes over them as fit into memory. `sampled`: neighbours of `rows`
        sampled rows among all, with the standard error of the sample, in two passes.
    batch_rows: rows per batch; what fills no batch is left out. `auto` in a configuration: 1024; where that leaves out
        more than a tenth of the rows, batches are smaller and equal, and fewer rows than two batches are one sample.
    rows: rows in the sample of `full` and `sampled`, at most. `auto` in a configuration: 4096; 1024 pooled ones.
    pairs: which pairs of rows count. `all`; or those of `other_documents`: rows of one document are alike in any two
        models, related or not, so pairs of them are left out (of documents that `significance.clusters` names) by
        cka_unbiased, rsa, rsa_euclidean and measures of nearest neighbours but cknna; the others have no such form and
        keep all pairs. `auto`: other documents, where each batch has rows of enough of them, else all, with a warning;
        all in studies that have no such form.
    skip: how many of the first places of each sequence, special tokens included, give no rows, and no part of pooled
        ones: `mean` is that of the others, `first` and `last` are the first and last of the others. A row that one
        model leaves out is left out for all; a word is at the place of the token that stands for it (of `mean`, its
        first). `auto` in a configuration: see `normalise`.
    skip_tokens: tokens whose places are left out in the same way, also where the text spells them out: `newline` (white
        space with a line break), `bos`, `eos`, `sep`, `cls`, `unk`.
    drop_features: features with more than this share of their layer's variance are left out; 1: none.
    normalise: `features` divides every feature by its standard deviation, which undoes invariance to rotation.
        `directions` shrinks the principal directions that hold more than 5 % of the variance until none does; what is
        shared in few directions alone then counts less. `rows` divides every row, as it is, by its norm.
        `auto` in a configuration is, for the tokens and words of language models in studies that take remedies, skip=4
        (words: 2) and normalise=directions, and elsewhere 0 and `none`.

    keep_texts: keep the texts of some rows in the run folder, as tokens in `rows.json`, also of local files: the page
        then shows which tokens agree. Of data that ship with the package or come from a public address they are kept
        anyway.

    skip and skip_tokens come first, then drop_features, then normalise. Shares and deviations are those of all rows
    that are left, whatever the estimate; without a cache each model runs a second time for them.

    Example: repsim run extract.hook_points=[attn_out,mlp_out] extract.layers=[0,-1]
    """

    hook_points: Annotated[list[str], Field(min_length=1)]
    layers: Literal["all"] | list[Layer] = "all"
    unit: Literal["token", "word", "span", "mean", "first", "last", "sequence"] = "token"
    piece: Literal["last", "first", "mean"] = "last"
    padding: Literal["drop", "keep"] = "drop"
    length: Medium = 128
    long: Literal["split", "refuse"] = "split"
    sequences: Positive = 64
    at_most: list[Literal["sequences", "rows", "batch_rows"]] = field(default_factory=list)
    pool: Positive = 1024
    separator: Literal["auto", "eos", "sep", "bos", "none"] = "auto"
    estimate: ESTIMATES = "per_batch"
    batch_rows: Positive = 1024
    rows: Positive = 4096
    pairs: Literal["auto", "other_documents", "all"] = "all"
    skip: Medium0 = 0
    skip_tokens: list[Literal["newline", "bos", "eos", "sep", "cls", "unk"]] = field(default_factory=list)
    drop_features: Annotated[float, Field(gt=0, le=1)] = 1.0
    normalise: Literal["none", "features", "directions", "rows"] = "none"
    keep_texts: bool = False

    def fit_to(self, total: int) -> "Extract":
        """Returns the settings for `total` rows, where batches may have fewer than `batch_rows`."""
        if "batch_rows" not in self.at_most or self.estimate not in IN_BATCHES or total < 1:
            return self
        if total < 2 * self.batch_rows:
            one = {"estimate": "full", "rows": total, "at_most": [*dict.fromkeys(["rows", *self.at_most])]}
            return replace(self, **(one if self.estimate == "per_batch" else {"batch_rows": total}))
        if total % self.batch_rows <= LEFT_OUT * total:
            return self
        return replace(self, batch_rows=total // -(-total // self.batch_rows))

    @property
    def pooled(self) -> bool:
        """Says whether a row is of a whole sequence."""
        return self.unit not in ("token", *WORDS)

    @property
    def rows_skipped(self) -> bool:
        return bool(self.skip or self.skip_tokens)

    @property
    def features_changed(self) -> bool:
        """Says whether something must be known of all rows before any is used."""
        return self.drop_features < 1 or self.normalise in ("features", "directions")

    @property
    def remedies(self) -> dict[str, Any]:
        """The settings of what is done to the rows before they are compared; empty where it is nothing."""
        return {
            **({"skip": self.skip} if self.skip else {}),
            **({"skip_tokens": list(self.skip_tokens)} if self.skip_tokens else {}),
            **({"drop_features": self.drop_features} if self.drop_features < 1 else {}),
            **({"normalise": self.normalise} if self.normalise != "none" else {}),
        }


@dataclass(frozen=True, kw_only=True)
class EveryModel:
    """What every model that runs takes in its entry, beside the keys of its kind.

    hook_points: which of its activations are read; null: `extract.hook_points`. They may differ in kind and number
        between models.
    labels: the names of a classifier's labels, in the order of its logits; null: those of its config.
    """

    hook_points: Annotated[list[str], Field(min_length=1)] | None = None
    labels: Annotated[list[str], Field(min_length=1)] | None = None


@dataclass(frozen=True, kw_only=True)
class SeededModel:
    """What the entry of every model with a `seed` takes besides. Raises BadInput where a seed is named twice.

    seeds: the entry LABEL is a model per seed, LABEL_0, LABEL_1, ..., whatever `seed` is; null: one model.
    """

    seeds: Annotated[list[Seed], Field(min_length=1)] | None = None

    def __post_init__(self) -> None:
        if self.seeds is not None and len(set(self.seeds)) < len(self.seeds):
            raise BadInput(f"seeds: not distinct, got {self.seeds}; name each seed once")


@dataclass(frozen=True, kw_only=True)
class EveryData:
    """What the entry of every text takes, beside the keys of its kind.

    chat: put each text, or pair of texts, into the model's chat template as the user's turn. Tokens of the template are
        not rows, and documents are not joined. A model without a template is refused.
    """

    chat: bool = False


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Where and how a run computes. Of all of it, numbers depend on dtype alone, beyond rounding.

    device: the torch device on which similarity is computed, e.g. `cpu`, `cuda`, `cuda:1`.
    devices: the devices of the models: a list, taken in turn, or {LABEL: DEVICE}; null: `device`.
    dtype: of the forward pass. Rows are float32 in any case.
    batch_size: sequences per forward pass, at most. Sequences of similar length are run together, padded to the longest
        of them.
    batch_tokens: tokens per forward pass, at most, padding included; null: no limit beside batch_size. A longer
        sequence is run alone. Stitching, training and gradients heed batch_size only.
    tile: side of the square tiles in which Gram matrices are multiplied, in rows.
    threads: of torch; null: torch's own choice.
    processes: how many solve the pairs of slow measures (gromov_wasserstein) and fit probes, on one thread each; null:
        one per usable CPU; 1: none beside the run's own.
    memory_gb: what a run may take. To stay below, CKA reads layers in groups and the estimate `moments` reads the rows
        several times; a run whose estimated memory is above it even so is refused. null: 80 % of the machine's memory.
    resident: which models are in memory at a time. `all` of a run; or `one`, whose rows go to the disk before the next
        one is loaded (to the cache, or where it takes none to the run's folder, until the run is complete); `auto`: all
        of them where their weights take at most half of the memory, of memory_gb or of the GPUs.
    shard: `auto` spreads the weights of each model over all GPUs, the memory and the disk, in this order (extra
        `shard`); rows are compared on `device`. Models with an adapter, rounded, random and .gguf ones, and those that
        transformers does not load are on one device all the same.
    max_memory_gb: with shard=auto, the most GB of weights on each device, e.g. {cuda0: 20, cpu: 8}, no others being
        used; what they do not hold stays on the disk. null: all GPUs, and half of memory_gb.
    by_block: run all batches through one block of a model before the next block is read from disk, so that memory holds
        one block and one batch: `always`, `never`, or for a model whose weights need more than half of memory_gb
        (`auto`).
    stream: the dtype in which the stream of all tokens is kept on disk between two blocks; null: as it is, which gives
        the numbers of an ordinary pass to the bit.
    executor: where trainings, activations, slow pairs and stitches are computed, side by side, each with `threads`
        threads: `none`, in the run's own process, one after the other; `processes` of this machine; a `ray` cluster
        (extra `ray`); the tasks of a job array of `slurm`. Their number is `processes` (null, but not with SLURM: as
        many as there are CPUs for). They share the cache.
    address: of the Ray cluster: `auto` (the one of this machine), `local` (a new one, for this run), or HOST:PORT.
    gpus_per_worker: GPUs of each worker of a cluster where `device` is a GPU; with Ray, four share one at 0.25. null:
        with Ray, by the plan, as many as fit share one like this machine's; with SLURM, 1.
    partition: of SLURM; null: its default. Each worker asks for `threads` CPUs and `memory_gb`; other options of sbatch
        are read from its variables (SBATCH_QOS, SBATCH_CONSTRAINT ...).
    account: of SLURM; null: the user's default.
    timeout_min: minutes that SLURM gives each worker; null: the partition's default.
    price_per_node_hour: of a machine, in any currency, for the manifest's cost; null: not known.

    Example: repsim run hardware.batch_size=32 hardware.memory_gb=12
    """

    device: str = "cpu"
    devices: list[str] | dict[str, str] | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    batch_size: Medium = 8
    batch_tokens: Positive | None = None
    tile: Annotated[int, Field(ge=16, le=2**16)] = 512
    threads: Small | None = None
    processes: Small | None = None
    memory_gb: Above0 | None = None
    resident: Literal["auto", "all", "one"] = "auto"
    shard: Literal["none", "auto"] = "none"
    max_memory_gb: dict[str, Above0] | None = None
    by_block: Literal["auto", "always", "never"] = "auto"
    stream: Literal["bfloat16", "float16"] | None = None
    executor: Literal["none", "processes", "ray", "slurm"] = "none"
    address: str = "auto"
    gpus_per_worker: Above0 | None = None
    partition: str | None = None
    account: str | None = None
    timeout_min: Positive | None = None
    price_per_node_hour: From0 | None = None

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
        return 0.8 * count_installed()


@dataclass(frozen=True, kw_only=True)
class Significance:
    """How far a similarity is from chance: what random pairings of the rows give on average is known by default, and
    nothing is tested.

    chance: the level of chance of every value, the mean over random pairings of documents (of sequences where there are
        too few) that leave no row in place which has a partner: exact for inner products and shared neighbours, of
        others one level of at most 16 pairs of layers. With it, of one sample of measures without an error of their
        own, how far layers differ by the drawn documents, from leaving out groups of these.
    floor: of rows that are tokens or words, what two tables of random vectors per token have in the layers' place.
    budget: split the linear CKA of layers at the same depth into what the token, untrained models of these shapes and
        training make of it, with intervals, and shared neighbours into those of the same and of other tokens; of rows
        that are tokens or words of 40 documents or more. Untrained twins of which the run has none are made.
    method: `permutation`: p values from random pairings of the rows, for every measure that depends on the pairing.
        `closed_form`: from its exact mean and variance, for inner products of matrices on independent rows.
    permutations: how many pairings are drawn; the same ones for all layers.
    clusters: which rows depend on each other. `document`: those of one document, so that segments of equal length trade
        places, one per document; with the estimate `full` the sample then consists of whole sequences. Of a text that
        is one document its sequences stand for documents, with a warning. `row`: none. A column of the data (an author,
        a topic): documents that share it, of which one segment is exchanged.
    within: what rows must share to take each other's place: `token`, `previous_token`, `position`, a column of the
        data, or several; [] for none. Chance is then what these alone give, and p tests what is shared beyond them.
        What differs inside a document can be tested with clusters=row alone.
    order: `any` order of documents under the null; `shifts`: they move on together, which keeps that those depend on
        each other which follow each other.
    family: how p values are corrected for many cells. `max_t`: step-down, from the joint permutation null. `holm`:
        without it. `auto`: `max_t` with permutations, `holm` in closed form.
    family_of: the cells that p values are corrected for. `map`: those of two models. `run`: those of all models of the
        run under the measure, so that a figure of all models has no false cell, but in a share alpha of runs.
    alpha: the level of the calibrated score; figures cross out cells with a larger corrected p.
    jackknife: standard errors of normalised inner products (CKA) on one sample, with the estimate `full`; other
        measures beside them have none.
    bands: confidence intervals, from the t distribution over batches, of the mean value of batches of this size.
    level: the coverage of these intervals.

    Example: repsim run significance=permutation significance.permutations=999
    """

    chance: bool = True
    floor: bool = True
    budget: bool = False
    method: Literal["none", "closed_form", "permutation"] = "none"
    permutations: Annotated[int, Field(ge=19, le=10**6)] = 199
    clusters: str = "document"
    within: str | list[str] = field(default_factory=list)
    order: Literal["any", "shifts"] = "any"
    family: Literal["auto", "max_t", "holm"] = "auto"
    family_of: Literal["map", "run"] = "map"
    alpha: Fraction = 0.05
    jackknife: bool = False
    bands: bool = False
    level: Fraction = 0.95

    @property
    def held(self) -> list[str]:
        """The names of `within`."""
        return [self.within] if isinstance(self.within, str) else list(self.within)


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A group of models chosen by a metric: exactly one of `top` and `bottom` is given.

    by: the name of a metric that the models were saved with, e.g. `accuracy`.
    top: how many models with the largest values.
    bottom: how many models with the smallest values.

    Example: repsim run model=[tiny_nli] data=overlap_nli extract=pooled extract.length=32
        'groups={good: {top: 10, by: accuracy}, poor: {bottom: 10, by: accuracy}}'
    """

    by: str
    top: Several | None = None
    bottom: Several | None = None

    def __post_init__(self):
        if (self.top is None) == (self.bottom is None):
            raise BadInput(f"one of top and bottom says which models, got {self.top} and {self.bottom}; give one")

    def __str__(self) -> str:
        return f"the top {self.top} by {self.by}" if self.top is not None else f"the bottom {self.bottom} by {self.by}"


Group = list[str] | Ranked
Members = Mapping[str, Sequence[str]]  # the models of every group
