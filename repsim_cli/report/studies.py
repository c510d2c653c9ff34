"""The head of the page of each study that is no comparison of layers: one sentence or a few, with what they are to be
held against, and which section of the page comes first."""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from repsim_cli.runs.content import Curve, Results, Table

MOST = 4  # sentences
NEAR = 0.05  # of its last value within which a curve has arrived


def leads(whole: Results) -> list[str]:
    """Says what a run of a study found; empty for a study that has no such sentence."""
    made = LEADS.get(whole.study)
    return [sentence for _, sentence in zip(range(MOST), made(whole), strict=False)] if made else []


def _records(whole: Results, name: str) -> list[dict[str, Any]]:
    table = whole.tables.get(name, Table(columns=[], rows=[]))
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _probes(whole: Results) -> Iterator[str]:
    """Which layer tells each target best, against the largest class."""
    for row in _records(whole, "nearest to the targets"):
        lowest, largest = row["lowest error"], row["error of the largest class"]
        if lowest is None:
            continue
        beside = "" if largest is None else f"; the largest class alone has {largest:.2g}"
        numbers = f"error {lowest:.2g} ({row['probe']}){beside}"
        if largest is not None and lowest >= largest:
            yield f"No layer of {row['model']} tells {row['target']} better than its largest class: {numbers}"
        else:
            yield f"{row['model']} tells {row['target']} best at {row['nearest']}: {numbers}"


def _stitching(whole: Results) -> Iterator[str]:
    """What a stitch costs, after which layer least and most."""
    rows = [
        row
        for row in _records(whole, "stitching")
        if row["penalty"] is not None and row["head layer"] == row["tail layer"]
    ]
    for (head, tail), some in groupby(
        sorted(rows, key=lambda row: (row["head"] == row["tail"], row["head"], row["tail"])),
        key=lambda row: (row["head"], row["tail"]),
    ):
        known = sorted(some, key=lambda row: row["penalty"])
        least, most = known[0], known[-1]
        error = "" if least["penalty se"] is None else f" (se {least['penalty se']:.2g})"
        yield (
            f"{tail} goes on from {head} at a loss of {least['penalty']:.2g} nats{error} more than alone after "
            f"{least['head layer']}, and {most['penalty']:.2g} after {most['head layer']}"
        )


def _universality(whole: Results) -> Iterator[str]:
    """The verdict of every measure on every factor."""
    for measure, rows in groupby(_records(whole, "universality of factors"), key=lambda row: row["measure"]):
        yield f"By {measure}: " + "; ".join(f"{row['factor']}: {row['verdict']}" for row in rows)


def _convergence(whole: Results) -> Iterator[str]:
    """From which step on layers are nearly as they end."""
    for curve in whole.curves.values():
        if not str(curve.about.get("quantity", "")).endswith(" to last") or len(curve.at) < 2:
            continue
        known = [(step, value) for step, value in zip(curve.at, _mean(curve), strict=True) if value is not None]
        if len(known) < 2:
            continue
        (first, begin), (last, end) = known[0], known[-1]
        late = [step for step, value in known if abs(value - end) > NEAR * abs(end - begin)]
        arrived = next((step for step, _ in known if not late or step > late[-1]), last)
        yield (
            f"{curve.about.get('model', '')}, {curve.about.get('point', '')}: {curve.y.name} with the checkpoint of "
            f"step {last} is {begin:.2f} at step {first}, and within 5 % of the way to its end from step {arrived} on"
        )


def _sub_networks(whole: Results) -> Iterator[str]:
    """Into which groups of neighbouring layers each model parts, where it was asked."""
    for row in _records(whole, "sub-networks"):
        if row["found by"] != "segments":
            continue
        what = f"By {row['measure']}, {row['model']}"
        if row["sub-networks"] == 1:
            yield f"{what} has no groups of layers"
        else:
            clear = "" if row["silhouette"] is None else f" (silhouette {row['silhouette']:.2f}"
            chance = "" if row["without groups"] is None else f"; without groups {row['without groups']:.2f}"
            yield f"{what} parts into {row['sub-networks']} groups of layers{clear}{chance}{')' if clear else ''}"


def _verify(whole: Results) -> Iterator[str]:
    """Whether two models are the same, and where they first differ: the lines of the answer."""
    about = whole.about.get("verify", {})
    for number, line in enumerate(about.get("lines", ())):
        if number:
            what, _, said = line.strip().partition(" ")
            yield f"{what}: {said.strip()}"
        else:
            yield f"{about['candidate']} beside {about['reference']}: {' '.join(line.split())}"


def _mean(curve: Curve) -> list[float | int | None]:
    """The mean over the lines of a curve."""
    if curve.mean is not None:
        return curve.mean
    columns = zip(*curve.lines.values(), strict=True)
    return [None if None in column else sum(x for x in column if x is not None) / len(column) for column in columns]


LEADS: dict[str, Callable[[Results], Iterator[str]]] = {
    "probes": _probes,
    "stitching": _stitching,
    "universality": _universality,
    "convergence": _convergence,
    "similarity": _sub_networks,
    "verify": _verify,
}
