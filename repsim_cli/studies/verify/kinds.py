"""Names the kind of an error from the error itself; `unnamed` where no rule fits, since a wrong name is worse than
none.

E is the error, C what the candidate gives and R what the reference gives on the same inputs, by token and feature; a
rule holds where what it says explains all of E but a ten-thousandth of its energy, or what of it is rounding.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repsim_cli.studies.verify.answer import UNNAMED
from repsim_cli.studies.verify.error import ErrorTensors, find_module, name_role
from repsim_cli.studies.verify.found import Description, Finding
from repsim_cli.studies.verify.quantised import measure_rounding_noise
from repsim_cli.studies.verify.rounding import MASKED, zero_masked_values

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exact GELU": F.gelu,
    "GELU by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "GELU by a sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "SiLU": F.silu,
    "ReLU": F.relu,
    "squared ReLU": lambda x: F.relu(x).square(),
    "none": lambda x: x,
}
SAME = 1e-3  # of the norm: less is not a difference, beside that of the shapes
PART = 1e-6  # of the energy of one coefficient: others are zero
OF_WEIGHTS = ("weights", "noise")  # kinds that weights, or an error linear in what enters, have to bear out
Named = tuple[str, str]


def describe(found: Finding) -> Finding:
    """Adds what the tensors of a finding say, and drops the tensors."""
    kind, sentence = name_error_kind(found)
    role = name_role(found)
    linear = ErrorTensors(found, role).linear if found.reference is not None and kind in OF_WEIGHTS else None
    about = Description(kind, sentence, role, linear, measure_rounding_noise(found))
    return replace(found, candidate=None, reference=None, entered=None, about=about)


def name_error_kind(finding: Finding) -> Named:
    """The kind, and a sentence with it."""
    if finding.candidate is None or finding.reference is None:
        return "skipped", "it does not run in the candidate"
    if finding.candidate.shape[-1:] != finding.reference.shape[-1:] or not torch.isfinite(finding.candidate).any():
        return UNNAMED, _say_shapes(finding.candidate, finding.reference)
    error = ErrorTensors(finding, name_role(finding))
    if error.c.shape != error.r.shape or len(error.c) < 2 or not torch.isfinite(error.e).all():
        return UNNAMED, "values that are not finite, or too few to tell the kind"
    rules = RULES.get(error.role, _name_value_errors)
    size = f"({error.relative:.2g} of the norm)"
    name, about = next(rules(error), (UNNAMED, "no rule fits: not an offset, a factor, a permutation or a low rank"))
    return name, f"{about} {size}"


def _say_shapes(candidate: Tensor, reference: Tensor) -> str:
    """Says how shapes differ; where only the width does, as of a vocabulary that was made longer, whether the features
    of both agree."""
    said = f"its shape is {tuple(candidate.shape)}, not {tuple(reference.shape)}"
    (*rows, width), (*others, wanted) = candidate.shape or (0,), reference.shape or (0,)
    if rows != others or not reference.is_floating_point():
        return said
    both = min(width, wanted)
    kept = reference[..., :both].double()
    agree = (candidate[..., :both].double() - kept).norm() < SAME * kept.norm()
    return f"{said}: the first {both} features {'are the same' if agree else 'differ'}"


def _name_common_errors(e: ErrorTensors) -> Iterator[Named]:
    if e.is_(e.e.mean(0).expand_as(e.e)) and len(e.e) > 3:
        yield "offset", "an offset that is the same for all tokens: a bias is missing or differs"
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        coarse, exact = (torch.equal(x.to(dtype).double(), x) for x in (e.c, e.r))
        if e.relative < 1e-2 and coarse and not exact:
            yield "precision", f"its values are rounded to {name}"
    factor = float((e.e * e.r).sum() / e.r.square().sum().clamp_min(1e-300))
    if e.is_(factor * e.r):
        if abs(factor + 2) < 1e-3:
            yield "sign", "all values have the opposite sign"
        if abs(factor + 1) < 1e-6:
            yield "factor", "all of its values are zero"
        yield "factor", f"all values are multiplied by {1 + factor:.6g}"


def _name_neighbour_errors(e: ErrorTensors) -> Iterator[Named]:
    """Recognises what the reference gives for the token before or behind."""
    for c, r, what in ((e.c[1:], e.r[:-1], "before"), (e.c[:-1], e.r[1:], "behind")):
        same = (c - r).norm(dim=1) < 1e-3 * r.norm(dim=1)
        if len(same) > 8 and same.double().mean() > 0.7 and e.relative > 0.1:
            yield "positions", f"most tokens have what the reference gives for the token {what}: off by one place"


def _name_value_errors(e: ErrorTensors) -> Iterator[Named]:
    """Names errors in what a projection or a sum gives."""
    yield from _name_common_errors(e)
    yield from _name_neighbour_errors(e)
    hit = int(e.hit.sum())
    a, b = e.slopes
    linear = len(e.e) > 4 and e.is_(a + b * e.r)
    if hit < 0.6 * len(e.hit):
        if linear and hit == 1:
            yield "part", "one feature is multiplied by another number"
        elif linear:
            yield "part", f"{hit} of {len(e.hit)} features are multiplied by another number: of a head or neuron"
    elif linear:
        middle = b[e.hit].mean()
        if (b[e.hit] - middle).abs().max() < 1e-3 * middle.abs():
            what = "the sign of" if abs(middle + 2) < 1e-3 else f"{1 + middle:.6g} times"
            yield ("sign" if what[:3] == "the" else "factor"), f"{what} the weights, but not the bias"
        else:
            yield "gain", "each feature is multiplied by a number of its own"
    yield from _find_moved(e)
    if hit == 1:
        yield "weight", "one feature is computed with another weight"
    elif hit <= len(e.hit) / 2 and e.linear:
        yield "weights", f"{hit} of {len(e.hit)} features are computed with other weights"
    yield from _rank(e)


def _find_moved(e: ErrorTensors) -> Iterator[Named]:
    """Features of the reference at other places."""
    if e.r.shape[1] > 8192 or len(e.e) < 6:
        return
    c, r = (x - x.mean(0) for x in (e.c, e.r))
    c, r = (x / x.norm(dim=0).clamp_min(1e-300) for x in (c, r))
    like, place = (r.T @ c).max(0)
    sure = like > 1 - 1e-6
    moved = sure & (place != torch.arange(len(place)))
    # of distinct features: what occurs twice is at home in both places
    if sure.double().mean() > 0.95 and moved.sum() >= 2:
        yield "permuted", f"{int(moved.sum())} of {len(place)} features are at other places: heads, neurons or halves"
    flipped = ((c * r).sum(0) < -1 + 1e-6) & e.hit
    if flipped.sum() > 0 and bool((flipped == e.hit).all()):
        yield "sign", f"{int(flipped.sum())} of {len(place)} features have the opposite sign"


def _rank(e: ErrorTensors) -> Iterator[Named]:
    """Recognises other weights: not where the error is not a linear function of what enters, or is in few values."""
    if e.linear is False or (e.e.abs() > 1e-6 * e.e.abs().max()).double().mean() < 0.9:
        return
    most = min(*e.e.shape, *(e.x.shape[1:] if e.x is not None else ()))
    if most < 8:
        return
    values = torch.linalg.svdvals(e.e[:512]).square()
    rank = int((values.cumsum(0) / values.sum() < 1 - max(1e-7, e.rounding)).sum()) + 1
    way = F.normalize(e.e[e.e.norm(dim=1).argmax()], dim=0)
    along = torch.outer(e.r @ way, way)
    if rank == 1 and e.is_(along * float((along * e.e).sum() / along.square().sum().clamp_min(1e-300))):
        yield UNNAMED, "one direction of what it gives is lost or scaled, as where the mean is taken out"
    if rank <= most / 4:
        if e.linear and e.fit is not None:
            energy = e.fit[1][:-1].square().sum(1)
            lost = int((energy > PART * energy.max()).sum())
            if lost <= most / 4:
                yield (
                    "part",
                    f"what {lost} of the {len(energy)} input features contribute differs: those of a head or neuron",
                )
        yield "adapter", f"the error has rank {rank} of {most}: an adapter is missing, merged twice or scaled"
    if e.relative < 0.2 and rank > most / 2:
        yield "noise", "noise in all directions: coarser weights, or weights close to them"
    if e.relative > 0.7:
        yield "weights", "other weights"


def _name_norm_errors(e: ErrorTensors) -> Iterator[Named]:
    if e.x is not None and e.gives(e.x):
        yield "norm missing", "what enters the norm leaves it: the norm is missing"
    yield from _name_common_errors(e)
    a, b = e.slopes
    # an epsilon scales rows nearly alike, so that it looks like a gain, which fits to rounding and better
    by_row, by_feature = _scale_rows(e), 1 - e.explain(a + b * e.r)
    if len(e.e) > 4 and e.is_(a + b * e.r, 1e-7) and by_feature < by_row / 4:
        whole = e.c.norm() / e.r.norm()
        yield "gain", f"each feature has another gain ({whole:.2g} times the norm)"
    if e.x is not None:
        centred = e.x - e.x.mean(1, keepdim=True)
        by_rms = e.x / e.x.square().mean(1, keepdim=True).sqrt()
        by_deviation = centred / centred.square().mean(1, keepdim=True).sqrt()
        for fits, other, name in ((by_deviation, by_rms, "RMS"), (by_rms, by_deviation, "layer")):
            if _is_affine(fits, e.r) and not _is_affine(fits, e.c) and _is_affine(other, e.c):
                yield "norm type", f"it is a norm of the {name} kind" if name == "RMS" else "it is a layer norm"
    if by_row < min(0.02, by_feature) and e.relative < 0.5:
        yield "epsilon", "each row is multiplied by a number of its own: another epsilon"


def _scale_rows(e: ErrorTensors) -> float:
    """The share of the error that is left when each row, of a head where heads are normed, has a factor of its own."""
    c, r = (zero_masked_values(x) for x in e.parts[:2])
    bias = getattr(find_module(e.finding), "bias", None)
    fit = r if bias is None or bias.shape != r.shape[-1:] else r - bias.detach().double()
    scale = ((c - r) * fit).sum(-1, keepdim=True) / fit.square().sum(-1, keepdim=True).clamp_min(1e-300)
    return 1 - e.explain((scale * fit).reshape(e.e.shape))


def _is_affine(x: Tensor, y: Tensor) -> bool:
    """Says whether each feature of y is that of x with a gain and a bias."""
    x0, y0 = x - x.mean(0), y - y.mean(0)
    b = (x0 * y0).sum(0) / x0.square().sum(0).clamp_min(1e-300)
    return float((y0 - b * x0).square().sum()) < 1e-5 * float(y0.square().sum())


def _name_activation_errors(e: ErrorTensors) -> Iterator[Named]:
    if e.x is not None and e.x.shape == e.c.shape:
        made = {name: f(e.x) for name, f in ACTIVATIONS.items()}
        best = max(made, key=lambda name: e.explain(made[name] - e.r))
        if e.gives(made[best]):
            yield "activation", f"the activation function differs: it is {best}"
    yield from _name_common_errors(e)
    order = e.r.flatten().argsort()
    sorted_e = e.e.flatten()[order]
    steps = (sorted_e[1:] - sorted_e[:-1]).square().mean() / (2 * sorted_e.var()).clamp_min(1e-300)
    if steps < 0.1:
        yield "activation", "the activation function differs"


def _name_score_errors(e: ErrorTensors) -> Iterator[Named]:
    c, r, _ = e.parts
    newly = (c < MASKED) != (r < MASKED)
    pattern = e.role == "pattern"
    if pattern:
        newly = (c == 0) != (r == 0)
    off = e.e.reshape(c.shape)
    if newly.any() and off[newly].square().sum() > (0.05 if pattern else 0.5) * off.square().sum():
        yield "mask", _mask(e.finding, newly, c)
    cap = _cap(e)
    if cap is not None:
        yield "cap", cap
    yield from _name_common_errors(e)


def _mask(finding: Finding, newly: Tensor, c: Tensor) -> str:
    mask = finding.batch.mask
    places = mask.nonzero()
    if newly.shape[0] != len(places) or newly.shape[-1] != mask.shape[1]:
        return "the mask differs"
    seen = newly & (c > MASKED)
    token, _, key = seen.nonzero(as_tuple=True)
    if not len(token):
        return "the mask hides more than the reference's"
    if not bool(mask[places[token, 0], key].any()):
        return "the mask differs: padding is attended to"
    if bool((key > places[token, 1]).any()):
        return "the mask differs: later tokens are seen"
    if not bool(mask[places[token, 0], key].all()):
        return "the mask differs: padding is attended to"
    return "the mask differs: a window is missing or its length differs"


def _cap(e: ErrorTensors) -> str | None:
    """A soft cap that the candidate lacks, has alone, or has at another value."""
    big = max(float(e.r.abs().max()), float(e.c.abs().max()))
    for inner, outer, what in ((e.c, e.r, "is missing"), (e.r, e.c, "is the candidate's alone")):
        for cap in _fit_caps(inner, outer, big):
            left = float((cap * torch.tanh(inner / cap) - outer).square().sum())
            if left < max(1e-6, e.rounding) * float(e.e.square().sum()):
                return f"a soft cap {what} (at {cap:.4g})"
    return None


def _fit_caps(inner: Tensor, outer: Tensor, big: float) -> Iterator[float]:
    """The cap that fits best, by bisection on the largest value."""
    at = int(inner.abs().argmax())
    x, y = abs(float(inner.flatten()[at])), abs(float(outer.flatten()[at]))
    if not 0 < y < x:
        return
    low, high = y, 1e3 * big
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.tanh(x / middle) < y else (low, middle)
    yield low


def _name_rotated_errors(e: ErrorTensors) -> Iterator[Named]:
    """Names errors of queries and keys as they enter their product."""
    yield from _name_common_errors(e)
    c, r, _ = e.parts
    longer = (c.norm(dim=-1) - r.norm(dim=-1)).square().sum()
    # of an error in any direction it is one in as many as there are
    if longer < min(max(1e-8, e.rounding), 0.1 / c.shape[-1]) * e.e.square().sum():
        yield "rotary", _find_angles(e)


OPPOSITE = "rotated by the opposite angles: the rotation has the opposite sign"
TURNS = {-2: OPPOSITE, -1: "not rotated", 1: "rotated by twice the angles"}
"""By the angle of the fastest pair, which turns by 1 for each place."""


def _find_angles(e: ErrorTensors) -> str:
    """Says by which angles pairs of features, of both halves of a head or neighbours, are turned."""
    c, r, of_tokens = e.parts
    at = e.finding.batch.mask.nonzero()[:, 1]
    half = c.shape[-1] // 2
    for pairs in ((slice(half), slice(half, 2 * half)), (slice(0, 2 * half, 2), slice(1, 2 * half, 2))):
        if not of_tokens or len(at) != len(c) or at.max() < 4:
            break
        x, y = (torch.complex(each[..., pairs[0]], each[..., pairs[1]]) for each in (c, r))
        angles = torch.stack([(x * y.conj())[at == place].sum((0, 1)) for place in range(int(at.max()) + 1)]).angle()
        if (torch.polar(y.abs(), y.angle() + angles[at][:, None]) - x).norm() > 1e-3 * e.e.norm():
            continue
        rate = (angles[1] - angles[0])[0]
        steady = torch.arange(len(angles)) * rate + angles[0, 0]
        if (torch.polar(torch.ones_like(steady), steady - angles[:, 0]) - 1).abs().max() < 1e-2:
            off = {abs(math.remainder(float(rate) - turn, math.tau)): what for turn, what in TURNS.items()}
            if min(off) < 1e-2:
                return off[min(off)]
        return "rotated by other angles"
    return "the same length in other directions: rotated by other angles, or in another layout"


def _name_rotary_errors(e: ErrorTensors) -> Iterator[Named]:
    for shift in (1, 2, -1, -2):
        a, b = (e.c[:-shift], e.r[shift:]) if shift > 0 else (e.c[-shift:], e.r[:shift])
        if len(a) > 4 and (a - b).norm() < 1e-4 * b.norm():
            yield "rotary", f"rotary positions are shifted by {shift}"
            return
    if e.is_(-2 * e.r):
        yield "rotary", OPPOSITE
    first = e.e[0].norm() < 1e-6 * e.e.norm()
    yield "rotary", f"rotary angles differ{', more so at later positions: base or scaling' if first else ''}"


def _name_embedding_errors(e: ErrorTensors) -> Iterator[Named]:
    off = e.e.norm(dim=1)
    hit = off > 1e-3 * off.max()
    own = None if e.finding.batch.ids is None else e.finding.batch.ids[e.finding.batch.mask]
    table = find_module(e.finding)
    if hit.sum() <= 512 and isinstance(table, nn.Embedding) and table.embedding_dim == e.c.shape[1]:
        wrong, known = e.c[hit].float(), table.weight.detach().float()
        found = torch.cdist(wrong, known).argmin(1)
        nearest = known[found]
        if ((nearest - wrong).norm(dim=1) < 0.01 * off[hit]).all() and (own is None or (found != own[hit]).all()):
            places = f"at {int(hit.sum())} of {len(hit)} places"
            yield "tokens", f"rows of other tokens, {places}: other ids enter, or the table has them elsewhere"
    if hit.double().mean() < 0.5 and own is not None:
        rows, ids = hit.nonzero()[:, 0].tolist(), own
        tokens = sorted({int(ids[row]) for row in rows})
        if not {*tokens} & {int(ids[row]) for row in range(len(ids)) if row not in set(rows)}:
            shown = ", ".join(map(str, tokens[:5]))
            yield "rows", f"rows of the embeddings differ: those of {len(tokens)} tokens ({shown})"
    yield from _name_common_errors(e)
    yield from (named for named in _rank(e) if named[0] != "adapter")


def _name_position_errors(e: ErrorTensors) -> Iterator[Named]:
    yield from _name_common_errors(e)
    yield "positions", "rows of the table of positions differ, or others are read"


def _name_block_errors(e: ErrorTensors) -> Iterator[Named]:
    if e.x is not None:
        if e.gives(e.x):
            yield "skipped", "what enters the block leaves it: the block is skipped"
        factor = float((e.e * e.x).sum() / e.x.square().sum().clamp_min(1e-300))
        if e.is_(factor * e.x):
            times = "is not added" if abs(factor + 1) < 1e-4 else f"is added {1 + factor:.6g} times"
            yield "residual", f"the stream that enters the block {times}"
    yield from _name_common_errors(e)


def _name_logit_errors(e: ErrorTensors) -> Iterator[Named]:
    cap = _cap(e)
    if cap is not None:
        yield "cap", cap
    yield from _name_common_errors(e)


def _name_sketch_errors(e: ErrorTensors) -> Iterator[Named]:
    """Names errors that show in projections of the rows too: what holds of the rows holds of these."""
    yield from _name_common_errors(e)
    yield UNNAMED, "no offset and no factor; of this part a sketch alone is kept, which tells no other kind"


RULES: dict[str, Callable[[ErrorTensors], Iterator[Named]]] = {
    "norm": _name_norm_errors,
    "activation": _name_activation_errors,
    "scores": _name_score_errors,
    "pattern": _name_score_errors,
    "qk": _name_score_errors,
    "q": _name_rotated_errors,
    "k": _name_rotated_errors,
    "z": _name_common_errors,
    "rotary": _name_rotary_errors,
    "embed": _name_embedding_errors,
    "positions": _name_position_errors,
    "block": _name_block_errors,
    "logits": _name_logit_errors,
    "router": lambda _: iter([("router", "the scores of the router differ")]),
    "experts": lambda _: iter([("experts", "the experts give other values on the same choice")]),
    "sum": _name_common_errors,
    "sketch": _name_sketch_errors,
}
