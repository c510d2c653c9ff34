"""The commands of README, docs and help: those of `repsim run` are planned, the others run. The links of all pages."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers.nights import nightly
from safetensors.torch import load_file, save_file

import repsim_cli
from repsim_cli.cli.commands import build_parser
from repsim_cli.config.run import RunKeys
from repsim_cli.studies.vectors.stored import VectorMap

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
TEXT = "\n".join(page.read_text() for page in PAGES)


def commands():
    """Every `$ repsim ...` of a console block, as words."""
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[0] == "repsim":
                yield tuple(words[1:])


PRINTED = list(commands())
(SUB,) = (action.choices for action in build_parser()._actions if isinstance(action.choices, dict))
HELP = [tuple(shlex.split(sub.epilog.removeprefix("example: repsim "))) for sub in (build_parser(), *SUB.values())]
COMMANDS = [*PRINTED, *HELP]


def test_every_command_is_read():
    assert len(PRINTED) == TEXT.count("\n$ repsim ")
    assert {words[0] for words in HELP} == {*SUB}
    assert {words[0] for words in COMMANDS} >= {
        "run",
        "list",
        "show",
        "plot",
        "compare",
        "diff",
        "report",
        "measure",
        "doctor",
    }


LINKED = sorted(
    {
        *PAGES,
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("experiments/*.md"),
        *ROOT.glob("benchmarks/*.md"),
    }
)


def anchors(page):
    """The headings of a page as the parts of links."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_has_a_target(page):
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S))
    for link in links:
        if "://" in link:
            continue
        path, _, part = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.is_file(), link
        assert not part or part in anchors(target), link


@pytest.fixture
def place(tmp_path, tiny_folder, monkeypatch):
    """A working folder with what the pages call corpus.txt, reviews.csv, texts.csv, links.txt, stored rows, DIR and
    ID."""
    from repsim_cli.base.registry import data

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    Path("corpus.txt").write_text("\n\n".join(data.get("embedded_text").function(split="validation").documents()))
    kinds = [f"an opinion of some words and number {i},{i % 2},{('drama', 'comedy')[i % 4 // 2]}" for i in range(120)]
    Path("reviews.csv").write_text("\n".join(["review,stars,genre", *kinds]))
    np.savez("activations.npz", a=x, b=x + rng.normal(size=x.shape))
    for name in ("a", "b"):
        save_file({"layer": torch.tensor(x)}, f"{name}.safetensors")
    np.save("X.npy", x)
    np.save("Y.npy", x @ rng.normal(size=(4, 4)))
    np.save("old.npy", x)
    np.save("new.npy", x[:, ::-1] + 1)
    pq.write_table(pa.table({"vector": list(x)}), "store.parquet")
    sides = {side: {"model": "m", "layer": "rows"} for side in ("from", "to")}
    VectorMap(np.eye(4), np.zeros(4), sides).save("map.safetensors")
    Path("pairs.csv").write_text("\n".join(["en,de", *(f"text {i},Text {i}" for i in range(40))]))
    Path("links.txt").write_text("0-0 1-1\n" * 40)
    Path("pictures.csv").write_text("file,text\n" + "".join(f"red.png,text {i}\n" for i in range(40)))
    PIL.Image.new("RGB", (8, 8), "red").save("red.png")
    for language in ("en", "de"):
        Path(f"corpus.{language}").write_text("".join(f"text {i} of {language}\n" for i in range(40)))
    keys = [f"t{i}" for i in range(60)]
    pq.write_table(pa.table({"ids": keys, "layer": list(x)}), "embeddings.parquet")
    Path("texts.csv").write_text("\n".join(["key,text", *(f"{key},some words of text {key}" for key in keys)]))
    shutil.copytree(tiny_folder("gpt_neox"), "DIR")
    shutil.copytree(tiny_folder("gpt2"), "OTHER")
    Path("models").mkdir()
    for name, kind in (("small", "gpt_neox"), ("copy", "gpt_neox"), ("large", "gpt2")):
        Path("models", name).symlink_to(tiny_folder(kind))
    shutil.copy("corpus.txt", "texts.txt")


@pytest.mark.parametrize("words", [w for w in dict.fromkeys(COMMANDS) if w[0] == "run"], ids=" ".join)
def test_planned(repsim, place, tmp_path, words):
    code, out, err = repsim(*words, "dry_run=true")
    assert (code, err) == (0, "")
    assert out.startswith("plan of ")
    assert not (tmp_path / "outputs").exists()


MAPS = ("study=attention", "data=embedded_sentences", "extract=attention", "measure=[attention_js]")
ROWS = ("measure=[cka]",)
SEVERAL = ("measure=[cka,procrustes,mutual_knn]",)  # which agreement needs
NAMES = {
    "A": "A",
    "B": "B",
    "latest": "z",
    "tiny_pythia_cka": "tiny_pythia_cka",
}  # of runs that began together the last


RUN = [words for words in dict.fromkeys(COMMANDS) if words[0] != "run"]
CODES = {("verify", "tiny_a", "tiny_b"): 1}  # as documented, of models that differ; of all others 0
FIRST = {words[0]: words for words in reversed(RUN)}.values()  # of each command; the others at night


@pytest.mark.parametrize("words", nightly(RUN, *(words for words in RUN if words not in FIRST)), ids=" ".join)
def test_run(repsim, finished, place, tmp_path, words):
    """The runs that a command names are there."""
    if words[0] == "convert":
        Path(words[1]).parent.mkdir(exist_ok=True)
        weights = Path("DIR").rename(words[1]) / "model.safetensors"
        torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
        weights.unlink()
    for name in NAMES.keys() & {*words}:
        measured = MAPS if "--heads" in words else SEVERAL if words[0] == "analyse" else ROWS
        run = finished("model=[tiny_a,tiny_b]", *measured, "extract.sequences=10")
        shutil.copytree(run, tmp_path / "outputs" / NAMES[name])
    if words[:2] == ("map", "fit"):
        Path("map.safetensors").unlink()  # which it makes
    code, out, err = repsim(*words)
    assert code == CODES.get(words, 0), err
    assert out


# a question's files, which register themselves, are run where they belong
ELSEWHERE = (ROOT / "docs" / "how_to" / "question.md").read_text()
BLOCKS = [each for each in dict.fromkeys(re.findall(r"```python\n(.*?)```", TEXT, re.S)) if each not in ELSEWHERE]


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_python(place, block):
    """The blocks of Python, on models, texts and arrays of one's own."""
    from transformers import AutoModel

    x = np.random.default_rng(0).normal(size=(60, 4))
    net = torch.nn.ModuleDict({"layer1": torch.nn.ModuleDict({"conv2": torch.nn.Conv2d(3, 4, 3)})})
    net.forward = lambda images: net["layer1"]["conv2"](images)
    for folder in ("states_a", "states_b"):
        Path(folder).mkdir()
        for i in range(4):
            states = {"hidden_states": torch.randn(9, 3, 4), "token_ids": torch.arange(9) + 10 * i}
            save_file(states, f"{folder}/{i}.safetensors")
    given = {
        "repsim_cli": repsim_cli,
        "models": {"mine": "DIR", "other": "OTHER"},
        "x": x,
        "y": x + 1,
        "old": x,
        "new": x + 1,
        "model": AutoModel.from_pretrained("OTHER"),
        "texts": Path("corpus.txt").read_text().split("\n\n"),
        "net": net,
        "twin": net,
        "batches": [{"pixels": torch.randn(8, 3, 6, 6), "label": torch.zeros(8)}] * 2,
        "loader": [torch.randn(8, 3, 6, 6), torch.randn(8, 3, 6, 6)],
    }
    exec(block, given)


def test_commands_of_the_gallery_name_what_there_is():
    """These commands train for long, or need models that are not shipped: each experiment is planned in
    tests/config/test_config.py, and every other key is one of the configuration."""
    page = (ROOT / "docs" / "gallery.md").read_text().replace("\\\n", " ")
    commands = [shlex.split(line) for line in re.findall(r"^    (repsim .*)$", page, re.M)]
    assert len(commands) == page.count("\n    repsim ") > 5
    keys = {*RunKeys.model_fields, "experiment"}
    for _, command, *words in commands:
        assert command == "run"
        for word in words:
            key, _, value = word.partition("=")
            assert key.lstrip("+").split(".")[0] in keys, word
            if key == "experiment":
                assert (ROOT / "conf" / "experiment" / f"{value}.yaml").is_file(), word
