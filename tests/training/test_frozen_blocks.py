"""Encoders whose first or last blocks do not train, or that are cut to their first blocks, down to the embeddings."""

import pytest
import torch
from helpers.tiny_configs import tiny_config
from torch import nn

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand
from repsim_cli.base.errors import BadInput
from repsim_cli.models.configs import build_source_from_config, inline_config
from repsim_cli.models.library import import_transformers
from repsim_cli.training.blocks import Freeze, freeze_blocks, is_frozen, keep_first_blocks
from repsim_cli.training.finetune import label_config, make_adamw, make_classifier

IDS = torch.arange(3, 19).view(2, 8)
# the last are a relative bias and relative embeddings that all blocks share
ENCODERS = [
    "bert",
    "roberta",
    "xlnet",
    "distilbert",
    "electra",
    "modernbert",
    "roberta-prelayernorm",
    "mpnet",
    "deberta",
]

UNUSED = ("mask_emb", "pooler", "seg_embed", "r_s_bias")  # some are without gradients on such texts


def config_of(name):
    return label_config(inline_config(tiny_config(name)), ["a", "b"])


def of_config(config):
    """The source, without weights."""
    return build_source_from_config(config, dict, lambda eager, how=None: nn.Module(), dict, None)


def trained(config, freeze):
    """The weights of a classifier before and after a step, and whether a gradient reaches each block's input."""
    bare, model = of_config(config), make_classifier(config, None, None, 0)
    freeze_blocks(model.base_model, is_frozen(bare, freeze))
    before = {name: weights.clone() for name, weights in model.named_parameters()}
    reached = []
    blocks = model.base_model.get_submodule(bare.architecture.blocks)
    for block in blocks:
        block.register_forward_hook(lambda module, given, out: reached.append((out[0] if isinstance(out, tuple) else out).requires_grad))  # fmt: skip
    model.train()
    optimiser = make_adamw(model, 0.1, 0.1)
    nn.functional.cross_entropy(model(input_ids=IDS).logits, torch.tensor([0, 1])).backward()
    optimiser.step()
    same = {name: torch.equal(before[name], weights) for name, weights in model.named_parameters()}
    return same, reached, bare.architecture.blocks


@pytest.mark.parametrize("name", ENCODERS)
def test_frozen_weights_stay_and_no_gradient_runs_through_the_bottom(name):
    same, reached, blocks = trained(config_of(name), Freeze(bottom=2))
    assert reached == [False, False, True]
    for weights, kept in same.items():
        inside = f"{blocks}." in weights
        low = inside and not weights.split(f"{blocks}.")[1].startswith("2.")
        below = "embed" in weights or "relative" in weights
        if low or below:
            assert kept, weights
        elif not any(part in weights for part in UNUSED):
            assert not kept, weights


def test_frozen_blocks_at_the_top_train_what_is_around_them():
    same, reached, blocks = trained(config_of("bert"), Freeze(top=2))
    assert reached == [True, True, True]
    for weights, kept in same.items():
        assert kept == any(f"{blocks}.{i}." in weights for i in (1, 2)), weights
    same, *_ = trained(config_of("bert"), Freeze(bottom=1, top=1))
    assert [same[f"bert.encoder.layer.{i}.output.dense.weight"] for i in range(3)] == [True, False, True]
    assert same["bert.embeddings.word_embeddings.weight"]
    same, *_ = trained(config_of("bert"), Freeze(bottom=3))
    assert {name for name, kept in same.items() if not kept} == {
        "bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"
    }  # fmt: skip


def test_blocks_that_cannot_be_frozen():
    with pytest.raises(BadInput, match="bottom, top: no blocks are named; set one, or freeze: null"):
        Freeze()
    with pytest.raises(BadInput, match="recipe.freeze: more blocks than the encoder has, got 4; at most 3"):
        is_frozen(of_config(config_of("bert")), Freeze(bottom=2, top=2))
    with pytest.raises(BadInput, match="recipe.freeze: layers share weights, got model_type albert; use another enc"):
        is_frozen(of_config(config_of("albert")), Freeze(bottom=1))
    with pytest.raises(BadInput, match="recipe.freeze: it has no single list of blocks, got model_type bart; use"):
        is_frozen(of_config(config_of("bart")), Freeze(bottom=1))


@pytest.mark.parametrize("name", [*ENCODERS, "albert"])
@pytest.mark.parametrize("count", [0, 2])
def test_the_first_blocks_are_those_of_the_whole_encoder(name, count, tmp_path):
    if (name, count) == ("modernbert", 0):
        pytest.skip("its weights are scaled by the number of blocks")
    config = config_of(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = import_transformers().AutoModel.from_config(config)
    whole.save_pretrained(tmp_path)
    cut = keep_first_blocks(config, count)
    bare, model = of_config(cut), make_classifier(cut, str(tmp_path), None, 1).base_model.eval()
    assert (bare.layers, config.num_hidden_layers) == (count, 3)
    names = ["embed"] + ["resid_post"] * bool(count)
    points = expand(names, "all", bare)
    assert [str(point) for point in points] == ["embed", *(f"resid_post@{layer}" for layer in range(count))]
    found = read(model, bare, points)
    for point, x in read(whole.eval(), of_config(config), points).items():
        assert x.shape == (2, 8, 32)
        assert torch.equal(found[point], x), point
    if not count:
        with pytest.raises(BadInput, match="no hook point is left, got layers all of a model with 0; select some"):
            expand(["resid_post"], "all", bare)
        with pytest.raises(BadInput, match="layer out of range, got 1; the model has no blocks"):
            expand(["resid_post"], [1], bare)


def read(model, bare, points):
    with capture(model, bare, points) as reader:
        return {point: x.clone() for point, x in reader(IDS, torch.ones_like(IDS, dtype=torch.bool)).items()}


def test_encoders_that_cannot_be_cut():
    with pytest.raises(
        BadInput, match="config: no classifier can be made of it, got model_type modernbert; use an enc"
    ):
        make_classifier(
            keep_first_blocks(config_of("modernbert"), 0), None, None, 0
        )  # its weights are scaled by the depth
    with pytest.raises(BadInput, match="blocks: more than the encoder has, got 4; at most 3"):
        keep_first_blocks(config_of("bert"), 4)
    shared = inline_config({**tiny_config("albert"), "num_hidden_groups": 3})
    with pytest.raises(BadInput, match="blocks: layers share weights by their number, got 1 of 3; use another encoder"):
        keep_first_blocks(shared, 1)
