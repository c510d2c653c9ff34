"""A difference for every place, from all inputs that show it, with the kind of its fault."""

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from repsim_cli.models.points import Architecture
from repsim_cli.studies.verify import weights
from repsim_cli.studies.verify.answer import SHOWN, UNNAMED, Difference
from repsim_cli.studies.verify.changes import name_weight_change
from repsim_cli.studies.verify.found import Finding
from repsim_cli.studies.verify.kinds import OF_WEIGHTS
from repsim_cli.studies.verify.units import index_point_kinds

BY_WEIGHTS = (*OF_WEIGHTS, "rows", "weight")  # kinds that are none where the weights are the same
NONE = weights.Tensors(0, [], [], [])
Both = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]


def merge_differences(
    findings: Sequence[Finding],
    order: Sequence[str],
    table: Architecture | None,
    tensors: weights.Tensors = NONE,
    both: Both = ({}, {}),
) -> list[Difference]:
    """A difference for every place, in order of computation, from all inputs that show it. table: of the hook points.
    both: the weights of reference and candidate."""
    places: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        # further tensors that a module gives, and its further calls
        places.setdefault((found.key, re.sub(r"\[\d+\]|#\d+", "", found.place)), []).append(found)

    def rank(place: tuple[str, str]) -> int:
        key = place[0].partition(" (call")[0]
        return order.index(key) if key in order else len(order)

    return [_merge_place(place, places[key, place], table, tensors, both) for key, place in sorted(places, key=rank)]


def _merge_place(
    place: str, shown: Sequence[Finding], table: Architecture | None, tensors: weights.Tensors, both: Both
) -> Difference:
    """The difference of a place, from what the inputs show that it has."""
    first = shown[0]
    key, unit, wrong = first.key, first.unit, first.judged.wrong
    stack = next((side for side in ("encoder", "decoder") if key.startswith(side)), None)
    at = wrong.nonzero()[:, 0].tolist() if wrong.numel() else []
    columns = first.batch.mask.nonzero()[:, 1]
    inside = f"{unit.prefix}{place.partition(':')[0]}".rstrip(".")
    start = f"{inside}." if inside else ""
    differ = [
        name for name, *_ in tensors.differ if (name.rpartition(".")[0] == inside if place else name.startswith(start))
    ]
    kind, about = _name_kind(first, start, differ, tensors, both)
    return Difference(
        unit=key,
        block=unit.block,
        place=place,
        point=index_point_kinds(table, stack).get(place) if unit.block is not None else None,
        kind=kind,
        about=about,
        relative=first.judged.relative,
        times=max(first.judged.whole, first.judged.row),
        agree=int(wrong.numel()) - len(at),
        tokens=int(wrong.numel()),
        first=int(columns[at].min()) if at and len(columns) == len(wrong) else None,
        inputs=list(dict.fromkeys(found.batch.name for found in shown)),
        tensors=differ,
    )


def _name_kind(
    found: Finding, start: str, differ: Sequence[str], tensors: weights.Tensors, both: Both
) -> tuple[str, str]:
    """Names the kind of a fault, and says what is known of it: by its error, or by its weights, which say more.

    start: how the names of its weights begin. differ: the names of those that differ.
    """
    assert found.about is not None
    kind, about = found.about.kind, found.about.sentence
    ours, theirs = both
    # what was done to the weights says more than the error
    table_of_rows = found.about.role in ("embed", "positions")
    whole = table_of_rows or found.about.role in ("linear", "norm")
    done = {name: name_weight_change(name, ours, theirs, tensors.norms) for name in differ if whole and name in ours}
    alone = any(name.startswith(start) for name in (*tensors.only_reference, *tensors.only_candidate))
    same = f"{start}weight" in theirs and bool(tensors.common) and not differ and not alone
    if (kind in BY_WEIGHTS and same) or (kind in OF_WEIGHTS and not differ and not found.about.linear):
        what = ", and its weights are the same: what is computed with them differs" if same else ""
        kind, about = UNNAMED, f"no rule fits{what} (off by {found.judged.relative:.2g} of the norm)"
    if kind == "tokens" and differ:
        kind, about = "rows", f"rows of the embeddings differ ({found.judged.relative:.2g} of the norm)"
    if done and (said := done[max(done, key=lambda name: ours[name].ndim)]):
        kind, about = (kind, said[1]) if table_of_rows and said[0] in ("rows", "permuted") else said
    if lost := [f"{name} holds {said}" for name in differ if (said := weights.say_not_finite(theirs[name]))]:
        kind, about = "not finite", "; ".join(lost[:SHOWN])
    return kind, about
