"""The input of each live model of a run, and whether all of them see the same rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeGuard

import numpy as np

from repsim_cli.activations.batching import measure_lengths
from repsim_cli.activations.places import count_given_rows, count_kept_rows, have_same_rows, mark_read_places
from repsim_cli.activations.readings import Reading
from repsim_cli.activations.remedies import skip_in_all
from repsim_cli.activations.rows import find_used
from repsim_cli.base.errors import BadInput
from repsim_cli.base.planning import is_dry
from repsim_cli.base.settings import WORDS, Extract
from repsim_cli.data.base import Data, Sequences
from repsim_cli.data.chat import Chat, check_chat
from repsim_cli.data.images import Patches
from repsim_cli.data.modular import Numbers
from repsim_cli.data.packing import Text
from repsim_cli.data.words import check_offsets
from repsim_cli.models.shapes import Vocabulary
from repsim_cli.models.source import AnySource, Precomputed, PrecomputedIds, PrecomputedWords, Sentence, Source

NAMED = 5  # ids in a message
SAMPLE = 4096  # characters that a plan tokenizes
TRIED = 1024  # sequences up to which it makes all
MUCH_LOST = 0.1  # share of rows left out above which there is a warning
WORDS_OF_ALL_KINDS = (
    'When the others\' 12,345 machines were rebuilt (in 1987), HE asked: "Why not us, naïve friend?"  _x2'
)
OTHER = {"text": "a different vocabulary", "images": "a different grid of patches", "numbers": "different numbers"}


def name_errors(label: str, step: Callable[..., Any], *arguments: Any) -> Any:
    """The value of the step, whose errors then name the model."""
    try:
        return step(*arguments)
    except BadInput as error:
        raise BadInput(f"model.{label}.{error}") from None


def check_modality(live: Mapping[str, Source], data: Data) -> None:
    """Raises BadInput for a model that cannot read this kind of data."""
    for label, source in live.items():
        if source.modality not in data.modalities:
            raise BadInput(
                f"model.{label}: a model of {source.modality} ({source.model_type}) cannot read "
                f"{' and '.join(sorted(data.modalities))}, got {data.source}; choose other data or another model"
            )


def load_tokenizers(live: Mapping[str, Source], data: Data, extract: Extract) -> dict[str, Any]:
    """The tokenizer of each model. Raises BadInput where different tokenizers would give different rows.

    Whether they also agree on the data is checked once it has been tokenized; for a plan its beginning is. For words
    and pooled examples they need not agree: a row is the same word or example, whatever its tokens.
    """
    by_label = {label: name_errors(label, source.tokenizer) for label, source in live.items()}
    if may_try(data) and not data.chat:
        _check_beginning(next(data.documents(), "")[:SAMPLE], live, by_label)
    if data.chat:
        by_label = {
            label: tokenizer if isinstance(tokenizer, Vocabulary) else name_errors(label, check_chat, tokenizer)
            for label, tokenizer in by_label.items()
        }
    if extract.unit in WORDS:
        if data.modalities != {"text"}:
            rows = "pooled" if "text" in data.modalities else "tokens"
            use = f"use extract={rows} (compare: --rows {rows})"
            raise BadInput(f"extract.unit: {extract.unit}s need text, got {data.source}; {use}")
        if extract.unit == "span" and not data.spanned:
            raise BadInput(
                f"extract.unit: spans need data that marks them, got {data.source}; name their column: "
                "data=local_text data.spans=COLUMN"
            )
        for label, tokenizer in by_label.items():
            if not isinstance(tokenizer, Vocabulary):
                name_errors(label, check_offsets, tokenizer)
        return by_label
    if extract.unit != "token" and not data.packs(extract):
        return by_label
    first, *others = by_label or [""]
    for label in others:
        if have_different_vocabularies(by_label[first], by_label[label]):
            raise _explain_other_tokenizer(first, label, OTHER[data.modality])
    return by_label


def may_try(data: Data) -> TypeGuard[Text]:
    """Tells whether a plan reads the data, as a run would: text that is here."""
    return is_dry() and isinstance(data, Text) and "://" not in data.source


def try_sequences(
    live: Mapping[str, Source], tokenizers: Mapping[str, Any], data: Data, extract: Extract, seed: int
) -> dict[str, Sequences]:
    """The sequences that a run would have, for a plan, which so refuses what the run would; none where they are many,
    or where the data or a tokenizer are not here."""
    unknown = not tokenizers or any(isinstance(tokenizer, Vocabulary) for tokenizer in tokenizers.values())
    if unknown or not may_try(data) or extract.sequences > TRIED:
        return {}
    return make_sequences(live, tokenizers, data, extract, seed)


def share_tokens(live: Mapping[str, Source]) -> bool:
    """Tells whether a token is the same row in all models: their tokenizers have one vocabulary and cut words alike."""
    first, *others = [name_errors(label, source.tokenizer) for label, source in live.items()] or [None]
    return not any(have_different_vocabularies(first, other) or _cut_otherwise(first, other) for other in others)


def _cut_otherwise(a: Any, b: Any) -> bool:
    """Tells whether two tokenizers cut a few words otherwise."""
    if not (callable(a) and callable(b)) or (_identify_tokenizer(a) or a) == (_identify_tokenizer(b) or b):
        return False  # a plan may only know their names
    cut: list[Any] = [tokenizer(WORDS_OF_ALL_KINDS, add_special_tokens=False) for tokenizer in (a, b)]
    return cut[0]["input_ids"] != cut[1]["input_ids"]


def make_sequences(
    live: Mapping[str, Source], tokenizers: Mapping[str, Any], data: Data, extract: Extract, seed: int
) -> dict[str, Sequences]:
    """The sequences of each live model; models with equal tokenizers share them.

    Raises BadInput where models would see different rows, or tokens outside their vocabulary.
    """
    sequences: dict[str, Sequences] = {}
    shared = {label: _identify_tokenizer(tokenizer) or label for label, tokenizer in tokenizers.items()}
    firsts = {key: label for label, key in reversed(shared.items())}
    made: dict[str, Sequences] = {}
    if tokenizers and extract.unit in WORDS:
        made = data.align({label: tokenizers[label] for label in tokenizers if label in firsts.values()}, extract, seed)
    for label, tokenizer in tokenizers.items():
        first_label = firsts[shared[label]]
        if first_label not in made:
            made[first_label] = data.sequences(tokenizer, extract, seed)
        sequences[label] = made[first_label]
        first = next(iter(sequences))
        if not have_same_rows(sequences[first], sequences[label], extract):
            raise _explain_other_tokenizer(first, label, "different tokens on the same text")
    if extract.unit == "sequence":
        for label, given in sequences.items():
            counts = mark_read_places(given, extract).sum(1)
            if counts.min() < counts.max():
                raise BadInput(
                    f"extract.unit: sequences of equal length are needed, got {counts.min()} to {counts.max()} tokens "
                    f"for '{label}'; use unit=mean, or packed text with extract.padding=keep"
                )
    for label, source in live.items():
        _check_ids(label, source, sequences[label].inputs.max().item())
    counted = {label: replace(x, spelled=count_special(x, tokenizers[label])) for label, x in sequences.items()}
    return skip_in_all(counted, tokenizers, extract)


def _check_ids(label: str, source: Source, highest: int | float) -> None:
    """Raises BadInput for a model of text that has no embedding for a token."""
    if source.modality == "text" and highest >= source.vocabulary:
        raise BadInput(
            f"model.{label}: its vocabulary has {source.vocabulary} tokens, got id {highest} "
            "from its tokenizer; use the tokenizer that it was trained with"
        )


def _check_beginning(text: str, live: Mapping[str, Source], tokenizers: Mapping[str, Any]) -> None:
    """Checks the ids of the beginning of the text as `_check_ids` does, by the tokenizers that are here."""
    for label, tokenizer in tokenizers.items():
        if not isinstance(tokenizer, Vocabulary):
            _check_ids(label, live[label], max(tokenizer(text, verbose=False)["input_ids"], default=0))


def count_special(sequences: Sequences, tokenizer: Any) -> dict[str, int]:
    """Counts the special tokens of the tokenizer that stand in the text, by their spelling; empty for other input."""
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    special = {token: str(name) for token, name in added.items() if name.special}
    if not special:
        return {}
    found, counts = np.unique(sequences.ids[sequences.text & np.isin(sequences.ids, list(special))], return_counts=True)
    return {special[token]: count for token, count in zip(found.tolist(), counts.tolist(), strict=True)}


def pair_rows(
    readings: Sequence[Reading],
    sequences: Mapping[str, Sequences],
    data: Data,
    extract: Extract,
    warn: Callable[[str], None],
) -> list[Reading]:
    """The readings, with stored activations of words in the order of the run's sentences, and those with ids in the
    order of the run's ids: those of the data, or of the first file. Rows of a document follow each other.

    Raises BadInput with the first sentence that a file lacks, or that has a different number of words there, with the
    ids of examples that a file lacks, and with a row that belongs to different documents. Without examples, the ids
    that all files have are taken; warn says which some file lacks.
    """
    readings = _pair_by_id(readings, sequences, data, extract, warn)
    readings = readings if sequences else _group_by_document(readings)
    stored = [r.source.sentences for r in readings if isinstance(r.source, PrecomputedWords)]
    if not stored:
        return list(readings)
    wanted = stored[0]
    if sequences:
        if extract.unit != "word":
            raise BadInput(f"extract.unit: stored activations are of words, got {extract.unit}; use extract=words")
        example = next(iter(sequences.values())).example
        assert example is not None
        if not data.worded:
            raise BadInput(
                f"data: stored activations are of sentences of words, got {data.source}; use data=ewt or data=ptb"
            )
        words = data.sentences()
        wanted = [Sentence(" ".join(words[i]), len(words[i])) for i in dict.fromkeys(example.tolist())]
    return [
        replace(r, source=name_errors(r.label, r.source.put_in_order, wanted))
        if isinstance(r.source, PrecomputedWords)
        else r
        for r in readings
    ]


def _pair_by_id(
    readings: Sequence[Reading],
    sequences: Mapping[str, Sequences],
    data: Data,
    extract: Extract,
    warn: Callable[[str], None],
) -> list[Reading]:
    """Pairs rows as `pair_rows` does, where rows of stored activations have ids."""
    keyed = {r.label: r.source for r in readings if isinstance(r.source, PrecomputedIds)}
    without = [r.label for r in readings if isinstance(r.source, Precomputed) and r.label not in keyed]
    if not keyed:
        return list(readings)
    first, *others = keyed
    if without:
        raise BadInput(
            f"model.{without[0]}: its rows have no ids, got ids of the rows of '{first}'; call their array or column "
            "`id`, or set `ids: NAME` in the model's entry"
        )
    if sequences:
        known, given = data.ids_of_examples(), next(iter(sequences.values()))
        if known is None or not extract.pooled:
            raise BadInput(
                f"data: stored activations of '{first}' have an id per example, got {data.source} by {extract.unit}; "
                "use data=table data.id=COLUMN extract=pooled (repsim compare --set data.id=COLUMN)"
            )
        assert given.example is not None
        wanted = [known[i] for i in np.repeat(given.example, count_given_rows(given, extract)).tolist()]
        anywhere, whose = set(known), "the data lack"
    else:
        common = set(keyed[first].ids).intersection(*(keyed[other].ids for other in others))
        wanted = [each for each in keyed[first].ids if each in common]
        if not wanted:
            named = ", ".join(f"'{source.ids[0]}' of '{label}'" for label, source in keyed.items())
            raise BadInput(f"model: no id is in all files, got e.g. {named}; write the same ids")
        anywhere, whose = set(wanted), "another file lacks"
    for label, source in keyed.items():
        has = set(source.ids)
        if lacking := [each for each in wanted if each not in has]:
            raise BadInput(
                f"model.{label}: examples have no row, got the ids {_list_first(lacking)}; write rows for them"
            )
        if surplus := [each for each in source.ids if each not in anywhere]:
            warn(f"model.{label}: rows are left out whose ids {whose}: {_list_first(surplus)}")
    return [replace(r, source=keyed[r.label].put_in_order(wanted)) if r.label in keyed else r for r in readings]


def _group_by_document(readings: Sequence[Reading]) -> list[Reading]:
    """The readings of stored rows, moved so that those of a document follow each other, in their order in the file."""
    documents = find_stored_documents(readings)
    if documents is None:
        return list(readings)
    first = {each: number for number, each in reversed(list(enumerate(documents)))}
    begins = np.array([first[each] for each in documents])
    if (np.diff(begins) >= 0).all():
        return list(readings)
    wanted = np.argsort(begins, kind="stable")
    return [replace(reading, source=_reorder(reading.source, wanted)) for reading in readings]


def _reorder(source: AnySource, wanted: np.ndarray) -> PrecomputedIds:
    """The stored activations with these rows in this order; rows without ids get their numbers as ids."""
    assert isinstance(source, Precomputed)
    if not isinstance(source, PrecomputedIds):
        numbered = [str(number) for number in range(source.rows)]
        source = PrecomputedIds(**{each.name: getattr(source, each.name) for each in fields(Precomputed)}, ids=numbered)
    ids: list[str] = np.array(source.ids)[wanted].tolist()
    return source.put_in_order(ids)


def find_stored_documents(readings: Sequence[Reading]) -> Sequence[str] | None:
    """The document of every stored row, of rows in the order of the run; None where no file says so.

    Raises BadInput where two files disagree.
    """
    stored = {r.label: r.source for r in readings if isinstance(r.source, Precomputed)}
    known = {label: source.documents for label, source in stored.items() if source.documents is not None}
    if not known:
        return None
    (first, documents), *others = known.items()
    for label, other in others:
        if len(other) == len(documents) and list(other) != list(documents):
            row = next(i for i, both in enumerate(zip(documents, other, strict=True)) if both[0] != both[1])
            raise BadInput(
                f"model.{label}.documents: they differ from those of '{first}', got '{other[row]}' for "
                f"'{documents[row]}' in row {row}; write the same documents"
            )
    return documents


def _list_first(ids: Sequence[str]) -> str:
    """The first few, and how many there are in all."""
    return ", ".join(ids[:NAMED]) + (f", ... ({len(ids)} in all)" if len(ids) > NAMED else "")


def describe_inputs(
    sequences: Mapping[str, Sequences], data: Data, extract: Extract
) -> tuple[dict[str, Any], list[str]]:
    """Describes the data for the manifest, with the warnings that its reader gets."""
    sample = next(iter(sequences.values()))
    count, rows, given = (
        len(sample.inputs),
        *(int(of(sample, extract).sum()) for of in (count_kept_rows, count_given_rows)),
    )
    parts, tokens = dict.fromkeys(WORDS, given + sample.lost), int(measure_lengths(find_used(sample, extract)).sum())
    candidates = {"token": tokens, **parts}.get(extract.unit, count)
    truncated = {label: given.truncated for label, given in sequences.items() if given.truncated}
    in_text = {label: dict(given.spelled) for label, given in sequences.items() if given.spelled}
    notices = []
    drawn = sample.documents if extract.unit in WORDS and not data.running else count
    if drawn < extract.sequences and "sequences" not in extract.at_most:
        notices.append(
            f"extract.sequences: {data.source} gave {drawn} sequences, {extract.sequences} were requested; all are used"
        )
    for cut in dict.fromkeys(truncated.values()):
        whose = ", ".join(f"'{label}'" for label, of_label in truncated.items() if of_label == cut)
        what = f"{extract.unit}s have their pieces" if extract.unit in WORDS else f"of {count} examples were"
        notices.append(f"extract.length: {cut} {what} cut to {extract.length} tokens for {whose}")
    if sample.split:
        notices.append(
            f"extract.length: {sample.split} texts are longer than {extract.length} tokens for some model and are "
            "read in several stretches, split at the same words for all models; a word sees only its own stretch"
        )
    notices += [f"data: {n} examples of {data.source} are left out ({why})" for why, n in sample.dropped.items()]
    if some := sample.words_dropped:
        each = [f"{left_out} ({reason})" for reason, left_out in some.items()]
        reasons = f" ({next(iter(some))})" if len(some) == 1 else f": {', '.join(each)}"
        left_out = f"{sum(some.values())} {extract.unit}s of {data.source}"
        notices.append(f"data: {left_out} are left out for all models{reasons}")
    if given - rows > MUCH_LOST * given:
        notices.append(f"extract.skip: {given - rows} of {given} rows are left out, as some model skips their places")
    record = {
        "source": data.source,
        "hash": sample.hash(),
        "documents_read": sample.documents,
        "sequences": count,
        "sequences_available": sample.available,
        "pool": extract.pool if data.running else None,
        "tokens": tokens,
        "length": extract.length,
        "unit": extract.unit,
        "rows_kept": rows,
        "rows_dropped": candidates - rows,
        "rows_skipped": given - rows,
        "special_tokens_in_text": in_text,
        "sentences_split": sample.split,
        "labels": sample.labels and sample.labels.counts(),
        "examples_dropped": dict(sample.dropped),
        "examples_truncated": truncated,
    }
    return record, notices


def _identify_tokenizer(tokenizer: Any) -> Any:
    """A value that is equal for tokenizers that do the same; None where this cannot be determined."""
    if isinstance(tokenizer, Patches | Numbers):
        return tokenizer
    template = tokenizer.chat_template if isinstance(tokenizer, Chat) else None
    return (template, tokenizer.backend_tokenizer.to_str()) if tokenizer.is_fast else None


def have_different_vocabularies(a: Any, b: Any) -> bool:
    """Tells whether two tokenizers have different vocabularies. Published models are compared in a dry run by the names
    of their tokenizers; a name is never compared with a file."""
    if isinstance(a, Vocabulary) != isinstance(b, Vocabulary):
        return False
    return _read_vocabulary(a) != _read_vocabulary(b)


def _read_vocabulary(tokenizer: Any) -> Any:
    """Reads what must be equal in two tokenizers for their tokens (or patches) to be the same."""
    if isinstance(tokenizer, Numbers | Vocabulary):
        return tokenizer
    return tokenizer.patches if isinstance(tokenizer, Patches) else tokenizer.get_vocab()


def _explain_other_tokenizer(first: str, other: str, how: str) -> BadInput:
    return BadInput(
        f"model: tokenizers differ, got {how} for '{other}' than for '{first}'; use extract=pooled (a row per document "
        "or example) or extract=words (a row per word; compare: --rows words), or models that share a tokenizer"
    )
