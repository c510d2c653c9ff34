"""The house: imports go one way, heavy libraries stay out of start-up, nothing unsafe is called."""

import ast
import doctest
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

from helpers.house import imports, parts

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "repsim_cli"
ORDER = re.findall(r"(\w+)/", (ROOT / "CONTRIBUTING.md").read_text().split("\n    base/")[1].split("\n\n")[0])
ORDER = ["base", *ORDER, "__main__"]


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def sources():
    return [file for file in sorted(PACKAGE.rglob("*.py")) if file != PACKAGE / "__init__.py"]


def test_a_room_imports_only_from_the_rooms_above_it():
    assert {room(file) for file in sources()} == {*ORDER}
    assert len(ORDER) == 17
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sources()
        for name in imports(file)
        if name.startswith("repsim_cli.") and (parts := name.split("."))[1] in ORDER
        if ORDER.index(parts[1]) > ORDER.index(room(file))
    ]
    assert not wrong


def test_who_may_import_hydra_and_omegaconf():
    for file in sources():
        names = {name.split(".")[0] for name in imports(file)}
        assert "hydra" not in names or room(file) == "cli" or file.name in ("compose.py", "guard.py"), file
        assert "omegaconf" not in names or room(file) in ("cli", "config"), file
        assert not [name for name in imports(file) if name.startswith("hydra._internal")], file


def test_labels_reach_a_terminal_through_one_function():
    """`say`; and the lines that a terminal redraws."""
    calls = [(f, n) for f in sources() for n in parts(f) if isinstance(n, ast.Call)]
    assert {f.name for f, n in calls if ast.unparse(n.func) == "print"} == {"terminal.py", "follow.py"}


def test_nothing_unsafe_is_called():
    found = [n for f in sources() for n in parts(f) if isinstance(n, ast.Call)]
    calls = {ast.unparse(n.func) for n in found}
    assert not calls & {"eval", "exec", "pickle.load", "pickle.loads", "hydra.utils.instantiate"}
    loads = [n for n in found if ast.unparse(n.func) == "torch.load"]
    assert all("weights_only=True" in [f"{k.arg}={ast.unparse(k.value)}" for k in n.keywords] for n in loads)
    text = "".join(file.read_text() for file in sources())
    assert "trust_remote_code=True" not in text
    assert "allow_pickle=True" not in text
    assert "_target_" not in "".join(file.read_text() for file in (ROOT / "conf").rglob("*.yaml"))


def test_start_up_is_light():
    """Help, list, show and plot need neither torch nor Hydra; nothing of them is imported before it is used."""
    script = (
        "import json, sys\n"
        "import repsim_cli.cli, repsim_cli.figures, repsim_cli.report, repsim_cli.runs.results\n"
        "repsim_cli.cli.commands.build_parser().format_help()\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert not {"torch", "hydra", "omegaconf", "transformers", "matplotlib", "scipy", "pydantic"} & set(json.loads(out))


def test_help_starts_without_arrays():
    """Imports of numpy take longer than all the rest."""
    script = "import sys, repsim_cli.cli\nrepsim_cli.cli.commands.build_parser().format_help()\nassert not {'torch', 'transformer_lens', 'numpy'} & {*sys.modules}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr


def test_findings_need_neither_torch_nor_models():
    """An analysis reads the run folder alone. scipy.stats takes a second to import: only who uses it waits for it."""
    script = (
        "import sys\nfrom repsim_cli.base import registry\nassert registry.analyses.names() and registry.claims.names()\n"
        "assert not {'torch', 'transformers', 'hydra', 'omegaconf'} & {name.split('.')[0] for name in sys.modules}\n"
        "assert 'scipy.stats' not in sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr


def test_no_extra_is_needed_to_know_what_there_is():
    code = """
import sys
sys.modules.update(dict.fromkeys(("numba", "gudhi", "ripser", "submitit", "beartype", "hypothesis")))
from repsim_cli.base import registry
from repsim_cli.measures import assignment
known = [part for part in vars(registry).values() if isinstance(part, registry.Registry)]
assert len(known) > 3
assert all(part.names() for part in known)
assert assignment.load_compiled() is None
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert found.returncode == 0, found.stderr


def test_docstring_examples():
    """The examples in all docstrings hold."""
    counts = {file: count for file in sources() if (count := file.read_text().count(">>> "))}
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in counts]
    results = [doctest.testmod(importlib.import_module(name)) for name in names]
    assert [result.attempted for result in results] == [*counts.values()]
    assert counts
    assert not sum(result.failed for result in results)


def test_every_package_says_who_uses_it():
    """A comment beside each requirement names a file or folder that is there."""
    declared = (ROOT / "pyproject.toml").read_text().split("\ndependencies = [")[1].split("[project.scripts]")[0]
    lines = [line for line in declared.splitlines() if re.search(r'"[A-Za-z0-9_.\[\],-]+(>=[^"]*)?"', line)]
    assert len(lines) > 40
    for line in lines:
        places = re.findall(r"[\w./-]+", line.partition("#")[2])
        assert any((folder / place).exists() for place in places for folder in (ROOT, PACKAGE)), line
