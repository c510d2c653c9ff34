"""Verdicts that the pages of `experiments/` state: those of `repsim claims`, or of a rule that the table names."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "experiments"
VERDICT = re.compile(r"\b(holds|fails|unclear|not testable)\b")
KNOWN = "old rule", "rule of today", "| was | is |"  # in the first line of a table whose verdicts are not those


def list_verdicts(page: Path) -> list[tuple[str, str, set[str]]]:
    """Lists of each row of a table that states verdicts of claims: the table's first line, the claim, the verdicts."""
    found, first, before = [], "", ""
    for line in page.read_text().splitlines():
        if line.startswith("|"):
            first = first if before.startswith("|") else line
            verdicts = set(VERDICT.findall(line.replace("does not hold", "fails")))
            found += [(first, name, verdicts) for name in re.findall(r"`(\w+_\w+)`", line) if verdicts]
        before = line
    return found


@pytest.fixture(scope="module")
def tiny():
    """The verdicts of the tiny experiments, by claim."""
    rows = [line.split(" | ") for line in (PAGES / "claims.md").read_text().splitlines() if line.startswith("| `")]
    return {row[0].strip("|` "): set(VERDICT.findall(row[-1])) for row in rows}


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_says_what_the_claims_say(page, tiny):
    """A verdict by another rule, or of other models, stands in a table that says so."""
    for first, name, verdicts in list_verdicts(page):
        if name in tiny and not any(known in first for known in KNOWN):
            assert verdicts <= tiny[name], (page.name, name)


def test_verdicts_are_found(tiny):
    found = list_verdicts(PAGES / "gao2024.md")
    assert ("c1_is_nearest_to_the_first_block", {"holds"}) in [(name, verdicts) for _, name, verdicts in found]
    assert any("old rule" in first for first, *_ in found)
    assert tiny["between_groups_cost_late"] == {"holds", "unclear"}
