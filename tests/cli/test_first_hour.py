"""What a user meets in the first hour: `compare` does what `run` does, with the same words, records and ways to go on."""

import errno
import json
import os
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.typed import untyped
from safetensors.torch import save_file

import repsim_cli
from repsim_cli.activations import inputs
from repsim_cli.base import documents
from repsim_cli.base.errors import BadInput
from repsim_cli.base.planning import collect_unfit
from repsim_cli.base.settings import Extract
from repsim_cli.config.compose import compose
from repsim_cli.config.presets import find_model_entry
from repsim_cli.data import files
from repsim_cli.data.network import add_owner
from repsim_cli.data.table import table
from repsim_cli.data.text import local_text
from repsim_cli.engine.record import APART
from repsim_cli.models import checkpoints
from repsim_cli.models.complete import check_blocks, find_block_lists
from repsim_cli.models.series import is_native
from repsim_cli.runs import reader, results


@pytest.fixture
def pair(tmp_path):
    """Two files of activations, of 60 rows."""
    draws = np.random.default_rng(0)
    files = [tmp_path / "one" / "model.npz", tmp_path / "two" / "model.npz"]
    for file in files:
        file.parent.mkdir()
        np.savez(file, first=draws.normal(size=(60, 4)), second=draws.normal(size=(60, 4)))
    return tuple(map(str, files))


def test_compare_keeps_what_run_keeps(repsim, pair, newest):
    """Settings one after the other; the command, the changed settings and a log; nothing but errors where it is
    quiet."""
    code, _, err = repsim("compare", *pair, "--set", "seed=1", "extract.rows=50")
    assert code == 0, err
    manifest = json.loads((newest() / "manifest.json").read_text())
    assert manifest["command"] == ["repsim", "compare", *pair, "--set", "seed=1", "extract.rows=50"]
    assert (manifest["overrides"], manifest["seed"]) == (["seed=1", "extract.rows=50"], 1)
    assert [*manifest["models"]] == ["one", "two"]
    assert "similarity ..." in (newest() / "repsim.log").read_text()
    assert repsim("compare", *pair, "-q")[:2] == (0, "")
    code, _, err = repsim("compare", *pair, "--set", "seed=1", "--nothing", "b=2")
    assert (code, err.splitlines()[-1]) == (
        2,
        "error: repsim compare: unknown words, got --nothing b=2; see repsim compare --help",
    )


def test_an_interrupted_comparison_goes_on(repsim, pair, newest, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("repsim_cli.findings.analyse.analyse", stopped)
        code, _, err = repsim("compare", *pair, "--set", "seed=2")
    assert (code, err.splitlines()[-1]) == (130, "interrupted; the same command with --set resume=latest resumes it")
    folder = newest()
    code, out, err = repsim("compare", *pair, "--set", "seed=2", "resume=latest")
    assert (code, newest()) == (0, folder)
    assert f"resuming {folder}" in err
    assert f"folder: {folder}" in out or str(folder) in out
    code, out, _ = repsim("compare", *pair, "--set", "seed=2", "resume=latest")
    assert (code, out) == (0, f"{folder}: already complete, nothing is left to do\n")
    code, _, err = repsim("compare", *pair, "--set", "seed=3", "resume=latest")
    assert (code, err.splitlines()[-1].split(",")[0]) == (2, "error: resume: no unfinished run of this configuration")


def test_a_comparison_that_fails_ends_with_1(repsim, pair, newest, monkeypatch):
    monkeypatch.setattr("repsim_cli.findings.analyse.analyse", lambda *_, **__: 1 / 0)
    code, out, err = repsim("compare", *pair)
    assert (code, out) == (1, "")
    assert "internal error: ZeroDivisionError: division by zero; please report it with" in err
    assert json.loads((newest() / "manifest.json").read_text())["status"] == "failed"


def test_the_time_of_a_run_that_is_running(repsim, tmp_path):
    run = results.create(
        tmp_path / "outputs" / "a" / "b", name="x", study="similarity", seed=0, command=[], overrides=[]
    )
    run.manifest["started"] = (datetime.now(UTC) - timedelta(minutes=15)).isoformat()
    run.save_manifest()
    code, out, _ = repsim("show", "latest")
    assert code == 0
    assert out.startswith("x: running, 90")
    run.lock.release()
    assert repsim("show", "latest")[1].startswith("x: killed, seed 0\n")


@pytest.fixture
def text(tmp_path):
    """A .txt of a single document."""
    words = np.random.default_rng(0).choice(["the", "bug", "of", "a", "hacker", "is", "not", "loop"], 4000)
    (tmp_path / "mine.txt").write_text(" ".join(words))
    return tmp_path / "mine.txt"


@pytest.mark.slow
def test_significance_of_one_document(repsim, text, newest):
    """Its sequences stand for documents, and the warning says so; the value itself is that of all pairs of rows."""
    words = [
        "compare",
        "tiny_a",
        "tiny_b",
        "--data",
        text,
        "--measure",
        "cka_unbiased",
        "--significance",
        "permutation",
    ]
    words += ["--set", "extract.sequences=16", "extract.length=32", "significance.permutations=19"]
    code, _, err = repsim(*words)
    assert code == 0, err
    manifest = json.loads((newest() / "manifest.json").read_text())
    assert [
        w for w in manifest["warnings"] if w.startswith("significance.clusters: the text is one document, got 16 sequ")
    ]
    whole = json.loads((newest() / "results.json").read_text())
    (measured,) = whole["measures"]
    assert measured["estimate"]["kind"] == "full"
    assert measured["estimate"]["pairs"] == "all"
    assert measured["null"]["share"] > 0.9


def test_the_last_sequences_of_one_document_are_held_out():
    from repsim_cli.data.base import Sequences
    from repsim_cli.studies.stitching.held_out import split_sequences

    full = np.ones((6, 4), bool)
    ids, document = np.arange(24).reshape(6, 4), np.zeros((6, 4), int)
    train, held = split_sequences(Sequences(ids, full, full, document, ids, 1), 2, True)
    assert (train.ids.tolist(), held.ids.tolist()) == (ids[:4].tolist(), ids[4:].tolist())


@pytest.mark.parametrize(
    ("word", "better"),
    [
        ("data.path=文本.txt", """'data.path="文本.txt"'"""),
        ("data.path=a=b[1].txt", """'data.path="a=b[1].txt"'"""),
        (
            "+model.a={kind: transformers, path: my models/epoch=9 (best)}",
            """'+model.a={kind: "transformers", path: "my models/epoch=9 (best)"}'""",
        ),
        ("+model.b-7.5B={kind: shipped, name: tiny_a}", """'+model={b-7.5B: {kind: "shipped", name: "tiny_a"}}'"""),
        ("+model.模型={kind: shipped}", "KEY=VALUE, with quotes around values"),
        ("nothing", "KEY=VALUE, with quotes around values"),
    ],
)
def test_a_word_that_cannot_be_read_gets_one_that_can(word, better):
    with pytest.raises(BadInput) as refused:
        compose(["seed=1", word])
    assert str(refused.value).startswith(f"overrides: cannot be read, got {word}; write {better}")


@pytest.mark.parametrize("word", ["+experiment=tiny/pythia_cka", "+data=embedded"])
def test_a_group_with_a_plus(word):
    with pytest.raises(BadInput, match=rf": a group is selected without \+, got '\{word}'; write {word[1:]}$"):
        compose([word])


@pytest.mark.parametrize(
    ("name", "hub"),
    [("gpt2", "openai-community/gpt2"), ("bert-base-uncased", "google-bert/bert-base-uncased"), ("t5-small", "google-t5/t5-small")],
)  # fmt: skip
def test_ids_of_the_hub_without_an_owner(name, hub):
    assert find_model_entry(name) == {"kind": "transformers", "hub": name}
    assert add_owner(name) == hub
    with pytest.raises(BadInput, match=r"^hub: an id has an owner, got 'mine'; write OWNER/mine, as the page"):
        add_owner("mine")
    with pytest.raises(BadInput, match=r"got 'llama'; .* \(an id of the hub is OWNER/NAME\)$"):
        find_model_entry("llama")


def test_two_sets_of_weights(tmp_path, monkeypatch):
    """The single file is used, which is said once; an index whose files are not there is named."""
    index, first, single = "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model.safetensors"
    for name in (first, single):
        save_file({"a": torch.zeros(1)}, tmp_path / name)
    warned = []
    monkeypatch.setattr(checkpoints.log, "warning", lambda text, *given: warned.append(text % given))
    checkpoints.check_stray(tmp_path)
    checkpoints.check_stray(tmp_path)
    assert checkpoints.find_weight_files(tmp_path) == [tmp_path / single]
    (said,) = warned
    assert f"two sets of weights are in '{tmp_path}'; model.safetensors is used, and not the 1 files {first}" in said
    (tmp_path / single).unlink()
    (tmp_path / index).write_text(json.dumps({"weight_map": {"a": "model-00001-of-00004.safetensors"}}))
    with pytest.raises(BadInput) as refused:
        checkpoints.find_weight_files(tmp_path)
    assert str(refused.value).startswith(
        f"path: {index} names model-00001-of-00004.safetensors, which is not there, got 1 "
    )
    (tmp_path / index).write_text('{"weight_map": {}}')
    with pytest.raises(BadInput, match="does not name files of its folder, got '{}'"):
        checkpoints.find_weight_files(tmp_path)


def test_text_that_a_parquet_file_has_as_bytes(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    texts = ["caf\u00e9 one", "two"]
    columns = {"text": pa.array([t.encode() for t in texts], pa.binary()), "coded": pa.array(texts).dictionary_encode()}
    columns["bad"] = pa.array([b"\xff", b"\xfe"], pa.binary())
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    for column in ("text", "coded"):
        assert list(local_text(path=str(tmp_path / "t.parquet"), column=column).documents()) == texts
    assert [each.texts for each in table(path=str(tmp_path / "t.parquet"), text="text").examples()[0]] == [
        (t,) for t in texts
    ]
    with pytest.raises(BadInput, match="row 0: column 'bad' is not text, got bytes that are not UTF-8"):
        local_text(path=str(tmp_path / "t.parquet"), column="bad")


def test_a_checkpoint_that_lacks_a_block():
    """The lack is known from the names of the weights alone; files that name blocks otherwise are left to the run."""
    skeleton = torch.nn.Module()
    skeleton.h = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(3))
    names = {f"transformer.h.{block}.weight" for block in range(3)}
    lists = find_block_lists(skeleton, 3)
    check_blocks(lists, 3, names, "x")
    check_blocks(lists, 3, {"other.0.weight"}, "x")
    with pytest.raises(BadInput, match="^path: weights of block 1 are missing, got 2 of 3 blocks in 'x'; save"):
        check_blocks(lists, 3, names - {"transformer.h.1.weight"}, "x")


def test_a_file_without_weights(tmp_path):
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match="^path: no weights in model.safetensors, got an empty file in "):
        checkpoints.find_weight_files(tmp_path)


def test_pipes_and_huge_documents_where_files_are_expected(tmp_path):
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    os.mkfifo(tmp_path / "data.arrow")
    with pytest.raises(BadInput, match=r"data\.arrow: not a regular file, got a pipe or a device; copy its content"):
        files.read_saved(tmp_path)
    with (tmp_path / "config.json").open("wb") as config:
        config.truncate(documents.MOST + 1)
    assert not is_native(tmp_path)
    with pytest.raises(BadInput, match=r"config\.json cannot be used, got .*more than"):
        files.read_json_file(tmp_path / "config.json")


def test_the_end_is_recorded_within_a_limit_of_the_size_of_files(tmp_path, monkeypatch):
    run = results.create(tmp_path / "run", name="x", study="similarity", seed=0, command=["repsim"], overrides=[])
    run.manifest["warnings"].append("long " * 1000)
    write = results.write

    def limited(file, content):
        if len(content) > 2000:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(file))
        write(file, content)

    monkeypatch.setattr(results, "write", limited)
    with pytest.raises(OSError, match="File too large"):
        run.finish("complete")
    run.lock.release()
    manifest = reader.read_manifest(run.folder)
    assert (manifest["status"], manifest["packages"]) == ("failed", {})
    assert "File too large" in manifest["error"]


def test_verify_refuses_before_it_loads(monkeypatch):
    monkeypatch.setattr("repsim_cli.api.verify.load_sides", lambda *_: pytest.fail("models are loaded"))
    with pytest.raises(BadInput, match=r"^layer_ids: only for stored activations, got \[0\] with two models; drop it"):
        repsim_cli.verify("tiny_a", "tiny_b", layer_ids=[0])


@untyped
def test_a_plan_tokenizes_the_beginning_of_the_text(text):
    """Ids beyond the vocabulary are refused by a dry run too."""

    def tokenizer(given, **_):
        return {"input_ids": [ord(letter) for letter in given]}

    source = SimpleNamespace(tokenizer=lambda: tokenizer, modality="text", vocabulary=100)
    given = ({"mine": source}, local_text(path=str(text)), Extract(hook_points=["embed"], unit="mean"))
    assert inputs.load_tokenizers(*given) == {"mine": tokenizer}
    with (
        collect_unfit(dry=True),
        pytest.raises(BadInput, match="^model.mine: its vocabulary has 100 tokens, got id 11"),
    ):
        inputs.load_tokenizers(*given)


@pytest.mark.slow
def test_matrices_of_very_many_models_share_a_file(repsim, newest, tmp_path):
    """Values, chance and what is made of them are those of few models; a path that names no block is one line."""
    draw, count = np.random.default_rng(0), 45
    assert count * (count + 1) / 2 > APART
    for number in range(count):
        np.savez(tmp_path / f"{number}.npz", a=draw.normal(size=(40, 3)), b=draw.normal(size=(40, 4)))

    def run(models):
        entries = [f"+model.m{i}={{kind: precomputed, path: {tmp_path}/{i}.npz}}" for i in range(models)]
        words = ["model=[]", "measure=[cka_unbiased,linear_regression]", "extract.estimate=full", *entries]
        assert repsim("run", "-q", *words)[0] == 0
        return newest()

    apart, together = run(3), run(count)
    names = {
        f"{measure}-{what}.npy" for measure in ("cka_unbiased", "linear_regression") for what in ("values", "chance")
    }
    assert {file.name for file in (together / "arrays").iterdir()} == names
    found, before = (reader.read_results(folder) for folder in (together, apart))
    for measured, other in zip(found.measures, before.measures, strict=True):
        of = {(matrix.rows.model, matrix.columns.model): matrix for matrix in measured.matrices}
        for same in other.matrices:
            matrix = of[same.rows.model, same.columns.model]
            assert [*matrix.cells] == [*same.cells]
            for what, path in matrix.cells.items():
                cells = (reader.read_array(*place) for place in ((together, path), (apart, same.cells[what])))
                np.testing.assert_allclose(*cells, rtol=0, atol=1e-6, err_msg=what)
    for block in ("[0:2,3:99]", "[1:0,0:1]"):
        with pytest.raises(BadInput, match=r"no such block, got 'arrays/.*' of \(90, 90\); the run is damaged"):
            reader.read_array(together, f"arrays/cka_unbiased-values.npy{block}")
    for path in ("arrays/none.npy[0:1,0:1]", "../x.npy[0:1,0:1]"):
        with pytest.raises(BadInput, match="; the run is damaged"):
            reader.read_array(together, path)


def test_whether_a_run_is_written_is_seen_of_the_lock_of_another_user(tmp_path, monkeypatch):
    """The lock may be read, and not written."""
    assert not reader.is_held(tmp_path)
    lock = results.claim_folder(tmp_path)
    assert reader.is_held(tmp_path)
    lock.release()
    assert not reader.is_held(tmp_path)

    def closed(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(reader.os, "open", closed)
        assert reader.is_held(tmp_path)
