"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from repsim_cli.base.registry import pages
from repsim_cli.report.studies import MOST, Said, list_table_records
from repsim_cli.runs.content import IDENTICAL, Curve, Results

UNCHANGED = 1e-5  # of the largest value there is, or can be, by which a layer that no step changes may differ: rounding
NEAR = 0.05  # of its last value within which a curve has arrived


def _say_identical_checkpoints(whole: Results) -> Iterator[Said]:
    """Says which checkpoints of a training have the same weights."""
    for row in list_table_records(whole, IDENTICAL):
        which = "all checkpoints" if row["all"] == "yes" else "checkpoints"
        yield row["model"], f"{row['model']}: {which} are identical, by their weights: those of steps {row['steps']}"


def _list_still_models(whole: Results) -> list[str]:
    """Lists the models whose checkpoints are all the same: nothing is said of their course."""
    return [row["model"] for row in list_table_records(whole, IDENTICAL) if row["all"] == "yes"]


@pages.register("convergence", "When in its training does each layer become what it is in the end?")
def say_convergence(whole: Results) -> Iterator[Said]:
    """Says from which step on layers are nearly as they end."""
    yield from _say_identical_checkpoints(whole)
    still = _list_still_models(whole)
    for curve in whole.curves.values():
        of_last = str(curve.about.get("quantity", "")).endswith(" to last")
        if not of_last or len(curve.at) < 2 or curve.about.get("model") in still:
            continue
        known = [
            (step, value) for step, value in zip(curve.at, _average_lines(curve), strict=True) if value is not None
        ]
        if len(known) < 2:
            continue
        (first, begin), (last, end) = known[0], known[-1]
        late = [step for step, value in known if abs(value - end) > NEAR * abs(end - begin)]
        arrived = next((step for step, _ in known if not late or step > late[-1]), last)
        near = f"within 5 % of the way from step {first} to its end"
        on = f"from step {arrived} on {near}"
        before = f"at step {late[-1]} not yet {near}" if late else ""
        model, same = curve.about.get("model", ""), _list_still_layers(curve)
        of = f"{model}, {curve.about.get('point', '')}: {curve.y.name} with the checkpoint of step {last} is"
        if len(same) == len(curve.lines):
            yield model, f"{of} {begin:.2f} at every step, in every layer"
            continue
        yield (
            model,
            f"{of} {begin:.2f} at step {first}{_say_lines(curve, same)}, and {before if arrived == last else on}",
        )


def _list_still_layers(curve: Curve) -> list[str]:
    """Lists the layers that are the same at every step, but for rounding."""
    known = {name: [value for value in line if value is not None] for name, line in curve.lines.items()}
    reach = [abs(value) for line in [*known.values(), curve.bounds] for value in line if value is not None]
    step = UNCHANGED * max(reach, default=0)
    return [name for name, line in known.items() if line and max(line) - min(line) <= step]


def _say_lines(curve: Curve, same: Sequence[str]) -> str:
    """Says that a value is the mean over layers, and which of these (`same`) are the same at every step."""
    if len(curve.lines) < 2:
        return ""
    more = f" and {len(same) - MOST} more" if len(same) > MOST else ""
    known = f"; {', '.join(same[:MOST])}{more} the same at every step" if same else ""
    return f" (mean over {len(curve.lines)} layers{known})"


def _average_lines(curve: Curve) -> list[float | int | None]:
    """The mean over the lines of a curve."""
    if curve.mean is not None:
        return curve.mean
    columns = zip(*curve.lines.values(), strict=True)
    return [None if None in column else sum(x for x in column if x is not None) / len(column) for column in columns]


@pages.register("effective_rank", "Do layers whose parameters have a large rank converge early?")
def say_large_ranks(whole: Results) -> Iterator[Said]:
    """Says whether the layers that converge early are those of a large rank."""
    yield from _say_identical_checkpoints(whole)
    for row in list_table_records(whole, "early convergence and large rank", "large rank"):
        large = f"{row['large rank']} of {row['layers']} layers have a large rank"
        unknown = f"which converge early is not known ({row['undefined because']})"
        yield (
            row["model"],
            f"{row['model']}, {row['matrices']} of {row['of']}: {large}, "
            + (
                unknown if None in (row["early"], row["both"]) else f"{row['early']} converge early, {row['both']} both"
            ),
        )


@pages.register("training_view", "How do the layers of a model change along its training?")
def say_training_view(whole: Results) -> Iterator[Said]:
    """Says how far layers are apart at the first and at the last step."""
    yield from _say_identical_checkpoints(whole)
    column, still = "mean over pairs of layers", _list_still_models(whole)
    rows = list_table_records(whole, "distance and metrics", column)
    for (model, measure), some in groupby(rows, key=lambda row: (row["model"], row["measure"])):
        known = list(some)
        if model in still:
            yield model, f"{model}: {measure} over pairs of layers is {known[0][column]:.2g} at every step"
            continue
        ends = known[0], known[-1]
        said = " and ".join(f"{row[column]:.2g} at step {row['step']}" for row in ends)
        for word, choose in (("lowest", min), ("highest", max)):
            beyond, end = (choose(some, key=lambda row: row[column]) for some in (known, ends))
            if f"{beyond[column]:.2g}" != f"{end[column]:.2g}":
                said += f", {word} {beyond[column]:.2g} at step {beyond['step']}"
        yield model, f"{model}: {measure} over pairs of layers is {said}"
