"""What `repsim show SWEEP` says of jobs that differ by their seed."""

import numpy as np
import pytest
from helpers.made_runs import made

from repsim_cli.runs import reader, results


def job_of(sweep, number, *words, seed, **how):
    folder = made(sweep / f"{number}-study", seed=seed, sizes=[3, 3], **how)
    with results.amend(folder) as run:
        run.manifest["overrides"] = [f"seed={seed}", *words]
    return folder


def mean_of(folder, label, place):
    measured = next(each for each in reader.read_results(folder).measures if each.label == label)
    values = reader.read_array(folder, measured.matrices[place].values)
    return values[~np.eye(3, dtype=bool)].mean() if place != 1 else values.mean()


def test_maps_of_jobs_that_differ_by_their_seed(repsim, tmp_path):
    """Each setting has its own; models with themselves are without the diagonal."""
    sweep = tmp_path / "outputs" / "2026-11-20" / "07-30-41-sweep"
    rows = [("extract=words", seed) for seed in (0, 1, 2)] + [("extract=pooled", seed) for seed in (3, 4)]
    jobs = [job_of(sweep, n, word, seed=seed, measures=("cka",)) for n, (word, seed) in enumerate(rows)]
    lines = repsim("show", "07-30-41-sweep")[1].splitlines()
    said = [line for line in lines if line.startswith("  extract=")]
    assert said == [
        f"  extract={word} seed={seeds}: the mean of each map, ± its standard deviation over the {count} runs"
        for word, seeds, count in (("words", "0,1,2", 3), ("pooled", "3,4", 2))
    ]
    for beginning, folders in zip(said, (jobs[:3], jobs[3:]), strict=True):
        first = lines.index(beginning) + 1
        for place, pair in enumerate(("small x small", "small x large", "large x large")):
            means = [mean_of(folder, "cka", place) for folder in folders]
            assert f"{pair}  {np.mean(means):.3g} ± {np.std(means, ddof=1):.2g} " in lines[first + place]


@pytest.mark.parametrize(
    ("words", "seeds"),
    [((), (0,)), ((), (1, 1)), (("extract=words", "extract=pooled"), (0, 1)), (("extract=words",), (0, 1))],
)
def test_nothing_is_said_of_one_run(repsim, tmp_path, words, seeds):
    """Runs of the same values to the bit, and of other settings, are no seeds either."""
    sweep = tmp_path / "outputs" / "2026-11-20" / "07-30-41-sweep"
    for number, seed in enumerate(seeds):
        job_of(sweep, number, *words[number : number + 1], seed=seed)
    code, out, _ = repsim("show", "07-30-41-sweep")
    assert code == 0
    assert "standard deviation" not in out


def test_a_job_without_its_arrays_is_named(repsim, tmp_path):
    sweep = tmp_path / "outputs" / "2026-11-20" / "07-30-41-sweep"
    jobs = [job_of(sweep, number, seed=number, measures=("cka",)) for number in range(3)]
    next((jobs[1] / "arrays").glob("cka-0-0*")).unlink()
    code, out, err = repsim("show", "07-30-41-sweep")
    assert code == 0, err
    assert "cka-0-0-p.npy: not as the run left it, got another or no file; run it again" in out
    assert "over the 2 runs" in out
