"""MkDocs' hook: the site's pages are the files of the repository at their paths, notebooks, and a reference that is
written from docstrings, cards and `repsim describe` while the site is built."""

import inspect
import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import repsim_cli
from repsim_cli import measures
from repsim_cli.cli.describe import SETTINGS, Topic, build_catalogue, find_meanings, show

ROOT = Path(__file__).resolve().parent.parent
SHOWN = (
    "*.md",
    "llms.txt",
    "docs/**/*.md",
    "docs/*.png",
    "docs/*.css",
    "experiments/*.md",
    "benchmarks/README.md",
    "benchmarks/*.png",
)
# what readers of the guides do not look for, and which would come first by its length
UNSEARCHED = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", "reference/")
PYTHON = (repsim_cli.compare, repsim_cli.load, repsim_cli.Result, repsim_cli.grade, measures.get, measures.card)


def on_config(config: MkDocsConfig) -> None:
    """Pages of docs/ that the navigation does not name are guides."""
    (guides,) = [entry["Guides"] for entry in config.nav if "Guides" in entry]
    named = {entry for entry in config.nav if isinstance(entry, str)} | {*guides} | {"docs/studies.md"}
    guides += sorted({f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - named)


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    if page.file.src_uri.startswith(UNSEARCHED):
        page.meta["search"] = {"exclude": True}
    elif not page.file.src_uri.startswith("experiments/"):
        page.meta["search"] = {"boost": 2}  # guides before studies
    return markdown.replace(".ipynb)", ".md)")  # notebooks are pages here


def on_files(files: Files, config: MkDocsConfig) -> Files:
    theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted({path.relative_to(ROOT) for pattern in SHOWN for path in ROOT.glob(pattern)})
    written = {**reference(), **notebooks()}
    return Files(
        [
            *theme,
            *(File(str(path), str(ROOT), config.site_dir, config.use_directory_urls) for path in paths),
            *(File.generated(config, name, content=content) for name, content in written.items()),
        ]
    )


def verbatim(text: str) -> str:
    return f"````text\n{text.rstrip()}\n````\n"


def section(title: str, text: str) -> str:
    return f"## {title}\n\n{verbatim(text)}"


def reference() -> dict[str, str]:
    """Pages by name: one per kind of component, the settings that studies share, and the Python functions."""
    pages: dict[str, list[str]] = {}
    entries: list[Topic] = []
    for topic in build_catalogue():
        group = topic.title.split()[0]
        if group == "model" and topic.header:  # hundreds of entries, which have the settings of their kinds
            entries.append(topic)
        else:
            pages.setdefault("choices" if group in SETTINGS else group, []).append(section(topic.title, show(topic)))
    pages["model"] = [table(entries), *pages["model"]]
    settings = [section(name, show(find_meanings(name)[0])) for name in ("run", *SETTINGS)]
    pages["settings"] = settings + pages.pop("choices")
    pages["python"] = [section(thing.__name__, "\n".join(documented(thing))) for thing in PYTHON]
    return {f"reference/{kind}.md": "\n".join([f"# Reference: {kind}\n", *pages[kind]]) for kind in pages}


def table(entries: list[Topic]) -> str:
    """Entries with what they are; each has the settings of its kind."""
    rows = [f"| `{topic.name}` | {topic.given['kind']} | {described(topic)} |" for topic in entries]
    return "\n".join(["| name | kind | what it is |", "| --- | --- | --- |", *rows, ""])


def described(topic: Topic) -> str:
    return escape(" ".join(topic.header.split("\n\nkind: ")[0].split())).replace("|", "\\|")


def documented(thing: Callable) -> Iterator[str]:
    """The signatures and docstrings of a function, or of a class and its public members."""
    yield f"{thing.__name__}{inspect.signature(thing)}"
    yield inspect.getdoc(thing) or ""
    for name, member in vars(thing).items() if isinstance(thing, type) else ():
        if not name.startswith("_") and callable(getattr(member, "fget", member)):
            function = getattr(member, "fget", member)
            yield f"\n{name}{inspect.signature(function) if function is member else ''}"
            yield inspect.getdoc(function) or ""


def notebooks() -> dict[str, str | bytes]:
    """The executed notebooks as pages, and their pictures."""
    pages: dict[str, str | bytes] = {}
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        parts = []
        for cell in json.loads(path.read_text())["cells"]:
            source = "".join(cell["source"])
            parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
            for output in cell.get("outputs", ()):
                shows = output.get("data", {"text/plain": output.get("text", "")})
                if "image/png" in shows:
                    name = f"{path.stem}-{len(parts)}.png"
                    pages[f"docs/notebooks/{name}"] = b64decode("".join(shows["image/png"]))
                    parts.append(f"![The figure of the cell above]({name})")
                elif "text/html" in shows:
                    parts.append("".join(shows["text/html"]))
                else:
                    parts.append(verbatim("".join(shows["text/plain"])))
        pages[f"docs/notebooks/{path.stem}.md"] = "\n\n".join(parts)
    return pages
