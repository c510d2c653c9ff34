"""Classifiers that were trained alike but for one change: what each change costs, task by task."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.figures.frame import COLOURS, MARKERS, add_legend_beside, repeat_values
from repsim_cli.figures.panels import set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, Planned, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import weigh_mean
from repsim_cli.runs.content import Facts, Table

TABLE = "variants"
COLUMNS = ["task", "variant", "models", "mean", "standard deviation", "change", "standard error of rows"]
LITTLE = 0.01  # a loss of accuracy that is comparable performance
HALF_A_POINT = 0.005  # the published loss is 0.0044 with two thirds frozen, and 0.0001 with a third of the blocks
HEIGHT, GROUP, MARK = 3.2, 0.5, 0.22  # inches: of the axes, between tasks, and of a variant
TICK = 0.75  # inches that a variant takes where each has a name of its own


@dataclass(frozen=True, kw_only=True)
class Variants:
    """What each variant of a training changes in a metric, task by task, against a variant with nothing changed.

    models: {TASK: {VARIANT: ENTRY}}, where an entry of `model` stands for all its seeds. Claims read the variants named
        `top N` and `bottom N`, with the last or first N blocks frozen, and `first N`, with these blocks alone.
    reference: the variant that the others are compared with; every task has it.
    metric: of those that the models were saved with.
    """

    models: dict[str, dict[str, str]]
    reference: str = "none"
    metric: str = "accuracy"

    def check(self, planned: Planned) -> None:
        if not self.models:
            raise BadInput("models: no task is named; write {TASK: {VARIANT: ENTRY}}")
        for task, entries in self.models.items():
            if self.reference not in entries:
                raise BadInput(
                    f"models.{task}: the reference is not among its variants, got {', '.join(map(repr, entries))}; "
                    f"name '{self.reference}', or set reference"
                )
            for variant, entry in entries.items():
                if not list_entry_models(entry, planned.models):
                    raise BadInput(
                        f"models.{task}.{variant}: no such model, got '{entry}'; {did_you_mean(entry, planned.models)}"
                    )


def list_entry_models(entry: str, models: Mapping[str, Facts]) -> list[str]:
    """The models of an entry: those of its seeds, or the one of its label."""
    return [label for label, about in models.items() if entry in (label, about.entry)]


class VariantScores(NamedTuple):
    """The metric of every variant. values: by task and variant, that of every seed. reference: the variant with nothing
    changed. blocks, rows: by task, the blocks of the reference, and the evaluation examples where the metric is a share
    of them."""

    values: Mapping[str, Mapping[str, Float[np.ndarray, " seeds"]]]
    reference: str
    blocks: Mapping[str, int | None] = MappingProxyType({})
    rows: Mapping[str, int | None] = MappingProxyType({})

    def changes(self, task: str, variant: str) -> Float[np.ndarray, " seeds"]:
        """Variant minus reference, seed by seed where both have as many, else of the means."""
        changed, whole = self.values[task][variant], self.values[task][self.reference]
        return changed - whole if len(changed) == len(whole) else np.array([changed.mean() - whole.mean()])

    def find_frozen(self, task: str, end: str) -> dict[int, str]:
        """The variants of a task named `END N`, by N."""
        named = {variant: re.fullmatch(rf"{end} (\d+)", variant) for variant in self.values[task]}
        return {int(match[1]): variant for variant, match in named.items() if match}

    def find_frozen_at_share(self, end: str, share: float) -> dict[str, str]:
        """Finds for each task the variant named `END N` with N this share of the blocks, where there is one."""
        wanted = {task: round(share * blocks) for task in self.values if (blocks := self.blocks.get(task))}
        named = {task: self.find_frozen(task, end).get(count) for task, count in wanted.items()}
        return {task: variant for task, variant in named.items() if variant}


@claim(
    "Wu et al. 2020, appendix D, table 1",
    statistic="accuracy with the bottom N blocks frozen minus that with the top N frozen: mean over N and tasks",
    threshold=0.0,
    unit="task",
)
def freezing_the_bottom_costs_less(scores: VariantScores) -> Weighed | Untestable:
    """Freezing the bottom layers results in better performance than freezing the top layers."""
    gaps = {}
    for task in scores.values:
        top, bottom = (scores.find_frozen(task, end) for end in ("top", "bottom"))
        if both := top.keys() & bottom.keys():
            gaps[task] = [scores.changes(task, bottom[n]) - scores.changes(task, top[n]) for n in both]
    if not gaps:
        return Untestable("no task has variants `top N` and `bottom N` of equal N")
    return _average_over_tasks(scores, gaps, threshold=0.0)


@claim(
    "Wu et al. 2020, appendix D, table 1",
    statistic="accuracy lost with the largest number of bottom blocks frozen: mean over tasks",
    threshold=LITTLE,
    unit="task",
    published="below",
)
def frozen_bottom_layers_cost_little(scores: VariantScores) -> Weighed | Untestable:
    """Freezing the bottom layers maintains performance comparable to fine-tuning the full network."""
    most = {task: max(bottom.items())[1] for task in scores.values if (bottom := scores.find_frozen(task, "bottom"))}
    if not most:
        return Untestable("no task has a variant `bottom N`")
    lost = {task: [-scores.changes(task, variant)] for task, variant in most.items()}
    return _average_over_tasks(scores, lost, threshold=LITTLE)


@claim(
    "Gao et al. 2024, appendix G, table 6",
    statistic="accuracy lost with the first two thirds of the blocks frozen: mean over tasks",
    threshold=HALF_A_POINT,
    unit="task",
    published="below",
)
def freezing_two_thirds_costs_little(scores: VariantScores) -> Weighed | Untestable:
    """Fine-tuning blocks 9 to 12 of 12 and the classifier alone makes no significant difference in performance."""
    if not (chosen := scores.find_frozen_at_share("bottom", 2 / 3)):
        return Untestable("no task has a variant `bottom N` with N two thirds of the blocks")
    return _compute_lost(scores, chosen)


@claim(
    "Gao et al. 2024, appendix L, table 7",
    statistic="accuracy lost with the first third of the blocks alone: mean over tasks",
    threshold=HALF_A_POINT,
    unit="task",
    published="below",
)
def a_third_of_the_blocks_is_enough(scores: VariantScores) -> Weighed | Untestable:
    """With the first 4 of 12 blocks similarly good performance is achieved."""
    if not (chosen := scores.find_frozen_at_share("first", 1 / 3)):
        return Untestable("no task has a variant `first N` with N a third of the blocks")
    return _compute_lost(scores, chosen)


def _compute_lost(scores: VariantScores, chosen: Mapping[str, str]) -> Weighed | Untestable:
    gaps = {task: [-scores.changes(task, variant)] for task, variant in chosen.items()}
    return _average_over_tasks(scores, gaps, threshold=HALF_A_POINT)


def _average_over_tasks(
    scores: VariantScores, by_task: Mapping[str, Sequence[np.ndarray]], threshold: float
) -> Weighed | Untestable:
    """The mean of the tasks' means, with its error over tasks; of a single task over its seeds. A task that several
    models were trained on (`MODEL, TASK`) is one unit."""
    means: dict[str, list[float]] = {}
    for task, values in by_task.items():
        means.setdefault(task.rpartition(", ")[2], []).extend(float(each.mean()) for each in values)
    units, unit = [float(np.mean(each)) for each in means.values()], "task"
    if len(by_task) == 1:
        ((task, values),), unit = by_task.items(), "seed"
        alike = len({len(each) for each in scores.values[task].values()}) == 1
        units = np.mean(values, 0).tolist() if alike else units
    return Weighed(float(np.mean(units)), replace(weigh_mean(units, threshold, unit), unit=unit))


def bound_difference_error(first: float, second: float, rows: int | None) -> float | None:
    """Standard error of the difference of two shares of the same rows that are right, at most: as if each had rows of
    its own. None where the number of rows is not known.

    >>> round(bound_difference_error(0.9, 0.8, 1000), 4)
    0.0158
    """
    if rows is None:
        return None
    return float(np.sqrt((first * (1 - first) + second * (1 - second)) / rows))


def tabulate(scores: VariantScores) -> Table:
    """A row per task and variant."""
    lines = []
    for task, variants in scores.values.items():
        whole = float(variants[scores.reference].mean())
        for variant, values in variants.items():
            mean = float(values.mean())
            spread = float(values.std(ddof=1)) if len(values) > 1 else None
            change = error = None
            if variant != scores.reference:
                change, error = (
                    float(scores.changes(task, variant).mean()),
                    bound_difference_error(mean, whole, scores.rows.get(task)),
                )
            lines.append([task, variant, len(values), mean, spread, change, error])
    return Table(columns=COLUMNS, rows=lines)


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """variants: what each changes, by task"""
    about = run.results.analyses["variants"]["options"]
    yield "variants", partial(_draw_changes, run.results.tables[TABLE], about["metric"], about["reference"])


def _draw_changes(table: Table, metric: str, reference: str) -> Any:
    """A mark per variant in a group per task, with the error of the evaluation rows, before the scatter of the seeds of
    the reference; of a single task, each variant by its name."""
    from matplotlib.figure import Figure

    records = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    compared = [record for record in records if record["variant"] != reference]
    tasks, variants = (list(dict.fromkeys(record[key] for record in compared)) for key in ("task", "variant"))
    pitch = MARK if len(tasks) > 1 else TICK
    group = len(variants) * pitch + GROUP
    inches = len(tasks) * group
    figure = Figure(figsize=(inches, HEIGHT))
    axes = figure.add_axes((0, 0, 1, 1))
    styles = zip(variants, repeat_values(COLOURS, len(variants)), repeat_values(MARKERS, len(variants)), strict=True)
    for number, (variant, colour, marker) in enumerate(styles):
        of_variant = [record for record in compared if record["variant"] == variant]
        at = [tasks.index(record["task"]) * group + (GROUP + pitch) / 2 + number * pitch for record in of_variant]
        heights = [100 * record["change"] for record in of_variant]
        errors = [100 * (record["standard error of rows"] or 0.0) for record in of_variant]
        axes.errorbar(at, heights, errors, fmt=marker, color=colour, markersize=5, elinewidth=1, label=variant)
    axes.axhline(0, color="0.3", linewidth=0.8)
    spreads = {x["task"]: x["standard deviation"] for x in records if x["variant"] == reference}
    scatter = {task: 100 * spread for task, spread in spreads.items() if spread is not None}
    for number, task in enumerate(scatter):
        sides = [tasks.index(task) * group, (tasks.index(task) + 1) * group]
        label = "_" if number else f"standard deviation of the\nseeds of '{reference}'"
        axes.fill_between(sides, -scatter[task], scatter[task], color="0.9", linewidth=0, zorder=0, label=label)
    for edge in range(1, len(tasks)):
        axes.axvline(edge * group, color="0.85", linewidth=0.8)
    axes.set_xlim(0, inches)
    if len(tasks) > 1 or scatter:
        add_legend_beside(axes)
    if len(tasks) > 1:
        axes.set_xticks([(i + 0.5) * group for i in range(len(tasks))], tasks, parse_math=False)
    else:
        axes.set_xticks([(GROUP + pitch) / 2 + i * pitch for i in range(len(variants))], variants, parse_math=False)
        axes.set_xlabel(tasks[0], parse_math=False)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"change in {metric}, points", parse_math=False)
    axes.grid(axis="y", alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    known = any(record["standard error of rows"] is not None for record in compared)
    bars = "bars: one standard error of the evaluation rows, which knows nothing of other seeds" if known else ""
    set_headline(figure, f"What each variant changes against '{reference}'", bars)
    return figure


@analysis(studies=("finetune",), figures=draw_figures)
def variants(run: Finished, options: Variants, claims: Sequence[Claim]) -> Part:
    metrics = {label: identity["metrics"] for label, identity in run.manifest["models"].items()}
    evaluated = run.results.about.get("evaluated", {})
    values: dict[str, dict[str, np.ndarray]] = {}
    for task, entries in options.models.items():
        values[task] = {}
        for variant, entry in entries.items():
            labels = list_entry_models(entry, run.models)
            if lacking := [label for label in labels if options.metric not in metrics[label]]:
                known = ", ".join(metrics[lacking[0]])
                raise BadInput(f"metric: '{lacking[0]}' was saved without it, got {options.metric}; known: {known}")
            values[task][variant] = np.array([metrics[label][options.metric] for label in labels])
    references = {
        task: list_entry_models(entries[options.reference], run.models)[0] for task, entries in options.models.items()
    }
    shares = options.metric == "accuracy"
    rows = {task: evaluated.get(label) if shares else None for task, label in references.items()}
    blocks = {task: run.models[label].blocks for task, label in references.items()}
    scores = VariantScores(values, options.reference, blocks, rows)
    return Part(
        tables={TABLE: tabulate(scores)},
        claims=[claim.verdict(options.metric, scores) for claim in claims],
    )
