"""Files with an array per sentence: HDF5 in the format of contextual-corr-analysis (Wu et al. 2020) and of the ELMo
tools, and those of vLLM, of which a prompt is a sentence."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import check_readable, refuse
from repsim_cli.base.registry import did_you_mean
from repsim_cli.models.array_files import FLOATS, check, convert_to_float32, make_natural_key
from repsim_cli.models.checkpoints import hash_files
from repsim_cli.models.source import PrecomputedWords, Sentence

INDEX = "sentence_to_index"


class SentenceFile(NamedTuple):
    """A file with an array (layers, words, width) per sentence, or (words, width) if there is a single layer.

    keys: the key of the array for the text of a sentence (its words joined by spaces).
    words: the number of words of every array.
    parts: the files, where `file` is a folder.
    """

    file: Path
    arrays: Mapping[str, Any]
    keys: dict[str, str]
    words: dict[str, int]
    layers: int
    width: int
    parts: Sequence[Path] = ()


class Prompt(NamedTuple):
    """What vLLM stores of a prompt."""

    file: Path

    def layer(self, number: int) -> np.ndarray:
        """The array (tokens, width) of a layer."""
        import safetensors

        with safetensors.safe_open(self.file, framework="pt") as archive:
            return archive.get_slice(STATES)[:, number : number + 1][:, 0].float().numpy()


STATES, TOKENS = "hidden_states", "token_ids"


def find_prompt_files(place: Path) -> list[Path]:
    """The files of vLLM there, one per prompt; none where the first file is another."""
    import safetensors

    files = (
        sorted(place.glob("*.safetensors"), key=lambda file: make_natural_key(file.name)) if place.is_dir() else [place]
    )
    if not files or files[0].suffix != ".safetensors" or not files[0].is_file():
        return []
    with refuse("path: not a complete .safetensors file of numbers", files[0], "write it again"):
        names = set(safetensors.safe_open(check_readable(files[0]), framework="pt").keys())
    return files if names == {STATES, TOKENS} else []


def read_prompts(place: Path, files: Sequence[Path], known: Sequence[str]) -> SentenceFile:
    """Reads all prompts as sentences, whose words are their token ids. Raises BadInput for files of other layers."""
    import safetensors

    if len(set(known)) < len(known):
        raise BadInput(f"layer_ids: a layer is named twice, got {', '.join(known)}; give the ids that vLLM was given")
    texts: dict[str, str] = {}
    words: dict[str, int] = {}
    width = None
    for file in files:
        with (
            refuse("path: not a file of hidden states of vLLM", file, "write it again"),
            safetensors.safe_open(file, framework="pt") as archive,
        ):
            tokens, shape = archive.get_tensor(TOKENS).tolist(), tuple(archive.get_slice(STATES).get_shape())
        if len(shape) != 3 or shape[0] != len(tokens) or shape[2] != (width or shape[2]):
            raise BadInput(
                f"path: hidden states must be ({len(tokens)} tokens, layers, {width or 'd'}), got {shape} in '{file}'; "
                "write it again"
            )
        if shape[1] != len(known):
            raise BadInput(
                f"layer_ids: one id for each layer of the files, got {len(known)} for {shape[1]} in '{file}'; give the "
                "eagle_aux_hidden_state_layer_ids that vLLM was started with, of which 0 is the embeddings"
            )
        width = shape[2]
        texts[" ".join(map(str, tokens))], words[file.name] = file.name, len(tokens)
    assert width is not None
    arrays = {file.name: Prompt(file) for file in files}
    return SentenceFile(place, arrays, texts, words, len(known), width, files)


def write_sentences(path: Path, sentences: Iterable[tuple[Sequence[str], np.ndarray]]) -> None:
    """Writes an HDF5 file with an array per sentence, from (words, array (layers, words, d)), in the given order.

    Equal sentences share the index entry of the last of them, as in the original format.
    """
    import h5py

    index = {}
    with h5py.File(path, "w") as archive:
        for number, (words, array) in enumerate(sentences):
            if array.ndim != 3 or array.shape[1] != len(words):
                raise BadInput(
                    f"sentence {number}: its array must be (layers, {len(words)}, d), got {array.shape}; one row a word"
                )
            archive[str(number)] = np.asarray(array, np.float32)
            index[" ".join(words)] = str(number)
        archive[INDEX] = np.array([json.dumps(index).encode()])


def open_sentence_file(file: Path) -> SentenceFile | None:
    """The file; None where it has another format."""
    import h5py

    archive: Any = h5py.File(file, "r")
    if INDEX not in archive:
        return None
    keys = json.loads(np.asarray(archive[INDEX]).ravel()[0])
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise BadInput(f"path: {INDEX} is not a mapping of sentences to arrays, got {str(keys)[:60]}; write it again")
    arrays = {key: archive[key] for key in sorted(archive, key=make_natural_key) if key != INDEX}
    shapes = {key: (1, *a.shape) if len(a.shape) == 2 else a.shape for key, a in arrays.items()}
    kinds = {key: a.dtype.name for key, a in arrays.items()}
    bad = next((k for k, shape in shapes.items() if len(shape) != 3 or 0 in shape or kinds[k] not in FLOATS), None)
    if bad is not None or not shapes:
        got = f"{kinds[bad]} {shapes[bad]} at '{bad}'" if bad else "no array"
        raise BadInput(f"path: sentences must be arrays (layers, words, d), got {got} in '{file}'; write it again")
    first = next(iter(shapes.values()))
    odd = next((key for key, shape in shapes.items() if (shape[0], shape[2]) != (first[0], first[2])), None)
    lost = next((key for key in keys.values() if key not in arrays), None)
    if odd is not None or lost is not None:
        got = f"{shapes[odd]} at '{odd}' after {first}" if odd else f"no array '{lost}'"
        raise BadInput(
            f"path: sentences differ in layers or width, or are absent, got {got} in '{file}'; write it again"
        )
    return SentenceFile(file, arrays, keys, {key: shape[1] for key, shape in shapes.items()}, first[0], first[2])


def take_all_sentences(
    archive: SentenceFile, layers: list[str] | None, known: list[str] | None = None
) -> PrecomputedWords:
    """Takes all sentences of the file, in the order of their keys. known: the names of its layers."""
    known = known or ["embed", *(f"layer@{i}" for i in range(archive.layers - 1))]
    for name in layers or ():
        if name not in known:
            raise BadInput(f"layers: no such layer, got '{name}'; {did_you_mean(name, known)}")
    texts = {key: text for text, key in archive.keys.items()}
    whole = [Sentence(texts.get(key, ""), words) for key, words in archive.words.items()]
    names = layers or known
    return _make_word_rows(archive, names, [known.index(name) for name in names], list(archive.words), whole)


def _make_word_rows(
    archive: SentenceFile, names: list[str], numbers: list[int], keys: list[str], sentences: Sequence[Sentence]
) -> PrecomputedWords:
    """The words of these sentences as rows."""
    ends = np.cumsum([archive.words[key] for key in keys])
    place = dict(zip(names, numbers, strict=True))

    def read(name: str, rows: slice) -> Tensor:
        first, last = np.searchsorted(ends, [rows.start, min(rows.stop, ends[-1]) - 1], side="right")
        parts = []
        for number in range(first, last + 1):
            array = archive.arrays[keys[number]]
            if isinstance(array, Prompt):
                parts.append(array.layer(place[name]))
            else:
                parts.append(array[place[name]] if array.ndim == 3 else array[()])
        start = ends[first] - len(parts[0])
        return convert_to_float32(np.concatenate(parts)[rows.start - start : rows.stop - start])

    def put_in_order(wanted: Sequence[Sentence]) -> PrecomputedWords:
        chosen = []
        for number, sentence in enumerate(wanted):
            key = archive.keys.get(sentence.text)
            if key is None:
                raise BadInput(
                    f"path: sentence {number} is not in '{archive.file}', got {sentence.text!r:.60}; write it there"
                )
            if archive.words[key] != sentence.words:
                raise BadInput(
                    f"path: sentence {number} has different words in '{archive.file}', got {archive.words[key]} for "
                    f"{sentence.words} ({sentence.text!r:.60}); write it again from the same words"
                )
            chosen.append(key)
        return _make_word_rows(archive, names, numbers, chosen, wanted)

    return PrecomputedWords(
        names=names,
        rows=int(ends[-1]),
        widths=[archive.width] * len(names),
        read=check(archive.file, read),
        identity=lambda: {
            "source": str(archive.file),
            "weights_hash": hash_files(list(archive.parts) or [archive.file]),
        },
        sentences=sentences,
        put_in_order=put_in_order,
    )
