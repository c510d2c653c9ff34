"""Mutations of valid input under a seed: settings, entries, files of arrays and of text, model folders.

A mutation is data (a `Mutation`), so that one that was kept in tests/helpers/mutations.json stays what it is when the generator,
or the schema that it draws keys from, changes. `scripts/fuzz.py` searches for new ones.
"""

import copy
import io
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import safetensors.torch
import torch

KEPT = Path(__file__).parent / "mutations.json"
VALUES = (
    "null", "true", "''", "' '", "[]", "{}", "[[]]", "{a: 1}", "0", "-1", "1", "2.5", "1e25", "-1e-300", "inf", "nan",
    str(2**31), str(-(2**63)), str(2**64), "abc", "'../..'", "'a b'", "'ü'", "'*'", "[null]", "[a, a]", "[0, -9999]", "'${seed}'",
    "'???'", "'" + "x" * 300 + "'", "'${oc.env:HOME}'", "'${oc.decode:a}'",
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    None, True, "", "x", [], {}, [None], {"a": 1}, 0, -1, 1, 2.5, 1e25, float("nan"), 2**31, 2**64, -(2**63),
    "../model.safetensors", "/proc/self/cwd/model.safetensors", "a\0b",
)  # fmt: skip
# of Hydra itself
HYDRA = (
    "hydra.run.dir", "hydra.sweep.subdir", "hydra.verbose", "hydra.searchpath", "hydra.job.chdir", "hydra.output_subdir",
    "hydra/launcher", "hydra/callbacks", "hydra/job_logging", "+hydra.callbacks.x._target_", "++hydra.launcher._target_",
    "+hydra.job_logging.root.level", "+hydra.job.env_set.HOME", "hydra.job.env_copy", "++hydra",
)  # fmt: skip
PICKLED = {"metadata": {}, "weight_map": {"a": "pytorch_model.bin", "b": "pytorch_model-1.bin"}}

INDEX, PICKLED_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"
DOCUMENTS = ("config.json", "tokenizer_config.json", "tokenizer.json", INDEX)


class Mutation(NamedTuple):
    """what: settings, bytes of a file, json of a model folder, or of the index of pickled weights that `repsim convert`
    reads. where: the selection of groups, or the file.

    how: [key, value], [what happens, place, byte] or [path, value].
    """

    what: str
    where: str
    how: list[Any]


ARRAY = np.random.default_rng(0).normal(size=(50, 3))
LINE = json.dumps({"text": "some words of text. " * 300}).encode() + b"\n"
TABLE = b"sentence1\tsentence2\tgold_label\nA dog runs.\tA cat runs.\tneutral\n" * 20
SENTENCE = b"1\tRain\t_\t_\t_\t_\t_\t_\t_\t_\n2\tfalls\t_\t_\t_\t_\t_\t_\t_\t_\n\n"


def _saved(write: Callable[[io.BytesIO], Any]) -> bytes:
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def _hdf5(stream: io.BytesIO) -> None:
    with h5py.File(stream, "w") as archive:
        archive["a"] = ARRAY


def files() -> dict[str, bytes]:
    """Valid files of the kinds whose bytes are mutated."""
    return {
        "a.npz": _saved(lambda stream: np.savez(stream, a=ARRAY)),
        "a.safetensors": safetensors.torch.save({"a": torch.from_numpy(ARRAY)}),
        "a.hdf5": _saved(_hdf5),
        "a.jsonl": LINE * 3,
        "mnli.tsv": TABLE,
        "ewt.conllu": SENTENCE * 20,
    }


def draw(settings: Mapping[str, list[str]], model: Path, seed: int) -> Iterator[Mutation]:
    """Mutations without end. settings: of each selection of groups, the keys that may be set. model: a valid folder."""
    generator, valid = random.Random(seed), files()
    places = {name: list(_places(_document(model / name))) for name in DOCUMENTS}
    while True:
        what = generator.choice(("settings",) * 7 + ("bytes",) * 4 + ("json",) * 3 + ("index", "hydra"))
        if what == "hydra":
            yield Mutation(
                "settings", "model=[tiny_a] measure=[cka]", [generator.choice(HYDRA), generator.choice(VALUES)]
            )
        elif what == "index":
            place = generator.choice([[], ["weight_map"], *_places(PICKLED)])
            yield Mutation(what, PICKLED_INDEX, [place, generator.choice(JSON_VALUES)])
        elif what == "settings":
            start = generator.choice(sorted(settings))
            key, value = generator.choice(settings[start]), generator.choice(VALUES)
            yield Mutation(what, start, [key, value])
        elif what == "bytes":
            name = generator.choice(sorted(valid))
            # headers are at the start, or for archives at the end
            size = len(valid[name])
            place = generator.choice(
                (
                    generator.randrange(min(size, 400)),
                    generator.randrange(size),
                    size - 1 - generator.randrange(min(size, 100)),
                )
            )
            how = generator.choice(("cut", "set", "set", "insert", "repeat"))
            yield Mutation(
                what, name, [how, place, generator.choice((0, 0xFF, 0x22, 0x7B, 0x5B, 0x2D, generator.randrange(256)))]
            )
        else:
            name = generator.choice(DOCUMENTS)
            yield Mutation(what, name, [generator.choice(places[name]), generator.choice(JSON_VALUES)])


def apply(mutation: Mutation, folder: Path, model: Path) -> list[str]:
    """Writes what the mutation needs into the folder; the words of `repsim` that read it. model: a valid folder."""
    if mutation.what == "index":
        (folder / "config.json").write_text("{}")
        (folder / mutation.where).write_text(json.dumps(_changed(copy.deepcopy(PICKLED), *mutation.how)))
        return ["convert", str(folder), str(folder / "new")]
    return ["run", *_run_words(mutation, folder, model), "dry_run=true"]


def _run_words(mutation: Mutation, folder: Path, model: Path) -> list[str]:
    if mutation.what == "settings":
        key, value = mutation.how
        return [*mutation.where.split(), f"{key}={value}"]
    if mutation.what == "bytes":
        how, place, value = mutation.how
        content = files()[mutation.where]
        changed = {
            "cut": content[:place],
            "set": content[:place] + bytes([value]) + content[place + 1 :],
            "insert": content[:place] + bytes([value]) * 9 + content[place:],
            "repeat": content[: place + 1] + content[place:],
        }[how]
        file = folder / mutation.where
        file.write_bytes(changed)
        if file.stem == "a" and file.suffix != ".jsonl":
            entry = f"+model.stored={{kind: precomputed, path: {file}}}"
            return ["model=[]", "measure=[cka]", entry, "extract.batch_rows=40"]
        data = {"a": "local_text"}.get(file.stem, file.stem)
        return ["model=[tiny_a]", "measure=[cka]", f"data={data}", f"data.path={file}"]
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    file = folder / mutation.where
    file.write_text(json.dumps(_changed(_document(file), *mutation.how)))
    if file.name == INDEX:  # it is read where there is no single file
        (folder / "model.safetensors").unlink()
    entry = f"+model.mine={{kind: transformers, path: {folder}}}"
    return ["model=[]", "measure=[cka]", entry, "extract.length=32", "extract.batch_rows=64", "extract.sequences=8"]


def _changed(document: Any, path: list[Any], value: Any) -> Any:
    """The document with another value at the path."""
    if not path:
        return value
    document[path[0]] = _changed(document[path[0]], path[1:], value)
    return document


def _document(file: Path) -> Any:
    return json.loads(file.read_text()) if file.exists() else {"weight_map": {"h.0.ln_1.weight": "model.safetensors"}}


def _places(value: Any, path: tuple = ()) -> Iterator[list[Any]]:
    """The places of values inside a document; of long lists, as a vocabulary, the first."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value))[:60]:
        yield [*path, key]
        if isinstance(inner, dict | list):
            yield from _places(inner, (*path, key))


def masked(line: str, folder: Path) -> str:
    """A refusal without what differs between two of the same kind: values, numbers and places."""
    line = re.sub(r"got .*?(?=;)", "got", line.replace(str(folder), ""))
    return re.sub(r"\([^)]*\)|'[^']*'|0x[0-9a-f]+|-?\d[\d.e+]*", "_", line)[:120]


def kept() -> list[Mutation]:
    return [Mutation(*row["mutation"]) for row in json.loads(KEPT.read_text())["rows"]]
