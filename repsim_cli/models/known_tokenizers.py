"""Tokenizers that transformers made before, from the cache: they turn text into tokens and back without it."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from repsim_cli.base import environment
from repsim_cli.base.closure import collect_code
from repsim_cli.base.planning import may_use_known, write_once_checked
from repsim_cli.data.chat import Encoded
from repsim_cli.models.library import import_transformers
from repsim_cli.runs.cache import Entry, make_cache_key

KIND = "tokenizers"
FILE = "tokenizer.json"
MAKER = "repsim_cli.models.tokenizers"  # what loads tokenizers; its code is part of the key
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
MOST = 10**8  # bytes of files beside the weights; to read more takes longer than transformers
# what a tokenizer of the library does by its backend alone, unless its class does it in another way
OWN = (
    "__call__", "__len__", "_convert_encoding", "_decode", "_encode_plus", "added_tokens_decoder", "backend_tokenizer",
    "decode", "get_vocab", "is_fast", "num_special_tokens_to_add",
)  # fmt: skip
IDS = tuple(f"{name}_token_id" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
SAID = (*IDS, "all_special_tokens", "model_input_names")
# the settings of a call, and what it gives by name
ASKED = {
    "return_special_tokens_mask": ("special_tokens_mask", "special_tokens_mask"),
    "return_offsets_mapping": ("offset_mapping", "offsets"),
}
SETTINGS = {*ASKED, "add_special_tokens", "truncation", "verbose"}
PLAIN = {"clean_up_tokenization_spaces": False}
PARTS = {"token_type_ids": "type_ids", "attention_mask": "attention_mask"}
TRIED = ("Some words of a sentence.", "a \uffff", " <s> [CLS] \n\té日本 😀", "")


class KnownTokenizer:
    """A fast tokenizer as transformers made it. What is not known of it, the one that `load` gives says and does."""

    is_fast = True

    def __init__(self, backend: Any, said: Mapping[str, Any], load: Callable[[], Any]):
        self.backend_tokenizer, self.said, self.load = backend, said, load

    @cached_property
    def loaded(self) -> Any:
        return self.load()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("said", "load"):
            raise AttributeError(name)
        return self.said[name] if name in self.said else getattr(self.loaded, name)

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return self.backend_tokenizer.get_added_tokens_decoder()

    def get_vocab(self) -> dict[str, int]:
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        return self.backend_tokenizer.num_special_tokens_to_add(pair)

    def decode(self, tokens: Any, **settings: Any) -> str:
        if settings == PLAIN and isinstance(tokens, list) and all(isinstance(token, int) for token in tokens):
            return self.backend_tokenizer.decode(tokens, skip_special_tokens=False)
        return self.loaded.decode(tokens, **settings)

    def __call__(self, *texts: Any, **settings: Any) -> Any:
        """The tokens of a text, of texts, or of pairs of texts, without a limit of their number."""
        known = settings.keys() <= SETTINGS and settings.get("verbose") is False and not settings.get("truncation")
        single = len(texts) == 1 and isinstance(texts[0], str)
        if not known or not (single or all(isinstance(side, list) for side in texts)):
            return self.loaded(*texts, **settings)
        given = texts if single else texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
        made = self.backend_tokenizer.encode_batch(
            list(given), add_special_tokens=settings.get("add_special_tokens", True)
        )
        names = {name: part for name, part in PARTS.items() if name in self.said["model_input_names"]}
        names |= dict(ASKED[key] for key in ASKED if settings.get(key))
        lists = {name: [getattr(each, part) for each in made] for name, part in {"input_ids": "ids", **names}.items()}
        encoded = Encoded({name: rows[0] for name, rows in lists.items()} if single else lists)
        encoded.parts = [each.sequence_ids for each in made]
        return encoded


def know_tokenizer(folder: Path, load: Callable[[], Any]) -> Any:
    """The tokenizer of a folder that `load` gives; from the cache, where it gave one of these files before, in this
    code, under these versions of packages. Kept are those of tokenizer.json that are no more than their backend."""
    code = collect_code(MAKER) if may_use_known() and (folder / FILE).is_file() else None
    if code is None or (hashes := _hash_files(folder)) is None:
        return load()
    versions = {name: environment.read_version(name) for name in ("tokenizers", "transformers")}
    entry = Entry(KIND, make_cache_key({"files": hashes, "code": code.key, **versions}))
    with suppress(OSError, ValueError, TypeError, KeyError):
        entry.load()
        if entry.complete:
            return _open(entry.files[FILE].read_text(), entry.meta["said"], load)
    loaded = load()
    said = _describe(loaded)
    text = "" if said is None else loaded.backend_tokenizer.to_str()

    def write() -> None:
        with suppress(OSError, ValueError):  # it is loaded again
            entry.write(FILE, lambda place: place.write_text(text))
            entry.finish(said=said)

    if said is not None and _hash_files(folder) == hashes and _do_the_same(_open(text, said, load), loaded):
        write_once_checked(write)
    return loaded


def _hash_files(folder: Path) -> dict[str, str] | None:
    """The sha256 of the files that a tokenizer may be made of, by name; None where one cannot be read, or they take
    more than `MOST` bytes."""
    try:
        files = sorted(file for file in folder.iterdir() if file.is_file() and file.suffix not in WEIGHTS)
        if sum(file.stat().st_size for file in files) > MOST:
            return None
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    except OSError:
        return None


def _open(text: str, said: Mapping[str, Any], load: Callable[[], Any]) -> KnownTokenizer:
    """Opens a tokenizer of the library tokenizers. Raises KeyError or TypeError where it is not said what one says of
    itself."""
    from tokenizers import Tokenizer

    return KnownTokenizer(Tokenizer.from_str(text), {name: said[name] for name in SAID}, load)


def _describe(tokenizer: Any) -> dict[str, Any] | None:
    """Describes a tokenizer by what it says of itself; None for one that is more than its backend."""
    base, kind = import_transformers().PreTrainedTokenizerFast, type(tokenizer)
    if not isinstance(tokenizer, base) or tokenizer.split_special_tokens:
        return None
    if kind.__module__.partition(".")[0] != "transformers":
        return None
    if any(getattr(kind, name, None) is not getattr(base, name, None) for name in OWN):
        return None
    return {name: getattr(tokenizer, name) for name in SAID}


def _do_the_same(known: KnownTokenizer, loaded: Any) -> bool:
    """Tells whether both have the same vocabulary and make the same of texts that many tokenizers treat differently."""
    asked = {**dict.fromkeys(ASKED, True), "verbose": False}

    def show(tokenizer: Any) -> Any:
        alone = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in TRIED]
        tokens = [each for ids in alone for each in ids]
        return (
            tokenizer.backend_tokenizer.to_str(), tokenizer.get_vocab(), len(tokenizer), alone,
            dict(tokenizer([*TRIED], **asked)), dict(tokenizer([*TRIED], [*reversed(TRIED)], **asked)),
            tokenizer.decode(tokens, **PLAIN), tokenizer.num_special_tokens_to_add(),
            {name: getattr(tokenizer, name) for name in SAID}, {**tokenizer.added_tokens_decoder}.keys(),
        )  # fmt: skip

    return show(known) == show(loaded)
