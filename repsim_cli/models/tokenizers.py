"""Tokenizers of models, of this package and of the hub."""

import functools
import json
import logging
from importlib import resources
from pathlib import Path
from typing import Any

from repsim_cli.base.errors import BadInput, refuse_panics
from repsim_cli.base.files import check_readable
from repsim_cli.data.files import read_json_file
from repsim_cli.models.checkpoints import (
    SHIPPED,
    describe_error,
    fetch_hub_files,
    is_local,
    list_shipped,
    load_pretrained,
    make_unreachable_error,
)
from repsim_cli.models.gguf import is_gguf, read_once
from repsim_cli.models.known_tokenizers import know_tokenizer
from repsim_cli.models.library import import_transformers, silence_transformers
from repsim_cli.models.shapes import find_planned_shape

GROWTH = 100
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
BESIDE_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")
TOKENIZERS = Path(str(resources.files("repsim_cli"))) / "assets" / "tokenizers"
SENTENCE = "Some words of a sentence"
PROBE = "a \uffff"  # a word, and a character outside every vocabulary, so that errors occur before a run
log = logging.getLogger("repsim")


def share_tokenizer(where: str, revision: str | None = None) -> Any:
    """Loads as `load_tokenizer` does, a .gguf file once per process and a folder once for the cache, so do not change
    the tokenizer."""
    where = _find_own_folder(where)
    if is_gguf(where):
        return read_once(load_tokenizer, where)
    load = functools.partial(load_tokenizer, where, revision)
    return know_tokenizer(Path(where), load) if Path(where).is_dir() else load()


def _find_own_folder(where: str) -> str:
    """Finds the folder of a shipped model or tokenizer by its name; others are where they are."""
    shipped = SHIPPED if where in list_shipped() else TOKENIZERS
    return str(shipped / where) if (shipped / where).is_dir() else where


def load_tokenizer(where: str, revision: str | None = None) -> Any:
    """Loads a tokenizer and tries it once. Raises BadInput where it cannot be used.

    where: a folder, a file of a model, or a hub id.
    revision: of a hub id; None is the newest.
    """
    where = _find_own_folder(where)
    local = is_local(where)
    if not local and (shape := find_planned_shape(where)):
        return shape.tokenizer
    if Path(where).is_dir() and not any((Path(where) / name).is_file() for name in TOKENIZER_FILES):
        raise BadInput(f"path: no tokenizer in it, got '{where}'; save the tokenizer there (tokenizer.json)")
    for name in (*TOKENIZER_FILES, *BESIDE_TOKENIZER) if local else ():
        if (file := Path(where) / name).is_file():
            check_readable(file)
    try:
        with silence_transformers(), refuse_panics():
            tokenizer = _limit(where, revision)
            tokenizer(PROBE, verbose=False)
            tokenizer.name_or_path = where
            _compare_with_pieces(tokenizer, Path(where))
            return tokenizer
    except Exception as error:
        if local:
            raise BadInput(
                f"path: its tokenizer cannot be used, got '{where}' ({describe_error(error)}); save it again"
            ) from error
        if isinstance(error, OSError):
            # a repository with only a tokenizer has no config.json, which is required for ids but not for folders
            return load_tokenizer(str(fetch_hub_files(where, revision, [*TOKENIZER_FILES, *BESIDE_TOKENIZER])))
        raise make_unreachable_error(where, revision, error) from error


def _limit(where: str, revision: str | None) -> Any:
    """Loads the tokenizer of a folder or on the hub. Raises ValueError where its texts would grow without end: for a
    folder before it is loaded, since loading normalises its added tokens."""
    file = Path(where) / "tokenizer.json"
    if file.is_file():
        _check_growth(read_json_file(file).get("normalizer"))
    tokenizer = load_pretrained(import_transformers().AutoTokenizer, where, revision)
    if tokenizer.is_fast and (part := tokenizer.backend_tokenizer.normalizer) is not None:
        _check_growth(json.loads(part.__getstate__()))
    return tokenizer


def _check_growth(normalizer: Any) -> None:
    """Raises ValueError where the parts of a normaliser, one after the other, make a text `GROWTH` times as long."""
    from tokenizers import Regex, normalizers

    growth, parts = 1, [normalizer]
    for part in parts:
        if not isinstance(part, dict):
            continue
        inner, content, pattern = part.get("normalizers"), part.get("content"), part.get("pattern")
        parts += inner if isinstance(inner, list) else []
        if not isinstance(content, str) or not isinstance(pattern, dict):
            continue
        text, regex = pattern.get("String"), pattern.get("Regex")
        if isinstance(text, str):
            growth *= max(1, -(-len(content) // max(len(text), 1)))
        elif isinstance(regex, str):  # one that matches nothing does so between any two characters
            empty = "(?" in regex or len(normalizers.Replace(Regex(regex), "x").normalize_str(PROBE)) > len(PROBE)
            growth *= max(1, len(content)) + empty
        if growth > GROWTH:
            raise ValueError(f"its normaliser makes texts more than {GROWTH} times as long")


def _compare_with_pieces(tokenizer: Any, folder: Path) -> None:
    """Warns where a tokenizer converted from a sentencepiece file, the only one in its folder, splits text in another
    way: the file does not say all that transformers needs to know."""
    file = folder / "tokenizer.model"
    if not file.is_file() or (folder / "tokenizer.json").is_file():
        return
    from sentencepiece import SentencePieceProcessor

    expected = SentencePieceProcessor(model_file=str(file)).encode(SENTENCE, out_type=str)
    if (pieces := tokenizer.tokenize(SENTENCE)) != expected:
        _warn_of_pieces(str(file), " ".join(pieces), " ".join(expected))


@functools.cache
def _warn_of_pieces(file: str, pieces: str, expected: str) -> None:
    log.warning(
        "%s: transformers splits text in another way than the file, got %s for %s; save the tokenizer as "
        "tokenizer.json with the library that the model comes from",
        file,
        pieces,
        expected,
    )
