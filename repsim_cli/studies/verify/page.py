"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator

from repsim_cli.base.registry import pages
from repsim_cli.report.studies import Said
from repsim_cli.runs.content import Results


@pages.register("verify", "Is it the same model, and if not, where does it first differ?")
def say_verdict(whole: Results) -> Iterator[Said]:
    """Says whether two models are the same, and where they first differ: the lines of the answer."""
    about = whole.about.get("verify", {})
    for number, line in enumerate(about.get("lines", ())):
        if number:
            what, _, said = line.strip().partition(" ")
            yield what, f"{what}: {said.strip()}"
        else:
            yield "", f"{about['candidate']} beside {about['reference']}: {' '.join(line.split())}"
