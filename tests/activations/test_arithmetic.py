"""Every model type by arithmetic: on perturbed weights, what is read at each hook point follows from the others.

The identities that apply to a type follow from its table of hook points; what the table lacks must have a reason that
the model confirms. What enters attention is compared with the calls of the library's own attention function.
"""

import inspect
import sys
from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from helpers.tiny import perturb
from helpers.tiny_configs import NAMES, model_type, tiny_config

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import count_stack_blocks, expand, locate, parse_hook_point
from repsim_cli.base import registry
from repsim_cli.models import overview
from repsim_cli.models.architectures import ARCHITECTURES
from repsim_cli.models.points import put_batch_first

LENGTH = 12
ATTENTION = ("q", "k", "v", "z", "pattern")
LISTED = overview.read()["types"]
TYPES = [name for names in NAMES.values() for name in names if model_type(name) in ARCHITECTURES]


def first(value):
    return value[0] if isinstance(value, tuple) else value


def close(a, b, atol=3e-5):
    assert a.shape == b.shape
    torch.testing.assert_close(a, b, atol=atol * float(b.abs().max().clamp_min(1)), rtol=0)


def holds(a, b):
    return a.shape == b.shape and torch.allclose(a, b, atol=3e-5 * float(b.abs().max().clamp_min(1)), rtol=0)


def by_head(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


def inputs_of(source, model):
    """Two inputs and their mask, the second one padded on the right, and what the decoder of sound reads."""
    random = torch.Generator().manual_seed(1)
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, 8:] = False
    ids = torch.randint(3, 90, (2, LENGTH), generator=random).masked_fill(~mask, 0)
    if source.modality == "images":
        size = model.config.image_size
        return torch.randn(2, 3, size, size, generator=random), mask, {}
    if source.modality == "sound":
        frames = 2 * model.config.max_source_positions
        return torch.randn(2, model.config.num_mel_bins, frames, generator=random), mask, {"decoder_input_ids": ids}
    return ids, mask, {}


def shifted_by_the_library(model, ids):
    if hasattr(model, "_shift_right"):
        model.config.decoder_start_token_id = 0
        return model._shift_right(ids)
    module = sys.modules[type(model).__module__]
    start = () if model.config.model_type in ("mbart", "plbart") else (model.config.decoder_start_token_id,)
    return module.shift_tokens_right(ids, model.config.pad_token_id, *start)


def recording(calls, function, module, query, key, value, attention_mask, *rest, **settings):
    out, weights = function(module, query, key, value, attention_mask, *rest, **settings)
    calls[module].append(
        SimpleNamespace(q=query, k=key, v=value, mask=attention_mask, settings=settings, out=out, weights=weights)
    )
    return out, weights


def keep_arguments(arguments, module, args, kwargs):
    arguments[module].append(inspect.signature(module.forward).bind(*args, **kwargs).arguments)


def read(name, monkeypatch):
    """The activations of every hook point of a type, the calls of its attention function, and its output."""
    source = registry.models.get("random").function(config=tiny_config(name))
    model = source.load(True)
    torch.manual_seed(0)
    perturb(model)
    inputs, mask, more = inputs_of(source, model)
    stacks = source.architecture.stacks or {"": source.architecture}
    names = []
    for stack, table in stacks.items():
        prefix = f"{stack}." if stack else ""
        kinds = [*table.block, "embed", *(["final_norm"] if table.final_norm else [])]
        names += [prefix + kind for kind in kinds]
    points = expand(names, "all", source)
    calls, arguments = defaultdict(list), defaultdict(list)
    with capture(model, source, points) as reader:
        plain = reader(inputs, mask, **more)
        for module in {sys.modules[type(part).__module__] for part in model.modules()}:
            if function := getattr(module, "eager_attention_forward", None):
                monkeypatch.setattr(module, "eager_attention_forward", partial(recording, calls, function))
        for name in {locate(point, source).module for point in points if point.kind in ("pattern", "router")}:
            hook = partial(keep_arguments, arguments)
            model.get_submodule(name).register_forward_pre_hook(hook, with_kwargs=True)
        found = reader(inputs, mask, **more)
    for point, x in plain.items():
        assert torch.equal(x, found[point]), f"{point} differs between two readings"
    monkeypatch.undo()
    with torch.inference_mode():
        given = {model.main_input_name: inputs, **more}
        if source.modality == "text":
            given["attention_mask"] = mask.long()
            if source.architecture.stacks:
                given["decoder_input_ids"] = shifted_by_the_library(model, inputs)
                given["decoder_attention_mask"] = torch.cat([mask[:, :1], mask[:, :-1]], 1).long()
        output = model(**given, return_dict=True)
    return SimpleNamespace(
        name=name, source=source, model=model, stacks=stacks, calls=calls, given=arguments, output=output, mask=mask,
        found={str(point): x for point, x in found.items()},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("name", TYPES)
def test_identities(name, monkeypatch):
    run = read(name, monkeypatch)
    if name not in NAMES["variants"]:
        assert overview.describe_type(run.source) == LISTED[name], "run scripts/architectures"
    for stack, table in run.stacks.items():
        check_stream(run, stack, table)
        prefix = f"{stack}." if stack else ""
        for layer in range(count_stack_blocks(parse_hook_point(f"{prefix}resid_post"), run.source)):
            here = {
                kind: run.found[f"{prefix}{kind}@{layer}"]
                for kind in table.block
                if table.find(kind, layer) is not None
            }
            block = run.model.get_submodule(table.find("resid_post", layer).module)
            check_added(here, table, layer, block)
            check_lacking(run, table, layer, block, here)
            if "pattern" in here:
                check_attention(run, table, layer, here)
            if "router" in here:
                check_router(run, table, layer, here["router"])
            if "mlp_post" in here and "mlp_out" in here:
                check_projection(run, table, layer, here, "mlp_post", "mlp_out")


def check_stream(run, stack, table):
    """Blocks follow each other; the last one, or the norm after it, gives the output of the model, bit for bit."""
    prefix = f"{stack}." if stack else ""
    stream = [run.found[f"{prefix}embed"]]
    for layer in range(count_stack_blocks(parse_hook_point(f"{prefix}resid_post"), run.source)):
        assert torch.equal(run.found[f"{prefix}resid_pre@{layer}"], stream[-1])
        stream.append(run.found[f"{prefix}resid_post@{layer}"])
        assert not torch.equal(stream[-1], stream[-2])
    last = stream[-1]
    if table.final_norm:
        norm = run.model.get_submodule(table.final_norm.module)
        last = run.found[f"{prefix}final_norm"]
        close(norm(stream[-1]), last)
    kept = "encoder_last_hidden_state" if stack == "encoder" else "last_hidden_state"
    if getattr(getattr(run.model, "decoder", None), "project_out", None):  # of some OPT
        last = run.model.decoder.project_out(last)
    whole = run.output[kept]
    close(last, whole.flatten(2).transpose(1, 2) if whole.ndim == 4 else whole, atol=0)


def check_added(here, table, layer, block):
    """What attention and MLP add is the difference of the stream, or its norm where norms follow the sums."""
    before, after = here["resid_pre"], here["resid_post"]
    attention, mlp, middle, crossing = (here.get(kind) for kind in ("attn_out", "mlp_out", "resid_mid", "cross_out"))
    normed = middle is not None and table.block["resid_mid"].side == "output"
    if attention is not None and (middle is not None or mlp is not None):
        after_attention = sums(before + attention, block, normed)
        if crossing is not None:
            after_attention = [y for x in after_attention for y in sums(x + crossing, block, normed)]
        if middle is not None:
            one_of(middle, after_attention)
        else:
            one_of(after, [x + mlp for x in after_attention])
    if middle is not None and mlp is not None:
        one_of(after, sums(middle + mlp, block, normed))


def sums(x, block, normed):
    """The sum, or where norms follow sums, what each norm of the block makes of it."""
    if not normed:
        return [x]
    modules = [module for module in block.modules() if "norm" in type(module).__name__.lower()]
    return [first(norm(x)) for norm in modules if norm.weight.shape == x.shape[-1:]]


def one_of(x, candidates):
    assert any(holds(x, candidate) for candidate in candidates), "not what is added to the stream"


def check_lacking(run, table, layer, block, here):
    """Every point that is lacking has a reason, and the block confirms it."""
    for kind in (*ATTENTION, "attn_out", "resid_mid", "mlp_out", "mlp_pre", "mlp_post"):
        if kind not in here:
            assert table.say_why_missing(kind, layer), f"{kind}@{layer} is lacking without a reason"


def check_router(run, table, layer, logits):
    """A number for every expert, before any softmax."""
    module = run.model.get_submodule(table.find("router", layer).module)
    x = next(iter(run.given[module][0].values()))
    module = getattr(module, "wg", module)  # of hunyuan_v1_moe
    expected = torch.nn.functional.linear(x, module.weight, getattr(module, "bias", None))
    close(logits, expected.view(2, LENGTH, -1))


def check_attention(run, table, layer, here):
    """q and k give the pattern; pattern and v give z; z gives what is added."""
    place = table.find("pattern", layer)
    module = run.model.get_submodule(place.module)
    pattern = here["pattern"]
    kind = run.model.config.model_type
    if calls := run.calls[module]:
        call = calls[min(place.call, len(calls) - 1)]
        close(pattern, call.weights, atol=0)
        for name, x in (("q", call.q), ("k", call.k), ("v", call.v)):
            if name in here:
                close(here[name], joined(x), atol=0)
        close(pattern, weights_of(module, call))
        heads, groups = call.v.shape[1], call.q.shape[1] // call.v.shape[1]
    else:
        known = table.heads.get(layer)
        all_heads, heads = known[:2] if known else (run.source.heads, run.source.kv_heads)
        groups = all_heads // heads
        if "q" in here:
            q, k = by_head(here["q"], all_heads), by_head(here["k"], heads).repeat_interleave(groups, 1)
            scores = SCORES.get(kind, divided)(module, q @ k.mT, run.given[module][place.call], q, k)
            close(pattern, scores.softmax(-1))
    if "z" in here and "v" in here and kind not in GATED:
        close(here["z"], joined(pattern @ by_head(here["v"], heads).repeat_interleave(groups, 1)))
    sums = pattern.sum(-1)
    if getattr(module, "sinks", None) is None:
        close(sums, torch.ones_like(sums))
    else:
        assert (sums < 1 + 1e-5).all()
        assert (sums < 0.99).any()
    if "z" in here and "attn_out" in here:
        check_projection(run, table, layer, here, "z", "attn_out")


# a gate, or a norm, follows pattern v before the output projection
GATED = ("afmoe", "axk2", "beam", "bitnet", "laguna", "lfm3", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


def weights_of(module, call):
    """softmax(q k' scale + bias), with the soft cap and the sinks of the type."""
    scale = call.settings.get("scaling")
    if scale is None:
        scale = getattr(module, "scaling", call.q.shape[-1] ** -0.5)
    scores = call.q @ call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1).mT * scale
    if (cap := call.settings.get("softcap")) is not None:
        scores = cap * torch.tanh(scores / cap)
    for bias in (call.mask, call.settings.get("position_bias")):
        if bias is not None:
            scores = scores + bias
    if (sinks := getattr(module, "sinks", None)) is not None:
        scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
        return scores.softmax(-1)[..., :-1]
    return scores.softmax(-1)


def divided(module, products, given, q, k):
    return plus_mask(products / q.shape[-1] ** 0.5, given)


def multiplied(module, products, given, q, k):
    return plus_mask(products, given)


def plus_mask(scores, given):
    return scores if given.get("attention_mask") is None else scores + given["attention_mask"]


def bloom(module, products, given, q, k):
    return plus_mask(products * module.inv_norm_factor + given["alibi"].view(len(q), -1, 1, LENGTH), given)


def falcon(module, products, given, q, k):
    if given["alibi"] is not None:
        products = products + given["alibi"].view(len(q), -1, 1, LENGTH)
    return divided(module, products, given, q, k)


def causal(module, products, given, q, k):
    allowed = module.bias[..., :LENGTH, :LENGTH] != 0
    return plus_mask(products.masked_fill(~allowed, torch.finfo(products.dtype).min), given)


def openai(module, products, given, q, k):
    return causal(module, products / q.shape[-1] ** 0.5, given, q, k)


def mpt(module, products, given, q, k):
    scores = products * module.softmax_scale + given["position_bias"][:, -LENGTH:, -LENGTH:]
    return scores.masked_fill(given["attention_mask"], torch.finfo(scores.dtype).min)


def mpnet(module, products, given, q, k):
    return divided(module, products, given, q, k) + given["position_bias"]


def deberta(module, products, given, q, k):
    bias = module.disentangled_att_bias(q, k, given["relative_pos"], given["rel_embeddings"], 3)
    return masked(products + bias, given)


def deberta_v2(module, products, given, q, k):
    keys = k * (3 * q.shape[-1]) ** 0.5
    flat = (x.flatten(0, 1) for x in (q, keys))
    bias = module.disentangled_attention_bias(*flat, given["relative_pos"], given["rel_embeddings"], 3)
    return masked(products + bias.view_as(products), given)


def masked(scores, given):
    return scores.masked_fill(~given["attention_mask"].bool(), torch.finfo(scores.dtype).min)


# of types that do not call the library's attention function: the scores from q k'
SCORES = {
    "bloom": bloom,
    "falcon": falcon,
    "gpt_neo": causal,
    "openai-gpt": openai,
    "mpt": mpt,
    "mpnet": mpnet,
    "xglm": multiplied,
    "mvp": multiplied,
    "led": multiplied,
    "deberta": deberta,
    "deberta-v2": deberta_v2,
}


def check_projection(run, table, layer, here, given, added):
    """What enters a projection gives what is added, by the projection's module and the norm or scale after it."""
    place, end = table.find(given, layer), table.find(added, layer)
    turned = table.other is put_batch_first
    x = here[given].transpose(0, 1) if turned else here[given]
    out = run.model.get_submodule(place.module)(x)
    if not f"{place.module}.".startswith(f"{end.module}.") and end.side == "output":
        out = run.model.get_submodule(end.module)(first(out))
    kind = run.model.config.model_type
    if kind == "gpt_neox_japanese" and added == "attn_out":
        out = (out, None, run.model.get_submodule(end.module).dense_bias)
    out = end.pick(out, run.source.heads)
    if kind == "beit":
        block = run.model.get_submodule(table.find("resid_post", layer).module)
        out = out * (block.lambda_1 if added == "attn_out" else block.lambda_2)
    close(out, here[added])
