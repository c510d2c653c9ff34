"""Hook points by arithmetic: on perturbed weights, each captured tensor follows from the others and the weights."""

import math

import pytest
import torch

from repsim_cli import registry
from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import BY_HEAD, HookPoint, expand, parse
from repsim_cli.errors import BadInput, RunFailed

KINDS = ["gpt_neox", "gpt2", "llama", "bert"]
LENGTH, DEPTH, HEADS, WIDTH = 12, 3, 4, 32


def close(a, b, atol=3e-5):
    torch.testing.assert_close(a, b, atol=atol * float(b.abs().max().clamp_min(1)), rtol=0)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", params=KINDS)
def read(request, tiny_folder):
    """(kind, source, model, activations of every hook point on two sequences, the second one padded)."""
    source = registry.models.get("transformers").function(path=str(tiny_folder(request.param)))
    model = source.load(True)
    kinds = [k for k in source.architecture.block]
    outside = ["embed"] + (["final_norm"] if source.architecture.final_norm else [])
    points = expand([*outside, *kinds], "all", source)
    ids = torch.randint(0, 400, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, 8:] = False
    with capture(model, source, points) as reader:
        found = {str(point): x for point, x in reader(ids, mask).items()}
    return request.param, source, model, found, ids, mask


def block(kind, model, layer):
    return model.get_submodule({"gpt2": "h", "bert": "encoder.layer"}.get(kind, "layers"))[layer]


def by_head(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


@pytest.mark.parametrize("layer", range(DEPTH))
def test_attention_arithmetic(read, layer):
    """pattern = softmax(q k'), z = pattern v, attn_out = W_O z; rotary embeddings are applied here by hand."""
    kind, source, model, found, _, mask = read
    q, k, v, z, pattern = (found[f"{name}@{layer}"] for name in ("q", "k", "v", "z", "pattern"))
    q, k, v = by_head(q, HEADS), by_head(k, source.kv_heads), by_head(v, source.kv_heads)
    k, v = (side.repeat_interleave(HEADS // source.kv_heads, dim=1) for side in (k, v))
    if kind in ("llama", "gpt_neox"):
        module = __import__(f"transformers.models.{kind}.modeling_{kind}", fromlist=["apply_rotary_pos_emb"])
        cos, sin = model.rotary_emb(q, position_ids=torch.arange(LENGTH)[None])
        q, k = module.apply_rotary_pos_emb(q, k, cos, sin)
    scores = q @ k.mT / math.sqrt(WIDTH // HEADS)
    allowed = mask[:, None, None, :].expand(2, 1, LENGTH, LENGTH).clone()
    if kind != "bert":
        allowed &= torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    rows = mask[:, None, :, None].expand_as(scores)
    close(pattern[rows], scores.masked_fill(~allowed, -torch.inf).softmax(-1)[rows])
    close(by_head(z, HEADS)[rows[..., :8]], (pattern @ v)[rows[..., :8]])
    here = block(kind, model, layer)
    output = {"gpt2": "attn.c_proj", "bert": "attention.output.dense", "llama": "self_attn.o_proj"}
    close(found[f"attn_out@{layer}"], here.get_submodule(output.get(kind, "attention.dense"))(z))


@pytest.mark.parametrize("layer", range(DEPTH))
def test_mlp_arithmetic(read, layer):
    """mlp_out = W_out mlp_post, and mlp_post = activation(mlp_pre) (times the gated branch in Llama)."""
    kind, _, model, found, _, _ = read
    here = block(kind, model, layer)
    pre, post, out = (found[f"mlp_{name}@{layer}"] for name in ("pre", "post", "out"))
    output = {"gpt2": "mlp.c_proj", "bert": "output.dense", "llama": "mlp.down_proj"}
    close(out, here.get_submodule(output.get(kind, "mlp.dense_4h_to_h"))(post))
    if kind == "llama":
        normed = here.post_attention_layernorm(found[f"resid_mid@{layer}"])
        close(post, torch.nn.functional.silu(pre) * here.mlp.up_proj(normed))
    else:
        approximate = "tanh" if kind == "gpt2" else "none"
        close(post, torch.nn.functional.gelu(pre, approximate=approximate))


@pytest.mark.parametrize("layer", range(DEPTH))
def test_residual_stream_arithmetic(read, layer):
    kind, _, model, found, _, _ = read
    pre, post, attention, mlp = (
        found[f"{name}@{layer}"] for name in ("resid_pre", "resid_post", "attn_out", "mlp_out")
    )
    close(pre, found[f"resid_post@{layer - 1}"] if layer else found["embed"], atol=0)
    here = block(kind, model, layer)
    if kind == "gpt_neox":
        close(post, pre + attention + mlp)
    elif kind == "bert":
        mid = found[f"resid_mid@{layer}"]
        close(mid, here.attention.output.LayerNorm(pre + attention))
        close(post, here.output.LayerNorm(mid + mlp))
    else:
        close(found[f"resid_mid@{layer}"], pre + attention)
        close(post, found[f"resid_mid@{layer}"] + mlp)


def test_against_the_library_outputs(read):
    """embed and resid_post are the library's hidden states; the last one is after the final norm there."""
    _, source, model, found, ids, mask = read
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True, output_attentions=True)
    close(found["embed"], output.hidden_states[0], atol=0)
    for layer in range(DEPTH - 1):
        close(found[f"resid_post@{layer}"], output.hidden_states[layer + 1], atol=0)
    last = found["final_norm"] if source.architecture.final_norm else found[f"resid_post@{DEPTH - 1}"]
    close(last, output.hidden_states[-1], atol=0)
    for layer in range(DEPTH):
        close(found[f"pattern@{layer}"], output.attentions[layer], atol=0)


def test_padding_changes_nothing(read):
    _, source, model, found, ids, _ = read
    points = expand(["embed", "resid_post"], "all", source)
    with capture(model, source, points) as reader:
        alone = reader(ids[1:, :8], torch.ones(1, 8, dtype=torch.bool))
    for point in points:
        close(found[str(point)][1:, :8], alone[point])


def test_heads_are_slices(read):
    _, source, model, found, ids, mask = read
    for name in BY_HEAD:
        heads = HEADS if name in ("q", "z") else source.kv_heads
        points = [HookPoint(name, 1, head) for head in range(heads)]
        with capture(model, source, points) as reader:
            single = reader(ids, mask)
        close(torch.cat([single[point] for point in points], -1), found[f"{name}@1"], atol=0)


def test_hooks_are_gone_afterwards_and_the_forward_stops(read):
    _, source, model, _, ids, mask = read
    depth_reached = []
    last = block(read[0], model, DEPTH - 1).register_forward_hook(lambda *a: depth_reached.append(True))
    before = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    with (
        pytest.raises(ZeroDivisionError),
        capture(model, source, expand(["resid_post@1"], "all", source)) as reader,
    ):
        reader(ids, mask)
        1 / 0  # noqa: B018
    assert before == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    assert not depth_reached
    last.remove()


def test_other_modules_by_name(read):
    _, source, model, found, ids, mask = read
    path = source.architecture.find("resid_post", 1).module
    points = expand([f"module:{path}"], "all", source)
    with capture(model, source, points) as reader:
        close(reader(ids, mask)[points[0]], found["resid_post@1"], atol=0)


def test_a_module_that_never_runs_is_an_error(tiny_folder):
    source = registry.models.get("transformers").function(path=str(tiny_folder("bert")))
    model = source.load(False)
    model.pooler = torch.nn.Identity()
    source.skeleton.unused = torch.nn.Identity()
    model.unused = torch.nn.Identity()
    ids = torch.ones(1, 4, dtype=torch.long)
    with (
        capture(model, source, expand(["module:unused"], "all", source)) as reader,
        pytest.raises(RunFailed, match="module:unused: never reached in a forward pass of bert; choose another"),
    ):
        reader(ids, ids.bool())


@pytest.mark.parametrize(
    ("names", "layers", "message"),
    [
        (["resid_pots"], "all", "unknown hook point, got 'resid_pots'; did you mean 'resid_post'"),
        (["resid_post@9"], "all", "resid_post@9: layer out of range, got 9; the model has layers 0 to 2"),
        (["resid_post"], [3], "layers: layer out of range, got 3; the model has layers 0 to 2"),
        (
            ["resid_mid"],
            "all",
            r"gpt_neox has no resid_mid \(its attention and MLP run in parallel\), got 'resid_mid@0'",
        ),
        (["embed@1"], "all", "embed has no layer or head, got 'embed@1'; write embed"),
        (
            ["resid_post@1.h0"],
            "all",
            "resid_post has no heads, got 'resid_post@1.h0'; heads belong to q, k, v, z",
        ),
        (["q@1.h4"], "all", r"head out of range, got 'q@1.h4'; the model has heads 0 to 3"),
        (["module:layer.1"], "all", "no such module, got 'module:layer.1'; did you mean 'layers.1'"),
        (["resid_post", "resid_post@-1"], "all", "'resid_post@2' is asked for twice; name each once"),
    ],
)
def test_bad_names(tiny_folder, names, layers, message):
    source = registry.models.get("transformers").function(path=str(tiny_folder("gpt_neox")))
    with pytest.raises(BadInput, match=message):
        expand(names, layers, source)


def test_serial_gpt_neox_has_resid_mid():
    source = registry.models.get("random").function(
        config={"model_type": "gpt_neox", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
                "intermediate_size": 64, "vocab_size": 50, "use_parallel_residual": False}
    )  # fmt: skip
    model = source.load(False)
    points = expand(["resid_pre", "resid_mid", "attn_out"], "all", source)
    ids = torch.arange(6)[None]
    with capture(model, source, points) as reader:
        found = {p.kind: x for p, x in reader(ids, torch.ones_like(ids, dtype=torch.bool)).items()}
    close(found["resid_mid"], found["resid_pre"] + found["attn_out"])


def test_names_round_trip():
    for name in ("embed", "final_norm", "resid_post@3", "q@3.h2", "module:a.b.0"):
        assert str(parse(name)) == name
