"""Which types of transformers have hook points, and which are refused."""

import re
from pathlib import Path

import pytest
from helpers.tiny_configs import NAMES, tiny_config

from repsim_cli.activations.hook_points import expand
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.models import overview
from repsim_cli.models.architectures import ARCHITECTURES, REFUSED

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
# types of published models that people compare
COMMON = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "gemma2", "gemma3_text",
    "phi", "phi3", "olmo", "olmo2", "olmo3", "olmoe", "smollm3", "stablelm", "starcoder2", "falcon", "bloom", "opt",
    "gptj", "gpt_neo", "gpt_bigcode", "mpt", "cohere", "cohere2", "granite", "granitemoe", "glm4", "deepseek_v2",
    "deepseek_v3", "gpt_oss", "exaone4", "nemotron", "ernie4_5", "xglm", "codegen", "bert", "roberta", "xlm-roberta",
    "camembert", "electra", "mpnet", "deberta-v2", "convbert", "modernbert", "nomic_bert", "esm", "t5", "umt5",
    "bart", "pegasus", "m2m_100", "whisper", "mamba", "mamba2", "jamba", "recurrent_gemma", "rwkv", "vit", "deit",
    "dinov2", "clip_text_model", "clip_vision_model", "siglip_vision_model", "swin", "convnext", "distilbert",
    "albert", "xlnet",
)  # fmt: skip
# whose stream is found by structure
UNTABLED = (
    "bigbird_pegasus", "dots3_note_text", "emu3_text_model", "inkling_text", "mllama_text_model", "neomme",
    "t5_gemma_module", "t5gemma2_decoder", "voxtral_realtime_text", "zaya",
)  # fmt: skip
# of several models, without a backbone that AutoModel builds
SEVERAL = (
    "encoder-decoder", "gemma4_assistant", "gemma4_unified_assistant", "musicgen", "musicgen_melody", "seamless_m4t",
    "seamless_m4t_v2", "trocr",
)  # fmt: skip


def test_common_types_have_a_table():
    assert not set(COMMON) - set(ARCHITECTURES)
    assert not set(REFUSED) & set(ARCHITECTURES)


def test_the_list_is_that_of_the_tables():
    content = overview.read()
    assert set(content["types"]) == set(ARCHITECTURES)
    assert content["refused"] == dict(sorted(REFUSED.items()))
    assert set(ARCHITECTURES) <= {name for names in NAMES.values() for name in names}
    number = overview.count_model_types(content)
    assert number["texts"] >= 100
    assert number["attention"] >= 70


def test_the_numbers_of_the_readme():
    number = overview.count_model_types(overview.read())
    (found,) = re.findall(
        r"(\d+) types of transformers\s+have hook points, (\d+) of them with `q`, `k`", PAGE.read_text()
    )
    assert found == (str(number["types"]), str(number["attention"]))


def test_every_type_with_an_output_head_is_accounted_for():
    import transformers
    from transformers.models.auto import modeling_auto as auto

    heads = {
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }
    known = {*ARCHITECTURES, *REFUSED, *UNTABLED, *SEVERAL}
    inner = {name: transformers.AutoConfig.for_model(name).get_text_config().model_type for name in heads - known}
    assert not {name: of for name, of in inner.items() if of not in known}


@pytest.mark.parametrize("name", ["squeezebert", "xlm", "reformer"])
def test_refused_types_are_read_by_module(name):
    source = registry.models.get("random").function(config=tiny_config(name))
    with pytest.raises(BadInput, match=rf"no blocks are known in {name} \({REFUSED[name]}\), got 'resid_post@0'; name"):
        expand(["resid_post"], "all", source)
    assert expand(["module:embeddings"], "all", source)


def test_the_command(repsim):
    code, out, err = repsim("list", "architecture")
    assert code == 0, err
    lines = dict(line.split(maxsplit=1) for line in out.splitlines()[2:])
    assert lines["llama"] == "all"
    assert lines["cohere"] == "all but resid_mid (its attention and MLP run in parallel)"
    assert lines["mixtral"].startswith("all but mlp_pre mlp_post (its MLP is a mixture of experts")
    assert lines["mixtral"].endswith("; also router")
    assert lines["t5"] == "encoder: all; decoder: all; also cross_out"
    assert lines["jamba"].startswith("all; in some blocks not attn_out q k v z pattern (the block has no attention)")
    assert lines["xlm"] == "its blocks are not modules"


@pytest.mark.slow
def test_a_run_of_an_encoder_decoder_and_a_recurrent_model(repsim, newest, tokenizer_folder):
    from helpers.recorded import recorded

    entries = {
        "t5": f"{{kind: random, tokenizer: {tokenizer_folder}, hook_points: [encoder.resid_post, decoder.cross_out@1], "
        "config: {model_type: t5, vocab_size: 512, d_model: 32, d_kv: 8, d_ff: 48, num_layers: 2, num_heads: 4}}",
        "mamba": f"{{kind: random, tokenizer: {tokenizer_folder}, "
        "config: {model_type: mamba, vocab_size: 512, hidden_size: 32, num_hidden_layers: 2, state_size: 8}}",
        "whisper": "{kind: random, hook_points: [encoder.resid_post], config: {model_type: whisper}}",
    }
    given = {name: f"+model.{name}={entry}" for name, entry in entries.items()}
    words = ["run", "-q", "data=embedded", "model=[]", "measure=[cka]", "extract.sequences=64", "extract.length=32"]
    code, _, err = repsim(*words, given["t5"], given["mamba"])
    assert code == 0, err
    layers = {m["rows"]["model"]: m["rows"]["layers"] for m in recorded(newest())["measures"][0]["matrices"]}
    assert layers == {
        "t5": ["encoder.resid_post@0", "encoder.resid_post@1", "decoder.cross_out@1"],
        "mamba": ["resid_post@0", "resid_post@1"],
    }
    code, _, err = repsim(*words, given["whisper"])
    assert code == 2
    assert "model.whisper: a model of sound (whisper) cannot read text" in err
