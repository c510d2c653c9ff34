"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from repsim_cli.base.plain import write_percent, write_share
from repsim_cli.base.registry import pages
from repsim_cli.report.studies import Said, list_table_records
from repsim_cli.runs.content import BEYOND_WALKS, Results


@pages.register("similarity")
def say_sub_networks(whole: Results) -> Iterator[Said]:
    """Says which measures rank pairs of layers alike, which layers are found again under another seed, and into which
    groups of neighbouring layers each model parts, where it was asked."""
    if alike := list_table_records(whole, "agreement of measures", "mean with the others", "with the closest"):
        most, least = (choose(alike, key=lambda row: row["mean with the others"]) for choose in (max, min))
        pair = max(alike, key=lambda row: row["with the closest"])
        first, last = (write_share(row["mean with the others"]) for row in (most, least))
        closest = f"closest are {pair['measure']} and {pair['closest']} ({write_share(pair['with the closest'])})"
        yield (
            "measures",
            f"Of {len(alike)} measures, {most['measure']} ranks pairs of layers most as the others do (Spearman's rho "
            f"{first} on average), {least['measure']} least ({last}); {closest}",
        )
    found = groupby(
        list_table_records(whole, "identification of layers", "identified", "chance", "seeds"),
        key=lambda row: (row["models"], row["hook point"]),
    )
    for (models, point), some in found:
        rows = list(some)
        shares = ", ".join(
            f"{row['measure']} {write_percent(row['identified'])}"
            + (f" ({', '.join(known)})" if (known := _list_bounds(row)) else "")
            for row in rows
        )
        of = f"of {rows[0]['layers']} layers of {rows[0]['seeds']} seeds, by chance {write_percent(rows[0]['chance'])}"
        yield models, f"{models}, {point}: closest to the same layer of another seed, {of}: {shares}"
    for row in list_table_records(whole, "sub-networks", "sub-networks"):
        if row["found by"] != "segments":
            continue
        measure, model, near = row["measure"], row["model"], "groups of neighbouring layers"
        if row["sub-networks"] == 1:
            yield model, f"By {measure}, no {near} of {model} are told from a gradient or from noise"
        else:
            parts = [("silhouette", row["silhouette"]), ("without groups", row["without groups"])]
            clear = "; ".join(f"{name} {write_share(value)}" for name, value in parts if value is not None)
            found = f"By {measure}, {model} parts into {row['sub-networks']} {near}"
            doubt = ", no clearer than those of a random walk over layers" if row.get(BEYOND_WALKS) == "no" else ""
            yield model, f"{found}{doubt} ({clear})" if clear else found + doubt


def _list_bounds(row: Mapping[str, Any]) -> list[str]:
    """The interval of a share of layers, and its p, where these are known."""
    between = (
        [] if None in (row["low"], row["high"]) else [f"{write_percent(row['low'])} to {write_percent(row['high'])}"]
    )
    return between + ([] if row.get("p") is None else [f"p {row['p']:.2g}"])
