"""Malformed input, systematically: each gets one clear line that says what to do, exit code 2, and leaves nothing.

One table per kind of input; each row is a test of its own and runs the real command line in this process. The message
must name where, what was got and, after the last semicolon, what to do.
"""

import copy
import json
import os
import shutil
import struct

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
import zstandard

from repsim_cli import results

MANY = ("model=[tiny_a]", "measure=[cka]")


@pytest.fixture(autouse=True, scope="module")
def composed_once():
    """Hydra takes 0.1 s to compose a configuration, most of each row's time. Here the groups that rows select are composed
    once, and the values that a row sets at known keys, or adds, are set in a copy."""
    import hydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import DictConfig, OmegaConf, open_dict

    compose, groups, known = hydra.compose, ("experiment", "model", "measure", "data", "significance"), {}

    def quick(name, overrides):
        words = [word for word in overrides if word.split("=")[0] in groups]
        if name != "config" or any("searchpath" in word for word in overrides):
            return compose(name, overrides)
        values = OverridesParser.create().parse_overrides([word for word in overrides if word not in words])
        if tuple(words) not in known:
            known[tuple(words)] = compose(name, words)
        config = copy.deepcopy(known[tuple(words)])
        for value in values:
            parent, _, last = value.key_or_group.rpartition(".")
            node = OmegaConf.select(config, parent) if parent else config
            there = isinstance(node, DictConfig) and last in node.keys()  # noqa: SIM118 (values that are missing, too)
            if value.is_delete() or value.is_force_add() or value.is_add() == there or value.is_sweep_override():
                return compose(name, overrides)
            with open_dict(config):
                OmegaConf.update(config, value.key_or_group, value.value(), merge=False)
        return config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hydra, "compose", quick)
        yield


CONFIGS = {
    "type of a number": ["extract.length=abc"],
    "fraction for a count": ["extract.batch_rows=2.5"],
    "zero": ["extract.sequences=0"],
    "negative": ["extract.pool=-1"],
    "null for a number": ["extract.length=null"],
    "list for a number": ["extract.rows=[1,2]"],
    "boolean for a number": ["hardware.tile=true"],
    "text for a list": ["extract.hook_points=embed"],
    "numbers for names": ["extract.hook_points=[1,2]"],
    "choice": ["extract.estimate=batch"],
    "choice of padding": ["extract.padding=dropped"],
    "choice of unit": ["extract.unit=words"],
    "choice of separator": ["extract.separator=cls"],
    "choice of dtype": ["hardware.dtype=int8"],
    "text for a flag": ["dry_run=maybe"],
    "number for a name": ["name=3"],
    "slash in a name": ["name=a/b"],
    "name that leaves": ["name=.."],
    "empty name": ["name=''"],
    "seed": ["seed=one"],
    "negative seed": ["seed=-5"],
    "negative seed of a measure": ["measure=[gromov_wasserstein]", "measure.gromov_wasserstein.seed=-1"],
    "study": ["study=similar"],
    "option": ["+options.clusters=3"],
    "claim": ["+options.claims=[falls]"],
    "misspelt key": ["extract.lenght=5"],
    "misspelt group": ["modle=[tiny_a]"],
    "misspelt group member": ["data=pil"],
    "misspelt experiment": ["experiment=pythia_ckaa"],
    "experiment as a list": ["experiment=[pythia_cka]"],
    "misspelt measure": ["measure=[ckaunbiased]"],
    "misspelt setting of a measure": ["+measure.x={kind: mutual_knn, kk: 3}"],
    "setting of a measure": ["measure=[mutual_knn]", "measure.mutual_knn.k=0"],
    "measure without a kind": ["+measure.x={k: 3}"],
    "measure that is no entry": ["+measure.x=3"],
    "model without a kind": ["+model.x={path: here}"],
    "model of unknown kind": ["+model.x={kind: torch}"],
    "model that is no entry": ["+model.x=[1]"],
    "model with both places": ["+model.x={kind: transformers, path: a, hub: b}"],
    "model with no place": ["+model.x={kind: transformers}"],
    "revision of a folder": ["+model.x={kind: transformers, path: a, revision: main}"],
    "shipped model": ["+model.x={kind: shipped, name: tiny}"],
    "random model of nothing": ["+model.x={kind: random}"],
    "random model of unknown type": ["+model.x={kind: random, config: {model_type: gpt17}}"],
    "random model with an unknown setting": ["+model.x={kind: random, config: {model_type: gpt2, layers: 3}}"],
    "random model that cannot be built": ["+model.x={kind: random, config: {model_type: gpt2, n_embd: 7, n_head: 2}}"],
    "random model without a tokenizer": ["+model.x={kind: random, config: {model_type: gpt2, n_embd: 8, n_head: 2}}"],
    "no model": ["model=[]"],
    "no measure": ["measure=[]"],
    "no view": ["study=views", "extract.estimate=full", "options.views=[]"],
    "no modulus": ["model=[modsum_0]", "model.modsum_0.moduli=[]"],
    "too small a share": ["experiment=tiny/modsum_probes", "options.train_share=0.001"],
    "layer": ["extract.layers=[0,6]"],
    "negative layer": ["extract.layers=[-7]"],
    "no layer": ["extract.layers=[]"],
    "hook point": ["extract.hook_points=[resid]"],
    "hook point in no block": ["extract.hook_points=[embed@1]"],
    "hook point's layer": ["extract.hook_points=[resid_post@6]"],
    "hook point's head": ["extract.hook_points=[q@0.h4]"],
    "hook point that has no heads": ["extract.hook_points=[mlp_out@0.h1]"],
    "hook point that the model lacks": ["extract.hook_points=[resid_mid]"],
    "hook point twice": ["extract.hook_points=[embed,embed]"],
    "hook point that is no row": ["extract.hook_points=[pattern]"],
    "module": ["extract.hook_points=['module:layers.9']"],
    "no hook point": ["extract.hook_points=[]"],
    "length above the context": ["extract.length=1000"],
    "too few rows for a measure": ["measure=[cka_unbiased]", "extract.batch_rows=3"],
    "k above the rows": ["measure=[mutual_knn]", "measure.mutual_knn.k=1024"],
    "more rows than there are": ["extract.batch_rows=1000000"],
    "estimate that the measure lacks": ["measure=[procrustes]", "extract.estimate=ratio_of_sums"],
    "separator that the tokenizer lacks": ["extract.separator=sep"],
    "device": ["hardware.device=gpu"],
    "device of a model": ["hardware.devices=[cuda:7]"],
    "device of an unknown model": ["hardware.devices={other: cpu}"],
    "memory": ["hardware.memory_gb=0.2"],
    "no memory": ["hardware.memory_gb=-1"],
    "split": ["data.split=test"],
    "path for embedded data": ["+data.path=x.txt"],
    "split of labelled data": ["data=mnli", "data.split=validation"],
    "split of images": ["data=cifar10", "data.split=validation"],
    "heuristic": ["data=hans", "data.heuristics=[lexical_overlp]"],
    "subcase": ["data=hans", "data.subcases=[ln_pasive]"],
    "subcase of another heuristic": ["data=hans", "data.heuristics=[constituent]", "data.subcases=[ln_passive]"],
    "name of a label": ["data=yelp", "data.labels={0: bad}"],
    "column for columns": ["data=sst2", "data.columns=sentence"],
    "words of a treebank": ["data=ewt", "data.words=parts"],
    "labelled data without a network": ["data=sst2"],
    "treebank without a network": ["data=ewt"],
    "images without a network": ["data=cifar10", "model=[vit_cifar10]"],
    "images for a text model": ["data=digits"],
    "text for an image model": ["model=[vit_digits]"],
    "images of another size": ["data=digits", "model=[vit_cifar10]"],
    "image models of different patches": ["data=digits", "model=[vit_digits,vit_cifar10]"],
    "image model of another architecture": ["+model.x={kind: random, config: {model_type: resnet}}"],
    "interpolation": ["name=${missing}"],
    "unbalanced brackets": ["model=[tiny_a"],
    "no value": ["seed"],
    "unknown option": ["--verbose"],
    "own configs": ["--config-dir", "/no/such/folder"],
    "a group that is a mapping": ["model={a: {kind: shipped, name: tiny_a}}"],
    "a study that is a number": ["study=3"],
    "no study": ["~study"],
    "no seed": ["~seed"],
    "--from with an experiment": ["--from", "latest", "experiment=tiny/pythia_cka"],
    "resume of nothing": ["resume=latest"],
    "resume of an unknown run": ["resume=/no/such/run"],
    "sweep with a bad value": ["-m", "extract.length=32,x"],
    "sweep of nothing": ["-m", "experiment=glob(nothing*)"],
    "--from without a run": ["--from"],
    "--from an unknown run": ["--from", "nowhere"],
    "cfg in a sweep": ["-m", "--cfg", "job"],
}


def check(code, out, err, outputs):
    assert (code, out) == (2, ""), err
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.strip() and not line.startswith("WARNING: ")]
    assert lines
    for line in lines:
        assert line.startswith("error: "), line
        assert ";" in line, f"does not say what to do: {line}"
    assert not [path for path in outputs.rglob("*") if path.is_file()]


@pytest.mark.parametrize("what", CONFIGS)
def test_configs(repsim, tmp_path, what):
    words = CONFIGS[what]
    start = [w for w in MANY if w.split("=")[0] not in {word.split("=")[0] for word in words}]
    check(*repsim("run", *start, *words), tmp_path / "outputs")


DATA = {
    "missing.txt": None,
    "empty.txt": b"",
    "blank.txt": b"\n \n",
    "latin.txt": "café".encode("latin-1"),
    "utf16.txt": "words".encode("utf-16"),
    "binary.txt": bytes(range(256)),
    "words.csv": b"text\nwords\n",
    "words": b"words",
    "empty.jsonl": b"",
    "cut.jsonl": b'{"text": "wor',
    "list.jsonl": b'["words"]\n',
    "number.jsonl": b'{"text": 5}\n',
    "null.jsonl": b'{"text": null}\n',
    "column.jsonl": b'{"body": "words"}\n',
    "binary.jsonl": bytes(range(256)),
    "plain.jsonl.zst": b'{"text": "words"}\n',
    "cut.jsonl.zst": zstandard.compress(b'{"text": "words"}\n' * 9)[:12],
    "empty.jsonl.zst": b"",
    "column.jsonl.zst": zstandard.compress(b'{"body": "words"}\n'),
    "text.parquet": b"words",
    "cut.parquet": b"PAR1" + bytes(20),
    "few.txt": b"three short words",
    "a name with spaces & <b>.txt": b"",
    "one-line.txt": b"word " * 30,
}


@pytest.mark.parametrize("name", DATA)
def test_data_files(repsim, tmp_path, name):
    file = tmp_path / name
    if DATA[name] is not None:
        file.write_bytes(DATA[name])
    (tmp_path / "folder.txt").mkdir(exist_ok=True)
    check(*repsim("run", *MANY, "data=local_text", f"data.path='{file}'"), tmp_path / "outputs")


def test_a_folder_for_a_file(repsim, tmp_path):
    check(*repsim("run", *MANY, "data=local_text", f"data.path={tmp_path}"), tmp_path / "outputs")


OTHER_DATA = {
    "mnli missing.tsv": None,
    "mnli empty.tsv": b"",
    "mnli header.tsv": b"sentence1\tsentence2\tgold_label\n",
    "mnli column.tsv": b"sentence1\tgold_label\nA\tneutral\n",
    "mnli label.tsv": b"sentence1\tsentence2\tgold_label\nA\tB\tmaybe\n",
    "mnli latin.tsv": "sentence1\tsentence2\tgold_label\ncafé\tB\tneutral\n".encode("latin-1"),
    "mnli cut.jsonl": b'{"sentence1": "A"',
    "mnli words.parquet": b"words",
    "mnli a.xml": b"<a/>",
    "hans column.txt": b"sentence1\tsentence2\tlabel\nA\tB\tneutral\n",
    "sst2 headless.tsv": b"fine\t1\nbad\t0\n",
    "yelp zero.csv": b'"0","bad"\n',
    "qqp long.tsv": b"question1\tquestion2\tis_duplicate\nA\tB\t1\textra\n",
    "ptb blank.txt": b"\n \n",
    "ewt columns.conllu": b"1\tA\n\n",
    "ewt order.conllu": b"2\tA\t_\t_\t_\t_\t_\t_\t_\t_\n\n",
    "ewt empty.conllu": b"",
    "cifar10 pickle": b"\x80\x03}",
    "cifar10 cut.bin": bytes(3072),
    "cifar10 words.npz": b"words",
}


@pytest.mark.parametrize("name", OTHER_DATA)
def test_files_of_other_data(repsim, tmp_path, name):
    kind, _, file = name.partition(" ")
    if OTHER_DATA[name] is not None:
        (tmp_path / file).write_bytes(OTHER_DATA[name])
    model = "model=[vit_cifar10]" if kind == "cifar10" else "model=[tiny_a]"
    check(*repsim("run", model, "measure=[cka]", f"data={kind}", f"data.path={tmp_path / file}"), tmp_path / "outputs")


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def with_text(name, text):
    return lambda folder: (folder / name).write_text(text)


def with_config(**changes):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def with_weights(change):
    def rewrite(folder):
        file = folder / "model.safetensors"
        weights = safetensors.torch.load_file(file)
        change(weights)
        safetensors.torch.save_file(weights, file, {"format": "pt"})

    return rewrite


def pickle_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def truncated(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def header_that_lies(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 10**12) + b"{}")


FOLDERS = {
    "no config": without("config.json"),
    "no weights": without("model.safetensors"),
    "no tokenizer": without("tokenizer.json"),
    "pickled weights": pickle_only,
    "truncated weights": truncated,
    "weights with a wrong header": header_that_lies,
    "text for weights": with_text("model.safetensors", "words"),
    "empty weights": with_text("model.safetensors", ""),
    "broken config": with_text("config.json", "{"),
    "config that is a list": with_text("config.json", "[]"),
    "config without a type": with_text("config.json", "{}"),
    "unknown architecture": with_config(model_type="gpt99"),
    "architecture with code of its own": with_config(auto_map={"AutoModel": "model.Model"}),
    "no layers": with_config(n_layer=0),
    "more layers than weights": with_config(n_layer=9),
    "heads that do not divide": with_config(n_head=5),
    "another width": with_config(n_embd=64),
    "a vocabulary that is too small": with_config(vocab_size=9),
    "broken tokenizer": with_text("tokenizer.json", "{"),
    "tokenizer of nothing": with_text("tokenizer.json", "{}"),
    "missing weight": with_weights(lambda w: w.pop("h.0.ln_1.weight")),
    "misshapen weight": with_weights(lambda w: w.update({"h.0.ln_1.weight": torch.zeros(2)})),
    "shard that is not there": with_text("model.safetensors.index.json", '{"weight_map": {"a": "part-2.safetensors"}}'),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_model_folders(repsim, tmp_path, tiny_folder, what):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_folder("gpt2").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    FOLDERS[what](folder)
    entry = f"+model.mine={{kind: transformers, path: {folder}}}"
    code, out, err = repsim("run", "model=[]", "measure=[cka]", entry, "extract.length=32", "extract.batch_rows=64")
    check(code, out, err, tmp_path / "outputs")
    assert "model.mine" in err


def npz(**arrays):
    return lambda file: np.savez(file, **arrays)


def damaged(file):
    np.savez(file, a=np.zeros((50, 3)))
    file.write_bytes(file.read_bytes()[:200])


def grouped(file):
    with h5py.File(file, "w") as archive:
        archive["model/layer0"] = np.zeros((50, 3))


X = np.random.default_rng(0).normal(size=(50, 3))
ARRAYS = {
    "missing.npz": lambda file: None,
    "empty.npz": lambda file: file.write_bytes(b""),
    "text.npz": lambda file: file.write_text("words"),
    "cut.npz": damaged,
    "nothing.npz": npz(),
    "flat.npz": npz(a=np.zeros(50)),
    "cube.npz": npz(a=np.zeros((50, 3, 2))),
    "integers.npz": npz(a=np.zeros((50, 3), int)),
    "objects.npz": npz(a=np.array([[{}] * 3] * 50, dtype=object)),
    "strings.npz": npz(a=np.array([["a"] * 3] * 50)),
    "complex.npz": npz(a=np.zeros((50, 3), complex)),
    "no-rows.npz": npz(a=np.zeros((0, 3))),
    "no-features.npz": npz(a=np.zeros((50, 0))),
    "unpaired.npz": npz(a=X, b=X[1:]),
    "few.npz": npz(a=X[:1]),
    "text.safetensors": lambda file: file.write_text("words that are no header"),
    "integers.safetensors": lambda file: safetensors.torch.save_file({"a": torch.zeros(50, 3, dtype=torch.int8)}, file),
    "text.hdf5": lambda file: file.write_text("words"),
    "grouped.hdf5": grouped,
    "array.npy": lambda file: np.save(file, X),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_stored_arrays(repsim, tmp_path, name):
    file = tmp_path / name
    ARRAYS[name](file)
    entry = f"+model.stored={{kind: precomputed, path: {file}}}"
    check(*repsim("run", "model=[]", "measure=[cka]", entry, "extract.batch_rows=40"), tmp_path / "outputs")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_stored_arrays_that_are_not_finite(repsim, tmp_path, newest, value):
    """Found while the run reads them: exit code 1, the layer and the rows named, nothing computed from them."""
    x = X.copy()
    x[7, 1] = value
    np.savez(tmp_path / "a.npz", layer=x)
    entry = f"+model.stored={{kind: precomputed, path: {tmp_path / 'a.npz'}}}"
    code, out, err = repsim("run", "model=[]", "measure=[cka]", entry, "extract.batch_rows=40")
    assert (code, out) == (1, "")
    assert "error: layer of 'stored': activations are not finite, got " in err
    assert "in row 7; mend the stored array (read as float32)" in err
    assert results.read_manifest(newest())["status"] == "failed"


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def pipe(name):
    def replace(folder):
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return replace


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
        manifest["files"]["results.json"] = results.sha256(folder / "results.json")
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


@pytest.mark.parametrize("command", ["show", "plot", "compare"])
@pytest.mark.parametrize("what", RUNS)
def test_run_folders(tmp_path, damaged_run, what, command):
    more = ["RUN", "--output", tmp_path / "new" / "folder"] if command == "compare" else []
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
    "a key": (changed("config.yaml", experiment_=1), "experiment_: unknown key, got 1; known: base, cache, data"),
    "no study": (changed("config.yaml", study=...), "study: missing, got nothing; set it"),
    "a study that is a number": (changed("config.yaml", study=3), "study: wrong value, got 3; give string"),
    "no seed": (changed("config.yaml", seed=...), "seed: missing, got nothing; set it"),
    "no cache": (changed("config.yaml", cache=...), "cache: missing, got nothing; set it"),
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


@pytest.fixture(scope="module")
def a_run(tmp_path_factory):
    """A small complete run."""
    from repsim_cli import cli

    outputs = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setenv("REPSIM_OUTPUTS", str(outputs))
        patch.setenv("REPSIM_CACHE", str(outputs / "cache"))
        patch.setattr("sys.argv", ["repsim"])
        cli.main(["run", "-q", *MANY, "extract.sequences=10"])
    assert not stopped.value.code
    (manifest,) = outputs.rglob("manifest.json")
    return manifest.parent


ODD = ("../../x", '模型 <script>alert(1)</script>; $(rm -rf .) a|b&c \'"" $x^2$', "x" * 300)


def test_odd_labels_are_harmless(repsim, tmp_path, newest):
    """A label is data everywhere: in file names, figures, JSON and on the terminal."""
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    content = {
        "defaults": [{"override /model": []}, {"override /measure": []}],
        "model": {label: {"kind": "shipped", "name": "tiny_a"} for label in ODD},
        "measure": {label: {"kind": "cka"} for label in ODD},
        "extract": {"layers": [0], "sequences": 10},
    }
    (folder / "odd.yaml").write_text("# @package _global_\n" + json.dumps(content))
    before = {p for p in tmp_path.rglob("*")}
    code, out, err = repsim("run", "--config-dir", tmp_path / "conf", "experiment=odd")
    assert code == 0, err
    measures = results.read_results(newest())["measures"]
    assert [measure["name"] for measure in measures] == ["cka"] * len(ODD)
    assert {m["rows"]["model"] for m in measures[0]["matrices"]} == set(ODD)
    assert [label for label in ODD if label not in out] == []
    new = {p for p in tmp_path.rglob("*")} - before
    assert all(p.is_relative_to(tmp_path / "outputs") or p.is_relative_to(tmp_path / "cache") for p in new)


def test_how_many():
    """The number that benchmarks/README.md states."""
    tables = (CONFIGS, DATA, OTHER_DATA, FOLDERS, ARRAYS)
    assert sum(map(len, tables)) + 1 + 4 + 3 * len(RUNS) >= 228
