"""`repsim describe model MODEL`: facts and hook points of any model on the disk, and one line for what is none."""

import json

import pytest
from helpers.tiny import TINY

from repsim_cli.activations.hook_points import IN_BLOCK, OUTSIDE
from repsim_cli.cli.anatomy import describe_anatomy, list_hook_points, open_model


def told(text):
    """The lines of a description by their names, with continued lines joined."""
    found: dict[str, str] = {}
    name = ""
    listed = False  # under `lacking`
    for line in text.splitlines()[1:]:
        listed = line.startswith("  lacking") or (listed and line.startswith("    "))
        if line.startswith("    ") and not listed:
            found[name] += f" {line.strip()}"
        else:
            name, _, rest = line.strip().partition(": ")
            found[name] = rest.strip()
    return found


def test_a_folder(repsim, tiny_folder):
    code, out, err = repsim("describe", "model", str(tiny_folder("llama")))
    assert (code, err) == (0, "")
    found = told(out)
    assert found["type"] == "llama, reads text"
    assert found["blocks"] == "3 of width 32, in layers"
    assert found["heads"] == "4 of 8 features, 8 of them rotated, 2 for keys and values"
    assert found["context"] == "64 places"
    assert "(words and spans); 512 embeddings" in found["input"]
    assert found["hook points"].split(", ")[:3] == ["embed", "resid_pre", "resid_post"]
    assert found["by head"] == "q, k, v, z, pattern, as q@0.h0 or q.h*"
    assert found["router"] == "its MLP is not a mixture of experts"
    assert "layers.*.self_attn.q_proj" in found["modules (module:NAME)"].split(", ")
    assert "layers" not in found["modules (module:NAME)"].split(", ")


@pytest.mark.parametrize("kind", TINY)
def test_every_hook_point_is_there_or_lacking_with_a_reason(tiny_folder, kind):
    source = open_model(str(tiny_folder(kind)))
    assert source.architecture is not None
    has, lacks = list_hook_points(source, None, source.architecture)
    assert sorted([name.split(" ")[0] for name in has] + list(lacks)) == sorted((*OUTSIDE, *IN_BLOCK))
    assert all(lacks.values())


def test_parts_that_are_missing_are_told(tmp_path, tiny_folder):
    """A folder without a tokenizer; no weights are needed to say what it lacks."""
    import shutil

    folder = shutil.copytree(tiny_folder("gpt_neox"), tmp_path / "mine")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    found = told(describe_anatomy(str(folder)))
    assert found["input"].startswith("not usable: path: no tokenizer in it, got")
    assert found["resid_mid"] == "its attention and MLP run in parallel"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tiny_a", "type: gpt_neox, reads text"),
        ("tiny_a_series", "type: gpt_neox, reads text"),
        ("feather_berts", "labels: contradiction, entailment, neutral"),
        ("pythia_70m", "parameters: 44,670,976 of the backbone"),
        ("pythia_70m", "input: the tokenizer of "),
        ("EleutherAI/pythia-70m-deduped", "blocks: 6 of width 512, in layers"),
        ("gelu_tiny_3l", "blocks: 3 of width"),
        ("modsum_tiny_0", "input: numbers"),
    ],
)
def test_names(name, line):
    assert f"  {line}" in describe_anatomy(name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model", "tiny_c"], "error: MODEL: neither a model nor a folder, got 'tiny_c'; did you mean 'tiny_b'"),
        (["model", "/no/folder"], "error: path: no such folder, got '/no/folder'; check the path"),
        (
            ["model", "EMPTY"],
            "error: path: no config.json in it, got 'EMPTY'; give a folder in the transformers format",
        ),
        (["model", "BROKEN"], "error: path: config.json cannot be used, got 'BROKEN/config.json' "),
        (["model", "STRANGE"], "error: path: unknown architecture, got model_type 'lama' in "),
        (["model", "nobody/nothing"], "error: hub: the model could not be read, got 'nobody/nothing'"),
        (["cka", "tiny_a"], "error: repsim describe: two names, got cka tiny_a; a model is: model NAME"),
    ],
)
def test_bad_names(repsim, tmp_path, words, message):
    for name, content in {"EMPTY": None, "BROKEN": "{", "STRANGE": json.dumps({"model_type": "lama"})}.items():
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "config.json").write_text(content)
        words = [str(tmp_path / name) if word == name else word for word in words]
        message = message.replace(name, str(tmp_path / name))
    code, out, err = repsim("describe", *words)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1
