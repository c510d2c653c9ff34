"""The code that numbers come from: what a module imports, however it says so, and nothing else."""

import py_compile
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from repsim_cli.base import closure, environment, registry
from repsim_cli.base.closure import collect_code, collect_function_code

ROOT = Path(__file__).parents[2]
FILES = {
    "__init__": "from .kernel import f\nfrom .other import g\n__all__ = ['f', 'g']\n",
    "kernel": "def f(x):\n    return x + 1\n",
    "other": "def g(x):\n    return x\n",
    "lazy": "def __getattr__(name):\n    from mine import kernel\n    return getattr(kernel, name)\n",
    "parts/__init__": "",
    "parts/kernel": "from mine.kernel import f\n",
}


@pytest.fixture(autouse=True)
def anew():
    """Files are read again."""
    cached = (
        closure.collect_code,
        closure._parse_module,
        closure._place,
        closure._is_inside,
        closure._find_module_folder,
    )
    for function in cached:
        function.cache_clear()
    yield lambda: [function.cache_clear() for function in cached]
    for function in cached:
        function.cache_clear()


@pytest.fixture
def written(tmp_path, monkeypatch, anew):
    """written(FILE=TEXT, ...): the package `mine` with these files -> the hash of `mine.measure`."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(module: str = "mine.measure", **files: str) -> str | None:
        for name, text in files.items():
            file = tmp_path / "mine" / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        anew()
        code = collect_code(module)
        return code and code.files

    write(**FILES)
    return write


IMPORTS = {
    "absolute": "from mine.kernel import f",
    "a module": "from mine import kernel",
    "in a function": "def h():\n    from mine.kernel import f",
    "in a branch": "try:\n    import numba\nexcept ImportError:\n    from mine.kernel import f",
    "relative": "from .kernel import f",
    "relative, a module": "from . import kernel as k",
    "relative, from a folder": "from .parts.kernel import f",
    "under another name": "import mine.kernel as k",
    "by its full name": "import mine.kernel\nmine.kernel.f(1)",
    "an attribute of the package": "import mine as m\nm.kernel.f(1)",
    "an attribute of a package in it": "from mine import parts\nparts.kernel.f(1)",
    "passed on by the package": "from mine import f",
    "passed on, as an attribute": "import mine\nmine.f(1)",
    "passed on by a module": "from mine.parts.kernel import f",
    "a star": "from mine.kernel import *",
    "a star of the package": "from mine import *",
    "a string": "import importlib\nimportlib.import_module('mine.kernel')",
    "a relative string": "import importlib\nimportlib.import_module('.kernel', __package__)",
    "a table of strings": "import importlib\nWHERE = {'f': 'mine.kernel:f'}",
    "where names are looked up": "from mine.lazy import f",
    "through a cycle": "from mine.cycle import h",
}


@pytest.mark.parametrize("way", IMPORTS)
def test_what_is_imported_counts(written, way):
    before = written(
        measure=IMPORTS[way] + "\n", cycle="import mine.measure\nfrom mine.kernel import f\ndef h(x): ...\n"
    )
    assert before is not None
    assert written(kernel=FILES["kernel"].replace("+ 1", "- 1")) not in (before, None)
    assert written(kernel=FILES["kernel"]) == before


def test_what_is_not_imported_does_not_count(written):
    text = "from typing import TYPE_CHECKING\nfrom mine import f\nif TYPE_CHECKING:\n    from mine.other import g\n"
    before = written(measure=text)
    assert written(other="def g(x):\n    return 2 * x\n") == before
    assert written(__init__=FILES["__init__"] + "from .parts import kernel as k\n") == before
    assert written(measure=text.replace("import g", "import g as h")) == before
    assert written(measure=text + "else:\n    from mine.other import g\n") != before


def test_what_the_package_makes_counts(written):
    before = written(measure="from mine import f\n", __init__="from .kernel import f\nf = f\n")
    assert written(__init__="from .kernel import f\nf = [f]\n") != before


def test_words_about_the_code_do_not_count(written):
    before = written(measure="from .kernel import f\n", kernel='def f(x):\n    return {"a": -x}\n')
    after = '"""Words."""\n\n\ndef f(x):  # a comment\n    """More."""\n    return {\n        "a": -x,\n    }\n'
    assert written(kernel=after) == before
    assert written(kernel=after.replace('"a"', '"b"')) != before


def test_the_place_and_order_do_not_count(written, tmp_path, monkeypatch, anew):
    before = written(measure="from .kernel import f\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine").rename(tmp_path / "elsewhere" / "mine")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    assert written() == before
    assert collect_code("mine.measure", "mine.kernel") is collect_code("mine.measure", "mine.kernel")


@pytest.mark.parametrize("how", ["zip", "compiled", "removed", "not Python", "too deep", "a namespace"])
def test_files_that_cannot_be_read(written, tmp_path, monkeypatch, anew, how):
    folder = tmp_path / "mine"
    assert written(measure="from .parts.kernel import f\nfrom .kernel import f\n") is not None
    if how == "zip":
        with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
            for file in folder.rglob("*.py"):
                archive.write(file, file.relative_to(tmp_path))
        folder.rename(tmp_path / "gone")
        monkeypatch.syspath_prepend(tmp_path / "mine.zip")
    elif how == "compiled":
        py_compile.compile(str(folder / "kernel.py"), cfile=str(folder / "kernel.pyc"))
        (folder / "kernel.py").unlink()
    elif how == "removed":
        assert closure._place("mine.kernel")
        closure._parse_module.cache_clear()
        collect_code.cache_clear()
        (folder / "kernel.py").unlink()
        assert collect_code("mine.measure") is None
        return
    elif how == "a namespace":  # has no file, and its modules have
        (folder / "parts" / "__init__.py").unlink()
        before = written()
        assert before is not None
        assert written(**{"parts/kernel": "from mine.other import g as f\n"}) not in (before, None)
        return
    else:
        (folder / "kernel.py").write_text("a b" if how == "not Python" else f"x = {'-' * 5000}1\n")
    assert written() is None


def test_a_file_without_a_package_has_its_folder(tmp_path, monkeypatch, anew):
    """A file beside installed packages has itself alone."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lone.py").write_text("import numpy\nfrom helper import f\nfrom local.kernel import g\n")
    (tmp_path / "local").mkdir()
    hashes = set()
    for helper, kernel in (("1", "1"), ("2", "1"), ("2", "2")):
        (tmp_path / "helper.py").write_text(f"f = {helper}\n")
        (tmp_path / "local" / "kernel.py").write_text(f"g = {kernel}\n")
        anew()
        hashes.add(collect_code("lone").files)
    assert len(hashes) == 3
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (tmp_path / "lone.py").rename(installed / "lone.py")
    monkeypatch.syspath_prepend(installed)
    anew()
    before = collect_code("lone")
    (tmp_path / "helper.py").write_text("f = 3\n")
    anew()
    assert before == collect_code("lone")
    assert before.packages == {"numpy", "helper", "local"}


def test_packages_and_their_versions(written, anew, monkeypatch):
    """Packages that change numbers count in files of this package, all of them in files of others."""
    gromov = collect_code("repsim_cli.measures.gromov")
    assert gromov.packages == {"torch", "numpy", "scipy", "pot", "numba"}
    assert collect_code("repsim_cli.measures.topology").packages >= {"gudhi", "ripser"}
    assert "numba" not in collect_code("repsim_cli.measures.neighbours").packages
    assert gromov.key["numba"] == environment.read_version("numba")
    written(measure="import math, xxhash\nimport tqdm.auto\nfrom repsim_cli.base.registry import measures\n")
    assert collect_code("mine.measure").packages - {"torch", "numpy"} == {"xxhash", "tqdm"}  # torch of measures/base.py
    monkeypatch.setattr(environment, "read_version", {"torch": "3.0"}.get)
    assert gromov.key == {"files": gromov.files, **dict.fromkeys(gromov.packages), "torch": "3.0"}


def test_every_package_that_measures_import_is_known():
    """A new one changes numbers, and belongs to NUMERIC, or it does not."""
    found = {name: entry.function for name in registry.measures.names() if (entry := registry.measures.get(name))}
    collect_function_code(*found.values())
    used = {name.partition(".")[0] for name in closure_files() for name in closure._parse_module(name).names}
    other = {"jaxtyping", "joblib", "psutil", "pydantic", "xxhash"}
    assert used - sys.stdlib_module_names - {closure.HERE} - closure.NUMERIC.keys() == other
    assert all(metadata.version(package) for package in closure.NUMERIC.values() if package != "repsim-cli")


def closure_files() -> list[str]:
    """The modules of all measures and what these import."""
    seen, original = [], closure._parse_module

    def noted(module: str):
        seen.append(module)
        return original(module)

    functions = [registry.measures.get(name).function for name in registry.measures.names()]
    collect_code.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closure, "_parse_module", noted)
        assert collect_function_code(*functions) is not None
    return seen


def test_functions_without_a_file_have_no_code():
    made: dict = {"__name__": "repsim_cli.measures.cca"}
    exec("def f(): ...", made)
    assert collect_function_code(made["f"]) is None
    assert collect_function_code(len) is None
    assert collect_function_code(collect_code) is not None


def test_nothing_is_imported_to_know_the_code():
    """What is imported when it is used may be heavy, or missing."""
    code = (
        "import sys\nfrom repsim_cli.base.closure import collect_code\nbefore = {*sys.modules}\n"
        "assert collect_code('repsim_cli.measures.gromov', 'repsim_cli.engine.matrices')\n"
        "assert {*sys.modules} - before <= {'warnings'}, {*sys.modules} - before\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr


def test_code_reads_the_same_under_other_versions_of_python():
    """tests/codes.json holds hashes; versions differ in what they say of empty lists and of types."""
    tree = closure.ast.parse("def f(x, *, a=None): return f'{x!r} b' 'c', [], -1.0, b''\n")
    assert closure._dump_code(tree, closure.defaultdict(list)) == (
        "Module(body=[FunctionDef(name='f',args=arguments(args=[arg(arg='x')],kwonlyargs=[arg(arg='a')],"
        "kw_defaults=[Constant()]),body=[Return(value=Tuple(elts=[JoinedStr(values=[FormattedValue(value=Name(id='x'),"
        "conversion=114),Constant(value=' bc')]),List(),UnaryOp(op=USub(),operand=Constant(value=1.0)),"
        "Constant(value=b'')]))])])"
    )
