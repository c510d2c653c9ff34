"""The outputs of a Python program's torch modules, recorded as rows: in memory while they fit, then on the disk."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import xxhash
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from repsim_cli.base.arrays import convert_to_tensor
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.models.source import Precomputed

Forward = Callable[[nn.Module, Any], Any]
Maps = Literal["flattened", "pooled", "positions"]
ALONE = "module"  # the layer of a module without parts
IN_MEMORY = 2**30  # bytes of the rows of torch modules; the rest is on the disk


def check_given_documents(documents: Any, count: int, what: str) -> list[str]:
    """The given documents as text. Raises BadInput where they are not as many as the rows or items."""
    if isinstance(documents, str) or not isinstance(documents, Sequence | np.ndarray):
        raise BadInput(f"documents: a list, got {type(documents).__name__}; give the document of each row")
    if len(documents) != count:
        raise BadInput(f"documents: one for each of {count} {what}, got {len(documents)}; give as many")
    return [str(each) for each in documents]


def record_modules(
    modules: Mapping[str, nn.Module],
    batches: Iterable[Any],
    layers: Sequence[str],
    *,
    forward: Forward | None = None,
    maps: Maps = "flattened",
    documents: Sequence[Any] | np.ndarray | None = None,
) -> dict[str, Precomputed]:
    """Records what torch modules compute: the first `IN_MEMORY` bytes in memory, the rest on the disk, until they are
    let go.

    The batches are read once, and each goes through all modules, so that rows are paired whatever their order. Modules
    run where they are, in eval mode, without gradients; their modes, hooks and the state of random numbers are left as
    they were.

    batches: tensors or numpy arrays, or tuples or lists whose first item is the input, or dicts of keywords.
    layers: names of modules, or globs such as `layer*.conv2`; none: every module with weights that has no parts, which
        may be the module itself.
    forward: forward(module, batch), for other signatures; None: module(batch) or module(**batch).
    maps: of outputs (b, channels, height, width) and (b, places, features): a row per item, flattened or averaged over
        positions, or a row per position.
    documents: of every item, that of all its rows.
    Raises BadInput for a layer that does not exist, does not run, runs twice, or gives no tensor.
    """
    rows: dict[str, _Rows] = {}
    try:
        with ExitStack() as stack:
            for label, module in modules.items():
                with _name_errors(label):
                    rows[label] = _Rows(_find_named(module, layers), IN_MEMORY // len(modules), stack)
                stack.enter_context(_leave_undisturbed(module))
            stack.enter_context(torch.no_grad())
            for batch in batches:
                for label, module in modules.items():
                    with _name_errors(label):
                        rows[label].add(*_capture_batch_rows(module, batch, rows[label].names, forward, maps))
        kept = {}
        for label, module in modules.items():
            with _name_errors(label):
                kept[label] = rows[label].keep(f"in memory, a {type(module).__name__}", documents)
    except BaseException:
        for each in rows.values():
            shutil.rmtree(each.folder, ignore_errors=True)
        raise
    return kept


@contextmanager
def _name_errors(label: str) -> Any:
    """Adds the name of the model to errors that are raised inside."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"models.{label}.{error}") from None
    except Exception as error:
        error.add_note(f"in models.{label}")
        raise


class _Rows:
    """The rows of every layer of a module: batches in memory as long as they take at most `most` bytes, the rest in a
    file per layer."""

    def __init__(self, names: Sequence[str], most: int, stack: ExitStack):
        self.names, self.folder, self.hash = list(names), Path(tempfile.mkdtemp(prefix="repsim-")), xxhash.xxh3_128()
        self.files = [stack.enter_context((self.folder / str(i)).open("wb")) for i in range(len(names))]
        self.shapes = {name: (0, 0) for name in names}
        self.held: dict[str, list[np.ndarray]] = {name: [] for name in names}
        self.left = most
        self.of_items: list[int] = []  # how many rows each item of the data has

    def add(self, rows: Mapping[str, Float[np.ndarray, "n _"]], items: int) -> None:
        """Adds the rows of a batch, by layer. items: the number of its items."""
        self.of_items += [len(rows[self.names[0]]) // max(items, 1)] * items
        self.left -= sum(x.nbytes for x in rows.values())
        for file, name in zip(self.files, self.names, strict=True):
            (count, width), (more, now) = self.shapes[name], rows[name].shape
            if count and width != now:
                raise BadInput(
                    f"layer '{name}': batches differ in shape, got {width} and {now} features; give inputs of one "
                    "size, or maps='pooled'"
                )
            self.shapes[name] = (count + more, now)
            if self.left >= 0:
                self.held[name].append(rows[name])
            else:
                file.write(rows[name].data)
            self.hash.update(rows[name].data)

    def keep(self, source: str, documents: Sequence[Any] | np.ndarray | None) -> Precomputed:
        """The rows as stored activations, whose files are removed with them. documents: one of every item."""
        counts = sorted({count for count, _ in self.shapes.values()})
        if counts[0] == 0:
            raise BadInput("data: no batch was given; give batches of inputs")
        if len(counts) > 1:
            raise BadInput(
                f"layers: they differ in their number of positions, got {counts} rows; use maps='pooled' or 'flattened'"
            )
        held, first = self.held, self.names[0]
        for i, (name, (count, width)) in enumerate(self.shapes.items()):
            if left := count - sum(map(len, held[name])):
                held[name].append(np.memmap(self.folder / str(i), np.float32, "r", shape=(left, width)))
        digested = self.hash.hexdigest()
        made = Precomputed(
            names=self.names,
            rows=counts[0],
            widths=[width for _, width in self.shapes.values()],
            read=lambda name, part: torch.from_numpy(_join(held[name], part)),
            identity=lambda: {"source": source, "weights_hash": digested},
            is_held=lambda part: _is_view(_cut_rows(held[first], part)),
        )
        if documents is not None:
            of_items = check_given_documents(documents, len(self.of_items), "items")
            made = replace(made, documents=np.repeat(of_items, self.of_items).tolist())
        weakref.finalize(made, shutil.rmtree, self.folder, ignore_errors=True)
        return made


def _join(parts: Sequence[np.ndarray], rows: slice) -> Float[np.ndarray, "n d"]:
    """Joins the rows of this slice, of arrays that follow each other; rows within one array are not copied, unless it
    is in a file."""
    taken = _cut_rows(parts, rows)
    return taken[0] if _is_view(taken) else np.concatenate(taken)


def _is_view(taken: Sequence[np.ndarray]) -> bool:
    return len(taken) == 1 and not isinstance(taken[0], np.memmap)


def _cut_rows(parts: Sequence[np.ndarray], rows: slice) -> list[np.ndarray]:
    taken, first = [], 0
    start, stop, _ = rows.indices(sum(map(len, parts)))
    for part in parts:
        inside = part[max(start - first, 0) : max(stop - first, 0)]
        if len(inside):
            taken.append(inside)
        first += len(part)
    return taken


def _list_parts(module: nn.Module) -> dict[str, nn.Module]:
    """Lists the modules inside a module by name; one that has none is a part itself."""
    return {name: part for name, part in module.named_modules() if name} or {ALONE: module}


def _find_named(module: nn.Module, layers: Sequence[str]) -> list[str]:
    """The modules of these names and globs, in the module's order."""
    parts = _list_parts(module)
    if not layers:
        simple = [name for name, part in parts.items() if not list(part.children()) and list(part.parameters())]
        if not simple:
            raise BadInput(f"layers: no module with weights and no parts, got {', '.join(parts)}; name some")
        return simple
    for pattern in layers:
        if not any(fnmatchcase(name, pattern) for name in parts):
            raise BadInput(f"layers: no such module, got '{pattern}'; {did_you_mean(pattern, parts)}")
    return [name for name in parts if any(fnmatchcase(name, pattern) for pattern in layers)]


@contextmanager
def _leave_undisturbed(module: nn.Module) -> Any:
    """Puts the module in eval mode inside; afterwards modes and random numbers are as they were."""
    modes = {part: part.training for part in module.modules()}
    devices = sorted({weights.device.index or 0 for weights in module.parameters() if weights.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            yield module.eval()
    finally:
        for part, mode in modes.items():
            part.training = mode


def _capture_batch_rows(
    module: nn.Module, batch: Any, names: Sequence[str], forward: Forward | None, maps: Maps
) -> tuple[dict[str, Float[np.ndarray, "n d"]], int]:
    """The rows of a batch, by layer, and the number of its items."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, _: nn.Module, __: Any, output: Any) -> None:
        value = output[0] if isinstance(output, tuple | list) and output else output
        if not isinstance(value, Tensor):
            raise BadInput(f"layer '{name}': not a tensor, got {type(value).__name__}; choose another layer")
        if name in seen:
            raise BadInput(f"layer '{name}': it runs twice in a forward pass, got two outputs; choose another layer")
        seen[name] = value.detach().clone()  # what follows may change it in place

    parts = _list_parts(module)
    handles = [parts[name].register_forward_hook(lambda *given, name=name: keep(name, *given)) for name in names]
    try:
        _call(module, batch, forward)
    except BadInput:
        raise
    except Exception as error:
        error.add_note(
            f"data: the module failed on a batch, got {_describe_batch(batch)}; give batches as from a DataLoader, "
            "whose first item is the input, or forward=lambda module, batch: module(...)"
        )
        raise
    finally:
        for handle in handles:
            handle.remove()
    items = _count_items(batch)
    for name in names:
        if name not in seen:
            raise BadInput(f"layer '{name}': it did not run; choose another layer")
        if items and seen[name].ndim and len(seen[name]) % items:
            raise BadInput(
                f"layer '{name}': its first dimension is not the batch, got {tuple(seen[name].shape)} for {items} "
                "items; choose another layer, or put the batch first"
            )
    return {name: _convert_to_rows(name, x, maps) for name, x in seen.items()}, len(seen[names[0]])


def _describe_batch(batch: Any) -> str:
    """The type of a batch, and the shape and type of the numbers that enter the module."""
    first = batch[0] if isinstance(batch, tuple | list) and batch else batch
    kind = type(batch).__name__
    inside = f" with {tuple(first.shape)} of {first.dtype}" if isinstance(first, Tensor | np.ndarray) else ""
    return f"a {kind}{inside}"


def _count_items(batch: Any) -> int:
    """The number of items of a batch; 0 where it is not known."""
    first = next(iter(batch.values() if isinstance(batch, Mapping) else batch), None) if _is_group(batch) else batch
    return len(first) if isinstance(first, Tensor | np.ndarray) and first.ndim else 0


def _is_group(batch: Any) -> bool:
    return isinstance(batch, tuple | list | Mapping)


def _call(module: nn.Module, batch: Any, forward: Forward | None) -> None:
    device = next((weights.device for weights in module.parameters()), torch.device("cpu"))
    if isinstance(batch, tuple | list) and forward is None:
        batch = batch[0]
    if isinstance(batch, np.ndarray) and forward is None:
        batch = convert_to_tensor("data: a batch", batch)
    if isinstance(batch, Tensor):
        batch = batch.to(device)
    elif isinstance(batch, Mapping):
        batch = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in batch.items()}
    if forward is not None:
        forward(module, batch)
    elif isinstance(batch, Mapping):
        module(**batch)
    else:
        module(batch)


def _convert_to_rows(name: str, x: Tensor, maps: Maps) -> Shaped[np.ndarray, "n d"]:
    if x.ndim < 2 or not x.is_floating_point():
        raise BadInput(f"layer '{name}': not one row per item, got {x.dtype} {tuple(x.shape)}; choose another layer")
    by_place = x.flatten(2).transpose(1, 2) if x.ndim > 3 else x if x.ndim == 3 else x[:, None]
    rows = {
        "flattened": lambda: x.flatten(1),
        "pooled": lambda: by_place.mean(1),
        "positions": lambda: by_place.flatten(0, 1),
    }[maps]()
    return rows.float().cpu().contiguous().numpy()
