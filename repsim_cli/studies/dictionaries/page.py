"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator

from repsim_cli.base.registry import pages
from repsim_cli.report.studies import Said, format_percent, list_table_records
from repsim_cli.runs.content import Results


@pages.register("features", "Which features of sparse dictionaries do seeds and models share?")
def say_shared_features(whole: Results) -> Iterator[Said]:
    """Says how many latents dictionaries share, beside random directions, and what one model's code says of another."""
    for row in list_table_records(whole, "shared latents", "shared", "latents"):
        random = row["random directions: shared"]
        yield (
            row["model"],
            f"{row['model']} {row['layer']}: {format_percent(row['shared'])} of {row['latents']:,} latents are shared "
            f"by {row['dictionaries']}"
            + ("" if random is None else f" (of random directions {format_percent(random)})"),
        )
    for row in list_table_records(whole, "cross-reconstruction", "R²"):
        if row["encoded"] != row["decoded"]:
            best = row["R² of the best affine map"]
            beside = "" if best is None else f", an affine map by least squares {best:.2f}"
            yield (
                row["encoded"],
                f"{row['layer']}: the code of {row['encoded']} gives {row['decoded']} with R² {row['R²']:.2f}{beside}, "
                "on rows that neither has seen",
            )


ASKED = "Which latents of a crosscoder are of one model alone, and what does it explain of each?"
pages.register("crosscoder", ASKED)(lambda whole: ())
pages.register("dictionary_transfer", "Does a dictionary of the base still work in a tuned model?")(lambda whole: ())
