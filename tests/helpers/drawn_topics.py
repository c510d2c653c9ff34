"""Runs in memory, with few and many layers and models and with short and long names, for figures of every topic."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from helpers.drawn_in_memory import CARD, LONG, in_memory, layers, measured, named
from helpers.drawn_studies import (
    changed_blocks,
    graded,
    graded_factors,
    learned,
    map_about,
    of_training,
    on_fewer_rows,
    remedied,
    shape_over_depth,
    stitch_grid,
    stitched,
    stitched_deep,
    stitching_losses,
    told,
)

from repsim_cli.findings import boundaries, distances, groups, layer_identification, multiples, sub_network_figures
from repsim_cli.runs.content import FEATURE_MAPS, Axis, Band, Curve, Matrix, Side, Table
from repsim_cli.studies.classifiers import finding_variants as variants
from repsim_cli.studies.grounding import finding as grades
from repsim_cli.studies.similarity import finding_feature_maps as feature_maps
from repsim_cli.studies.views import finding_couplings as couplings
from repsim_cli.studies.views import finding_histograms as histograms
from repsim_cli.studies.views import finding_neighbours as neighbours


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
    columns = ["measure", "low", "mean rank", "high", "seconds per pair", "ahead of"]
    table = Table(columns=columns, rows=[[m, i, i + 1.0, i + 2.0, 10.0**-i, 1] for i, m in enumerate(measures)])
    return grades._draw_measure_ranks("resid_post", rows, table, 0.95)


def changes(tasks: list[str], kinds: list[str]) -> Any:
    keys = ("task", "variant", "change", "standard error of rows", "standard deviation")
    spreads = [0.015, *[None] * len(kinds)] if len(tasks) > 1 else [None] * (1 + len(kinds))
    rows = [
        [task, kind, 0.01 * i - 0.02, 0.01, spread]
        for task in tasks
        for i, (kind, spread) in enumerate(zip(["full", *kinds], spreads, strict=True))
    ]
    return variants._draw_changes(Table(columns=list(keys), rows=rows), "accuracy", "full")


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
