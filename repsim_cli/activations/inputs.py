"""What each live model of a run is given, and whether all of them see the same rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from repsim_cli.activations.rows import Reading, kept, rows_of, same_rows
from repsim_cli.data.base import Data, Sequences
from repsim_cli.data.images import Patches
from repsim_cli.data.modular import Numbers
from repsim_cli.data.words import check_offsets
from repsim_cli.errors import BadInput
from repsim_cli.models.shapes import Vocabulary
from repsim_cli.models.source import PrecomputedWords, Sentence, Source
from repsim_cli.settings import Extract

OTHER = {"text": "another vocabulary", "images": "another grid of patches", "numbers": "other numbers"}


def named(label: str, step: Callable[..., Any], *arguments: Any) -> Any:
    """The step's value; its errors say which model's."""
    try:
        return step(*arguments)
    except BadInput as error:
        raise BadInput(f"model.{label}.{error}") from None


def check_modality(live: Mapping[str, Source], data: Data) -> None:
    """Raises BadInput for a model that reads no such data."""
    for label, source in live.items():
        if source.modality != data.modality:
            raise BadInput(
                f"model.{label}: a model of {source.modality} ({source.model_type}) reads no "
                f"{data.modality}, got {data.source}; choose other data or another model"
            )


def tokenizers(live: Mapping[str, Source], data: Data, extract: Extract) -> dict[str, Any]:
    """The tokenizer of each model. Raises BadInput where rows would differ because these do.

    Whether they agree on the data, too, is checked when it has been tokenized. For words and pooled examples they
    need not: a row is the same word or example, whatever its tokens.
    """
    found = {label: named(label, source.tokenizer) for label, source in live.items()}
    if extract.unit == "word":
        if found and not data.worded:
            raise BadInput(
                f"extract.unit: words need data that is sentences of words, got {data.source}; use data=ewt or data=ptb"
            )
        for label, tokenizer in found.items():
            if not isinstance(tokenizer, Vocabulary):
                named(label, check_offsets, tokenizer)
        return found
    if extract.unit != "token" and not data.packs(extract):
        return found
    first, *others = found or [""]
    for label in others:
        if _vocabularies_differ(found[first], found[label]):
            raise _other_tokenizer(first, label, OTHER[data.modality])
    return found


def sequences_of(
    live: Mapping[str, Source], tokenizers: Mapping[str, Any], data: Data, extract: Extract, seed: int
) -> dict[str, Sequences]:
    """What each live model is run on; models whose tokenizers are equal share it.

    Raises BadInput where models would see different rows, or tokens that they do not know.
    """
    sequences: dict[str, Sequences] = {}
    shared = {label: _same_tokenizer(tokenizer) or label for label, tokenizer in tokenizers.items()}
    firsts = {key: label for label, key in reversed(shared.items())}
    made: dict[str, Sequences] = {}
    if tokenizers and extract.unit == "word":
        made = data.aligned(
            {label: tokenizers[label] for label in tokenizers if label in firsts.values()}, extract, seed
        )
    for label, tokenizer in tokenizers.items():
        one = firsts[shared[label]]
        if one not in made:
            made[one] = data.sequences(tokenizer, extract, seed)
        sequences[label] = made[one]
        first = next(iter(sequences))
        if not same_rows(sequences[first], sequences[label], extract):
            raise _other_tokenizer(first, label, "other tokens on the same text")
    if extract.unit == "sequence":
        for label, one in sequences.items():
            counts = kept(one, extract).sum(1)
            if counts.min() < counts.max():
                raise BadInput(
                    f"extract.unit: sequences of one length are needed, got {counts.min()} to {counts.max()} tokens "
                    f"for '{label}'; use unit=mean, or packed text with extract.padding=keep"
                )
    for label, source in live.items():
        highest = sequences[label].inputs.max()
        if source.modality == "text" and highest >= source.vocabulary:
            raise BadInput(
                f"model.{label}: its vocabulary has {source.vocabulary} tokens, got id {highest} "
                "from its tokenizer; use the tokenizer that it was trained with"
            )
    return sequences


def paired(found: Sequence[Reading], sequences: Mapping[str, Sequences], data: Data, extract: Extract) -> list[Reading]:
    """Stored activations of words in the order of the run's sentences: those of the data, or of the first file.

    Raises BadInput naming the first sentence that a file lacks, or that has another number of words there.
    """
    stored = [r.source.sentences for r in found if isinstance(r.source, PrecomputedWords)]
    if not stored:
        return list(found)
    wanted = stored[0]
    if sequences:
        if extract.unit != "word":
            raise BadInput(f"extract.unit: stored activations are of words, got {extract.unit}; use extract=words")
        example = next(iter(sequences.values())).example
        assert example is not None
        words = data.sentences()
        wanted = [Sentence(" ".join(words[i]), len(words[i])) for i in dict.fromkeys(example.tolist())]
    return [
        replace(r, source=named(r.label, r.source.ordered, wanted)) if isinstance(r.source, PrecomputedWords) else r
        for r in found
    ]


def described(sequences: Mapping[str, Sequences], data: Data, extract: Extract) -> tuple[dict[str, Any], list[str]]:
    """What the manifest says of the data, and what its reader is warned about."""
    one = next(iter(sequences.values()))
    count, rows = len(one.inputs), int(rows_of(one, extract).sum())
    candidates = {"token": one.mask.size, "word": rows + one.lost}.get(extract.unit, count)
    truncated = {label: each.truncated for label, each in sequences.items() if each.truncated}
    notices = []
    drawn = one.documents if extract.unit == "word" else count
    if drawn < extract.sequences:
        notices.append(
            f"extract.sequences: {data.source} gave {drawn} sequences, {extract.sequences} were asked for; all are used"
        )
    for label, cut in truncated.items():
        what = "words have their pieces" if extract.unit == "word" else f"of {count} examples were"
        notices.append(f"extract.length: {cut} {what} cut to {extract.length} tokens for '{label}'")
    if one.split:
        notices.append(
            f"extract.length: {one.split} sentences are longer than {extract.length} tokens for some model and are "
            "read in several stretches, split at the same words for all models; words see no further than theirs"
        )
    for reason, left_out in one.dropped.items():
        notices.append(f"data: {left_out} examples of {data.source} are left out ({reason})")
    record = {
        "source": data.source,
        "hash": one.hash(),
        "documents_read": one.documents,
        "sequences": count,
        "tokens": one.mask.size,
        "length": extract.length,
        "unit": extract.unit,
        "rows_kept": rows,
        "rows_dropped": candidates - rows,
        "sentences_split": one.split,
        "labels": one.labels and one.labels.counts(),
        "examples_dropped": dict(one.dropped),
        "examples_truncated": truncated,
    }
    return record, notices


def _same_tokenizer(tokenizer: Any) -> Any:
    """Equal for tokenizers that do the same; None where that cannot be told."""
    if isinstance(tokenizer, Patches | Numbers):
        return tokenizer
    return tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else None


def _vocabularies_differ(one: Any, other: Any) -> bool:
    """In a dry run, the names of the tokenizers of published models say it; a name cannot be compared with a file."""
    if isinstance(one, Vocabulary) != isinstance(other, Vocabulary):
        return False
    return _vocabulary(one) != _vocabulary(other)


def _vocabulary(tokenizer: Any) -> Any:
    """What must agree for tokens (or patches) of two models to be the same."""
    if isinstance(tokenizer, Numbers | Vocabulary):
        return tokenizer
    return tokenizer.places if isinstance(tokenizer, Patches) else tokenizer.get_vocab()


def _other_tokenizer(first: str, other: str, how: str) -> BadInput:
    return BadInput(
        f"model: tokenizers differ, got {how} for '{other}' than for '{first}'; use extract=pooled (a row per document "
        "or example), or extract=words with data=ewt or data=ptb, or models that share a tokenizer"
    )
