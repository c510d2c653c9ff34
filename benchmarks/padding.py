"""Batches of similar length against batches padded to the longest sentence of the data, and against bare forwards.

Command: python benchmarks/padding.py MODEL_FOLDER EWT_FILE [SENTENCES]     (about 15 minutes for 135M parameters)
MODEL_FOLDER: a model in transformers format, with its tokenizer. EWT_FILE: UD English EWT, dev, .conllu.

Stage:   rows of words, all blocks, into an empty cache, in one process on one thread, CPU seconds, by turns: with the
         old rule (kept here alone), as it is, and bare forwards of the same tokens in batches of equal length.
Process: CPU seconds of a whole `repsim run`, and of a process that loads the same model and runs the bare forwards.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from repsim_cli.activations import rows
from repsim_cli.activations.batching import TokenTally
from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.stored import Recorder
from repsim_cli.base import registry
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.runs import cache

TURNS = 3
HARDWARE = Hardware(batch_size=8)


def words(model: str, ewt: str, count: int) -> tuple[rows.Source, Sequences, Extract]:
    source = registry.models.get("transformers").function(path=model)
    extract = Extract(hook_points=["embed", "resid_post"], unit="word", length=512, sequences=count)
    data = registry.data.get("ewt").function(path=ewt)
    return source, data.align({"m": source.tokenizer()}, extract, 0)["m"], extract


@torch.inference_mode()
def bare(module: torch.nn.Module, given: Sequences) -> None:
    """Runs the module on every token once, without padding."""
    lengths = given.mask.sum(1)
    for length in np.unique(lengths):
        alike = np.flatnonzero(lengths == length)
        for start in range(0, len(alike), HARDWARE.batch_size):
            ids = torch.from_numpy(given.ids[alike[start : start + HARDWARE.batch_size], :length]).long()
            module(input_ids=ids, attention_mask=torch.ones_like(ids))


def stage(source: rows.Source, module: torch.nn.Module, given: Sequences, extract: Extract) -> dict[str, int]:
    """Extraction of all rows into an empty cache; what was run."""
    record: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REPSIM_CACHE"] = folder
        with cache.use("activations", ["benchmark"]) as entries:
            recorders = {"m": Recorder(entries["benchmark"])}
            found = plan_readings({"m": source}, extract)
            stream = rows.stream_row_blocks(
                found, {"m": module}, recorders, {"m": given}, extract, HARDWARE, iter, tally=TokenTally(record, ["m"])
            )
            for _ in stream:
                pass
    return record


def to_the_longest(used: np.ndarray) -> np.ndarray:
    """The old rule: every sequence is as long as the longest of the data."""
    return np.full(len(used), used.shape[1])


def by_old_rule(*given) -> dict[str, int]:
    now, rows.measure_lengths = rows.measure_lengths, to_the_longest
    try:
        return stage(*given)
    finally:
        rows.measure_lengths = now


def seconds(step: Callable[[], object]) -> tuple[float, object]:
    start = time.process_time()
    result = step()
    return time.process_time() - start, result


def of_process(command: list[str], **environment: str) -> float:
    """CPU seconds of a process and of those that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def stages(model: str, ewt: str, count: int) -> Iterator[dict]:
    source, given, extract = words(model, ewt, count)
    module = source.load(False)
    steps = {
        "bare forwards": lambda: bare(module, given),
        "as it is": lambda: stage(source, module, given, extract),
        "old rule": lambda: by_old_rule(source, module, given, extract),
    }
    bare(module, given.take(np.arange(8)))  # warms up
    for _ in range(TURNS):
        yield {name: seconds(step) for name, step in steps.items()}


def processes(model: str, ewt: str, count: int) -> tuple[float, float]:
    """CPU seconds of the bare process, and of the run."""
    alone = of_process([sys.executable, __file__, "--bare", model, ewt, str(count)])
    with tempfile.TemporaryDirectory() as folder:
        run = of_process(
            [
                *(sys.executable, "-m", "repsim_cli", "run", "-q", "model=[]", "measure=[cka]"),
                *(f"+model.m={{kind: transformers, path: {json.dumps(model)}}}", "data=ewt", f"data.path={ewt}"),
                *("extract=words", f"extract.sequences={count}", "extract.length=512", "hardware.threads=1"),
            ],
            REPSIM_CACHE=f"{folder}/cache",
            REPSIM_OUTPUTS=f"{folder}/outputs",
        )
    return alone, run


def main() -> None:
    bare_alone = "--bare" in sys.argv
    model, ewt, *more = [word for word in sys.argv[1:] if word != "--bare"]
    count = int(more[0]) if more else 300
    if bare_alone:
        source, given, _ = words(model, ewt, count)
        bare(source.load(False), given)
        return
    turns = list(stages(model, ewt, count))
    tokens = turns[0]["as it is"][1]["tokens_read"]
    print(f"{count} sentences, {tokens} tokens, CPU seconds of one thread, {TURNS} turns")
    for name in turns[0]:
        taken = np.median([turn[name][0] for turn in turns])
        ratio = np.median([turn[name][0] / turn["bare forwards"][0] for turn in turns])
        ran = turns[0][name][1] or {"places": tokens}
        padding = 1 - tokens / ran["places"]
        print(f"{name:14} {taken:8.1f} s  {ratio:5.2f} x bare  {ran['places']:7} places, {padding:.1%} padding")
    alone, run = processes(model, ewt, count)
    print(f"process, bare: {alone:.1f} s; repsim run: {run:.1f} s = {(run - 8) / alone:.2f} x bare + 8 s")


if __name__ == "__main__":
    main()
