"""Words that a command refuses: one line for every bad input, exit code 2, and nothing is started."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

BAD = [
    (["experiment=pythia"], "experiment: no such name, got 'pythia'; did you mean 'pythia_cka'"),
    (["experiment=tiny/pythia_ck"], "experiment: no such name, got 'tiny/pythia_ck'; did you mean"),
    (["model=[tiny_c]"], "model: no such name, got 'tiny_c'; did you mean 'tiny_"),
    (["measure=[ckaa]"], "measure: no such name, got 'ckaa'; did you mean 'cka'"),
    (["data=embeded"], "data: no such name, got 'embeded'; did you mean 'embedded'"),
    (["extract=token"], "extract: no such name, got 'token'; did you mean 'tokens'?"),
    (["hardware=gpu"], "hardware: no such name, got 'gpu'; "),
    (["extract.lenght=3"], "extract.lenght: unknown key, got 3; did you mean 'length' or 'long'?"),
    (["sed=3"], "sed: unknown key, got 'sed=3'; did you mean 'seed'?"),
    (["model=[3]"], "model: a group is selected by name, got 'model=[3]'; write model=NAME"),
    (["dat.path=x"], "dat.path: unknown key, got 'dat.path=x'; did you mean 'data'?"),
    (["data.pathh=x"], "data.pathh: unknown key, got 'x'; known: chat, shuffle_words, split"),
    (["options.targts=[]"], "options.targts: unknown key, got []; did you mean 'targets'?"),
    (["analyses.map.x=1"], "analyses: unknown analysis, got 'map'; did you mean 'maps'?"),
    (["hardware.thread=2"], "hardware.thread: unknown key, got 2; did you mean 'threads'"),
    (["model.tiny_a.nam=tiny_b"], "model.tiny_a.nam: unknown key, got 'tiny_b'; did you mean 'name'?"),
    (["model.tiny.name=tiny_b"], "model.tiny: not selected, got 'model.tiny.name=tiny_b'; did you mean 'tiny_a'?"),
    (["measure.cka.k=3"], "measure.cka: not selected, got 'measure.cka.k=3'; known: cka_unbiased, mutual_knn"),
    (["--cfg", "job", "model.tiny.name=tiny_b"], "model.tiny: not selected, got 'model.tiny.name=tiny_b'; did you"),
    (["-m", "model=[tiny_a],[tiny_b]", "model.tiny_a.name=tiny_b"], "model.tiny_a: not selected, got 'model.tiny_a."),
    (["model.tiny_.kind=random"], "model.tiny_.kind: unknown key, got 'model.tiny_.kind=random'; did you mean 'tiny_"),
    (
        ["model.x={kind: shipped, name: tiny_a}"],
        "model.x: unknown key, got 'model.x={kind: shipped, name: tiny_a}'; add it with +model.x={",
    ),
    (["-m", "experiment=glob(no_such*)"], "overrides: the sweep expands to no jobs, got "),
    (
        ["data.path=a=b[", "data=local_text"],
        "overrides: cannot be read, got data.path=a=b[; write 'data.path=\"a=b[\"';",
    ),
    (["extract.length=long"], "extract.length: wrong value, got 'long'; give integer"),
    (["extract.length=64.5"], "extract.length: wrong value, got 64.5; give integer"),
    (["extract.hook_points=resid_post"], "extract.hook_points: wrong value, got 'resid_post'; give a list"),
    (["extract.hook_points=[]"], "extract.hook_points: too few, got []; give at least 1"),
    (["extract.hook_points=[resid_pots]"], "unknown hook point, got 'resid_pots'; did you mean 'resid_post'"),
    (["resume=nope"], "error: resume: no runs in "),
    (
        ["claims=[falls_with_layer_distance,falls_with_layer_distance]"],
        "claims: a name twice, got 'falls_with_layer_distance' in [falls_with_layer_distance,falls_with_layer_distance]; give each once",
    ),
    (["extract.layers=[6]"], "extract.layers, model.tiny_a: layer out of range, got 6; the model has layers 0 to 5"),
    (
        ["extract.batch_rows=100000"],
        "extract.batch_rows: the data has fewer rows than one batch, got at most 8192 for 100000",
    ),
    (["data=local_text"], "data.path: missing; set data.path=VALUE"),
    (["data=local_text", "data.path=EMPTY"], "it has no text, got white space or nothing; give"),
    (["data=local_text", "data.path=/no/file.txt"], "data.path: no such file, got '/no/file.txt'; check the path"),
    (["data=local_text", "data.path=JSONL", "data.column=body"], "no column 'body', got text; set data.column"),
    (
        ["+model.x={kind: transformers, path: /no/model}"],
        "model.x.path: no such folder, got '/no/model'; check the path",
    ),
    (["+model.x={kind: transformer}"], "model.x.kind: unknown model kind, got 'transformer'; did you mean"),
    (["+model.x={path: y}"], "model.x.kind: missing, got {'path': 'y'}; write {kind: NAME, ...}"),
    (
        ["+model.x={kind: transformers, hub: a/b}"],
        "model: the hub cannot be reached (HF_HUB_OFFLINE is set), got models of it: x (a/b)",
    ),
    (
        ["+model.x=LLAMA", "extract.length=64"],
        "model: tokenizers differ, got a different vocabulary for 'x' than for 'tiny_a'; use extract=pooled",
    ),
    (["hardware.memory_gb=0"], "hardware.memory_gb: wrong value, got 0; give greater than 0"),
    (["--bogus"], "repsim run: unknown option, got '--bogus'; known: "),
    (["--multrun"], "repsim run: unknown option, got '--multrun'; did you mean '--multirun'"),
    (["+model.a b={kind: shipped}"], "overrides: cannot be read, got "),
    (["name=../evil"], "name: wrong value, got '../evil'; use letters, digits and . _ - + @, a letter or digit first"),
    (["seed=-1"], "seed: wrong value, got -1; give greater than or equal to 0"),
    (["extract.layers=[]"], "no hook point is left, got layers [] of a model with 6; select some"),
    (
        ["measure=[mutual_knn]", "measure.mutual_knn.k=2000"],
        "extract.batch_rows: mutual_knn needs at least 2001 rows, got 1024",
    ),
    (
        ["measure=[mutual_knn]", "measure.mutual_knn.k=[5,x]"],
        "error: measure.mutual_knn.k: wrong value, got 'x'; give a whole number from 1",
    ),
    (["+model.x=NOTOKENIZER", "extract.length=64"], "model.x.path: no tokenizer in it, got "),
    (
        ["+model.x=SHAPES", "extract.length=64", "model=[]"],
        "model.x.path: 1 weight has the wrong shape, got ",
    ),
    (["+model.x=VOCABULARY", "extract.length=64", "model=[]"], "model.x: its vocabulary has 20 tokens, got id "),
    (["model=3"], "model: a group is selected by name, got 'model=3'; write model=NAME, or +model.KEY=VALUE"),
    (["extract.length"], "overrides: "),
    (["-m", "seed=0,x"], "seed: wrong value, got 'x'; give integer"),
    (["--config-dir", "/no/conf"], "--config-dir: no such folder, got '/no/conf'; name a folder"),
]


ODD_FOLDERS = ("NOTOKENIZER", "SHAPES", "VOCABULARY")


def odd_folders(tmp_path, good):
    """Copies of a model folder that lack a tokenizer, or hold weights of another shape or a smaller vocabulary."""
    folders = {}
    for name in ODD_FOLDERS:
        folder = folders[name] = tmp_path / name.lower()
        folder.mkdir()
        for file in good.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    (folders["NOTOKENIZER"] / "tokenizer.json").unlink()
    weights = safetensors.torch.load_file(good / "model.safetensors")
    changes = {"SHAPES": ("h.0.attn.c_proj.bias", 7), "VOCABULARY": ("wte.weight", 20)}
    for name, (key, size) in changes.items():
        changed = {**weights, key: weights[key][:size].clone()}
        safetensors.torch.save_file(changed, folders[name] / "model.safetensors", {"format": "pt"})
    config = json.loads((good / "config.json").read_text())
    (folders["VOCABULARY"] / "config.json").write_text(json.dumps({**config, "vocab_size": 20}))
    return folders


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_line_and_starts_nothing(repsim, tmp_path, tiny_folder, words, message):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "a.jsonl").write_text('{"text": "words"}\n')
    odd = odd_folders(tmp_path, tiny_folder("gpt2")) if any(word.endswith(ODD_FOLDERS) for word in words) else {}
    stand_ins = {
        "EMPTY": str(tmp_path / "empty.txt"),
        "JSONL": str(tmp_path / "a.jsonl"),
        "LLAMA": f"{{kind: transformers, path: {tiny_folder('llama')}}}",
        **{name: f"{{kind: transformers, path: {folder}}}" for name, folder in odd.items()},
    }
    for name, value in stand_ins.items():
        words = [word.replace(name, value) for word in words]
    model = [] if any(word.startswith("model=") for word in words) else ["model=[tiny_a]"]
    code, out, err = repsim("run", *model, *words)
    assert (code, out) == (2, "")
    lines = err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in err
    assert not list((tmp_path / "outputs").rglob("*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure", "ckaa", "x.npy", "x.npy"], "error: NAME: unknown measure, got 'ckaa'; did you mean 'cka'"),
        (["measure", "mutual_knn", "x.npy", "x.npy", "q=3"], "mutual_knn.q: unknown key, got 3; known: k"),
        (
            ["measure", "mutual_knn", "x.npy", "x.npy", "k=a"],
            "mutual_knn.k: wrong value, got 'a'; give a whole number from 1, or a number above 0 below 1\n",
        ),
        (
            ["measure", "mutual_knn", "x.npy", "x.npy", "k=0"],
            "got 0; give a whole number from 1, or a number above 0 b",
        ),
        (["measure", "mutual_knn", "x.npy", "x.npy", "k=2.5"], "got 2.5; give a whole number from 1, or a number abo"),
        (
            ["measure", "cka", "x.npy", "x.npy", "--labels", "x.npy"],
            "--labels: cka reads no labels, got x.npy; drop it",
        ),
        (["measure", "mutual_knn", "x.npy", "x.npy", "k"], "settings: not key=value, got 'k'; e.g. k=5"),
        (["measure", "cka", "x.npy", "none.npy"], "none.npy: no such file; check the path"),
        (["measure", "cka", "x.npy", "text.npy"], "text.npy: cannot be read as .npy (it does not begin"),
        (
            ["measure", "cka", "x.npy", "short.npy"],
            "x and y must be (n, d) with the same n, got (9, 2) and (8, 2); pair the rows",
        ),
        (["measure", "cka", "x.npy", "cube.npy"], "got (9, 2) and (9, 2, 1); give a row of features for each item"),
        (["measure", "cka", "empty.npy", "empty.npy"], "got (0, 2) and (0, 2); give a row of features for each item"),
        (["verify", "a", "b", "--memory-gb", "much"], "argument --memory-gb: not a number, got 'much'; see repsim ver"),
        (["measure", "cka", "x.npy", "nan.npy"], "y: not finite, got nan in row 0; fix the array"),
        (["show", "latest"], "RUN: no runs in outputs, got 'latest'; start one with repsim run"),
        (["plot", "x"], "RUN: no runs in outputs, got 'x'; start one"),
    ],
)
def test_bad_input_of_the_other_commands(repsim, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPSIM_OUTPUTS", "outputs")
    x = np.random.default_rng(0).normal(size=(9, 2))
    np.save("x.npy", x)
    np.save("short.npy", x[1:])
    np.save("cube.npy", x[..., None])
    np.save("empty.npy", x[:0])
    np.save("nan.npy", np.where(x == x[0, 0], np.nan, x))
    Path("text.npy").write_text("1 2 3")
    code, out, err = repsim(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
