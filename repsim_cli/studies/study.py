"""What a study is: checked settings, a plan, a run; and what the rest of the package may ask of it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from repsim_cli.activations.readings import Reading
from repsim_cli.content import Results
from repsim_cli.measures import Measure
from repsim_cli.results import Run
from repsim_cli.unit import Kinds, Phase


class Study:
    """A question that a run asks. The keyword arguments of its constructor are its schema; it raises BadInput for what
    can be refused before any weights load.

    takes_remedies: the settings of extraction against few large features and places that it heeds.
    reads: what its measures read: `activations` or `attention`.
    by_block: whether models may be run block by block.
    takes_series: whether its models are series of checkpoints.
    fixed_points: whether it chooses the hook points itself, the same for all models.
    readings: what is read of each model.
    measures: by label. skipped: by label, why a measure of the configuration is left out.
    """

    takes_remedies: ClassVar[Sequence[str]] = ()
    reads: ClassVar[str] = "activations"
    by_block: ClassVar[bool] = False
    takes_series: ClassVar[bool] = False
    fixed_points: ClassVar[bool] = False

    readings: Sequence[Reading] = ()
    measures: Mapping[str, Measure] = {}
    skipped: Mapping[str, str] = {}

    def plan(self) -> dict[str, Any]:
        """What a run would do."""
        raise NotImplementedError

    def run(self, run: Run) -> Results:
        """Measures; arrays go to the folder of the run."""
        raise NotImplementedError

    def units(self, run: Run) -> Iterable[Phase]:
        """The work that can be computed ahead, anywhere: a phase reads what those before it left in the cache."""
        return ()

    def worker(self) -> Kinds:
        """How units are computed, by their kind."""
        return {}
