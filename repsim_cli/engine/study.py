"""What a study is: checked settings, a plan, a run; and what the rest of the package may ask of it."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NotRequired, TypedDict, get_args, get_type_hints

from repsim_cli.activations.readings import Reading
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Data
from repsim_cli.engine.unit import Kinds, Phase
from repsim_cli.measures import Measure
from repsim_cli.models.source import AnySource, Series
from repsim_cli.runs.content import Results
from repsim_cli.runs.results import Run

# keys that some studies never read
TEXTS = "extract.keep_texts"
SAMPLING = ("extract.estimate", "extract.rows", "extract.batch_rows")
POINTS = ("extract.hook_points", "extract.layers")
RESIDENT = "hardware.resident"


class OfModels(TypedDict):
    """What a run gives to a study of models."""

    model: Mapping[str, AnySource]
    extract: Extract
    hardware: Hardware
    seed: int
    cache: NotRequired[bool]


class OfRows(OfModels):
    """What it gives to a study of their rows on its data."""

    data: Data


class OfMeasures(OfRows):
    """What it gives to a study that compares these."""

    measure: Mapping[str, Measure]
    skip_unsuitable: NotRequired[bool]


class OfSeries(TypedDict):
    """The same of series of checkpoints."""

    model: Mapping[str, Series]
    data: Data
    extract: Extract
    hardware: Hardware
    seed: int
    cache: NotRequired[bool]
    measure: Mapping[str, Measure]
    skip_unsuitable: NotRequired[bool]


class Study:
    """A question that a run asks. The keyword arguments of its constructor are its schema; it raises BadInput for what
    can be refused before any weights load. The keys of `**given: Unpack[OfRows]` are arguments like the others.

    takes_remedies: the settings of extraction against few large features and places that it heeds. takes_pairs: whether
        it can leave pairs of rows of one document out. takes_budget: whether it can split values into their parts.
    takes_columns: whether it reads two columns of text one by one.
    reads: what its measures read: `activations` or `attention`.
    by_block: whether models may be run block by block.
    unread: settings of the groups that it takes which it never reads, whatever the others are, such as `extract.rows`.
    takes_series: whether its models are series of checkpoints.
    fixed_points: whether it chooses the hook points itself, the same for all models.
    readings: what is read of each model.
    measures: by label. skipped: by label, why a measure of the configuration is left out.
    """

    takes_remedies: ClassVar[Sequence[str]] = ()
    takes_pairs: ClassVar[bool] = False
    takes_budget: ClassVar[bool] = False
    takes_columns: ClassVar[bool] = False
    reads: ClassVar[str] = "activations"
    by_block: ClassVar[bool] = False
    takes_series: ClassVar[bool] = False
    fixed_points: ClassVar[bool] = False
    unread: ClassVar[Sequence[str]] = (TEXTS,)

    readings: Sequence[Reading] = ()
    measures: Mapping[str, Measure] = {}
    skipped: Mapping[str, str] = {}

    def __init_subclass__(cls) -> None:
        if "__init__" in vars(cls):
            cls.__signature__ = spell_out(cls.__init__)  # type: ignore[attr-defined]

    def plan(self) -> dict[str, Any]:
        """Says what a run would do."""
        raise NotImplementedError(f"{type(self).__name__} has no plan()")

    def run(self, run: Run) -> Results:
        """Measures, and returns the results; arrays go to the folder of the run."""
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    def units(self, run: Run) -> Iterable[Phase]:
        """The work that can be computed ahead, anywhere: a phase reads what those before it left in the cache."""
        return ()

    def worker(self) -> Kinds:
        """The functions that compute units, by the kind of the unit."""
        return {}


def spell_out(constructor: Callable[..., Any]) -> inspect.Signature:
    """The signature, with the keys of `**given: Unpack[KEYS]` spelled out."""
    _, *own = inspect.signature(constructor).parameters.values()
    given = [get_args(each.annotation)[0] for each in own if each.kind is each.VAR_KEYWORD]
    keys = {key: kind for each in given for key, kind in get_type_hints(each).items()}
    spelled = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for key, kind in keys.items()]
    return inspect.Signature([*spelled, *(each for each in own if each.kind is not each.VAR_KEYWORD)])
