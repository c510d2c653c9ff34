"""Runs whose units workers compute ahead, and what they leave."""

import json

PAIRS = (
    "model=[tiny_a,tiny_b]", "measure=[cka_unbiased,procrustes,gromov_wasserstein]", "extract.rows=60",
    "extract.estimate=full", "extract.sequences=4", "extract.layers=[0,-1]", "hardware.threads=1",
)  # fmt: skip
STITCHES = (
    "study=stitching", "model=[tiny_a,tiny_b]", "extract.sequences=24", "extract.length=32", "extract.layers=[1]",
    "+options.evaluation=8", "+options.recipe={steps: 3, warm_up: 1}", "+options.baselines=[random]", "hardware.threads=1",
)  # fmt: skip


def numbers(folder):
    found = json.loads((folder / "results.json").read_text())
    for analysis in found["analyses"].values():
        analysis.pop("code")
    return found, {file.name: file.read_bytes() for file in (folder / "arrays").glob("*")}
