"""Faults planted in tiny models of many architectures, and changes that are none: what `repsim verify` says of them,
and what the checks say that people write by hand.

Command: python benchmarks/verify.py [planted|benign] [ARCHITECTURE ...]
"""

import argparse
import contextlib
import copy
import json
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from by_hand import CHECKS, said_by_hand
from planted import FAULTS, Parts, batches, built, planted, weight

from repsim_cli.studies.verify.study import verified

ARCHITECTURES = (
    "llama", "gpt2", "gpt_neox", "qwen3", "gemma2", "gemma3_text", "opt", "bloom", "phi", "mixtral", "bert", "olmo2",
    "mistral", "falcon", "gptj", "roberta", "cohere2", "starcoder2", "stablelm", "modernbert",
)  # fmt: skip
# what the error alone says of faults that only the weights tell apart
ALSO = {"swapped": {"weights"}, "transposed": {"weights"}, "activation": {"experts"}}


def faults(name: str) -> Iterator[tuple[dict[str, Any], Any, Any, Any]]:
    model = built(name)
    for fault, (kind, sizes, _) in FAULTS.items():
        for number, size in enumerate(sizes):
            broken, places = planted(model, fault, size, number)
            if places is not None:
                yield {"what": fault, "size": size, "kind": kind}, model, broken, places


def _split(model: Any, parts: int) -> None:
    """Every product is summed in another order."""
    for module in model.modules():
        if type(module).__name__ == "Linear":

            def forward(x, module=module):
                pieces = zip(x.tensor_split(parts, -1), module.weight.tensor_split(parts, 1), strict=True)
                made = sum(F.linear(*piece) for piece in pieces)
                return made if module.bias is None else made + module.bias

            module.forward = forward


def _unmerged(model: Any, _: int) -> None:
    """A part of the weights stands beside them, as an adapter that is not merged."""
    draw = torch.Generator().manual_seed(0)
    head = model.get_output_embeddings()  # it may share its weights with the embeddings
    for module in model.modules():
        if type(module) is torch.nn.Linear and module is not head:
            a = torch.randn(module.weight.shape[0], 2, generator=draw).to(module.weight) / 8
            b = torch.randn(2, module.weight.shape[1], generator=draw).to(module.weight) / 8
            module.weight.data -= a @ b
            module.forward = lambda x, module=module, a=a, b=b: (
                F.linear(x, module.weight, module.bias) + F.linear(F.linear(x, b), a)
            )


def _permuted(model: Any, _: int) -> None:
    """The neurons of a block in another order, in all projections alike."""
    parts = Parts(model)
    there = parts.by_role(1)
    if not {"up", "down"} <= there.keys():
        return
    order = torch.randperm(len(weight(parts.at(1, there["up"]))))
    for role in {"up", "gate"} & there.keys():
        module = parts.at(1, there[role])
        weight(module).copy_(weight(module)[order].clone())
        if module.bias is not None:
            module.bias.data = module.bias.data[order].clone()
    weight(parts.at(1, there["down"])).copy_(weight(parts.at(1, there["down"]))[:, order].clone())


BENIGN = {
    "fused attention": lambda model, _: model.set_attn_implementation("sdpa"),
    "sums in 2 parts": lambda model, _: _split(model, 2),
    "sums in 3 parts": lambda model, _: _split(model, 3),
    "sums in 5 parts": lambda model, _: _split(model, 5),
    "unmerged adapter": _unmerged,
    "neurons permuted": _permuted,
    "copied": lambda model, _: None,
}


def benign(name: str) -> Iterator[tuple[dict[str, Any], Any, Any, Any]]:
    for dtype in (torch.float32, torch.bfloat16):
        model = built(name).to(dtype)
        for what, change in BENIGN.items():
            other = copy.deepcopy(model)
            with torch.no_grad():
                try:
                    change(other, 0)
                except ValueError:  # the type has no fused attention
                    continue
            yield {"what": what, "size": str(dtype)[6:], "kind": ""}, model, other, set()


def said(reference: Any, candidate: Any, places: Any) -> dict[str, Any]:
    start = time.time()
    answer = verified(reference, candidate, batches(reference))
    found = [(each.unit, each.place) for each in answer.differences]
    first = answer.differences[0] if found else None
    return {
        "verdict": answer.verdict,
        "right": bool(found) and found[0] in places,
        "first": found[:1],
        "others": [each for each in found[1:] if each not in places],
        "said": first.kind if first else "",
        "about": first.about if first else "",
        "inputs": list(first.inputs) if first else [],
        "places": sorted(places)[:3],
        "worst": [round(float(x), 3) if math.isfinite(x) else None for x in answer.worst],
        "seconds": round(time.time() - start, 2),
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("what", choices=("planted", "benign"))
    asked.add_argument("architectures", nargs="*")
    given = asked.parse_args()
    torch.set_num_threads(1)
    records = []
    for name in given.architectures or ARCHITECTURES:
        for record, reference, candidate, places in {"planted": faults, "benign": benign}[given.what](name):
            try:
                record |= said(reference, candidate, places)
            except Exception as error:  # one that cannot be run is counted, and named
                record |= {"verdict": "none", "error": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(Exception):  # the model may not run at all
                record["by hand"] = said_by_hand(reference, candidate, batches(reference)[0], places)
            records.append({"architecture": name, **record})
            print(json.dumps(records[-1]), flush=True)
    print(summary(records, given.what), file=sys.stderr)


def summary(records: list[dict[str, Any]], what: str) -> str:
    seen = [record for record in records if record["verdict"] == "DIFFERENT"]
    compared = [record["by hand"] for record in (records if what == "benign" else seen) if "by hand" in record]
    by_hand = "".join(
        f"\n{name}: {sum(found[name][0] for found in compared)} of {len(compared)} called different"
        + (f", {sum(found[name][1] for found in compared)} at the right place" if what == "planted" else "")
        for name in CHECKS
    )
    if what == "benign":
        return f"{len(records)} benign changes, {len(seen)} called DIFFERENT{by_hand}"
    named = [record for record in seen if record["said"] != "unnamed"]
    right = sum(record["said"] in {record["kind"]} | ALSO.get(record["kind"], set()) for record in seen)
    return (
        f"{len(records)} faults, {len(seen)} visible; the place is right in {sum(r['right'] for r in seen)}, the kind "
        f"in {right} of {len(named)} that are named{by_hand}"
    )


if __name__ == "__main__":
    main()
