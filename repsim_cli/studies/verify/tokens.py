"""Two tokenizers: whether they give the same ids, and where they do not."""

from collections.abc import Iterable, Mapping
from typing import Any

from repsim_cli.studies.verify.answer import Difference

AROUND = 20  # characters shown


def find_differing(reference: Any, candidate: Any, texts: Iterable[str]) -> Difference | None:
    """Finds the first text that gives other ids; None where all give the same."""
    return find_differing_ids({text: reference(text, verbose=False)["input_ids"] for text in texts}, candidate)


def find_differing_ids(ids: Mapping[str, list[int]], candidate: Any) -> Difference | None:
    """Finds the first text that gives other ids than these; None where all give them."""
    for number, (text, a) in enumerate(ids.items()):
        b = candidate(text, verbose=False)["input_ids"]
        if a == b:
            continue
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        shown = [candidate.decode(part[at : at + 4])[:AROUND] for part in (a, b)]
        about = (
            f"the tokenizers differ: token {at} of {text[:AROUND]!r}... is {_say_token_id(a, at)} ({shown[0]!r}) in "
            f"the reference and {_say_token_id(b, at)} ({shown[1]!r}) in the candidate"
        )
        return Difference(
            unit="token ids",
            block=None,
            place="",
            point=None,
            kind="tokenizer",
            about=about,
            relative=1.0,
            times=0.0,
            agree=number,
            tokens=0,
            first=at,
            inputs=["text"],
        )
    return None


def _say_token_id(ids: list[int], at: int) -> str:
    return f"id {ids[at]}" if at < len(ids) else "its end"
