"""Two models that run -> the answer."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput
from repsim_cli.models import precision
from repsim_cli.runs.results import Progress, quiet
from repsim_cli.studies.verify import weights
from repsim_cli.studies.verify.answer import (
    AGREES,
    AS_QUANTISED,
    DIFFERENT,
    IDENTICAL,
    ROUNDING,
    UNNAMED,
    Answer,
    Difference,
)
from repsim_cli.studies.verify.configs import list_different_settings
from repsim_cli.studies.verify.error import find_module, is_linear_map
from repsim_cli.studies.verify.found import Finding
from repsim_cli.studies.verify.inputs import VOCABULARY, Batch
from repsim_cli.studies.verify.kinds import OF_WEIGHTS
from repsim_cli.studies.verify.merge import Both, merge_differences
from repsim_cli.studies.verify.passes import Passes, VerifyRun, find_embeddings, run_by_part, run_whole
from repsim_cli.studies.verify.quantised import (
    QuantisationFit,
    copy_some_rows,
    find_quantisation_fits,
    find_rounding,
    move_inputs_last,
)
from repsim_cli.studies.verify.reference import Precisions
from repsim_cli.studies.verify.saved import Saved
from repsim_cli.studies.verify.sides import InMemory, OnDisk
from repsim_cli.studies.verify.trace import IN
from repsim_cli.studies.verify.units import ModelUnit, find_hook_point_table, find_unit_key

VISIBLE = 1e-4  # of a row of weights: what is off by less may change nothing beyond rounding
OTHER = 0.3  # of the norm, by which the weights of another checkpoint are off at least


def verify_models(
    reference: nn.Module | InMemory | Saved,
    candidate: nn.Module | InMemory,
    batches: Sequence[Batch],
    labels: tuple[str, str] = ("reference", "candidate"),
    progress: Progress = quiet,
    *,
    quick: bool = False,
) -> Answer:
    """Finds where the candidate departs from the reference. Raises BadInput where the two cannot be compared. Models
    stay in the mode in which they are.

    reference, candidate: with one of them on the disk (`OnDisk`), all batches run through one part of both at a time.
    quick: the reference's rounding is not measured; a multiple of that of each row stands for it.
    """
    reference = InMemory(reference) if isinstance(reference, nn.Module) else reference
    candidate = InMemory(candidate) if isinstance(candidate, nn.Module) else candidate
    run = VerifyRun(batches, _choose_precisions(reference, candidate, quick=quick), labels, progress)
    answer, tensors = _search(reference, candidate, run)
    if isinstance(reference, Saved) or not tensors.rounded:
        return answer
    dtype, _ = Counter(tensors.rounded.values()).most_common(1)[0]
    names = [name for name, other in tensors.rounded.items() if other is dtype]
    beside_rounded, _ = _search(reference.copy_rounded(names, dtype), candidate, run)
    return name_cast(answer, beside_rounded, len(names), str(dtype).removeprefix("torch."))


def name_cast(answer: Answer, beside_rounded: Answer, count: int, name: str) -> Answer:
    """The answer where some weights are those of the reference in 16 bits: what differs from the reference with just
    these weights rounded. count: of such tensors. name: of the precision."""
    of = f"{count} of {answer.weights['common']} tensors"
    said = f"the weights are those of the reference rounded to {name} ({of})"
    verdict, rest = beside_rounded.verdict, f", and {beside_rounded.quantised}" * bool(beside_rounded.quantised)
    if verdict in (IDENTICAL, ROUNDING):
        verdict, rest = AS_QUANTISED, ", and nothing else differs"
    return replace(
        beside_rounded,
        verdict=verdict,
        quantised=f"{said}{rest}",
        before=f"{beside_rounded.before}, once weights are rounded to {name}" if beside_rounded.before else "",
        weights=answer.weights,
        effect=answer.effect,
        given=f"the inputs of the reference rounded to {name}",
        settings={**beside_rounded.settings, "precision": name},
    )


def _choose_precisions(reference: InMemory | Saved, candidate: InMemory, *, quick: bool) -> Precisions:
    dtypes = reference.dtype, candidate.dtype
    return Precisions(precision.choose_coarser_dtype(*dtypes), None if quick else precision.choose_twin_dtype(*dtypes))


def _search(reference: InMemory | Saved, candidate: InMemory, run: VerifyRun) -> tuple[Answer, weights.Tensors]:
    """Runs both, and finds the places where they differ and what their errors are; with how weights compare."""
    from_file = isinstance(reference, Saved)
    units = candidate.units if from_file else reference.units
    _check_parts(reference.blocks if from_file else _count_block_units(units), _count_block_units(candidate.units))
    batches, labels = run.batches, run.labels
    on_disk = [label for label, side in zip(labels, (reference, candidate), strict=True) if isinstance(side, OnDisk)]
    if isinstance(reference, Saved) or not on_disk:
        seen = run_whole(reference, candidate, run)
    else:
        seen = run_by_part(reference, candidate, run)
    results, tensors = seen.results, seen.tensors
    findings = _collect_findings(seen, units, from_file=from_file)
    order = list(dict.fromkeys(key for result in results for key in result.order))
    both = ({} if from_file else reference.weights, candidate.weights)
    differences = merge_differences(
        findings, order, find_hook_point_table((candidate if from_file else reference).model), tensors, both
    )
    if _is_other_checkpoint(differences, units, tensors):
        about = "other weights everywhere: another checkpoint"
        differences[0] = replace(differences[0], kind="checkpoint", about=about)
    fit, every = None, differences
    if not from_file:
        fit, differences = explain_as_quantised(differences, findings, both)
        if not differences and not fit:
            differences = find_unseen_differences(
                units, tensors, {found.key for result in results for found in result.inside}
            )
    wrong = {each.unit for each in differences}
    inner = sorted({f"{found.key}, {found.place}" for result in results for found in result.inside})
    equal = all(result.equal for result in results) and seen.rows is None
    verdict = DIFFERENT if differences else AS_QUANTISED if fit else IDENTICAL if equal else ROUNDING
    tried = not from_file and all(find_embeddings(side.model) is not None for side in (reference, candidate))
    vocabulary = [VOCABULARY] if tried else []
    answer = Answer(
        verdict=verdict,
        reference=labels[0],
        candidate=labels[1],
        differences=differences,
        right=[key for key in order if key not in wrong and any(key in result.right for result in results)],
        inside=inner,
        weights=_record_weights(tensors),
        worst=(max(r.worst[0] for r in results), max(r.worst[1] for r in results)),
        effect=_measure_output_effect(candidate.model, batches[0], seen) if verdict != IDENTICAL else {},
        inputs=[*(batch.name for batch in batches), *vocabulary],
        quantised="" if fit is None else fit.about(_count_linear_maps(units)),
        config=list_different_settings(
            reference.settings, candidate.settings, differences[0].kind if differences else None
        ),
        before=say_what_is_before(differences, every, order, fit),
        settings={"by_block": on_disk} if on_disk else {},
    )
    return answer, tensors


def _collect_findings(seen: Passes, units: Sequence[ModelUnit], *, from_file: bool) -> list[Finding]:
    """Collects the places that any input shows to differ, rows of the embeddings first."""
    findings = [found for result in seen.results for found in result.findings]
    if from_file:  # what is inside a part is known on the first input alone
        known = {found.key for found in findings if found.place not in ("", IN)}
        findings = [found for found in findings if found.place or found.key not in known]
    if seen.rows is not None and not any(found.key == "embed" for found in findings):
        embed = next((unit for unit in units if unit.key == "embed"), seen.rows.unit)
        findings.insert(0, replace(seen.rows, unit=embed))
    return findings


def _record_weights(tensors: weights.Tensors) -> dict[str, Any]:
    """Lists the weights that differ or are in one model alone, and counts those that both have."""
    return {
        "common": tensors.common,
        "differ": list(tensors.differ),
        "slight": list(tensors.slight),
        "shaped": list(tensors.shaped),
        "only_reference": list(tensors.only_reference),
        "only_candidate": list(tensors.only_candidate),
    }


def _is_other_checkpoint(
    differences: Sequence[Difference], units: Sequence[ModelUnit], tensors: weights.Tensors
) -> bool:
    """Tells whether all weights differ: by their common names, or, without any, by the kind of the first error."""
    blocks = {unit.key for unit in units if unit.block is not None}
    if not differences or differences[0].relative <= OTHER or not blocks < {each.unit for each in differences}:
        return False
    if not tensors.common:
        return differences[0].kind in (*OF_WEIGHTS, UNNAMED)
    return len(tensors.differ) > 0.9 * tensors.common


def explain_as_quantised(
    differences: list[Difference], findings: Sequence[Finding], both: Both
) -> tuple[QuantisationFit | None, list[Difference]]:
    """The rounding of weights that the errors of the linear maps are those of, and the differences that are not. both:
    the weights of reference and candidate."""
    first = {(found.key, found.place): found for found in reversed(findings) if found.about}
    places = {(each.unit, each.place): each for each in differences}
    maps = {place: about.noise for place in places if place in first and (about := first[place].about) and about.noise}
    ours, theirs = both
    names = {place: f"{first[place].unit.prefix}{place[1]}.weight" for place in maps}

    def may_be_rounded(place: tuple[str, str]) -> bool:
        """Says whether a place may be rounded: not where its weights are the same, or its error has another name."""
        known = names[place] in theirs and theirs[names[place]].is_floating_point()
        same = known and names[place] not in places[place].tensors
        return places[place].kind in (*OF_WEIGHTS, UNNAMED) and not same

    maps = {place: noise for place, noise in maps.items() if may_be_rounded(place)}
    inner = {place: noise for place, noise in maps.items() if places[place].block is not None}
    pairs = [
        tuple(
            copy_some_rows(move_inputs_last(side[names[place]], find_module(first[place]))) for side in (ours, theirs)
        )
        for place in inner
        if names[place] in places[place].tensors and theirs[names[place]].is_floating_point()
    ]
    fit = find_rounding(find_quantisation_fits(inner), pairs)
    if fit is None:
        return None, differences
    # the embeddings and the head may have bits of their own
    outside = {place for place, noise in maps.items() if place not in inner and noise.over.get(fit.scheme, 0.0) < -6}
    kept = [each for each in differences if (each.unit, each.place) not in {*inner, *outside} - fit.worse.keys()]
    kept = [
        replace(each, kind="noise", about=f"noise {fit.worse[each.unit, each.place]:.1f} dB above what its bits give")
        if (each.unit, each.place) in fit.worse
        else each
        for each in kept
    ]
    return fit, kept


def say_what_is_before(
    differences: Sequence[Difference], every: Sequence[Difference], order: Sequence[str], fit: QuantisationFit | None
) -> str:
    """Says of what runs before the first difference how it agrees. every: with those that are put down to this rounding
    of weights. order: of the parts, as they run."""
    if not differences or differences[0].unit == next(iter(order), ""):
        return ""
    first = differences[0].unit, differences[0].place
    places = [(each.unit, each.place) for each in every]
    if fit is None or first not in places[1:]:
        return AGREES
    return f"before it the errors are those of rounding to about {fit.bits:.1f} bits"


def find_unseen_differences(
    units: Sequence[ModelUnit], tensors: weights.Tensors, inside: Collection[str]
) -> list[Difference]:
    """Weights that differ while nothing that these inputs compute does, inside the units or at their ends: of experts
    that no token chose, of rows that no token stands for."""
    made = []
    for name, _, _, size in tensors.differ:
        unit = next((unit for unit in units if unit.key == find_unit_key(name, units)), None)
        if unit is None or unit.key in inside or size < VISIBLE:
            continue
        place = name.removeprefix(unit.prefix).rpartition(".")[0]
        # every other weight is used by every token: where no output differs, something else makes up for it
        routed = any("expert" in part and "shared" not in part for part in name.split("."))
        chosen = routed or isinstance(unit.module.get_submodule(place), nn.Embedding)
        if not chosen:
            continue
        made.append(
            Difference(
                unit=unit.key,
                block=unit.block,
                place=place,
                point=None,
                kind="weights",
                about=f"{name} differs, by {size:.2g} of a row, and no input here uses the part that differs",
                relative=size,
                times=0.0,
                agree=0,
                tokens=0,
                first=None,
                inputs=[],
                tensors=[name],
            )
        )
    return made


def _count_linear_maps(units: Sequence[ModelUnit]) -> int:
    return sum(is_linear_map(module) for unit in units if unit.block is not None for module in unit.module.modules())


def _count_block_units(units: Sequence[ModelUnit]) -> int:
    return sum(unit.block is not None for unit in units)


def _check_parts(ours: int, theirs: int) -> None:
    if ours != theirs:
        raise BadInput(
            f"models: not comparable, got {ours} blocks in the reference and {theirs} in the candidate; give two of "
            "one shape"
        )


def _measure_output_effect(candidate: nn.Module, batch: Batch, seen: Passes) -> dict[str, float]:
    """Measures what the differences do to the output for the first input."""
    wanted = seen.results[0].reference_out
    return {} if wanted is None else compare_outputs(candidate, batch, seen.out(), wanted)


def compare_outputs(model: nn.Module, batch: Batch, got: Tensor, wanted: Tensor) -> dict[str, float]:
    """Measures how far two outputs of a model are apart; of logits, by the next token too. Empty for other shapes, but
    for tokens that one side alone has: then of those of both, to which more tokens of the candidate leave less
    probability. The share of rows that are not finite in one of them alone, where any is."""
    mask = batch.mask
    if got.shape[:-1] != wanted.shape[:-1]:
        return {}
    width = min(got.shape[-1], wanted.shape[-1])
    got, wanted = ((x[mask] if x.shape[:2] == mask.shape else x).double() for x in (got, wanted))
    chosen = (got.argmax(-1) == wanted.argmax(-1)).double().mean()
    q, got, wanted = F.log_softmax(got, -1)[..., :width], got[..., :width], wanted[..., :width]
    same = got == wanted
    finite = (same | torch.isfinite(got - wanted)).all(-1)
    if not finite.all():
        return {"not_finite": float((~finite).double().mean())}
    off, size = ((got - wanted).masked_fill(same, 0.0), wanted.masked_fill(wanted.isinf(), 0.0))
    relative = float(off.norm() / size.norm().clamp_min(1e-30))
    if not hasattr(model, "get_output_embeddings") or model.get_output_embeddings() is None:  # type: ignore
        return {"relative": relative}
    p = F.log_softmax(wanted, -1)
    return {
        "relative": relative,
        "kl": max(0.0, float((p.exp() * (p - q)).masked_fill(p.isinf(), 0.0).sum(-1).mean())),
        "same_choice": float(chosen),
    }
