"""What the cache costs a run that fills it, and what it gains one that finds it filled.

Command: python benchmarks/cache.py     (about 5 minutes on two cores)
Two GPT-NeoX of the 70M Pythia shape (random weights, 6 x 512), 16 batches of 1024 tokens, cka_unbiased of all layers.
Stage times of whole `repsim run` processes, by turns without the cache, with an empty one, with a filled one.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
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


if __name__ == "__main__":
    times: dict[str, list[float]] = {"without": [], "cold": [], "warm": []}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            for name, words in (("without", ["cache=false"]), ("cold", []), ("warm", [])):
                stages = run(cache, *words)
                times[name].append(sum(stages[s] for s in ("hashes", "models", "activations and similarity")))
    base = statistics.median(times["without"])
    for name, seconds in times.items():
        print(f"{name:8} {statistics.median(seconds):7.2f} s   {statistics.median(seconds) / base:5.2f} x without")
