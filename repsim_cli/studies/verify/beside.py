"""Two stored streams, layer by layer: no block runs, so that only the first difference can be told."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import torch
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput
from repsim_cli.models.precision import UNIT, choose_coarser_dtype
from repsim_cli.studies.verify.answer import AGREES, DIFFERENT, IDENTICAL, ROUNDING, TOKEN_IDS, Answer, Difference
from repsim_cli.studies.verify.dump import Dump
from repsim_cli.studies.verify.found import Finding
from repsim_cli.studies.verify.inputs import Batch
from repsim_cli.studies.verify.kinds import describe
from repsim_cli.studies.verify.merge import merge_differences
from repsim_cli.studies.verify.rounding import Judged
from repsim_cli.studies.verify.stream import STREAM, choose_best_answer, name_dump_sequences
from repsim_cli.studies.verify.units import ModelUnit

MOST = 20  # roundings, times the root of the depth, that two free runs are apart
NO_REPLAY = "two dumps: no block is run, and what follows from the first difference is not told from further ones"
WITHOUT_IDS = "token ids are not compared: {} has none"


def compare_dumps(first: Dump, second: Dump, labels: tuple[str, str]) -> Answer:
    """Names the first layer of the second that is off by more than two free runs are.

    Raises BadInput where rows or layers do not pair.
    """
    if first.tokens is not None and second.tokens is not None:
        other = find_different_token(first.sequences(), second.sequences(), labels)
        if other is not None:
            return answer_different_ids(other, labels, name_dump_sequences(first))
    order = _order_second_rows(first, second)
    pairs = (
        (a, b, "; ".join(f"{label}: {text}" for label, text in zip(labels, (s, t), strict=True) if text))
        for a, s in first.readings()
        for b, t in second.readings()
    )
    return choose_best_answer((_answer(a, b, order, labels), sentence) for a, b, sentence in pairs)


def find_different_token(
    reference: Sequence[Sequence[int]], candidate: Sequence[Sequence[int]], labels: tuple[str, str]
) -> Difference | None:
    """The first token that differs. Raises BadInput where there are not as many sequences."""
    if len(reference) != len(candidate):
        raise BadInput(
            f"{labels[1]}: not comparable, got {len(candidate)} sequences for {len(reference)} of {labels[0]}; give "
            "the same prompts in the same order"
        )
    for number, (a, b) in enumerate(zip(reference, candidate, strict=True)):
        if [*a] == [*b]:
            continue
        pairs = list(zip_longest(a, b))
        at = next(i for i, (x, y) in enumerate(pairs) if x != y)
        shown = ["not there" if ids is None else str(ids) for ids in pairs[at]]
        return Difference(
            unit=TOKEN_IDS,
            block=None,
            place="",
            point=None,
            kind="token ids",
            about=f"token {at} of sequence {number} is {shown[0]} in the reference and {shown[1]} in the candidate",
            relative=1.0,
            times=0.0,
            agree=sum(x == y for x, y in pairs),
            tokens=len(pairs),
            first=at,
            inputs=[],
        )
    return None


def answer_different_ids(other: Difference, labels: tuple[str, str], inputs: str) -> Answer:
    """The answer of two dumps of other token ids."""
    notes = ["layers are not compared, since their rows are of other tokens"]
    return Answer(DIFFERENT, *labels, [replace(other, inputs=[inputs])], inputs=[inputs], given="", notes=notes)


def _order_second_rows(first: Dump, second: Dump) -> Tensor | None:
    """The rows of the second in the order of the first's, where both name them; None: they are in one order."""
    if first.ids is not None and second.ids is not None and first.tokens is None:
        places = {name: number for number, name in enumerate(second.ids)}
        lost = next((name for name in first.ids if name not in places), None)
        if lost is not None or len(places) != first.rows or len({*first.ids}) != first.rows:
            got = f"no '{lost}' in {second.label}" if lost is not None else f"{first.rows} and {second.rows} rows"
            raise BadInput(f"ids: rows do not pair, got {got}; write the same rows in both, each id once")
        return torch.tensor([places[name] for name in first.ids])
    if first.rows != second.rows:
        raise BadInput(f"rows: not comparable, got {first.rows} and {second.rows}; write the same rows in both")
    return None


def _pair_common_layers(first: Dump, second: Dump) -> list[tuple[str, int, Tensor, Tensor]]:
    """Pairs the layers that both hold: name, depth, and the rows of each. Raises BadInput where no pairing is known."""
    if first.depths is not None and second.depths is not None:
        a, b = (dict(zip(each.depths or (), each.streams, strict=True)) for each in (first, second))
        common = sorted({*a} & {*b})
        if common:
            return [(f"block {depth - 1}" if depth else "embed", depth, a[depth], b[depth]) for depth in common]
    elif len(first.names) == len(second.names):
        named = [*first.names] == [*second.names] or first.outputs == second.outputs
        if named:
            return [
                (name, number + first.outputs, x, y)
                for number, (name, x, y) in enumerate(zip(first.names, first.streams, second.streams, strict=True))
            ]
    raise BadInput(
        f"layers: not comparable, got {len(first.names)} ({first.names[0]}, ...) and {len(second.names)} "
        f"({second.names[0]}, ...); write the same layers in both, or give their ids (--layer-ids)"
    )


def _answer(first: Dump, second: Dump, order: Tensor | None, labels: tuple[str, str]) -> Answer:
    dtype = choose_coarser_dtype(first.dtype, second.dtype)
    mask = torch.ones(1, first.rows, dtype=torch.bool)
    ids = None if first.tokens is None else {"input_ids": torch.tensor([list(first.tokens)])}
    batch = Batch(name_dump_sequences(first), ids or {}, mask)
    right, worst, equal, before = [], (0.0, 0.0), True, None
    finding = None
    for name, depth, a, b in _pair_common_layers(first, second):
        y = b if order is None else b[order]
        if a.shape != y.shape:
            raise BadInput(f"{name}: widths differ, got {a.shape[1]} and {y.shape[1]}; give dumps of one shape")
        found = _judge(y, a, dtype, depth)
        equal &= found.equal
        if found.faulty:
            module = nn.Identity() if depth else nn.Embedding(1, 1)
            unit = ModelUnit(name, "", module, depth - 1 if depth else None)
            enters = before[1][None] if before is not None and before[0] == depth - 1 else None
            # both in one precision, which is else taken for the fault
            theirs, ours = (side[None].to(dtype).float() for side in (y, a))
            finding = describe(Finding(name, unit, "", found, batch, theirs, ours, enters))
            break
        right.append(name)
        worst, before = (max(worst[0], found.whole), max(worst[1], found.row)), (depth, a)
    differences = [] if finding is None else merge_differences([finding], [finding.key], None)
    # where the file does not say how deep a layer is, its name alone
    known = (
        {"point": STREAM}
        if finding and finding.unit.block is not None and first.depths is not None
        else {"block": None}
    )
    differences = [replace(each, **known) for each in differences]
    without = [label for label, each in zip(labels, (first, second), strict=True) if each.tokens is None]
    return Answer(
        verdict=DIFFERENT if differences else IDENTICAL if equal else ROUNDING,
        reference=labels[0],
        candidate=labels[1],
        differences=differences,
        right=right,
        worst=worst,
        inputs=[batch.name],
        given="",
        before=AGREES if right else "",
        notes=[
            *([NO_REPLAY] if differences else []),
            *(WITHOUT_IDS.format(label) for label in without[:1]),
            *first.notes,
            *second.notes,
        ],
    )


def _judge(y: Tensor, x: Tensor, dtype: torch.dtype, depth: int) -> Judged:
    """Judges a layer of two free runs, which are apart by what each block adds to the rounding. Of embeddings the worst
    row counts, of others the median row."""
    if torch.equal(x, y):
        return Judged(0.0, 0.0, 0.0, False, torch.zeros(0, dtype=torch.bool), True)
    unit = UNIT[dtype] * max(1, depth) ** 0.5
    off, size = (y - x).norm(dim=1), x.norm(dim=1)
    rows = off / (unit * size).clamp_min(1e-30)
    relative = float(off.norm() / size.norm().clamp_min(1e-30))
    whole, row = relative / unit, float(rows.median() if depth else rows.max())
    return Judged(whole, row, relative, max(whole, row) > MOST, rows > MOST, False)
