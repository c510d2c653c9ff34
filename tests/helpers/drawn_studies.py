"""Runs in memory of studies, with few and many layers and models, for their figures."""

from typing import Any

import numpy as np
from helpers.drawn_in_memory import LONG, in_memory, layers, measured

from repsim_cli.findings.analysis import LayerMap
from repsim_cli.runs.content import Axis, Band, Curve, Matrix, Side, Table
from repsim_cli.studies.barycentre import finding as barycentre
from repsim_cli.studies.barycentre.columns import FROM_COLUMNS, FROM_SHAPE, OF_PLACES, PLACE_COLUMNS
from repsim_cli.studies.modular_sums import finding as modular_sums
from repsim_cli.studies.probes import finding as probes
from repsim_cli.studies.similarity import finding_fewer_rows as fewer_rows
from repsim_cli.studies.similarity import finding_robustness as robustness
from repsim_cli.studies.stitching import drawing as stitching
from repsim_cli.studies.training_run import finding_convergence as convergence
from repsim_cli.studies.tuned import finding as tuned
from repsim_cli.studies.universality import finding as universality
from repsim_cli.studies.universality.rule import UNCLEAR


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


def learned(models: list[str]) -> Any:
    lines: Any = {rows: [0.1, 0.5, 0.9] for rows in modular_sums.STYLES}
    every = [
        Curve(x=Axis(name="epoch"), y=Axis(name=name), at=[1, 10, 100], lines=dict(lines),
              about={"quantity": quantity, "model": model, "stage": "block 1"})
        for model in models for quantity, name in (("loss", "loss, nats"), ("accuracy", "accuracy"))
    ]  # fmt: skip
    return modular_sums._draw_learning(every)


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
