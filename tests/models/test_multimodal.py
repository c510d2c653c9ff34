"""The text backbones of models that also read images: the same activations and logits as within the whole model."""

import logging

import pytest
import torch
from helpers.tiny import perturb

from repsim_cli.base import registry
from repsim_cli.models.library import import_transformers

transformers = registry.models.get("transformers").function
random = registry.models.get("random").function

TEXT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
VISION = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 28, "patch_size": 14}  # fmt: skip
DEEP = {"hidden_size": 32, "depth": 1, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 32}
SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
# the type of the whole model -> what its text config and its vision config have beyond the common keys
TYPES = {
    "gemma3": ({"sliding_window": 4}, VISION),
    "internvl": ({"model_type": "qwen2"}, {**VISION, "image_size": [28, 28], "patch_size": [14, 14]}),
    "llama4": ({"intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 8},
               {**VISION, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}),
    "llava": ({"model_type": "llama"}, {**VISION, "model_type": "clip_vision_model", "projection_dim": 32}),
    "mistral3": ({"model_type": "mistral"}, {**VISION, "model_type": "pixtral", "head_dim": 8}),
    "paligemma": ({"model_type": "gemma"}, {**VISION, "model_type": "siglip_vision_model"}),
    "qwen2_vl": (SECTIONS, {"embed_dim": 32, "hidden_size": 32, "depth": 1, "num_heads": 4}),
    "qwen3_5": (LINEAR, DEEP),
    "qwen3_vl": (SECTIONS, DEEP),
    "smolvlm": ({"model_type": "llama"}, VISION),
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_the_text_backbone_is_that_of_the_whole_model(tmp_path, kind, caplog):
    text, vision = TYPES[kind]
    torch.manual_seed(1)
    config = import_transformers().AutoConfig.for_model(kind, text_config={**TEXT, **text}, vision_config=vision)
    whole = import_transformers().AutoModelForMultimodalLM.from_config(config).eval()
    perturb(whole)
    whole.save_pretrained(tmp_path)
    source = transformers(path=str(tmp_path))
    assert (source.layers, source.width, source.heads, source.kv_heads, source.vocabulary) == (3, 32, 4, 2, 96)
    ids = torch.randint(1, 96, (2, 12), generator=torch.Generator().manual_seed(2))
    with caplog.at_level(logging.INFO, "repsim"), torch.no_grad():
        backbone, headed = source.load(False), source.with_head("AutoModelForCausalLM")
        logits = whole(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        found = headed(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        hidden = backbone(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        read = whole.get_output_embeddings()(hidden)
    assert logits.std() > 0.1
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(read, logits, rtol=1e-4, atol=1e-4)
    assert f"the text backbone of a {kind} is read" in caplog.text
    assert source.parameters == sum(p.numel() for p in backbone.parameters())
    assert [*dict(source.skeleton.named_modules())] == [*dict(backbone.named_modules())]
    assert source.identity()["config_hash"]


def test_a_random_model_of_such_a_type_is_its_text_backbone():
    text, vision = TYPES["gemma3"]
    config = {"model_type": "gemma3", "text_config": {**TEXT, **text}, "vision_config": vision}
    source = random(config=config)
    model, whole = source.load(False), source.with_head("AutoModelForCausalLM")
    assert [*dict(source.skeleton.named_modules())] == [*dict(model.named_modules())]
    assert torch.equal(model.layers[0].mlp.up_proj.weight, whole.model.layers[0].mlp.up_proj.weight)
    assert source.layers == 3
