"""How many latents two dictionaries of a layer share, and what one code of several models reconstructs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.base.plain import slug
from repsim_cli.base.settings import Fraction
from repsim_cli.engine.proportions import compute_wilson_interval
from repsim_cli.figures.colours import choose_colours
from repsim_cli.figures.frame import add_legend_beside, choose_shades
from repsim_cli.figures.heatmap import draw_heatmap
from repsim_cli.figures.lines import draw_light_grid
from repsim_cli.figures.panels import count_columns, list_models, make_panels, set_headline
from repsim_cli.findings.analysis import FEW, Finished, Job, Part, analysis, select_claims
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import FEWEST, LEVEL, weigh_by_jackknife, weigh_mean
from repsim_cli.runs.content import CROSS, MATCHED, SPACES, Matrix, Table

OfPairs = Mapping[tuple[str, str], Sequence[float]]  # by pair of models, of every layer or pair of layers

PANEL = (2.2, 2.0)  # inches
SHARED = ["model", "layer", "dictionaries", "latents", "mean cosine, decoder", "mean cosine, encoder",
          "shared by decoder", "shared by encoder", "shared", "shared: low", "shared: high", "chance: by decoder",
          "chance: shared", "p: by decoder", "p: shared"]  # fmt: skip
PUBLISHED = 0.7  # cosine from which latents are shared
CODES = ["layer", "encoded", "decoded", "R²", "R² of the best affine map"]


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """The share of latents that two dictionaries share: by decoder or by encoder, where latents that are matched one to
    one have a cosine of at least `cosine`, and by both, where they also have the same partner; with a 95 % interval
    over latents. As chance, the same with the second dictionary mirrored in random principal axes of the rows: the mean
    over 19 mirrors, and p of as large a share in one of them.

    cosine: from which matched latents are shared.
    """

    cosine: Fraction = 0.7


def compute_matched_shares(values: Float[np.ndarray, "sides m"], cosine: float) -> list[float]:
    """Computes the share of latents that are matched by decoder, by encoder, and by both with the same partner."""
    decoder, encoder = values[0] >= cosine, values[1] >= cosine
    return [float(x.mean()) for x in (decoder, encoder, decoder & encoder & (values[2] > 0))]


def make_shared_row(matrix: Matrix, values: Float[np.ndarray, "sides m"], cosine: float) -> list[Any]:
    count = values.shape[1]
    shared, *mirrored = (compute_matched_shares(each, cosine) for each in values.reshape(-1, 3, count))
    names, means = " and ".join(matrix.about["dictionaries"]), values[:2].mean(1).tolist()
    interval = compute_wilson_interval((np.arange(count) < round(count * shared[2])).astype(float), np.arange(count))
    beside: list[float | None] = [None] * 4
    if len(mirrored) > 1:  # a run of before has random directions, once
        chance = np.array(mirrored)
        p = (1 + (chance >= np.array(shared)).sum(0)) / (1 + len(chance))
        beside = [float(each[side]) for each in (chance.mean(0), p) for side in (0, 2)]
    return [matrix.rows.model, matrix.about["layer"], names, count, *means, *shared, *interval, *beside]


# ---- claims ----


@claim(
    "Paulo and Belrose 2025",
    statistic="share of latents that two seeds share by decoder and encoder: mean over models",
    threshold=0.5,
    unit="model",
    published="below",
    on="seeds",
)
def seeds_share_few_latents(shared: Mapping[str, Sequence[float]]) -> Weighed | Untestable:
    """Sparse autoencoders that differ in their seed alone learn different features."""
    if not shared:
        return Untestable(f"needs dictionaries of two seeds of {FEWEST} models")
    means = [float(np.mean(each)) for each in shared.values()]
    return Weighed(float(np.mean(means)), weigh_mean(means, 0.5, "model"))


@claim(
    "Lan et al. 2024",
    statistic="RSA of decoder rows of paired features minus that of random pairings: mean over pairs of models",
    threshold=0.0,
    unit="model",
    on="spaces",
)
def feature_spaces_are_alike(spaces: OfPairs) -> Weighed | Untestable:
    """Feature spaces of different models are similar under transformations that keep distances."""
    if not spaces:
        return Untestable(f"needs layers of {FEWEST} models with features that correlate")
    return _average_over_pairs(spaces)


@claim(
    "Thasarathan et al. 2025",
    statistic="R² of held-out rows of a model from the shared code of another: mean over pairs of models and layers",
    threshold=0.0,
    unit="model",
    on="codes",
)
def one_code_serves_other_models(values: OfPairs) -> Weighed | Untestable:
    """The code of one model reconstructs activations of another."""
    if not values:
        return Untestable(f"needs a dictionary of {FEWEST} models (options.universal)")
    return _average_over_pairs(values)


def _average_over_pairs(values: OfPairs) -> Weighed:
    """The mean over pairs of models, which share models: one model is left out at a time."""

    def mean(left_out: str = "") -> float:
        rest = [float(np.mean(each)) for pair, each in values.items() if left_out not in pair]
        return float(np.mean(rest)) if rest else float("nan")

    models = dict.fromkeys(model for pair in values for model in pair)
    return Weighed(mean(), weigh_by_jackknife(mean(), 0.0, [mean(model) for model in models], "model"))


def read_seed_shares(run: Finished) -> dict[str, list[float]]:
    """Reads for each model the share of latents that two seeds share, one number per pair of seeds and layer."""
    models: dict[str, list[float]] = {}
    for matrix in run.select_kind(MATCHED):
        if all(name.startswith("seed ") for name in matrix.about["dictionaries"]):
            models.setdefault(matrix.rows.model, []).append(
                compute_matched_shares(run.array(matrix.values)[:3], PUBLISHED)[2]
            )
    return models


def read_rsa_excess(run: Finished) -> dict[tuple[str, str], list[float]]:
    """Reads for each pair of models by how much RSA exceeds that of random pairings, one number per pair of layers."""
    if SPACES not in run.results.tables:
        return {}
    table, pairs = run.results.tables[SPACES], {}
    measured, null = (map(float, table.column(f"rsa{of}")) for of in ("", " of random pairings"))
    for row, value, chance in zip(table.rows, measured, null, strict=True):
        pairs.setdefault((row[0], row[2]), []).append(value - chance)
    return pairs


# ---- figures ----


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """shared-latents, feature-spaces-MODEL-MODEL of models with several layers, cross-reconstruction-LAYER"""
    if matrices := run.select_kind(MATCHED):
        yield "shared-latents", partial(_draw_matched, run, matrices, run.results.analyses["features"]["options"])
    rows = run.results.tables[SPACES].rows if SPACES in run.results.tables else []
    for pair in dict.fromkeys((row[0], row[2]) for row in rows):
        of_pair = [row for row in rows if (row[0], row[2]) == pair]
        if len(of_pair) > 1:
            yield (
                slug("feature-spaces", *pair),
                partial(_draw_space_similarity, run.results.tables[SPACES], of_pair),
            )
    crosses = run.select_kind(CROSS)
    for matrix in crosses if whole else crosses[-FEW:]:
        yield slug("cross-reconstruction", matrix.about["layer"]), partial(_draw_cross_reconstruction, run, matrix)


def _draw_matched(run: Finished, matrices: Sequence[Matrix], options: Mapping[str, Any]) -> Any:
    """The share of latents of at least each cosine of decoder rows; a panel per model, a line per layer, the mean over
    pairs of dictionaries. Dotted: a mirrored dictionary."""
    models = list(dict.fromkeys(matrix.rows.model for matrix in matrices))
    figure, axes = make_panels(len(models), count_columns(len(models)), *PANEL, gaps=(0.4, 0.7))
    at = np.linspace(0, 1, 201)
    names = list(dict.fromkeys(matrix.about["layer"] for matrix in matrices))
    colours = dict(zip(names, choose_shades(len(names)), strict=True))
    for number, (panel, model) in enumerate(zip(axes, models, strict=True)):
        of_model = [matrix for matrix in matrices if matrix.rows.model == model]
        for layer in dict.fromkeys(matrix.about["layer"] for matrix in of_model):
            arrays = [run.array(matrix.values) for matrix in of_model if matrix.about["layer"] == layer]
            for side, style in ((0, "-"), (3, ":")):
                line = np.mean([(values[side][:, None] >= at).mean(0) for values in arrays], axis=0)
                panel.plot(at, line, color=colours[layer], ls=style, linewidth=1.3)
        panel.axvline(options["cosine"], color="0.4", linewidth=0.8)
        place = {"transform": panel.get_xaxis_transform(), "ha": "right", "va": "top", "color": "0.4"}
        panel.text(options["cosine"], 0.99, "shared ", fontsize=7, **place)
        panel.set_title(model, loc="left", fontsize=9, parse_math=False)
        panel.set_xlabel("cosine of decoder directions", fontsize=8)
        panel.tick_params(labelsize=7, labelleft=number % count_columns(len(models)) == 0)
        panel.set_ylim(0, 1.02)
        draw_light_grid(panel)
    axes[0].set_ylabel("share of latents of at least this", fontsize=8)
    last = axes[min(len(axes), count_columns(len(models))) - 1]
    for layer in names:
        last.plot([], [], color=colours[layer], label=layer)
    last.plot([], [], color="0.4", ls=":", label="mirrored at random")
    add_legend_beside(last)
    set_headline(
        figure,
        f"{list_models(models)}: how many latents two dictionaries share",
        "dictionaries of other seeds, mean over pairs",
    )
    return figure


def _draw_space_similarity(table: Table, rows: Sequence[Sequence[Any]]) -> Any:
    """RSA of the paired features of each layer of a model (rows) and of another (columns), crossed out where random
    pairings reach it too."""
    at = {name: table.columns.index(name) for name in ("rsa", "rsa p")}
    layers, others = (list(dict.fromkeys(row[i] for row in rows)) for i in (1, 3))
    values, p = (np.full((len(layers), len(others)), np.nan) for _ in at)
    for row in rows:
        place = layers.index(row[1]), others.index(row[3])
        values[place], p[place] = row[at["rsa"]], row[at["rsa p"]]
    figure, _ = draw_heatmap(
        values,
        layers,
        others,
        title=f"{rows[0][0]} (rows) and {rows[0][2]} (columns): how alike paired features lie",
        bar_label="RSA of decoder directions (crossed out: p > 0.05)",
        limits=(min(0.0, float(np.nanmin(values))), max(float(np.nanmax(values)), 0.05)),
        colours=choose_colours(),
        form="{:.2f}",
        crossed=~(p <= LEVEL),
    )
    return figure


def _draw_cross_reconstruction(run: Finished, matrix: Matrix) -> Any:
    values = run.array(matrix.values)
    figure, _ = draw_heatmap(
        values,
        matrix.rows.layers,
        matrix.columns.layers,
        title=f"What the code of one model says of another\n{matrix.about['layer']}: encoded (rows), decoded (columns)",
        bar_label=matrix.label,
        limits=(min(0.0, float(values.min())), 1.0),
        colours=choose_colours(),
        form="{:.2f}",
    )
    return figure


@analysis(studies=("features",), unasked=lambda planned: True, figures=draw_figures)
def features(run: Finished, options: FeatureOptions, claims: Sequence[Claim]) -> Part:
    shared = [make_shared_row(matrix, run.array(matrix.values), options.cosine) for matrix in run.select_kind(MATCHED)]
    codes = [
        [matrix.about["layer"], encoded, decoded, float(value), float(linear)]
        for matrix in run.select_kind(CROSS)
        for encoded, row, of_maps in zip(
            matrix.rows.layers, run.array(matrix.values), run.array(matrix.details["linear"]), strict=True
        )
        for decoded, value, linear in zip(matrix.columns.layers, row, of_maps, strict=True)
    ]
    tables = {"shared latents": Table(columns=SHARED, rows=shared)} if shared else {}
    tables |= {"cross-reconstruction": Table(columns=CODES, rows=codes)} if codes else {}
    across: dict[tuple[str, str], list[float]] = {}
    for _, encoded, decoded, value, _ in codes:
        if encoded != decoded:
            across.setdefault((encoded, decoded), []).append(value)
    spaces = read_rsa_excess(run)
    given = {
        "seeds": {model: of for model, of in read_seed_shares(run).items() if model not in run.untrained},
        "spaces": {pair: of for pair, of in spaces.items() if run.untrained.isdisjoint(pair)},
        "codes": {pair: of for pair, of in across.items() if run.untrained.isdisjoint(pair)},
    }
    verdicts = [
        each.verdict("dictionaries", values) for on, values in given.items() for each in select_claims(claims, on)
    ]
    return Part(tables=tables, claims=verdicts)
