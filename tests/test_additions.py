"""CONTRIBUTING's table is true: each kind of thing is added with the files that it names, here from another folder."""

import json
import re
from pathlib import Path

import pytest
from helpers.forks import forget_repsim, run_in_fork

ROOT = Path(__file__).parent.parent

# by file: what the table of CONTRIBUTING.md names for a measure, a model source, a data kind, an analysis and a study
FILES = {
    "measures/toy.py": '''
"""A toy measure."""
import torch
from repsim_cli.measures.base import Card, Measure, Pairwise
from repsim_cli.base.registry import measures

@measures.register("toy_gap", Card(
    label="toy gap", larger_is_closer=False, bounds=(0.0, None), symmetric=True, is_metric=True,
    invariant_to=frozenset({"orthogonal"}), minimum_rows=2, cost="n d", source="a toy"))
def toy_gap(*, scale: float = 1.0) -> Measure:
    """The difference of the norms of two representations.

    scale: a factor.
    """
    return Pairwise(prepare=lambda x: float(x.double().norm()), compare=lambda a, b: scale * abs(a - b))
''',
    "models/toy.py": '''
"""A toy model source."""
from repsim_cli.models.source import Source
from repsim_cli.base.registry import models

@models.register("toy_model")
def toy_model(*, seed: int = 0) -> Source:
    """A tiny GPT-2 with fresh weights.

    seed: of the weights.
    """
    shape = {"model_type": "gpt2", "vocab_size": 512, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 128}
    return models.get("random").function(config=shape, tokenizer="tiny_a", seed=seed)
''',
    "data/toy.py": '''
"""A toy data kind."""
from repsim_cli.data.packing import Text
from repsim_cli.base.registry import data

@data.register("toy_text")
def toy_text(*, documents: int = 40) -> Text:
    """The same words again and again.

    documents: how many.
    """
    return Text(lambda: (f"rain falls on {i} roofs and runs down the wall " * 20 for i in range(documents)), "a toy")
''',
    "findings/toy.py": '''
"""A toy analysis."""
from collections.abc import Sequence
from dataclasses import dataclass
from repsim_cli.runs.content import Table
from repsim_cli.findings.analysis import Finished, Part, analysis
from repsim_cli.findings.claims import Claim, Fact, HOLDS, claim

@dataclass(frozen=True, kw_only=True)
class Toy:
    """How many layers there are.

    factor: times which.
    """
    factor: int = 1

@claim("a toy", statistic="number of layers", threshold=1.0, unit="fact")
def there_are_layers(count: int) -> Fact:
    """There are layers."""
    return Fact(float(count), HOLDS)

@analysis(studies=("similarity", "toy_study"))
def toy(run: Finished, options: Toy, claims: Sequence[Claim]) -> Part:
    count = options.factor * sum(len(model.layers) for model in run.models.values())
    return Part(tables={"toy": Table(columns=["layers"], rows=[[count]])}, claims=[x.verdict("all", count) for x in claims])
''',
    "studies/toy/__init__.py": '''
"""A toy question."""
''',
    "studies/toy/study.py": '''
"""A toy study."""
from collections.abc import Mapping
from repsim_cli.runs.content import Results, Table
from repsim_cli.models.source import AnySource
from repsim_cli.base.registry import studies
from repsim_cli.runs.results import Run
from repsim_cli.engine.study import Study

@studies.register("toy_study")
class ToyStudy(Study):
    """Counts models.

    most: how many are counted.
    """
    def __init__(self, *, model: Mapping[str, AnySource], most: int = 9):
        self.count = min(len(model), most)

    def plan(self):
        return {"models": self.count}

    def run(self, run: Run) -> Results:
        return Results(study="toy_study", tables={"models": Table(columns=["models"], rows=[[self.count]])})
''',
    "conf/measure/toy_gap.yaml": "# A toy measure\ntoy_gap: {kind: toy_gap, scale: 2.0}\n",
    "conf/model/toy.yaml": "# A toy model\ntoy: {kind: toy_model, seed: 3}\n",
    "conf/data/toy.yaml": "# A toy text\nkind: toy_text\ndocuments: 50\n",
    "conf/experiment/toy.yaml": (
        "# @package _global_\n# Question: a toy\ndefaults:\n  - override /model: [toy, tiny_a]\n"
        "  - override /measure: [toy_gap]\n  - override /data: toy\n\n"
        "name: toy\nanalyses:\n  toy:\n    factor: 2\nclaims: [there_are_layers]\n"
    ),
    "conf/experiment/toy_count.yaml": (
        "# @package _global_\n# Question: a toy\ndefaults:\n  - override /model: [toy, tiny_a]\n\n"
        "name: toy_count\nstudy: toy_study\noptions:\n  most: 1\n"
    ),
}  # fmt: skip
START = """
import sys
import repsim_cli.data, repsim_cli.findings, repsim_cli.measures, repsim_cli.models, repsim_cli.studies
for package in (repsim_cli.data, repsim_cli.findings, repsim_cli.measures, repsim_cli.models, repsim_cli.studies):
    package.__path__.append({folder!r} + "/" + package.__name__.rpartition(".")[2])
from repsim_cli.cli import main
for words in {commands!r}:
    try:
        main(words)
    except SystemExit as end:
        if end.code:
            raise
"""


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.lstrip("\n"))
    return folder


@pytest.mark.slow
def test_each_thing_is_added_with_the_files_that_the_table_names(toys):
    rows = {"toy": ("toy", [[2 * (2 + 6)]]), "toy_count": ("models", [[1]])}
    words = ["run", "-q", "--config-dir", str(toys / "conf"), "hardware.threads=1"]
    commands = [[*words, f"experiment={name}", f"hydra.run.dir={toys / name}"] for name in rows]
    code = START.format(folder=str(toys), commands=commands)
    ended = run_in_fork(lambda: (forget_repsim(), exec(code, {})), cwd=toys)
    assert ended.returncode == 0, ended.stderr
    found = {name: json.loads((toys / name / "results.json").read_text()) for name in rows}
    assert {name: found[name]["tables"][table]["rows"] for name, (table, _) in rows.items()} == {
        name: wanted for name, (_, wanted) in rows.items()
    }
    (measure,) = found["toy"]["measures"]
    assert (measure["name"], measure["settings"]) == ("toy_gap", {"scale": 2.0})
    assert [(claim["name"], claim["verdict"]) for claim in found["toy"]["claims"]] == [("there_are_layers", "holds")]


def test_a_question_is_added_from_its_page_alone(tmp_path):
    """All of the code is on the page of docs/how_to; what its run found stands in sentences."""
    page = (ROOT / "docs" / "how_to" / "question.md").read_text()
    said, _, texts = (re.split(r"^```(\w+)\n(.*?)^```\n", page, flags=re.M | re.S)[start::3] for start in range(3))
    for before, text in zip(said, texts, strict=False):
        for name in re.findall(r"^`([\w/]+\.(?:py|yaml))`", before, re.M):
            file = tmp_path / name.removeprefix("repsim_cli/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    words = ["run", "-q", "--config-dir", str(tmp_path / "conf"), "hardware.threads=1"]
    run = [*words, "experiment=tiny/vocabulary", f"hydra.run.dir={tmp_path / 'run'}"]
    code = START.format(folder=str(tmp_path), commands=[run, ["show", str(tmp_path / "run")]])
    ended = run_in_fork(lambda: (forget_repsim(), exec(code, {})), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "tiny_a: 9.85 % of the weights are of its vocabulary" in ended.stdout


def test_the_table_names_these_files():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for room in ("measures", "models", "data", "findings", "studies"):
        assert f"`repsim_cli/{room}/" in text
