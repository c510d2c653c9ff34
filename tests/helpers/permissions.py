"""Every kind of file and folder, closed one after the other, and the command that needs it: run as a process that may
not read them (see `unprivileged`). Prints a line of JSON per row: what was closed, exit code, output, errors.

Usage: python permissions.py FOLDER, with all that `make` makes in FOLDER.
"""

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2  # what lets root open a file whatever its mode
PR_CAPBSET_DROP = 24

RUN = ("run", "measure=[cka]", "extract.sequences=40")
TEXT = (*RUN, "model=[tiny_a]", "data=local_text")
SHORT = ("extract.length=32", "extract.batch_rows=64")


def model(path):
    return (*RUN, *SHORT, "model=[]", f"+model.mine={{kind: transformers, path: {path}}}")


def stored(path):
    return (*RUN, "extract.estimate=full", "model=[]", f"+model.mine={{kind: precomputed, path: {path}}}")


def series(path):
    return (
        *RUN,
        *SHORT,
        "experiment=tiny/pythia_convergence",
        "model=[]",
        f"+model.s={{kind: series, folder: {path}}}",
    )


def images(path):
    return (*RUN, "model=[vit_cifar10]", "data=cifar10", f"data.path={path}")


# the file or folder that is closed: the command that needs it
ROWS = {
    **{f"texts/{name}": (*TEXT, f"data.path=texts/{name}") for name in ("a.txt", "a.jsonl", "a.jsonl.zst", "a.parquet")},
    "texts": (*TEXT, "data.path=texts/a.txt"),
    "deep": (*TEXT, "data.path=deep/inner/a.txt"),
    "deep/inner": (*TEXT, "data.path=deep/inner/a.txt"),
    "pile/a.jsonl.zst": (*RUN, "model=[tiny_a]", "data=pile", "data.files=pile/a.jsonl.zst"),
    "tables/mnli.tsv": (*RUN, "model=[tiny_a]", "data=mnli", "data.path=tables/mnli.tsv"),
    "tables/ptb.txt": (*RUN, "model=[tiny_a]", "data=ptb", "data.path=tables/ptb.txt"),
    "tables/ewt.conllu": (*RUN, "model=[tiny_a]", "data=ewt", "data.path=tables/ewt.conllu"),
    "tables": (*RUN, "model=[tiny_a]", "data=mnli", "data.path=tables/mnli.tsv"),
    "images/a.npz": images("images/a.npz"),
    "images/a.bin": images("images/a.bin"),
    "images/test_batch.bin": images("images"),
    "images": images("images"),
    **{f"arrays/a{kind}": stored(f"arrays/a{kind}") for kind in (".npz", ".safetensors", ".hdf5")},
    "arrays": stored("arrays/a.npz"),
    "arrays/x.npy": ("measure", "cka", "arrays/x.npy", "arrays/y.npy"),
    "arrays/y.npy": ("measure", "all", "arrays/x.npy", "arrays/y.npy"),
    **{
        f"model/{name}": model("model")
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    },
    "model": model("model"),
    "series": series("series"),
    "series/step1": series("series"),
    "series/step2/config.json": series("series"),
    "own": (*RUN, "model=[tiny_a]", "--config-dir", "own"),
    "own/experiment": (*RUN, "experiment=mine", "--config-dir", "own"),
    "own/experiment/mine.yaml": (*RUN, "experiment=mine", "--config-dir", "own"),
    "RUN": ("show", "RUN"),
    "RUN/manifest.json": ("show", "RUN"),
    "RUN/results.json": ("show", "RUN"),
    "RUN/arrays": ("show", "RUN"),
    "RUN/config.yaml": ("run", "--from", "RUN"),
    "RUN/config.yaml resumed": (*RUN, "model=[tiny_a]", "resume=RUN"),
    "RUN/figures": ("plot", "RUN"),
    "cache/limit": ("cache", "--limit", "1GB"),
}  # fmt: skip
# closed for writing alone: the command and where a run or file cannot be made
WRITTEN = {
    "outputs": (*RUN, "model=[tiny_a]"),
    "TODAY": (*RUN, "model=[tiny_a]"),
    "RUN": ("report", "RUN"),
    "RUN/figures": ("plot", "RUN"),
    "closed": ("report", "RUN", "--output", "closed/new.html"),
    "closed for a verdict": ("verify", "model", "model", "--junit", "closed/new.xml"),
}
# others' files that are passed over, with a warning
PASSED_OVER = {
    "outputs": ("list", "run"),
    "RUN": ("list", "run"),
    "TODAY": ("list", "run"),
    "cache/activations": ("cache",),
    "ENTRY": (*RUN, "model=[tiny_a]", "measure=[rsa]"),  # a new measure reads the stored activations
    "cache": (*RUN, "model=[tiny_a]"),
}


def make(tiny_folder):
    """Files of every kind, in the current folder."""
    import h5py
    import numpy as np
    import pyarrow
    import pyarrow.parquet
    import safetensors.numpy
    import zstandard

    for name in ("texts", "deep/inner", "pile", "tables", "images", "arrays", "own/experiment", "closed"):
        Path(name).mkdir(parents=True)
    text = "Every word of this text is read by the model that is asked for. " * 40
    line = json.dumps({"text": text}).encode() + b"\n"
    for name, content in {
        "texts/a.txt": text.encode(),
        "texts/a.jsonl": line,
        "texts/a.jsonl.zst": zstandard.compress(line),
        "pile/a.jsonl.zst": zstandard.compress(line),
        "deep/inner/a.txt": text.encode(),
        "tables/mnli.tsv": b"sentence1\tsentence2\tgold_label\n" + b"A dog runs.\tIt moves.\tentailment\n" * 90,
        "tables/ptb.txt": b"a dog runs in the park today\n" * 90,
        "tables/ewt.conllu": b"1\tdogs\t_\t_\t_\t_\t_\t_\t_\t_\n2\trun\t_\t_\t_\t_\t_\t_\t_\t_\n\n" * 90,
        "images/a.bin": bytes(3073 * 20),
        "images/test_batch.bin": bytes(3073 * 20),
        "own/experiment/mine.yaml": b"# @package _global_\nseed: 3\n",
    }.items():
        Path(name).write_bytes(content)
    pyarrow.parquet.write_table(pyarrow.table({"text": [text]}), "texts/a.parquet")
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.save("arrays/x.npy", x)
    np.save("arrays/y.npy", x + 1)
    np.savez("arrays/a.npz", a=x)
    np.savez("images/a.npz", images=np.zeros((20, 32, 32, 3), np.uint8), labels=np.zeros(20, np.int64))
    safetensors.numpy.save_file({"a": x}, "arrays/a.safetensors")
    with h5py.File("arrays/a.hdf5", "w") as archive:
        archive["a"] = x
    for name in ("model", "series/step1", "series/step2"):
        shutil.copytree(tiny_folder, name)
    Path("model/metrics.json").write_text("{}")


def unprivileged():
    """Root's power over modes is taken from a process that is about to start another; an ordinary user has none."""
    import ctypes

    if os.geteuid() == 0:
        for capability in (DAC_OVERRIDE, DAC_READ_SEARCH):
            assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


@contextlib.contextmanager
def closed(place, mode):
    before = place.stat().st_mode
    place.chmod(mode)
    try:
        yield
    finally:
        place.chmod(before)


def answered(words):
    """(exit code, stdout, stderr) of one command in this process."""
    from repsim_cli import cli

    out, err = io.StringIO(), io.StringIO()
    os.environ.pop("REPSIM_QUIET", None)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(words)
        except SystemExit as end:
            return end.code or 0, out.getvalue(), err.getvalue()
        except BaseException as error:
            return None, out.getvalue(), repr(error)


def row(*fields):
    sys.stdout.write(json.dumps(fields) + "\n")


def main():
    os.environ.update(REPSIM_OUTPUTS="outputs", REPSIM_CACHE="cache", HF_HUB_OFFLINE="1", HF_HOME="hub")
    first = answered([*RUN, "model=[tiny_a]"])
    assert first[0] == 0, first
    assert answered(["cache", "--limit", "20GB"])[0] == 0
    (run,) = Path("outputs").glob("*/*")
    (entry,) = (place for place in Path("cache/activations").iterdir() if place.is_dir())

    def real(text):
        return text.replace("TODAY", str(run.parent)).replace("RUN", str(run)).replace("ENTRY", str(entry))

    for table, rows, mode in (("read", ROWS, 0), ("written", WRITTEN, 0o500), ("passed over", PASSED_OVER, 0)):
        for name, words in rows.items():
            place = Path(real(name.split()[0]))
            before = sorted(map(str, Path("outputs").rglob("*")))
            with closed(place, mode):
                code, out, err = answered([real(word) for word in words])
            left = sorted(set(map(str, Path("outputs").rglob("*"))) - set(before))
            row(table, name, str(place), code, out, err, left)
    for mode, words in ((0, ["cache"]), (0, ["cache", "--clear"]), (0o500, ["cache", "--clear"])):
        with closed(entry, mode):
            row("passed over", "ENTRY", str(entry), *answered(words), [])
    assert entry.is_dir()


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    main()
