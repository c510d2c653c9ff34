"""What every kind of model entry provides."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.planning import is_dry
from repsim_cli.base.settings import EveryModel
from repsim_cli.data.base import Modality
from repsim_cli.models.loading import WHOLE, Loading
from repsim_cli.models.points import Architecture
from repsim_cli.runs.content import Facts
from repsim_cli.runs.results import Progress


def name_modules(model: nn.Module) -> dict[str, nn.Module]:
    return dict(model.named_modules())


def find_backbone_path(model: nn.Module, source: "Source") -> str:
    """Finds the path of the backbone in a model with an output head."""
    kind: Any = type(source.skeleton)
    same = (name for name, module in model.named_modules() if type(module) is kind)
    return next(same, str(getattr(model, "base_model_prefix", "")))


def refuse_head(auto: str, how: Loading = WHOLE) -> nn.Module:
    """Refuses to load a head: `Source.with_head` of a backbone alone."""
    raise BadInput(f"kind: a backbone without a head, got {auto}; use a model that was trained with that head")


@runtime_checkable
class Loader(Protocol):
    def __call__(self, eager: bool, how: Loading = WHOLE) -> nn.Module: ...


@runtime_checkable
class WithHead(Protocol):
    def __call__(self, auto: str, how: Loading = WHOLE) -> nn.Module: ...


class Short(NamedTuple):
    """How a trained model falls short of its aim: as a mark in figures, and in a sentence."""

    mark: str
    why: str


class TrainingWork(NamedTuple):
    """What a training takes at most: its steps, and the tokens of all of them together."""

    steps: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model that runs on tokens or image patches; all but its weights is known from the config.

    context: the longest sequence, None if unlimited; for images, the number of places.
    parameters: of the backbone.
    vocabulary: the model knows the token ids below it.
    build: the backbone without weights, which `skeleton` holds once it is needed.
    tokenizer(): the tokenizer, or the Patches of an image model. Raises BadInput where there is none.
    load(eager, how): the backbone in eval mode, loaded as `how` says; with eager attention if patterns are read.
    identity(): what was loaded (path or hub id, resolved revision, weights hash), once the files exist.
    head_width: features per head of q and k; rotary: how many of them are rotated.
    modules(backbone or skeleton): the modules by the names that hook points use.
    modality: what it reads.
    segments: it distinguishes the texts of a pair by token type.
    with_head(auto, how): the whole model in eval mode, as the transformers class AutoModelForCausalLM or
    AutoModelForSequenceClassification. Raises BadInput where the checkpoint has no such head.
    make(progress): trains the model now, for models that are trained when first needed.
    work(): the trainings that `make` needs and the cache lacks, by their keys; a call says what one takes.
    metrics(): the metrics saved with the model.
    labels: of a classifier, in the order of its logits.
    hook_points: those that its entry names; empty: those of the run.
    short(): how a model trained here falls short of its aim, or None.
    trained: whether its weights are trained, not fresh.
    training: how it was trained here, where that distinguishes models.
    entry: the label of its entry, where the entry is a family.
    bits: of the weights of its linear layers, where they are quantized.
    parts: load reads the weights of some modules alone (`Loading.kept`) from the disk.
    """

    layers: int
    heads: int
    kv_heads: int
    width: int
    context: int | None
    parameters: int
    vocabulary: int
    architecture: Architecture | None
    model_type: str
    build: Callable[[], nn.Module]
    tokenizer: Callable[[], Any]
    load: Loader
    identity: Callable[[], dict[str, Any]]
    head_width: int
    rotary: int = 0
    modules: Callable[[nn.Module], dict[str, nn.Module]] = name_modules
    modality: Modality = "text"
    segments: bool = False
    with_head: WithHead = refuse_head
    make: Callable[[Progress], Any] | None = None
    work: Callable[[], dict[str, Callable[[], TrainingWork]]] | None = None
    metrics: Callable[[], dict[str, float]] | None = None
    labels: tuple[str, ...] = ()
    hook_points: tuple[str, ...] = ()
    short: Callable[[], Short | None] | None = None
    trained: bool = True
    training: str = ""
    entry: str = ""
    bits: int | None = None
    parts: bool = False

    @cached_property
    def skeleton(self) -> nn.Module:
        """The backbone without weights, whose modules hook points are looked up in."""
        return self.build()

    @cached_property
    def skeleton_modules(self) -> dict[str, nn.Module]:
        """The modules of the skeleton by the names that hook points use."""
        return self.modules(self.skeleton)

    @property
    def plain(self) -> bool:
        """Tells whether hook points are at modules of the model itself, not of TransformerLens around them."""
        return self.modules is name_modules

    @property
    def has_head(self) -> bool:
        """Says whether the model can have a head; a checkpoint may still lack the requested one."""
        return self.with_head is not refuse_head


@dataclass(frozen=True)
class Sentence:
    """Words joined by spaces, and their number."""

    text: str
    words: int


@dataclass(frozen=True, kw_only=True)
class Precomputed:
    """Stored activations: `names` in layer order, each (rows, width) and read by slices.

    documents: of every row, where that is known; rows of a document depend on each other.
    is_held(rows): whether what is read of these is a view of memory that stays.
    constant: the layers that are known to have equal rows alone.
    """

    names: list[str]
    rows: int
    widths: list[int]
    read: Callable[[str, slice], Float[Tensor, "n d"]]
    identity: Callable[[], dict[str, Any]]
    documents: Sequence[str] | None = None
    is_held: Callable[[slice], bool] = lambda rows: False
    constant: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class PrecomputedWords(Precomputed):
    """Stored activations whose rows are the words of `sentences`, in their order.

    put_in_order(sentences): the rows of these sentences. Raises BadInput where one is absent or has other words.
    """

    sentences: Sequence[Sentence]
    put_in_order: Callable[[Sequence[Sentence]], "PrecomputedWords"]


@dataclass(frozen=True, kw_only=True)
class PrecomputedIds(Precomputed):
    """Stored activations whose rows have ids, each id once."""

    ids: Sequence[str]

    def put_in_order(self, ids: Sequence[str]) -> "PrecomputedIds":
        """The rows of these ids, all of which it has."""
        place = {known: number for number, known in enumerate(self.ids)}
        numbers = np.array([place[each] for each in ids])

        def read(name: str, rows: slice) -> Tensor:
            wanted = numbers[rows]
            first = int(wanted.min())
            return self.read(name, slice(first, int(wanted.max()) + 1))[wanted - first]

        documents = None if self.documents is None else [self.documents[number] for number in numbers]
        return replace(self, ids=ids, rows=len(ids), read=read, documents=documents, is_held=lambda rows: False)


AnySource = Source | Precomputed


@dataclass(frozen=True, kw_only=True)
class Family:
    """Several models in a single entry: the entry LABEL becomes LABEL_KEY for each of them."""

    sources: "dict[str, Source | Series]"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A step of a training run.

    open(): its Source. Raises BadInput where it is missing or broken.
    drop(): removes its download from the disk.
    """

    step: int
    open: Callable[[], Source]
    drop: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Two or more checkpoints of a training run, in the order of their steps.

    local: opening them is cheap.
    make(progress): trains them now, for series that are trained when first needed.
    entry: as of a Source.
    """

    checkpoints: list[Checkpoint]
    local: bool
    make: Callable[[Progress], Any] | None = None
    entry: str = ""


Model = Source | Precomputed | Family | Series


def apply_keys(model: Model, keys: EveryModel) -> Model:
    """The model of an entry that has these keys. Raises BadInput for keys that the model cannot have."""
    if keys == EveryModel():
        return model
    if isinstance(model, Family):
        return replace(
            model, sources={name: _apply_to_checkpoints(member, keys) for name, member in model.sources.items()}
        )
    if isinstance(model, Precomputed):
        key, value = next((key, value) for key, value in vars(keys).items() if value is not None)
        raise BadInput(f"{key}: stored activations have none, got {value}; drop it (`layers` selects arrays)")
    return _apply_to_checkpoints(model, keys)


def _apply_to_checkpoints(model: Source | Series, keys: EveryModel) -> Source | Series:
    if isinstance(model, Series):
        return replace(model, checkpoints=[_open_with(checkpoint, keys) for checkpoint in model.checkpoints])
    return _apply_to_source(model, keys)


def _open_with(checkpoint: Checkpoint, keys: EveryModel) -> Checkpoint:
    return replace(checkpoint, open=lambda: _apply_to_source(checkpoint.open(), keys))


def _apply_to_source(source: Source, keys: EveryModel) -> Source:
    labels = tuple(keys.labels or source.labels)
    # of a published model, a dry run does not know the labels
    if len(labels) != len(source.labels) and (source.labels or not is_dry()):
        advice = "name all, in the order of its logits" if source.labels else "drop them"
        what = f"a classifier of {len(source.labels)} labels" if source.labels else "no classifier"
        raise BadInput(f"labels: the model is {what}, got {list(labels)}; {advice}")
    if len(set(labels)) < len(labels):
        raise BadInput(f"labels: two are the same, got {list(labels)}; name each differently")
    return replace(source, labels=labels, hook_points=tuple(keys.hook_points or ()))


@runtime_checkable
class NamedLayer(Protocol):
    """A layer that is read: its name and its number of features."""

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int: ...


def describe_model(label: str, model: "AnySource | Series", layers: Sequence[NamedLayer]) -> Facts:
    """The facts of a model that a manifest keeps. layers: those that are read of it."""
    read = {"layers": [layer.name for layer in layers], "widths": [layer.width for layer in layers]}
    if isinstance(model, Precomputed):
        return Facts(kind="stored", family=label.split("_")[0], trained=True, **read)
    steps = [checkpoint.step for checkpoint in model.checkpoints] if isinstance(model, Series) else []
    source = model.checkpoints[-1].open() if isinstance(model, Series) else model
    return Facts(
        kind="series" if steps else "live",
        family=source.model_type,
        blocks=source.layers,
        width=source.width,
        heads=source.heads,
        head_width=source.head_width,
        rotary=source.rotary,
        parameters=source.parameters,
        vocabulary=source.vocabulary,
        trained=source.trained,
        training=source.training,
        steps=steps,
        entry=model.entry,
        **read,
    )
