"""What is seen of attention, however it is written."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.tiny_configs import tiny_config

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import count_heads, expand, find_head_width
from repsim_cli.activations.readings import find_point_width
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.models import attention
from repsim_cli.models.architectures import ARCHITECTURES
from repsim_cli.models.attention import Attended, Watch

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 5, 3


def matmul(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def batched(q, k, v):
    """Heads and sequences in one axis, with what is added to the products."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.zeros(len(q), LENGTH, LENGTH).baddbmm(batch1=q, batch2=k.mT, beta=0, alpha=1)
    return torch.bmm(torch.nn.functional.softmax(scores, dim=-1), v)


def with_a_sink(q, k, v):
    scores = torch.cat([torch.matmul(q, k.mT), torch.zeros(BATCH, HEADS, LENGTH, 1)], -1)
    return scores.softmax(-1)[..., :-1] @ v


def fused(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, value=v, scale=1.0)


def seen(attend, *parts):
    watch = Watch()
    with watch:
        torch.zeros(2, 2) @ torch.zeros(2, 2)  # outside any attention
        watch.begin()
        attend(*parts)
        found = watch.end()
        torch.zeros(2, 2).softmax(-1) @ torch.zeros(2, 2)
    return found


@pytest.fixture
def parts():
    """q, k of groups of two heads as repeated for each, v."""
    q, k, v = torch.randn(3, BATCH, HEADS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0)).unbind()
    k = k[:, ::2].repeat_interleave(2, 1)
    return q, k, v


@pytest.mark.parametrize("attend", [matmul, batched, with_a_sink, fused])
def test_attention_however_it_is_written(attend, parts):
    q, k, v = parts
    found = seen(attend, *parts)
    assert torch.equal(attention.read_queries(found, HEADS), q.transpose(1, 2).flatten(2))
    assert torch.equal(attention.read_keys(found, HEADS), k.transpose(1, 2).flatten(2))
    assert torch.equal(attention.read_values(found, HEADS), v.transpose(1, 2).flatten(2))
    if attend is not batched:
        assert torch.equal(attention.read_keys(found, 2), k[:, ::2].transpose(1, 2).flatten(2))
    if attend is fused:
        with pytest.raises(RunFailed, match="the model returns no attention weights, got None; use one that runs with"):
            attention.read_pattern(found, HEADS)
    else:
        sums = attention.read_pattern(found, HEADS).sum(-1)
        assert (sums < 1).all() if attend is with_a_sink else torch.allclose(sums, torch.ones_like(sums))
        torch.testing.assert_close(attention.read_pattern(found, HEADS) @ v, attend(*parts).view_as(v))


def test_a_module_without_attention():
    found = seen(lambda x: (x @ x).softmax(-1), torch.ones(2, 2))
    for pick in (attention.read_queries, attention.read_keys, attention.read_values):
        with pytest.raises(RunFailed, match="no attention was computed by a product, a softmax and a product"):
            pick(found, HEADS)
    with pytest.raises(RunFailed, match="no attention was computed"):
        attention.read_queries(Attended(), HEADS)


def source_of(name):
    return registry.models.get("random").function(config=tiny_config(name))


def read(source, model, names):
    ids = torch.randint(3, 90, (2, 7), generator=torch.Generator().manual_seed(2))
    with capture(model, source, expand(names, "all", source)) as reader:
        return {str(point): x for point, x in reader(ids, torch.ones(2, 7, dtype=torch.bool)).items()}


def test_models_in_two_threads_do_not_see_each_other():
    sources = [source_of("llama"), source_of("bloom")]
    models = [source.load(True) for source in sources]
    names = ["q", "k", "v", "pattern"]
    alone = [read(source, model, names) for source, model in zip(sources, models, strict=True)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            together = list(pool.map(read, sources, models, [names] * 2))
            for one, other in zip(alone, together, strict=True):
                assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "deepseek_v3", "mimo_v2_flash", "falcon", "gpt_bigcode"])
def test_fused_attention_gives_the_same(name):
    """q, k, v and z are read with the attention that the library chooses, as with the one that gives patterns."""
    source = source_of(name)
    names = ["q", "k", "v", "z"]
    fast, plain = (read(source, source.load(eager), names) for eager in (False, True))
    for point in expand(names, "all", source):
        found = fast[str(point)]
        torch.testing.assert_close(found, plain[str(point)], atol=1e-5, rtol=1e-5)
        assert found.shape == (2, 7, find_point_width(point, source))
        assert find_point_width(point, source) == count_heads(point, source) * find_head_width(point, source)


def test_blocks_that_lack_a_point():
    """The first block's MLP is dense; the others are mixtures of experts."""
    source = source_of("deepseek_v3")
    assert [str(point) for point in expand(["mlp_pre", "router"], "all", source)] == [
        "mlp_pre@0",
        "router@1",
        "router@2",
    ]
    why = r"deepseek_v3 has no mlp_pre \(its MLP is a mixture of experts, each with its own\), got 'mlp_pre@1'"
    for names, layers in ((["mlp_pre@1"], "all"), (["mlp_pre"], [0, 1])):
        with pytest.raises(BadInput, match=why):
            expand(names, layers, source)
    with pytest.raises(BadInput, match=r"has no router \(its MLP is not a mixture of experts\), got 'router@0'"):
        expand(["router@0"], "all", source)


def test_a_stack_that_the_model_does_not_have():
    with pytest.raises(BadInput, match="llama has no encoder, got 'encoder.q@0'; leave 'encoder.' out"):
        expand(["encoder.q@0"], "all", source_of("llama"))


def test_the_stacks_of_an_encoder_decoder_without_a_table(monkeypatch):
    monkeypatch.delitem(ARCHITECTURES, "bart")
    source = source_of("bart")
    names = [f"{stack}.resid_post@{layer}" for stack in ("encoder", "decoder") for layer in range(3)]
    points = expand(["encoder.resid_post", "decoder.resid_post"], "all", source)
    assert [str(point) for point in points] == names
    found = read(source, source.load(False), ["encoder.embed", *names])
    assert {x.shape for x in found.values()} == {(2, 7, 32)}


def test_depth_is_that_of_the_blocks():
    """Blocks are counted, whatever the config calls their number."""
    source = source_of("xlstm")
    assert source.layers == len(source.skeleton.blocks) == 3
