"""The house that a stranger takes over: a small core, a folder per question, READMEs that are true, names that last."""

import ast
import importlib
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from helpers import house

ROOT = Path(__file__).parent.parent
PACKAGE, CONF = ROOT / "repsim_cli", ROOT / "conf"
QUESTIONS = sorted(folder.name for folder in PACKAGE.glob("studies/*/") if folder.name != "__pycache__")
COMMANDS = {"verify"}  # questions that a command of their own asks, not `repsim run`
ROOMS = sorted(folder.parent.name for folder in PACKAGE.glob("*/__init__.py") if folder.parent.name != "studies")


def test_the_core_is_small():
    """All but the questions, as `scripts/house` counts it."""
    arrows = house.arrows(PACKAGE)
    rooms = [room for room in house.rooms(PACKAGE) if "/" not in room]
    assert len(rooms) <= 16, rooms
    assert len([pair for pair in arrows if not any("/" in room for room in pair)]) <= 90
    assert not house.circles(arrows)


def test_no_question_imports_another_and_only_commands_name_one():
    """Studies and findings are found by their files; `cli/` draws the heads of a study of attention, `api/` verifies
    and maps."""
    arrows = {(a, b) for a, b in house.arrows(PACKAGE) if "/" in b}
    assert not [(a, b) for a, b in arrows if "/" in a]
    named = [(room, f"studies/{question}") for room in ("api", "cli") for question in ("vectors", "verify")]
    assert arrows <= {("cli", "studies/attention"), *named}


def test_the_root_holds_three_files():
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "py.typed"}


def test_what_reads_a_run_folder_starts_without_torch():
    files = [file for room in ("figures", "findings", "report", "runs") for file in PACKAGE.glob(f"{room}/*.py")]
    files += PACKAGE.glob("studies/*/finding*.py")
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    heavy = ("torch", "transformers", "hydra", "omegaconf")
    script = (
        f"import importlib, sys\nfor name in {sorted(names)!r}:\n    importlib.import_module(name)\n"
        f"    assert not {{*{heavy!r}}} & {{*sys.modules}}, name\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr


def test_misspelt_words_are_answered_without_torch():
    """Torch takes seconds to start."""
    lines = [["compare", "tiny_c", "tiny_b"], ["run", "experiment=tinyy/x"], ["run", "mesure=cka"], ["list", "modl"]]
    script = (
        f"import sys\nfrom repsim_cli.cli import main\nfor words in {lines!r}:\n"
        "    try:\n        main(words)\n    except SystemExit as ended:\n        assert ended.code == 2, words\n"
        "    assert not {'torch', 'transformers'} & {*sys.modules}, words\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_enters_and_leaves_and_what_to_read_first(room):
    """The page names each of its files; the files and functions that it names are there."""
    text = (PACKAGE / room / "README.md").read_text()
    assert text.count("\n") <= 46
    assert "Enters: " in text
    assert "Leaves: " in text
    files = {
        PACKAGE / room / name
        for name in re.findall(r"`([a-z0-9_]+\.py)`", text)
        if name not in ("finding.py", "page.py")
    }
    assert not [file.name for file in files if not file.is_file()]
    own = {file for file in (PACKAGE / room).glob("*.py") if not file.name.startswith("__")}
    assert not sorted(file.name for file in own - files)
    first = re.findall(r"^\d\. `(\w+\.py)`: `(\w+)`", text, re.M)
    assert len(first) == 3
    for file, name in first:
        assert name in defined(PACKAGE / room / file)


def defined(file):
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@cache
def study_of(name):
    """The study of an experiment: its own, or that of the one that it begins with."""
    entry = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())
    if "study" in entry:
        return entry["study"]
    for part in entry.get("defaults", ()):
        if isinstance(part, str) and part.startswith("/experiment/"):
            return study_of(part.removeprefix("/experiment/"))
    return yaml.safe_load((CONF / "config.yaml").read_text())["study"]


def listed(question, what):
    """The names of a list of a README."""
    text = (PACKAGE / "studies" / question / "README.md").read_text()
    (names,) = re.findall(rf"^- {what}: ((?:.+\n(?:  .+\n)*))", text, re.M)
    return re.findall(r"`([^`]+)`", names)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_names_its_experiments_pages_and_tests(question):
    """Every experiment of its studies and no other; all files that its README names are there."""
    folder = PACKAGE / "studies" / question
    kinds = {*list_studies(question)}
    assert kinds or question in COMMANDS
    names = {str(f.relative_to(CONF / "experiment").with_suffix("")) for f in CONF.glob("experiment/**/*.yaml")}
    given = listed(question, "Experiments") if kinds else []
    assert sorted(given) == sorted(name for name in names if study_of(name) in kinds)
    pages = [ROOT / page for page in listed(question, "Pages")]
    told = "".join(page.read_text() for page in pages)
    for name in given:
        own = name.removeprefix("tiny/")
        assert re.search(rf"^## {own}\b|\b{own}\b", told, re.M), name
    assert listed(question, "Tests") == [f"tests/studies/{question}/"]
    assert [*(ROOT / "tests" / "studies" / question).glob("test_*.py")]
    text = (folder / "README.md").read_text()
    assert not [name for name in re.findall(r"`([a-z_]+\.py)`", text) if not (folder / name).is_file()]
    assert not [
        file.name
        for file in folder.glob("[a-z]*.py")
        if f"`{file.name}`" not in text and file.stem not in ("page", "units")
    ]


def list_studies(question):
    """The names of its studies."""
    sources = "".join(file.read_text() for file in sorted((PACKAGE / "studies" / question).glob("study*.py")))
    return re.findall(r'studies\.register\(\s*"(\w+)"', sources)


def test_all_questions_are_listed():
    """The list says what they ask, and their studies; a line that is missing is said as it has to be."""
    rows = re.findall(r"^\| `\w+/` \|.*$", (PACKAGE / "studies" / "README.md").read_text(), re.M)
    for question in QUESTIONS:
        asked = (PACKAGE / "studies" / question / "README.md").read_text().splitlines()[2]
        kinds = list_studies(question) or [f"repsim {question}"]
        start, end = f"| `{question}/` | {asked} | ", ", ".join(f"`{kind}`" for kind in kinds)
        rest = [row.removeprefix(start) for row in rows if row.startswith(start)]
        told = [sorted(re.findall(r"`(.+?)`", each)) for each in rest]
        assert told == [sorted(kinds)], f"repsim_cli/studies/README.md: this row is missing:\n{start}{end} |"
    assert [re.match(r"\| `(\w+)", row)[1] for row in rows] == QUESTIONS, "repsim_cli/studies/README.md: out of order"


def test_all_pages_of_studies_are_on_the_site():
    text = (ROOT / "mkdocs.yml").read_text()
    missing = [f"      - experiments/{page.name}\n" for page in sorted(ROOT.glob("experiments/*.md"))]
    missing = [line for line in missing if line not in text]
    assert not missing, f"mkdocs.yml: under Studies, these lines are missing:\n{''.join(missing)}"


# of irregular verbs
PAST = {
    "begun", "broken", "brought", "built", "chosen", "done", "drawn", "driven", "fallen", "felt", "forgotten",
    "found", "frozen", "given", "gone", "grown", "heard", "held", "hidden", "kept", "known", "laid", "led", "left",
    "lost", "made", "meant", "met", "paid", "said", "seen", "sent", "shown", "sold", "spent", "stood", "stuck",
    "sworn", "taken", "taught", "thought", "told", "torn", "understood", "won", "woven", "written",
}  # fmt: skip
NOT_PARTICIPLES = {"bound", "embed", "feed", "need", "seed", "speed", "string"}
NOUNS = {"curves", "figures", "room", "scratch", "sentences", "tables"}  # of what functions make
VALUES = {"squared_norms", "closed_form"}  # what a value is called: a noun, of which a participle is a part


def is_participle(name):
    first = name.strip("_").split("_")[0]
    return first in PAST or (first.endswith(("ed", "ing")) and first not in NOT_PARTICIPLES)


def decorators_of(function):
    """The names of its decorators."""
    called = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    return {ast.unparse(each).split(".")[-1] for each in called}


def takes_self(function):
    return [each.arg for each in function.args.args[:1]] == ["self"]


def is_called(function):
    """Says whether it is a function of the code, and neither a property nor something that its name registers."""
    return not decorators_of(function) & {"property", "cached_property", "register", "analysis", "claim"}


def test_functions_are_verbs():
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in house.parts(file):
            if (
                isinstance(node, ast.FunctionDef)
                and is_called(node)
                and (is_participle(node.name) or node.name in NOT_DONE or (node.name in NOUNS and not takes_self(node)))
                and node.name not in VALUES
            ):
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert not wrong, "a function is a verb: `centre`, not `centred`"


# of a sentence that has begun elsewhere
MIDWAY = {
    "against", "along", "also", "and", "as", "at", "beside", "between", "but", "by", "for", "from", "in", "inside", "nor",
    "not", "of", "on", "or", "over", "per", "so", "than", "though", "under", "when", "where", "which", "while", "with",
    "within", "without",
}  # fmt: skip
NOT_DONE = MIDWAY | {"all", "both", "each", "every", "how", "never", "none", "those", "what", "whether", "why"}


REFUSING = ("assert", "check", "raise", "refuse")


def test_docstrings_begin_with_what_is_done():
    """The value that a function gives may stand first; a claim's docstring is the finding that was published. What is
    raised comes after what is done, but where a function does nothing else."""
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in house.parts(file):
            if isinstance(node, ast.FunctionDef) and "claim" not in "".join(decorators_of(node)):
                words = (ast.get_docstring(node) or "").lower().split()
                raises = words[:1] == ["raises"] and not node.name.strip("_").startswith(REFUSING)
                nothing = isinstance(node.returns, ast.Constant) and node.returns.value is None
                if words and (words[0].strip(",;:.") in NOT_DONE or (raises and not nothing)):
                    wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert not wrong, "a docstring begins with a verb (`Finds`, `Says whether`) or with the value (`The mean of ...`)"


def test_long_public_functions_say_what_they_do():
    """Those of a module, of 12 lines or more; an analysis is described by its options."""
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in house.parts(file)[0].body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and is_called(node):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= 11 and not ast.get_docstring(node):
                    wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert not wrong, "a function of 12 lines or more has a docstring: what is done, and each argument as `name: what`"


def test_docstrings_of_tests_are_sentences_of_their_own():
    """A name of a test is not their beginning."""
    begun = {
        str(file.relative_to(ROOT)): words
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if (words := [word for word in BEGUN.findall(file.read_text()) if word.lower() in MIDWAY])
    }
    assert not begun, "a docstring begins with a verb or with a noun for what is tested"


BEGUN = re.compile(r':\n +"""(\w+)')


def test_docstrings_name_what_is_there():
    """What stands in backticks is a name of the code, of a file, of a setting, or a word of a text in the code."""
    named, words = [], {file.stem for file in PACKAGE.rglob("*")}
    for file in sorted(PACKAGE.rglob("*.py")):
        text, told = file.read_text(), []
        for node in house.parts(file):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                told.append(ast.get_docstring(node, clean=False) or "")
        named += [(str(file.relative_to(ROOT)), name) for name in IN_BACKTICKS.findall("\n".join(told))]
        for each in told:
            text = text.replace(each, "") if each else text
        words |= set(re.findall(r"\w+", text))
    words |= {word for file in (ROOT / "conf").rglob("*.yaml") for word in re.findall(r"\w+", file.read_text())}
    words |= MADE | OF_OTHERS
    assert not [each for each in named if not words.issuperset(each[1].split("."))]
    assert len(named) > 500


MADE = {"random_0", "heads_removed", "neurons_removed"}  # from parts
OF_OTHERS = {"cmp", "sacct", "silhouette_score", "PreTrainedModel", "tie_weights"}
IN_BACKTICKS = re.compile(r"`([A-Za-z_]\w+(?:\.[A-Za-z_]\w+)*)`")


NOTHING_TWICE = re.compile(r", got ((?:\w+=)?null|none|nothing|neither|\{\}|\[\])[;\"]")


def test_messages_do_not_say_twice_that_there_is_nothing():
    told = {file: NOTHING_TWICE.findall(file.read_text()) for file in sorted(PACKAGE.rglob("*.py"))}
    assert not {str(file.relative_to(ROOT)): found for file, found in told.items() if found}
    assert NOTHING_TWICE.search('"model: no model is selected, got none; name one"')


def test_a_class_name_means_one_thing():
    where = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in house.parts(file)[0].body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert not {name: files for name, files in where.items() if len(files) > 1}
    page = (ROOT / "docs" / "how_to" / "question.md").read_text()  # its question may be added as it is printed
    blocks = [ast.parse(block) for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)]
    printed = {node.name for block in blocks for node in block.body if isinstance(node, ast.ClassDef)}
    assert printed
    assert not [name for name in printed if "studies/vocabulary/" not in where.get(name, ["studies/vocabulary/"])[0]]


def test_no_test_imports_another():
    """Modules of tests have the names of their paths, so that two files may have one name; what they share is in
    `helpers`."""
    wrong = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        names = {name for node in ast.walk(ast.parse(file.read_text())) for name in imported_by(node)}
        wrong += [
            (str(file.relative_to(ROOT)), name) for name in names if name.startswith(("test_", "conftest", "tests."))
        ]
    assert not wrong


def imported_by(node):
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_the_table_of_measures_is_that_of_the_script():
    script = runpy.run_path(str(ROOT / "scripts" / "measure_table"))
    written = script["PAGE"].read_text().split(script["START"])[1].split(script["END"])[0]
    assert written == script["table"](), "run scripts/measure_table --write"


DOCUMENTED = [
    file
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "docs/notebooks/*.ipynb", "experiments/*.md")
    for file in sorted(ROOT.glob(pattern))
]
DOTTED = re.compile(r"\brepsim_cli(?:\.[A-Za-z_]\w*)+")
FROM = re.compile(r"\bfrom (repsim_cli[\w.]*) import ([\w, ]+)")


def test_names_and_files_that_the_docs_mention_are_there():
    names, missing = set(), []
    for file in DOCUMENTED:
        text = file.read_text()
        names |= set(DOTTED.findall(text))
        names |= {
            f"{room}.{name.split(' as ')[0].strip()}" for room, all_ in FROM.findall(text) for name in all_.split(",")
        }
        for path in re.findall(r"\b((?:repsim_cli|tests|benchmarks|scripts)/[\w./-]*\w)\b", text):
            if not re.search("[A-Z]{3}|[.]{2}|/vocabulary", path) and not (ROOT / path).exists():
                missing.append(f"{file.name}: {path}")
    assert not missing
    assert len(names) > 5
    for name in sorted(names):
        found(name)


def found(name):
    """The module or value of a dotted name."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            value = getattr(value, part)
        return value
    raise AssertionError(name)
