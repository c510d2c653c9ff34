"""`repsim describe`, `repsim list study`, `--help`: one text for docstring and terminal, every setting told, examples that run."""

import importlib
import inspect
import re
import runpy
import subprocess
import sys
from typing import Annotated, Any, Literal

import pytest
from helpers.composing import ROOT
from helpers.described import DESCRIBED
from pydantic import Field

from repsim_cli.base import registry
from repsim_cli.base.settings import Above0, Extract, Fraction, Layer, Positive, Ranked, Seed, Share, Significance
from repsim_cli.cli import describe, glossary, listing
from repsim_cli.cli.commands import COMMANDS
from repsim_cli.cli.docstrings import LINE, parse, take_first_sentence
from repsim_cli.cli.kinds import SELECTED, SETTINGS, TABLE, list_allowed
from repsim_cli.cli.settings import read_settings, say_range
from repsim_cli.config.presets import describe_group
from repsim_cli.config.run import RunKeys
from repsim_cli.findings.leaderboard import load_leaderboard


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_setting_has_its_line(name):
    """No line is of a setting that there is not."""
    function, own = DESCRIBED[name]
    text = parse(inspect.getdoc(function))
    assert [key for key, setting in own.items() if not setting.meaning] == []
    assert text.settings.keys() <= own.keys()
    assert text.prose[0], "the first paragraph says what it is"
    assert not LINE.match(text.prose[0])
    assert not [line for line in "\n".join(text.prose).split("\n") if re.search(r"[.;] \w+: ", line)], "a packed key"


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Positive, "a whole number from 1"),
        (Seed, "a whole number from 0"),
        (Layer, "a whole number from -10000 to 10000"),
        (Annotated[int, Field(ge=16, lt=512)], "a whole number from 16 below 512"),
        (Above0, "a number above 0"),
        (Share, "a number from 0 to 1"),
        (Fraction, "a number above 0 below 1"),
        (bool, "true or false"),
        (str | None, "text, or null"),
        (Literal["full", "per_batch"], "one of full, per_batch"),
        (Literal["all"] | list[Layer], "all, or a list, each a whole number from -10000 to 10000"),
        (Annotated[list[str], Field(min_length=2)], "a list, each text, at least 2 of them"),
        (dict[str, list[str]] | None, "a mapping from text to a list, each text, or null"),
        (Ranked | None, "settings of their own, or null"),
    ],
)
def test_ranges_in_words(annotation, words):
    assert say_range(annotation) == words


def test_a_docstring_is_prose_settings_and_an_example():
    text = parse(
        """What it is. And more.

        More of it:
            indented.

        rows: how many,
            and why
        share: of them
        Example: repsim run
            seed=1

        >>> dict(rows=1)
        {'rows': 1}
        """
    )
    assert take_first_sentence(text.prose[0]) == "What it is"
    assert text.settings == {"rows": "how many, and why", "share": "of them"}
    assert text.example == "repsim run seed=1"
    assert text.prose == ["What it is. And more.", "More of it:\n    indented.", ">>> dict(rows=1)\n{'rows': 1}"]


ONE_OF_EACH = {
    "similarity": ("study similarity", "within: compare only layers of the same model", "takes: model, measure, data"),
    "agreement": ("analysis agreement", "example: repsim analyse latest +analyses.agreement={}"),
    "mutual_knn": ("measure mutual_knn", "a whole number from 1, or a number above 0 below 1; default 10", "larger is closer; from 0 to 1; symmetric"),
    "transformers": ("model kind transformers", "settings (model.mine.KEY=VALUE):", "hub: the id of a model on the"),
    "attention_js": ("measure attention_js", "repsim run study=attention data=embedded_sentences"),
    "pythia_160m_series": ("model pythia_160m_series", "run study=convergence model=[pythia_160m_series] measure=[cka_unbiased]"),
    "mean_cca": ("measure mean_cca", "needs: 3 rows, more rows than features"),
    "rtd": ("measure rtd", "smaller is closer; from 0; symmetric", "the package ripser", "estimates; significance: full, per_batch; permutation"),
    "random_tiny": ("model random_tiny", "kind: random", "text, or null; default null; here tiny_a"),
    "precomputed": ("model kind precomputed", "text; required", "'{kind: precomputed, path: FILE}'"),
    "overlap_nli": ("data overlap_nli", "a number from 0 to 1; default 0.5", "example: repsim run data=overlap_nli"),
    "hans_lexical_overlap": ("data hans_lexical_overlap", "kind: hans", "or null; default null; here [lexical_overlap]"),
    "words": ("extract words", "default token; here word", "example: repsim run data=embedded_sentences extract=words"),
    "cuda": ("hardware cuda", "default cpu; here cuda"),
    "hardware": ("hardware", "a whole number from 16 to 65536; default 512", "batch_size: sequences per forward pass, at most.", "batch_tokens: tokens per forward pass, at most"),
    "hardware.tile": ("hardware.tile", "a whole number from 16 to 65536; default 512", "repsim run hardware.tile=512"),
    "extract.estimate": ("extract.estimate", "one of full, per_batch, ratio_of_sums, moments, sampled; default per_batch"),
    "similarity.within": ("options.within, a setting of study similarity", "options.within=true"),
    "options.within": ("options.within, a setting of study similarity", "true or false; default false"),
    "mutual_knn.k": ("measure.mutual_knn.k, a setting of measure mutual_knn", "neighbours per row, or below 1 their share of the rows."),
    "measure.mutual_knn.k": ("measure.mutual_knn.k, a setting of measure mutual_knn", "measure.mutual_knn.k=10"),
    "data.words": ("data.words, a setting of data ewt", "one of surface, syntactic; default surface"),
    "groups": ("groups, a setting of a run", "{NAME: {top: 10, by: METRIC}}"),
    "seed": ("seed, a setting of a run", "a whole number from 0; default 0", "example: repsim run seed=1"),
    "data": ("data, a setting of a run", "default embedded", "example: repsim run data=embedded"),
    "pythia_cka": ("experiment pythia_cka", "Question: which layers of the Pythia models agree"),
    "run": ("a run", "settings (KEY=VALUE):", "seed: of all that is random", "default ${study}"),
    "attention.special": ("options.special, a setting of study attention", "default drop_renormalise"),
    "all": ("measure all", "Every measure that reads what the study reads"),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_describe(repsim, name):
    code, out, err = repsim("describe", name)
    assert (code, err) == (0, "")
    first, *others = ONE_OF_EACH[name]
    assert out.splitlines()[0] == first
    spoken = " ".join(out.split())
    for said in others:
        assert " ".join(said.split()) in spoken
    assert "example: repsim " in out


def test_all_meanings_of_a_name_are_shown(repsim):
    _, out, _ = repsim("describe", "attention")
    assert [line for line in out.splitlines() if line[:1].strip()] == ["study attention", "extract attention"]
    _, out, _ = repsim("describe", "groups")
    assert [line for line in out.splitlines() if line[:1].strip()] == ["groups, a setting of a run", "analysis groups"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cka_unbaised", "NAME: unknown name, got 'cka_unbaised'; did you mean 'cka_unbiased'"),
        ("nope", "NAME: unknown name, got 'nope'; see repsim list"),
        ("batch_rows", "NAME: unknown name, got 'batch_rows'; did you mean 'extract.batch_rows'?"),
        ("qqqqq", "NAME: unknown name, got 'qqqqq'; see repsim list"),
        ("extract.unti", "extract: no such setting, got 'unti'; did you mean 'unit'?"),
        ("extract.unit.token", "extract.unit: no such setting, got 'token'; unit has no settings"),
        ("mutual_knn.kk", "measure mutual_knn: no such setting, got 'kk'; did you mean 'k'?"),
        ("data.spilt", "NAME: unknown name, got 'data.spilt'; "),
        ("", "repsim describe: name is empty, got ''; give a value, or drop it"),
    ],
)
def test_a_name_of_nothing(repsim, tmp_path, name, message):
    code, out, err = repsim("describe", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_group_of_settings_is_told_with_its_settings():
    """A group stands in the description of what has it, and is found by its key."""
    from repsim_cli.cli import describe

    def study(*, model: Any, significance: Significance, ranked: Ranked | None = None) -> None:
        """A study.

        significance: of its numbers
        ranked: who
        """

    assert read_settings(study)["significance"].inner == read_settings(Significance)
    topic = describe.Topic(
        name="study", title="study x", path="options", settings=read_settings(study), example="repsim run"
    )
    told = describe.show(topic)
    assert (
        "    ranked: who\n        settings of their own, or null; default null\n        by: the name of a metric"
        in told
    )
    inner = describe._narrow(topic, ["ranked", "top"])
    assert inner.title == "options.ranked.top, a setting of study x"
    assert inner.facts == ["a whole number from 2, or null; default null"]
    assert inner.example == "repsim run options.ranked.top=8"


def test_the_table_of_kinds_says_what_the_code_says():
    """`scripts/kinds --write` mends it."""
    made = runpy.run_path(str(ROOT / "scripts" / "kinds"))["lines"]()
    assert made == TABLE.read_text().splitlines(), "run scripts/kinds --write"
    assert len(made) > 150


@pytest.mark.parametrize("words", [["describe", "cka"], ["describe", "rsq"], ["list", "study"], ["list"]])
def test_what_is_explained_and_listed_is_not_imported(words):
    said = "import sys; from repsim_cli.cli import main\ntry: main(sys.argv[1:])\nfinally: print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", said, *words], capture_output=True, text=True, check=False)
    imported = {*found.stdout.splitlines()[-1].split()}
    assert "repsim_cli.cli.kinds" in imported
    assert not imported & {"torch", "numpy", "pydantic", "hydra", "omegaconf", "repsim_cli.measures.hsic"}


def test_the_list_of_studies(repsim):
    texts = {name: parse(inspect.getdoc(registry.studies.get(name).function)) for name in SELECTED["study"].names()}
    code, out, _ = repsim("list", "study")
    assert code == 0
    width = max(map(len, texts))
    lines = [
        (f"{name:{width}}  {take_first_sentence(texts[name].prose[0])}", f"  {texts[name].example}")
        for name in sorted(texts)
    ]
    assert out.splitlines() == [line for both in lines for line in both if line.strip()]
    assert repsim("list")[1].startswith("study:\n  architecture ")


def test_the_list_of_analyses(repsim):
    texts = {
        name: parse(inspect.getdoc(registry.analyses.get(name).card.options)) for name in registry.analyses.names()
    }
    code, out, _ = repsim("list", "analysis")
    assert code == 0
    assert [line.split(None, 1) for line in out.splitlines()] == [
        [name, take_first_sentence(text.prose[0])] for name, text in texts.items()
    ]
    assert "\nanalysis:\n  agreement " in repsim("list")[1]


def test_every_entry_has_a_text_of_its_own_that_ends(repsim):
    """The text ends in one line: no bracket stays open, and no two entries of a group say the same."""
    for group in listing.LISTED:
        found = listing.list_entries(group)
        for entry in found:
            assert not entry.text.endswith(("...", ",", ":")), entry
            assert all(entry.text.count(a) == entry.text.count(b) for a, b in ("()", "[]", "{}")), entry
        texts = [entry.text for entry in found]
        assert len(set(texts)) == len(texts), group
    out = repsim("list")[1].splitlines()
    assert len(out) == sum(len(listing.list_entries(group)) + 1 for group in listing.LISTED[:-1]) + 1
    assert out[-1].startswith("one group: repsim list GROUP")


def test_words_of_the_pages_are_explained(repsim):
    """The glossary explains them in the singular and plural; a setting of the same name comes first."""
    for name, said in {
        "gpu": "GPU, device, CUDA\n\n  Where models run",
        "hook point": "Hook point\n\n  A place inside a model",
        "hook_points": "Hook point\n\n  A place",
        "remedies": "Remedy",
        "the token alone": "Floor, the token alone",
        "figures.colours": "figures.colours\n\n  the colour map of maps",
        "seed": "seed, a setting of a run\n\n  of all that is random",
    }.items():
        code, out, err = repsim("describe", name)
        assert (code, err) == (0, ""), name
        assert out.startswith(said), out
    assert "\nSeed\n\n  Another training" in repsim("describe", "seed")[1]
    assert "repsim run seed=1\n" in repsim("describe", "seed")[1]
    assert not any("](" in text for text in glossary.read_glossary().values())
    assert len(glossary.read_glossary()) > 30


def test_the_list_of_settings(repsim):
    names = [line.split(None, 1)[0] for line in repsim("list", "setting")[1].splitlines()]
    some = ("seed", "figures.colours", "extract.hook_points", "hardware.device", "significance.method")
    assert {*some, *RunKeys.model_fields} <= {*names, *SETTINGS}
    assert all(describe.find_meanings(name) for name in some)


def test_the_list_of_measures_says_what_each_allows(repsim):
    """The table's comments say it, so that the list imports no measure; it is computed again from the measures."""
    lines = dict(line.split(None, 1) for line in repsim("list", "measure")[1].splitlines())
    for name in SELECTED["measure"].names():
        assert f"# Allows: {list_allowed(name)}" in describe_group("measure")[name], "conf/measures.yaml"
        assert f" [{list_allowed(name)}]" in lines[name]
    assert "[" not in lines["all"]


def test_the_list_of_measures_shows_their_grades(repsim):
    """How many measures each is told apart from in experiment=grounding and experiment=grounding_images, of those that
    both could grade."""
    lines = dict(line.split(None, 1) for line in repsim("list", "measure")[1].splitlines())
    graded = load_leaderboard()
    assert graded.keys() < set(SELECTED["measure"].names())
    assert len(graded) > 50
    for name, row in graded.items():
        told = [f"ahead of {row[f'{of}ahead of']}, behind {row[f'{of}behind']}" for of in ("", "images ")]
        assert f" [of {len(graded)} measures {told[0]}; on images {told[1]}; about 2 of each by chance]" in lines[name]
        assert all(1 <= float(row[key]) <= len(graded) for key in ("mean rank", "images"))
    for of in ("", "images "):
        ahead, behind = (sum(int(row[of + side]) for row in graded.values()) for side in ("ahead of", "behind"))
        assert ahead == behind > 0
    assert "ahead of" not in lines["attention_js"] + lines["ulp"]
    assert [float(row["mean rank"]) for row in graded.values()] == sorted(
        float(x["mean rank"]) for x in graded.values()
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cka", "full, per_batch, ratio_of_sums, moments; closed_form, permutation, jackknife"),
        ("procrustes", "full, per_batch; permutation"),
        ("gromov_wasserstein", "full, per_batch"),
        ("mean_cca", "full, per_batch, moments; permutation"),
        ("attention_js", "full"),
        ("gaussian_mutual_information", "repsim measure alone"),
    ],
)
def test_what_a_measure_allows(name, words):
    assert list_allowed(name) == words


def test_defaults_that_are_made_anew():
    assert read_settings(Extract)["skip_tokens"].default == []


def test_all_commands_call_functions():
    every = [each for command in COMMANDS for each in (command, *command.parts)]
    names = [each.call.split(".") for each in every if each.call]
    assert len(names) == len(every) - 2  # `run` goes another way, and of `map` its parts are called
    for module, name in names:
        assert callable(getattr(importlib.import_module(f"repsim_cli.cli.{module}"), name)), name


def test_help_ends_with_an_example(repsim):
    for words in ((), ("run",), ("list",), ("describe",), ("show",), ("plot",), ("measure",)):
        code, out, _ = repsim(*words, "--help")
        assert code == 0
        assert out.strip().splitlines()[-1].startswith("example: repsim ")
