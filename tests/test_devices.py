"""Runs on a device have the numbers of the CPU within rounding: on a GPU, and on a pretended one, which needs none."""

import os

import numpy as np
import pytest
from helpers.forks import run_in_fork
from helpers.pretended_gpu import NAME, run_commands

from repsim_cli.runs import folders, reader

ROWS = ("model=[tiny_a,tiny_b]", "extract.estimate=full", "extract.rows=100", "extract.layers=[0,3,-1]")
MEASURES = "measure=[cka,cka_unbiased,cka_rbf,rsa,mutual_knn,procrustes,pwcca,ridge,linear_regression]"
RUNS = {
    "measures": (*ROWS, MEASURES),
    "words": (*ROWS, "extract=words", "measure=[cka_unbiased,mutual_knn]", "significance.permutations=20"),
    "capped directions": (*ROWS, "extract.normalise=directions", "measure=[cka_unbiased]"),
    "summed": ("model=[tiny_a,tiny_b]", "measure=[cka]", "extract.estimate=ratio_of_sums", "extract.batch_rows=64"),
    "moments": ("model=[tiny_a,tiny_b]", "measure=[cka,svcca,pwcca]", "extract.estimate=moments"),
    "sampled": ("model=[tiny_a,tiny_b]", "measure=[mutual_knn]", "extract.estimate=sampled", "extract.rows=60"),
    "parallel": ("experiment=tiny/parallel",),
    "maps of attention": ("experiment=tiny/ptb_attention",),
    "images": ("experiment=tiny/layer_identification_images",),
    "grounding": ("experiment=tiny/grounding",),
    "barycentre": ("experiment=tiny/barycentre",),
    "likelihoods": ("experiment=tiny/likelihoods",),
    "universal neurons": ("experiment=tiny/universal_neurons",),
}
# pretended, whose steps are slow: on few texts and layers; others are run where there is a GPU
FEW = ("extract.sequences=8", "extract.layers=[0,-1]")
HERE = {"measures": (*FEW, "extract.layers=[-1]", "measure.ridge.folds=3"), "moments": FEW, "sampled": FEW}
ON_CARD = [
    pytest.param(name, NAME, id=f"{name}, pretended", marks=[pytest.mark.slow] * (name == "measures")) for name in HERE
]
ON_GPU = [pytest.param(name, "cuda", id=name, marks=pytest.mark.gpu) for name in RUNS]


def read_arrays(folder):
    """Every array of numbers of a run."""
    arrays = {str(file.relative_to(folder)): np.load(file) for file in (folder / "arrays").rglob("*.npy")}
    return {name: x for name, x in arrays.items() if x.dtype.kind == "f"}


def list_words(name, device, *more):
    return [
        "run",
        "-q",
        *RUNS[name],
        f"hardware.device={device}",
        "cache=false",
        f"name={name.replace(' ', '-')}",
        *more,
    ]


@pytest.fixture
def on_card(shared):
    """The folder of runs on the pretended device, of one process."""

    def make(folder):
        commands = [list_words(name, NAME, *HERE[name]) for name in HERE]
        done = run_in_fork(lambda: run_commands(commands), {**os.environ, "REPSIM_OUTPUTS": str(folder)})
        assert done.returncode == 0, done.stderr

    return shared("on-card", make)


@pytest.mark.parametrize(("name", "device"), [*ON_CARD, *ON_GPU])
def test_runs_have_the_numbers_of_the_cpu(name, device, repsim, request, newest):
    runs, few = [], HERE[name] if device == NAME else ()
    for where in (device, "cpu"):
        if where == NAME:
            run = folders.find(name, request.getfixturevalue("on_card"))
        else:
            code, _, err = repsim(*list_words(name, where, *few))
            assert code == 0, err
            run = newest()
        assert reader.read_manifest(run)["device"] == where
        runs.append(run)
    there, here = map(read_arrays, runs)
    assert there.keys() == here.keys()
    assert here
    for key, x in here.items():
        # of a layer that is cut to one component, many rows are equally near but for rounding
        np.testing.assert_allclose(there[key], x, rtol=1e-3, atol=0.05 if "truncated" in key else 1e-3, err_msg=key)
