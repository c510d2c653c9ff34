"""The recipes of docs/verify.md run in order; the command of its CI recipe is among them."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from transformers import AutoModelForCausalLM

PAGE = (Path(__file__).parents[3] / "docs" / "verify.md").read_text()


@pytest.mark.slow
def test_recipes(repsim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("Some words of a text, and then a few more words of it. " * 30)
    from repsim_cli.models.checkpoints import SHIPPED

    shutil.copytree(SHIPPED / "tiny_a", "models/candidate")
    model = AutoModelForCausalLM.from_pretrained(SHIPPED / "tiny_a", attn_implementation="eager")
    ids = torch.arange(20, 52)
    with torch.no_grad():
        layers = model(input_ids=ids[None], output_hidden_states=True).hidden_states
    Path("states").mkdir()
    dump = {"hidden_states": torch.cat(layers).transpose(0, 1).contiguous(), "token_ids": ids}
    safetensors.torch.save_file(dump, "states/0.safetensors")
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    steps = [step for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S) for step in yaml.safe_load(text)]
    lines = [line for block in blocks for line in block.splitlines()]
    for line in [*lines, *(step["run"] for step in steps if "run" in step)]:
        command, *words = shlex.split(line)
        assert command == "repsim"
        code, out, err = repsim(*words)
        assert code == 0, err
        assert out.startswith(("IDENTICAL", "ROUNDING", "reference.safetensors"))
    assert Path("verify.xml").is_file()
