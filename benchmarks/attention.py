"""The six attention measures for all layers of two models, after extraction: one pass over the maps of all heads.

Command: python benchmarks/attention.py     (about 2 minutes on two cores; `200` for so many sentences)
2 x 12 layers x 12 heads, 1000 sentences of 25 words, one model causal, maps drawn anew for every batch of 8 sentences
(not counted). Each measure alone, and all six, which share their sums; process CPU time, wall time, and the largest
difference of a pair of layers, among all layers in float32, from the pair alone in float64.
"""

import sys
import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch

from repsim_cli import measures
from repsim_cli.activations.maps import AttentionMaps
from repsim_cli.engine.attention import estimate_attention

MODELS, LAYERS, HEADS, WORDS, BATCH = 2, 12, 12, 25, 8
PLACES = [slice(a, b) for a, b in pairwise(range(0, MODELS * LAYERS * HEADS + 1, HEADS))]
NAMES_OF_LAYERS = [f"layer {i}" for i in range(len(PLACES))]


def maps(sentences: int) -> AttentionMaps:
    """Softmax maps whose heads share part of their logits; the second model's are causal."""
    heads = MODELS * LAYERS * HEADS
    shared = torch.randn(sentences, 24, WORDS, WORDS).repeat_interleave(heads // 24, 1)
    logits = 2 * (shared + torch.randn(sentences, heads, WORDS, WORDS))
    logits[:, heads // 2 :].masked_fill_(torch.ones(WORDS, WORDS).triu(1).bool(), -torch.inf)
    cells = logits.softmax(-1).transpose(0, 1).flatten(1).contiguous()
    return AttentionMaps(cells, [WORDS] * sentences, PLACES)


def timed(names: list[str], sentences: int) -> tuple[float, float]:
    """CPU and wall seconds of these measures on so many sentences, without the drawing of maps."""
    drawing = [0.0, 0.0]

    def stream(seen: int) -> Iterator[AttentionMaps]:
        for _ in range(sentences // BATCH):
            cpu, wall = time.process_time(), time.perf_counter()
            one = maps(BATCH)
            drawing[0] += time.process_time() - cpu
            drawing[1] += time.perf_counter() - wall
            yield one

    cpu, wall = time.process_time(), time.perf_counter()
    estimate_attention({name: measures.get(name) for name in names}, stream, PLACES, names=NAMES_OF_LAYERS)
    return time.process_time() - cpu - drawing[0], time.perf_counter() - wall - drawing[1]


def error(name: str, pairs: int = 6) -> float:
    """The largest error against the pair alone in float64, over random pairs of layers and two sentences.

    Cells are 0 in the causal model alone: the distributed measures keep all, so that a pair knows which they are.
    """
    one = maps(2)
    settings = {"zeros": "keep"} if name in DISTRIBUTED else {}
    measure = measures.get(name, **settings)
    found = estimate_attention({name: measure}, lambda seen: [one], PLACES, names=NAMES_OF_LAYERS)[0][name].values
    sentences = list(one.sentences())
    largest = 0.0
    for a, b in np.random.default_rng(0).integers(0, len(PLACES), (pairs, 2)):
        single = measure([s[PLACES[a]] for s in sentences], [s[PLACES[b]] for s in sentences])
        largest = max(largest, abs(float(found[a, b]) - single))
    return largest


DISTRIBUTED = ["attention_cka", "attention_svcca", "attention_pwcca"]


if __name__ == "__main__":
    sentences = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    torch.manual_seed(0)
    timed(measures.names("attention"), BATCH)
    print(f"{MODELS} x {LAYERS} layers x {HEADS} heads, {sentences} sentences of {WORDS} words, ", end="")
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    for names in [[name] for name in measures.names("attention")] + [measures.names("attention")]:
        cpu, wall = timed(names, sentences)
        last = f"   error {error(names[0]):.0e}" if len(names) == 1 else ""
        print(f"{names[0] if last else 'all six':20} {cpu:7.1f} s CPU {wall:7.1f} s wall{last}")
