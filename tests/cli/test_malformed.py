"""Malformed input by kinds that enter in several places: YAML of one's own, texts that no file can hold, arrays, run
folders, tokenizers, chat templates. Each is one line that says what to do, and nothing hangs."""

import hashlib
import json
import os
import shutil
import struct

import numpy as np
import pytest

import repsim_cli
from repsim_cli import measures
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.config.compose import compose
from repsim_cli.models import tokenizers
from repsim_cli.runs import reader
from repsim_cli.runs.content import Axis, Curve, Table

GLOBAL = "# @package _global_\n"
BOMB = "a: &a [x]\n" + "".join(f"{c}: &{c} [{f'*{b}, ' * 9}]\n" for b, c in zip("abcdefgh", "bcdefghi", strict=True))
FILES = {
    "a tab": ("\tseed: 1\n", "cannot start any token"),
    "a key twice": ("seed: 1\nseed: 2\n", "duplicate key seed"),
    "two documents": ("seed: 1\n---\nseed: 2\n", "another document"),
    "an object of Python": ("name: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
    "a tag of somebody": ("seed: !mine 1\n", "could not determine a constructor"),
    "a list in itself": ("claims: &a [*a]\n", "an alias (*name) inside what it names"),
    "a mapping in itself": ("options: &a {b: {c: *a}}\n", "an alias (*name) inside what it names"),
    "a bomb of aliases": (BOMB, "aliases (*name) that make more than 100,000 values"),
    "an unknown alias": ("seed: *nothing\n", "undefined alias"),
    "an open brace": ("options: {\n", "expected the node content"),
    "an open interpolation": ("name: ${name\n", "no viable alternative"),
    "a null byte": ("name: a\0b\n", "special characters are not allowed"),
    "a list": ("- seed\n", "a list where keys should be"),
    "a text": ("seed\n", "a text where keys should be"),
    "a number": ("3\n", "a text where keys should be"),
    "a key that is null": ("null: 1\n", "Incompatible key type"),
    "a key that is a list": ("? [a]\n: 1\n", "unhashable key"),
    "a set": ("options: !!set {a}\n", "not a supported primitive type"),
    "digits without end": (f"seed: {'9' * 5000}\n", "integer string conversion"),
    "too deep": ("options: " + "[" * 500, "a document nested too deeply"),
    "Latin-1": ("name: café\n".encode("latin-1"), "text that is not UTF-8"),
    "UTF-16": ("name: a\n".encode("utf-16"), "text that is not UTF-8"),
}


@pytest.mark.parametrize("group", ["experiment", "data", "model"])
@pytest.mark.parametrize("what", FILES)
def test_files_of_a_folder_of_configurations(tmp_path, what, group):
    content, text = FILES[what]
    file = tmp_path / group / "mine.yaml"
    file.parent.mkdir()
    file.write_bytes(content if isinstance(content, bytes) else (GLOBAL + content).encode())
    word = "model=[mine]" if group == "model" else f"{group}=mine"
    with pytest.raises(BadInput) as refused:
        compose([word], folder=str(tmp_path))
    assert str(refused.value).startswith(f"--config-dir: a file is not the YAML of a run, got {file} (")
    assert text in str(refused.value)
    assert str(refused.value).endswith("); mend it")


def test_a_list_of_defaults_without_end(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(GLOBAL + "defaults: [mine]\n")
    with pytest.raises(BadInput, match="^config: nested without end, got lists of defaults that name themselves"):
        compose(["experiment=mine"], folder=str(tmp_path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "an experiment that sets no key, got FILE; write some into it, such as seed: 1"),
        (GLOBAL, "an experiment that sets no key, got FILE; write some into it, such as seed: 1"),
        ("name: mine\n", "got FILE without the line that says so; begin it with # @package _global_"),
        ("# @package extract\nrows: 8\n", "got FILE without the line that says so; begin it with # @package _global_"),
    ],
)
def test_an_experiment_that_would_change_nothing(tmp_path, content, said):
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(BadInput) as refused:
        compose(["experiment=mine"], folder=str(tmp_path))
    assert str(refused.value).endswith(said.replace("FILE", str(file)))


def test_a_pipe_among_the_configurations(tmp_path):
    os.mkfifo(tmp_path / "mine.yaml")
    with pytest.raises(BadInput, match=r"^--config-dir: not a regular file, got '.*mine.yaml'; remove it"):
        compose([], folder=str(tmp_path))


@pytest.mark.parametrize("words", [["seed=range(0,1000000)"], ["seed=range(0,200)", "extract.rows=range(1000,1200)"]])
def test_a_sweep_without_end(words):
    with pytest.raises(BadInput, match="^overrides: more than 10,000 jobs, got seed=range.*; name fewer values"):
        compose(words, sweep=True)


def test_anchors_of_ordinary_size(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(GLOBAL + "options: {a: &a {b: 1}, c: {<<: *a, d: 2}}\n")
    assert compose(["experiment=mine"], folder=str(tmp_path))[0].options.c == {"b": 1, "d": 2}


@pytest.mark.parametrize("word", ["caf\udce9.txt", "a\0b"])
@pytest.mark.parametrize(
    "words",
    [
        ("run", "data=local_text", "data.path={}"),
        ("compare", "tiny_a", "tiny_b", "--data", "{}"),
        ("verify", "{}", "tiny_a"),
        ("describe", "model", "{}"),
        ("measure", "cka", "{}", "y.npy"),
        ("convert", "{}", "out"),
        ("export", "latest", "--csv", "--output", "{}"),
    ],
)
def test_words_that_are_not_utf8(repsim, words, word):
    code, out, err = repsim(*(each.format(word) for each in words))
    assert (code, out) == (2, "")
    assert err.startswith("error: repsim: not text in UTF-8, got b'")
    assert err.count("\n") == 1


def test_a_working_directory_that_was_removed(repsim, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, out, err = repsim("list", "data")
    monkeypatch.chdir(tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("error: repsim: the working directory was removed; cd to another")


TEXTS = ["some words of text " * 20] * 20
PYTHON = {
    "half a pair in a text": (
        {"data": ["\ud800 word", *TEXTS]},
        "data: half of a surrogate pair, got '\\\\ud800 word'",
    ),
    "half a pair in a label": ({"data": [("a", "\udfff")] * 9}, "data: half of a surrogate pair, got 'a \\\\udfff'"),
    "half a pair in a setting": ({"settings": {"name": "\ud800"}}, "config: text that no file can hold, got"),
    "a null byte in a setting": ({"settings": {"base": "a\0"}}, "config: text that no file can hold, got"),
    "a null byte in a path": ({"data": "a\0b"}, "path: not usable, got 'a\0b' .embedded null byte."),
    "nobody's home": ({"data": "~nobody9/x"}, "path: not usable, got '~nobody9/x' .Could not determine"),
    "nobody's folder": ({"folder": "~nobody9/x"}, "path: not usable, got '~nobody9/x' .Could not determine"),
    "settings that are a number": ({"settings": 5}, "settings: not by key, got 5; write"),
    "settings without names": ({"settings": {5: 1}}, "settings: not by key, got {5: 1}; write"),
    "a setting that is an object": (
        {"settings": {"seed": object}},
        "settings: not a plain value, got <class 'object'>",
    ),
    "measures that are a number": ({"measures": 5}, "measures: not names, got 5; give a list of text"),
    "a measure that is a number": ({"measures": [5]}, "measures: not names, got .5.; give a list of text"),
    "layers that are a number": ({"layers": 5}, "layers: not names, got 5; give a list of text"),
}


OTHER_TYPES = {
    "a folder": (lambda: repsim_cli.compare({"a": X, "b": X}, folder=5), "path: not usable, got 5; give text"),
    "a map": (lambda: repsim_cli.apply_map(None, X), "path: not usable, got None; give text"),
    "kinds": (lambda: repsim_cli.fit_map(X, X, kinds=5), "kinds: not names, got 5; give"),
    "names": (lambda: repsim_cli.fit_map(X, X, names=5), "names: not names, got 5; give"),
    "layers": (lambda: repsim_cli.fit_map(X, X, layers=5), "layers: not pairs of layers, got 5; give"),
    "settings of a map": (lambda: repsim_cli.fit_map(X, X, settings=5), "settings: not by key, got 5; write"),
    "a run": (lambda: repsim_cli.load(5), "run: not a path or a name, got 5; give"),
}


@pytest.mark.parametrize("what", OTHER_TYPES)
def test_arguments_of_other_types(what):
    call, text = OTHER_TYPES[what]
    with pytest.raises(BadInput, match=f"^{text}"):
        call()


@pytest.mark.parametrize("what", PYTHON)
def test_what_a_program_gives(tmp_path, monkeypatch, what):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    given, text = PYTHON[what]
    with pytest.raises(BadInput, match=f"^{text}"):
        repsim_cli.compare({"a": "tiny_a"}, given.pop("data", TEXTS), **given)


X = np.random.default_rng(0).normal(size=(60, 3))


def header(shape, descr="<f8"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(240)


ARRAYS = {
    "more than any file has": header((10**12, 1000)),
    "more than there are numbers for": header((10**25, 3)),
    "more bytes than there are numbers for": header((2**62, 2)),
    "fewer than none": header((-5, 3)),
    "text without end": header((5, 6), "<U99999999"),
    "objects": header((5, 6), "|O"),
    "nothing": b"",
}


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("what", [*ARRAYS, "a pipe", "a folder"])
def test_arrays_of_measure(repsim, tmp_path, what, labels):
    np.save(tmp_path / "x.npy", X)
    file = tmp_path / "bad.npy"
    if what in ARRAYS:
        file.write_bytes(ARRAYS[what])
    else:
        os.mkfifo(file) if what == "a pipe" else file.mkdir()
    x, *more = (tmp_path / "x.npy", "--labels", file) if labels else (file,)
    code, out, err = repsim("measure", "cka", x, tmp_path / "x.npy", *more)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"error: {file}: ")
    assert err.endswith("; save it with numpy.save\n")


@pytest.mark.parametrize("kind", [">f8", ">f4", ">i4", "u2", "f2", "longdouble"])
def test_numbers_of_any_kind(kind):
    x = (X * 9).astype(kind)
    x.flags.writeable = False
    assert measures.get("cka")(x, np.asarray(x, float)) == pytest.approx(1)


MANIFESTS = {
    "options": ([None], "options: not a mapping, got \\[null\\]"),
    "remedies": (5, "remedies: not a mapping, got 5"),
    "short": ([1], "short: not a mapping"),
    "data": ("x", "data: not a mapping"),
    "executor": ("x", "executor: not a mapping"),
    "facts": ({"tiny_a": {"kind": "live"}}, "facts.tiny_a: no family"),
}


@pytest.mark.parametrize("key", MANIFESTS)
def test_manifests_of_other_types(tmp_path, finished, key):
    value, text = MANIFESTS[key]
    run = finished("model=[tiny_a]", "measure=[cka]", "extract.sequences=10")
    document = json.loads((run / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(document | {key: value}))
    with pytest.raises(BadInput, match=f"manifest.json: {text}.*; the run is damaged, run it again"):
        reader.read_manifest(tmp_path)


RECORDS = {
    "card": ({}, "card: no label, got"),
    "estimate": ({"kind": "full"}, "estimate: no rows, got"),
    "floor": ({"value": "x", "unit": "token", "of": "two"}, "floor.value: not "),
}


@pytest.mark.parametrize("key", RECORDS)
def test_records_of_measures_of_other_types(tmp_path, finished, key):
    value, text = RECORDS[key]
    folder = shutil.copytree(finished("model=[tiny_a]", "measure=[cka]", "extract.sequences=10"), tmp_path / "run")
    document = json.loads((folder / "results.json").read_text())
    document["measures"][0][key] = value
    changed = json.dumps(document).encode()
    (folder / "results.json").write_bytes(changed)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["results.json"] = hashlib.sha256(changed).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match=f"results.json: measures.cka.{text}.*; the run is damaged, run it again"):
        reader.read_results(folder)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "a", "b", "c"], "compare: unknown words, got c; two models are compared, more by repsim run model.LABEL=MODEL ...; see repsim compare --help"),
        (["compare", "a", "b", "--meaure", "cka"], "compare: unknown words, got --meaure cka; did you mean --measure? see repsim compare --help"),
        (["map", "fit", "a", "b", "--knd=ridge"], "map: unknown words, got --knd=ridge; did you mean --kind? see repsim map --help"),
        (["list", "measures"], "list: argument what: no such word, got 'measures'; did you mean 'measure'? see repsim list --help"),
        (["compare", "a"], "compare: too few words; give MODEL MODEL, for example: repsim compare models/small models/large --data texts.txt"),
        (["compare", "a", ""], "compare: second is empty, got ''; give a value, or drop it"),
        (["compare", "a", "b", "--names", ""], "compare: names is empty, got ''; give a value, or drop it"),
        (["measure", "x.npy", "y.npy"], "measure: too few words; give NAME X.npy Y.npy, for example: repsim measure all X.npy Y.npy --json"),
        (["map", "fit", "a", "b", "--out", ""], "map: out is empty, got ''; give a value, or drop it"),
        (["map"], "map: too few words; give fit|apply, for example: repsim map fit old.npy new.npy"),
        (["verify", "a", "b", "--memory-gb", "x"], "verify: argument --memory-gb: not a number, got 'x'; see repsim verify --help"),
        (["report", ""], "report: runs is empty, got ''; give a value, or drop it"),
    ],
)  # fmt: skip
def test_words_that_no_command_takes(repsim, words, said):
    assert repsim(*words) == (2, "", f"error: repsim {said}\n")


@pytest.mark.parametrize("first", ["x", "same"])
def test_maps_of_rows_that_are_all_equal(repsim, tmp_path, first):
    np.save(tmp_path / "x.npy", X.astype("f4"))
    np.save(tmp_path / "same.npy", np.ones((60, 3), "f4"))
    second = "same" if first == "x" else "x"
    code, out, err = repsim("map", "fit", tmp_path / f"{first}.npy", tmp_path / f"{second}.npy")
    assert (code, out) == (2, "")
    assert err.endswith("one vector in all rows of rows of 'same'; leave it out\n")
    code, _, err = repsim("map", "fit", tmp_path / "x.npy", tmp_path / "x.npy", "--set", "resume=latest")
    assert (code, err) == (2, "error: resume: only for repsim run, got latest; use repsim run study=vector_map\n")


def test_lines_of_unequal_lengths():
    axes = {"x": Axis(name="x"), "y": Axis(name="y"), "at": [1, 2]}
    for more in ({"lines": {"a": [1]}}, {"lines": {}, "mean": [1, 2, 3]}, {"lines": {}, "errors": {"a": []}}):
        with pytest.raises(ValueError, match="a line that has not 2 values"):
            Curve(**axes, **more)
    with pytest.raises(ValueError, match="a row that has not 2 cells"):
        Table(columns=["a", "b"], rows=[[1]])


def replaced(pattern, content, times=1):
    part = {"type": "Replace", "pattern": pattern, "content": content}
    return {"type": "Sequence", "normalizers": [part] * times}


GROWING = {
    "one after the other": replaced({"String": "a"}, "a" * 50, 4),
    "nested": {"type": "Sequence", "normalizers": [replaced({"String": "e"}, "e" * 9, 3)] * 2},
    "one": replaced({"String": "a"}, "b" * 10_000),
    "by regular expressions": replaced({"Regex": "[aeiou]"}, "ae" * 9, 5),
    "between all characters": replaced({"Regex": "x*"}, "-", 30),
    "before a character": replaced({"Regex": "(?=a)"}, "a", 30),
}


@pytest.mark.parametrize("what", GROWING)
def test_normalisers_that_grow_the_text(tmp_path, tiny_folder, what):
    folder = shutil.copytree(tiny_folder("gpt2"), tmp_path / "model")
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {"normalizer": GROWING[what]}))
    with pytest.raises(BadInput, match="its normaliser makes texts more than 100 times as long"):
        tokenizers.load_tokenizer(str(folder))


@pytest.mark.parametrize(
    "fine", [None, {"type": "NFKC"}, replaced({"Regex": " {2,}"}, " ", 20), replaced({"String": "``"}, '"', 20)]
)
def test_normalisers_that_do_not(fine):
    tokenizers._check_growth(fine)


def test_a_regular_expression_without_end(tmp_path, tiny_folder, capfd):
    folder = shutil.copytree(tiny_folder("gpt2"), tmp_path / "model")
    content = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "([a-z ]+)+0"}, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps(content | {"pre_tokenizer": split}))
    with pytest.raises(RunFailed, match="^a library failed, got 'Onig: Regex search error"):
        repsim_cli.compare({"a": folder}, ["text of letters and spaces alone " * 9] * 20, measures="cka", rows="pooled")


TEMPLATES = ("{{ '%0999999999d' % 1 }}", "{{ '{:>999999999}'.format(1) }}", "{{ 'a'|center(999999999) }}")


@pytest.mark.parametrize("template", TEMPLATES)
def test_chat_templates_without_end(gpt_tokenizer, template):
    from repsim_cli.data.chat import check_chat

    gpt_tokenizer.chat_template = template + "{{ messages[0].content }}"
    with pytest.raises(
        BadInput, match=r"tokenizer: the chat template cannot be used, got .* \(it took more than 256 MB\)"
    ):
        check_chat(gpt_tokenizer)


def test_time_is_bounded():
    from repsim_cli.base import bounded

    with pytest.raises(TimeoutError, match=r"it took more than 0\.05 s"), bounded.limit_work(0.05):
        while True:
            pass
