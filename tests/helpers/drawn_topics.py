"""Runs in memory, with few and many layers and models and with short and long names, for figures of every topic."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations_with_replacement, pairwise
from typing import Any

import numpy as np

from repsim_cli.findings import boundaries, distances, groups, layer_identification, multiples, sub_network_figures
from repsim_cli.findings.analysis import Finished, LayerMap
from repsim_cli.runs.content import FEATURE_MAPS, Axis, Band, Curve, Facts, Matrix, Measured, Results, Side, Table
from repsim_cli.studies.barycentre import finding as barycentre
from repsim_cli.studies.barycentre.columns import FROM_COLUMNS, FROM_SHAPE, OF_PLACES, PLACE_COLUMNS
from repsim_cli.studies.classifiers import finding_variants as variants
from repsim_cli.studies.grounding import finding as grades
from repsim_cli.studies.modular_sums import finding as modular_sums
from repsim_cli.studies.probes import finding as probes
from repsim_cli.studies.similarity import finding_feature_maps as feature_maps
from repsim_cli.studies.similarity import finding_fewer_rows as fewer_rows
from repsim_cli.studies.similarity import finding_robustness as robustness
from repsim_cli.studies.stitching import drawing as stitching
from repsim_cli.studies.training_run import finding_convergence as convergence
from repsim_cli.studies.tuned import finding as tuned
from repsim_cli.studies.universality import finding as universality
from repsim_cli.studies.universality.rule import UNCLEAR
from repsim_cli.studies.views import finding_couplings as couplings
from repsim_cli.studies.views import finding_histograms as histograms
from repsim_cli.studies.views import finding_neighbours as neighbours

CARD = {
    "label": "CKA (unbiased)", "larger_is_closer": True, "bounds": [None, 1.0], "symmetric": True, "is_metric": False,
}  # fmt: skip
ESTIMATE = {"kind": "per_batch", "batches": 31, "rows": 31744}
LONG = "ROBERTA_large_finetuned_on_mnli_seed"


@dataclass(frozen=True, kw_only=True)
class InMemory(Finished):
    """A run whose arrays are not in files."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def array(self, path: str) -> np.ndarray:
        return self.arrays[path]


def named(count: int, stem: str = "m") -> list[str]:
    return [f"{stem}_{i}" for i in range(count)]


def layers(count: int, points: tuple[str, ...] = ("resid_post",)) -> list[str]:
    return [f"{point}@{i}" for i in range(count) for point in points]


def in_memory(arrays: Mapping[str, np.ndarray], manifest: Mapping[str, Any] | None = None, **results: Any) -> InMemory:
    return InMemory(folder=None, manifest=manifest or {}, results=Results(study="made", **results), arrays=arrays)  # type: ignore[arg-type]


def measured(
    models: list[str],
    names: list[str],
    scale: float = 1.0,
    shift: float = 0.0,
    label: str = "cka_unbiased",
    card: Mapping[str, Any] = CARD,
) -> tuple[Measured, dict[str, np.ndarray], dict[str, Any]]:
    """A measure of all pairs of these models, the arrays of its matrices, and what the manifest says of the models."""
    rng = np.random.default_rng(0)
    arrays = {f"{label} {a} {b}": scale * rng.uniform(size=(len(names),) * 2) + shift
              for a, b in combinations_with_replacement(models, 2)}  # fmt: skip
    matrices = [
        Matrix(rows=Side(model=a, layers=names), columns=Side(model=b, layers=names), values=f"{label} {a} {b}")
        for a, b in combinations_with_replacement(models, 2)
    ]
    facts = {
        model: Facts(kind="live", family="llama", layers=names, widths=[8] * len(names)).__dict__ for model in models
    }
    whole = Measured(name=label, label=label, settings={}, estimate=ESTIMATE, card=dict(card), matrices=matrices)
    return whole, arrays, {"models": {key: {} for key in models}, "facts": facts, "seed": 0}


def boxes(models: int, stem: str, kinds: int) -> Any:
    """Distances between models of so many groups."""
    members = {f"{stem} group {g}": [f"{stem}{g}_{i}" for i in range(models // kinds)] for g in range(kinds)}
    count = sum(map(len, members.values()))
    values = np.abs(np.random.default_rng(0).normal(size=(count, count)))
    side = Side(model="models", layers=[model for group in members.values() for model in group])
    about = {"distance": "cka_unbiased resid_post", "layers": "arccos CKA (unbiased)"}
    matrix = Matrix(rows=side, columns=side, values="a", label="distance (smaller is closer)", about=about)
    run = in_memory({"a": (values + values.T) * (1 - np.eye(count))}, {"groups": members})
    return distances._draw_group_distances(run, matrix)


def of_groups(kinds: int, stem: str, count: int, scale: float = 1.0) -> Any:
    line = (scale * np.linspace(1, -0.2, count)).tolist()
    band = Band(low=[x - 0.1 * scale for x in line], high=[x + 0.1 * scale for x in line], of="95 % over models")
    every = [
        Curve(
            x=Axis(name="layer"),
            y=Axis(name="CKA (unbiased)"),
            at=layers(count),
            lines={f"pair {i}": line for i in range(3)},
            mean=line,
            bands={"models": band},
            about={"pairs_of": (f"{stem} {i}", f"{stem} {i + 1}"), "quantity": "cka_unbiased", "point": "resid_post",
                   "shares": np.linspace(0, 1, count).tolist()},
        )
        for i in range(kinds)
    ]  # fmt: skip
    return groups._draw_by_depth(every)


def plans(model: str, pairs: int, starts: tuple[str, ...], classes: list[str] | None, scale: float = 1.0) -> Any:
    rows, names = 16, layers(pairs + 1)
    arrays = {"a": np.eye(rows)[::-1] / rows}
    every = [
        Matrix(
            rows=Side(model=a, layers=list(map(str, range(rows)))),
            columns=Side(model=b, layers=list(map(str, range(rows)))),
            values="a",
            about={"model": model, "starts": start, "objective": scale * 0.0123},
        )
        for a, b in pairwise(names)
        for start in starts
    ]
    run = in_memory(arrays, about={"batch": {"classes": classes, "rows": list(range(rows))}})
    return couplings._draw_couplings(run, model, every[: couplings.MOST])


def shifted(model: str, count: int, scale: float = 1.0) -> Any:
    counts = np.random.default_rng(0).integers(0, 100, size=(count, 20))
    matrix = Matrix(
        rows=Side(model=model, layers=layers(count)), columns=Side(model="bins", layers=[]), values="a",
        details={"edges": "e"}, about={"scale": "mean"},
    )  # fmt: skip
    return histograms._draw_histograms(
        in_memory({"a": counts, "e": scale * np.linspace(0, 3, 21)}), matrix, range(count)
    )


def lines_to_neighbours(model: str, count: int) -> Any:
    rows, classes = 24, ["negative sentiment", "positive sentiment"]
    rng = np.random.default_rng(0)
    matrix = Matrix(
        rows=Side(model=model, layers=layers(count)), columns=Side(model="rows", layers=list(map(str, range(rows)))),
        values="p", details={neighbours.PLANE: "n"}, about={"samples": [1, 5, 9], "k": 5},
    )  # fmt: skip
    arrays = {"p": rng.normal(size=(count, rows, 2)), "n": rng.integers(0, rows, size=(count, rows, 5))}
    batch = {"classes": [classes[i % 2] for i in range(rows)], "rows": list(range(rows))}
    if count > 2:  # the texts of the rows, as long and hostile as texts are
        batch["texts"] = [
            f"$x_{i}$ \x1b[2J the painter that the pilots blamed near the weavers laughed" for i in range(rows)
        ]
    return neighbours._draw_neighbour_lines(in_memory(arrays, about={"batch": batch}), matrix, range(count))


def graded(measures: list[str], values: int) -> Any:
    verdicts = list(universality.MARKERS)
    rows = [
        [measure, f"factor_{v % 5}", f"{v}e-4", None if verdicts[(i + v) % 5] == UNCLEAR else (i + v) % 5 / 4,
         0.2, verdicts[(i + v) % 5]]
        for i, measure in enumerate(measures)
        for v in sorted(range(values), key=lambda v: v % 5)
    ]  # fmt: skip
    table = Table(columns=["measure", "factor", "value", "share of seeds", "margin", "verdict"], rows=rows)
    return universality._draw_factor_verdicts(table, "value")


def graded_factors(measures: list[str], factors: list[str]) -> Any:
    rows = [[measure, factor, i / 2, 0.2, "same"] for measure in measures for i, factor in enumerate(factors)]
    table = Table(columns=["measure", "factor", universality.LEAST, "margin", "verdict"], rows=rows)
    return universality._draw_factor_verdicts(table, None)


def strip(models: list[str], count: int, measures: int, scale: float = 1.0) -> Any:
    names = [f"{point}@{i}" for i in range(count) for point in ("conv", "relu")]
    every = [measured(models, names, scale, 0.0, f"measure_{i}") for i in range(measures)]
    arrays = {name: array for _, of, _ in every for name, array in of.items()}
    side, images = Side(model="images", layers=["0"]), np.zeros((1, 1, 8, 8))
    arrays |= {"maps": np.random.default_rng(0).uniform(size=(1, 16 * len(names))), "images": images}
    kept = [
        Matrix(
            rows=side, columns=Side(model=model, layers=names), values="maps", details={"images": "images"},
            about={"kind": FEATURE_MAPS, "shapes": [[4, 4]] * len(names)},
        )
        for model in models
    ]  # fmt: skip
    options = {"feature_maps": {"options": {"label": None}}}
    run = in_memory(arrays, every[0][2], measures=[each for each, _, _ in every], analyses=options)
    return feature_maps._draw_feature_maps(run, kept)


def clusters(model: str, count: int, scale: float = 1.0, shift: float = 0.0) -> Any:
    names = [f"{point}@{i}" for i in range(count // 4) for point in ("resid_mid", "resid_post", "attn_out", "mlp_out")]
    measure, arrays, manifest = measured([model], names, scale, shift)
    parts: Any = (np.arange(len(names)) * 3 // len(names)).tolist()
    about = {"model": model, "measure": measure.label, "as walks": ["segments"] if shift else []}
    axis = {"x": Axis(name="layer"), "about": about}
    labels = Curve(y=Axis(name="sub-network"), at=names, lines={"spectral": parts, "segments": parts}, **axis)
    following = (scale * np.linspace(0, 1, len(names) - 1)).tolist()
    steps = Curve(y=Axis(name="next"), at=names[:-1], lines={sub_network_figures.NEXT: following}, **axis)
    run = in_memory(arrays, manifest, measures=[measure])
    return sub_network_figures.draw_sub_networks(run, measure, measure.matrices[0], labels, steps)


def of_training(count: int, model: str, steps: list[int], scale: float = 1.0) -> Any:
    """The layers of one model over its checkpoints."""
    line: Any = np.linspace(0, scale, len(steps)).tolist()
    curve = Curve(
        x=Axis(name="step"), y=Axis(name="CKA (unbiased)"), at=steps, lines=dict.fromkeys(layers(count), line), mean=line,
        bands={"deciles": Band(low=line, high=line, of="10th to 90th percentile of layers")},
        bounds=[None, 1.0], about={"quantity": "cka_unbiased to last", "point": "resid_post", "model": model},
    )  # fmt: skip
    return convergence._draw_layer_curves(curve)


def stitches(models: list[str], count: int, scale: float = 1.0) -> list[dict[str, Any]]:
    return [
        {"head": a, "tail": b, "head layer": layer, "tail layer": layer, "penalty": scale * (0.1 + i), "penalty se": scale * 0.1,
         "KL": scale, "KL se": 0.0, "ended": "done"}
        for a in models for b in models for i, layer in enumerate(layers(count))
    ]  # fmt: skip


def stitched(models: list[str], count: int, scale: float = 1.0) -> Any:
    about = {
        "kinds": dict.fromkeys(models, "llama, 6 blocks"),
        "layer": "affine",
        "steps": 150,
        "evaluation_sequences": 200,
    }
    return stitching._draw_pair_bars(
        stitches(models, count, scale), about, "loss", "all", {"resid_post@0": [scale, 1.1 * scale, 1.2 * scale]}
    )


def stitched_deep(models: list[str], count: int) -> Any:
    about = {
        "kinds": dict.fromkeys(models, "llama, 6 blocks"),
        "layer": "affine",
        "steps": 0,
        "evaluation_sequences": 9,
    }
    return stitching._draw_depth_lines(stitches(models, count), about, "loss", {"resid_post@0": [1.0, 2.0, 3.0]})


def stitch_grid(models: list[str], count: int, scale: float = 1.0) -> Any:
    every = [{**x, "head": models[0], "tail": models[1], "head layer": layer} for x in stitches(models[:1], count, scale)
             for layer in layers(count)]  # fmt: skip
    return stitching._draw_layer_grid(every, "loss")


def stitching_losses(models: list[str], count: int) -> Any:
    curves = [
        Curve(x=Axis(name="step"), y=Axis(name="loss"), at=[0, 4000, 9601], lines={"loss": [6.0, 5.0, 4.0]},
              about={key: x[key] for key in ("head", "tail", "head layer", "tail layer")})
        for x in stitches(models, count)
    ]  # fmt: skip
    about = {"kinds": dict.fromkeys(models, "llama, 6 blocks"), "tokens_per_step": 512}
    return stitching._draw_training_curves(curves, about)


def told(count: int, targets: list[str]) -> Any:
    names = layers(count, ("resid_mid", "resid_post"))
    arrays = {"a": np.random.default_rng(0).uniform(size=(len(names), len(targets)))}
    matrix = Matrix(
        rows=Side(model=LONG, layers=names), columns=Side(model="targets", layers=targets), values="a",
        label="lowest error", details={"control": "a"},
        about={"label": "2-layer MLP, classification", "error": "1 - accuracy"},
    )  # fmt: skip
    return probes._draw_probe_maps(in_memory(arrays), [matrix, matrix])


def remedied(count: int, remedies: int) -> Any:
    whole, arrays, manifest = measured(["m", LONG], layers(count))
    layer_map = in_memory(arrays, manifest, measures=[whole]).map_of(whole)
    maps = {robustness.NONE: layer_map} | {
        f"without features above {i} % of the variance": LayerMap(
            whole, layer_map.values + 0.1 * i, layer_map.names, layer_map.widths, layer_map.places
        )
        for i in range(remedies)
    }
    return robustness._draw_remedy_changes("cka_unbiased", maps, 0.1)


def on_fewer_rows(pairs: list[str], counts: list[int]) -> Any:
    falling = [count**-0.2 for count in counts]
    lines = {pair: [x * (1 + i / 4) for x in falling] for i, pair in enumerate(pairs)}
    curve = Curve(
        x=Axis(name="rows"),
        y=Axis(name="mutual k-NN"),
        at=counts,
        lines=lines | {fewer_rows.CHANCE + pair: [10 / count for count in counts] for pair in pairs},
        errors={pair: [0.02] * (len(counts) - 1) + [None] for pair in pairs},
    )
    return fewer_rows._draw_values_by_rows(curve, fewer_rows.PAIRS)


def about_a_shape(models: list[str], depths: list[str]) -> Any:
    far = {(depth, model): 0.9 - 0.7 * i / len(models) - 0.2 * at / len(depths)
           for at, depth in enumerate(depths) for i, model in enumerate(models)}  # fmt: skip
    distances = [[depth, model, "resid_post@1", x, 0.01, 0.8] for (depth, model), x in far.items()]
    turn = {model: 2 * np.pi * i / len(models) for i, model in enumerate(models)}
    places = [[depth, model, x * np.cos(turn[model]), x * np.sin(turn[model]), 0.5, 0.3]
              for (depth, model), x in far.items()]  # fmt: skip
    columns = ["depth", "model", "first", "second", "share of the first", "share of the second"]
    tables = {
        FROM_SHAPE: Table(columns=FROM_COLUMNS, rows=distances),
        OF_PLACES: Table(columns=PLACE_COLUMNS, rows=[[depths[0], 0.1, 0.1, 9, 4096, 300, 576]]),
        barycentre.MAP: Table(columns=columns, rows=places),
    }
    return in_memory({}, tables=tables)


def shape_over_depth(models: list[str], depths: list[str]) -> Any:
    run = about_a_shape(models, depths)
    return barycentre._draw_depth_curve(
        barycentre.make_depth_curve(barycentre.group_by_depth(run.results.tables[FROM_SHAPE])), run
    )


def map_about(models: list[str], depths: list[str]) -> Any:
    return barycentre._draw_map(depths, about_a_shape(models, depths))


def identified(measures: list[str], points: int) -> Any:
    keys = ("measure", "hook point", "identified", "low", "high", "chance", "layers", "models", "seeds", "p")
    rows: Any = [
        dict(
            zip(
                keys,
                (measure, f"resid_point{p}", i / len(measures), 0.1, 0.9, 0.125, 8, LONG, 5, 0.2 / (i + 1)),
                strict=True,
            )
        )
        for i, measure in enumerate(measures)
        for p in range(points)
    ]
    return layer_identification._draw_identified_shares(rows, 0.95)


def which_layers(measures: list[str], count: int) -> Any:
    names = layers(count)
    matrices = [
        Matrix(rows=Side(model="m", layers=names), columns=Side(model="m, another seed", layers=names), values="a",
               about={"measure": measure})
        for measure in measures
    ]  # fmt: skip
    return layer_identification._draw_found(in_memory({"a": np.eye(count)}), matrices, "resid_post")


def parted(models: list[str], count: int, measures: int) -> Any:
    names = layers(count)
    every = [measured(models, names, 1.0, 0.0, f"gromov_wasserstein_{i}") for i in range(measures)]
    arrays = {name: array for _, of, _ in every for name, array in of.items()}
    columns = boundaries.COLUMNS[boundaries.TABLE]
    rows = [
        [{"model": model, "measure": whole.label, "boundary after": names[1], "clearness": 1.0}.get(c) for c in columns]
        for model in models
        for whole, _, _ in every
    ]
    table = {boundaries.TABLE: Table(columns=columns, rows=rows)}
    run = in_memory(arrays, every[0][2], measures=[each for each, _, _ in every], tables=table)
    return boundaries._draw_block_steps(run)


def standing(measures: list[str], tests: int) -> Any:
    rows = [
        {"measure": m, "test": "separation" if t == 1 else f"test of layers {t}", "data": "digits", "models of": "labels",
         "score": 0.5, "rank": 1.0 + (i + t) % len(measures), "hook point": "resid_post"}
        for i, m in enumerate(measures) for t in range(tests)
    ]  # fmt: skip
    columns = ["measure", "low", "mean rank", "high", "seconds per pair"]
    table = Table(columns=columns, rows=[[m, i, i + 1.0, i + 2.0, 10.0**-i] for i, m in enumerate(measures)])
    return grades._draw_measure_ranks("resid_post", rows, table, 0.95)


def changes(tasks: list[str], kinds: list[str]) -> Any:
    keys = ("task", "variant", "change", "standard error of rows")
    rows = [[task, kind, 0.01 * i - 0.02, 0.01] for task in tasks for i, kind in enumerate(["full", *kinds])]
    return variants._draw_changes(Table(columns=list(keys), rows=rows), "accuracy", "full")


def learned(models: list[str]) -> Any:
    lines: Any = {rows: [0.1, 0.5, 0.9] for rows in modular_sums.STYLES}
    every = [
        Curve(x=Axis(name="epoch"), y=Axis(name=name), at=[1, 10, 100], lines=dict(lines),
              about={"quantity": quantity, "model": model, "stage": "block 1"})
        for model in models for quantity, name in (("loss", "loss, nats"), ("accuracy", "accuracy"))
    ]  # fmt: skip
    return modular_sums._draw_learning(every)


def of_measures(count: int, depth: int, models: list[str], alike: bool) -> Any:
    cards = [CARD, {**CARD, "label": "Procrustes", "larger_is_closer": False, "bounds": [0.0, None]}]
    every = [
        measured(models, layers(depth), 1.0 if alike else 10.0 ** (i % 9 - 4), 0.0, f"measure_of_layers_{i}",
                 cards[0 if alike else i % 2])
        for i in range(count)
    ]  # fmt: skip
    arrays = {name: array for _, of, _ in every for name, array in of.items()}
    run = in_memory(arrays, every[0][2], measures=[each for each, _, _ in every])
    return next(multiples.draw_figures(run, False))[1]()


SEEDS = named(3, "bert_base_uncased_finetuned_on_mnli")
MEASURES = ["cka", "cka_unbiased", "procrustes", "geometry_score", "representation_topology_divergence"]


def changed_blocks(models, depth):
    """Blocks 1 to 3 of each model changed."""
    own = [0.03 if 0 < block < 4 else 0.0 for block in range(depth)]
    of = tuned.ChangedBlocks(
        own=own,
        carried=[0.0 if block < 2 else 0.1 for block in range(depth)],
        weights=[x / 10 for x in own],
        rounding=[2e-7] * depth,
        above=[1, 2, 3],
        rounded=[],
        restored=[None] * depth,
    )
    return tuned._draw_block_changes([tuned.make_block_curve(model, of) for model in models])


TOPICS: dict[str, Callable[[], Any]] = {
    "boxes of 2 groups": partial(boxes, 4, "m", 2),
    "boxes of 6 groups": partial(boxes, 60, LONG, 6),
    "groups": partial(of_groups, 3, "m", 2),
    "groups of 200 layers, tiny": partial(of_groups, 6, LONG, 200, 1e-7),
    "couplings": partial(plans, "m", 2, ("product",), None),
    "couplings of 8 plans, tiny": partial(plans, LONG, 4, ("product", "random permutation"), ["neg"] * 8 + ["pos"] * 8, 1e-7),
    "histograms": partial(shifted, "m", 2),
    "histograms of 7 layers, large": partial(shifted, LONG, 7, 1e4),
    "neighbours": partial(lines_to_neighbours, "m", 2),
    "neighbours of 7 layers": partial(lines_to_neighbours, LONG, 7),
    "universality": partial(graded, MEASURES[:2], 5),
    "universality of 2 factors": partial(graded_factors, MEASURES[:4], ["width", "training"]),
    "universality of 20 measures": partial(graded, named(20, MEASURES[-1]), 14),
    "feature maps": partial(strip, ["m"], 3, 1),
    "feature maps of 10 layers, tiny": partial(strip, SEEDS, 5, 2, 1e-7),
    "sub-networks": partial(clusters, "m", 12),
    "sub-networks of 200 layers, negative": partial(clusters, LONG, 200, 1.0, -0.7),
    "layers over training": partial(of_training, 2, "m", [0, 1, 1000]),
    "200 layers over training, tiny": partial(of_training, 200, LONG, [9601, 9801, 10001], 1e-7),
    "stitching": partial(stitched, ["m", "n"], 2),
    "stitching of long names, tiny": partial(stitched, SEEDS, 4, 1e-7),
    "stitching over depth": partial(stitched_deep, ["m", "n"], 24),
    "stitching grid": partial(stitch_grid, SEEDS, 12, -1.0),
    "losses of stitching": partial(stitching_losses, SEEDS, 4),
    "probes": partial(told, 2, ["c1"]),
    "probes of 24 blocks": partial(told, 24, ["part of speech of the next word", "c2"]),
    "remedies": partial(remedied, 12, 3),
    "fewer rows": partial(on_fewer_rows, ["a embed, b embed"], [128, 256, 512]),
    "fewer rows of 4 pairs": partial(
        on_fewer_rows, [f"{LONG} resid_post@{i}, m resid_post@3" for i in range(4)], [244 << i for i in range(8)] + [1_000_000]
    ),
    "common shapes": partial(shape_over_depth, SEEDS[:3], ["0", "0.25", "0.5", "1"]),
    "map about common shapes": partial(map_about, ["a", "b", "c"], ["0", "0.5", "1"]),
    "map of 20 models about common shapes": partial(map_about, named(20, LONG), ["resid_post@3", "1"]),
    "identified layers": partial(identified, MEASURES, 4),
    "layers taken for others": partial(which_layers, MEASURES, 12),
    "boundaries": partial(parted, SEEDS, 12, 5),
    "grades": partial(standing, MEASURES, 9),
    "changes of one task": partial(changes, ["mnli"], ["frozen_below_6", "frozen_below_12", "pruned to 70 %"]),
    "changes of 6 tasks": partial(changes, ["mnli", "qqp", "stsb", "sst2", "cola", "rte"], named(4, "frozen_below")),
    "learning": partial(learned, SEEDS),
    "changed blocks": partial(changed_blocks, ["m"], 12),
    "changed blocks of 3 models": partial(changed_blocks, SEEDS, 80),
    "2 measures": partial(of_measures, 2, 6, ["m", "n"], True),
    "58 measures": partial(of_measures, 58, 24, SEEDS[:2], False),
}  # fmt: skip
