"""Finished runs of made-up matrices, for tests of what reads a run folder."""

import json

import numpy as np

from repsim_cli import report
from repsim_cli.runs import results
from repsim_cli.runs.content import Axis, Curve, Matrix, Measured, Results, Side, Table, Verdict

HOSTILE = "<script>window.pwned=1</script></script><!--'\"&amp;\u2028\u2029`${1}<img src=x onerror=window.pwned=1>"
CARDS = {
    "cka": {"larger_is_closer": True, "bounds": [None, 1.0], "symmetric": True},
    "procrustes": {"larger_is_closer": False, "bounds": [0.0, 2.0], "symmetric": True},
    "regression": {"larger_is_closer": True, "bounds": [0.0, 1.0], "symmetric": False},
}


def made(folder, *, seed=0, models=("small", "large"), sizes=None, layer="resid_post", extra="", measures=tuple(CARDS)):
    """A finished run with made-up matrices; `extra` stands wherever a study or a user may put text."""
    sizes = sizes or [3 + 2 * i for i in range(len(models))]
    name = layer if "%d" in layer else f"{layer.replace('%', '%%')}@%d"
    run = results.create(folder, name=f"study{extra}", study="similarity", seed=seed, command=["repsim", "run", f"name={extra}"], overrides=[])  # fmt: skip
    run.write_text(
        "config.yaml",
        json.dumps({"name": f"study{extra}", "seed": seed, "model": {f"m{extra}": extra}, "analyses": {}}),
    )
    run.manifest.update(rows=120, models={f"{m}": {"source": extra} for m in models})
    rng, records = np.random.default_rng(seed), []
    for label in measures:
        matrices = []
        for i, row in enumerate(models):
            for j, column in enumerate(models):
                if CARDS[label]["symmetric"] and j < i:
                    continue
                values = rng.uniform(0.05, 0.95, size=(sizes[i], sizes[j]))
                matrices.append(
                    Matrix(
                        rows=Side(model=row, layers=[name % k for k in range(sizes[i])]),
                        columns=Side(model=column, layers=[name % k for k in range(sizes[j])]),
                        values=run.write_array(f"{label}-{i}-{j}", (values + values.T) / 2 if i == j else values),
                        se=run.write_array(f"{label}-{i}-{j}-se", 0.01 * values),
                        p=run.write_array(f"{label}-{i}-{j}-p", values**3) if label == "cka" else None,
                        n=100,
                    )
                )
        card = {"label": label.upper() + extra, "source": extra, "note": extra, "invariant_to": [], **CARDS[label]}
        estimate = {"kind": "per_batch", "rows": 100, "rows_available": 120, "batches": 2}
        records.append(
            Measured(
                name=label,
                label=label + extra,
                settings={"k": extra},
                estimate=estimate,
                card={**card, "is_metric": False},
                matrices=matrices,
            )
        )
    verdict = Verdict(
        name=f"finding{extra}",
        source=extra,
        says=extra,
        measure="cka",
        statistic=extra,
        value=0.25,
        se=0.125,
        threshold=0.0,
        p=0.03125,
        opposite_p=0.96875,
        verdict="holds",
        why="",
    )
    rows = [["h10" + extra, 2.5], ["h1", None], ["h9", -1.0], ["h2", 10.0]]
    training = Curve(x=Axis(name="step"), y=Axis(name="loss"), at=[0, 1, 2], lines={"loss": [3.0, 2.0, 1.5]})
    whole = Results(
        study="similarity",
        measures=records,
        tables={f"loss{extra}": Table(columns=["name", f"value{extra}"], rows=rows)},
        curves={f"training{extra}": training},
        claims=[verdict],
        about={f"own{extra}": {"key": extra}},
    )
    with run.stage(f"data{extra}"):
        run.write_results(whole)
    if extra:
        run.warn(extra)
    run.finish("complete")
    return run.folder


def saved(*folders):
    return report.save(folders, folders[0] / report.FILE)
