"""The settings of extraction -> `Extract`: what `auto` stands for, by the models and data of a run."""

import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.schemas import Fields
from repsim_cli.base.settings import IN_BATCHES, WORDS, Extract
from repsim_cli.config.binding import bind

# tokens of `extract.length=auto`, and of a word, with punctuation, ends of documents and what is skipped
SHORTEST, LONGEST, PER_WORD = 128, 512, 2.5
# by unit, what `auto` means for language models: nothing hides what is shared, and rotations count for nothing
# (benchmarks/remedies.py)
USUAL: dict[str, Fields] = {
    "token": {"skip": 4, "normalise": "directions"},
    "word": {"skip": 2, "normalise": "directions"},
}
# `extract.sequences` and `extract.rows` where they are auto
STRETCHES, SENTENCES, POOLED, ROWS = 64, 2048, 1024, 4096
UNCHANGED: Fields = {"skip": 0, "normalise": "none"}


def extract_of(problems: list[str], notes: list[str], given: Fields, bound: Fields, study: Any) -> Extract | None:
    """Binds the settings of extraction, with `auto` resolved and a length that every model can read: the models of a
    comparison have to read the same rows.

    bound: the models and data of the run. study: which remedies it takes, and whether pairs of rows can be left out.
    """
    from repsim_cli.models.source import Series, Source

    models = bound.get("model", {})
    running = bound.get("data") is not None and bound["data"].running
    sentences = given.get("unit") in WORDS and not running
    contexts: dict[str, int] = {}
    for label, model in models.items():
        with suppress(BadInput):  # of a broken checkpoint, which the study names
            source = model.checkpoints[-1].open() if isinstance(model, Series) else model
            if isinstance(source, Source) and source.modality == "text":
                contexts[label] = sys.maxsize if source.context is None else source.context
    shortest = min(contexts, key=contexts.__getitem__, default=None)
    most = sys.maxsize if shortest is None else contexts[shortest]
    usual = USUAL.get(str(given.get("unit")), {}) if len(contexts) == len(models) else {}
    automatic = {
        "sequences": SENTENCES if sentences else STRETCHES if given.get("unit") in ("token", *WORDS) else POOLED,
        "rows": ROWS if given.get("unit") in ("token", *WORDS) else POOLED,
        "batch_rows": Extract.batch_rows,
        "at_most": [key for key in ("sequences", "rows", "batch_rows") if given.get(key) == "auto"],
        "pairs": "auto" if study.takes_pairs else "all",
        **{key: usual.get(key, none) if key in study.takes_remedies else none for key, none in UNCHANGED.items()},
    }
    given = given | {key: x for key, x in automatic.items() if given.get(key) == "auto"}
    if given.get("length") == "auto":
        given["length"] = min(_stretch(given) if running else LONGEST, most)
    extract = bind(problems, "extract", Extract, given)
    if extract is None:
        return None
    if extract.estimate in IN_BATCHES and extract.rows != ROWS and "rows" not in extract.at_most:
        notes.append(
            f"extract.rows: only for extract.estimate=full, got {extract.rows} with {extract.estimate}, which takes "
            "all rows; set extract.estimate=full, or read less text with extract.sequences"
        )
    if contexts and extract.skip >= min(extract.length, most):
        problems.append(
            f"extract.skip: no row is left, as sequences have at most {min(extract.length, most)} tokens, got "
            f"{extract.skip}; extract.skip=0 reads them"
        )
    if extract.length <= most:
        return extract
    notes.append(
        f"extract.length: lowered from {extract.length} to {most} tokens, the context of '{shortest}'; "
        "all models read the same rows"
    )
    return replace(extract, length=most)


def _stretch(given: Fields) -> int:
    """Counts the tokens of a stretch of running text: of one sample of words about those of the words taken of each."""
    match given:
        case {"unit": "word", "estimate": "full", "rows": int(rows), "sequences": int(sequences)} if sequences > 0:
            return min(max(int(PER_WORD * rows / sequences), SHORTEST), LONGEST)
        case _:
            return LONGEST
