"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator, Mapping
from typing import Any

from repsim_cli.base.plain import write_share
from repsim_cli.base.registry import pages
from repsim_cli.findings.evidence import LEVEL
from repsim_cli.report.studies import Said, format_percent, list_table_records
from repsim_cli.runs.content import Results


@pages.register("features", "Which features of sparse dictionaries do seeds and models share?")
def say_shared_features(whole: Results) -> Iterator[Said]:
    """Says how many latents dictionaries share, beside chance, and what one model's code says of another."""
    for row in list_table_records(whole, "shared latents", "shared", "latents"):
        yield (
            row["model"],
            f"{row['model']} {row['layer']}: {format_percent(row['shared'])} of {row['latents']:,} latents are shared "
            f"by {row['dictionaries']}{_say_beside(row)}",
        )
    for row in list_table_records(whole, "cross-reconstruction", "R²"):
        if row["encoded"] != row["decoded"]:
            best = row["R² of the best affine map"]
            beside = "" if best is None else f", an affine map by least squares {write_share(best)}"
            yield (
                row["encoded"],
                f"{row['layer']}: the code of {row['encoded']} gives {row['decoded']} with R² "
                f"{write_share(row['R²'])}{beside}, on rows that neither has seen",
            )


BESIDE = (
    "shared: low",
    "shared: high",
    "shared by decoder",
    *(f"{of}: {by}" for of in ("chance", "p") for by in ("shared", "by decoder")),
)


def _say_beside(row: Mapping[str, Any]) -> str:
    """Says the interval of what is shared, and what of it the covariance of the rows gives."""
    if any(row.get(name) is None for name in BESIDE):  # a run of before, whose chance was of other random directions
        return ""
    ends = " to ".join(format_percent(row[f"shared: {end}"]) for end in ("low", "high"))
    both, decoder = (
        f"{'more' if row[f'p: {by}'] <= LEVEL else 'no more'} than chance ({format_percent(row[f'chance: {by}'])}"
        for by in ("shared", "by decoder")
    )
    return (
        f" (95 % interval over latents: {ends}), {both} with one of them mirrored in random axes of the rows); "
        f"{format_percent(row['shared by decoder'])} by decoder alone, {decoder})"
    )


ASKED = "Which latents of a crosscoder are of one model alone, and what does it explain of each?"
pages.register("crosscoder", ASKED)(lambda whole: ())
pages.register("dictionary_transfer", "Does a dictionary of the base still work in a tuned model?")(lambda whole: ())
