"""The code that numbers come from, for the keys of the cache: a module and all that it imports, read and never run.
Comments, docstrings and layout are not part of it, nor is the place of the package.
"""

import ast
import hashlib
import inspect
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from repsim_cli.base import environment

HERE = __name__.partition(".")[0]
# what numbers of this package depend on, by the name that is imported; of another package all that it imports counts
NUMERIC = {name: name for name in ("torch", "numpy", "scipy", "numba", "gudhi", "ripser", "transformers")}
NUMERIC |= {"ot": "pot", "sklearn": "scikit-learn", "transformer_lens": "transformer-lens"}
# what counts of every kind of node
FIELDS = {
    kind: tuple(name for name in kind._fields if name != "ctx")
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
DOTTED = re.compile(r"(\.?[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::\w+)?")  # MODULE or MODULE:NAME


class Code(NamedTuple):
    """files: a hash of them. packages: from elsewhere, that they import. strings: that stand in them."""

    files: str
    packages: frozenset[str]
    strings: frozenset[str]

    @property
    def key(self) -> dict[str, str | None]:
        """The part of a key of the cache that stands for the code; a package that is missing has no version."""
        return {"files": self.files, **{name: environment.read_version(name) for name in sorted(self.packages)}}


class File(NamedTuple):
    """names: dotted, that it imports. mentioned: strings that may be such. passed: the names that it only passes on,
    and where they are from."""

    digest: str
    names: set[str]
    mentioned: set[str]
    strings: set[str]
    passed: Mapping[str, set[str]]


@cache
def collect_code(*modules: str) -> Code | None:
    """The code of modules and of what they import, in functions too, at any depth, from this package and from the one
    that each belongs to (outside of packages: from its folder). None where a file cannot be read.

    Left out are what only type checkers import, files of which a name is taken that they import themselves, as of most
    `__init__`, and modules whose name is computed.
    """
    files: dict[str, File] = {}
    seen, todo = set(), [*modules]
    try:
        while todo:
            if (name := todo.pop()) in seen or not _is_inside(name, modules):
                continue
            seen.add(name)
            module, *rest = name.split(".")
            while rest and _place(f"{module}.{rest[0]}"):
                module = f"{module}.{rest.pop(0)}"
            file = _parse_module(module)
            if rest and rest[0] in file.passed:
                todo += [".".join([origin, *rest[1:]]) for origin in file.passed[rest[0]]]
            else:
                files[module] = file
                todo += file.names | file.mentioned
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    packages = {
        NUMERIC.get(top, top)
        for module, file in files.items()
        for top in {name.partition(".")[0] for name in file.names} - sys.stdlib_module_names
        if top in NUMERIC or not (module.partition(".")[0] == HERE or _is_inside(top, modules))
    }
    text = "".join(f"{module} {files[module].digest}\n" for module in sorted(files))
    strings = frozenset().union(*(file.strings for file in files.values()))
    return Code(hashlib.sha256(text.encode()).hexdigest(), frozenset(packages), strings)


def collect_function_code(*functions: Callable[..., Any]) -> Code | None:
    """The code of the modules that functions are written in; None where there is no file of one."""
    modules = set()
    for function in map(inspect.unwrap, functions):
        try:
            if not Path(inspect.getfile(function)).is_file():
                return None
        except TypeError:  # of a built-in
            return None
        spec = getattr(sys.modules.get(function.__module__), "__spec__", None)
        modules.add(getattr(spec, "name", function.__module__))
    return collect_code(*sorted(modules))


@cache
def _is_inside(name: str, modules: tuple[str, ...]) -> bool:
    top = name.partition(".")[0]
    beside = {_find_module_folder(module) for module in modules if "." not in module} - {None}
    return top in {HERE, *(module.partition(".")[0] for module in modules)} or bool(
        beside and _find_module_folder(top) in beside
    )


@cache
def _find_module_folder(top: str) -> Path | None:
    """The folder that a module or package is in; None where it was installed there, or there is none."""
    file, folders = _place(top) or (None, None)
    place = next(iter(folders or ()), file)
    return None if place is None or Path(place).parent.name.endswith("-packages") else Path(place).parent


@cache
def _place(module: str) -> tuple[str | None, list[str] | None] | None:
    """The file of a module and, of a package, the folders of its modules; None where there is no such module."""
    if (loaded := sys.modules.get(module)) is not None:
        folders = getattr(loaded, "__path__", None)
        return getattr(loaded, "__file__", None), folders and [*folders]
    parent, _, last = module.rpartition(".")
    folders = (_place(parent) or (None, None))[1] if parent else None
    spec = PathFinder.find_spec(last, folders) if folders or not parent else None
    return spec and (spec.origin, spec.submodule_search_locations and [*spec.submodule_search_locations])


@cache
def _parse_module(module: str) -> File:
    """Reads the source of a module, and the names in it. Raises OSError, SyntaxError or ValueError where there is
    none."""
    file, folders = _place(module) or (None, None)
    if file is None and folders is None:
        raise FileNotFoundError(module)
    with warnings.catch_warnings(action="ignore"):  # Python gave them when it compiled the file
        tree = ast.parse(Path(file).read_bytes() if file else "")  # a namespace has none
    package = (module if folders is not None else module.rpartition(".")[0]).split(".")
    nodes: dict[type, list[Any]] = defaultdict(list)
    text = _dump_code(tree, nodes)
    names, bound = set(), defaultdict(set)
    for alias in (alias for node in nodes[ast.Import] for alias in node.names):
        names.add(alias.name)
        top = alias.name.partition(".")[0]
        bound[alias.asname or top].add(alias.name if alias.asname else top)
    for node in nodes[ast.ImportFrom]:
        above = package[: len(package) - node.level + 1] if node.level else []
        source = ".".join([*above, *filter(None, [node.module])])
        for alias in node.names:
            origin = source if alias.name == "*" else f"{source}.{alias.name}"
            names.add(origin)
            bound[alias.asname or alias.name].add(origin)
    inner = {id(node.value) for node in nodes[ast.Attribute]}
    for node in nodes[ast.Attribute]:
        if id(node) not in inner:
            first, *rest = _split_attributes(node)
            names |= {".".join([origin, *rest]) for origin in bound.get(first, ())}
    strings = {node.value for node in nodes[ast.Constant] if isinstance(node.value, str)}
    dotted = {match[1] for string in strings if (match := DOTTED.fullmatch(string))}
    made = {node.id for node in nodes[ast.Name] if isinstance(node.ctx, ast.Store)}
    made |= {node.name for node in nodes[ast.FunctionDef] + nodes[ast.ClassDef]}
    return File(
        digest=hashlib.sha256(text.encode()).hexdigest(),
        names=names,
        mentioned={".".join([*package, name[1:]]) if name[0] == "." else name for name in dotted},
        strings=strings,
        passed={name: origins for name, origins in bound.items() if name not in made},
    )


def _split_attributes(node: ast.AST) -> list[str]:
    """[a, b, c] of a.b.c; the first is empty where it is not a name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [getattr(node, "id", ""), *reversed(parts)]


def _dump_code(code: Any, nodes: dict[type, list[Any]]) -> str:
    """The code that runs as text: the same under other versions of Python, and where only comments, docstrings and
    layout differ. nodes: its parts are added there, by type."""
    kind = type(code)
    if kind is list:
        return f"[{','.join([_dump_code(part, nodes) for part in code if not _is_bare_constant(part)])}]"
    if (names := FIELDS.get(kind)) is None:
        return ascii(code)
    nodes[kind].append(code)
    if kind is ast.JoinedStr:  # Python 3.12 adds empty parts
        code.values = [part for part in code.values if getattr(part, "value", None) != ""]
    elif kind is ast.If and "TYPE_CHECKING" in (getattr(code.test, "id", ""), getattr(code.test, "attr", "")):
        names = ("test", "orelse")
    has = vars(code)
    parts = [f"{name}={_dump_code(has[name], nodes)}" for name in names if has.get(name) not in (None, [])]
    return f"{kind.__name__}({','.join(parts)})"


def _is_bare_constant(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
