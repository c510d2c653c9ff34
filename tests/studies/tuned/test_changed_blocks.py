"""The blocks that were changed are found, those that only carry a change on are not, and shams change nothing."""

import copy
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import torch
from helpers.tiny_configs import tiny_config
from transformers import AutoTokenizer

from repsim_cli.activations.batching import TokenTally
from repsim_cli.base import registry
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.runs.content import CARRIED, OWN, Table
from repsim_cli.studies.tuned.blocks import (
    BlockStack,
    compute_block_changes,
    compute_restored,
    find_promoted,
    make_unpadded_batches,
    say_why_not_alone,
)
from repsim_cli.studies.tuned.changes import Texts, compute_logit_divergences, compute_row_changes, decode_json
from repsim_cli.studies.tuned.finding import ChangedBlocks, say_changed_blocks, say_mean_direction, say_restored_effect
from repsim_cli.studies.tuned.gathered import Gathered
from repsim_cli.studies.tuned.models import load_next_token_model

KINDS = ("llama", "gpt2", "gpt_neox", "gemma3_text", "qwen3", "phi", "opt", "mixtral", "bloom", "mamba")
EXTRACT = Extract(hook_points=["resid_post"], length=16)
HARDWARE = Hardware(batch_size=4)


def make_tally(*models):
    """A tally that is not read."""
    return TokenTally({}, [model.label for model in models])


def source_of(kind, layers=6):
    config = {**tiny_config(kind), "num_hidden_layers": layers}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"] * 2
    return registry.models.get("random").function(config=config, tokenizer="tiny_a", seed=0)


def stack(source, label="base"):
    return BlockStack(label, source, load_next_token_model(source), True)


def copied(base, label="tuned"):
    return replace(base, label=label, module=copy.deepcopy(base.module))


def sequences(seed, count=6, length=16, vocabulary=96):
    draw = np.random.default_rng(seed)
    ids = draw.integers(3, vocabulary, (count, length))
    mask = np.ones((count, length), bool)
    mask[-1, length // 2 :] = False  # one is shorter
    place = np.where(mask, np.arange(length), -1)
    return Sequences(inputs=ids, mask=mask, text=mask, document=np.arange(count)[:, None] + 0 * place, position=place,
                     documents=count)  # fmt: skip


def found(base, *tuned, seed=0, patching=False):
    given = make_unpadded_batches(sequences(seed), 6, EXTRACT, HARDWARE)
    return compute_block_changes(
        base, tuned, given, EXTRACT, patching=patching, progress=iter, tally=make_tally(base, *tuned)
    )


def plant(model, blocks, seed, size, rank=None):
    """Noise in all matrices of these blocks, or of this rank in one of each."""
    draw = torch.Generator().manual_seed(seed)
    for block in blocks:
        matrices = [x for x in model.blocks[block].parameters() if x.ndim == 2]
        for x in matrices[:1] if rank else matrices:
            noise = torch.randn(x.shape, generator=draw)
            if rank:
                noise = torch.randn(len(x), rank, generator=draw) @ torch.randn(rank, x.shape[1], generator=draw)
            x.data += size * noise / noise.norm() * x.norm()


def blocks_above(change):
    return change["above"].nonzero()[:, 0].tolist()


def check_planted(kind, seed):
    base = stack(source_of(kind))
    draw = np.random.default_rng(seed)
    start = int(draw.integers(0, 3))
    full, low = [start, start + 1], [start + 3]
    model = copied(base)
    plant(model, full, seed, size=10.0 ** -draw.integers(1, 4))
    plant(model, low, seed, size=10.0 ** -draw.integers(1, 4), rank=2)
    change = found(base, model, seed=seed)["tuned"]
    assert blocks_above(change) == full + low, (kind, seed)
    later = [block for block in range(start + 1, 6) if block not in full + low]
    assert all(change[CARRIED][later].double().nanmean(1) > change[OWN][later].double().nanmean(1))  # the stream's


def check_shams(kind, seed, tmp_path):
    """The model itself, saved and loaded, in half precision, under another kernel of attention, on other sums."""
    base = stack(source_of(kind))
    again, half, kernel = (copied(base, label) for label in ("again", "half", "kernel"))
    again.module.save_pretrained(tmp_path)
    again = replace(again, module=type(base.module).from_pretrained(tmp_path, dtype=torch.float32).eval())
    for x in half.module.parameters():
        x.data = x.data.bfloat16().float()
    if kind not in ("bloom", "mamba"):
        kernel.module.set_attn_implementation("eager")
    change = found(base, again, half, kernel, seed=seed)
    assert {label: blocks_above(x) for label, x in change.items()} == {"again": [], "half": [], "kernel": []}
    assert not change["again"][OWN].any()
    assert all(change["half"]["held"])
    assert not any(change["kernel"]["held"])


@pytest.mark.parametrize(("kind", "seed"), [("llama", 0), ("gpt2", 1)])
def test_changed_blocks_are_found_and_shams_are_none(kind, seed, tmp_path):
    check_planted(kind, seed)
    check_shams(kind, seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 22))
def test_changed_blocks_are_found_twenty_times_of_twenty(seed, tmp_path):
    check_planted(KINDS[seed % len(KINDS)], seed)
    check_shams(KINDS[seed % len(KINDS)], seed, tmp_path)


def test_own_and_carried_change_by_hand():
    """Changes beside those of blocks that are called one by one, and their sum beside the change of the stream."""
    base = stack(source_of("llama"))
    model = copied(base)
    plant(model, [2], 0, 0.1)
    given = sequences(0, count=1)
    change = compute_block_changes(
        base, [model], [given.take(slice(1), 8)], EXTRACT, patching=False, progress=iter, tally=make_tally(base, model)
    )
    ids = torch.from_numpy(given.inputs[:1, :8])
    streams = {}
    for each in (base, model):
        streams[each.label] = []
        hooks = [
            x.register_forward_hook(lambda _, __, out, each=each: streams[each.label].append(out)) for x in each.blocks
        ]
        with torch.no_grad():
            each.module(ids)
        for hook in hooks:
            hook.remove()
    total = torch.stack([compute_row_changes(x[0], y[0])[0] for x, y in zip(*streams.values(), strict=True)])
    own, carried = (change["tuned"][kind].double() for kind in (OWN, CARRIED))
    assert not own[[0, 1, 3, 4, 5]].any()
    assert not carried[:3].any()
    assert own[2].numpy() == pytest.approx(total[2].numpy(), rel=1e-4)
    assert carried[3:].numpy() == pytest.approx(total[3:].numpy(), rel=1e-4)


def test_weights_by_tensor_and_outside_of_blocks():
    base = stack(source_of("llama"))
    model = copied(base)
    model.blocks[1].mlp.down_proj.weight.data *= 1.5
    model.module.get_input_embeddings().weight.data *= 2
    change = found(base, model)["tuned"]
    rows = {name: (block, round(size, 6)) for name, block, size in decode_json(change["tensors"])}
    assert rows == {"embed_tokens.weight": (None, 1.0), "layers.1.mlp.down_proj.weight": (1, 0.5)}
    squares = {name: float(x.detach().square().sum()) for name, x in base.blocks[1].named_parameters()}
    expected = 0.5 * (squares["mlp.down_proj.weight"] / sum(squares.values())) ** 0.5
    assert change["weights"].tolist() == pytest.approx([0, expected, 0, 0, 0, 0])
    assert blocks_above(change) == [1]


def test_a_head_that_is_no_longer_the_embeddings_is_named():
    base = stack(source_of("gpt2"))
    model = copied(base)
    model.module.get_input_embeddings().weight.data *= 2
    tied = decode_json(found(base, model)["tuned"]["tensors"])
    assert [name for name, *_ in tied] == ["wte.weight"]  # the head, too, but once
    model = copied(base)
    weights = model.module.get_output_embeddings().weight.detach()
    model.module.lm_head.weight = torch.nn.Parameter(weights * 0.5)
    assert decode_json(found(base, model)["tuned"]["tensors"]) == [["lm_head.weight", None, pytest.approx(0.5)]]


def test_the_mean_change_and_what_it_promotes():
    """A vector that is added to every token is all of the change; along an output embedding it promotes that token."""
    base = stack(source_of("gpt2"))
    model = copied(base)
    head = base.module.get_output_embeddings().weight
    vector = head[42].detach() * 5
    model.blocks[5].mlp.c_proj.bias.data += vector
    change = found(base, model)["tuned"]
    assert blocks_above(change) == [5]
    assert float(change["share"][5]) == pytest.approx(1, abs=0.2)  # over the norm of each token
    assert change["promoted"][5, 0] == 42
    assert find_promoted(base, -vector[None].double())[0, 10] == 42
    assert float(change["norm"][5]) == pytest.approx(float(change[OWN][5].double().mean()), rel=0.1)


def test_putting_a_block_back():
    """All of the effect where one block was changed; the share by hand where two were."""
    base = stack(source_of("llama"))
    one, two = copied(base, "one"), copied(base, "two")
    plant(one, [3], 0, 0.3)
    plant(two, [1, 4], 0, 0.3)
    change = found(base, one, two, patching=True)
    assert change["one"]["restored"].tolist() == pytest.approx([0, 0, 0, 1, 0, 0], abs=1e-6)
    given = make_unpadded_batches(sequences(0), 6, EXTRACT, HARDWARE)
    other = copied(base)
    plant(other, [1, 4], 0, 0.3)
    other.blocks[1].load_state_dict(base.blocks[1].state_dict())

    def effect(model):
        return sum(
            float(compute_logit_divergences(*(x.logits(batch, EXTRACT) for x in (base, model))).sum())
            for batch in given
        )

    assert float(change["two"]["restored"][1]) == pytest.approx(1 - effect(other) / effect(two), rel=1e-4)
    assert [x is y for x, y in zip(two.blocks, base.blocks, strict=True)] == [False] * 6  # they are where they were
    assert compute_restored(base, copied(base), given, EXTRACT, [0]).isnan().all()


def test_the_sentence():
    """Ranges with a change of their own, weights that change nothing above rounding, and what was rounded."""
    more = {"carried": [], "rounding": [], "restored": [None] * 5}
    said = say_changed_blocks(
        ChangedBlocks(
            own=[0.2, 1e-9, 0.0, 1e-3, 0.0], weights=[1.0, 1e-8, 0.0, 1e-3, None], above=[0], rounded=[3], **more
        ),
        [],
    )
    assert said == (
        "block 0: own change 0.2; block 3: the base's weights, rounded to 16 bits; "
        "block 1: other weights, but their own change is within rounding; blocks 2, 4: none above rounding"
    )
    none = ChangedBlocks(own=[0.0] * 2, weights=[0.0] * 2, above=[], rounded=[], **more)
    assert say_changed_blocks(none, []) == "no block changes anything above rounding"
    outside = [("embed.weight", 0.25), ("norm.bias", None), ("head.weight", 1.0), ("head.bias", 1.0)]
    assert say_changed_blocks(none, outside).endswith(
        "; outside the blocks embed.weight by 0.25, norm.bias, head.weight by 1 and 1 more"
    )


@pytest.mark.parametrize(
    ("restored", "said"),
    [
        ([None, None], ""),
        ([0.2, 0.75], "the base's block in place of the model's restores 0.2 to 0.75 of the effect on the next token, most at block 1"),
        ([-0.76, -0.39], "no block of the base in place of the model's restores anything of the effect on the next token: each makes it larger, by 0.39 to 0.76 of it"),
    ],
)  # fmt: skip
def test_what_a_block_of_the_base_restores(restored, said):
    blocks = ChangedBlocks(
        own=[1.0, 1.0], carried=[], weights=[1.0, 1.0], rounding=[], above=[0, 1], rounded=[], restored=restored
    )
    assert say_restored_effect(blocks) == said


def test_tokens_that_are_parts_of_a_character_are_told_apart():
    """Every token of a byte-level vocabulary: other tokens have other texts, and none is a replacement character."""
    texts = Texts.__new__(Texts)
    texts.tokenizer = AutoTokenizer.from_pretrained(str(resources.files("repsim_cli") / "assets/models/tiny_a"))
    shown = [texts.show([token]) for token in range(len(texts.tokenizer))]
    parts = [text for text in shown if text.startswith("part of a character: ")]
    assert len(parts) == len(set(parts)) > 100
    assert not any("\ufffd" in text for text in shown)
    assert texts.show(texts.tokenizer("é")["input_ids"]) == "é"


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (None, ""),
        (-0.02, "no one direction: texts share 0 of the change after block 3"),
        (
            0.5,
            "one direction, the mean change, has 0.5 of the change after block 3; it promotes 'a' 'b' and demotes 'c'",
        ),
    ],
)
def test_the_mean_change_is_a_direction_where_texts_share_it(share, said):
    table = Table(columns=list("abcdef"), rows=[["tuned", 3, 0.1, share, "'a' 'b'", "'c'"]])
    assert say_mean_direction(table, "tuned") == said


def test_what_each_text_changes_by_itself_is_no_shared_direction():
    """Four texts have a vector of their own each, so that the mean has a quarter of the change."""
    generator = torch.Generator().manual_seed(0)
    base, sizes = torch.randn(40, 2000, generator=generator), [4, 16, 10, 10]
    of_texts = torch.randn(4, 2000, generator=generator).repeat_interleave(torch.tensor(sizes), 0)
    found = [Gathered(), Gathered(), Gathered()]
    for each, change, by in zip(
        found, (of_texts, of_texts[:1].expand(40, -1), of_texts), (sizes, sizes, [40]), strict=True
    ):
        each.add([base], [base], [base + change], by)
    own, shared, alone = (each.tensors() for each in found)
    assert float(own["share"][0]) == pytest.approx(0, abs=0.05)
    assert 40 * float(own["direction"][0].square().sum()) / float(found[0].squares[0, 0]) > 0.25
    assert float(shared["share"][0]) == pytest.approx(1, abs=0.02)
    assert torch.isnan(alone["share"]).all()


def test_blocks_that_cannot_be_run_alone():
    assert say_why_not_alone(source_of("llama")) is None
    assert "share their weights" in say_why_not_alone(source_of("albert"))
    assert "no single stack of blocks" in say_why_not_alone(source_of("t5"))
