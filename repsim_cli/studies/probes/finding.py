"""What probes tell of each layer: from which layer a target is told best, and whether linearly."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Num
from scipy.special import stdtrit

from repsim_cli.base.plain import slug
from repsim_cli.engine.proportions import count_freedom
from repsim_cli.figures.colours import choose_colours
from repsim_cli.figures.heatmap import TIGHT, name_by_block
from repsim_cli.figures.layout import LETTER, find_available_width
from repsim_cli.figures.lines import list_layer_figures
from repsim_cli.figures.panels import add_colour_bar, set_headline
from repsim_cli.figures.texts import shorten
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import FEWEST, weigh_mean
from repsim_cli.findings.extremes import LEVEL
from repsim_cli.findings.layers import read_block_number
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, Axis, Band, Curve, Matrix, Table, Verdict

Errors = Mapping[tuple[str, str], float]  # the lowest error over layers, by model and target
PERFECT = 0.01  # an error up to here counts as none
MISSED = 0.1  # from this error on a target counts as not told (published: 0.52 and 0.93)
UNTOLD = "not told apart"  # layers beside those as near, over held-out documents
COUNTED = "wrong by document", "rows by document"
COLUMNS = [
    "model", "target", "probe", "perfect", "nearest", "others as near", "lowest error", "control", "selectivity",
    "error of the largest class", UNTOLD,
]  # fmt: skip
TESTED = ["layers", "p of any layer"]  # further columns of runs whose probes were tested
SOME = 6  # targets times probes up to which the overview has the curves of each
PAPER = "Gao et al. 2024, table 4"
CELL = 0.115, 0.17  # inches
GAP, SMALLEST, MOST = 0.16, 1.5, 24  # inches; letters of a target's name


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """The layer from which each target is predicted best, by each probe. There are no settings."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The errors of a probe that claims are judged by. lowest: by model and target, at the best layer. mlp: the same of
    the MLP that tells classes, where it was fitted. trained: the models of each training."""

    lowest: Errors
    mlp: Errors
    trained: Mapping[str, Sequence[str]]

    def list_lowest(self, training: str, errors: Errors | None = None) -> list[list[float]]:
        """Lists for each model that was trained so the lowest error of every target, in their order."""
        errors = self.lowest if errors is None else errors
        found = [
            [value for (other, _), value in errors.items() if other == model]
            for model in self.trained.get(training, [])
        ]
        return [each for each in found if each]


HIGHEST = "highest error over targets of the best layer of Model {}, mean over seeds"
NEEDS = f"needs {FEWEST} models trained {{}} on several sums"


@claim(
    PAPER,
    statistic=HIGHEST.format("L"),
    threshold=PERFECT,
    unit="seed",
    published="below",
    on="linear",
    of=(BY_BLOCK,),
)
def linear_probes_find_all_sums_in_model_l(errors: Probed) -> Weighed | Untestable:
    """In Model L a linear probe tells c1, c2 and c perfectly."""
    return _find(errors, BY_BLOCK, max)


@claim(
    PAPER,
    statistic="lowest error over layers and targets before the last, Model E, mean over seeds",
    threshold=MISSED,
    unit="seed",
    on="linear",
    of=(END_TO_END,),
)
def linear_probes_miss_inner_sums_in_model_e(errors: Probed) -> Weighed | Untestable:
    """In Model E no layer tells c1 (0.522) or c2 (0.93) linearly, and a 2-layer MLP does."""
    lowest = [min(sums[:-1]) for sums in errors.list_lowest(END_TO_END) if sums[:-1]]
    if not lowest:
        return Untestable(NEEDS.format(END_TO_END))
    missed, value = weigh_mean(lowest, MISSED, "seed"), float(np.mean(lowest))
    by_mlp = [max(sums[:-1]) for sums in errors.list_lowest(END_TO_END, errors.mlp) if sums[:-1]]
    if len(by_mlp) < len(lowest):  # a model may not know the sums at all; that it knows them needs no MLP
        return Weighed(value, replace(missed, above=1.0, how=f"{missed.how}, without an MLP beside each linear probe"))
    told = weigh_mean(by_mlp, MISSED, "seed")
    how = f"{missed.how}, and MLPs with a mean error of {np.mean(by_mlp):.2g}"
    return Weighed(value, replace(missed, above=max(missed.above, told.below), how=how))


@claim(
    PAPER,
    statistic="error of the last target at the best layer of Model E, mean over seeds",
    threshold=PERFECT,
    unit="seed",
    published="below",
    on="linear",
    of=(END_TO_END,),
)
def linear_probes_find_the_last_sum_in_model_e(errors: Probed) -> Weighed | Untestable:
    """In Model E a linear probe tells c perfectly."""
    return _find(errors, END_TO_END, lambda sums: sums[-1])


@claim(
    PAPER,
    statistic=HIGHEST.format("E"),
    threshold=PERFECT,
    unit="seed",
    published="below",
    on="mlp",
    of=(END_TO_END,),
)
def mlp_probes_find_all_sums_in_model_e(errors: Probed) -> Weighed | Untestable:
    """In Model E a 2-layer MLP tells c1, c2 and c perfectly."""
    return _find(errors, END_TO_END, max)


def _find(errors: Probed, training: str, of_model: Callable[[list[float]], float]) -> Weighed | Untestable:
    worst = [of_model(sums) for sums in errors.list_lowest(training)]
    if not worst:
        return Untestable(NEEDS.format(training))
    return Weighed(float(np.mean(worst)), weigh_mean(worst, PERFECT, "seed"))


def judge_claims(
    claims: Sequence[Claim], lowest: Mapping[str, Errors], trained: Mapping[str, Sequence[str]]
) -> list[Verdict]:
    """Judges each claim on each probe of its kind (linear, MLP). lowest: by probe. trained: as in `Probed`."""
    mlp = lowest.get("mlp_classification", {})
    return [
        each.verdict(probe, Probed(lowest=errors, mlp=mlp, trained=trained))
        for each in claims
        for probe, errors in lowest.items()
        if probe.startswith(each.on)
    ]


def find_nearest_layer(layers: Sequence[str], errors: np.ndarray, controls: np.ndarray) -> list[Any]:
    """Finds the layer that tells a target best: whether it tells it (up to PERFECT), its name, how many others tell it
    as well, its error and its control. The first residual stream among equally near layers stands for all, as in the
    paper, else the first of them.
    """
    lowest = float(errors.min())
    near = np.flatnonzero(errors <= (PERFECT if lowest <= PERFECT else lowest)).tolist()
    place = next((place for place in near if layers[place].startswith("resid_post")), near[0])
    return [lowest <= PERFECT, layers[place], len(near) - 1, lowest, float(controls[place])]


def count_untold_layers(wrong: Num[np.ndarray, "l documents"], rows: Num[np.ndarray, " documents"]) -> int:
    """Counts the other layers whose share of wrong rows is not told apart from the lowest, by Student's t of their
    difference on the same documents, whose rows depend on each other; all of a single document.

    wrong: the rows of each document that each layer tells wrongly. rows: of each document that was held out.

    >>> count_untold_layers(np.array([[0, 1] * 50, [1, 0] * 50, [2, 2] * 50]), np.full(100, 2))
    1
    """
    wrong, rows = wrong[:, rows > 0], rows[rows > 0]
    if len(rows) < 2:
        return len(wrong) - 1
    parts = rows / rows.sum()
    gaps = (wrong - wrong[wrong.sum(1).argmin()]) / rows.sum()
    spread = np.sqrt((np.square(gaps - parts * gaps.sum(1, keepdims=True)) / (1 - parts)).sum(1))
    of_pairs = LEVEL / max(2, len(wrong) * (len(wrong) - 1))
    width = -stdtrit(count_freedom(parts, parts), of_pairs)
    return int((gaps.sum(1) <= width * spread).sum()) - 1


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """probes-MODEL; by-layer-TARGET-PROBE"""
    matrices = run.select_kind("probes")
    curves = [curve for curve in run.results.curves.values() if curve.analysis == "probes"]
    if whole or len({curve.about["quantity"] for curve in curves}) <= SOME:
        yield from list_layer_figures(run.results.curves, "probes", run.seeds)
    for model in dict.fromkeys(matrix.rows.model for matrix in matrices):
        yield slug("probes", model), partial(_draw_probe_maps, run, [x for x in matrices if x.rows.model == model])


def _draw_probe_maps(run: Finished, matrices: Sequence[Matrix]) -> Any:
    """Representations along, targets down, a panel per probe, with its control beneath."""
    from matplotlib.figure import Figure

    layers, targets = matrices[0].rows.layers, matrices[0].columns.layers
    blocks = [read_block_number(layer) for layer in layers]
    titles = [f"{matrix.about['label']}: {matrix.about['error']}" for matrix in matrices]
    longest = max(len(title) for title in titles) * LETTER * 7 / 72  # of letters of 7 points
    width, height = max(CELL[0] * len(layers), SMALLEST, longest), CELL[1] * len(targets)
    if (limit := find_available_width()) is not None:
        width = min(width, max(limit, 1.0))
    rows = [
        (matrix, title, kind) for matrix, title in zip(matrices, titles, strict=True) for kind in ("values", "control")
    ]
    tops = [number * (height + GAP) for number in range(len(rows))]
    total = tops[-1] + height
    figure = Figure(figsize=(width, total))
    used: list[Any] = []
    image: Any = None
    for (matrix, title, kind), top in zip(rows, tops, strict=True):
        axes = figure.add_axes((0, 1 - (top + height) / total, 1, height / total))
        control = kind == "control"
        values = run.array(matrix.details["control"] if control else matrix.values).T
        image = axes.imshow(values, cmap=choose_colours(small_is_bright=True), vmin=0, vmax=1, aspect="auto")
        axes.set_yticks(range(len(targets)), [shorten(name, MOST) for name in targets], fontsize=7, parse_math=False)
        axes.set_xticks([])
        axes.tick_params(length=2)
        axes.set_title("control" if control else title, loc="left", fontsize=7, pad=2)
        for place in range(1, len(blocks)):
            if blocks[place - 1] != blocks[place]:
                axes.axvline(place - 0.5, color="white", linewidth=1.5)
        used.append(axes)
    names, said = name_by_block(layers)
    step = max(1, int(np.ceil(TIGHT * len(layers) / width)))
    at = range(0, len(layers), step)
    used[-1].set_xticks(at, [names[i] for i in at], fontsize=6, rotation=90 * (not said), parse_math=False)
    used[-1].set_xlabel(said, fontsize=7)
    add_colour_bar(figure, image, matrices[0].label, extend="max")
    set_headline(
        figure,
        f"{matrices[0].rows.model}: which layer says what",
        "bright: told without error; control: labels without meaning",
    )
    return figure


def make_accuracy_curves(run: Finished, matrix: Matrix) -> Iterator[tuple[str, Curve]]:
    """A curve per target: the accuracies of the probe and of its control, over the layers of the model."""
    errors, control = run.array(matrix.values), run.array(matrix.details["control"])
    largest = run.results.about.get("error of the largest class", {})
    for place, target in enumerate(matrix.columns.layers):
        bands = {}
        if "lowest" in matrix.details:
            low, high = (1 - run.array(matrix.details[end])[:, place] for end in ("highest", "lowest"))
            of = f"range over {run.results.about['splits']} splits"
            bands = {"labels": Band(low=low.tolist(), high=high.tolist(), of=of)}
        yield (
            f"{target}, {matrix.about['probe']}, {matrix.rows.model}",
            Curve(
                x=Axis(name="layer"),
                y=Axis(name=f"accuracy for {target} ({matrix.about['label']})"),
                at=matrix.rows.layers,
                lines={"labels": (1 - errors[:, place]).tolist(), "control": (1 - control[:, place]).tolist()},
                bands=bands,
                about={
                    "quantity": f"{target} {matrix.about['probe']}",
                    "model": matrix.rows.model,
                    **({"levels": {"largest class": 1 - largest[target]}} if target in largest else {}),
                },
            ),
        )


@analysis(studies=("probes",), unasked=lambda planned: True, figures=draw_figures)
def probes(run: Finished, options: ProbeOptions, claims: Sequence[Claim]) -> Part:
    """Says how well each layer tells each target, and which layer tells it best."""
    rows: list[list[Any]] = []
    curves: dict[str, Curve] = {}
    lowest: dict[str, dict[tuple[str, str], float]] = {}
    largest = run.results.about.get("error of the largest class", {})
    matrices = run.select_kind("probes")
    tested = all("p" in matrix.details for matrix in matrices)
    for matrix in matrices:
        number = matrix.about["error"] != "1 - accuracy"
        curves |= {} if number else dict(make_accuracy_curves(run, matrix))
        probe, errors, control = matrix.about["probe"], run.array(matrix.values), run.array(matrix.details["control"])
        for place, target in enumerate(matrix.columns.layers):
            best = find_nearest_layer(matrix.rows.layers, errors[:, place], control[:, place])
            error, given = best[-2:]
            guess = None if number else largest.get(target)
            counted = [run.array(matrix.details[name]) for name in COUNTED] if COUNTED[0] in matrix.details else None
            untold = (
                None if counted is None else max(0, count_untold_layers(counted[0][:, place], counted[1]) - best[2])
            )
            row = [matrix.rows.model, target, probe, *best, given - error, guess, untold]
            if tested:
                layers, p = len(matrix.rows.layers), run.array(matrix.details["p"])[:, place]
                row += [layers, min(1.0, layers * float(p.min()))]  # the best of so many
            rows.append(row)
            lowest.setdefault(probe, {})[matrix.rows.model, target] = error
    table = Table(columns=[*COLUMNS, *(TESTED if tested else [])], rows=rows)
    verdicts = judge_claims(claims, lowest, run.trained)
    return Part(tables={"nearest to the targets": table}, curves=curves, claims=verdicts)
