"""Malformed input, systematically: each gets one clear line that says what to do, exit code 2, and leaves nothing.

One table per kind of input; each row is a test of its own and runs the real command line in this process. The message
must name where, what was got and, after the last semicolon, what to do.
"""

import json
import os
import shutil
import struct
import zipfile
import zlib

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
import zstandard
from helpers import mutations

from repsim_cli.data.images import CIFAR10
from repsim_cli.models import precomputed
from repsim_cli.runs import reader

MANY = ("model=[tiny_a]", "measure=[cka]")


@pytest.fixture(autouse=True, scope="module")
def composed_once():
    with mutations.composed_once():
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
    "number for a study": ["study=1e25"],
    "option": ["+options.clusters=3"],
    "claim": ["claims=[falls]"],
    "figures that are not": ["figures=most"],
    "style of figures": ["figures={width: colum, format: [gif]}"],
    "colours of figures": ["figures={colours: viridsi}"],
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
    "no view": [
        "study=views",
        "extract.estimate=full",
        *(f"+options.{view}=null" for view in ("histograms", "neighbours", "couplings")),
    ],
    "no modulus": ["model=[modsum_0]", "model.modsum_0.recipe.moduli=[]"],
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
    "device without values": ["hardware.device=meta"],
    "device of a model without values": ["hardware.devices=[meta]"],
    "device that is not built in": ["hardware.device=privateuseone"],
    "device beyond all": ["hardware.device=cuda:99999999999999999999"],
    "digits without end": ["seed=" + "9" * 5000],
    "home of nobody": ["data=local_text", "data.path='~nobody9/x.txt'"],
    "null byte in a path": ["data=local_text", 'data.path="a\\x00b.txt"'],
    "path beyond all": ["data=local_text", f"data.path={'x' * 300}.txt"],
    "device file for a path": ["data=local_text", "data.path=/dev/zero"],
    "layer beyond all": ["extract.layers=[99999999999999999999999]"],
    "layer of a hook point beyond all": ["extract.hook_points=[resid_post@99999999999999999999999]"],
    "layers of a random model": ["+model.x={kind: random, config: {model_type: gpt2, n_layer: 1000000}}"],
    "heads of a random model": ["+model.x={kind: random, config: {model_type: gpt2, n_head: -2}}"],
    "labels of a random model": ["+model.x={kind: random, config: {model_type: gpt2, num_labels: 1000000000}}"],
    "modulus": ["model=[modsum_0]", "model.modsum_0.recipe.moduli=[1000000]"],
    "blocks": ["model=[modsum_0]", "model.modsum_0.recipe.blocks=1000000"],
}
VALUES = {
    "seed": ["1e25", 2**64, 2**31, "inf", "nan"],
    "hardware.threads": ["1e25", 2**64, 1001],
    "hardware.processes": [2**64],
    "hardware.tile": [1, 10**9],
    "hardware.batch_size": [2**64],
    "hardware.memory_gb": ["inf", "nan", "-inf", "1e308", 10**400],
    "significance.bootstrap": [10**9],
    "significance.permutations": [2**64],
    "significance.alpha": ["nan", "inf"],
    "significance.level": [1],
    "extract.length": [10**9],
    "extract.rows": [10**10],
    "extract.batch_rows": ["-inf"],
    "extract.pool": [2**64],
    "measure.gromov_wasserstein.restarts": [1000000],
    "measure.gromov_wasserstein.audit": ["nan"],
    "measure.gromov_wasserstein_entropic.epsilon": ["inf", 0],
    "measure.gulp.lam": ["inf", "nan"],
    "measure.mutual_knn.k": [2**64],
    "measure.msid.signs": [10**9],
    "measure.rtd.subsets": [10**9],
    "+options.histograms.bins": [10**9],
    "+options.couplings.restarts": [1000000],
    "+options.neighbours.perplexity": ["inf"],
}
for key, values in VALUES.items():
    start = ["study=views", "extract.estimate=full"] if key.startswith("+options") else []
    start += [f"measure=[{key.split('.')[1]}]"] if key.startswith("measure") else []
    CONFIGS |= {
        f"{key}={value:.12}"
        if isinstance(value, str)
        else f"{key}={value:.4g}"
        if value < 10**300
        else f"{key} of 400 digits": [*start, f"{key}={value}"]
        for value in values
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


TEXT = json.dumps({"text": "some words of text. " * 300}).encode() + b"\n"
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
    "a name with spaces & <b>.txt": b"",
    "half.jsonl": b'{"text": "\\ud800 words"}\n',
    "half-key.jsonl": b'{"\\udfff": 1, "text": "words"}\n',
    "half-late.jsonl": TEXT + b'{"text": "\\udfff"}\n',
    "deep.jsonl": b"[" * 100_000,
    "deep-late.jsonl": TEXT + b'{"text": "x", "y": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "digits.jsonl": b'{"text": ' + b"9" * 5000 + b"}\n",
    "nan.jsonl": b"NaN\n",
    "cut-late.parquet": b"PAR1" + bytes(200) + b"PAR1",
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
    "cifar10 label.bin": bytes([77]) + bytes(3072),
    "mnli half.jsonl": b'{"sentence1": "\\ud800", "sentence2": "B", "gold_label": "neutral"}\n',
    "mnli deep.jsonl": b'{"sentence1": ' + b"[" * 100_000,
    "mnli list.jsonl": b'{"sentence1": ["A"], "sentence2": "B", "gold_label": "neutral"}\n',
    "yelp field.csv": b'"1","' + b"a" * 200_000 + b'"\n',
    "ewt digits.conllu": b"9" * 5000 + b"\tA\t_\t_\t_\t_\t_\t_\t_\t_\n\n",
    "ewt superscript.conllu": "²\tA\t_\t_\t_\t_\t_\t_\t_\t_\n\n".encode(),
}


@pytest.mark.parametrize("name", OTHER_DATA)
def test_files_of_other_data(repsim, tmp_path, name):
    kind, _, file = name.partition(" ")
    if OTHER_DATA[name] is not None:
        (tmp_path / file).write_bytes(OTHER_DATA[name])
    model = "model=[vit_cifar10]" if kind == "cifar10" else "model=[tiny_a]"
    check(*repsim("run", model, "measure=[cka]", f"data={kind}", f"data.path={tmp_path / file}"), tmp_path / "outputs")


def png(height=32, width=32, *, mode=2):
    """A whole file of black pixels; of a header alone where there would be too many."""
    rows = bytes((3 * width + 1) * height) if height * width < 10**6 else bytes(100)
    head = struct.pack(">IIBBBBB", width, height, 8, mode, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    made = (struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def images_of(*images, labels=(0,), kind=None):
    def write(file):
        import pyarrow
        import pyarrow.parquet

        stored = [image if image is None else {"bytes": image, "path": None} for image in images]
        of_images = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        labels_too = list(labels) * (len(images) // len(labels))
        table = pyarrow.table({"img": pyarrow.array(stored, of_images), "label": labels_too})
        features = kind or {"img": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(CIFAR10)}}
        about = features if isinstance(features, str) else json.dumps({"info": {"features": features}})
        pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": about}), file)

    return write


def arrays_of(**arrays):
    def write(file):
        x = np.zeros((9, 32, 32, 3), np.uint8)
        np.savez(file, **{"x": x, "y": np.zeros(9, int), **arrays})

    return write


IMAGES = {
    "corrupt.parquet": images_of(png()[:44] + b"xxxx" + png()[48:]),
    "cut.parquet": images_of(png(), png()[:50]),
    "null.parquet": images_of(png(), None),
    "empty.parquet": images_of(b""),
    "svg.parquet": images_of(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
    "eps.parquet": images_of(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n"),
    "bomb.parquet": images_of(png(60_000, 60_000)),
    "large.parquet": images_of(png(12_000, 12_000)),
    "sizes.parquet": images_of(png(), png(16, 32)),
    "label.parquet": images_of(png(), labels=[77]),
    "unlabelled.parquet": images_of(png(), labels=[-1]),
    "null-label.parquet": images_of(png(), labels=[None]),
    "text-label.parquet": images_of(png(), labels=["zebra"], kind={"img": {"_type": "Image"}}),
    "kind.parquet": images_of(png(), kind={"img": {"_type": "Picture"}}),
    "about.parquet": images_of(png(), kind="{"),
    "no-rows.parquet": images_of(labels=[0]),
    "label.npz": arrays_of(y=np.full(9, 77)),
    "negative.npz": arrays_of(y=np.full(9, -1)),
    "unsigned.npz": arrays_of(y=np.full(9, 2**64 - 1, np.uint64)),
    "fraction.npz": arrays_of(y=np.full(9, 0.5)),
    "nan.npz": arrays_of(y=np.full(9, np.nan)),
    "complex.npz": arrays_of(y=np.zeros(9, complex)),
    "text.npz": arrays_of(y=np.array(["a"] * 9)),
    "date.npz": arrays_of(y=np.zeros(9, "M8[s]")),
    "structured.npz": arrays_of(y=np.zeros(9, [("a", "i4")])),
    "scalar.npz": arrays_of(y=np.array(1)),
    "columns.npz": arrays_of(y=np.zeros((9, 1), int)),
    "scalar-images.npz": arrays_of(x=np.array(1)),
    "flags.npz": arrays_of(x=np.zeros((9, 32, 32, 3), bool)),
    "names.npz": arrays_of(label_names=np.array(["zebra"])),
    "objects.npz": arrays_of(y=np.array([{}] * 9, object)),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(repsim, tmp_path, name):
    IMAGES[name](tmp_path / name)
    words = ("model=[vit_cifar10]", "measure=[cka]", "data=cifar10", f"data.path={tmp_path / name}")
    check(*repsim("run", *words, "extract.sequences=8", "extract.batch_rows=64"), tmp_path / "outputs")


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def with_text(name, text):
    return lambda folder: (folder / name).write_text(text)


def with_index(text):
    """An index of shards, which is read where there is no single file."""

    def change(folder):
        (folder / "model.safetensors.index.json").write_text(text)
        (folder / "model.safetensors").unlink()

    return change


def with_config(**changes):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def with_tokenizer(**changes):
    def change(folder):
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def with_model_of_tokenizer(model):
    def change(folder):
        file = folder / "tokenizer.json"
        plain = {"post_processor": None, "decoder": None, "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}}
        file.write_text(json.dumps({**json.loads(file.read_text()), **plain, "model": model}))

    return change


def pipe(name):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

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
    "negative heads": with_config(n_head=-2),
    "negative width": with_config(n_embd=-32),
    "a million layers": with_config(n_layer=1_000_000),
    "layers as text": with_config(n_layer="x"),
    "negative vocabulary": with_config(vocab_size=-5),
    "endless vocabulary": with_config(vocab_size=10**12),
    "a thousand million labels": with_config(num_labels=10**9),
    "hidden states as text": with_config(output_hidden_states="x"),
    "attentions as text": with_config(output_attentions="x"),
    "flag as text": with_config(use_cache="x"),
    "unknown activation": with_config(activation_function="zzz"),
    "architectures as a number": with_config(architectures=5, n_layer=0),
    "part of text as a number": with_config(text_config=5),
    "type as a list": with_config(model_type=["gpt2"]),
    "unknown kind of layers": with_config(layer_types=["x"]),
    "rotation as a number": with_config(rope_parameters=5),
    "quantization as text": with_config(quantization_config="x"),
    "unknown quantization": with_config(quantization_config={"quant_method": "nope"}),
    **{
        f"{kind} without its package": with_config(quantization_config={"quant_method": kind, "bits": 4})
        for kind in ("bitsandbytes_4bit", "gptq", "awq", "aqlm", "quanto", "eetq", "hqq", "compressed-tensors")
    },
    "length of a tokenizer as text": with_tokenizer(model_max_length="x"),
    "class of a tokenizer as a number": with_tokenizer(tokenizer_class=5),
    "padding token as a number": with_tokenizer(pad_token=5),
    "names of inputs as a number": with_tokenizer(model_input_names=5),
    "tokenizer without a model": with_model_of_tokenizer(None),
    "word pieces without [UNK]": with_model_of_tokenizer(
        {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 9,
            "vocab": {"a": 0},
        }
    ),
    "words without [UNK]": with_model_of_tokenizer({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}),
    "unigrams without an unknown one": with_model_of_tokenizer(
        {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None}
    ),
    "deep config": with_text("config.json", "[" * 100_000),
    "tokenizer's config that is a list": with_text("tokenizer_config.json", "[]"),
    "broken index": with_index("["),
    "index of nothing": with_index("{}"),
    "index of numbers": with_index('{"weight_map": {"a": 5}}'),
    "index that leaves": with_index('{"weight_map": {"a": "../../a"}}'),
    "pipe for the tokenizer's config": pipe("tokenizer_config.json"),
    "pipe for the weights": pipe("model.safetensors"),
    "shard that is not there": with_index('{"weight_map": {"a": "part-2.safetensors"}}'),
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


def hdf5(write):
    def make(file):
        with h5py.File(file, "w") as archive:
            write(archive)

    return make


def sentences(index, array=None):
    def write(archive):
        archive["0"] = np.zeros((2, 3, 4)) if array is None else array
        archive["sentence_to_index"] = index

    return hdf5(write)


def packed(dtype, size, shape=(40, 4)):
    """A .safetensors file of zeros."""

    def make(file):
        header = json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
        file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))

    return make


def member(header, name="a.npy"):
    """An .npz file of one member, with this header and no more than 240 bytes of data."""

    def make(file):
        text = header.encode() + b"\n"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(name, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(240))

    return make


def flagged(place, value):
    """An .npz file whose member's two headers (in the archive, before the member) have this byte there."""

    def make(file):
        np.savez(file, a=X)
        content = bytearray(file.read_bytes())
        content[place] = content[content.index(b"PK\x01\x02") + place + 2] = value
        file.write_bytes(content)

    return make


def header(shape, descr="'<f8'"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


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
    "flat.npy": lambda file: np.save(file, X[0]),
    "text-member.npz": member("", name="a.txt"),
    "no-header.npz": member("abcde"),
    "open-header.npz": member("{'descr': '<f8', 'shape': (5, 6), "),
    "number.npz": member(header((5, 6), "1")),
    "deep.npz": member(header((5, 6), "[" * 3000 + "]" * 3000)),
    "huge.npz": member(header((10**12, 3))),
    "beyond-all.npz": member(header((10**25, 3))),
    "negative.npz": member(header((-5, 3))),
    "cut-data.npz": member(header((50, 3))),
    "dates.npz": member(header((5, 6), "'M8[D]'")),
    "encrypted.npz": flagged(6, 1),
    "compressed.npz": flagged(8, 99),
    "pipe.npz": lambda file: os.mkfifo(file),
    "folder.npz": lambda file: file.mkdir(),
    "strings.hdf5": hdf5(lambda archive: archive.create_dataset("a", data=np.full((50, 3), b"a"))),
    "texts.hdf5": hdf5(lambda archive: archive.create_dataset("a", (50, 3), h5py.string_dtype())),
    "records.hdf5": hdf5(lambda archive: archive.create_dataset("a", data=np.zeros((50, 3), [("x", "f4")]))),
    "nothing.hdf5": hdf5(lambda archive: archive.create_dataset("a", data=h5py.Empty("f4"))),
    "number.hdf5": hdf5(lambda archive: archive.create_dataset("a", data=1.5)),
    "elsewhere.hdf5": hdf5(lambda archive: archive.create_dataset("a", (50, 3), "f4", external=[("/no/file", 0, 600)])),
    "link.hdf5": hdf5(lambda archive: archive.__setitem__("a", h5py.SoftLink("/b"))),
    "broken-index.hdf5": sentences([b"["]),
    "list-index.hdf5": sentences([b"[]"]),
    "number-index.hdf5": sentences([b'{"a": 0}']),
    "lists-index.hdf5": sentences([b'{"a": []}']),
    "deep-index.hdf5": sentences([b"[" * 60_000]),
    "scalar-index.hdf5": sentences(3.0),
    "empty-index.hdf5": sentences(np.zeros(0, "S1")),
    "text-sentence.hdf5": sentences([b'{"a b": "0"}'], np.full((2, 3, 4), b"a")),
    "whole-numbers.hdf5": sentences([b'{"a b": "0"}'], np.zeros((2, 3, 4), int)),
    "f4.safetensors": packed("F4", 80),
    "f6-e2m3.safetensors": packed("F6_E2M3", 120),
    "f6-e3m2.safetensors": packed("F6_E3M2", 120),
    "scales.safetensors": packed("F8_E8M0", 160),
    "c64.safetensors": packed("C64", 1280),
    "f99.safetensors": packed("F99", 640),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_stored_arrays(repsim, tmp_path, name):
    file = tmp_path / name
    ARRAYS[name](file)
    entry = f"+model.stored={{kind: precomputed, path: {file}}}"
    check(*repsim("run", "model=[]", "measure=[cka]", entry, "extract.batch_rows=40"), tmp_path / "outputs")


WIDE = np.random.default_rng(0).normal(size=(50, 4096))
MANY_ROWS = precomputed.AT_ONCE // (4 * WIDE.shape[1]) + 1  # too many to be read before a run


def write_hdf5(file, x, rows):
    """So many rows that begin with these, and where the third chunk of ten is; those not written take no room."""
    with h5py.File(file, "w") as archive:
        stored = archive.create_dataset("layer", (rows, x.shape[1]), x.dtype, chunks=(10, x.shape[1]), fletcher32=True)
        stored[: len(x)] = x
        return stored.id.get_chunk_info(2).byte_offset


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 1e30])
def test_stored_arrays_that_are_not_finite(repsim, tmp_path, newest, value):
    """Found before the run, in large files while the run reads them; nothing is computed from them."""
    x = WIDE.copy()
    x[7, 1] = value

    def run(rows):
        write_hdf5(tmp_path / "a.hdf5", x, rows)
        entry = f"+model.stored={{kind: precomputed, path: {tmp_path / 'a.hdf5'}}}"
        return repsim("run", "model=[]", "measure=[cka]", entry, "extract.batch_rows=40")

    code, out, err = run(len(x))
    assert (code, out) == (2, "")
    assert "error: model.stored.path: a value is not finite, or too large to be squared, got " in err
    assert "in row 7 of 'layer' in '" in err
    code, out, err = run(MANY_ROWS)
    assert (code, out) == (1, "")
    problem = "too large to be squared and summed" if value == 1e30 else "not finite"
    assert f"error: layer of 'stored': activations are {problem}, got " in err
    assert "in row 7; fix the array or what the module reads (float32)" in err
    assert reader.read_manifest(newest())["status"] == "failed"


MUTATIONS = mutations.kept()


@pytest.mark.parametrize("number", range(len(MUTATIONS)))
def test_mutations(repsim, tmp_path, tiny_folder, number):
    """What `scripts/fuzz` found, one of each refusal, whether or not it had failed."""
    words = mutations.apply(MUTATIONS[number], tmp_path, tiny_folder("gpt2"))
    check(*repsim(*words), tmp_path / "outputs")


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


def test_a_damaged_chunk_of_a_stored_array(repsim, tmp_path, newest):
    """The first row can be read. Files too large to be read before the run fail in it."""

    def run(rows):
        file = tmp_path / "a.hdf5"
        place = write_hdf5(file, WIDE, rows)
        content = bytearray(file.read_bytes())
        content[place + 5] ^= 255
        file.write_bytes(content)
        entry = f"+model.stored={{kind: precomputed, path: {file}}}"
        return file, *repsim("run", "model=[]", "measure=[cka]", entry, "extract.batch_rows=40")

    file, code, out, err = run(len(WIDE))
    assert (code, out) == (2, "")
    assert f"model.stored.path: rows of 'layer' in '{file}' cannot be read, got '0 to 49' (" in err
    file, code, out, err = run(MANY_ROWS)
    assert (code, out) == (1, "")
    assert f"error: {file}: rows of 'layer' cannot be read, got '0 to 39' (" in err
    assert "; write the file again" in err
    assert reader.read_manifest(newest())["status"] == "failed"


@pytest.mark.parametrize("dtype", [">f8", ">f4", "longdouble", "f2"])
@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_floats_of_any_kind_are_read(tmp_path, kind, dtype):
    file, x = tmp_path / f"a.{kind}", X.astype(dtype)
    if kind == "npz":
        np.savez(file, a=x)
    else:
        hdf5(lambda archive: archive.create_dataset("a", data=x))(file)
    from repsim_cli.base import registry

    read = registry.models.get("precomputed").function(path=str(file)).read("a", slice(3, 9))
    np.testing.assert_array_equal(read, x[3:9].astype(np.float32))


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


def test_how_many():
    """The number that benchmarks/README.md states."""
    tables = (CONFIGS, DATA, OTHER_DATA, IMAGES, FOLDERS, ARRAYS)
    assert sum(map(len, tables)) + 1 + 6 + 3 * len(RUNS) + len(MUTATIONS) >= 400
    assert len(MUTATIONS) >= 100
