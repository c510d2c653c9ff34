"""Malformed files of texts, labels and images: each gets one clear line that says what to do, exit code 2, and leaves nothing."""

import json
import struct
import zlib

import numpy as np
import pytest
import zstandard
from helpers.refusals import MANY, check

from repsim_cli.data.images import CIFAR10

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
