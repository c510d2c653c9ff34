"""What the cache keeps for long has a number CODE in its key: it follows the code."""

import ast
import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
script = runpy.run_path(str(ROOT / "scripts" / "codes"))
KEPT = json.loads(script["TABLE"].read_text())


@pytest.mark.parametrize("module", script["MORE"])
def test_a_number_follows_its_code(module):
    number, files = script["codes"]()[module]
    assert [number, files] == KEPT[module], (
        f"{module}: what it makes depends on code that changed; where it makes other content now, raise its CODE "
        f"(it is {number}); then run scripts/codes --write"
    )


def test_every_number_that_is_kept_by_hand_is_in_the_table():
    found = {
        ".".join(file.relative_to(ROOT / "repsim_cli").with_suffix("").parts)
        for file in (ROOT / "repsim_cli").rglob("*.py")
        if re.search(r"^(CODE|TABLES|VERSION|REVISION) = \d", file.read_text(), re.M)
    }
    assert found == KEPT.keys() == script["MORE"].keys()


def test_a_number_stands_for_all_the_code_that_uses_it(edited):
    """Every module that imports a CODE, and what models run in, is part of its code."""
    for file in (ROOT / "repsim_cli").rglob("*.py"):
        user = ".".join(file.relative_to(ROOT / "repsim_cli").with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and "CODE" in [alias.name for alias in node.names]:
                assert user in script["MORE"][node.module.removeprefix("repsim_cli.")]
    before = script["codes"]()
    for module, changed in {
        "models.transformers": {"activations.stored", "training.finetune", "training.series", "training.language"},
        "training.loop": before.keys()
        - {"activations.stored", "studies.stitching.train", "studies.modular_sums.train"},
        "training.encoder": {"training.finetune", "training.language"},
        "report.record": set(),
    }.items():
        edited(f"repsim_cli.{module}")
        after = script["codes"]()
        moved = {name for name in after if after[name] != before[name]}
        assert moved >= changed, module
        assert changed or not moved, module
        before = after
