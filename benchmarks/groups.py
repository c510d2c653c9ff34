"""All pairs of twenty models in one run against a run of two models for every pair.

Command: python benchmarks/groups.py     (about 2 minutes on one core)
Twenty BERT of fresh weights, 8 batches of 512 tokens, cka_unbiased of mlp_out; CPU seconds of one thread from the
hashes to the results, without the start of a process and without figures. Of the 190 runs of two models 12 are timed,
six before and six after the one run, and scaled to all.
"""

import itertools
import random
import tempfile
import time
from pathlib import Path

import torch

from repsim_cli import measures
from repsim_cli.base import registry
from repsim_cli.base.settings import Extract, Hardware, Significance
from repsim_cli.runs import results

SHAPES = {"4 blocks of 64": (4, 64, 2), "6 blocks of 256": (6, 256, 4)}
TIMED = 12
ROOT = Path(__file__).parent.parent


def sources(shape: tuple[int, int, int]) -> dict[str, object]:
    blocks, width, heads = shape
    config = {
        "model_type": "bert",
        "hidden_size": width,
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "vocab_size": 512,
        "max_position_embeddings": 128,
    }
    make = registry.models.get("random").function
    tokenizer = str(ROOT / "repsim_cli" / "assets" / "models" / "tiny_a")
    return {f"m{seed:02d}": make(config=config, tokenizer=tokenizer, seed=seed) for seed in range(20)}


def seconds(model: dict[str, object], **settings: object) -> float:
    """CPU seconds of one run."""
    study = registry.studies.get("similarity").function(
        model=model,
        data=registry.data.get("embedded_text").function(split="validation"),
        measure={"cka_unbiased": measures.get("cka_unbiased")},
        extract=Extract(hook_points=["mlp_out"], length=128, sequences=32, padding="keep", batch_rows=512),
        significance=Significance(),
        hardware=Hardware(threads=1),
        seed=0,
        cache=False,
        **settings,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = results.create(Path(folder) / "run", name="x", study="similarity", seed=0, command=[], overrides=[])
        start = time.process_time()
        study.run(run)
        return time.process_time() - start


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, shape in SHAPES.items():
        models = sources(shape)
        labels = list(models)
        pairs = random.Random(0).sample(list(itertools.combinations(labels, 2)), TIMED)
        groups = {"one": labels[:10], "two": labels[10:]}
        seconds({label: models[label] for label in pairs[0]})  # what is only paid once
        two = [seconds({label: models[label] for label in pair}) for pair in pairs[: TIMED // 2]]
        together = seconds(models, groups=groups, distances=True)
        two += [seconds({label: models[label] for label in pair}) for pair in pairs[TIMED // 2 :]]
        apart = 190 * sum(two) / len(two)
        print(f"{name}: 190 pairs in one run {together:.1f} s, as 190 runs {apart:.1f} s: {apart / together:.1f} x")
