"""Two tokenizers: whether they give the same ids, and whether they are the same.

A text shows the entries that it uses; so what tokenizers hold is compared too: ids of the vocabulary, merges, added
tokens, and what is done with a text before and behind them. What changes no ids is left out: truncation, padding,
decoders, places of characters."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from repsim_cli.data.files import read_json_file
from repsim_cli.models.gguf import is_gguf
from repsim_cli.studies.verify.answer import DIFFERENT, IDENTICAL, ROUNDING, SHOWN, TOKEN_IDS, Answer, Difference

AROUND = 20  # characters shown
VOCABULARY, MERGES, ADDED, SCORES = "entries of the vocabulary", "merges", "added tokens", "scores of entries"
SETTINGS = ("normalizer", "pre_tokenizer", "post_processor", "model")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
NO_IDS = ("trim_offsets",)  # settings that change no ids
CHARACTERS = range(0x20, 0x3100)  # tried where tokenizers are set up in another way
Parts = Mapping[str, Mapping[str, Any]]
"""Of a tokenizer: its tables by what their entries are, and its settings by their names."""


def write_tokenizer(tokenizer: Any) -> str | None:
    """Writes a tokenizer as tokenizer.json has it; None for one that is slow, or from a GGUF file, where all but the
    vocabulary is written in another way."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None or is_gguf(str(getattr(tokenizer, "name_or_path", ""))) else backend.to_str()


def describe_tokenizer(tokenizer: Any, written: str | None) -> dict[str, dict[str, Any]]:
    """Reads all of a tokenizer that decides ids, by part. written: as `write_tokenizer` gives it; None: the vocabulary
    alone."""
    vocabulary = getattr(tokenizer, "get_vocab", dict)()
    made: dict[str, dict[str, Any]] = {VOCABULARY: dict(sorted(vocabulary.items(), key=lambda entry: entry[1]))}
    return made if written is None else made | _describe_document(json.loads(written))


def _describe_document(said: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Reads the other parts of a tokenizer, as tokenizer.json has them."""
    model = dict(said["model"])
    vocabulary = model.pop("vocab", {})
    scores = {} if isinstance(vocabulary, Mapping) else {piece: score for piece, score in vocabulary}
    merges = [each if isinstance(each, str) else " ".join(each) for each in model.pop("merges", None) or []]
    added = {
        each["content"]: {"id": each["id"], **{flag: each.get(flag) for flag in FLAGS}}
        for each in said.get("added_tokens") or []
    }
    settings = {name: _drop_without_effect(said.get(name)) for name in SETTINGS} | {
        "model": _drop_without_effect(model)
    }
    return {SCORES: scores, MERGES: {each: i for i, each in enumerate(merges)}, ADDED: added, "": settings}


def name_different_files(reference: Any, candidate: Any) -> list[str]:
    """Names the settings that differ between the files tokenizer.json of two tokenizers, some of which transformers
    takes from elsewhere; none where one has no such file."""
    files = [Path(str(each.name_or_path)) / "tokenizer.json" for each in (reference, candidate)]
    if not all(file.is_file() for file in files):
        return []
    a, b = (_describe_document(read_json_file(file))[""] for file in files)
    return [name for name in SETTINGS if a[name] != b[name]]


def _drop_without_effect(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _drop_without_effect(each) for key, each in value.items() if key not in NO_IDS}
    return [_drop_without_effect(each) for each in value] if isinstance(value, list) else value


def digest_tokenizer(tokenizer: Any) -> dict[str, str]:
    """Makes a digest of each part of a tokenizer, which a file holds in its place."""
    parts = describe_tokenizer(tokenizer, write_tokenizer(tokenizer))
    return {
        name: hashlib.sha256(json.dumps([*table] if name == MERGES else table, sort_keys=True).encode()).hexdigest()[
            :16
        ]
        for name, table in parts.items()
    }


def name_different_tables(reference: Parts, candidate: Parts, *, alike: bool = True) -> list[str]:
    """Says which entries of the tables that both have differ: how many, and the first few. alike: both come from one
    kind of file; else entries count that both have, since some files fill the vocabulary up."""
    said = []
    for name in (name for name in reference if name and name in candidate):
        a, b = reference[name], candidate[name]
        if name == MERGES:  # one that is not there moves all behind it
            a, b = ({each: i for i, each in enumerate(x for x in one if x in other)} for one, other in ((a, b), (b, a)))
            a |= dict.fromkeys(reference[name].keys() - b.keys(), -1)
            b |= dict.fromkeys(candidate[name].keys() - a.keys(), -1)
        differ = [each for each in {**a, **b} if a.get(each) != b.get(each) and (alike or (each in a and each in b))]
        if differ:
            shown = "; ".join(f"{each!r} {_say_entry(name, a.get(each), b.get(each))}" for each in differ[:SHOWN])
            more = ", ..." if len(differ) > SHOWN else ""
            of = len({**a, **b} if alike else a.keys() & b.keys())
            said.append(f"{len(differ):,} of {of:,} {name} differ ({shown}{more})")
    return said


def _say_entry(table: str, a: Any, b: Any) -> str:
    if a is None or b is None:
        return f"is in the {'candidate' if a is None else 'reference'} alone"
    if table == MERGES:
        return "is in another place"
    if table == ADDED:
        a, b = ({key: x for key, x in one.items() if x != other[key]} for one, other in ((a, b), (b, a)))
    return f"is {a} in the reference and {b} in the candidate"


def find_differing(reference: Any, candidate: Any, texts: Iterable[str]) -> Difference | None:
    """Finds the first text that gives other ids; None where all give the same."""
    ids = {text: reference(text, verbose=False)["input_ids"] for text in texts}
    return find_differing_ids(ids, candidate, reference)


def find_differing_ids(ids: Mapping[str, list[int]], candidate: Any, reference: Any = None) -> Difference | None:
    """Finds the first text that gives other ids than these; None where all give them. reference: the tokenizer that
    gave them, if there is one."""
    for text, a in ids.items():
        b = candidate(text, verbose=False)["input_ids"]
        if a == b:
            continue
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        ours, theirs = _say_token(a, at, reference), _say_token(b, at, candidate)
        shown = f"{text[:AROUND]!r}{'...' * (len(text) > AROUND)}"
        about = f"token {at} of {shown} is {ours} in the reference and {theirs} in the candidate"
        return make_difference(f"the tokenizers differ: {about}", at)
    return None


def make_difference(about: str, first: int | None = None, inputs: Sequence[str] = ("text",)) -> Difference:
    """Makes the difference of two tokenizers.

    about: what differs.
    first: the first token that does; None: not of tokens.
    inputs: those that show it.
    """
    return Difference(
        unit=TOKEN_IDS,
        block=None,
        place="",
        point=None,
        kind="tokenizer",
        about=about,
        relative=1.0,
        times=0.0,
        agree=0,
        tokens=0,
        first=first,
        inputs=inputs,
    )


def _say_token(ids: list[int], at: int, tokenizer: Any) -> str:
    """Says an id with its entry in the vocabulary that it is of."""
    if at >= len(ids):
        return "its end"
    return f"id {ids[at]}" + ("" if tokenizer is None else f" ({tokenizer.convert_ids_to_tokens(ids[at])!r})")


def compare_tokenizers(reference: Any, candidate: Any, texts: Sequence[str]) -> tuple[Difference | None, list[str]]:
    """Finds the difference of two tokenizers, and notes on what is not known. texts: on which ids are compared."""
    other, words = find_differing(reference, candidate, texts), _count_words(texts)
    first, second = write_tokenizer(reference), write_tokenizer(candidate)
    whole = first is not None and second is not None
    a: Parts = {}
    b: Parts = {}
    if not whole or first != second:
        a, b = (describe_tokenizer(x, y if whole else None) for x, y in ((reference, first), (candidate, second)))
    tables = name_different_tables(a, b, alike=whole or first is second)
    if tables:
        about = f"the tokenizers differ: {'; '.join(tables)}"
        if other is None:
            return make_difference(f"{about}; token ids are equal on {words} words of the text", inputs=()), []
        return replace(other, about=f"{about}; {other.about.partition(': ')[2]}"), []
    if other is not None:
        return other, []
    if not whole:
        said = f"of the tokenizers, only the vocabularies are compared; token ids equal on {words} words of the text"
        return None, [said]
    ours, theirs = a.get("", {}), b.get("", {})
    if ours == theirs:
        differ = ", ".join(name_different_files(reference, candidate))
        return None, [f"{SET_UP} in tokenizer.json ({differ}), which transformers does not follow"] if differ else []
    tried = [f"a{chr(code)}b {chr(code)}" for code in CHARACTERS]
    if (other := find_differing(reference, candidate, tried)) is not None:
        return replace(other, inputs=()), []
    differ = ", ".join(name for name in SETTINGS if ours[name] != theirs[name])
    return None, [f"{SET_UP} ({differ}); token ids equal on {words} words of the text and {len(tried):,} characters"]


SET_UP = "the tokenizers are set up in another way"


def compare_with_digests(
    saved: Mapping[str, str], ids: Mapping[str, list[int]], candidate: Any
) -> tuple[Difference | None, list[str]]:
    """Finds the difference of a tokenizer from one of which a file holds digests and the ids of some texts."""
    own = digest_tokenizer(candidate)
    other, equal = find_differing_ids(ids, candidate), f"token ids equal on {_count_words(ids)} words of the text"
    if other is not None:
        return other, []
    if saved.keys() != own.keys():
        return None, [equal]
    differ = [name for name in saved if saved[name] != own[name]]
    if tables := [name for name in differ if name]:
        about = f"the tokenizers differ: the {' and the '.join(tables)} are not the same; {equal}"
        return make_difference(about, inputs=()), []
    return None, [f"{SET_UP}; {equal}"] if differ else []


def _count_words(texts: Iterable[str]) -> str:
    return f"{sum(len(text.split()) for text in texts):,}"


def put_token_ids_first(other: Difference | None, answer: Answer, notes: Sequence[str]) -> Answer:
    """The answer of the models on the token ids of one side, with how the tokenizers differ before it."""
    notes = [*notes, *answer.notes]
    if other is None:
        set_up = answer.verdict == IDENTICAL and any(note.startswith(SET_UP) for note in notes)
        return replace(answer, verdict=ROUNDING if set_up else answer.verdict, notes=notes)
    return replace(answer, verdict=DIFFERENT, differences=[other, *answer.differences], notes=notes)
