"""Activations written by another program: .npz, .safetensors or HDF5 with a named (n, d) array per layer; tables with a
column of vectors per layer; or an array per sentence: HDF5 in the format of contextual-corr-analysis (Wu et al. 2020)
and of the ELMo tools, and the files of vLLM."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path, refuse
from repsim_cli.base.registry import did_you_mean, models
from repsim_cli.base.settings import LARGEST, NotNegative
from repsim_cli.data.files import find_file
from repsim_cli.models.array_files import DOCUMENTS, FLOATS, IDS, OPENERS, Ids, Shapes, check, make_natural_key
from repsim_cli.models.checkpoints import hash_files
from repsim_cli.models.sentence_files import find_prompt_files, open_sentence_file, read_prompts, take_all_sentences
from repsim_cli.models.source import Precomputed, PrecomputedIds

AT_ONCE = 2**30  # bytes of a file that is read through before the run; of larger ones, values are checked as they pass


@models.register("precomputed")
def precomputed(
    *,
    path: str,
    layers: list[str] | None = None,
    ids: str | None = None,
    documents: str | None = None,
    layer_ids: list[NotNegative] | None = None,
) -> Precomputed:
    """Activations of your own: float arrays (n, d), one per layer, or per sentence one array of all layers.

    Rows with ids are paired by id with those of the other models of the run, other rows by number. In a file with an
    array per sentence a row is a word, paired by sentence and word, and the layers are embed, layer@0, layer@1, ...
    A folder of files of vLLM is such: a prompt is a sentence, a token a word.

    path: an .npy (one layer), .npz, .safetensors, .hdf5, .h5 or .parquet file, a folder written by
        `Dataset.save_to_disk`, or a folder of the .safetensors files that vLLM's extract_hidden_states writes.
    layers: the names of the arrays or columns, in the order of the layers; null: all, in natural order (h9 before h10).
    ids: the array or column of the ids, text or whole numbers; null: `ids` or `id`, where there is one.
    documents: the array or column of the document that each row belongs to, text or whole numbers; null: `documents` or
        `document`, where there is one. Rows of a document depend on each other (see `significance.clusters`).
    layer_ids: of files of vLLM, the eagle_aux_hidden_state_layer_ids that it was started with: 0 is the embeddings, 1
        the output of the first block, here `resid_post@0`.
    Example: repsim run model=[] +model.mine='{kind: precomputed, path: FILE}' extract.estimate=full
    """
    place = expand_path(path)
    prompts = find_prompt_files(place)
    if bool(prompts) != (layer_ids is not None):
        raise BadInput(
            "layer_ids: files of vLLM do not say which layers they hold; give the "
            "eagle_aux_hidden_state_layer_ids that it was started with, of which 0 is the embeddings"
            if prompts
            else f"layer_ids: only for files of vLLM with `hidden_states` and `token_ids`, got '{path}'; drop it"
        )
    if layer_ids is not None:
        known = ["embed" if number == 0 else f"resid_post@{number - 1}" for number in layer_ids]
        return take_all_sentences(read_prompts(place, prompts, known), layers, known)
    file = place if place.is_dir() else find_file(path, list(OPENERS))
    what = f"complete {file.suffix} file of numbers" if file.is_file() else "folder of a data set, nor of files of vLLM"
    broken = (f"path: not a {what}", path, "write it again")
    with refuse(*broken):
        if file.suffix in (".hdf5", ".h5") and (archive := open_sentence_file(file)) is not None:
            return take_all_sentences(archive, layers)
        shapes, read, integers = OPENERS[file.suffix if file.is_file() else ".parquet"](file)
    key, belongs = _find_named("ids", ids, IDS, integers), _find_named("documents", documents, DOCUMENTS, integers)
    names = (
        layers if layers is not None else sorted((x for x in shapes if x not in (key, belongs)), key=make_natural_key)
    )
    rows = _count_paired_rows(path, names, shapes)
    with refuse(*broken):  # external storage that is missing, or a filter that is not installed
        for name in names:
            read(name, slice(1))
    files = [file] if file.is_file() else sorted(place.rglob("*.arrow"))
    stored = Precomputed(
        names=names,
        rows=rows,
        widths=[shapes[name][0][1] for name in names],
        read=check(file, read),
        identity=lambda: {"source": str(file), "weights_hash": hash_files(files)},
    )
    constant = set[str]()
    if 4 * stored.rows * sum(stored.widths) <= AT_ONCE:
        for name in names:
            problem, got = f"path: rows of '{name}' in '{path}' cannot be read", f"0 to {stored.rows - 1}"
            with refuse(problem, got, "write the file again"):
                x = read(name, slice(0, stored.rows))
            _check_finite(place, name, x)
            if len(x) > 1 and bool((x == x[0]).all()):
                constant.add(name)
        stored = replace(stored, constant=constant)
    if belongs is not None:
        stored = replace(stored, documents=_check_one_a_row("documents", belongs, integers[belongs](), stored.rows))
    return stored if key is None else _add_ids(stored, key, integers[key]())


def _find_named(what: str, name: str | None, usual: Sequence[str], integers: Ids) -> str | None:
    """The array of ids or of documents. Raises BadInput where there is none of the name that was given."""
    found = name or next((each for each in usual if each in integers), None)
    if found is not None and found not in integers:
        raise BadInput(f"{what}: not an array of text or whole numbers, got '{found}'; {did_you_mean(found, integers)}")
    return found


def _count_paired_rows(path: str, names: Sequence[str], shapes: Shapes) -> int:
    """Counts the rows of these arrays. Raises BadInput where they are not paired (n, d) arrays of floats."""
    for name in names:
        if name not in shapes:
            raise BadInput(f"layers: no such array, got '{name}'; {did_you_mean(name, shapes)}")
        shape, kind = shapes[name]
        if name in (*IDS, *DOCUMENTS) and len(shape) < 2:
            what = "ids" if name in IDS else "documents"
            raise BadInput(f"{what}: '{name}' must be text or whole numbers, got {kind} {shape}; write it as such")
        if len(shape) == 2 and 0 in shape:
            lacking = "columns" if shape[0] else "rows"
            raise BadInput(f"path: array '{name}' has no {lacking}, got {shape}; write one that has some")
        if len(shape) != 2 or kind not in FLOATS:
            others = ", or name the others in `layers`" if len(shapes) > 1 else ""
            raise BadInput(
                f"path: array '{name}' must be (n, d) of floats, got {kind} {shape}; write it in this form{others}"
            )
    if not names:
        raise BadInput(f"path: no arrays at its top level, got '{path}'; write one (n, d) array per layer")
    rows = {shapes[name][0][0] for name in names}
    if len(rows) != 1:
        raise BadInput(f"path: arrays have different numbers of rows, got {sorted(rows)}; write paired rows")
    return rows.pop()


def _check_finite(file: Path, name: str, x: Tensor) -> None:
    """Raises BadInput for a value that is not a number, or too large to be squared and summed."""
    low, high = x.aminmax()  # NaN if there is one
    if not (low >= -LARGEST and high <= LARGEST):
        row, column = (~(x.abs() <= LARGEST)).nonzero()[0].tolist()
        raise BadInput(
            f"path: a value is not finite, or too large to be squared, got {float(x[row, column]):g} in row {row} of "
            f"'{name}' in '{file}' (read as float32); write numbers there, or drop the row"
        )


def _add_ids(stored: Precomputed, key: str, ids: Sequence[Any]) -> PrecomputedIds:
    """Gives each row its id. Raises BadInput where the ids are not one for each row, each once."""
    named = _check_one_a_row("ids", key, ids, stored.rows)
    twice = next((each for each, count in Counter(named).items() if count > 1), None)
    if twice is not None:
        first, second = [number for number, each in enumerate(named) if each == twice][:2]
        raise BadInput(f"ids: '{key}' must differ between rows, got '{twice}' for rows {first} and {second}; drop one")
    return PrecomputedIds(**{f.name: getattr(stored, f.name) for f in fields(stored)}, ids=named)


def _check_one_a_row(what: str, name: str, given: Sequence[Any], rows: int) -> list[str]:
    """The ids or documents of all rows as text. Raises BadInput where a row has none."""
    if len(given) != rows:
        raise BadInput(f"{what}: '{name}' has another number of rows, got {len(given)} for {rows}; write one a row")
    named = ["" if each is None else str(each) for each in given]
    if "" in named:
        one = {"ids": "an id", "documents": "a document"}[what]
        raise BadInput(f"{what}: '{name}' must have {one} for each row, got none for row {named.index('')}; fill it in")
    return named
