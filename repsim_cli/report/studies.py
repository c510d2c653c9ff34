"""The head of the page of each study that is no comparison of layers: one sentence or a few, with what they are to be
held against, and which section of the page comes first."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from repsim_cli.base.plain import escape, say_count
from repsim_cli.findings.extremes import list_alike, say_others
from repsim_cli.report.stitches import say_stitches
from repsim_cli.runs.content import BEYOND_WALKS, IDENTICAL, Curve, Results, Table

Said = tuple[str, str]  # whom or what a sentence is about, and the sentence
MOST = 6  # sentences, and tokens that one names
ALL = "repsim show RUN --json"  # where all sentences stand
LEVEL = 0.05  # p up to which a probe tells a target
UNCHANGED = 1e-5  # of the last value by which a layer that no step changes may differ: rounding
NEAR = 0.05  # of its last value within which a curve has arrived


def say_main_findings(whole: Results) -> list[str]:
    """Says what a run of a study found, in few sentences; empty for a study that has none."""
    return pick_main(list_findings(whole))


def list_findings(whole: Results) -> list[Said]:
    """Lists all sentences on what a run of a study found; empty for a study that has none."""
    made = LEADS.get(whole.study)
    return list(made(whole)) if made else []


def pick_main(said: Sequence[Said], most: int = MOST) -> list[str]:
    """Picks the first sentences of each in turn, in their order, and says how many are left and where they stand.

    >>> pick_main([*[("a", f"a {i}") for i in range(6)], ("b", "b 0")])
    ['a 0', 'a 1', 'a 2', 'a 3', 'a 4', 'b 0', 'and 1 more: repsim show RUN --json']
    """
    before: Counter[str] = Counter()
    turns = []
    for place, (who, _) in enumerate(said):
        turns.append((before[who], place))
        before[who] += 1
    picked = sorted(place for _, place in sorted(turns)[:most])
    left = len(said) - len(picked)
    return [said[place][1] for place in picked] + ([f"and {left} more: {ALL}"] if left else [])


def _list_table_records(whole: Results, name: str, *needed: str) -> list[dict[str, Any]]:
    """The rows of a table by their columns; without those that lack a value that a sentence needs."""
    table = whole.tables.get(name, Table(columns=[], rows=[]))
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return [row for row in rows if all(row.get(column) is not None for column in needed)]


def _say_probe_errors(whole: Results) -> Iterator[Said]:
    """Says which layer tells each target best, if any tells it better than the largest class, or the mean of numbers;
    in runs of before it was tested, whether its error is lower."""
    for row in _list_table_records(whole, "nearest to the targets", "lowest error"):
        model, lowest, p = row["model"], row["lowest error"], row.get("p of any layer")
        largest = row["error of the largest class"]
        if largest is not None:
            guess, beside, known = "its largest class", "the largest class alone has", largest
        else:
            guess = "labels without meaning" if p is None else "its mean"
            beside, known = "with labels without meaning", row.get("control")
        against = "" if known is None else f"; {beside} {known:.2g}"
        tested = "" if p is None else f" (p {p:.2g} for the best of {say_count(row['layers'], 'layer')})"
        numbers = f"error {lowest:.2g} ({row['probe']}){against}{tested}"
        if p > LEVEL if p is not None else known is not None and lowest >= known:
            yield model, f"No layer of {model} tells {row['target']} better than {guess}: {numbers}"
            continue
        others = row.get("others as near") or 0
        ties = f" and as well at {others} other layer{'s' if others > 1 else ''}" if others else ""
        yield model, f"{model} tells {row['target']} best at {row['nearest']}{ties}: {numbers}"


def _say_stitching(whole: Results) -> Iterator[Said]:
    sequences = whole.about.get("evaluation_sequences")
    rows = _list_table_records(whole, "stitching", "penalty")
    yield from say_stitches(rows, None if sequences is None else sequences - 1)


def _say_universality(whole: Results) -> Iterator[Said]:
    """Gives the verdict of every measure on every factor."""
    for measure, rows in groupby(_list_table_records(whole, "universality of factors"), key=lambda row: row["measure"]):
        found = [f"{row['factor']} {row['verdict']}{_say_way(row)}" for row in rows]
        first = f"{found[0]}{' of the way from untrained to seeds' * (', ' in found[0])}"
        yield measure, f"By {measure}: {'; '.join([first, *found[1:]])}"


def _say_way(row: dict[str, Any]) -> str:
    """The shares of the way from untrained models to seeds, of the values that differ most."""
    ends = [row.get(f"{end} share of seeds") for end in ("least", "largest")]
    return "" if None in ends else f", {ends[0]:.2f} to {ends[1]:.2f}"


def _say_identical_checkpoints(whole: Results) -> Iterator[Said]:
    """Says which checkpoints of a training have the same weights."""
    for row in _list_table_records(whole, IDENTICAL):
        which = "all checkpoints" if row["all"] == "yes" else "checkpoints"
        yield row["model"], f"{row['model']}: {which} are identical, by their weights: those of steps {row['steps']}"


def _list_still_models(whole: Results) -> list[str]:
    """Lists the models whose checkpoints are all the same: nothing is said of their course."""
    return [row["model"] for row in _list_table_records(whole, IDENTICAL) if row["all"] == "yes"]


def _say_convergence(whole: Results) -> Iterator[Said]:
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
        model = curve.about.get("model", "")
        yield (
            model,
            f"{model}, {curve.about.get('point', '')}: {curve.y.name} with the checkpoint of step {last} is "
            f"{begin:.2f} at step {first}{_say_lines(curve)}, and {before if arrived == last else on}",
        )


def _say_lines(curve: Curve) -> str:
    """Says that a value is the mean over layers, and which of these are the same at every step."""
    if len(curve.lines) < 2:
        return ""
    ends = {name: [value for value in line if value is not None] for name, line in curve.lines.items()}
    same = [name for name, line in ends.items() if line and max(line) - min(line) <= UNCHANGED * abs(line[-1])]
    more = f" and {len(same) - MOST} more" if len(same) > MOST else ""
    known = f"; {', '.join(same[:MOST])}{more} the same at every step" if same else ""
    return f" (mean over {len(curve.lines)} layers{known})"


def _say_sub_networks(whole: Results) -> Iterator[Said]:
    """Says which layers are found again under another seed, and into which groups of neighbouring layers each model
    parts, where it was asked."""
    found = groupby(
        _list_table_records(whole, "identification of layers", "identified", "chance", "seeds"),
        key=lambda row: (row["models"], row["hook point"]),
    )
    for (models, point), some in found:
        rows = list(some)
        shares = ", ".join(
            f"{row['measure']} {row['identified']:.0%}"
            + ("" if None in (row["low"], row["high"]) else f" ({row['low']:.0%} to {row['high']:.0%})")
            for row in rows
        )
        of = f"of {rows[0]['layers']} layers of {rows[0]['seeds']} seeds, by chance {rows[0]['chance']:.0%}"
        yield models, f"{models}, {point}: closest to the same layer of another seed, {of}: {shares}"
    for row in _list_table_records(whole, "sub-networks", "sub-networks"):
        if row["found by"] != "segments":
            continue
        measure, model, near = row["measure"], row["model"], "groups of neighbouring layers"
        if row["sub-networks"] == 1:
            yield model, f"By {measure}, no {near} of {model} are told from a gradient or from noise"
        else:
            parts = [("silhouette", row["silhouette"]), ("without groups", row["without groups"])]
            clear = "; ".join(f"{name} {value:.2f}" for name, value in parts if value is not None)
            found = f"By {measure}, {model} parts into {row['sub-networks']} {near}"
            doubt = ", no clearer than those of layers that wander at random" if row.get(BEYOND_WALKS) == "no" else ""
            yield model, f"{found}{doubt} ({clear})" if clear else found + doubt


def _verify(whole: Results) -> Iterator[Said]:
    """Says whether two models are the same, and where they first differ: the lines of the answer."""
    about = whole.about.get("verify", {})
    for number, line in enumerate(about.get("lines", ())):
        if number:
            what, _, said = line.strip().partition(" ")
            yield what, f"{what}: {said.strip()}"
        else:
            yield "", f"{about['candidate']} beside {about['reference']}: {' '.join(line.split())}"


def _say_tuned(whole: Results) -> Iterator[Said]:
    """Says on which tokens the outputs change most."""
    for (model, by), rows in groupby(
        _list_table_records(whole, "tokens that change most", "value"), key=lambda row: (row["model"], row["by"])
    ):
        most = ", ".join(f"{escape(row['token'])} {row['value']:.2g}" for row in [*rows][:MOST])
        yield model, f"{model}: the tokens that change most, by {by}: {most}"


def _say_universal_neurons(whole: Results) -> Iterator[Said]:
    """Says how many neurons have counterparts in the mean over the other models, beside rotated bases, and in which
    model they have fewest."""
    pairs = _list_table_records(whole, "counterparts by pair of models", "above the threshold")
    threshold = whole.analyses.get("universal_neurons", {}).get("options", {}).get("threshold")
    excess_of = "" if threshold is None else f" of excess correlation above {threshold:g}"
    for row in _list_table_records(whole, "universal neurons", "universal", "neurons"):
        rotated, excess, model = row["universal in rotated bases"], row["mean excess correlation"], row["model"]
        shares = {each["other"]: each["above the threshold"] for each in pairs if each["model"] == model}
        fewest = min(shares, key=lambda other: shares[other], default=None)
        beside = [] if rotated is None else [f"{_format_percent(rotated)} in rotated bases"]
        if len(shares) > 1 and fewest is not None:
            beside.append(f"fewest in {fewest}, {_format_percent(shares[fewest])}{_say_as_few(shares, row['neurons'])}")
        ends = [row.get("universal, low"), row.get("universal, high")]
        between = " to ".join(_format_percent(end) for end in ends if end is not None)
        beside = [*([f"95 % interval over neurons {between}"] if between else []), *beside]
        others = fewest if len(shares) == 1 else "the other models, in the mean over them"
        yield (
            model,
            f"{model}: {_format_percent(row['universal'])} of {row['neurons']:,} neurons have a counterpart{excess_of} "
            f"in {others}"
            + (f" ({'; '.join(beside)})" if beside else "")
            + ("" if excess is None else f"; mean excess correlation {excess:.2g}"),
        )


def _say_as_few(shares: Mapping[str, float], neurons: int) -> str:
    """Says in which other models the share of neurons is not told apart from the lowest, neurons being independent."""
    errors = [math.sqrt(share * (1 - share) / neurons) for share in shares.values()]
    values = [*shares.values()]
    best = values.index(min(values))
    return say_others([*shares], list_alike(values, errors, best), best).replace("; ", ", ")


def _say_shared_features(whole: Results) -> Iterator[Said]:
    """Says how many latents dictionaries share, beside random directions, and what one model's code says of another."""
    for row in _list_table_records(whole, "shared latents", "shared", "latents"):
        random = row["random directions: shared"]
        yield (
            row["model"],
            f"{row['model']} {row['layer']}: {_format_percent(row['shared'])} of {row['latents']:,} latents are shared "
            f"by {row['dictionaries']}"
            + ("" if random is None else f" (of random directions {_format_percent(random)})"),
        )
    for row in _list_table_records(whole, "cross-reconstruction", "R²"):
        if row["encoded"] != row["decoded"]:
            best = row["R² of the best affine map"]
            beside = "" if best is None else f", an affine map by least squares {best:.2f}"
            yield (
                row["encoded"],
                f"{row['layer']}: the code of {row['encoded']} gives {row['decoded']} with R² {row['R²']:.2f}{beside}, "
                "on rows that neither has seen",
            )


def _say_classifier_accuracies(whole: Results) -> Iterator[Said]:
    """Says how accurate classifiers are, and what each variant changes."""
    for row in _list_table_records(whole, "over seeds", "lowest", "highest"):
        if row["metric"] != "loss":
            models = len(whole.tables["classifiers"].rows)
            yield "", f"{row['metric']} of {models} models: {row['lowest']:.4g} to {row['highest']:.4g}"
    for row in _list_table_records(whole, "variants", "change", "mean"):
        error = "" if row["standard error of rows"] is None else f" (se {row['standard error of rows']:.2g})"
        yield row["task"], f"{row['task']}, {row['variant']}: {row['mean']:.4g}, {row['change']:+.2g}{error}"


def _say_modular_accuracies(whole: Results) -> Iterator[Said]:
    """Says how well models that add learned each sum."""
    for row in _list_table_records(whole, "training", "validation accuracy"):
        right = f"{_format_percent(row['validation accuracy'])} of the validation rows"
        after = "" if row["kept after"] is None else f" after {row['kept after']} epochs"
        yield row["model"], f"{row['model']} has {row['stage']} right in {right}{after}"


def _say_views(whole: Results) -> Iterator[Said]:
    """Says how many rows layers couple with themselves, how many neighbours stay, and where distances change most."""
    by_pair = groupby(
        _list_table_records(whole, "couplings", "on the diagonal", "by chance"),
        key=lambda row: (row["model"], row["rows"], row["columns"]),
    )
    for (model, first, second), some in by_pair:
        rows = list(some)
        said = ", ".join(f"{row['on the diagonal']:.2f} ({row['starts']}, found from {row['from']})" for row in rows)
        of = f"of {round(1 / rows[0]['by chance'])} rows, {rows[0]['by chance']:.2f} by chance"
        yield model, f"{model}, {first} and {second}: rows coupled with themselves, {said}; {of}"
    kept = _list_table_records(whole, "neighbours kept", "mean without it", "by chance")
    by_space = groupby(kept, key=lambda row: (row["model"], row["space"]))
    for (model, space), some in by_space:
        rows = list(some)
        mean = sum(row["mean without it"] for row in rows) / len(rows)
        chance = f"{space}; by chance {rows[0]['by chance']:.2f}"
        yield model, f"{model}: {mean:.2f} of the neighbours of the first layer stay in later ones ({chance})"
    column = "KL(layer || previous)"
    for model, some in groupby(_list_table_records(whole, "distances", column), key=lambda row: row["model"]):
        most = max(some, key=lambda row: row[column])
        yield model, f"{model}: distances of rows change most at {most['layer']}, KL {most[column]:.2g} nats"


def _say_training_view(whole: Results) -> Iterator[Said]:
    """Says how far layers are apart at the first and at the last step."""
    yield from _say_identical_checkpoints(whole)
    column, still = "mean over pairs of layers", _list_still_models(whole)
    rows = _list_table_records(whole, "distance and metrics", column)
    for (model, measure), some in groupby(rows, key=lambda row: (row["model"], row["measure"])):
        known = list(some)
        if model in still:
            yield model, f"{model}: {measure} over pairs of layers is {known[0][column]:.2g} at every step"
            continue
        said = " and ".join(f"{row[column]:.2g} at step {row['step']}" for row in (known[0], known[-1]))
        yield model, f"{model}: {measure} over pairs of layers is {said}"


def _say_large_ranks(whole: Results) -> Iterator[Said]:
    """Says whether the layers that converge early are those of a large rank."""
    yield from _say_identical_checkpoints(whole)
    for row in _list_table_records(whole, "early convergence and large rank", "large rank"):
        large = f"{row['large rank']} of {row['layers']} layers have a large rank"
        unknown = f"which converge early is not known ({row['undefined because']})"
        yield (
            row["model"],
            f"{row['model']}, {row['matrices']} of {row['of']}: {large}, "
            + (
                unknown if None in (row["early"], row["both"]) else f"{row['early']} converge early, {row['both']} both"
            ),
        )


def _say_odd_architectures(whole: Results) -> Iterator[Said]:
    """Says which models stand apart in their shape."""
    rows = _list_table_records(whole, "architecture")
    apart = [
        (row["model"], f"{row['model']} stands apart in {row['stands apart']}") for row in rows if row["stands apart"]
    ]
    yield from apart or (
        [("", f"No model of {len(rows)} stands apart from its neighbours in its shape")] if rows else []
    )


def _say_best_measures(whole: Results) -> Iterator[Said]:
    """Says which measures have the best mean ranks."""
    rows = _list_table_records(whole, "measures by grade", "mean rank")
    if rows:
        best = (
            row["measure"]
            + f" {row['mean rank']:.1f}"
            + ("" if None in (row["low"], row["high"]) else f" ({row['low']:.1f} to {row['high']:.1f})")
            for row in rows[:3]
        )
        ahead = rows[0].get("ahead of")
        told = "" if ahead is None else f"; the first is ahead of {ahead} of the others, pair by pair"
        yield "", f"Best mean ranks of {len(rows)} measures over tests with known answers: {', '.join(best)}{told}"


def _format_percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _average_lines(curve: Curve) -> list[float | int | None]:
    """The mean over the lines of a curve."""
    if curve.mean is not None:
        return curve.mean
    columns = zip(*curve.lines.values(), strict=True)
    return [None if None in column else sum(x for x in column if x is not None) / len(column) for column in columns]


LEADS: dict[str, Callable[[Results], Iterator[Said]]] = {
    "probes": _say_probe_errors,
    "stitching": _say_stitching,
    "universality": _say_universality,
    "convergence": _say_convergence,
    "similarity": _say_sub_networks,
    "verify": _verify,
    "tuned": _say_tuned,
    "universal_neurons": _say_universal_neurons,
    "features": _say_shared_features,
    "finetune": _say_classifier_accuracies,
    "modular_training": _say_modular_accuracies,
    "views": _say_views,
    "training_view": _say_training_view,
    "effective_rank": _say_large_ranks,
    "architecture": _say_odd_architectures,
    "grounding": _say_best_measures,
}
