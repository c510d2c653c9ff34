"""Every block of a model on its base's own input: what the block itself changes, beside what the stream carries on.

x is what enters block k of the base, x' what enters it in the model; B is the base's block, T the model's. The stream
at the end of the block changes by T(x') - B(x), which is the sum of

- the block's own change, T(x) - B(x): zero, or rounding, where the block was not changed, whatever came before it;
- the carried part, T(x') - T(x): what the block makes of the changes of the blocks before it.

The norms of both are over that of B(x), token by token.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from repsim_cli.activations.batching import TokenTally, batch_by_length, make_input_tensors, measure_lengths
from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import LOGITS, HookPoint, locate
from repsim_cli.activations.places import mark_read_places
from repsim_cli.activations.readings import Reading
from repsim_cli.activations.rows import find_used
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.engine.cost import Cost, estimate_forward_cost
from repsim_cli.models.calls import Hooks, exchange, find_entering
from repsim_cli.models.loading import make_input_template
from repsim_cli.models.points import Architecture
from repsim_cli.models.precision import (
    UNIT,
    Raised,
    cast_inputs,
    choose_rounding_limits,
    choose_twin_dtype,
    copy_in_precision,
    find_main_dtype,
)
from repsim_cli.models.source import Source, find_backbone_path
from repsim_cli.runs.content import OWN
from repsim_cli.studies.tuned.changes import compute_logit_divergences, encode_json
from repsim_cli.studies.tuned.gathered import Gathered

END, TOP = "resid_post", 10  # what leaves a block; tokens that a direction promotes, and that it demotes
ROUGH = 4  # roundings, where they cannot be measured
HELD = {"bfloat16": torch.bfloat16, "float16": torch.float16}  # precisions in which a checkpoint may have been saved
Call = tuple[tuple[Any, ...], dict[str, Any]]


def say_why_not_alone(source: Source) -> str | None:
    """Says why the blocks of a model cannot be run alone; None: they can."""
    table = source.architecture
    if table is None or table.stacks or not table.depth or END not in table.block:
        return f"no single stack of blocks is known in {source.model_type}"
    return f"the blocks of {source.model_type} share their weights" if table.shared is not None else None


@dataclass(frozen=True)
class BlockStack:
    """A model whose blocks are run. headed: with its output head."""

    label: str
    source: Source
    module: nn.Module
    headed: bool

    @property
    def table(self) -> Architecture:
        assert self.source.architecture is not None  # as `say_why_not_alone` says
        return self.source.architecture

    @cached_property
    def path(self) -> str:
        """The path of the backbone in the module."""
        return find_backbone_path(self.module, self.source) if self.headed else ""

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        """The modules of the backbone, by the names that hook points use."""
        return self.source.modules(self.module.get_submodule(self.path))

    @property
    def blocks(self) -> Any:
        """The list of blocks."""
        return self.modules[self.table.blocks]

    def ends(
        self,
        given: Sequences,
        extract: Extract,
        enter: Callable[[int, tuple[Any, ...], dict[str, Any]], Call | None] | None = None,
    ) -> list[Float[Tensor, "n d"]]:
        """Reads the rows of the run at the end of every block, by a forward pass. enter(block, args, kwargs) may give
        other inputs of a block."""
        backbone = self.module.get_submodule(self.path)
        return self._read(backbone, [HookPoint(END, layer) for layer in range(self.table.depth)], given, extract, enter)

    def logits(self, given: Sequences, extract: Extract) -> Float[Tensor, "n c"]:
        """Computes the logits after the rows of the run, by a forward pass."""
        return self._read(self.module, [LOGITS], given, extract)[0]

    def _read(
        self,
        module: nn.Module,
        points: Sequence[HookPoint],
        given: Sequences,
        extract: Extract,
        enter: Callable[[int, tuple[Any, ...], dict[str, Any]], Call | None] | None = None,
    ) -> list[Tensor]:
        hooks = Hooks()
        inputs, mask, more = make_input_tensors(given, self.source, make_input_template(self.module))
        chosen = torch.from_numpy(_choose_places(given, extract)).to(inputs.device)
        try:
            for number, block in enumerate(self.blocks if enter is not None else ()):
                hooks.call_before(block, lambda args, kwargs, number=number: enter(number, args, kwargs))  # type: ignore
            with capture(module, self.source, points) as read:
                found = read(inputs, mask, **more)
        finally:
            hooks.remove()
        return [(x := found.pop(point))[chosen.to(x.device)].float() for point in points]


def _choose_places(given: Sequences, extract: Extract) -> np.ndarray:
    """Marks the places that are rows of the run."""
    places = mark_read_places(given, extract)
    return places if given.left_out is None else places & ~given.left_out


def make_block_stacks(
    readings: Sequence[Reading], modules: Mapping[str, nn.Module], warn: Callable[[str], None]
) -> list[BlockStack]:
    """The models, the base first, with logits as their last point where they have heads; a warning for those whose
    blocks are not those of the base, which are left out."""
    made: list[BlockStack] = []
    for reading in readings:
        source = reading.source
        assert isinstance(source, Source)
        why = say_why_not_alone(source)
        if why is None and made and len(made[0].blocks) != source.architecture.depth:  # type: ignore[union-attr]
            why = f"it has other blocks than '{made[0].label}'"
        if why is None:
            made.append(BlockStack(reading.label, source, modules[reading.label], reading.points[-1] == LOGITS))
            continue
        warn(f"model.{reading.label}: its blocks are not run alone on the base's input ({why})")
        if not made:
            return []
    return made


def make_unpadded_batches(sequences: Sequences, count: int, extract: Extract, hardware: Hardware) -> list[Sequences]:
    """The first `count` sequences in batches of equal length, which need no padding."""
    some = sequences.take(slice(count))
    lengths = measure_lengths(find_used(some, extract))
    taken = [
        some.take(batch, int(lengths[batch].max()))
        for batch in batch_by_length(lengths, hardware, padding=0.0)
        if lengths[batch].max()
    ]
    return [given for given in taken if _choose_places(given, extract).any()]


def estimate_batch_bytes(models: Iterable[Source], places: int) -> float:
    """Estimates the bytes of a batch of `places` tokens: the streams of three passes, the inputs of the first, and a
    block in float64."""
    models = list(models)
    streams = max(source.layers * source.width for source in models)
    return 4.0 * 5 * places * streams + 8.0 * max(source.parameters / max(source.layers, 1) for source in models)


def estimate_block_costs(
    base: Source, tuned: Sequence[Source], turns: int, length: int, count: int, hardware: Hardware, *, patching: bool
) -> dict[str, Cost]:
    """Estimates what it takes to run the blocks on `count` sequences of this length, the base once for each of the
    turns, and with `patching` to put every block of the base back into the models."""
    first = min(count, hardware.batch_size)
    alone = estimate_forward_cost([*[base] * turns, *tuned, *tuned], count, length, hardware)
    again = estimate_forward_cost([base] * 2 * turns, first, length, hardware)  # a pass in float64 counts as two
    if not patching:
        return {"blocks on the base's input": alone + again}
    passes = [base] * len(tuned) + [source for source in tuned for _ in range(source.layers + 1)]
    patched = estimate_forward_cost(passes, count, length, hardware, vocabularies=True)
    return {"blocks on the base's input": alone + again, "patching, at most": patched}


def compute_block_changes(
    base: BlockStack,
    tuned: Sequence[BlockStack],
    given: Sequence[Sequences],
    extract: Extract,
    *,
    patching: bool,
    progress: Callable[[Sequence[Any]], Iterator[Any]],
    tally: TokenTally,
) -> dict[str, dict[str, Tensor]]:
    """Computes what every block of these models changes, by their labels. given: batches of sequences.

    rounding: of every block of the base, the root mean square over the tokens of the first batch of what another
    precision changes, over the norm, and the largest; above: whether a block's own change is more. promoted: the tokens
    that the mean change promotes most through the base's final norm and head, then those that it demotes most.
    restored: the share of KL(base || model) that the base's block in place of the model's takes away, with `patching`.
    """
    gathered = {model.label: Gathered() for model in tuned}
    rounding = torch.empty(0)
    for number, batch in enumerate(progress(given)):
        calls: list[Call] = []
        ends = base.ends(batch, extract, lambda _, args, kwargs, calls=calls: calls.append(_copy_inputs(args, kwargs)))
        tally(base.label, batch.mask)
        if not number:
            rounding = measure_rounding(base, calls, ends, _choose_places(batch, extract))
        entries = [found[1] if (found := find_entering(*call)) else None for call in calls]
        del calls

        def replace_input(
            block: int, args: tuple[Any, ...], kwargs: dict[str, Any], entries: list[Any] = entries
        ) -> Call | None:
            found, entry = find_entering(args, kwargs), entries[block]
            if found is None or entry is None:
                return None
            return exchange(args, kwargs, found[0], entry.to(found[1].device, found[1].dtype).clone())

        for model in tuned:
            alone, whole = model.ends(batch, extract, replace_input), model.ends(batch, extract)
            gathered[model.label].add(ends, alone, whole, _choose_places(batch, extract).sum(1).tolist())
            tally(model.label, batch.mask)
            tally(model.label, batch.mask)
    made = {}
    for model in tuned:
        made[model.label] = found = gathered[model.label].tensors()
        found |= {"rounding": rounding, **compute_weight_changes(base, model)}
        found["above"] = find_above_rounding(found[OWN], rounding, find_main_dtype(base.module)) & ~found["held"]
        if base.headed and model.headed:
            found["promoted"] = find_promoted(base, found["direction"])
            if patching:
                changed = found["above"].nonzero()[:, 0].tolist()
                found["restored"] = compute_restored(base, model, given, extract, changed)
        found["norm"] = found.pop("direction").norm(dim=1)
    return made


def _copy_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """The inputs of a block, whose stream may be changed in place later."""
    found = find_entering(args, kwargs)
    return (args, dict(kwargs)) if found is None else exchange(args, kwargs, found[0], found[1].clone())


def measure_rounding(
    base: BlockStack, calls: Sequence[Call], ends: Sequence[Tensor], chosen: np.ndarray
) -> Float[Tensor, "blocks 2"]:
    """Measures the rounding of every block, by running it in another precision on the same inputs: the change over the
    norm, by token, as root mean square and as the largest. At least half a rounding; ROUGH roundings where a block
    refuses the other precision."""
    own = find_main_dtype(base.module)
    dtype, unit, places = choose_twin_dtype(own, own), UNIT[own], torch.from_numpy(chosen)
    found = []
    for layer, (block, (args, kwargs), end) in enumerate(zip(base.blocks, calls, ends, strict=True)):
        pick = locate(HookPoint(END, layer), base.source).pick
        twin = copy_in_precision(block, dtype, set())
        try:
            with torch.inference_mode(), Raised() if dtype == torch.float64 else nullcontext():
                out = pick(twin(*cast_inputs(args, dtype), **cast_inputs(kwargs, dtype)), 0)
            size = end.double().norm(dim=1)
            off = (out[places.to(out.device)].double() - end.double()).norm(dim=1)[size > 0] / size[size > 0]
            sizes = [float(off.square().mean().sqrt()), float(off.max())] if len(off) else [0.0, 0.0]
        except (RuntimeError, TypeError, NotImplementedError):
            sizes = [ROUGH * unit] * 2
        found.append([max(size, unit / 2) for size in sizes])
    return torch.tensor(found, dtype=torch.float64)


def find_above_rounding(own: Float[Tensor, "b n"], rounding: Float[Tensor, "b 2"], dtype: torch.dtype) -> Tensor:
    """Says of each block whether its own change is more than rounding gives, over all tokens or at one of them, by the
    limits of `repsim verify`."""
    limits, known = choose_rounding_limits(dtype), own.double().nan_to_num(0.0)
    whole, largest = known.square().mean(1).sqrt(), known.max(1).values
    return (whole > limits.whole * rounding[:, 0]) | (largest > limits.row * rounding[:, 1])


def compute_weight_changes(base: BlockStack, tuned: BlockStack) -> dict[str, Tensor]:
    """weights: the relative change of the weights of every block, NaN where none have a name in common. tensors: an
    encoded list of (name, block or None, relative change) of those that changed. held: whether all that changed in a
    block is that its weights were rounded to 16 bits."""
    ours, theirs = (_name_weights(model) for model in (base, tuned))
    pairs = set[tuple[int, int]]()  # a head that is tied to the embeddings in both is they
    depth, blocks = len(base.blocks), f"{base.table.blocks}."
    sums, rows = torch.zeros(depth, 2, dtype=torch.float64), []
    changed, rounded = torch.zeros(depth, dtype=torch.bool), torch.ones(depth, dtype=torch.bool)
    for name, x in ours.items():
        y = theirs.get(name)
        if y is None or y.shape != x.shape or x.is_meta or y.is_meta or (id(x), id(y)) in pairs:
            continue
        pairs.add((id(x), id(y)))
        x, y = x.detach(), y.detach().to(x.device)
        inside = name.removeprefix(blocks).partition(".")[0] if name.startswith(blocks) else ""
        block = int(inside) if inside.isdigit() else None
        squares = torch.stack([(y.double() - x.double()).square().sum(), x.double().square().sum()]).cpu()
        if block is not None:
            sums[block] += squares
        if squares[0]:
            rows.append([name, block, float((squares[0] / squares[1]).sqrt()) if squares[1] else None])
            if block is not None:
                changed[block] = True
                rounded[block] &= any(torch.equal(y, x.to(dtype).to(y.dtype)) for dtype in HELD.values())
    return {
        "weights": (sums[:, 0] / sums[:, 1]).sqrt(),
        "tensors": encode_json(rows),
        "held": changed & rounded,
    }


def _name_weights(model: BlockStack) -> dict[str, Tensor]:
    """The weights by names as in the backbone; those of the head by their own, also where it is tied."""
    prefix = f"{model.path}." if model.path else ""
    return {name.removeprefix(prefix): x for name, x in model.module.named_parameters(remove_duplicate=False)}


def find_promoted(base: BlockStack, direction: Float[Tensor, "b d"]) -> Tensor:
    """The ids of the TOP tokens whose logits each direction raises most, and of those that it lowers most.

    Through the base's final norm (its gain, and its centring where it centres; what it adds to everything cancels) and
    its head.
    """
    weights, head, place = make_input_template(base.module), _find_output_head(base.module), base.table.final_norm
    norm = (lambda x: x) if place is None else base.modules[place.module]
    unit = direction / direction.norm(dim=1, keepdim=True).clamp_min(1e-300) * direction.shape[1] ** 0.5
    unit = unit.to(weights.device, weights.dtype)
    with torch.inference_mode():
        logits = (head(norm(unit)) - head(norm(torch.zeros_like(unit)))).float()
    top = min(TOP, logits.shape[1])
    return torch.cat([logits.topk(top).indices, (-logits).topk(top).indices], 1).cpu()


def _find_output_head(module: Any) -> Any:
    return module.get_output_embeddings()


def compute_restored(
    base: BlockStack, tuned: BlockStack, given: Sequence[Sequences], extract: Extract, blocks: Sequence[int]
) -> Float[Tensor, " blocks"]:
    """The share of KL(base || model) over the next token, summed over tokens, that goes where the base's block runs in
    the model in place of its own; 0 of the blocks that are not among these, NaN without any effect."""
    sums = torch.zeros(len(base.blocks), dtype=torch.float64)
    whole = 0.0
    for batch in given:
        wanted = base.logits(batch, extract)

        def effect(wanted: Tensor = wanted, batch: Sequences = batch) -> float:
            got = tuned.logits(batch, extract)
            common = min(wanted.shape[1], got.shape[1])  # vocabularies may be padded
            return float(compute_logit_divergences(wanted[:, :common], got[:, :common].to(wanted.device)).sum())

        of_batch = effect()
        whole += of_batch
        for block in blocks:
            own = tuned.blocks[block]
            tuned.blocks[block] = base.blocks[block]
            try:
                sums[block] += of_batch - effect()
            finally:
                tuned.blocks[block] = own
    return sums / whole if whole > 0 else torch.full_like(sums, torch.nan)
