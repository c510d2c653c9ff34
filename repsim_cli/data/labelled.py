"""Labelled text: MNLI, HANS, SST-2, Yelp polarity, QNLI, QQP, from the hub or from files in their official formats."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int
from pydantic import Field

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path
from repsim_cli.base.registry import data, did_you_mean
from repsim_cli.base.settings import WORDS, Extract
from repsim_cli.data.base import Data, Labels, Sequences, draw
from repsim_cli.data.copies import find_equal_texts
from repsim_cli.data.files import decode_cell, find_file
from repsim_cli.data.hub import NO_LABEL, DataRow, HubTable, read_hub_records
from repsim_cli.data.network import download
from repsim_cli.data.padding import pad
from repsim_cli.data.records import read_file_records
from repsim_cli.data.words import WordTally, align, cut_common_stretches, find_word_spans, make_text_passage

Spelled = dict[str | Annotated[int, Field(ge=-1000, le=1000)], str]
SUFFIXES = (".tsv", ".txt", ".csv", ".jsonl", ".jsonl.zst", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Format:
    """How a data set is stored, on the hub and in its official files.

    labels: the names of the labels, in the order of their codes.
    texts, label: the columns, with all the names each may have.
    files: the official file of each split.
    hub: a table of the hub, or the URL of the folder that holds the files.
    spelled: other spellings of a label in the files.
    header: the columns, where official files have no header.
    """

    labels: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]
    label: tuple[str, ...]
    files: Mapping[str, str]
    hub: HubTable | str
    spelled: Mapping[str, str] = field(default_factory=dict)
    header: tuple[str, ...] = ()


PAIR = (("sentence1", "premise"), ("sentence2", "hypothesis"))
GLUE_FILES = {"train": "train.tsv", "validation": "dev.tsv"}

FORMATS = {
    "mnli": Format(
        labels=("entailment", "neutral", "contradiction"),
        texts=PAIR,
        label=("gold_label", "label"),
        files={
            "train": "train.tsv",
            "validation_matched": "dev_matched.tsv",
            "validation_mismatched": "dev_mismatched.tsv",
        },
        hub=HubTable("nyu-mll/glue", "mnli"),
    ),
    "hans": Format(
        labels=("entailment", "non-entailment"),
        texts=PAIR,
        label=("gold_label", "label"),
        files={"train": "heuristics_train_set.txt", "validation": "heuristics_evaluation_set.txt"},
        hub="https://raw.githubusercontent.com/tommccoy1/hans/master",
    ),
    "sst2": Format(
        labels=("negative", "positive"),
        spelled={"0": "negative", "1": "positive"},
        texts=(("sentence",),),
        label=("label",),
        files=GLUE_FILES,
        hub=HubTable("nyu-mll/glue", "sst2"),
    ),
    "yelp": Format(
        labels=("negative", "positive"),
        spelled={"1": "negative", "2": "positive"},
        texts=(("text",),),
        label=("label",),
        files={"train": "train.csv", "test": "test.csv"},
        hub=HubTable("fancyzhx/yelp_polarity", "plain_text"),
        header=("label", "text"),
    ),
    "qnli": Format(
        labels=("entailment", "not_entailment"),
        texts=(("question",), ("sentence",)),
        label=("label",),
        files=GLUE_FILES,
        hub=HubTable("nyu-mll/glue", "qnli"),
    ),
    "qqp": Format(
        labels=("not_duplicate", "duplicate"),
        spelled={"0": "not_duplicate", "1": "duplicate"},
        texts=(("question1",), ("question2",)),
        label=("is_duplicate", "label"),
        files=GLUE_FILES,
        hub=HubTable("nyu-mll/glue", "qqp"),
    ),
}

SUBCASES = {
    "lexical_overlap": (
        "le_around_prepositional_phrase", "le_around_relative_clause", "le_conjunction", "le_passive",
        "le_relative_clause", "ln_conjunction", "ln_passive", "ln_preposition", "ln_relative_clause",
        "ln_subject/object_swap",
    ),
    "subsequence": (
        "se_PP_on_obj", "se_adjective", "se_conjunction", "se_relative_clause_on_obj", "se_understood_object",
        "sn_NP/S", "sn_NP/Z", "sn_PP_on_subject", "sn_past_participle", "sn_relative_clause_on_subject",
    ),
    "constituent": (
        "ce_adverb", "ce_after_since_clause", "ce_conjunction", "ce_embedded_under_since", "ce_embedded_under_verb",
        "cn_adverb", "cn_after_if_clause", "cn_disjunction", "cn_embedded_under_if", "cn_embedded_under_verb",
    ),
}  # fmt: skip


TAGS = ("heuristic", "subcase")  # columns of HANS


@dataclass(frozen=True)
class Example:
    """A text or a pair of texts, and the name of its label (None without labels).

    heuristic, subcase: of data in the style of HANS. group, id: of tables.
    """

    texts: tuple[str, ...]
    label: str | None
    heuristic: str | None = None
    subcase: str | None = None
    group: str | None = None
    id: str | None = None


@dataclass(frozen=True)
class Examples(Data):
    """Labelled text; each example is a sequence.

    read(): every example, or the reason why it is left out.
    names: the labels, in the order of their codes.
    find: the words in a text.
    """

    read: Callable[[], Iterator[Example | str]]
    names: tuple[str, ...]
    source: str
    chat: bool = False
    public: bool = False
    find: Callable[[str], Int[np.ndarray, "w 2"]] = find_word_spans

    def keep(self) -> "Examples":
        """The same examples, read when first needed and then kept."""
        once = cache(lambda: list(self.read()))
        return replace(self, read=lambda: iter(once()))

    def examples(self) -> tuple[list[Example], dict[str, int]]:
        """Reads all examples, which `Sequences.example` numbers, and counts those that are left out, by reason."""
        examples, dropped = list[Example](), dict[str, int]()
        for example in self.read():
            if isinstance(example, Example):
                examples.append(example)
            else:
                dropped[example] = dropped.get(example, 0) + 1
        if not examples:
            left_out = ", ".join(f"{count} with {reason}" for reason, count in dropped.items())
            got = f", got {left_out}" if left_out else ""
            raise BadInput(f"{self.source}: it has no examples{got}; give another file or split")
        return examples, dropped

    @property
    def labelled(self) -> bool:
        return bool(self.names)

    def labels_of_examples(self) -> dict[str, list[str]]:
        """The labels of all examples by name: `label`, of tables `group`, of data in the style of HANS `heuristic` and
        `subcase`; without what some example lacks."""
        examples, _ = self.examples()
        tags = {name: [getattr(example, name) for example in examples] for name in ("label", "group", *TAGS)}
        return {name: labels for name, labels in tags.items() if None not in labels}

    def ids_of_examples(self) -> list[str] | None:
        ids = [example.id for example in self.examples()[0]]
        return None if None in ids else [str(each) for each in ids]

    def _codes(self, examples: Sequence[Example]) -> list[int] | None:
        """The code of each example's label; None where the data has none."""
        codes = [-1 if example.label is None else self.names.index(example.label) for example in examples]
        bare = codes.count(-1)
        if 0 < bare < len(codes):
            raise BadInput(f"{self.source}: labels are missing, got none for {bare} of {len(codes)} examples; add them")
        return None if bare else codes

    def sequences(self, tokenizer: Any, extract: Extract, seed: int) -> Sequences:
        if extract.unit in WORDS:
            return self.align({"the model": tokenizer}, extract, seed)["the model"]
        examples, dropped = self.examples()
        codes = self._codes(examples)
        padded = pad(
            [example.texts for example in examples],
            tokenizer,
            length=extract.length,
            sequences=extract.sequences,
            seed=seed,
            source=self.source,
            whole=extract.unit == "token" and extract.padding == "keep",
        )
        labels = None if codes is None else Labels(np.asarray(codes)[padded.example], self.names)
        return replace(padded, labels=labels, dropped=dropped)

    def align(self, tokenizers: Mapping[str, Any], extract: Extract, seed: int) -> dict[str, Sequences]:
        """A sequence for each stretch of an example, with its label."""
        examples, dropped = self.examples()
        codes = self._codes(examples)
        tally = WordTally(Counter(dropped))
        drawn = draw(len(examples), extract.sequences, seed).tolist()
        passages = (make_text_passage(i, examples[i].texts, find=self.find) for i in drawn)
        made = list(cut_common_stretches(passages, tokenizers, extract, tally, whole=False))
        copies = find_equal_texts((i, examples[i].texts) for i in drawn)
        sequences = align(made, tokenizers, extract, tally, self.source, len(examples))
        return {
            label: replace(
                given,
                copies=copies,
                labels=None if codes is None else Labels(np.asarray(codes)[given.example], self.names),
            )
            for label, given in sequences.items()
        }


def _open_examples(
    format: Format,
    path: str | None,
    split: str,
    columns: list[str] | None,
    labels: Spelled | None,
    chosen: Callable[[DataRow], bool] = lambda record: True,
) -> Examples:
    """The examples of a data set. Local files are checked at once, up to their first example."""
    if split not in format.files:
        raise BadInput(f"split: no such split, got '{split}'; {did_you_mean(split, format.files)}")
    spelled = _spell(format, labels or {})

    def records() -> Iterator[DataRow]:
        if path is not None:
            return read_file_records(
                _find_split_file(format, path, split), columns or format.header, given=columns is not None
            )
        if isinstance(format.hub, HubTable):
            return read_hub_records(format.hub, split)
        return read_file_records(download(f"{format.hub}/{format.files[split]}"), (), kind=format.files[split])

    expected = ",".join(names[0] for names in (*format.texts, format.label))

    def read() -> Iterator[Example | str]:
        for record in records():
            if not record.fields:
                yield "missing or surplus columns"
                continue
            texts = tuple(_read_first_column(record, names, expected) for names in format.texts)
            label = _read_first_column(record, format.label) if _has(record, format.label) else None
            if chosen(record):
                yield _make_example(record, texts, label, spelled)

    if path is not None:
        next((example for example in read() if isinstance(example, Example)), None)
    source = path or (f"{format.hub.hub}, {format.hub.config}" if isinstance(format.hub, HubTable) else format.hub)
    said = f"{source}, {split}" if path is None or Path(path).is_dir() else str(path)
    return Examples(read, format.labels, said, public=path is None)


def _spell(format: Format, labels: Spelled) -> dict[str, str]:
    """The name of the label by its spelling. The user's spellings replace the official ones: 1 is positive in some
    files and negative in others."""
    for spelling, name in labels.items():
        if name not in format.labels:
            raise BadInput(f"labels.{spelling}: no such label, got '{name}'; {did_you_mean(name, format.labels)}")
    given = {str(k): v for k, v in labels.items()} if labels else dict(format.spelled)
    return {name: name for name in format.labels} | given


def _make_example(
    record: DataRow, texts: tuple[str, ...], label: str | None, spelled: Mapping[str, str]
) -> Example | str:
    """The example, or the reason why it is left out."""
    if not all(text.strip() for text in texts):
        return "an empty text"
    if label in (NO_LABEL, "-1"):
        return "no gold label"
    if label is not None and label not in spelled:
        known = ", ".join(k if k == name else f"{k} ({name})" for k, name in spelled.items())
        raise BadInput(
            f"{record.where}: unknown label, got '{label}'; known: {known}; set data.labels='{{{label}: NAME}}'"
        )
    tags = (None if record.fields.get(tag) is None else str(record.fields[tag]) for tag in TAGS)
    return Example(texts, None if label is None else spelled[label], *tags)


def _find_split_file(format: Format, path: str, split: str) -> Path:
    """The path, or the official file of the split where it is a folder."""
    folder = expand_path(path)
    return find_file(str(folder / format.files[split]) if folder.is_dir() else path, SUFFIXES)


def _has(record: DataRow, names: tuple[str, ...]) -> bool:
    return any(name in record.fields for name in names)


def _read_first_column(record: DataRow, names: tuple[str, ...], expected: str = "...") -> str:
    """The value of the first of these columns that exists. expected: all columns, for the message."""
    for name in names:
        if name in record.fields:
            value = decode_cell(record.fields[name], record.where, name)
            if isinstance(value, dict | list):
                raise BadInput(f"{record.where}: column '{name}' is not text, got {value!r:.60}; write text")
            return "" if value is None else str(value)
    known = ", ".join(map(repr, record.fields))
    raise BadInput(
        f"{record.where}: no column '{names[0]}', got {known:.160}; name the columns of a file without a header, "
        f"e.g. data.columns=[{expected}]"
    )


def _make_official_reader(name: str, default: str) -> Callable[..., Examples]:
    """Makes the kind of a data set. default: its split."""
    format = FORMATS[name]

    def read_labelled(
        *,
        path: str | None = None,
        split: str = default,
        columns: list[str] | None = None,
        labels: Spelled | None = None,
    ) -> Examples:
        """Labelled sentences, or pairs of sentences, in the official format of the data set.

        path: a file in an official format, or a folder of such files; null: download from the hub.
        split: which official file, or which split of the hub, is read.
        columns: the names of the columns of a file without a header; null: those of the official files.
        labels: {TEXT IN THE FILE: NAME OF THE LABEL}, for files that write labels in another way.
        """
        return _open_examples(format, path, split, columns, labels)

    return read_labelled


data.register("mnli")(_make_official_reader("mnli", "validation_matched"))
data.register("sst2")(_make_official_reader("sst2", "validation"))
data.register("yelp")(_make_official_reader("yelp", "test"))
data.register("qnli")(_make_official_reader("qnli", "validation"))
data.register("qqp")(_make_official_reader("qqp", "validation"))


@data.register("hans")
def hans(
    *,
    path: str | None = None,
    split: str = "validation",
    columns: list[str] | None = None,
    labels: Spelled | None = None,
    heuristics: list[str] | None = None,
    subcases: list[str] | None = None,
) -> Examples:
    """HANS (McCoy et al. 2019): sentence pairs whose words overlap, whether or not one entails the other.

    path: a file in an official format, or a folder of such files; null: download from the authors' repository.
    split: which official file is read.
    columns: the names of the columns of a file without a header; null: those of the official files.
    labels: {TEXT IN THE FILE: NAME OF THE LABEL}, for files that write labels in another way.
    heuristics: only pairs of these heuristics (lexical_overlap, subsequence, constituent); null: all.
    subcases: only pairs of these subcases, e.g. ln_passive; null: all.
    """
    choose_subcases(heuristics, subcases)
    wanted = {"heuristic": heuristics, "subcase": subcases}
    return _open_examples(FORMATS["hans"], path, split, columns, labels, partial(_has_wanted_values, wanted))


def _has_wanted_values(wanted: Mapping[str, list[str] | None], record: DataRow) -> bool:
    return all(names is None or _read_first_column(record, (column,)) in names for column, names in wanted.items())


def choose_subcases(heuristics: list[str] | None, subcases: list[str] | None) -> list[str]:
    """The subcases of HANS that these keys select (null: all). Raises BadInput for unknown names."""
    for heuristic in heuristics or []:
        if heuristic not in SUBCASES:
            raise BadInput(f"heuristics: no such heuristic, got '{heuristic}'; {did_you_mean(heuristic, SUBCASES)}")
    known = list(chain.from_iterable(SUBCASES[heuristic] for heuristic in heuristics or SUBCASES))
    for subcase in subcases or []:
        if subcase not in known:
            of = f" of {', '.join(heuristics)}" if heuristics else ""
            raise BadInput(f"subcases: no such subcase{of}, got '{subcase}'; {did_you_mean(subcase, known)}")
    return subcases or known
