"""What the page of a run says first: what was asked, and what was found."""

import math
from collections.abc import Iterator, Mapping

from repsim_cli.base.plain import write_share
from repsim_cli.base.registry import pages
from repsim_cli.findings.extremes import list_alike, say_others
from repsim_cli.report.studies import Said, format_percent, list_table_records
from repsim_cli.runs.content import Results


@pages.register("universal_neurons", "Which neurons have a counterpart in models that were trained apart?")
def say_universal_neurons(whole: Results) -> Iterator[Said]:
    """Says how many neurons have counterparts in the mean over the other models, beside rotated bases, and in which
    model they have fewest."""
    pairs = list_table_records(whole, "counterparts by pair of models", "above the threshold")
    threshold = whole.analyses.get("universal_neurons", {}).get("options", {}).get("threshold")
    excess_of = "" if threshold is None else f" of excess correlation above {threshold:g}"
    for row in list_table_records(whole, "universal neurons", "universal", "neurons"):
        rotated, excess, model = row["universal in rotated bases"], row["mean excess correlation"], row["model"]
        shares = {each["other"]: each["above the threshold"] for each in pairs if each["model"] == model}
        fewest = min(shares, key=lambda other: shares[other], default=None)
        beside = [] if rotated is None else [f"{format_percent(rotated)} in rotated bases"]
        if len(shares) > 1 and fewest is not None:
            beside.append(f"fewest in {fewest}, {format_percent(shares[fewest])}{say_as_few(shares, row['neurons'])}")
        ends = [row.get("universal, low"), row.get("universal, high")]
        between = " to ".join(format_percent(end) for end in ends if end is not None)
        beside = [*([f"95 % interval over neurons {between}"] if between else []), *beside]
        others = fewest if len(shares) == 1 else "the other models, in the mean over them"
        level = row.get("mean in rotated bases")
        if threshold is not None and level is not None and level > 1 - threshold:
            yield (
                model,
                f"{model}: whether neurons have a counterpart{excess_of} in {others} cannot be seen: in rotated bases "
                f"they correlate by {write_share(level)} on average already, and no correlation is above 1",
            )
            continue
        yield (
            model,
            f"{model}: {format_percent(row['universal'])} of {row['neurons']:,} neurons have a counterpart{excess_of} "
            f"in {others}"
            + (f" ({'; '.join(beside)})" if beside else "")
            + ("" if excess is None else f"; mean excess correlation {excess:.2g}"),
        )


def say_as_few(shares: Mapping[str, float], neurons: int) -> str:
    """Says in which other models the share of neurons is not told apart from the lowest, neurons being independent."""
    errors = [math.sqrt(share * (1 - share) / neurons) for share in shares.values()]
    values = [*shares.values()]
    best = values.index(min(values))
    return say_others([*shares], list_alike(values, errors, best), best).replace("; ", ", ")
