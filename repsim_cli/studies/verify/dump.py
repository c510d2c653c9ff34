"""Stored activations alone: the residual stream that a serving engine or another program wrote, with its token ids."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import check_readable, refuse
from repsim_cli.base.settings import Hardware
from repsim_cli.models.array_files import DOCUMENTS, FLOATS, IDS, OPENERS, make_natural_key

TOKENS = ("token_ids", "input_ids")
STATES, LENS, SECOND, LAYERS = "hidden_states", "residual_stream", "residual", "layer_ids"
SUFFIXES = tuple(suffix for suffix in OPENERS if suffix != ".npy")  # whose files can hold ids too
TWO = "the dump holds two streams; "
DEPTH = re.compile(r"(embed)|resid_(pre|post)@(\d+)")
DTYPES = {"F16": torch.float16, "float16": torch.float16, "BF16": torch.bfloat16}
EXACT = ("F32", "F64", "float32", "float64", "float128", "longdouble")


@dataclass(frozen=True)
class Dump:
    """The residual stream of some sequences.

    names: of the layers, as the file has them. depths: for each, how many blocks the stream has passed; None where the
    file does not say. outputs: the layers are those of blocks, without embeddings. lengths: of the sequences, whose
    rows follow each other. streams: of each layer, in float32. second: of engines that keep two streams apart, the
    other one. tokens: the ids of all rows. ids: what names the rows. dtype: the precision that the values have.
    """

    label: str
    files: Sequence[Path]
    names: Sequence[str]
    depths: Sequence[int] | None
    outputs: bool
    lengths: Sequence[int]
    streams: Sequence[Float[Tensor, "n d"]]
    second: Sequence[Float[Tensor, "n d"]] | None
    tokens: Sequence[int] | None
    ids: Sequence[str] | None
    dtype: torch.dtype
    notes: Sequence[str] = ()

    @property
    def rows(self) -> int:
        return sum(self.lengths)

    def sequences(self) -> list[list[int]]:
        """The token ids of each. Raises BadInput where the file has none."""
        if self.tokens is None:
            raise BadInput(
                f"{self.label}: a model runs on whole sequences, got no token ids; write them as `token_ids`, one a "
                "row in order"
            )
        ends = torch.tensor(self.lengths).cumsum(0).tolist()
        return [list(self.tokens[end - n : end]) for end, n in zip(ends, self.lengths, strict=True)]

    def readings(self) -> Iterator[tuple["Dump", str]]:
        """Lists what may be the residual stream, with a sentence: of two streams, their sum or one of them."""
        if self.second is None:
            yield self, ""
            return
        both = [a + b for a, b in zip(self.streams, self.second, strict=True)]
        yield replace(self, streams=both), f"{TWO}their sum is the residual stream"
        yield self, f"{TWO}`{STATES}` alone is the residual stream"
        yield replace(self, streams=self.second), f"{TWO}`{SECOND}` alone is the residual stream"

    def index_streams(self, blocks: int) -> dict[int, Float[Tensor, "n d"]]:
        """The streams by the number of blocks passed. Raises BadInput where that is not known of this many blocks."""
        depths, count = self.depths, len(self.streams)
        if depths is None and count == blocks + (not self.outputs):
            depths = range(self.outputs, blocks + 1)
        if depths is None:
            raise BadInput(
                f"{self.label}: it does not say which layers it holds, got {count} for {blocks} blocks; give the ids "
                f"that the engine was given (--layer-ids, or `{LAYERS}` in the file), of which 0 is the "
                f"{'first block' if self.outputs else 'embeddings'}"
            )
        if max(depths) > blocks:
            raise BadInput(
                f"{self.label}: it holds the stream behind block {max(depths) - 1}, got a model of {blocks} blocks, "
                "counted from 0; give the model that was run"
            )
        return dict(zip(depths, self.streams, strict=True))


def dump_files(place: Path) -> list[Path]:
    """The files of a dump: itself, or those of a folder, one for each prompt; none where it is something else."""
    if place.is_file():
        return [place] if place.suffix in SUFFIXES else []
    if not place.is_dir() or (place / "config.json").exists():
        return []
    files = sorted((f for f in place.iterdir() if f.suffix in SUFFIXES), key=lambda file: make_natural_key(file.name))
    if not files:
        return []
    shapes, _, integers = _open(files[0])
    return files if {*shapes, *integers} & {*TOKENS} else []


def read_dump(
    place: Path,
    label: str,
    *,
    layers: Sequence[str] | None = None,
    layer_ids: Sequence[int] | None = None,
    ids: str | None = None,
    documents: str | None = None,
) -> Dump:
    """Reads stored activations, of one file or of a folder of files. Raises BadInput for files that hold no residual
    stream.

    Three layouts: `hidden_states` (tokens, layers, d) and `token_ids`, as vLLM writes them; `residual_stream` (layers,
    tokens, d), which vllm-lens gives, and `token_ids`; and an array or column (tokens, d) for each layer. The other
    arguments are those of models of kind precomputed.
    """
    files = dump_files(place)
    if not files:
        raise BadInput(f"{label}: no stored activations, got '{place}'; give a file, or a folder of files of prompts")
    settings = layers, layer_ids, ids, documents
    parts = [_read(file, settings) for file in files]
    first = parts[0]
    for part in parts[1:]:
        for what in ("names", "depths", "dtype"):
            ours, theirs = getattr(first, what), getattr(part, what)
            if ours != theirs:
                raise BadInput(f"{part.label}: its {what} are not those of {first.label}, got {theirs}; write one dump")
        if _list_stream_widths(part) != _list_stream_widths(first) or (part.second is None) != (first.second is None):
            raise BadInput(f"{part.label}: its width or streams are not those of {first.label}; write one dump")
    whole = replace(
        first,
        label=label,
        files=files,
        lengths=[n for part in parts for n in part.lengths],
        streams=[torch.cat(each) for each in zip(*(part.streams for part in parts), strict=True)],
        second=_join([part.second for part in parts], lambda each: [torch.cat(x) for x in zip(*each, strict=True)]),
        tokens=_join([part.tokens for part in parts], lambda each: [token for part in each for token in part]),
        ids=_join([part.ids for part in parts], lambda each: [name for part in each for name in part]),
    )
    return _detect_16_bits(whole)


def _join(parts: Sequence[Any], join: Callable[[Sequence[Any]], Any]) -> Any:
    return None if any(part is None for part in parts) else join(parts)


def _list_stream_widths(dump: Dump) -> set[int]:
    return {x.shape[1] for x in [*dump.streams, *(dump.second or ())]}


def _detect_16_bits(dump: Dump) -> Dump:
    """Detects values of 16 bits that were written in 32, which have the tolerance of 16, and notes it."""
    for dtype in (torch.bfloat16, torch.float16):
        streams = [*dump.streams, *(dump.second or ())]
        if dump.dtype == torch.float32 and all(torch.equal(x.to(dtype).float(), x) for x in streams):
            name = str(dtype).removeprefix("torch.")
            return replace(dump, dtype=dtype, notes=[*dump.notes, f"all values of {dump.label} are those of {name}"])
    return dump


def _open(file: Path) -> tuple[Any, Any, Any]:
    with refuse(f"{file}: not a complete {file.suffix} file of numbers", file.name, "write it again"):
        return OPENERS[file.suffix](check_readable(file))


Settings = tuple[Sequence[str] | None, Sequence[int] | None, str | None, str | None]


def _read(file: Path, settings: Settings) -> Dump:
    shapes, read, integers = _open(file)
    layers, layer_ids, ids, documents = settings
    if layer_ids is None and LAYERS in integers:
        layer_ids = [int(number) for number in integers[LAYERS]()]
    tokens = _read_token_ids(file, shapes, integers)

    def values(name: str) -> Tensor:
        shape, kind = shapes[name]
        if kind not in FLOATS or kind.startswith("F8") or 0 in shape:
            raise BadInput(f"{file}: '{name}' must be of floats of 16 bits or more, got {kind} {shape}; write it so")
        if 4 * math.prod(shape) > Hardware().memory_limit:
            raise BadInput(f"{file}: '{name}' does not fit into memory, got {shape}; write fewer tokens or layers")
        with refuse(f"{file}: '{name}' cannot be read", file.name, "write it again"):
            x = read(name, slice(0, shape[0]))
        if not (finite := torch.isfinite(x)).all():
            where = (~finite).nonzero()[0].tolist()
            raise BadInput(f"{file}: '{name}' is not finite, got {float(x[tuple(where)])} at {where}; look there first")
        return x

    stacked = next((name for name in (STATES, LENS) if len(shapes.get(name, ((),))[0]) == 3), None)
    second = None
    if stacked is not None:
        axis = _find_layer_axis(file, stacked, shapes[stacked][0], tokens)
        streams, kinds = list(values(stacked).unbind(axis)), {shapes[stacked][1]}
        names = [f"layer {number} of {stacked}" for number in range(len(streams))]
        if SECOND in shapes:
            if shapes[SECOND] != shapes[stacked]:
                raise BadInput(
                    f"{file}: `{SECOND}` and `{stacked}` must be alike, got {shapes[SECOND]} and {shapes[stacked]}; "
                    "write both of the same tokens and layers"
                )
            second = list(values(SECOND).unbind(axis))
        depths = None if layer_ids is None else [number + (stacked == LENS) for number in layer_ids]
    else:
        names = _list_layer_names(file, shapes, layers, {ids, documents})
        streams, kinds = [values(name) for name in names], {shapes[name][1] for name in names}
        depths = layer_ids if layer_ids is not None else _read_layer_depths(file, names)
    _check(file, names, streams, depths, None if tokens is None else len(tokens))
    belongs, named = _read_text_column(documents, DOCUMENTS, integers), _read_text_column(ids, IDS, integers)
    dtypes = {torch.float32 if kind in EXACT else DTYPES[kind] for kind in kinds}
    if len(dtypes) > 1:
        raise BadInput(f"{file}: layers have several precisions, got {sorted(map(str, dtypes))}; write one")
    return Dump(
        label=str(file),
        files=[file],
        names=names,
        depths=depths,
        outputs=stacked == LENS,
        lengths=_count_document_rows(file, belongs, len(streams[0])),
        streams=streams,
        second=second,
        tokens=tokens,
        ids=named,
        dtype=dtypes.pop(),
    )


def _read_token_ids(file: Path, shapes: Mapping[str, Any], integers: Mapping[str, Any]) -> list[int] | None:
    name = next((name for name in TOKENS if name in shapes or name in integers), None)
    if name is None:
        return None
    tokens: Sequence[Any] = integers[name]() if name in integers else []
    if not tokens or not all(isinstance(token, int) and token >= 0 for token in tokens):
        got = f"{shapes[name][1]} {shapes[name][0]}" if name in shapes else "others"
        raise BadInput(f"{file}: '{name}' must be (tokens,) of whole numbers, got {got}; write one id a row")
    return list(tokens)


def _find_layer_axis(file: Path, name: str, shape: Sequence[int], tokens: Sequence[int] | None) -> int:
    """Finds the axis of the layers: the documented one, unless the number of ids says otherwise."""
    axis = 1 if name == STATES else 0
    if tokens is None or shape[1 - axis] == len(tokens):
        return axis
    if shape[axis] == len(tokens):
        return 1 - axis
    form = f"({len(tokens)} tokens, layers, d)" if axis else f"(layers, {len(tokens)} tokens, d)"
    raise BadInput(f"{file}: `{name}` must be {form}, got {tuple(shape)}; write one row for each token id")


def _list_layer_names(
    file: Path, shapes: Mapping[str, Any], layers: Sequence[str] | None, other: set[str | None]
) -> list[str]:
    taken = {*TOKENS, *IDS, *DOCUMENTS, LAYERS, *other}
    names = list(layers) if layers is not None else sorted((x for x in shapes if x not in taken), key=make_natural_key)
    lost = next((name for name in names if name not in shapes), None)
    odd = next((name for name in names if lost is None and len(shapes[name][0]) != 2), None)
    if lost is not None or odd is not None or not names:
        got = f"no '{lost}'" if lost else f"{shapes[odd][0]} at '{odd}'" if odd else "none"
        raise BadInput(
            f"{file}: layers must be arrays (tokens, d) of their own, or `{STATES}` (tokens, layers, d), got {got}; "
            "write it in one of these forms"
        )
    return names


def _read_layer_depths(file: Path, names: Sequence[str]) -> list[int] | None:
    """Reads depths from names of hook points; None where no name is one.

    Raises BadInput for hook points that are not of the stream.
    """
    found = [DEPTH.fullmatch(name) for name in names]
    if not any(found):
        return None
    if (odd := next((name for name, each in zip(names, found, strict=True) if each is None), None)) is not None:
        raise BadInput(f"{file}: hook points of the residual stream alone are compared, got '{odd}'; leave it out")
    return [0 if each[1] else int(each[3]) + (each[2] == "post") for each in found if each is not None]


def _check(
    file: Path, names: Sequence[str], streams: Sequence[Tensor], depths: Sequence[int] | None, tokens: int | None
) -> None:
    shapes = {tuple(x.shape) for x in streams}
    if len(shapes) > 1 or (tokens is not None and len(streams[0]) != tokens):
        want = "" if tokens is None else f" for {tokens} token ids"
        raise BadInput(f"{file}: layers must have one shape (tokens, d), got {sorted(shapes)}{want}; write paired rows")
    if depths is not None and (len(depths) != len(names) or len({*depths}) < len(names) or min(depths) < 0):
        raise BadInput(
            f"{file}: layer ids must be one for each layer, each once, got {list(depths)} for {len(names)} layers; "
            "give those that the engine was given"
        )


def _read_text_column(name: str | None, usual: Sequence[str], integers: Mapping[str, Any]) -> list[str] | None:
    found = name or next((each for each in usual if each in integers), None)
    if found is None:
        return None
    if found not in integers:
        raise BadInput(f"{usual[0]}: not an array of text or whole numbers, got '{found}'; name another")
    return [str(each) for each in integers[found]()]


def _count_document_rows(file: Path, documents: Sequence[str] | None, rows: int) -> list[int]:
    """Counts the rows of each document. Raises BadInput where the rows of one do not follow each other."""
    if documents is None:
        return [rows]
    runs = [(name, len(list(each))) for name, each in groupby(documents)]
    if len(documents) != rows or len({name for name, _ in runs}) < len(runs):
        raise BadInput(
            f"{file}: `{DOCUMENTS[0]}` must name one document a row, whose rows follow each other, got "
            f"{len(documents)} in {len(runs)} runs for {rows} rows; sort them"
        )
    return [count for _, count in runs]
