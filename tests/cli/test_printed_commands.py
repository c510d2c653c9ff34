"""Commands that docstrings, comments and headers print: that they can be run."""

import shlex

import pytest
from helpers import printed
from helpers.composing import EXPERIMENTS
from helpers.described import DESCRIBED
from helpers.printed import SHORTER, words_of

from repsim_cli.base import registry
from repsim_cli.cli.describe import build_catalogue
from repsim_cli.cli.docstrings import parse
from repsim_cli.cli.kinds import SELECTED
from repsim_cli.config.presets import GROUPS, describe_group, find_conf_folder


@pytest.fixture
def places(tmp_path, shared):
    return printed.places(tmp_path, shared)


EXAMPLES = {
    name: text.example for name, (function, _) in DESCRIBED.items() if (text := parse(function.__doc__)).example
}


def of_a_run(command):
    """What needs no run of one's own, and is no call of Python."""
    return command.startswith("repsim run ") and "run: RUN" not in command


@pytest.mark.parametrize("name", [name for name, command in EXAMPLES.items() if of_a_run(command)])
def test_the_command_of_an_example(repsim, places, name):
    code, out, err = repsim(*words_of(EXAMPLES[name], places), "dry_run=true")
    assert code == 0, err
    assert out.startswith("plan of ")


@pytest.mark.nightly
def test_every_command_is_planned(repsim, places):
    """Those of all entries, not only of the first below a comment."""
    commands = {topic.example: topic.title for topic in build_catalogue() if of_a_run(topic.example)}
    assert len(commands) > 400
    refused = {}
    for command, title in commands.items():
        code, _, err = repsim(*words_of(command, places), "dry_run=true")
        if code:
            refused[title] = err
    assert not refused


@pytest.mark.nightly
@pytest.mark.parametrize("study", [study for study, words in SHORTER.items() if words is not None])
def test_the_command_of_a_study_runs(repsim, places, study):
    code, _, err = repsim(*words_of(EXAMPLES[f"study {study}"], places), *SHORTER[study])
    assert code == 0, err


@pytest.mark.nightly
@pytest.mark.drawn
@pytest.mark.parametrize("study", SHORTER)
def test_the_command_of_a_study_runs_as_it_is_printed(repsim, places, study):
    """All run but stitch layers, which train for half an hour. Then those of the analyses of such runs, which are
    refused where they need groups, a base or other options."""
    words = words_of(EXAMPLES[f"study {study}"], places)
    code, _, err = repsim(*words, *(SHORTER[study] if study == "stitching" else ()))
    assert code == 0, err
    for topic in build_catalogue():
        if topic.example.startswith("repsim analyse ") and study in registry.analyses.get(topic.name).card.studies:
            code, _, err = repsim(*shlex.split(topic.example)[1:])
            assert code == 0 or err.startswith("error: analyses."), err


COMMENTS = {
    line.removeprefix("# Example: "): name
    for group in GROUPS
    for name, comment in describe_group(group).items()
    for line in comment
    if line.startswith("# Example: repsim run")
}


@pytest.mark.nightly
@pytest.mark.parametrize("command", COMMENTS)
def test_the_command_of_a_comment(repsim, places, command):
    """The command is of one of the entries that the comment stands above."""
    name = COMMENTS[command]
    command = command.replace("NAME", name)
    assert command in repsim("describe", name)[1]
    code, _, err = repsim(*words_of(command, places), "dry_run=true")
    assert code == 0, err


def command_of_header(name):
    lines = (find_conf_folder() / "experiment" / f"{name}.yaml").read_text().splitlines()
    (command,) = (line.removeprefix("# Command: ") for line in lines if line.startswith("# Command: "))
    return command


LACKING = {"dictionary_transfer": "error: options.dictionaries.mine.path: no dictionary in the folder, got 'FOLDER'"}
DEEP = "crosscoder", "dictionary_transfer"  # of blocks that the models that ship have not


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_header_names_its_experiment(name):
    command, selected = command_of_header(name), f"experiment={name}"
    assert selected in command.split() or f",{name}" in command or f"{selected}," in command


@pytest.mark.nightly
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_command_of_a_header(repsim, places, name):
    """What it sets beside the experiment is planned with it (tests/config plans every experiment)."""
    command = command_of_header(name)
    others = [
        word for word in words_of(command, places)[1:] if not word.startswith(("experiment=", "hardware.threads="))
    ]
    if set(others) - {"-m"}:
        shallow = ["extract.layers=[1]"] if name in DEEP else []
        code, _, err = repsim(*words_of(command, places), *shallow, "dry_run=true")
        assert (LACKING[name] in err) if name in LACKING else code == 0, err


@pytest.mark.parametrize(
    "name",
    [
        "hardware.tile",
        "extract.separator",
        "mutual_knn.k",
        "random.seed",
        "tiny_a_step100.name",
        "similarity.within",
        "views.couplings.restarts",
    ],
)
def test_the_command_of_a_setting(repsim, places, name):
    command = repsim("describe", name)[1].splitlines()[-1].removeprefix("  example: ")
    code, _, err = repsim(*words_of(command, places), "dry_run=true")
    assert code == 0, err


@pytest.mark.parametrize("name", SELECTED["study"].names())
def test_every_study_has_a_command(name):
    assert EXAMPLES[f"study {name}"].startswith(f"repsim run study={name} ")
    assert name in SHORTER
