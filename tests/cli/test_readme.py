"""The commands of the README: those of `repsim run` are planned, the others run."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

README = (Path(__file__).parents[2] / "README.md").read_text()


def commands():
    """Every `$ repsim ...` of a console block, as words."""
    for block in re.findall(r"```console\n(.*?)```", README, re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[0] == "repsim":
                yield words[1:]


COMMANDS = list(commands())


def test_every_command_is_read():
    assert len(COMMANDS) == README.count("\n$ repsim ")
    assert {words[0] for words in COMMANDS} >= {"run", "list", "show", "plot", "compare", "report", "measure", "doctor"}


@pytest.fixture
def place(tmp_path, tiny_folder, monkeypatch):
    """A working folder with what the README calls corpus.txt, activations.npz, X.npy, Y.npy, DIR and ID."""
    from repsim_cli.registry import data

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("repsim_cli.doctor.SIDE", 64)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    Path("corpus.txt").write_text("\n\n".join(data.get("embedded_text").function(split="validation").documents()))
    np.savez("activations.npz", a=x, b=x + rng.normal(size=x.shape))
    np.save("X.npy", x)
    np.save("Y.npy", x @ rng.normal(size=(4, 4)))
    shutil.copytree(tiny_folder("gpt_neox"), "DIR")
    shutil.copytree(tiny_folder("gpt2"), "OTHER")


@pytest.mark.parametrize("words", [w for w in COMMANDS if w[0] == "run"], ids=" ".join)
def test_planned(repsim, place, tmp_path, words):
    code, out, err = repsim(*words, "dry_run=true")
    assert (code, err) == (0, "")
    assert out.startswith("plan of ")
    assert not (tmp_path / "outputs").exists()


MAPS = ("study=attention", "data=embedded_sentences", "extract=attention", "measure=[attention_js]")
ROWS = ("measure=[cka]",)
SEVERAL = ("measure=[cka,procrustes,mutual_knn]",)  # which agreement needs
NAMES = {
    "A": "A",
    "B": "B",
    "latest": "z",
    "tiny_pythia_cka": "tiny_pythia_cka",
}  # of runs that began together the last


@pytest.mark.parametrize("words", [w for w in COMMANDS if w[0] != "run"], ids=" ".join)
def test_run(repsim, finished, place, tmp_path, words):
    """The runs that a command names are there."""
    if words[0] == "convert":
        weights = Path("DIR").rename("ID") / "model.safetensors"
        torch.save(load_file(weights), "ID/pytorch_model.bin")
        weights.unlink()
    for name in NAMES.keys() & {*words}:
        measured = MAPS if "--heads" in words else SEVERAL if words[0] == "analyse" else ROWS
        run = finished("model=[tiny_a,tiny_b]", *measured, "extract.sequences=10")
        shutil.copytree(run, tmp_path / "outputs" / NAMES[name])
    code, out, err = repsim(*words)
    assert code == 0, err
    assert out


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_python(place, block):
    """The blocks of Python, on models, texts and arrays of one's own."""
    from transformers import AutoModel

    x = np.random.default_rng(0).normal(size=(60, 4))
    net = torch.nn.ModuleDict({"layer1": torch.nn.ModuleDict({"conv2": torch.nn.Conv2d(3, 4, 3)})})
    net.forward = lambda images: net["layer1"]["conv2"](images)
    given = {
        "x": x,
        "y": x + 1,
        "model": AutoModel.from_pretrained("OTHER"),
        "texts": Path("corpus.txt").read_text().split("\n\n"),
        "net": net,
        "loader": [torch.randn(8, 3, 6, 6), torch.randn(8, 3, 6, 6)],
    }
    exec(block, given)
