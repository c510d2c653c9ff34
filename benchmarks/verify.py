"""Faults planted in tiny models of many architectures, and changes that are none: what `repsim verify` says of them,
and what the checks say that people use now.

Commands: python benchmarks/verify.py planted|benign|outside [--every N] [--by-hand] [ARCHITECTURE ...]
          python benchmarks/verify.py real-planted|real-benign [--every N] FOLDER_OR_GGUF ...
"""

import argparse
import contextlib
import copy
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import outside
import torch
import torch.nn.functional as F
from by_hand import CHECKS, said_by_hand
from planted import FAULTS, planted
from plants import ROUNDINGS, SMALL, Parts, batches, built, weight

from repsim_cli.data.text import embedded_text
from repsim_cli.models.library import import_transformers
from repsim_cli.studies.verify import inputs
from repsim_cli.studies.verify.study import verify_models

SEEN = (  # while rules and limits were made
    "llama", "gpt2", "gpt_neox", "qwen3", "gemma2", "gemma3_text", "opt", "bloom", "phi", "mixtral", "bert", "olmo2",
    "mistral", "falcon", "gptj", "roberta", "cohere2", "starcoder2", "stablelm", "modernbert",
)  # fmt: skip
HELD_OUT = (  # drawn at random from the rest
    "kimi_linear", "minimax_m2", "hunyuan_v1_moe", "zamba2", "internlm3", "cohere_compass_text", "glm", "bitnet",
    "exaone_moe", "glm4_moe",
)  # fmt: skip
# what the error alone says of faults that only the weights tell apart
WIDE = ("checkpoint", "order")  # faults of many places
ALSO = {"swapped": {"weights"}, "transposed": {"weights"}, "activation": {"experts"}}


def faults(name: str) -> Iterator[tuple[dict[str, Any], Any, Any, Any]]:
    model = built(name)
    for fault, (kind, sizes, _) in FAULTS.items():
        for number, size in enumerate(sizes):
            broken, places = planted(model, fault, size, number)
            if places is not None:
                yield {"what": fault, "size": size, "kind": kind}, model, broken, places


def _split(model: Any, parts: int) -> None:
    """Makes every product of a linear map sum in another order: over so many parts of its inputs."""
    for module in model.modules():
        if type(module).__name__ == "Linear":

            def forward(x, module=module):
                pieces = zip(x.tensor_split(parts, -1), module.weight.tensor_split(parts, 1), strict=True)
                made = sum(F.linear(*piece) for piece in pieces)
                return made if module.bias is None else made + module.bias

            module.forward = forward


def _products(change: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    """Makes every product of a linear map by change(its own forward, inputs)."""

    def other(model: Any) -> None:
        for module in model.modules():
            if type(module).__name__ == "Linear":
                module.forward = lambda x, forward=module.forward: change(forward, x)

    return other


def _one_by_one(forward: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([forward(row) for row in x.split(1)])


def _without_onednn(forward: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.backends.mkldnn.flags(enabled=False):
        return forward(x)


def _on_two_threads(forward: Any, x: torch.Tensor) -> torch.Tensor:
    torch.set_num_threads(2)
    try:
        return forward(x)
    finally:
        torch.set_num_threads(1)


def _remerged(model: Any) -> None:
    """An adapter is merged into the weights, and taken out again."""
    draw = torch.Generator().manual_seed(0)
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            a, b = (torch.randn(size, generator=draw).to(module.weight) / 8 for size in module.weight.shape)
            module.weight.data = module.weight.data + a[:, None] * b - a[:, None] * b


def _unmerged(model: Any) -> None:
    """A part of the weights stands beside them, as an adapter that is not merged."""
    draw = torch.Generator().manual_seed(0)
    head = model.get_output_embeddings()  # it may share its weights with the embeddings
    taken: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # out of weights, that blocks may share
    for module in model.modules():
        if type(module) is torch.nn.Linear and module is not head:
            if id(module.weight) not in taken:
                a = torch.randn(module.weight.shape[0], 2, generator=draw).to(module.weight) / 8
                b = torch.randn(2, module.weight.shape[1], generator=draw).to(module.weight) / 8
                module.weight.data -= a @ b
                taken[id(module.weight)] = a, b
            a, b = taken[id(module.weight)]
            module.forward = lambda x, module=module, a=a, b=b: (
                F.linear(x, module.weight, module.bias) + F.linear(F.linear(x, b), a)
            )


def _permuted(model: Any) -> None:
    """The neurons of a block in another order, in all projections alike."""
    parts = Parts(model)
    there = parts.by_role(1)
    if not {"up", "down"} <= there.keys():
        return
    if len(weight(parts.at(1, there["up"]))) != weight(parts.at(1, there["down"])).shape[1]:
        return  # two projections in one
    order = torch.randperm(len(weight(parts.at(1, there["up"]))))
    for role in {"up", "gate"} & there.keys():
        module = parts.at(1, there[role])
        weight(module).copy_(weight(module)[order].clone())
        if module.bias is not None:
            module.bias.data = module.bias.data[order].clone()
    for module in parts.blocks[1].modules():  # a norm over the neurons
        if "Norm" in type(module).__name__ and module.weight.shape == order.shape:
            module.weight.copy_(module.weight[order].clone())
    weight(parts.at(1, there["down"])).copy_(weight(parts.at(1, there["down"]))[:, order].clone())


def _read_again(model: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size="40KB")
        read = type(model).from_pretrained(folder, dtype=model.dtype, attn_implementation="eager").eval()
    read.config.use_cache, read.config._experts_implementation = False, "eager"
    return read


BENIGN = {
    "fused attention": lambda model: model.set_attn_implementation("sdpa"),
    "sums in 2 parts": lambda model: _split(model, 2),
    "sums in 3 parts": lambda model: _split(model, 3),
    "sums in 5 parts": lambda model: _split(model, 5),
    "rows one at a time": _products(_one_by_one),
    "rows in another order": _products(lambda forward, x: forward(x.flip(0)).flip(0)),
    "without oneDNN": _products(_without_onednn),
    "two threads": _products(_on_two_threads),
    "unmerged adapter": _unmerged,
    "merged and unmerged adapter": _remerged,
    "neurons permuted": _permuted,
    "written in shards and read": _read_again,
    "in float16": lambda model: model.half(),
    "copied": lambda model: None,
}


def benign(name: str) -> Iterator[tuple[dict[str, Any], Any, Any, Any]]:
    for dtype in (torch.float32, torch.bfloat16):
        model = built(name).to(dtype)
        for what, change in BENIGN.items():
            other = copy.deepcopy(model)
            with torch.no_grad():
                try:
                    other = change(other) or other
                except ValueError:  # the type has no fused attention
                    continue
            yield {"what": what, "size": str(dtype)[6:], "kind": ""}, model, other, set()


REAL = (
    "bias_added", "scaled", "head_scaled", "neuron_scaled", "gain_changed", "heads_swapped", "neurons_permuted",
    "projections_swapped", "transposed", "negated", "rotary_base", "rotary_positions", "positions_shifted",
    "future_seen", "epsilon", "norm_missing", "norm_without_mean", "activation", "scores_scaled", "row_of_zeros",
    "block_skipped", "blocks_swapped", "residual", "adapter", "coarser", "stream_in_16_bits", "one_weight",
)  # fmt: skip


@cache
def real(path: str) -> tuple[Any, list[inputs.Batch]]:
    """A published model, and short inputs: rows of text, and rows padded on the left."""
    file = Path(path)
    whole, given = (file.parent, {"gguf_file": file.name}) if file.suffix == ".gguf" else (file, {})
    auto = import_transformers().AutoModelForCausalLM if given else import_transformers().AutoModel
    model = auto.from_pretrained(whole, attn_implementation="eager", dtype=torch.float32, **given).eval()
    tokenizer, shape = (
        import_transformers().AutoTokenizer.from_pretrained(whole, **given),
        inputs.read_input_shape(model),
    )
    ids = tokenizer(" ".join(islice(embedded_text().documents(), 4)), verbose=False)["input_ids"]
    made = inputs.make_batches(replace(shape, context=24), [ids[24 * row : 24 * row + 24] for row in range(2)])
    return model, [made[0], made[2]]


def real_planted(path: str) -> Iterator[tuple[dict[str, Any], Any, Any, Any]]:
    model, _ = real(path)
    for number, name in enumerate(REAL):
        kind, sizes, _ = FAULTS[name]
        size = 1e-2 if SMALL[0] in sizes else sizes[0]
        broken, places = planted(model, name, size, number)
        if places is not None:
            yield {"what": name, "size": size, "kind": kind}, model, broken, places


def real_benign(path: str) -> Iterator[tuple[dict[str, Any], Any, Any, Any]]:
    model, _ = real(path)
    for what in ("fused attention", "sums in 2 parts", "sums in 5 parts", "rows one at a time", "unmerged adapter",
                 "merged and unmerged adapter", "neurons permuted"):  # fmt: skip
        other = copy.deepcopy(model)
        with torch.no_grad():
            yield {"what": what, "size": "float32", "kind": ""}, model, BENIGN[what](other) or other, set()


def said(reference: Any, candidate: Any, places: Any, given: Sequence[inputs.Batch], quick: bool) -> dict[str, Any]:
    start = time.process_time()
    answer = verify_models(reference, candidate, given, quick=quick)
    found = [(each.unit, each.place) for each in answer.differences]
    first = answer.differences[0] if found else None
    return {
        "verdict": answer.verdict,
        "right": bool(found) and found[0] in places,
        "first": found[:1],
        "others": [each for each in found[1:] if each not in places],
        "said": first.kind if first else "",
        "about": first.about if first else "",
        "times": round(first.times, 1) if first else 0,
        "inputs": list(first.inputs) if first else [],
        "places": sorted(places)[:3],
        "worst": [round(float(x), 3) if math.isfinite(x) else None for x in answer.worst],
        "seconds": round(time.process_time() - start, 2),
    }


REALS = {"real-planted": real_planted, "real-benign": real_benign}
CASES = REALS | {"planted": faults, "benign": benign, "outside": lambda name: outside.faults(built(name))}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("what", choices=CASES)
    asked.add_argument("architectures", nargs="*", help="without: ten of those seen, and the ten that were held out")
    asked.add_argument("--every", type=int, default=1, help="take every Nth case alone")
    asked.add_argument("--by-hand", action="store_true", help="try what people use now too")
    given = asked.parse_intermixed_args()
    torch.set_num_threads(1)
    names = given.architectures or (outside.ARCHITECTURES if given.what == "outside" else [*SEEN[:10], *HELD_OUT])
    records = []
    cases = (case for name in names for case in _cases(given.what, name))
    for record, reference, candidate, places in islice(cases, 0, None, given.every):
        try:
            is_real = given.what in REALS
            inputs_of = real(record["architecture"])[1] if is_real else batches(reference)
            record |= said(reference, candidate, places, inputs_of, is_real)
        except Exception as error:  # one that cannot be run is counted, and named
            record |= {"verdict": "none", "error": f"{type(error).__name__}: {error}"}
        if given.by_hand:
            with contextlib.suppress(Exception):  # the model may not run at all
                record["by hand"] = said_by_hand(reference, candidate, batches(reference)[0], places)
        records.append(record)
        print(json.dumps(record), flush=True)
    print(summary(records, given.what), file=sys.stderr)


def _cases(what: str, name: str) -> Iterator[tuple[dict[str, Any], Any, Any, Any]]:
    for record, *models in CASES[what](name):
        yield {"architecture": name, **record}, *models


def summary(records: list[dict[str, Any]], what: str) -> str:
    if what.endswith("benign"):
        seen = [record for record in records if record["verdict"] == "DIFFERENT"]
        failed = sum(record["verdict"] == "none" for record in records)
        ran = f"{len(records) - failed} benign changes, {len(seen)} called DIFFERENT, {failed} without a verdict"
        return f"{ran}{_by_hand(records, what)}"
    lines = []
    for size in (*SMALL, None):
        some = [
            record for record in records if record["size"] == size or (size is None and record["size"] not in SMALL)
        ]
        if some:
            name = f"{ROUNDINGS[SMALL.index(size)]} roundings" if size in SMALL else "larger"
            lines.append(f"{name}: {_counted(some)}")
    return "\n".join([*lines, f"all: {_counted(records)}"]) + _by_hand(records, what)


def _counted(records: list[dict[str, Any]]) -> str:
    ran = [record for record in records if record["verdict"] != "none"]
    seen = [record for record in ran if record["verdict"] == "DIFFERENT"]
    named = [record for record in seen if record["said"] != "unnamed"]
    right = sum(record["said"] in _true(record["kind"]) for record in seen)
    return (
        f"{len(ran)} faults ({len(records) - len(ran)} more without a verdict), {len(seen)} DIFFERENT, "
        f"of these {sum(r['right'] for r in seen)} at the right place "
        f"({sum(bool(r['others']) for r in seen if r['kind'] not in WIDE)} with a wrong one beside it), {right} of the "
        f"right kind, {len(named)} named"
    )


def _true(kind: Any) -> set[str]:
    return {*kind} if isinstance(kind, list) else {kind} | ALSO.get(kind, set())


def _by_hand(records: list[dict[str, Any]], what: str) -> str:
    compared = [record for record in records if "by hand" in record]
    if not what.endswith("benign"):
        compared = [record for record in compared if record["verdict"] == "DIFFERENT"]
    return "".join(
        f"\n{name}: {sum(record['by hand'][name][0] for record in compared)} of {len(compared)} called different"
        + (
            f", {sum(record['by hand'][name][1] for record in compared)} at the right place"
            * (not what.endswith("benign"))
        )
        for name in CHECKS
        if compared
    )


if __name__ == "__main__":
    main()
