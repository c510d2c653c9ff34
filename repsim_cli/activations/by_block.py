"""A model run by block: each block is read from disk once, and all batches pass through it before the next block.

The stream of all batches between two blocks is on disk, so that memory holds one block and one batch. A forward pass
through block k is the model's own: embeddings, masks and rotations are computed again, and the blocks before k return
what they gave for this batch, which is on disk. The rows of each block become a part of the model's cache entry.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor, nn

from repsim_cli.activations.batching import PADDING, TokenTally, batch_by_length, measure_lengths
from repsim_cli.activations.capture import Reader, capture
from repsim_cli.activations.hook_points import HookPoint, locate
from repsim_cli.activations.readings import Reading
from repsim_cli.activations.rows import Forward, find_used
from repsim_cli.activations.stored import name_window
from repsim_cli.base.errors import RunFailed
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.models.loading import Loading
from repsim_cli.models.parts import Kept, is_inside, list_block_names, list_stacks
from repsim_cli.models.source import Source
from repsim_cli.runs.cache import Entry
from repsim_cli.runs.results import Progress

log = logging.getLogger("repsim")
END = ""  # the step after all blocks
FORMS: dict[str, Any] = {"Tensor": Tensor, "tuple": tuple, "list": list}  # of what blocks return
Part = Callable[[Kept], nn.Module]


def make_part_loader(source: Source, eager: bool, how: Loading) -> Part:
    """The backbone with the weights of some modules alone."""
    return lambda kept: source.load(eager, replace(how, kept=kept))


@dataclass(frozen=True)
class BlockStep:
    """A block that is run, or END; and which of the hook points are read there, by their numbers."""

    block: str
    points: list[int]


def plan_block_steps(source: Source, points: Sequence[HookPoint]) -> list[BlockStep]:
    """The blocks up to the last that is read. Points outside of blocks are read at the end."""
    blocks = list_block_names(source)
    where = [
        next((block for block in blocks if is_inside(locate(point, source).module, block)), END) for point in points
    ]
    steps = [BlockStep(block, [i for i, at in enumerate(where) if at == block]) for block in (*blocks, END)]
    last = max(number for number, step in enumerate(steps) if step.points)
    return steps[: last + 1]


@dataclass
class BlockOutputs:
    """What the last finished block of each stack gave for the batch that runs, by the path of the stack's blocks.

    passed: how many blocks of each stack have returned it.
    """

    given: dict[str, Any] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)

    def start(self, given: dict[str, Any]) -> None:
        self.given, self.passed = given, dict.fromkeys(self.passed, 0)

    def replay(self, stack: str, *_: Any, **__: Any) -> Any:
        """The forward pass of a block that is not there."""
        self.passed[stack] = self.passed.get(stack, 0) + 1
        return self.given[stack]


def save_output(output: Any, file: Path, stream: torch.dtype | None) -> None:
    """Writes what a block returns, its floating-point tensors in the dtype `stream`. Raises RunFailed for what is
    neither a tensor nor a tuple of tensors and None."""
    parts = list(output) if isinstance(output, tuple | list) else [output]
    if type(output) not in FORMS.values() or not all(isinstance(part, Tensor | None) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise RunFailed(f"a block returns more than tensors, got {kinds}; set hardware.by_block=never")
    tensors, dtypes = {}, {}
    for i, part in enumerate(parts):
        if part is not None:
            lower = stream is not None and part.is_floating_point() and part.dtype.itemsize > stream.itemsize
            tensors[str(i)] = (part.to(stream) if lower else part).cpu().contiguous()
            dtypes[str(i)] = str(part.dtype).removeprefix("torch.")
    form = {"form": type(output).__name__, "count": str(len(parts)), **dtypes}
    safetensors.torch.save_file(tensors, file, metadata=form)


def restore_output(file: Path, device: torch.device) -> Any:
    """Reads what `save_output` wrote, memory-mapped where the device is the CPU."""
    with safetensors.safe_open(file, framework="pt") as opened:
        form = opened.metadata()
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    parts = [
        tensors[key].to(device, getattr(torch, form[key])) if (key := str(i)) in tensors else None
        for i in range(int(form["count"]))
    ]
    return parts[0] if form["form"] == "Tensor" else FORMS[form["form"]](parts)


class _Unpadded(Exception):
    """Raised once it is seen that padding changes the activations."""


class _TooLarge(Exception):
    """Raised for a batch that does not fit into memory, with its number of sequences."""

    def __init__(self, sequences: int):
        self.sequences = sequences


@dataclass(frozen=True)
class ByBlock:
    """What is run by block.

    part: the backbone in eval mode, on its device and in its dtype, with the weights of some modules alone.
    windows: of the sequences (`cut_sequence_windows`). entry: of the cache, for the rows.
    """

    reading: Reading
    part: Part
    sequences: Sequences
    windows: Sequence[slice]
    extract: Extract
    hardware: Hardware
    entry: Entry


def run_by_block(given: ByBlock, progress: Progress, tally: TokenTally | None = None) -> None:
    """Completes the model's entry, which may hold finished blocks of an interrupted run with batches of the same size.

    tally: counts what is run. Where the device runs out of memory, the pass starts again with batches half as large.
    """
    label = given.reading.label
    while True:
        try:
            done = _run(given, progress)
            break
        except _TooLarge as error:
            size = error.sequences
        if size == 1:
            raise RunFailed(
                f"model.{label}: one sequence does not fit into memory by block, got {given.extract.length} tokens; "
                "lower extract.length, or use another dtype or device"
            )
        log.warning("model.%s: out of memory with %d sequences; starting with %d", label, size, size // 2)
        given = replace(given, hardware=replace(given.hardware, batch_size=size // 2))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    done.finish()
    if tally:
        done.count(tally)


def _run(given: ByBlock, progress: Progress) -> "_BlockPass":
    """The pass after all of its steps. Raises _TooLarge."""
    filled, other = (_BlockPass(given, padded=padded) for padded in (True, False))
    try:
        done = other if other.count_done() else filled
        done.run(progress)
    except _Unpadded:
        done = other
        done.run(progress)
    return done


class _BlockPass:
    """A pass with batches of one kind. padded: whether their sequences may be padded."""

    def __init__(self, given: ByBlock, *, padded: bool):
        assert isinstance(given.reading.source, Source)
        self.reading, self.source, self.part, self.entry = given.reading, given.reading.source, given.part, given.entry
        self.sequences, self.windows = given.sequences, given.windows
        self.extract, self.hardware = given.extract, given.hardware
        self.padded = padded
        self.steps = plan_block_steps(self.source, self.reading.points)
        batches = f"{self.windows} {self.hardware.batch_size} {self.hardware.batch_tokens} {padded}"
        self.sign = xxhash.xxh3_64_hexdigest(batches.encode())
        self.stream = None if self.hardware.stream is None else getattr(torch, self.hardware.stream)

    def name(self, what: str, number: int) -> str:
        """The name in the entry of the rows or the stream of a step."""
        return f"{what}-{self.sign}-{number:04d}"

    def behind(self, number: int) -> dict[str, int]:
        """Finds the last step before step `number` in each stack of blocks, by the stack's path: that step needs its
        stream."""
        last = {}
        for i, step in enumerate(self.steps[:number] if number < len(self.steps) else ()):
            if step.block != END:
                last[step.block.rpartition(".")[0]] = i
        return last

    def count_done(self) -> int:
        """Counts the steps that need not be run again."""
        whole = 0
        for number, step in enumerate(self.steps, 1):
            if step.points and self.name("rows", number - 1) not in self.entry.files:
                break
            if all(self.name("stream", i) in self.entry.files for i in self.behind(number).values()):
                whole = number
        return whole

    def run(self, progress: Progress) -> None:
        done = self.count_done()
        for name in [name for name in self.entry.files if self.sign not in name]:
            self.entry.remove(name)
        if done == len(self.steps):
            return
        blocks = list_block_names(self.source)
        outputs, rest = BlockOutputs(), self.part(lambda name: not any(is_inside(name, block) for block in blocks))
        for block in blocks:
            rest.get_submodule(block).forward = partial(outputs.replay, block.rpartition(".")[0])
        for number in range(done, len(self.steps)):
            with self._load(rest, self.steps[number].block):
                self._step(number, rest, outputs, progress)
            needed = {self.name("stream", i) for i in self.behind(number + 1).values()}
            for name in [name for name in self.entry.files if name.startswith("stream-") and name not in needed]:
                self.entry.remove(name)

    @contextmanager
    def _load(self, rest: nn.Module, block: str) -> Iterator[None]:
        """Puts the block with its weights in its place while the context lasts."""
        if block == END:
            yield
            return
        stack, _, layer = block.rpartition(".")
        stand_in = rest.get_submodule(block)
        loaded = self.part(lambda name: is_inside(name, block)).get_submodule(block)
        setattr(rest.get_submodule(stack), layer, loaded)
        try:
            yield
        finally:
            setattr(rest.get_submodule(stack), layer, stand_in)
            loaded.to("meta")  # whoever still refers to it, its memory is free

    def _step(self, number: int, rest: nn.Module, outputs: BlockOutputs, progress: Progress) -> None:
        step = self.steps[number]

        def run_windows(rows: Path | None, stream: Path | None) -> None:
            for folder in (rows, stream):
                if folder is not None:
                    folder.mkdir()
            some = replace(
                self.reading,
                points=[self.reading.points[i] for i in step.points],
                layers=[self.reading.layers[i] for i in step.points],
            )
            with self._reader(number, some.points, rest, outputs, stream) as read:
                forward = Forward(some, read, rest, self.sequences, self.extract, self.hardware)
                if not self.padded:
                    forward.padding = 0.0
                elif not forward.padding:
                    raise _Unpadded
                tokens = int(forward.lengths.sum())
                label = f"{self.reading.label}, block {number + 1} of {len(self.steps)}, {tokens:,} tokens each"
                later = len(self.windows) * (len(self.steps) - number - 1)
                for window in progress(self.windows, label=label, unit="windows", later=later):
                    taken = forward.rows(window)
                    if rows is not None:
                        tensors = {f"{i:04d}": x.cpu().contiguous() for i, x in enumerate(taken)}
                        safetensors.torch.save_file(tensors, rows / name_window(window))

        def run_with_stream(rows: Path | None) -> None:
            if number + 1 == len(self.steps):
                run_windows(rows, None)
            else:
                self.entry.write(self.name("stream", number), lambda stream: run_windows(rows, stream))

        if step.points:
            self.entry.write(self.name("rows", number), run_with_stream)
        else:
            run_with_stream(None)

    @contextmanager
    def _reader(
        self, number: int, points: list[HookPoint], rest: nn.Module, outputs: BlockOutputs, stream: Path | None
    ) -> Iterator[Reader]:
        """A reader of these hook points in the block of a step, for batches in the order of the pass. stream: the
        folder for what the block gives; None: it is not needed."""
        step, behind = self.steps[number], self.behind(number)
        seen: list[Any] = []
        with ExitStack() as stack:
            wanted = list(points)
            if step.block != END:
                hook = rest.get_submodule(step.block).register_forward_hook(lambda *given: seen.append(given[-1]))
                stack.callback(hook.remove)
                wanted = list(dict.fromkeys([*points, HookPoint("module", module=step.block)]))
            else:
                for point in points:
                    check = partial(self._check_outside, point, outputs)
                    module = rest.get_submodule(locate(point, self.source).module)
                    stack.callback(module.register_forward_pre_hook(check).remove)
            read = stack.enter_context(capture(rest, self.source, wanted))
            batch = itertools.count()

            def run(inputs: Tensor, mask: Any, **more: Tensor) -> dict[HookPoint, Tensor]:
                file = f"{next(batch):06d}"
                outputs.start(
                    {
                        path: restore_output(self.entry.files[self.name("stream", i)] / file, inputs.device)
                        for path, i in behind.items()
                    }
                )
                seen.clear()
                try:
                    activations = read(inputs, mask, **more)
                except torch.OutOfMemoryError:
                    raise _TooLarge(len(inputs)) from None
                if stream is not None:
                    save_output(seen[0], stream / file, self.stream)
                return {point: activations[point] for point in points}

            yield run

    def _check_outside(self, point: HookPoint, outputs: BlockOutputs, *_: Any) -> None:
        """Raises RunFailed for a module that runs between blocks, which has no input of its own then."""
        for stack in list_stacks(self.source):
            if 0 < outputs.passed.get(stack.blocks, 0) < stack.depth:
                raise RunFailed(f"{point} is between blocks, got a pass by block; set hardware.by_block=never")

    def finish(self) -> None:
        """Completes the entry: a folder for each step that is read, with a file for each window."""
        parts: dict[int, list[str]] = {}
        widths: dict[int, int] = {}
        rows: dict[str, int] = {}
        for number, step in enumerate(self.steps):
            folder = self.name("rows", number)
            for window in self.windows if step.points else ():
                with safetensors.safe_open(self.entry.files[folder] / name_window(window), framework="pt") as opened:
                    for place, i in enumerate(step.points):
                        rows[name_window(window)], widths[i] = opened.get_slice(f"{place:04d}").get_shape()
                        parts[i] = [folder, f"{place:04d}"]
        layers = range(len(self.reading.layers))
        self.entry.finish(
            names=[layer.name for layer in self.reading.layers],
            widths=[widths[i] for i in layers],
            rows=rows,
            parts=[parts[i] for i in layers],
        )

    def count(self, tally: TokenTally) -> None:
        lengths = measure_lengths(find_used(self.sequences, self.extract))
        for window in self.windows:
            for batch in batch_by_length(lengths[window], self.hardware, PADDING if self.padded else 0.0):
                places = int(lengths[batch + window.start].max())
                tally(self.reading.label, self.sequences.take(batch + window.start, places).mask)
