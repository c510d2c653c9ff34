"""References that `repsim verify --save` keeps: what they hold, and hostile and damaged ones."""

import json

import pytest
import safetensors.torch
import torch
from torch import nn

import repsim_cli
from repsim_cli.api.verify import save_reference
from repsim_cli.base.errors import BadInput


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tiny_a",), "CANDIDATE: none is named"),
        (
            ("tiny_a", "tiny_a", "--save", "x.safetensors"),
            "--save: writes the reference alone, got the candidate 'tiny_a'",
        ),
        (("tiny_a", "--save", "x.npz"), "--save: not a new .safetensors file in a folder that exists, got 'x.npz'"),
    ],
)
def test_bad_input_of_save(repsim, words, message):
    code, _, err = repsim("verify", *words)
    assert (code, message in err) == (2, True)


def test_damaged_references_are_refused(repsim, tmp_path):
    file = tmp_path / "reference.safetensors"
    safetensors.torch.save_file({"x": torch.zeros(1)}, file, {"repsim_verify": '{"schema": 9}'})
    assert "not of this version, got schema 9; save it again with --save" in repsim("verify", file, "tiny_a")[2]
    safetensors.torch.save_file({"x": torch.zeros(1)}, file, {"repsim_verify": "{}"})
    assert "not of this version, got schema None" in repsim("verify", file, "tiny_a")[2]


def test_errors_of_texts_name_the_flag(repsim, tmp_path):
    code, _, err = repsim("verify", "tiny_a", "tiny_b", "--text", tmp_path)
    assert code == 2
    assert f"error: --text: not a file, got '{tmp_path}'; name one file" in err


def test_a_saved_reference_has_its_own_texts(repsim, tmp_path):
    file, text = tmp_path / "reference.safetensors", tmp_path / "mine.txt"
    text.write_text("words")
    repsim("verify", "tiny_a", "--save", file)
    assert file.stat().st_mode == text.stat().st_mode  # others can read it too
    code, _, err = repsim("verify", file, "tiny_a", "--text", text)
    assert code == 2
    assert "--text: a saved reference has its own" in err


def test_a_backbone_is_saved_for_texts_alone():
    with pytest.raises(BadInput, match="reference: it reads no tokens, got Linear"):
        save_reference(nn.Linear(2, 2), "unused.safetensors")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A reference in a file: its facts and tensors."""
    file = save_reference("tiny_a", tmp_path_factory.mktemp("saved") / "tiny.safetensors", ["Some words of a text."])
    with safetensors.safe_open(file, "pt") as opened:
        facts = json.loads(opened.metadata()["repsim_verify"])
        return facts, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def test_what_a_saved_reference_holds(saved):
    facts, tensors = saved
    assert facts["versions"]["torch"] == torch.__version__
    given, part = tensors["0/given/input_ids"], "0/block 2/inside/attention.query_key_value"
    assert tensors["0/block 2/out/"].shape == (*given.shape, 64)
    assert tensors[part].shape == (*given.shape, 192)
    assert 0 < tensors[part.replace("inside", "inside_rounding")].max() < 1e-4
    assert not [name for name in tensors if name.startswith("1/") and "inside" in name]


# what is done to the facts or the tensors, and what is said
HOSTILE = {
    "precision": (lambda facts, _: facts.update(dtype="load"), "the precision load"),
    "no mapping": (lambda facts, _: facts.update(weights=[1]), "weights: not a mapping"),
    "no text": (lambda facts, _: facts.update(label=7), "label: "),
    "sums": (lambda facts, _: facts["weights"].update(more=[0.0]), "no inputs, or weights without their three sums"),
    "no inputs": (lambda facts, _: facts.update(batches=[]), "no inputs, or weights without their three sums"),
    "names": (lambda _, tensors: tensors.update(x=torch.zeros(1)), "not enough values to unpack"),
    "mask": (
        lambda _, tensors: tensors.update({"0/given/": torch.zeros(2)}),
        "inputs of 0 that are not (rows, tokens)",
    ),
    "output": (lambda _, tensors: tensors.pop("0/logits/out/"), "no output of inputs 0"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_references_are_one_line(saved, tmp_path, what):
    facts, tensors = json.loads(json.dumps(saved[0])), dict(saved[1])
    change, message = HOSTILE[what]
    change(facts, tensors)
    file = tmp_path / "hostile.safetensors"
    safetensors.torch.save_file(tensors, file, {"repsim_verify": json.dumps(facts)})
    with pytest.raises(
        BadInput, match="a reference of --save that cannot be read, got 'hostile.safetensors'"
    ) as raised:
        repsim_cli.verify(file, "tiny_a")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_deep_document_is_one_line(tmp_path):
    file = tmp_path / "deep.safetensors"
    safetensors.torch.save_file({"x": torch.zeros(1)}, file, {"repsim_verify": "[" * 100_000})
    with pytest.raises(BadInput, match="a reference of --save that cannot be read, got 'deep.safetensors'"):
        repsim_cli.verify(file, "tiny_a")


def test_quick_is_refused_of_a_saved_reference(tmp_path):
    file = save_reference("tiny_a", tmp_path / "tiny.safetensors", ["Some words of a text."])
    with pytest.raises(BadInput, match="quick: a saved reference has its own rounding"):
        repsim_cli.verify(file, "tiny_a", quick=True)
