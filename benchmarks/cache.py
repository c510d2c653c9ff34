"""What the cache costs a run that fills it, and what it gains one that finds it filled.

Command: python benchmarks/cache.py     (about 5 minutes on two cores)
Two GPT-NeoX of the 70M Pythia shape (random weights, 6 x 512), 16 batches of 1024 tokens, cka_unbiased of all layers.
Stage times of whole `repsim run` processes, by turns without the cache, with an empty one, with one that holds the
activations, with one that holds the matrices too.

Command: python benchmarks/cache.py pairs     (about 1 minute)
CPU seconds of Gromov-Wasserstein on 256 rows of all layers of shipped models, in one process: three of them, then one
more with and without the cache.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = "{model_type: gpt_neox, hidden_size: 512, num_hidden_layers: 6, num_attention_heads: 8, "
CONFIG += "intermediate_size: 2048, max_position_embeddings: 2048, vocab_size: 50304}"


def run(cache: str, *words: str) -> dict[str, float]:
    """Seconds of each stage of one run, and of the stages from the models to the matrices."""
    tokenizer = Path(__file__).parent.parent / "repsim_cli" / "assets" / "models" / "tiny_a"
    models = [
        f"+model.{n}={{kind: random, config: {CONFIG}, seed: {i}, tokenizer: {tokenizer}}}" for i, n in enumerate("ab")
    ]
    extract = ["extract=packed_1024", "extract.sequences=16", "extract.pool=16", "data=embedded_train"]
    with tempfile.TemporaryDirectory() as outputs:
        environment = {**os.environ, "REPSIM_OUTPUTS": outputs, "REPSIM_CACHE": cache}
        command = [sys.executable, "-m", "repsim_cli.cli", "run", "-q", "model=[]", *models, *extract]
        command += ["measure=[cka_unbiased]", "hardware.batch_size=1", *words]
        subprocess.run(command, env=environment, check=True)
        manifest = json.loads(next(Path(outputs).rglob("manifest.json")).read_text())
    return manifest["timings"]


def one_more_model() -> None:
    """Prints the CPU seconds of each run of the study, and the pairs that it solves."""
    from repsim_cli import measures
    from repsim_cli.base import registry
    from repsim_cli.base.settings import Extract, Hardware, Significance
    from repsim_cli.measures import gromov
    from repsim_cli.runs import results

    solved, solve = [], gromov.find_best_gromov
    gromov.find_best_gromov = lambda *sides, **settings: solved.append(1) or solve(*sides, **settings)
    four = ["tiny_a", "tiny_a_step100", "tiny_a_step400", "tiny_b"]
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["REPSIM_CACHE"] = f"{scratch}/cache"
        for name, labels, cache in (
            ("three models", four[:3], True),
            ("one more", four, True),
            ("the same again", four, True),
            ("the four without the cache", four, False),
        ):
            study = registry.studies.get("similarity").function(
                model={label: registry.models.get("shipped").function(name=label) for label in labels},
                data=registry.data.get("embedded_text").function(split="validation"),
                measure={"gromov_wasserstein": measures.get("gromov_wasserstein", audit=0.0)},
                extract=Extract(hook_points=["resid_post"], length=32, sequences=24, estimate="full", rows=256),
                significance=Significance(),
                hardware=Hardware(threads=1, processes=1),
                seed=0,
                cache=cache,
            )
            run = results.create(Path(scratch) / "run", name="x", study="x", seed=0, command=[], overrides=[])
            solved.clear()
            start = time.process_time()
            study.run(run)
            print(f"{name:28} {time.process_time() - start:7.2f} s CPU   {len(solved):4d} pairs solved")
            run.finish("complete")


if __name__ == "__main__":
    if sys.argv[1:] == ["pairs"]:
        one_more_model()
        sys.exit()
    times: dict[str, list[float]] = {"without": [], "cold": [], "activations": [], "matrices": []}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            for name, seconds in times.items():
                if name == "activations":
                    shutil.rmtree(f"{cache}/matrices")
                stages = run(cache, *(["cache=false"] if name == "without" else []))
                seconds.append(
                    sum(stages.get(stage, 0.0) for stage in ("hashes", "models", "activations and similarity"))
                )
    base = statistics.median(times["without"])
    for name, seconds in times.items():
        print(f"{name:12} {statistics.median(seconds):7.2f} s   {statistics.median(seconds) / base:5.2f} x without")
