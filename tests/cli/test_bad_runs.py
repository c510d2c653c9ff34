"""Damaged run folders: each gets one clear line that says what to do, exit code 2, and changes nothing."""

import json
import shutil

import numpy as np
import pytest
import yaml
from helpers.refusals import MANY, pipe

from repsim_cli.runs import reader


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def changed(name, /, **values):
    """A JSON or YAML file with these values, at key paths written with `__`; None as `...` takes a key out."""

    def change(folder):
        content = yaml.safe_load((folder / name).read_text())
        for path, value in values.items():
            *groups, key = path.split("__")
            place = content
            for group in groups:
                place = place[int(group) if group.isdigit() else group]
            if value is ...:
                del place[key]
            else:
                place[key] = value
        (folder / name).write_text(json.dumps(content))

    return change


def forged(**values):
    """Other results, with their hash in the manifest."""

    def change(folder):
        changed("results.json", **values)(folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["results.json"] = reader.hash_file(folder / "results.json")
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return change


DEEP = b"[" * 100_000
BOMB = b"a: &a [x]\n" + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b"*%c, " % (97 + i) * 9) for i in range(9))
SQUARE = {"rows": {"model": "a", "layers": ["b"]}, "columns": {"model": "a", "layers": ["b"]}}


RUNS = {
    "truncated manifest": written("manifest.json", b'{"schema": 1, "na'),
    "manifest of another program": written("manifest.json", b'{"name": "x"}'),
    "newer schema": written("manifest.json", b'{"schema": 2}'),
    "manifest that is a list": written("manifest.json", b"[1]"),
    "manifest of a schema alone": written("manifest.json", b'{"schema": 1}'),
    "empty manifest": written("manifest.json", b""),
    "nested manifest": written("manifest.json", DEEP),
    "manifest in Latin-1": written("manifest.json", b'{"name": "\xe9"}'),
    "infinite seconds": written("manifest.json", b'{"schema": 1, "seconds": 1e999}'),
    "seconds that are no number": written("manifest.json", b'{"schema": 1, "seconds": NaN}'),
    "manifest that is a pipe": pipe("manifest.json"),
    "no name": changed("manifest.json", name=...),
    "no timings": changed("manifest.json", timings=None),
    "timings in words": changed("manifest.json", timings={"data": "long"}),
    "a status that is a number": changed("manifest.json", status=1),
    "warnings that are text": changed("manifest.json", warnings="none"),
    "a command that is a number": changed("manifest.json", command=7),
    "a seed that is true": changed("manifest.json", seed=True),
    "hashes that are a list": changed("manifest.json", files=[]),
    "no hashes": changed("manifest.json", files={}),
    "no results": lambda folder: (folder / "results.json").unlink(),
    "truncated results": written("results.json", b"{"),
    "changed results": written("results.json", b'{"schema": 1, "measures": []}'),
    "results that are a pipe": pipe("results.json"),
    "results without measures": forged(measures=...),
    "a measure that is a number": forged(measures=[1]),
    "a measure without a card": forged(measures__0__card=None),
    "a matrix without values": forged(measures__0__matrices=[SQUARE]),
    "a matrix in words": forged(measures__0__matrices=[{**SQUARE, "values": 1, "se": None}]),
    "a matrix outside the run": forged(measures__0__matrices=[{**SQUARE, "values": "../manifest.json", "se": None}]),
    "a matrix that is a folder": forged(measures__0__matrices=[{**SQUARE, "values": "arrays", "se": None}]),
    "layers that are a number": forged(measures__0__matrices__0__rows={"model": "a", "layers": 6}),
    "no arrays": lambda folder: [f.unlink() for f in (folder / "arrays").iterdir()],
    "empty array": lambda folder: next((folder / "arrays").iterdir()).write_bytes(b""),
    "another array": lambda folder: np.save(next((folder / "arrays").iterdir()), np.ones((9, 9))),
}


@pytest.mark.parametrize("command", ["show", "plot", "diff"])
@pytest.mark.parametrize("what", RUNS)
def test_run_folders(tmp_path, damaged_run, what, command):
    more = ["RUN", "--output", tmp_path / "new" / "folder"] if command == "diff" else []
    refused(*damaged_run(RUNS[what], command, "RUN", *more))


def refused(code, out, err, left):
    """One line, and no file or folder that was not there before."""
    assert (code, out, left) == (2, "", set()), err
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("error: ")
    assert ";" in err
    assert "Traceback" not in err


@pytest.fixture
def damaged_run(repsim, tmp_path, a_run):
    """damaged_run(change, words...) runs the command on a run that `change` has changed, which stands for RUN
    -> (exit code, stdout, stderr, what is there that was not)."""

    def run(change, *words):
        folder = tmp_path / "outputs" / "2026-01-01" / "run"
        shutil.copytree(a_run, folder)
        change(folder)
        before = set(tmp_path.rglob("*"))
        found = repsim(*(folder if word == "RUN" else word for word in words))
        return *found, set(tmp_path.rglob("*")) - before

    return run


CONFIG_FILES = {
    "bomb": written("config.yaml", BOMB),
    "alias": written("config.yaml", b"model: &m {}\nmeasure: *m\n"),
    "nested": written("config.yaml", DEEP),
    "large": written("config.yaml", b"# " + b"x" * 2_000_000),
    "empty": written("config.yaml", b""),
    "list": written("config.yaml", b"[1]"),
    "unbalanced": written("config.yaml", b"model: {"),
    "binary": written("config.yaml", bytes(range(256))),
    "object": written("config.yaml", b"model: !!python/object:os.system {}"),
    "no number": written("config.yaml", b"seed: 1" + b"0" * 5000),
    "no hardware": changed("config.yaml", hardware=None),
    "models that are text": changed("config.yaml", model="tiny_a"),
}
EDITED = {
    "a pipe": (pipe("config.yaml"), "config.yaml: cannot be read, got no regular file; the run is damaged"),
    "defaults": (changed("config.yaml", defaults=["x"]), "--from: not a key that a run writes, got 'defaults' in its"),
    "hydra": (changed("config.yaml", hydra={}), "--from: not a key that a run writes, got 'hydra' in its config.yaml"),
    "a key": (changed("config.yaml", experiment_=1), "experiment_: unknown key, got 1; known: analyses, base, cache"),
    "no study": (changed("config.yaml", study=...), "study: missing; set it"),
    "a study that is a number": (changed("config.yaml", study=3), "study: wrong value, got 3; give string"),
    "no seed": (changed("config.yaml", seed=...), "seed: missing; set it"),
    "no cache": (changed("config.yaml", cache=...), "cache: missing; set it"),
    "no kind": (changed("config.yaml", model__tiny_a={}), "model.tiny_a.kind: missing, got {}; write {kind: NAME"),
}


@pytest.mark.parametrize("words", [("report", "RUN"), ("run", "--from", "RUN")], ids=["report", "run"])
@pytest.mark.parametrize("what", CONFIG_FILES)
def test_configurations_of_runs(damaged_run, what, words):
    code, out, err, left = damaged_run(CONFIG_FILES[what], *words)
    refused(code, out, err, left)
    assert "config.yaml: " in err


@pytest.mark.parametrize("what", EDITED)
def test_edited_configurations(damaged_run, what):
    change, text = EDITED[what]
    code, out, err, left = damaged_run(change, "run", "--from", "RUN")
    refused(code, out, err, left)
    assert text in err


@pytest.fixture
def a_run(finished):
    """A small complete run."""
    return finished(*MANY, "extract.sequences=10")
