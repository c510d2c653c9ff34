"""As many rows as a standard error asks for: few first, more of more texts while it is above what was asked."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.api.new_run import perform_in
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract
from repsim_cli.config.run import RunConfig, validate
from repsim_cli.config.words import write_override_value
from repsim_cli.engine.comparison import Comparison
from repsim_cli.measures.base import is_cosine
from repsim_cli.models.source import Precomputed
from repsim_cli.runs import reader
from repsim_cli.runs.results import Progress, quiet

# shares of the usual sample: the first one, and the largest; how much larger the next one is, at least and at most
FIRST, MOST, STEP = 0.5, 4.0, (1.25, 4.0)
LACKING = 0.75  # of the rows of a sample: with fewer the text is at its end
ROOM = 1.2  # times the rows that the error of the last sample asks for, as that error is an estimate
ERRORS = {"extract.estimate": "full", "extract.at_most": ["sequences", "rows"], "significance.jackknife": True}
# what a look at the errors does without
PLAIN = {f"significance.{key}": False for key in ("chance", "floor", "budget")}
PLAIN |= {"significance.permutations": 19, "significance.family": "auto"}
OWN = (*ERRORS, "extract.rows", "extract.sequences")

Settings = Mapping[str, Any] | Sequence[str]  # by key, or words KEY=VALUE
# checks the comparison with further settings; where measures are named, with these
Make = Callable[[Mapping[str, Any], Sequence[str] | None], RunConfig]


def read_target(text: str) -> float:
    """Reads `se=NUMBER`. Raises BadInput for anything else.

    >>> read_target("se=0.01")
    0.01
    """
    key, _, number = text.partition("=")
    with suppress(ValueError):
        if key.strip() == "se":
            return check_target(float(number))
    raise BadInput(f"--until: not a standard error, got '{text}'; write --until se=0.01")


def check_target(given: Any) -> float:
    """Raises BadInput for what is not a standard error to ask for."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise BadInput(f"until: not a number above 0, got {str(given)!r:.40}; give a standard error such as 0.01")
    return float(given)


def make_sampler(settings: Settings, compose: Callable[[Settings, Sequence[str] | None], Any]) -> Make:
    """Makes what checks a comparison with further settings.

    settings: of the comparison. compose(settings, look): its configuration; look: measures in place of its own.
    Raises BadInput for a setting that follows from the error.
    """
    keys = [word.lstrip("+~").partition("=")[0] for word in settings]
    for key in keys:
        if key in OWN:
            raise BadInput(f"{key}: chosen by the standard error that is asked for; drop it, or until")

    def make(more: Mapping[str, Any], look: Sequence[str] | None) -> RunConfig:
        left = [key not in more for key in keys]
        if isinstance(settings, Mapping):
            return validate(compose({**dict(compress(settings.items(), left)), **more}, look))
        words = [f"{key}={write_override_value(value)}" for key, value in more.items()]
        return validate(compose([*compress(settings, left), *words], look))

    return make


def plan_samples(make: Make) -> tuple[RunConfig, str]:
    """Checks the comparison of the first sample; gives it, and a line on the samples.

    Raises BadInput where no measure has a standard error of one sample, or no model runs.
    """
    comparison = _check(make)
    first, most = (_size_sample(comparison.extract, share) for share in (_choose_first_share(comparison), MOST))
    return make(ERRORS | first, None), f"until: {_say_size(first)} first, at most {_say_size(most)}"


def _check(make: Make) -> Comparison:
    """Checks the comparison without further settings, and gives it."""
    comparison: Comparison = make({}, None).study.comparison
    if all(isinstance(model, Precomputed) for model in comparison.models.values()):
        raise BadInput("until: only models that run give more rows, got stored rows, all of which are read; drop it")
    if not any(map(is_cosine, comparison.measures.values())):
        raise BadInput(
            f"until: no measure has a standard error of one sample, got {', '.join(comparison.measures)}; add "
            "cka_unbiased"
        )
    return comparison


def choose_sample(
    make: Make, target: float, *, tell: Callable[[str], None] = lambda line: None, progress: Progress = quiet
) -> RunConfig:
    """Compares samples, each larger than the one before, until the largest standard error of layers of two models is at
    most `target`, or there is no larger sample, of which the run then warns.

    tell: is told of each sample. Returns the comparison of the last sample, with its errors. Raises BadInput as
    `plan_samples` does.
    """
    comparison = _check(make)
    share = _choose_first_share(comparison)
    judged = [label for label, measure in comparison.measures.items() if is_cosine(measure)]
    named = ", ".join(judged)
    while True:
        size = _size_sample(comparison.extract, share)
        with tempfile.TemporaryDirectory(prefix="repsim-") as scratch:
            folder = perform_in(Path(scratch) / "run", make(ERRORS | PLAIN | size, judged), progress, drawn=False)
            rows, error = _read_largest_error(folder)
        if math.isnan(error):
            raise BadInput(
                f"until: errors are those of leaving documents out, got {rows:,} rows of one document; give several (a "
                ".jsonl or .csv file, or data.sample_by=paragraph or line of a .txt file), or drop it"
            )
        tell(f"until: {rows:,} rows have standard errors of at most {error:.2g} by {named}, asked for {target:g}")
        if error <= target:
            return make(ERRORS | size, None)
        ended = rows < LACKING * size["extract.rows"]
        if ended or share >= MOST:
            chosen = make(ERRORS | size, None)
            more = "give more text" if ended else "set extract.sequences and extract.rows in place of until for more"
            note = f"until: the largest standard error of {rows:,} rows is {error:.2g}, asked for {target:g}; {more}"
            return replace(chosen, notes=[*chosen.notes, note])
        share = min(share * min(max(ROOM * (error / target) ** 2, STEP[0]), STEP[1]), MOST)


def _choose_first_share(comparison: Comparison) -> float:
    """Chooses which share of the usual sample is looked at first: all of it where its parts need many texts."""
    return 1.0 if comparison.significance.budget else FIRST


def _size_sample(extract: Extract, share: float) -> dict[str, int]:
    """Computes the settings of this share of the usual sample."""
    return {f"extract.{key}": math.ceil(share * getattr(extract, key)) for key in ("sequences", "rows")}


def _say_size(size: Mapping[str, int]) -> str:
    return f"{size['extract.rows']:,} rows of {size['extract.sequences']:,} texts"


def _read_largest_error(folder: Path) -> tuple[int, float]:
    """Reads the rows of a run, and its largest standard error of layers of two models; NaN where it has none."""
    found = reader.read_results(folder)
    across = [
        reader.read_array(folder, matrix.se)
        for measured in found.measures
        for matrix in measured.matrices
        if matrix.se is not None and matrix.rows.model != matrix.columns.model
    ]
    known = np.concatenate([errors[np.isfinite(errors)] for errors in across])
    return found.measures[0].matrices[0].n or 0, float(known.max()) if known.size else math.nan
