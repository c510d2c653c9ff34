"""What the package is made of, read from its files: rooms, arrows, floors, circles, lines of code."""

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

Arrows = set[tuple[str, str]]
BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def files(package: Path) -> list[Path]:
    """Every file of the package but those of its root that name the whole: `__init__` and `__main__`."""
    return [file for file in sorted(package.rglob("*.py")) if file.parent != package or not file.stem.startswith("__")]


def room(package: Path, file: Path) -> str:
    """The folder of a file, with that of its question where it is in `studies/`; a loose module is a room."""
    parts = file.relative_to(package).with_suffix("").parts
    if parts[0] == "studies" and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0]


def rooms(package: Path) -> list[str]:
    return sorted({room(package, file) for file in files(package)})


@cache
def parts(file: Path) -> tuple[ast.AST, ...]:
    """All parts of the code of a file."""
    return tuple(ast.walk(ast.parse(file.read_text())))


@cache
def imports(file: Path) -> frozenset[str]:
    """The names that a file imports, at any place and for type checking too."""
    found = set()
    for node in parts(file):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def imported(package: Path, file: Path) -> Iterator[Path]:
    """The files of the package that a file imports."""
    for name in imports(file):
        parts = name.split(".")
        if parts[0] == package.name and len(parts) > 1:
            path = package.joinpath(*parts[1:])
            for each in (path.with_suffix(".py"), path / "__init__.py"):
                if each.is_file():
                    yield each


def arrows(package: Path) -> Arrows:
    """Pairs of rooms of which the first imports the second."""
    pairs = ((room(package, a), room(package, b)) for a in files(package) for b in imported(package, a))
    return {(a, b) for a, b in pairs if a != b}


def circles(pairs: Arrows) -> list[str]:
    """Rooms that import themselves by way of others."""
    return sorted(room for room in {a for a, _ in pairs} if room in _reached(pairs, room))


def _reached(pairs: Arrows, start: str) -> set[str]:
    reached: set[str] = set()
    ahead = {start}
    while ahead:
        ahead = {b for a, b in pairs if a in ahead} - reached
        reached |= ahead
    return reached


def heights(pairs: Arrows) -> dict[str, int]:
    """The floor of each room: 1 where it imports none, else one above the highest that it imports."""
    below = {a: {b for first, b in pairs if first == a} for a, _ in pairs}

    @cache
    def height(room: str) -> int:
        return 1 + max(map(height, below.get(room, ())), default=0)

    return {room: height(room) for pair in pairs for room in pair}


def floors(pairs: Arrows) -> int:
    """The length of the longest chain of imports, 0 where there is a circle."""
    return 0 if circles(pairs) else max(heights(pairs).values(), default=1)


def lines(file: Path) -> int:
    """Lines of code: neither blank, nor of a comment or a docstring."""
    text = file.read_text()
    documented = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
            first = body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                documented |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    coded: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in BLANK:
            coded |= set(range(token.start[0], token.end[0] + 1))
    return len(coded - documented)
