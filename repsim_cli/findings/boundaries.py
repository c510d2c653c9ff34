"""Boundaries: after which block of a classifier the next ones differ, and whether measures and seeds agree on it (Gao
et al. 2024, section 5.2, appendices I, K and M). The paper counts blocks from 1: its blocks 1 to 8 are resid_post@0 to
resid_post@7."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.base.errors import BadInput
from repsim_cli.figures.frame import COLOURS
from repsim_cli.figures.panels import (
    add_colour_bar,
    count_columns,
    find_outer_panels,
    make_panels,
    name_panels,
    set_headline,
)
from repsim_cli.findings.analysis import Finished, Job, LayerMap, Part, Planned, analysis, select_claims
from repsim_cli.findings.blocks import average_adjacent_layers
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.distances import compute_adjusted_rand
from repsim_cli.findings.evidence import FEWEST as LEAST
from repsim_cli.findings.evidence import (
    FLIPS,
    LEVEL,
    log_of,
    negate_evidence,
    report_too_few,
    weigh_by_jackknife,
    weigh_lone_value,
    weigh_mean,
    weigh_rank_correlation,
)
from repsim_cli.findings.layers import read_block_number, read_hook_point
from repsim_cli.findings.partitions import (
    FEWEST,
    Labels,
    Square,
    compare_partitions,
    compute_margin,
    convert_to_distances,
    divide_in_two,
    find_contiguous_segments,
    find_cut,
    have_groups,
    measure_clearness,
)
from repsim_cli.findings.walks import compute_p_among_walks, say_beyond_walks
from repsim_cli.runs.content import BEYOND_WALKS, Table

OUTPUT = "resid_post"  # what a block is compared by
TABLE, AGREEMENT, STABILITY = "boundaries", "agreement on boundaries", "stability over seeds"
COLUMNS = {
    TABLE: [
        "measure", "model", "boundary after", "relative depth", "largest step after", "segments", "clearness",
        "clearer than without groups", BEYOND_WALKS, "mean distance", "sparsity",
    ],
    AGREEMENT: ["model", "boundary of most", "measures", "there", "at most one block away", "mean adjusted Rand"],
    STABILITY: ["measure", "entry", "seeds", "adjusted Rand of boundaries", "adjusted Rand of segments"],
}  # fmt: skip
GW, CKA = "gromov_wasserstein", "cka"
SECTION, SEEDS = "Gao et al. 2024, section 5.2, figure 4", "Gao et al. 2024, figure 17"
NO_BOUNDARY = "a boundary clearer than in surrogates without groups"
NO_BASE = f"needs a base, and {LEAST} models that were fine-tuned from it"


@dataclass(frozen=True, kw_only=True)
class Boundaries:
    """The boundary between the blocks of each model under every measure: where two contiguous groups of block outputs
    have the least cost, and beside it the largest step from one block to the next. It has no settings."""

    def check(self, planned: Planned) -> None:
        most = max((_count_block_outputs(about.layers) for about in planned.models.values()), default=0)
        if most < FEWEST:
            raise BadInput(
                f"the outputs of {FEWEST} blocks are needed, got {most}; read them: extract.hook_points=[{OUTPUT}]"
            )


def _count_block_outputs(names: Sequence[str]) -> int:
    return [*map(read_hook_point, names)].count(OUTPUT)


@dataclass(frozen=True, kw_only=True)
class ModelBlocks:
    """The blocks of one model under one measure.

    apart: (n, n) distances between their outputs, in the order of the network.
    cut: how many blocks are before the boundary. labels: of every block in the contiguous groups that the data suggest.
    clearness: by how much the mean silhouette of the two groups exceeds the largest of surrogates without groups.
    """

    apart: Square
    cut: int
    labels: Labels
    clearness: float

    @property
    def groups(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def clear(self) -> bool:
        """Says whether there is a boundary, by the margin of sub-networks: in a smooth gradient two groups of least
        cost mean nothing."""
        return self.clearness >= compute_margin(self.apart)

    @property
    def mean(self) -> float:
        return float(self.apart[np.triu_indices(len(self.apart), k=1)].mean())


def find_model_blocks(values: Square, larger_is_closer: bool) -> ModelBlocks | None:
    """Finds the boundary of a model that parts its blocks into two groups, and how clear it is.

    values: between the outputs of blocks, in the order of the network. None where all are the same.
    """
    suggested = find_contiguous_segments(values, larger_is_closer, count=None)
    apart = convert_to_distances(values, larger_is_closer)
    if not suggested.scores:
        return None
    return ModelBlocks(
        apart=apart,
        cut=find_cut(apart),
        labels=suggested.labels,
        clearness=suggested.scores[2] - suggested.reference[2],
    )


@dataclass(frozen=True, kw_only=True)
class Parted:
    """models: their blocks under one measure. base: the model that the others were fine-tuned from. sparsity: of those
    that were fine-tuned here, the share of their weights that is zero. entries: of those that are one of several seeds,
    their entry of `model`."""

    models: Mapping[str, ModelBlocks]
    base: str | None = None
    sparsity: Mapping[str, float] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)

    @property
    def tuned(self) -> dict[str, ModelBlocks]:
        return {label: blocks for label, blocks in self.models.items() if label != self.base}

    @property
    def divided(self) -> dict[str, ModelBlocks]:
        """The fine-tuned models with a boundary."""
        return {label: blocks for label, blocks in self.tuned.items() if blocks.clear}


@cache
def _compute_cut_agreements(count: int) -> Float[np.ndarray, "cuts cuts"]:
    """The adjusted Rand index of every two cuts of `count` blocks into two."""
    labels = (np.arange(count) >= np.arange(1, count)[:, None]).astype(int)
    return np.stack([compute_adjusted_rand(labels, cut) for cut in labels])


def compute_agreement(pairs: Sequence[tuple[ModelBlocks, ModelBlocks]]) -> float:
    """Mean adjusted Rand index of the boundaries of models of equal depth."""
    return float(np.mean([_compute_cut_agreements(len(a.apart))[a.cut - 1, b.cut - 1] for a, b in pairs]))


# ---- claims on one measure ----


@claim(
    SECTION,
    statistic="log of the mean distance between blocks: mean of fine-tuned models minus base",
    threshold=0.0,
    unit="model",
    on="blocks",
)
def fine_tuning_parts_blocks(parted: Parted) -> Weighed | Untestable:
    """Fine-tuned models have major differences among blocks, which the pre-trained one has not."""
    base = parted.base
    if base is None or base not in parted.models or not parted.tuned:
        return Untestable(NO_BASE)
    if len({len(blocks.apart) for blocks in parted.models.values()}) > 1:
        return Untestable("the models have different numbers of blocks")
    far = {label: log_of(blocks.mean) for label, blocks in parted.models.items()}
    others = [far[label] for label in parted.tuned]
    return Weighed(float(np.mean(others)) - far[base], negate_evidence(weigh_lone_value(far[base], others, "model")))


@claim(
    SECTION,
    statistic="Spearman's rho over fine-tuned models between sparsity and mean distance between blocks",
    threshold=-0.5,
    unit="model",
    on="blocks",
    published="below",
)
def sparser_models_differ_less(parted: Parted) -> Weighed | Untestable:
    """The more sparse models have lesser differences among the blocks."""
    known = [label for label in parted.tuned if label in parted.sparsity]
    shares = np.array([parted.sparsity[label] for label in known])
    if len(set(shares)) < 3:
        return Untestable(f"needs fine-tuned models of three sparsities, got {len(set(shares))}")
    means = np.array([parted.models[label].mean for label in known])
    if len(set(means)) < 2:
        return Untestable("all models have the same mean distance")
    return Weighed(*weigh_rank_correlation(shares, means, -0.5, "model"))


@claim(
    SEEDS,
    statistic="adjusted Rand index of the boundaries of two seeds, mean over pairs",
    threshold=0.5,
    unit="seed",
    on="blocks",
)
def boundaries_are_stable_over_seeds(parted: Parted) -> Weighed | Untestable:
    """The block structure stays rather consistent with different seeds."""
    labels = [label for label in parted.divided if label in parted.entries]
    pairs = [(a, b) for a, b in combinations(labels, 2) if parted.entries[a] == parted.entries[b]]
    if not pairs:
        return Untestable(f"needs two seeds of one entry with {NO_BOUNDARY}")
    if len({len(parted.models[label].apart) for label in labels}) > 1:
        return Untestable("the models have different numbers of blocks")

    def compute_kept_agreement(left_out: str = "") -> float:
        kept = [(parted.models[a], parted.models[b]) for a, b in pairs if left_out not in (a, b)]
        return compute_agreement(kept) if kept else float("nan")

    value = compute_kept_agreement()
    if len(labels) < FLIPS:  # of three that are anywhere all may agree
        return Weighed(value, report_too_few(len(labels), "seed", FLIPS))
    over = weigh_by_jackknife(value, 0.5, [compute_kept_agreement(label) for label in labels], "seed")
    # seeds may share blocks that wander: what they share must part more clearly than walks do
    by_entry = [
        np.mean([parted.models[label].apart for label in labels if parted.entries[label] == entry], axis=0)
        for entry in dict.fromkeys(parted.entries[a] for a, _ in pairs)
    ]
    shared = compute_p_among_walks(by_entry, measure_clearness, divide_in_two) if over.above <= LEVEL else 1.0
    how = f"{over.how}, and walks in place of the blocks that they share"
    return Weighed(value, replace(over, above=max(over.above, shared), how=how))


# ---- claims on several measures ----

ByMeasure = Mapping[str, Parted]  # by the name of the measure


@claim(
    "Gao et al. 2024, appendix I, figures 12 and 13",
    statistic="clearness of the boundary: Gromov-Wasserstein minus the clearest other measure, mean over fine-tuned "
    "models",
    threshold=0.0,
    unit="model",
    on="measures",
)
def gromov_wasserstein_is_clearest(parted: ByMeasure) -> Weighed | Untestable:
    """GW clearly demarcates the sub-network blocks; other baselines fail to reveal such clear block structures."""
    if GW not in parted or len(parted) < 2:
        return Untestable(f"needs the measure {GW}, and others")
    others = [other.tuned for name, other in parted.items() if name != GW]
    clear = {label: blocks for label, blocks in parted[GW].tuned.items() if all(label in other for other in others)}
    gaps = [blocks.clearness - max(other[label].clearness for other in others) for label, blocks in clear.items()]
    if not gaps:
        return Untestable(f"needs {LEAST} fine-tuned models")
    return Weighed(float(np.mean(gaps)), weigh_mean(gaps, 0.0, "model"))


# ---- tables ----


def make_tables(run: Finished, every: Mapping[str, Parted]) -> dict[str, Table]:
    """Makes the tables of the analysis. every: by the label of the measure."""
    rows = []
    for measure, parted in every.items():
        layers = run.maps[measure]
        for label, blocks in parted.models.items():
            names, values = select_block_outputs(layers, layers.places[label])
            steps = average_adjacent_layers(values)
            largest = int((steps.argmin if layers.measure.larger_is_closer else steps.argmax)())
            apart, two = blocks.apart, divide_in_two
            clear = ["yes", say_beyond_walks(apart, two(apart), two)] if blocks.clear else ["no", None]
            numbers = [blocks.groups, blocks.clearness, *clear, blocks.mean, parted.sparsity.get(label)]
            rows.append([measure, label, names[blocks.cut - 1], blocks.cut / len(names), names[largest], *numbers])
    on_measures = []
    for label in dict.fromkeys(label for parted in every.values() for label in parted.models):
        blocks = [of for parted in every.values() if (of := parted.models.get(label)) is not None and of.clear]
        cuts = [each.cut for each in blocks]
        if not cuts:
            on_measures.append([label, None, 0, 0, 0, None])
            continue
        most, there = Counter(cuts).most_common(1)[0]
        near = sum(abs(cut - most) <= 1 for cut in cuts)
        mean = compute_agreement(list(combinations(blocks, 2))) if len(blocks) > 1 else None
        on_measures.append([label, f"{OUTPUT}@{most - 1}", len(cuts), there, near, mean])
    over_seeds = [row for measure, parted in every.items() for row in _list_seed_agreements(measure, parted)]
    by_name = {TABLE: rows, AGREEMENT: on_measures, STABILITY: over_seeds}
    return {name: Table(columns=COLUMNS[name], rows=lines) for name, lines in by_name.items() if lines}


def _list_seed_agreements(measure: str, parted: Parted) -> Iterator[list[Any]]:
    """Lists the mean agreement over pairs of seeds with a boundary, or with groups in either, for every entry that has
    two or more seeds; None where no pair has."""
    for entry in dict.fromkeys(parted.entries.values()):
        of_entry = [blocks for label, blocks in parted.models.items() if parted.entries.get(label) == entry]
        pairs = list(combinations(of_entry, 2))
        if pairs:
            clear = [(a, b) for a, b in pairs if a.clear and b.clear]
            of_segments = [compare_partitions(a.labels, b.labels) for a, b in pairs if have_groups(a.labels, b.labels)]
            means = [compute_agreement(clear) if clear else None, float(np.mean(of_segments)) if of_segments else None]
            yield [measure, entry, len(of_entry), *means]


def select_block_outputs(layers: LayerMap, place: slice) -> tuple[list[str], Square]:
    """The names of a model's block outputs and the values between them, in the order of the network."""
    at = [i for i in range(place.start, place.stop) if read_hook_point(layers.names[i]) == OUTPUT]
    at.sort(key=lambda i: read_block_number(layers.names[i]) or 0)
    return [layers.names[i] for i in at], layers.values[np.ix_(at, at)]


# ---- figures ----

CELL, ROW, NARROWEST, MOST = 0.13, 0.13, 1.0, 20  # inches of a step, of a measure, of a panel; models that are drawn
SOLID: dict[str, Any] = {"linewidth": 2}
DOTTED: dict[str, Any] = {"linewidth": 1, "linestyle": ":"}


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """boundaries: of every model and measure the steps from block to block, and the boundary"""
    yield "boundaries", partial(_draw_block_steps, run)


def _draw_block_steps(run: Finished) -> Any:
    """A panel per model: a row per measure, a column per step from one block to the next, as a share of the largest
    step; a line at the boundary, dotted where it is not clearer than in surrogates or walks."""
    table = run.results.tables[TABLE]
    records = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    models = list(dict.fromkeys(record["model"] for record in records))[:MOST]
    measures = list(dict.fromkeys(record["measure"] for record in records))
    depth = max(
        len(select_block_outputs(run.maps[r["measure"]], run.maps[r["measure"]].places[r["model"]])[0]) for r in records
    )
    width, height = max(1.2, CELL * (depth - 1)), max(0.5, ROW * len(measures))
    figure, axes = make_panels(
        len(models), count_columns(len(models)), width, height, gaps=(0.15, 0.25), least=NARROWEST
    )
    name_panels(axes, models)
    image: Any = None
    for model, panel, (first, lowest) in zip(models, axes, find_outer_panels(axes), strict=True):
        shown = np.full((len(measures), depth - 1), np.nan)
        for record in (record for record in records if record["model"] == model):
            layers, row = run.maps[record["measure"]], measures.index(record["measure"])
            names, values = select_block_outputs(layers, layers.places[model])
            steps = convert_to_distances(values, layers.measure.larger_is_closer).diagonal(1)
            shown[row, : len(steps)] = steps / steps.max()
            cut = names.index(record["boundary after"])
            clear = record.get(BEYOND_WALKS, record["clearer than without groups"])  # runs of before have no walks
            style = SOLID if clear == "yes" else DOTTED
            panel.plot([cut, cut], [row - 0.5, row + 0.5], color=COLOURS[1], **style)
        image = panel.imshow(
            shown, cmap="Greys", vmin=0, vmax=1, aspect="auto", extent=(-0.5, depth - 1.5, len(measures) - 0.5, -0.5)
        )
        panel.set_yticks(range(len(measures)), measures if first else [], fontsize=6.5, parse_math=False)
        panel.set_xticks(range(0, depth - 1, 1 if depth < 9 else 2))
        panel.tick_params(labelsize=6.5, length=2, labelbottom=lowest)
    figure.supxlabel("from this block to the next", fontsize=8, y=-0.22 / figure.get_figheight(), va="top")
    add_colour_bar(figure, image, "step, of the largest")
    names = {"boundary": SOLID, "no clearer than in surrogates or walks": DOTTED}
    handles = [axes[-1].plot([], [], color=COLOURS[1], label=name, **style)[0] for name, style in names.items()]
    below = -0.42 / figure.get_figheight()
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, below), ncols=2, fontsize=7, frameon=False)
    set_headline(figure, "Where a model changes most from block to block")
    return figure


@analysis(studies=("similarity",), figures=draw_figures, within=True)
def boundaries(run: Finished, options: Boundaries, claims: Sequence[Claim]) -> Part:
    sparsity = {
        label: metrics.get("sparsity", 0.0)
        for label, identity in run.manifest["models"].items()
        if (metrics := identity.get("metrics"))
    }
    entries = {label: about.entry for label, about in run.models.items() if about.entry}
    every: dict[str, Parted] = {}
    for label, layers in run.maps.items():
        divided = {
            model: find_model_blocks(select_block_outputs(layers, place)[1], layers.measure.larger_is_closer)
            for model, place in layers.places.items()
            if _count_block_outputs(layers.names[place]) >= FEWEST
        }
        models = {model: blocks for model, blocks in divided.items() if blocks is not None}
        every[label] = Parted(models=models, base=run.base, sparsity=sparsity, entries=entries)
    by_name = {run.maps[label].measure.name: parted for label, parted in every.items()}
    verdicts = [
        each.verdict(label, parted) for label, parted in every.items() for each in select_claims(claims, "blocks")
    ]
    verdicts += [each.verdict("all measures", by_name) for each in select_claims(claims, "measures")]
    return Part(tables=make_tables(run, every), claims=verdicts)
