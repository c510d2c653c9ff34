"""A stored stream beside a model, whose blocks run on it: the error of each block is local, without the other model."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput
from repsim_cli.models import precision
from repsim_cli.models.calls import Hooks, exchange, find_entering
from repsim_cli.runs.results import Progress, quiet
from repsim_cli.studies.verify import inputs, rounding
from repsim_cli.studies.verify.answer import AGREES, DIFFERENT, IDENTICAL, ROUNDING, UNNAMED, Answer, Difference
from repsim_cli.studies.verify.dump import Dump
from repsim_cli.studies.verify.found import Finding
from repsim_cli.studies.verify.inputs import Batch
from repsim_cli.studies.verify.kinds import describe
from repsim_cli.studies.verify.merge import merge_differences
from repsim_cli.studies.verify.passes import run_or_refuse
from repsim_cli.studies.verify.reference import Call, bound_rounding, repeat
from repsim_cli.studies.verify.rounding import Places
from repsim_cli.studies.verify.study import OTHER, compare_outputs
from repsim_cli.studies.verify.trace import map_tensors
from repsim_cli.studies.verify.units import ModelUnit, find_hook_point_table, hook_units, split_into_units

AT_ONCE = 4096  # tokens of a pass
CLOSE = 0.1  # of the norm, within which a dump is of one of two streams
STREAM = "resid_post"  # the hook point that a dump is compared at
GIVEN = "the dump's own stream"
NORMED = "the last layer of the dump is taken after the final norm"
ONE = (
    "it holds {}, one of the two streams that some engines keep apart, and not their sum: write `hidden_states` + "
    "`residual`"
)


@dataclass(frozen=True)
class DumpPair:
    """A dump and a model. first: the dump is the reference. coarse: the coarser precision of both. twin: that beside
    which rounding is measured; None: it is not."""

    dump: Dump
    model: nn.Module
    labels: tuple[str, str]
    first: bool
    coarse: torch.dtype
    twin: torch.dtype | None

    def sides(self, held: Any, x: Any) -> tuple[Any, Any]:
        """Orders what the dump holds and what the model gives as candidate and reference."""
        return (x, held) if self.first else (held, x)


@dataclass
class StreamFindings:
    """What the passes show. order: the parts, as they run. tokens, agree, starts: of each, how many tokens there are,
    how many agree, and the first place in a row that does not. on_dump: the first input, and the model's output on what
    the dump holds behind the last block."""

    order: list[str] = field(default_factory=list)
    right: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    agree: Counter[str] = field(default_factory=Counter)
    starts: dict[str, int] = field(default_factory=dict)
    equal: bool = True
    worst: tuple[float, float] = (0.0, 0.0)
    normed: bool = False
    on_dump: tuple[Batch, Tensor] | None = None

    def take(self, finding: Finding) -> None:
        """Counts a part as right or as different."""
        key, found = finding.key, finding.judged
        if key not in self.order:
            self.order.append(key)
        self.equal &= found.equal
        mask = finding.batch.mask
        wrong = mask.nonzero()[found.wrong][:, 1].tolist() if found.faulty and len(found.wrong) == mask.sum() else []
        self.tokens[key] += int(mask.sum())
        self.agree[key] += int(mask.sum()) - len(wrong)
        if wrong:
            self.starts[key] = min([*wrong, *([self.starts[key]] if key in self.starts else [])])
        if found.faulty:
            self.findings.append(describe(finding))
        else:
            self.right.add(key)
            self.worst = max(self.worst[0], found.whole), max(self.worst[1], found.row)


def replay_on(
    dump: Dump,
    model: nn.Module,
    labels: tuple[str, str],
    progress: Progress = quiet,
    *,
    first: bool = False,
    quick: bool = False,
) -> Answer:
    """Runs each block of the model on what the dump holds before it, and compares with what it holds behind it.

    first: the dump is the reference. quick: rounding is not measured. Raises BadInput where the two cannot be compared.
    """
    own = precision.find_main_dtype(model)
    twin = None if quick else precision.choose_twin_dtype(own, dump.dtype)
    pair = DumpPair(dump, model, labels, first, precision.choose_coarser_dtype(own, dump.dtype), twin)
    return choose_best_answer(
        (_answer(replace(pair, dump=each), progress), sentence) for each, sentence in dump.readings()
    )


def choose_best_answer(answers: Iterator[tuple[Answer, str]]) -> Answer:
    """The first answer without a difference, else the one with the fewest, and the sentence beside it as a note."""
    best, said = None, ""
    for answer, sentence in answers:
        if best is None or _fit(answer) > _fit(best):
            best, said = answer, sentence
        if not answer.differences:
            break
    assert best is not None
    return replace(best, notes=[*([said] if said else []), *best.notes])


def _fit(answer: Answer) -> tuple[int, int]:
    return -len(answer.differences), len(answer.right)


def _answer(pair: DumpPair, progress: Progress) -> Answer:
    dump, model = pair.dump, pair.model
    units = split_into_units(model)
    blocks = [unit for unit in units if unit.block is not None]
    if not blocks or any(not unit.key.startswith("block ") for unit in blocks):
        raise BadInput(f"{dump.label}: it holds one stream, got a model of several or none; give the model that ran")
    batches = list(_batch_dump_by_length(dump, inputs.read_input_shape(model)))
    table = find_hook_point_table(model)
    given = dump.index_streams(len(table.shared) if table is not None and table.shared else len(blocks))
    seen = StreamFindings()
    for batch, rows in progress(batches, label="verify", unit="batches"):
        held = {depth: x[rows].unflatten(0, batch.mask.shape) for depth, x in given.items()}
        with run_or_refuse(pair.labels[pair.first], batch), torch.no_grad():
            _StreamPass(pair, units, batch, held, seen)
    differences = merge_differences(seen.findings, seen.order, find_hook_point_table(model))
    differences = [_count(each, seen) for each in differences]
    wrong, part = {each.unit for each in differences}, None
    if {*seen.order} - {"embed", *wrong} == set() and wrong - {"embed"}:
        batch, rows = batches[0]
        part = _name_split_stream(
            model, blocks, batch, {d: x[rows].unflatten(0, batch.mask.shape) for d, x in given.items()}
        )
        at = next(each for each in differences if each.unit != "embed")
        if part is not None:
            differences = [replace(at, kind="stream", about=ONE.format(part))]
        elif differences[0].relative > OTHER:
            about = "other values everywhere: another checkpoint, other tokens or other layers"
            differences[0] = replace(differences[0], kind="checkpoint", about=about)
    return Answer(
        verdict=DIFFERENT if differences else IDENTICAL if seen.equal else ROUNDING,
        reference=pair.labels[0],
        candidate=pair.labels[1],
        differences=differences,
        right=[key for key in seen.order if key in seen.right - wrong],
        worst=seen.worst,
        before=AGREES if differences and differences[0].unit != seen.order[0] else "",
        effect={} if part else _measure_dump_effect(pair, seen),
        inputs=[name_dump_sequences(dump)],
        given="" if part else GIVEN,
        notes=[*dump.notes, *([NORMED] if seen.normed else [])],
    )


def name_dump_sequences(dump: Dump) -> str:
    count = len(dump.lengths)
    return f"the {count} sequences of the dump" if count > 1 else "the sequence of the dump"


def _batch_dump_by_length(dump: Dump, shape: inputs.InputShape | None) -> Iterator[tuple[Batch, Tensor]]:
    """Batches sequences of one length, so that none is padded, each with the rows of the dump that are theirs."""
    sequences = dump.sequences()
    most = max(max(each) for each in sequences)
    if shape is not None and most >= shape.vocabulary:
        raise BadInput(
            f"{dump.label}: token ids go beyond the model's vocabulary, got {most} for {shape.vocabulary}; give the "
            "model that ran"
        )
    starts = torch.tensor([0, *dump.lengths]).cumsum(0)
    order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
    for length, same in groupby(order, key=lambda number: len(sequences[number])):
        numbers, step = list(same), max(1, AT_ONCE // length)
        for some in (numbers[i : i + step] for i in range(0, len(numbers), step)):
            rows = torch.cat([torch.arange(length) + starts[number] for number in some])
            yield inputs.make_padded_batch(name_dump_sequences(dump), [sequences[number] for number in some], 0), rows


class _StreamPass:
    """A pass of the model in which what the dump holds replaces the stream, wherever it holds it.

    depth, start: the blocks that the stream has passed, here and at the last layer of the dump, which held `entered`.
    finer: the stream beside which rounding is measured. call: the block at work on it. after_norm: the dump's last
    layer, where it stands behind the final norm.
    """

    def __init__(
        self,
        pair: DumpPair,
        units: Sequence[ModelUnit],
        batch: Batch,
        given: Mapping[int, Tensor],
        seen: StreamFindings,
    ):
        self.pair, self.batch, self.given, self.seen = pair, batch, given, seen
        self.places, self.last = Places(batch.mask), max(given)
        self.embed = next((unit for unit in units if unit.key == "embed"), units[0])
        self.final = next((unit for unit in units if unit.key == "final_norm"), None)
        self.depth = self.start = 0
        self.entered: Tensor | None = None
        self.finer: Tensor | None = None
        self.call: Call | None = None
        self.after_norm: Tensor | None = None
        parts = [unit for unit in units if unit.block is not None or unit is self.final]
        with hook_units(parts, self.enter, self.leave) as self.hooks:
            out = batch.run(pair.model)
        if seen.on_dump is None and self.last == self.depth:
            seen.on_dump = batch, out

    def enter(self, key: str, unit: ModelUnit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if unit.block is None:
            return None
        found = find_entering(args, kwargs)
        if found is None:
            raise BadInput(f"{unit.key}: no stream enters it, got integers alone; such a model runs on no dump")
        at, x = found
        if self.depth in self.given:
            held = _check_fit(self.given[self.depth], x)
            if self.depth == 0:
                self.judge(self.embed, x, None, held)
            x, self.start, self.entered = held.to(x.dtype), self.depth, held
        if self.depth in self.given or self.depth == 0:
            self.finer = x
        assert self.finer is not None
        self.call = Call(unit, *exchange(args, kwargs, at, self.finer.clone()), None, hooks=self.hooks.ids)
        return exchange(args, kwargs, at, x.clone())

    def leave(self, key: str, unit: ModelUnit, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        if unit.block is None or self.call is None:
            return self.after_norm
        x, self.depth = _take_first_tensor(out), self.depth + 1
        if self.pair.twin is None:
            self.finer, floor = x, bound_rounding({"": x}, self.places, self.pair.coarse)[""]
        else:
            self.finer = repeat(self.call, self.pair.twin)[""]
            floor = rounding.measure_rounding_norms(self.finer, x, self.places)
        if self.depth not in self.given:
            return None
        held = _check_fit(self.given[self.depth], x)
        part = replace(unit, key=_name_blocks_between(self.start, self.depth, 0 in self.given))
        if self.depth == self.last and (normed := self.compare_normed(x, held)) is not None:
            self.seen.normed, self.after_norm = True, held.to(x.dtype)
            self.judge(replace(part, key=f"{part.key} and the final norm"), *normed, held)
            return None
        self.judge(part, x, floor, held, self.entered if self.depth == self.start + 1 else None)
        return map_tensors(out, "", lambda name, y: y if name else held.to(y.dtype).clone())

    def compare_normed(self, x: Tensor, held: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """Computes what the final norm gives, with its rounding, where the dump holds that; None where it holds what
        enters the norm."""
        if self.final is None or self.finer is None:
            return None
        y = self.final.module(x)
        if float((held - y).norm() / y.norm()) > 0.5 * float((held - x).norm() / x.norm()):
            return None
        if self.pair.twin is None:
            return y, bound_rounding({"": y}, self.places, self.pair.coarse)[""]
        finer = repeat(Call(self.final, (self.finer,), {}, None, hooks=self.hooks.ids), self.pair.twin)[""]
        return y, rounding.measure_rounding_norms(finer, y, self.places)

    def judge(
        self, unit: ModelUnit, x: Tensor, floor: Tensor | None, held: Tensor, entered: Tensor | None = None
    ) -> None:
        candidate, reference = self.pair.sides(held, x)
        found = rounding.judge(candidate, reference, floor, self.pair.coarse, self.places)
        # both in the dump's precision, which is else taken for the fault
        candidate, reference = self.pair.sides(held, x.to(self.pair.dump.dtype).to(x.dtype))
        self.seen.take(Finding(unit.key, unit, "", found, self.batch, candidate, reference, entered))


def _take_first_tensor(out: Any) -> Tensor:
    got: list[Tensor] = []
    map_tensors(dict(out) if isinstance(out, Mapping) else out, "", lambda _, x: got.append(x) or x)
    return got[0]


def _name_blocks_between(start: int, depth: int, embedded: bool) -> str:
    """The blocks between two layers of a dump; where it holds none before, from the embeddings on."""
    if not start and not embedded:
        return f"embed to block {depth - 1}"
    return f"block {start}" if depth == start + 1 else f"blocks {start} to {depth - 1}"


def _check_fit(held: Tensor, x: Tensor) -> Tensor:
    """Raises BadInput where the dump's rows are not of the model's stream."""
    if held.shape != x.shape:
        raise BadInput(
            f"dump: not comparable, got rows (sequences, tokens, d) {tuple(held.shape)} for a stream of "
            f"{tuple(x.shape)}; give the model that ran"
        )
    return held.to(x.device)


def _count(each: Difference, seen: StreamFindings) -> Difference:
    """Counts a difference over all sequences, and adds what it means where only first tokens are right."""
    key = each.unit
    each = replace(each, agree=seen.agree[key], tokens=seen.tokens[key], first=seen.starts.get(key))
    if each.block is not None:
        each = replace(each, point=STREAM)
    if each.kind != UNNAMED or not each.first or 2 * each.agree > each.tokens:
        return each
    about = "first tokens, which see themselves alone, are right: queries, keys, rotary positions, scores or mask"
    return replace(each, about=f"{each.about}; {about}")


def _measure_dump_effect(pair: DumpPair, seen: StreamFindings) -> dict[str, float]:
    if seen.on_dump is None or seen.equal:
        return {}
    batch, out = seen.on_dump
    return compare_outputs(pair.model, batch, *pair.sides(out, batch.run(pair.model)))


def _name_split_stream(
    model: nn.Module, blocks: Sequence[ModelUnit], batch: Batch, given: Mapping[int, Tensor]
) -> str | None:
    """Names what the dump holds in place of the stream, where that is one of the two that engines keep apart."""
    table = find_hook_point_table(model)
    point = None if table is None else table.block.get("resid_mid")
    if point is None:
        return None
    middles, ends, hooks = [], [], Hooks()
    for unit in blocks:
        module = unit.module.get_submodule(point.module)
        if point.side == "input":
            hooks.call_before(
                module, lambda args, kwargs: middles.append(_take_first_tensor((*args, *kwargs.values())).clone())
            )
        else:
            hooks.call_after(module, lambda args, kwargs, out: middles.append(_take_first_tensor(out).clone()))
        hooks.call_after(unit.module, lambda args, kwargs, out: ends.append(_take_first_tensor(out).clone()))
    try:
        batch.run(model)
    finally:
        hooks.remove()
    if len(middles) != len(ends):
        return None
    added = [end - middle for end, middle in zip(ends, middles, strict=True)]
    for what, part in (("what the MLP of a block adds", added), ("the stream before the MLP of a block", middles)):
        if all(_is(x, part[depth - 1], ends[depth - 1]) for depth, x in given.items() if depth):
            return what
    return None


def _is(held: Tensor, part: Tensor, whole: Tensor) -> bool:
    """Says whether the dump holds this part of the stream: it is by far nearer to it than to the whole."""
    off, other = float((held - part).norm()), float((held - whole).norm())
    return off < CLOSE * float(part.norm()) and 4 * off < other
