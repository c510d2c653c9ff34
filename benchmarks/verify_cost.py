"""What `repsim verify` of a model and its copy costs, beside the passes that its plan cannot do without.

Command: python benchmarks/verify_cost.py FOLDER_OR_GGUF

Passes over the inputs of the command: reference, its rounding (float64), candidate, replay; bare, each by itself. Then
the search on models in memory, and the whole command, with and without --quick. CPU seconds, user and system.
"""

import copy
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from repsim_cli.data.text import embedded_text
from repsim_cli.models.library import import_transformers
from repsim_cli.studies.verify import inputs
from repsim_cli.studies.verify.study import verify_models

PLAN = {
    "reference": 0,
    "its rounding": 1,
    "candidate": 0,
    "replay": 0,
}  # passes, and which of the two models makes them


def cpu(go: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    made = go()
    return time.process_time() - start, made


def opened(path: Path) -> tuple[Any, list[inputs.Batch]]:
    """A model with its head, as the command loads it, and the inputs that the command makes."""
    whole, given = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (path, {})
    load = import_transformers().AutoModelForCausalLM.from_pretrained
    model = load(whole, attn_implementation="eager", dtype=torch.float32, **given).eval()
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(whole, **given)
    shape = inputs.read_input_shape(model, tokenizer)
    assert shape is not None
    rows = inputs.make_token_rows(chain(embedded_text().documents(), inputs.PROBES.values()), tokenizer, shape)
    more = {name: tokenizer(text, verbose=False)["input_ids"] for name, text in inputs.PROBES.items()}
    return model, inputs.make_batches(shape, rows, more)


def bare(model: Any, batches: list[inputs.Batch]) -> float:
    return cpu(lambda: [batch.run(model) for batch in batches])[0]


def command(path: Path, *words: str) -> str:
    """The whole command, of the files and a copy of them, which costs as much to read."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # where files can be linked
        other = Path(folder) / path.name
        for file in [path] if path.is_file() else path.iterdir():
            to = other if path.is_file() else other / file.name
            to.parent.mkdir(exist_ok=True)
            os.link(file.resolve(), to)
        places = {"REPSIM_OUTPUTS": f"{folder}/outputs", "REPSIM_CACHE": f"{folder}/cache"}
        start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        said = [sys.executable, "-m", "repsim_cli", "verify", str(path), str(other), *words]
        out = subprocess.run(said, env={**os.environ, **places}, check=True, capture_output=True, text=True).stdout
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return (
        f"repsim verify {' '.join(words)}: {seconds:.0f} s, wall {time.monotonic() - start:.0f} s, "
        f"{used.ru_maxrss / 1e6:.1f} GB at most: {out.splitlines()[0]}"
    )


def main(path: Path) -> None:
    model, batches = opened(path)
    both = model, copy.deepcopy(model).double()
    bare(model, batches[:1])  # the first warms up
    passes = {name: bare(both[which], batches) for name, which in PLAN.items()}
    del both
    total, other = sum(passes.values()), copy.deepcopy(model)
    seconds, answer = cpu(lambda: verify_models(model, other, batches))
    places = sum(batch.mask.numel() for batch in batches)
    print(f"{places} places in {len(batches)} batches; load {os.getloadavg()[0]:.1f}")
    print(*(f"{name} {took:.1f} s" for name, took in passes.items()), f"together {total:.1f} s", sep=", ")
    print(f"the search: {answer.verdict}, {seconds:.1f} s, {seconds / total:.2f} times these passes", flush=True)
    quick, _ = cpu(lambda: verify_models(model, other, [batches[0], batches[2]], quick=True))
    print(f"the search of --quick: {quick:.1f} s", flush=True)
    for words in ((), ("--quick",)):
        print(command(path, *words), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
