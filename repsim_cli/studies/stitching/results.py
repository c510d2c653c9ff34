"""What a run of stitching writes: a row and a curve per stitch, or matrices of all models of groups."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from repsim_cli.base.plain import slug, write_share
from repsim_cli.runs.content import Axis, Curve, Matrix, Results, Side, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.stitching.evaluate import Estimate, Head, Stitch, StitchScores
from repsim_cli.studies.stitching.models import Layer, name_layer
from repsim_cli.studies.stitching.train import StitchFit

RANDOM_HEADS = "heads of random weights, when trained"  # what chance gives
POINTS_DRAWN = 50  # of a learning curve; each the mean over some steps
PENALTIES = [
    "head", "tail", "head layer", "tail layer", "loss", "own loss", "penalty", "penalty se", "accuracy lost",
    "accuracy lost se", "KL", "KL se", "shared", "shared se", "shared back", "shared back se", "kept", "beyond itself",
    "beyond itself se", "misleads", "ended",
]  # fmt: skip
ALONE = ["loss", "loss se", "accuracy", "accuracy se"]


class Quantity(NamedTuple):
    """A quantity of stitched models, and its axis label."""

    label: str
    estimate: Callable[[StitchScores, Stitch], Estimate]


QUANTITIES = {
    "accuracy": Quantity("accuracy of the stitched model", lambda scores, stitch: scores.estimate(stitch, "correct")),
    "accuracy_penalty": Quantity(
        "accuracy lost against the tail alone", lambda scores, stitch: scores.penalty(stitch, "correct")
    ),
    "loss_penalty": Quantity("cross-entropy added, nats", lambda scores, stitch: scores.penalty(stitch, "loss")),
    "shared": Quantity(
        "share of the tail's rows that the head's explain", lambda scores, stitch: scores.shared[stitch].forward
    ),
    "disagreement": Quantity(
        "share of answers not the tail's", lambda scores, stitch: scores.estimate(stitch, "differs")
    ),
}


def _make_stitch_row(stitch: Stitch, scores: StitchScores, fit: StitchFit | None) -> list[Any]:
    """A row of the table; without numbers where the training diverged."""
    place = [str(stitch.head), stitch.tail, name_layer(stitch.at), name_layer(stitch.into)]
    if stitch not in scores.stitched:
        assert fit is not None
        return [*place, *[None] * (len(PENALTIES) - 5), f"diverged at step {fit.diverged}"]
    loss, alone = scores.estimate(stitch, "loss").value, scores.estimate_alone(stitch.tail, "loss").value
    spread = [*scores.penalty(stitch), *scores.penalty(stitch, "correct"), *scores.estimate(stitch, "kl")]
    ways = scores.shared.get(stitch, [(None, None)] * 2)
    misleads = ("yes" if scores.is_misled(stitch) else "no") if stitch in scores.shared else None
    beyond = scores.compare_with_itself(stitch) or (None, None)
    rows = [*(number for way in ways for number in way), scores.compute_kept(stitch), *beyond, misleads]
    return [*place, loss, alone, *spread, *rows, "trained" if fit is not None and len(fit.losses) else "not trained"]


def _list_alone_scores(scores: StitchScores, label: str) -> list[float]:
    """Loss and accuracy of the model alone, each with its standard error."""
    return [*scores.estimate_alone(label, "loss"), *scores.estimate_alone(label, "correct")]


def make_loss_curve(stitch: Stitch, fits: Mapping[Stitch, StitchFit], scores: StitchScores) -> Curve:
    """The training loss, averaged over stretches of steps, each placed at its last."""
    fit, random = fits[stitch], fits.get(Stitch(Head(stitch.tail, "random"), stitch.tail, stitch.at, stitch.into))
    parts = _split_losses(fit)
    levels = {RANDOM_HEADS: float(_split_losses(random)[-1].mean())} if random and random.diverged is None else {}
    return Curve(
        x=Axis(name="step"),
        y=Axis(name="training loss", unit="nats"),
        at=np.cumsum([len(part) for part in parts]).tolist(),
        lines={"loss": [float(part.mean()) for part in parts]},
        about={
            "quantity": "training loss of stitch layers",
            "head": str(stitch.head),
            "tail": stitch.tail,
            "head layer": name_layer(stitch.at),
            "tail layer": name_layer(stitch.into),
            "own": scores.estimate_alone(stitch.tail, "loss").value if stitch.tail in scores.alone else None,
            "diverged": fit.diverged,
            **({"levels": levels} if stitch.head.kind == "model" else {}),
        },
    )


def _split_losses(fit: StitchFit) -> list[np.ndarray]:
    return np.array_split(fit.losses, min(POINTS_DRAWN, len(fit.losses)))


def tabulate_stitches(
    stitches: Sequence[Stitch], scores: StitchScores, fits: Mapping[Stitch, StitchFit]
) -> dict[str, Table]:
    """A row per stitch, and one per model alone."""
    return {
        "stitching": Table(
            columns=PENALTIES, rows=[_make_stitch_row(stitch, scores, fits.get(stitch)) for stitch in stitches]
        ),
        "models": Table(
            columns=["model", *ALONE], rows=[[tail, *_list_alone_scores(scores, tail)] for tail in scores.alone]
        ),
    }


def make_pair_results(
    stitches: Sequence[Stitch], scores: StitchScores, fits: Mapping[Stitch, StitchFit], about: dict[str, Any]
) -> Results:
    """A table with a row per stitch, and a learning curve of each that was trained. about: what figures need."""
    return Results(
        study="stitching",
        tables=tabulate_stitches(stitches, scores, fits),
        curves={str(s): make_loss_curve(s, fits, scores) for s, fit in fits.items() if len(fit.losses)},
        about=about,
    )


def make_group_results(
    run: Run,
    members: Mapping[str, Sequence[str]],
    layers: Mapping[str, Sequence[Layer]],
    pairs: Sequence[tuple[str, str]],
    scores: StitchScores,
) -> Results:
    """A matrix of all ordered pairs of models per quantity and layer: the head is the row, the tail the column."""
    labels = list(dict.fromkeys(label for group in members.values() for label in group))
    rows, columns = (Side(model=f"{part} of the stitched model", layers=labels) for part in ("head", "tail"))
    matrices = {}
    measured = [name for name in QUANTITIES if name != "shared" or scores.shared]
    for name in measured:
        quantity = QUANTITIES[name]
        for layer in layers[labels[0]]:
            values = np.full((2, len(labels), len(labels)), np.nan)  # no model is stitched to itself
            for head, tail in pairs:
                stitch = Stitch(Head(head), tail, layer, layer)
                values[:, labels.index(head), labels.index(tail)] = quantity.estimate(scores, stitch)
            place = name_layer(layer)
            stem = slug(name, place)
            matrices[f"{name}, {place}"] = Matrix(
                rows=rows,
                columns=columns,
                values=run.write_array(slug(stem, "values"), values[0]),
                se=run.write_array(slug(stem, "se"), values[1]),
                n=len(scores.weights),
                label=quantity.label,
                about={"kind": "stitches", "quantity": name, "layer": place},
            )
    alone = [
        [label, group, *_list_alone_scores(scores, label)] for group, labels in members.items() for label in labels
    ]
    tables = {"models": Table(columns=["model", "group", *ALONE], rows=alone)}
    return Results(study="stitching", matrices=matrices, tables=tables)


def warn_of_misled(run: Run, scores: StitchScores) -> None:
    """Warns of penalties that say nothing: of tails that know nothing, and of stitches of other models that share
    nothing; those of baselines are there to be seen through."""
    for tail in scores.alone:
        if scores.compute_known(tail) <= 0:
            loss = scores.estimate_alone(tail, "loss").value
            run.warn(
                f"stitching: {tail} knows no more of the right answers than how often each comes (loss {loss:.3g}, "
                f"{loss + scores.compute_known(tail):.3g} for their shares alone); penalties of stitches into it say "
                "nothing"
            )
    others = [s for s in scores.stitched if s.head.kind == "model" and s.head.model != s.tail]
    if misled := [s for s in others if scores.is_misled(s)]:
        most = max(misled, key=lambda s: scores.compute_kept(s) or 0)
        kept, shared = scores.compute_kept(most) or 0.0, scores.shared[most].forward.value
        run.warn(
            f"stitching: {len(misled)} of {len(others)} stitches work although the rows of their head explain almost "
            f"nothing of those of the tail beyond the right answers, most of all {most} (keeps {write_share(kept)} of "
            f"what the tail knows, rows shared {write_share(shared)}); their penalty says nothing of "
            "what the models share"
        )
