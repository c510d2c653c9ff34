"""The hub's own loading code on a fake cache: ids, revisions, formats."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from helpers.native import legacy_folder, perturbed_solu
from helpers.tiny import TINY

from repsim_cli.models.architectures import LENS


@pytest.mark.slow
def test_hub_ids_and_revisions_on_a_fake_cache(tiny_folder, tmp_path):
    """The real loading code, on a cache in the hub's layout: two revisions of one id give two sets of weights."""
    for step, commit in (("step1", "a" * 40), ("step2", "b" * 40)):
        repository = tmp_path / "models--EleutherAI--pythia-tiny"
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / step).write_text(commit)
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in tiny_folder("gpt_neox", seed=int(step[-1])).iterdir():
            (snapshot / file.name).write_bytes(file.read_bytes())
    script = (
        "import json\n"
        "from repsim_cli.base import registry\n"
        "make = registry.models.get('transformers').function\n"
        "out = []\n"
        "for step in ('step1', 'step2'):\n"
        "    source = make(hub='EleutherAI/pythia-tiny', revision=step)\n"
        "    total = float(sum(p.double().sum() for p in source.load(False).parameters()))\n"
        "    out.append([total, len(source.tokenizer()), source.identity()])\n"
        "try:\n"
        "    make(hub='EleutherAI/pythia-tiny', revision='step3')\n"
        "except Exception as error:\n"
        "    out.append(str(error))\n"
        "print(json.dumps(out))"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    one, two, missing = json.loads(done.stdout.splitlines()[-1])
    assert one[0] != two[0]
    assert one[1] == two[1] == 400
    assert (one[2]["commit"], two[2]["commit"]) == ("a" * 40, "b" * 40)
    assert one[2]["weights_hash"] != two[2]["weights_hash"]
    assert "hub: the model could not be read, got 'EleutherAI/pythia-tiny@step3'" in missing


def on_a_fake_hub(root, repositories, script):
    """The last line that a script prints, as JSON, on a cache in the hub's layout: {id: {revision: folder}}."""
    for name, revisions in repositories.items():
        repository = root / ("models--" + name.replace("/", "--"))
        (repository / "refs").mkdir(parents=True)
        for number, (revision, folder) in enumerate(revisions.items()):
            commit = "abcdef"[number] * 40
            (repository / "refs" / revision).write_text(commit)
            shutil.copytree(folder, repository / "snapshots" / commit)
    environment = {**os.environ, "HF_HUB_CACHE": str(root), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nightly
def test_every_architecture_and_format_on_a_fake_hub(tiny_folder, tokenizer_folder, tmp_path):
    """Ids and revisions, by both kinds; an old model of TransformerLens names its tokenizer by an id of its own."""
    repositories = {f"tiny/{kind}": {"main": tiny_folder(kind), "step2": tiny_folder(kind, seed=2)} for kind in TINY}
    _, state = perturbed_solu()
    repositories["NeelNanda/SoLU_2L"] = {"main": legacy_folder(tmp_path / "legacy", state)}
    repositories["NeelNanda/tiny-tokenizer"] = {"main": tokenizer_folder}
    script = (
        "import json\n"
        "from repsim_cli.base import registry\n"
        "out = {}\n"
        f"for kind, names in (('transformers', {list(TINY)}), ('transformer_lens', {list(LENS)})):\n"
        "    make = registry.models.get(kind).function\n"
        "    for name in names:\n"
        "        found = []\n"
        "        for revision in (None, 'step2'):\n"
        "            source = make(hub=f'tiny/{name}', revision=revision)\n"
        "            module = source.load(False)\n"
        "            total = sum(float(p.double().sum()) for p in module.parameters() if p.isfinite().all())\n"
        "            found.append([total, len(source.tokenizer()), source.identity()['commit'][0]])\n"
        "        out[f'{kind} {name}'] = found\n"
        "old = make(hub='NeelNanda/SoLU_2L')\n"
        "out['old'] = [old.model_type, len(old.tokenizer()), float(old.load(False).bridge.blocks[1].mlp.ln.weight.sum())]\n"
        "print(json.dumps(out))"
    )
    found = on_a_fake_hub(tmp_path / "hub", repositories, script)
    old = found.pop("old")
    assert old[:2] == ["native solu_ln", 400]
    assert old[2] == pytest.approx(float(state["blocks.1.mlp.ln.weight"].sum()))
    assert len(found) == len(TINY) + len(LENS)
    for name, (main, step) in found.items():
        assert main[0] != step[0], name
        assert (main[1], step[1]) == (400, 400), name
        assert (main[2], step[2]) == ("a", "b"), name
