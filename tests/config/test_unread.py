"""What is set and the study can never use is refused; what stands in the defaults and in older runs is not."""

import json
import re
import shutil

import pytest
import yaml
from helpers.composing import composed
from omegaconf import OmegaConf

from repsim_cli.base.registry import studies
from repsim_cli.config.run import validate

TWO = "model=[tiny_a,tiny_b]"
# of keys that a study may never read: values that no file has
OTHERS = {
    "extract.hook_points": ["embed"],
    "extract.layers": [1],
    "extract.unit": "mean",
    "extract.padding": "keep",
    "extract.estimate": "ratio_of_sums",
    "extract.rows": 77,
    "extract.batch_rows": 33,
    "extract.keep_texts": True,
    "hardware.resident": "one",
    "hardware.tile": 16,
    "significance.chance": False,
    "significance.floor": False,
    "significance.family": "max_t",
    "significance.family_of": "run",
}
FORCED = {"significance.jackknife", "significance.bands"}  # whose other values do not suit all measures and estimates
RUNS = {
    "attention": (
        TWO,
        "measure=[attention_js]",
        "data=embedded_sentences",
        "extract=attention",
        "extract.sequences=30",
    ),
    "dictionary_transfer": ("experiment=tiny/dictionary_transfer", "extract.sequences=20", "options.recipe.steps=2"),
    "layers": ("model=[tiny_a]", "extract=texts", "extract.sequences=60", "options.without=8"),
    "likelihoods": (TWO, "extract=words", "extract.sequences=20"),
    "outputs": (TWO, "extract.sequences=8"),
    "stitching": (TWO, "extract.sequences=16", "extract.layers=[1]", "options.recipe.layer=identity"),
    "universal_neurons": (TWO, "extract.hook_points=[mlp_post]", "extract.estimate=moments", "extract.sequences=8"),
    "universality": (
        "model=[tiny_a,tiny_a_step400,tiny_b]",
        "measure=[cka_unbiased]",
        "significance=permutation",
        "significance.permutations=39",
        "extract.estimate=full",
        "extract.sequences=24",
        "extract.length=32",
        "+options.factors={any: {base: tiny_a, values: {less: tiny_a_step400, other: tiny_b}}}",
    ),
}


def said(study, path, got):
    return f"error: {path}: the study {study} does not read it, got {got}; leave it out\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["study=architecture", "measure=[cka]"], [("measure", "cka")]),
        (["study=pretrain", "model=[tiny_plain]"], [("model", "tiny_plain")]),
        (["study=grounding", "data.documents=5"], [("data", "documents=5")]),
        (["study=probes", "significance.alpha=0.1"], [("significance.alpha", "0.1")]),
        (["study=finetune", "hardware.device=cuda"], [("hardware.device", "cuda")]),
        (["study=probes", "extract=pooled", "extract.keep_texts=true"], [("extract.keep_texts", "true")]),
        (["study=outputs", "extract.hook_points=[embed]"], [("extract.hook_points", "[embed]")]),
        (
            ["study=outputs", "hardware.resident=one", "hardware.tile=64"],
            [("hardware.resident", "one"), ("hardware.tile", "64")],
        ),
        (["study=pretrain", "hardware.resident=one"], [("hardware.resident", "one")]),
    ],
)
def test_refused(repsim, words, expected):
    code, _, err = repsim("run", *words, "dry_run=true")
    assert code == 2
    assert all(said(words[0].partition("=")[2], *each) in err for each in expected), err


def test_a_file_is_refused_in_one_line(repsim):
    code, _, err = repsim("run", "study=finetune", "hardware=cuda", "hardware.batch_size=3", "dry_run=true")
    assert code == 2
    assert "error: hardware: the study finetune does not read device and tile, got cuda; leave it out\n" in err
    assert said("finetune", "hardware.batch_size", "3") in err
    assert "hardware.tile" not in err


def test_measures_that_may_be_skipped_where_there_are_none(repsim):
    code, _, err = repsim("run", "study=architecture", "skip_unsuitable=true", "dry_run=true")
    assert (code, err) == (
        2,
        "error: skip_unsuitable: the study architecture takes no measures, got true; leave it out\n",
    )


@pytest.mark.parametrize(
    "words",
    [
        ["study=architecture"],
        ["study=architecture", "data=embedded", "measure=[cka_unbiased]", "significance.level=0.9"],
        ["study=architecture", "hardware=slurm", "hardware.device=cuda", "hardware.price_per_node_hour=1"],
        ["study=layers", "extract=texts", "hardware=cuda"],  # which has a side of tiles
        ["study=outputs", "extract=pooled"],  # has an estimate, hook points and numbers of rows
    ],
)
def test_defaults_files_and_what_every_run_reads_pass(repsim, words):
    code, _, err = repsim("run", *words, TWO, "dry_run=true")
    assert code == 0, err


def test_a_file_of_ones_own_passes(repsim, tmp_path):
    (tmp_path / "extract").mkdir()
    whole = OmegaConf.to_container(composed("extract=words").extract)
    (tmp_path / "extract" / "mine.yaml").write_text(yaml.safe_dump({**whole, "rows": 50}))
    code, _, err = repsim("run", "--config-dir", tmp_path, "study=likelihoods", TWO, "extract=mine", "dry_run=true")
    assert code == 0, err


def change(folder, study):
    """Sets all that the study never reads in the configuration of a run, as an older version accepted it."""
    keys = yaml.safe_load((folder / "config.yaml").read_text())
    for path in set(studies.get(study).function.unread) - FORCED:
        group, _, key = path.partition(".")
        keys[group][key] = OTHERS[path]
    (folder / "config.yaml").write_text(yaml.safe_dump(keys))


def measured(folder):
    results = json.loads((folder / "results.json").read_text())
    arrays = {file.name: file.read_bytes() for file in sorted(folder.glob("arrays/*.npy"))}
    return {key: results[key] for key in ("tables", "curves", "matrices", "measures", "about")}, arrays


@pytest.mark.slow
@pytest.mark.parametrize("study", RUNS)
def test_what_is_never_read_changes_nothing(repsim, newest, tmp_path, study):
    """An older run that set it can be repeated."""
    code, _, err = repsim("run", f"study={study}", *RUNS[study], "cache=" + str(study == "universality").lower())
    assert code == 0, err
    first = newest()
    older = tmp_path / "older"
    shutil.copytree(first, older)
    change(older, study)
    code, _, err = repsim("run", "--from", older)
    assert code == 0, err
    assert newest() != first
    assert measured(newest()) == measured(first)


def test_every_study_that_names_such_keys_is_run_here():
    named = {name for name in studies.names() if set(studies.get(name).function.unread) - {"extract.keep_texts"}}
    assert named == RUNS.keys()


def test_a_run_of_another_study_is_repeated_without_what_is_not_read(repsim, finished, tmp_path):
    folder = finished("model=[tiny_a]", "measure=[rsa]", "extract.sequences=4")
    code, _, err = repsim("run", "--from", folder, "study=architecture", "dry_run=true")
    assert code == 0, err
    code, _, err = repsim("run", "--from", folder, "study=architecture", "measure=[cka]", "dry_run=true")
    assert (code, err) == (2, said("architecture", "measure", "cka"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["significance.permutations=99", "significance.alpha=0.01"], {"permutations": "99", "alpha": "0.01"}),
        (["significance=permutation", "significance.permutations=99", "significance.alpha=0.01"], {}),
        (
            ["significance=closed_form", "significance.permutations=99", "significance.clusters=row"],
            {"permutations": "99"},
        ),
    ],
)
def test_settings_of_a_test_that_is_not_made_are_said(words, said):
    notes = validate(composed("model=[tiny_a]", "measure=[cka_unbiased]", *words, "dry_run=true")).notes
    assert dict(re.findall(r"significance\.(\w+): only for .*?, got (\S+) with", "\n".join(notes))) == said
