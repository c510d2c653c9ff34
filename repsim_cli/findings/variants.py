"""Classifiers that were trained alike but for one change: what each change costs, task by task."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from repsim_cli.content import Facts, Table
from repsim_cli.draw.frame import COLOURS, MARKERS, cycled, legend_beside
from repsim_cli.errors import BadInput
from repsim_cli.findings.analysis import Finished, Job, Part, Planned, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import by_units
from repsim_cli.registry import did_you_mean

TABLE = "variants"
COLUMNS = ["task", "variant", "models", "mean", "standard deviation", "change", "standard error of rows"]
LITTLE = 0.01  # a loss of accuracy that is comparable performance
HEIGHT, GROUP, MARK = 3.2, 0.5, 0.22  # inches: of the axes, between tasks, and of a variant
TICK = 0.45  # inches that a variant takes where each has a name of its own


@dataclass(frozen=True, kw_only=True)
class Variants:
    """What each variant of a training changes in a metric, task by task, against a variant with nothing changed.

    models: {TASK: {VARIANT: ENTRY}}, where an entry of `model` stands for all its seeds. Claims about freezing read
        the variants named `top N` and `bottom N`, with so many of the first or last blocks frozen.
    reference: the variant that the others are compared with; every task has it.
    metric: of those that the models were saved with.
    """

    models: dict[str, dict[str, str]] = field(default_factory=dict)
    reference: str = "none"
    metric: str = "accuracy"

    def check(self, planned: Planned) -> None:
        if not self.models:
            raise BadInput("models: no task is named, got none; write {TASK: {VARIANT: ENTRY}}")
        for task, entries in self.models.items():
            if self.reference not in entries:
                raise BadInput(
                    f"models.{task}: the reference is not among its variants, got {', '.join(map(repr, entries))}; "
                    f"name '{self.reference}', or set reference"
                )
            for variant, entry in entries.items():
                if not seeds(entry, planned.models):
                    raise BadInput(
                        f"models.{task}.{variant}: no such model, got '{entry}'; {did_you_mean(entry, planned.models)}"
                    )


def seeds(entry: str, models: Mapping[str, Facts]) -> list[str]:
    """The models of an entry: those of its seeds, or the one of its label."""
    return [label for label, about in models.items() if entry in (label, about.entry)]


class Scores(NamedTuple):
    """values: by task and variant, the metric of every seed. reference: the variant with nothing changed."""

    values: Mapping[str, Mapping[str, Float[np.ndarray, " seeds"]]]
    reference: str

    def changes(self, task: str, variant: str) -> Float[np.ndarray, " seeds"]:
        """Variant minus reference, seed by seed where both have as many, else of the means."""
        own, whole = self.values[task][variant], self.values[task][self.reference]
        return own - whole if len(own) == len(whole) else np.array([own.mean() - whole.mean()])

    def frozen(self, task: str, end: str) -> dict[int, str]:
        """The variants of a task named `END N`, by N."""
        named = {variant: re.fullmatch(rf"{end} (\d+)", variant) for variant in self.values[task]}
        return {int(match[1]): variant for variant, match in named.items() if match}


@claim(
    "Wu et al. 2020, appendix D, table 1",
    statistic="accuracy with the bottom N blocks frozen minus that with the top N frozen: mean over N and tasks",
    threshold=0.0,
)
def freezing_the_bottom_costs_less(scores: Scores) -> Weighed | Untestable:
    """Freezing the bottom layers results in better performance than freezing the top layers."""
    gaps = {}
    for task in scores.values:
        top, bottom = (scores.frozen(task, end) for end in ("top", "bottom"))
        if both := top.keys() & bottom.keys():
            gaps[task] = [scores.changes(task, bottom[n]) - scores.changes(task, top[n]) for n in both]
    if not gaps:
        return Untestable("no task has variants `top N` and `bottom N` of equal N")
    return _over_tasks(scores, gaps, 0.0)


@claim(
    "Wu et al. 2020, appendix D, table 1",
    statistic="accuracy lost with the largest number of bottom blocks frozen: mean over tasks",
    threshold=LITTLE,
    published="below",
)
def frozen_bottom_layers_cost_little(scores: Scores) -> Weighed | Untestable:
    """Freezing the bottom layers maintains performance comparable to fine-tuning the full network."""
    most = {task: max(bottom.items())[1] for task in scores.values if (bottom := scores.frozen(task, "bottom"))}
    if not most:
        return Untestable("no task has a variant `bottom N`")
    return _over_tasks(scores, {task: [-scores.changes(task, variant)] for task, variant in most.items()}, LITTLE)


def _over_tasks(scores: Scores, by_task: Mapping[str, Sequence[np.ndarray]], threshold: float) -> Weighed | Untestable:
    """The mean of the tasks' means, with its error over tasks; of a single task over its seeds."""
    units, what = [float(np.mean([each.mean() for each in values])) for values in by_task.values()], "tasks"
    if len(units) == 1:
        ((task, values),), what = by_task.items(), "seeds"
        alike = len({len(each) for each in scores.values[task].values()}) == 1
        units = np.mean(values, 0).tolist() if alike else []
    if len(units) < 2:
        return Untestable("needs two tasks, or one with the same two or more seeds of every variant")
    return Weighed(float(np.mean(units)), by_units(units, threshold, f"standard error over {len(units)} {what}"))


def of_rows(first: float, second: float, rows: int | None) -> float | None:
    """Standard error of the difference of two shares of the same rows that are right, at most: as if each had rows of
    its own. None where the number of rows is not known.

    >>> round(of_rows(0.9, 0.8, 1000), 4)
    0.0158
    """
    if rows is None:
        return None
    return float(np.sqrt((first * (1 - first) + second * (1 - second)) / rows))


def tabled(scores: Scores, rows: Mapping[str, int | None]) -> Table:
    """A row per task and variant. rows: by task, the evaluation examples, where the metric is a share of them."""
    lines = []
    for task, variants in scores.values.items():
        whole = float(variants[scores.reference].mean())
        for variant, values in variants.items():
            mean = float(values.mean())
            spread = float(values.std(ddof=1)) if len(values) > 1 else None
            change = error = None
            if variant != scores.reference:
                change, error = float(scores.changes(task, variant).mean()), of_rows(mean, whole, rows.get(task))
            lines.append([task, variant, len(values), mean, spread, change, error])
    return Table(columns=COLUMNS, rows=lines)


def figures(run: Finished, whole: bool) -> Iterator[Job]:
    """variants: what each changes, by task"""
    about = run.results.analyses["variants"]["options"]
    yield "variants", partial(_changes, run.results.tables[TABLE], about["metric"], about["reference"])


def _changes(table: Table, metric: str, reference: str) -> Any:
    """A mark per variant in a group per task, with the error of the evaluation rows; of a single task, each variant by
    its name."""
    from matplotlib.figure import Figure

    records = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    compared = [record for record in records if record["variant"] != reference]
    tasks, variants = (list(dict.fromkeys(record[key] for record in compared)) for key in ("task", "variant"))
    pitch = MARK if len(tasks) > 1 else TICK
    group = len(variants) * pitch + GROUP
    inches = len(tasks) * group
    figure = Figure(figsize=(inches, HEIGHT))
    axes = figure.add_axes((0, 0, 1, 1))
    styles = zip(variants, cycled(COLOURS, len(variants)), cycled(MARKERS, len(variants)), strict=True)
    for number, (variant, colour, marker) in enumerate(styles):
        own = [record for record in compared if record["variant"] == variant]
        at = [tasks.index(record["task"]) * group + (GROUP + pitch) / 2 + number * pitch for record in own]
        heights = [100 * record["change"] for record in own]
        errors = [100 * (record["standard error of rows"] or 0.0) for record in own]
        axes.errorbar(at, heights, errors, fmt=marker, color=colour, markersize=5, elinewidth=1, label=variant)
    axes.axhline(0, color="0.3", linewidth=0.8)
    for edge in range(1, len(tasks)):
        axes.axvline(edge * group, color="0.85", linewidth=0.8)
    axes.set_xlim(0, inches)
    if len(tasks) > 1:
        axes.set_xticks([(i + 0.5) * group for i in range(len(tasks))], tasks, parse_math=False)
        legend_beside(axes)
    else:
        axes.set_xticks([(GROUP + pitch) / 2 + i * pitch for i in range(len(variants))], variants, parse_math=False)
        axes.set_xlabel(tasks[0], parse_math=False)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"change in {metric}, points", parse_math=False)
    axes.grid(axis="y", alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    known = any(record["standard error of rows"] is not None for record in compared)
    bars = "; bars: one standard error of the evaluation rows" if known else ""
    axes.set_title(f"against '{reference}'{bars}", loc="left", fontsize=8, parse_math=False)
    return figure


@analysis(studies=("finetune",), figures=figures)
def variants(run: Finished, options: Variants, claims: Sequence[Claim]) -> Part:
    metrics = {label: identity["metrics"] for label, identity in run.manifest["models"].items()}
    evaluated = run.results.about.get("evaluated", {})
    values: dict[str, dict[str, np.ndarray]] = {}
    for task, entries in options.models.items():
        values[task] = {}
        for variant, entry in entries.items():
            own = seeds(entry, run.models)
            if lacking := [label for label in own if options.metric not in metrics[label]]:
                known = ", ".join(metrics[lacking[0]])
                raise BadInput(f"metric: '{lacking[0]}' was saved without it, got {options.metric}; known: {known}")
            values[task][variant] = np.array([metrics[label][options.metric] for label in own])
    scores = Scores(values, options.reference)
    rows = {
        task: evaluated.get(seeds(entries[options.reference], run.models)[0]) if options.metric == "accuracy" else None
        for task, entries in options.models.items()
    }
    return Part(
        tables={TABLE: tabled(scores, rows)},
        claims=[one.verdict(options.metric, scores) for one in claims],
    )
