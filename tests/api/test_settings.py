"""Settings of `compare`: in a program and in words."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from helpers.texts import TEXTS

import repsim_cli
from repsim_cli.api.entries import compose_configuration
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.config.presets import find_conf_folder
from repsim_cli.config.run import validate
from repsim_cli.models.checkpoints import find_shipped
from repsim_cli.runs import reader, results


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tiny_a", "tiny_c"],
            "error: MODEL: neither a model nor a folder, got 'tiny_c'; did you mean 'tiny_b'",
        ),
        (["tiny_a", "TABLE"], "models.a_csv: unknown kind of file, got '.*a.csv'; use a folder, or .gguf, .npy"),
        (["tiny_a", "tiny_b", "--data", "nowhere.txt"], "data: neither a file nor a data set, got 'nowhere.txt'"),
        (
            ["tiny_a", "tiny_b", "--column", "review"],
            "--column: only for a table, got 'review' without one; name the table with --dat",
        ),
        (
            ["tiny_a", "tiny_b", "--data", "TABLE"],
            r"data: .*a.csv, line 2: no column 'text', got 'review', 'stars'; set data.text \(--column\)",
        ),
        (["tiny_a", "tiny_b", "--data", __file__], "data: unknown kind of file, got '.*'; use .txt, .*, .csv, .tsv"),
        (["tiny_a", "tiny_b", "--measure", "cka,cka"], "measures: not distinct, got cka, cka; name each once"),
        (
            ["tiny_a", "tiny_b", "--significance", "permutation", "--set", "significance=none"],
            "significance: given twice, got 'permutation' and significance=none; give one of them",
        ),
        (
            ["tiny_a", "tiny_b", "--rows", "words", "--set", "extract=tokens"],
            "rows: given twice, got 'words' and extract",
        ),
        (
            ["tiny_a", "tiny_b", "--measure", "cka", "--set", "measure=[rsa]"],
            "measures: given twice, got .*cka.* and me",
        ),
        (
            ["tiny_a", "tiny_b", "--budget", "--set", "significance.budget=false"],
            "budget: given twice, got false and t",
        ),
        (
            ["tiny_a", "tiny_b", "--data", "TABLE", "--set", "data.path=other.csv"],
            "data: given twice, got '.* and data.path=other.csv; give one of them",
        ),
        (
            ["tiny_a", "tiny_b", "--data", "TABLE", "--column", "stars"],
            "a.csv: it has no examples, got 1 with an empty text",
        ),
        (["tiny_a", "nosuch/"], "models?.nosuch.path: no such folder, got 'nosuch'"),
        (["tiny_aa", "tiny_bb"], "compare: neither a run nor a model, got 'tiny_aa'; did you mean 'tiny_a'"),
        (["tiny_a", "tiny_b", "--measure", "rsa, ckaa"], "measures: no such measure, got 'ckaa'; did you mean 'cka'"),
    ],
)
def test_bad_words(repsim, words, message, tmp_path):
    (tmp_path / "a.csv").write_text("review,stars\nfine,\n")
    code, _, err = repsim("compare", *(str(tmp_path / "a.csv") if word == "TABLE" else word for word in words))
    assert code == 2
    assert re.search(message, err), err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["local_text", "ptb"])
def test_a_data_set_by_its_name_is_read_from_a_path(repsim, name, tmp_path):
    """One that has no path of its own, or waits for one."""
    (tmp_path / "a.txt").write_text("a line of words\n" * 40)
    for file, expected in (("a.txt", 0), ("b.txt", 2)):
        words = ["--data", name, "--set", f"data.path={tmp_path / file}", "--set", "dry_run=true"]
        code, _, err = repsim("compare", "tiny_a", "tiny_b", *words)
        assert (code, "no such file" in err) == (expected, expected == 2), err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": 3}, "data: neither texts nor \\(text, label\\) pairs, got int"),
        ({"data": []}, "data: neither texts nor \\(text, label\\) pairs, got list of no text"),
        ({"data": [b"a"]}, "data: neither texts nor \\(text, label\\) pairs, got list of bytes"),
        ({"data": ["", " "]}, "data: no text, got 2 texts of white space or nothing; give texts"),
        ({"data": [("", "a")]}, "data: no text, got 1 text of white space or nothing; give texts"),
        ({"settings": {"extract": "poold"}}, "extract: no such name, got 'poold'; did you mean 'pooled'"),
        ({"settings": {"extract": {"sequence": 3}}}, "extract.sequence: unknown key"),
        ({"data": "embeded"}, "data: neither a file nor a data set, got 'embeded'; did you mean 'embedded'"),
        ({"measures": ["ckaa"]}, "measures: no such measure, got 'ckaa'; did you mean 'cka'"),
        ({"rows": "word"}, "rows: unknown, got 'word'; use auto, tokens, words or pooled"),
        ({"maps": "flat"}, "maps: unknown, got 'flat'; use flattened, pooled or positions"),
        ({"significance": "permute"}, "significance: no such name, got 'permute'; did you mean 'permutation'"),
        ({"layers": ["resid_pots"]}, "extract.hook_points, model.tiny_a: no such module, got 'module:resid_pots'"),
        ({"settings": {"seed.x": 3}}, "seed: wrong value, got {'x': 3}; give integer"),
        ({"settings": {"extract.sequence": 3}}, "extract.sequence: unknown key"),
        ({"settings": {"options": {1: 2}}}, "^options: a name that is not text, got 1; put it in quotes"),
        ({"device": "cpuu"}, r"^hardware.device: unknown device, got 'cpuu'; did you mean 'cpu'\?$"),
        ({"device": object()}, "^device: not a plain value, got <object .*; give text or a number"),
        ({"seed": [1]}, r"^seed: not a plain value, got \[1\]; give text or a number"),
    ],
)
def test_bad_settings(given, message):
    with pytest.raises(BadInput, match=message):
        repsim_cli.compare(["tiny_a"], **given)


@pytest.mark.parametrize("label", [1, "", " ", None, ("a",), True])
def test_labels_are_text(label):
    x = np.random.default_rng(0).normal(size=(60, 4))
    said = f"^models: a label is text, got {re.escape(repr(label))}; write {{'base': ..., 'tuned': ...}}"
    with pytest.raises(BadInput, match=said):
        repsim_cli.compare({label: x, "b": x})
    if label not in ("", " "):
        said = r"^models.a: arrays: layers are named by text, got .*; give {'layer 1': array}"
        with pytest.raises(BadInput, match=said):
            repsim_cli.compare({"a": {label: x}, "b": x})


def test_an_empty_label_of_a_configuration():
    config = compose_configuration({"": {"kind": "shipped", "name": "tiny_a"}}, None, ["cka"], "auto", "none", {})
    with pytest.raises(BadInput, match="^model: an empty label, got ''; give it letters"):
        validate(config)


def test_what_the_study_never_reads_is_refused_as_of_a_command():
    given = {"study": "layers", "extract": "texts", "extract.rows": 300, "significance.alpha": 0.1}
    with pytest.raises(BadInput) as refused:
        repsim_cli.compare(["tiny_a", "tiny_b"], settings=given)
    assert str(refused.value).splitlines() == [
        "extract.rows: the study layers does not read it, got 300; leave it out",
        "significance.alpha: the study layers does not read it, got 0.1; leave it out",
    ]
    x = np.random.default_rng(0).normal(size=(60, 5))
    with pytest.raises(BadInput, match=r"hardware\.tile: the study vector_map does not read it, got 64; leave it out"):
        repsim_cli.fit_map(x, x[:, ::-1].copy(), kinds=["ridge"], settings={"hardware.tile": 64})


def test_settings_of_numpy_and_torch():
    x = np.random.default_rng(0).normal(size=(60, 4))
    found = repsim_cli.compare(
        {"a": x, "b": x},
        device=torch.device("cpu"),
        seed=np.int64(3),
        batch_size=np.int32(4),
        settings={"extract.rows": np.int64(30)},
    )
    assert found.results.measures


@pytest.mark.slow
def test_models_are_named_in_a_word(repsim, newest):
    place = find_shipped("tiny_a")
    code, _, err = repsim("run", f"model.mine={place}", "model.other=tiny_b", "measure=[cka]", "extract.sequences=9")
    assert code == 0, err
    assert list(repsim_cli.load(newest()).manifest["models"]) == ["mine", "other"]
    code, out, err = repsim("run", f"model.mine={place}", "model=[tiny_b]", "dry_run=true")
    assert code == 0, err
    assert all(label in out for label in ("mine", "tiny_b"))
    code, out, err = repsim("run", "model.mine=tiny_nli", "data=overlap_nli", "extract=pooled", "dry_run=true")
    assert code == 0, err  # an entry of several levels, and a family
    assert "mine_19" in out
    code, _, err = repsim("run", "model.mine=tiny_c")
    assert code == 2
    assert err.startswith("error: MODEL: neither a model nor a folder, got 'tiny_c'; did you mean 'tiny_b' or")


@pytest.mark.parametrize(("lost", "unit"), [("nothing", "token"), ("merges", "word")])
def test_rows_are_words_where_tokenizers_of_one_vocabulary_cut_text_otherwise(repsim, newest, tmp_path, lost, unit):
    folder = tmp_path / "other"
    shutil.copytree(find_shipped("tiny_a"), folder)
    settings = json.loads((folder / "tokenizer.json").read_text())
    merges = settings["model"]["merges"]
    settings["model"]["merges"] = merges[: len(merges) // 2] if lost == "merges" else merges
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    code, _, err = repsim("compare", "tiny_a", folder, "--measure", "cka", "--set", "extract.sequences=4")
    assert code == 0, err
    assert repsim_cli.load(newest()).manifest["data"]["unit"] == unit


@pytest.mark.slow
def test_settings_of_a_comparison_in_words(repsim, newest, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("\n\n".join(TEXTS))
    words = [
        "compare",
        "tiny_a",
        "tiny_b",
        "--data",
        file,
        "--measure",
        "cka_unbiased",
        "--set",
        "data.sample_by=paragraph",
        "--set",
        "extract.layers=[0,-1]",
    ]
    code, out, err = repsim(*words, "--set", "extract.batch_rows=300", "--significance", "permutation", "--set", "significance.permutations=19")  # fmt: skip
    assert code == 0, err
    assert "    chance: " in out
    run = repsim_cli.load(newest())
    assert run.results.measures[0].null["permutations"] == 19
    code, out, err = repsim(*words, "--set", "extract.sequences=2", "--set", "extract.batch_rows=100")
    assert code == 0, err
    assert re.search(r"\n  data: 2 of \d+ sequences of .*; more by --set extract.sequences=N\n", out), out
    code, out, err = repsim(*words, "--set", "extract.sequences=2", "--set", "extract.pool=3", "--set", "extract.batch_rows=100")  # fmt: skip
    assert code == 0, err
    assert "\n  data: 2 of the first 3 sequences of " in out
    for given, message in {
        "extract.batch_row=3": "extract.batch_row: ",
        "extract": "overrides: cannot be read, got extract; write KEY=VALUE",
        "extract.rows=[1": """overrides: cannot be read, got extract.rows=[1; write 'extract.rows="[1"';""",
        "sed=1": "sed: unknown key, got 'sed=1'; did you mean 'seed'?",
        "extract=word": "extract: no such name, got 'word'; did you mean 'words'?",
        "experiment=tiny/pythia_cka": "experiment: unknown key of a comparison, got 'experiment'; use repsim run",
        "model=[tiny_a]": "model: unknown key of a comparison, got 'model'; use repsim run",
    }.items():
        code, _, err = repsim(*words, "--set", given)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    code, _, err = repsim("compare", newest(), "latest")
    assert (code, err) == (
        2,
        f"error: compare: only for models, got the run '{newest()}'; use repsim diff {newest()} latest\n",
    )
    code, _, err = repsim("compare", "tiny_a", "latest")
    assert (code, "error: compare: a run and a model cannot be compared, got the run 'latest' and the" in err) == (
        2,
        True,
    )


@pytest.mark.slow
def test_a_comparison_takes_what_a_run_takes(repsim, newest):
    """Selections, switches and additions of Hydra; and the plan alone."""
    words = [
        "compare",
        "tiny_a",
        "tiny_b",
        "--set",
        "measure=[cka,rsa]",
        "--set",
        "extract=pooled",
        "--set",
        "extract.rows=64",
        "--set",
        "extract.sequences=64",
    ]
    code, out, err = repsim(*words, "--set", "dry_run=true")
    assert (code, err) == (0, "")
    assert out.startswith("plan of compare (nothing was run)\n  models\n    tiny_a: ")
    assert "\n  measures: cka, rsa\n" in out
    assert not list(results.find_outputs_root().rglob("manifest.json"))
    code, out, err = repsim(*words, "--set", "+analyses.blocks={least: 5}", "--set", "figures=all")
    assert code == 0, err
    config = reader.read_config(newest())
    assert list(config["measure"]) == ["cka", "rsa"]
    assert (config["extract"]["unit"], config["extract"]["rows"], config["figures"]["which"]) == ("mean", 64, "all")
    assert config["analyses"]["blocks"] == {"least": 5}
    with pytest.raises(BadInput, match="dry_run: a plan has no result, got true; use repsim compare A B --set dry_run"):
        repsim_cli.compare(["tiny_a", "tiny_b"], settings={"dry_run": True})


def test_the_hydra_of_a_program_stays_as_it_was():
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_dir(str(find_conf_folder()), version_base="1.3"):
        before = GlobalHydra.instance().hydra
        assert configuration_of({})["name"] == "compare"
        assert GlobalHydra.instance().hydra is before
        assert compose("config", ["seed=3"]).seed == 3


@pytest.mark.parametrize("text", ["a b", "a\\", 'a\\"b', "ä\n'c'", "", "1", "null", "{x"])
def test_settings_are_what_a_program_gives(text):
    """Quotes and symbols stay, whatever the grammar of Hydra makes of them."""
    given = {"data.path": text, "options": {"a b": [text, None], "c=d": {"e": 0.5}}, "groups": {"g": [text, "b"]}}
    config = configuration_of(given)
    assert config["data"]["path"] == text
    assert config["options"] == given["options"]
    assert config["groups"] == given["groups"]


def test_a_word_for_figures_beside_their_settings():
    chosen = configuration_of({"figures": "all", "figures.width": "column"})
    assert {**chosen["figures"], "which": "all", "width": "column"} == chosen["figures"]
    assert configuration_of({"figures.width": "column", "figures": "all"})["figures"] == chosen["figures"]
    with pytest.raises(BadInput, match="seed: wrong value, got {'more': 1}; give integer"):
        validate(configuration_of({"seed.more": 1}))


def configuration_of(settings):
    return compose_configuration({"a": {"kind": "shipped", "name": "tiny_a"}}, None, [], "tokens", "none", settings)


def test_a_measure_that_is_not_paired_has_no_null_of_pairings():
    """Said of one that does not claim it, and not of one that random pairings move."""

    def row_norm_ratio(x, y):
        return (x.norm(dim=1).mean() / y.norm(dim=1).mean()).log().abs()

    draw = np.random.default_rng(0)
    models = {"x": draw.normal(size=(60, 4)), "y": 3 + draw.normal(size=(60, 4))}
    repsim_cli.register_measure("row_norm_ratio", larger_is_closer=False)(row_norm_ratio)
    try:
        found = repsim_cli.compare(
            models, measures=["row_norm_ratio", "cka"], significance="permutation",
            settings={"significance.clusters": "row"},
        )  # fmt: skip
    finally:
        registry.measures.forget()
    nulls = {measured.name: measured.null for measured in found.results.measures}
    assert "not_valid" not in nulls["cka"]
    (said,) = nulls["row_norm_ratio"]["not_valid"]
    assert said.startswith("no pairing of the rows that was drawn changes a value")
    assert any(said in warning for warning in found.warnings)
