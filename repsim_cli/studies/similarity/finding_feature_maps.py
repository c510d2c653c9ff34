"""How far each layer of a convolutional network is from the one before, under the feature maps of one image (Gao et al.
2024, figures 7 and 18)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations, groupby
from textwrap import fill
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.figures.frame import COLOURS, repeat_values
from repsim_cli.figures.heatmap import TIGHT
from repsim_cli.figures.layout import find_available_width
from repsim_cli.figures.panels import set_headline
from repsim_cli.figures.texts import shorten
from repsim_cli.findings.analysis import Finished, Job, LayerMap, Part, Planned, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import FEWEST as LEAST
from repsim_cli.findings.evidence import (
    FLIPS,
    LEVEL,
    ROUNDING,
    log_of,
    weigh_by_sign_test,
    weigh_mean,
    weigh_mean_difference,
)
from repsim_cli.findings.layers import order_layers, read_block_number, read_hook_point
from repsim_cli.findings.partitions import (
    FEWEST,
    Square,
    find_spectral_clusters,
)
from repsim_cli.findings.sub_networks import SubNetworks, find_sub_networks
from repsim_cli.findings.walks import require_beyond_walks
from repsim_cli.runs.content import FEATURE_MAPS, Matrix

MEASURE = "gromov_wasserstein"  # the only measure under which the publication divides the network
FAMILY = "resnet9"
# where the publication sees changes: 2.ReLU, 4.Conv2d, 4.ReLU, 7.Conv2d
PUBLISHED = ("relu@2", "conv@4", "relu@4", "conv@7")


@dataclass(frozen=True, kw_only=True)
class FeatureMaps:
    """A strip of feature maps of one image, over the distance of every layer from the one before.

    label: the class of the image, which is the first of its class; null: the first class.
    """

    label: str | None = None

    def check(self, planned: Planned) -> None:
        depths = {model: len(about.layers) for model, about in planned.models.items()}
        model = min(depths, key=lambda model: depths[model])
        if depths[model] < FEWEST:
            raise BadInput(f"{FEWEST} layers of a model are needed, got {depths[model]} of '{model}'; read more")


# ---- claims ----


@dataclass(frozen=True)
class Network:
    """The layers of a ResNet9, in the order of the network, and their distances."""

    names: Sequence[str]
    values: Square

    @property
    def steps(self) -> Float[np.ndarray, " steps"]:
        """The distance from each layer to the next, both directions averaged."""
        return ((self.values + self.values.T) / 2).diagonal(1)

    @cached_property
    def clusters(self) -> int:
        return find_spectral_clusters(self.values, False, count=None).count


Networks = Sequence[Network]  # seeds of one recipe
NEEDS = "needs distances under gromov_wasserstein of"
FIVE, THREE = f"{NEEDS} {FLIPS} trained ResNet9", f"{NEEDS} {LEAST} trained and {LEAST} random ResNet9"


@claim(
    "Gao et al. 2024, section 5.4, figure 18",
    statistic="share of the trained ResNet9 with three or four spectral clusters",
    threshold=0.5,
    unit="seed",
)
def trained_resnet_has_three_or_four_sub_networks(trained: Networks, random: Networks) -> Weighed | Untestable:
    """GW distance shows clear division of 3 or 4 subnetworks."""
    if not trained:
        return Untestable(FIVE)
    so = sum(each.clusters in (3, 4) for each in trained)
    evidence = weigh_by_sign_test(so, len(trained), "seed")
    if evidence.above <= LEVEL:
        evidence = require_beyond_walks(evidence, [x.values for x in trained], lambda count: count in (3, 4))
    return Weighed(so / len(trained), evidence)


@claim(
    "Gao et al. 2024, appendix N, figure 18",
    statistic="share of the random ResNet9 that are one spectral cluster",
    threshold=0.5,
    unit="seed",
)
def random_resnet_has_no_sub_networks(trained: Networks, random: Networks) -> Weighed | Untestable:
    """Models that are not trained generally do not show clear sub-network structures."""
    if not trained or not random:
        return Untestable(f"{FIVE}, and as many random ones")
    whole, parted = (sum(each.clusters == 1 for each in random), sum(each.clusters > 1 for each in trained))
    evidence, other = weigh_by_sign_test(whole, len(random), "seed"), weigh_by_sign_test(parted, len(trained), "seed")
    if max(evidence.above, other.above) <= LEVEL:
        other = require_beyond_walks(other, [x.values for x in trained], lambda count: count > 1)
    how = f"{evidence.how}; by the same rule {parted} of {len(trained)} trained ones have several clusters"
    smallest = max(evidence.smallest, other.smallest)
    return Weighed(
        whole / len(random), replace(evidence, above=max(evidence.above, other.above), how=how, smallest=smallest)
    )


@claim(
    "Gao et al. 2024, appendix N, figure 18",
    statistic="log of the mean distance of a layer from the one before: trained minus random ResNet9, mean over seeds",
    threshold=0.0,
    unit="seed",
)
def training_separates_the_layers(trained: Networks, random: Networks) -> Weighed | Untestable:
    """The trained models show differences across layers."""
    if not trained or not random or len({tuple(each.names) for each in [*trained, *random]}) > 1:
        return Untestable(f"{THREE}, read at the same layers")
    after, before = ([log_of(each.steps.mean()) for each in side] for side in (trained, random))
    return Weighed(float(np.mean(after) - np.mean(before)), weigh_mean_difference(after, before, "seed"))


@claim(
    "Gao et al. 2024, section 5.4, figure 7",
    statistic="mean rank, from 0 to 1, of the distances into 2.ReLU, 4.Conv2d, 4.ReLU and 7.Conv2d among all steps, "
    "trained minus random ResNet9, mean over seeds",
    threshold=0.75,
    unit="seed",
)
def trained_resnet_changes_at_the_published_layers(trained: Networks, random: Networks) -> Weighed | Untestable:
    """2.ReLU introduces the first notable differences, shapes blur at 4.Conv2d and are nearly absent at 4.ReLU, and
    7.Conv2d shows significant changes."""
    if not trained or not set(PUBLISHED) <= set(trained[0].names[1:]):
        return Untestable(f"{NEEDS} {LEAST} trained ResNet9, read at {', '.join(PUBLISHED)}")
    same = [each for each in random if each.names == trained[0].names]
    fresh = np.mean([each.steps for each in same], axis=0) if same else 0.0  # the untrained twins
    every = np.array([each.steps - fresh for each in trained if each.names == trained[0].names])
    ranks = every.argsort(1, kind="stable").argsort(1) / (every.shape[1] - 1)
    at = [trained[0].names.index(name) - 1 for name in PUBLISHED]
    means = ranks[:, at].mean(1)
    # seeds may share large steps that are anywhere: few other choices of as many steps do as well
    chosen = np.array(list(combinations(range(every.shape[1]), len(at))))
    shared = float((ranks.mean(0)[chosen].mean(1) >= means.mean() - ROUNDING).mean())
    over = weigh_mean(means, 0.75, "seed", 1 / (len(at) * (every.shape[1] - 1)))
    note = "beyond the random ones" if same else "without random ones to subtract"
    evidence = replace(over, above=max(over.above, shared), how=f"{over.how}, {note}")
    return Weighed(float(means.mean()), evidence)


def select_resnets(run: Finished, layers: LayerMap, trained: bool) -> list[Network]:
    """The ResNet9 with trained, or with random, weights."""
    found = []
    for model, place in layers.places.items():
        if run.models[model].family == FAMILY and run.models[model].trained == trained:
            names = layers.names[place]
            order = order_layers(names)
            if len(names) >= FEWEST:
                found.append(Network([names[i] for i in order], layers.values[place, place][np.ix_(order, order)]))
    return found


# ---- figures ----

# inches; a ResNet9 fits on a page
CELL, ROW = 0.19, 0.12  # side of a feature map, and at least the height of a row of them
MOST = 20  # characters of a model's name
PANEL, GAP, LEFT = 0.5, 0.15, 1.2  # height of a panel of distances, space between panels, room for names
NAMES = 0.6  # room for the names of layers
BARS = 0.8  # of the step between two layers


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """feature-maps: of all models"""
    if kept := run.select_kind(FEATURE_MAPS):
        yield "feature-maps", partial(_draw_feature_maps, run, kept)


def _draw_feature_maps(run: Finished, kept: Sequence[Matrix]) -> Any:
    """Draws a row of maps per model, and below it, per measure, the distance of every layer from the one before."""
    from matplotlib.figure import Figure

    order = order_layers(kept[0].columns.layers)
    names = [kept[0].columns.layers[i] for i in order]
    same = [matrix for matrix in kept if sorted(matrix.columns.layers) == sorted(names)]
    label = run.results.analyses["feature_maps"]["options"]["label"]
    image = 0 if label is None else kept[0].rows.layers.index(label)
    limit, maps = find_available_width(), len(run.maps)
    cell = CELL if limit is None else min(CELL, (limit - LEFT) / (len(names) + 1))
    wide = (len(names) + 1) * cell
    width, row_height = LEFT + wide, max(cell, ROW)
    height = len(same) * row_height + NAMES + maps * (PANEL + GAP)
    figure = Figure(figsize=(width, height))

    def place(bottom: float, high: float, left: float = LEFT, across: float = wide) -> Any:
        return figure.add_axes((left / width, bottom / height, across / width, high / height))

    blocks = [len(list(group)) for _, group in groupby(names, key=read_block_number)]
    ends = np.cumsum(blocks)[:-1]
    several = len(blocks) > 1 and None not in map(read_block_number, names)
    shown = ["image", *(f"{read_block_number(name)}.{read_hook_point(name)}" if several else name for name in names)]
    colours = dict(zip((matrix.columns.model for matrix in same), repeat_values(COLOURS, len(same)), strict=True))
    for row, matrix in enumerate(same):
        bottom = height - (row + 1) * row_height
        pixels = run.array(matrix.details["images"])[image]
        planes = [pixels, *(_split_into_planes(run.array(matrix.values)[image], matrix)[name] for name in names)]
        for column, plane in enumerate(planes):
            axes = place(bottom + 0.005, row_height - 0.01, LEFT + column * cell + 0.005, cell - 0.01)
            axes.imshow(plane if column else pixels.squeeze(), cmap=None if column else "gray")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if column == 0:
                axes.set_ylabel(shorten(matrix.columns.model, MOST), rotation=0, ha="right", va="center", fontsize=7,
                                color=colours[matrix.columns.model], parse_math=False)  # fmt: skip
    top = height - len(same) * row_height
    below = place(top, row_height)
    below.set(frame_on=False, yticks=[], xlim=(-1.5, len(names) - 0.5))
    step = max(1, int(np.ceil(TIGHT / cell)))
    at = np.arange(-1, len(names))[::step]
    below.set_xticks(at, shown[::step], rotation=90, fontsize=7, parse_math=False)
    below.tick_params(length=0, pad=2)
    panels = [place(top - NAMES - (i + 1) * (PANEL + GAP) + GAP, PANEL) for i in range(maps)]
    for panel, layers in zip(panels, run.maps.values(), strict=True):
        _draw_layer_distances(panel, layers, names, colours)
        for end in ends if several else ():
            panel.axvline(end - 0.5, color="0.8", linewidth=0.8, zorder=0)
    rows = next(iter(run.maps.values())).measure.estimate["rows"] if run.maps else 0
    what = f"first image of class {kept[0].rows.layers[image]}; maps: mean over channels, each on its own scale"
    bars = f"bars: how far a layer is from the one before ({rows:,} images)"
    marks = "triangles: where a segment begins, hollow where segments are no clearer than a random walk's"
    set_headline(figure, "What the layers see of an image, and where they change", what, f"{bars}; {marks}")
    return figure


def _split_into_planes(values: Float[np.ndarray, " cells"], matrix: Matrix) -> dict[str, Float[np.ndarray, "h w"]]:
    """The map of every layer of one image."""
    shapes = matrix.about["shapes"]
    parts = np.split(values, np.cumsum([height * wide for height, wide in shapes])[:-1])
    return {name: part.reshape(shape) for name, part, shape in zip(matrix.columns.layers, parts, shapes, strict=True)}


def _draw_layer_distances(panel: Any, layers: LayerMap, names: Sequence[str], colours: Mapping[str, str]) -> None:
    """Draws the distance of every layer from the one before as a bar between both, a colour per model."""
    from matplotlib.transforms import ScaledTranslation

    thick, larger_is_closer = BARS / len(colours), layers.measure.larger_is_closer
    squares = [_average_directions(layers, model, names) for model in colours]
    most = layers.measure.card["bounds"][1]
    most = float(np.nanmax(layers.values)) if most is None else float(most)
    steps = [most - square.diagonal(1) if larger_is_closer else square.diagonal(1) for square in squares]
    highest = max(float(line.max()) for line in steps)
    power = int(np.floor(np.log10(highest))) if 0 < highest < 0.01 else 0
    for number, (square, line, colour) in enumerate(zip(squares, steps, colours.values(), strict=True)):
        left = np.arange(len(line)) + 0.5 + (number - (len(colours) - 1) / 2) * thick
        panel.bar(left, line / 10.0**power, width=thick, color=colour)
        found = find_sub_networks(square, names, larger_is_closer, SubNetworks(method="segments"), None)
        begun = np.flatnonzero(np.diff(found.groups["segments"].labels))
        fill_style = "full" if found.walks.get("segments") == "yes" else "none"
        panel.plot(begun + 0.5, np.full(len(begun), 1.0 + 0.1 * number), "v", color=colour, markersize=4,
                   fillstyle=fill_style, transform=panel.get_xaxis_transform(), clip_on=False, zorder=3)  # fmt: skip
    panel.set_xlim(-1.5, len(names) - 0.5)
    panel.set_ylim(0, None)
    panel.set_xticks([])
    panel.locator_params(axis="y", nbins=3)
    panel.tick_params(axis="y", labelsize=6, length=2)
    panel.spines[["top", "right"]].set_visible(False)
    label = layers.measure.card["label"]
    said = f"{most:.3g} − {label}" if larger_is_closer else label
    said = fill(f"{said}, 1e{power}" if power else said, 18)
    panel.set_ylabel(said, fontsize=7, rotation=0, ha="right", va="center", parse_math=False)
    # the same place whatever the ticks and the width
    beside = ScaledTranslation(-0.32, 0, panel.figure.dpi_scale_trans)
    panel.yaxis.set_label_coords(0, 0.5, transform=panel.transAxes + beside)


def _average_directions(layers: LayerMap, model: str, names: Sequence[str]) -> Square:
    """The values among these layers of a model, both directions averaged."""
    place = layers.places[model]
    at = [layers.names[place].index(name) for name in names]
    values = layers.values[place, place][np.ix_(at, at)]
    return (values + values.T) / 2


@analysis(studies=("similarity",), figures=draw_figures, within=True, needs="feature_maps")
def feature_maps(run: Finished, options: FeatureMaps, claims: Sequence[Claim]) -> Part:
    kept = run.select_kind(FEATURE_MAPS)
    if not kept:
        raise BadInput("the run has no feature maps; run it again with analyses.feature_maps={}")
    classes = kept[0].rows.layers
    if options.label is not None and options.label not in classes:
        raise BadInput(f"label: no image of this class, got '{options.label}'; {did_you_mean(options.label, classes)}")
    verdicts = []
    for label, layers in run.maps.items():
        if layers.measure.name == MEASURE:
            both = [select_resnets(run, layers, trained) for trained in (True, False)]
            verdicts += [each.verdict(label, *both) for each in claims]
    absent = f"{NEEDS} a ResNet9"
    return Part(claims=verdicts or [each.untestable(MEASURE, absent) for each in claims])
