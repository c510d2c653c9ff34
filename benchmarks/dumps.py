"""Counts how often a fault is found from a stored stream alone: `python benchmarks/dumps.py [ARCHITECTURE ...]`.

Faults of a block are planted in tiny models (benchmarks/planted.py), one in each; transformers alone writes the stream
of the broken model, and `repsim verify` names a block, with the right model beside the dump, or with its dump.
"""

import copy
import sys
import tempfile
from collections import Counter
from pathlib import Path

import safetensors.torch
import torch
from planted import FAULTS, planted
from plants import built

from repsim_cli.studies.verify.answer import DIFFERENT
from repsim_cli.studies.verify.beside import compare_dumps
from repsim_cli.studies.verify.dump import Dump, read_dump
from repsim_cli.studies.verify.stream import replay_on

NAMES = ("llama", "gpt2", "gemma2", "mistral", "gpt_neox", "opt", "qwen2", "phi3", "bloom", "mixtral")
PLANTED = (
    "bias_added", "bias_lost", "projections_swapped", "gain_without_one", "norm_missing", "activation", "negated",
    "scaled", "heads_swapped", "neurons_permuted", "transposed", "rotary_halves", "future_seen", "gain_changed",
)  # fmt: skip
IDS = torch.randint(3, 96, (4, 16), generator=torch.Generator().manual_seed(5))


def dumped(model, dtype: torch.dtype, folder: Path, attention: str = "eager") -> Dump:
    """The stream as transformers gives it, a file a prompt in the layout of vLLM."""
    folder.mkdir()
    model = copy.deepcopy(model).to(dtype)
    if model._supports_sdpa:
        model.set_attn_implementation(attention)
    with torch.no_grad():
        states = model(input_ids=IDS, output_hidden_states=True).hidden_states
    for number, row in enumerate(IDS):
        held = torch.stack([x[number] for x in states], 1)
        safetensors.torch.save_file({"hidden_states": held, "token_ids": row.clone()}, folder / f"{number}.safetensors")
    return read_dump(folder, folder.name, layer_ids=range(len(states)))


def blocks_of(answer) -> set[int]:
    return {each.block for each in answer.differences if each.block is not None} | {
        -1 for each in answer.differences if each.block is None
    }


def main() -> None:
    torch.set_num_threads(1)
    counts: Counter = Counter()
    worst: dict[tuple[str, str], tuple[float, float]] = {}
    for name in sys.argv[1:] or NAMES:
        model = built(name)
        with tempfile.TemporaryDirectory() as place:
            for dtype in (torch.float32, torch.bfloat16):
                kind = str(dtype).removeprefix("torch.")
                right = dumped(model, dtype, Path(place) / f"{kind}-right")
                other = dumped(model, dtype, Path(place) / f"{kind}-fused", "sdpa")
                exact = dumped(model, torch.float32, Path(place) / f"{kind}-exact")
                for way, answer in (
                    ("model", replay_on(right, model, ("r", "c"))),
                    ("model", replay_on(other, model, ("r", "c"))),
                    ("dump", compare_dumps(right, other, ("r", "c"))),
                    ("dump", compare_dumps(exact, other, ("r", "c"))),
                ):
                    counts[kind, way, "benign", answer.verdict == DIFFERENT] += 1
                    if answer.verdict == DIFFERENT:
                        print(f"{name} benign {kind} {way}: {answer.lines()[0]}")
                    worst[kind, way] = max(worst.get((kind, way), (0.0, 0.0)), answer.worst)
                for seed, fault in enumerate(PLANTED):
                    made = planted(model, fault, FAULTS[fault][1][-1], seed)
                    if made[1] is None or not {unit for unit, _ in made[1]} <= {f"block {i}" for i in range(9)}:
                        continue
                    (block,) = {int(unit.split()[1]) for unit, _ in made[1]}
                    bad = dumped(made[0], dtype, Path(place) / f"{kind}-{fault}")
                    for way, answer in (
                        ("model", replay_on(bad, model, ("r", "c"))),
                        ("dump", compare_dumps(right, bad, ("r", "c"))),
                    ):
                        named = blocks_of(answer)
                        result = "unseen" if not named else "right" if named == {block} else "false"
                        counts[kind, way, "fault", result] += 1
                        if result != "right":
                            print(
                                f"{name} {fault} {kind} {way}: block {block}, named {sorted(named)} {answer.lines()[0]}"
                            )
    for key, count in sorted(counts.items(), key=str):
        print(*key, count)
    print(worst)


if __name__ == "__main__":
    main()
