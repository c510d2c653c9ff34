"""What the rows of two sides share beyond the right answers: planted shares, another solver, and a stitch of noise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.printed import ASSETS
from sklearn.linear_model import Ridge

from repsim_cli.base import registry
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.report.studies import say_main_findings
from repsim_cli.runs import results
from repsim_cli.runs.content import Results
from repsim_cli.studies.stitching.evaluate import Estimate, Head, Shared, Stitch, StitchScores
from repsim_cli.studies.stitching.models import Inputs
from repsim_cli.studies.stitching.noise import NONE, draw_clusters, find_answers
from repsim_cli.studies.stitching.results import PENALTIES, tabulate_stitches, warn_of_misled
from repsim_cli.studies.stitching.shared import (
    StitchSide,
    estimate_shared_variance,
    predict_by_ridge,
    subtract_group_means,
)
from repsim_cli.studies.stitching.study import Stitching
from repsim_cli.studies.stitching.train import StitchRecipe

transformers = registry.models.get("transformers").function


def halves(rows):
    return StitchSide(rows[:1500], rows[1500:])


def test_planted_shares_are_found():
    """y has a share s of its variance from x: s is explained, and of x by y what a regression back gives."""
    draw = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(3000, 8, generator=draw, dtype=torch.float64) for _ in range(2))
    turn = torch.linalg.qr(torch.randn(8, 8, generator=draw, dtype=torch.float64)).Q
    owners = np.repeat(np.arange(100), 15)
    for share in (0.0, 0.3, 0.9, 1.0):
        y = share**0.5 * x @ turn + (1 - share) ** 0.5 * noise
        for way in ((x, y), (y, x)):
            found = estimate_shared_variance(*map(halves, way), owners)
            assert found.value == pytest.approx(share, abs=0.02)
            assert abs(found.value - share) <= 4 * found.se + 1e-9


def test_the_error_is_the_spread_over_draws():
    values, errors = [], []
    for seed in range(60):
        draw = torch.Generator().manual_seed(seed)
        x, noise = (torch.randn(900, 4, generator=draw, dtype=torch.float64) for _ in range(2))
        y = (x + noise) / 2**0.5
        found = estimate_shared_variance(
            StitchSide(x[:600], x[600:]), StitchSide(y[:600], y[600:]), np.repeat(np.arange(30), 10)
        )
        values.append(found.value)
        errors.append(found.se)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.3)


def test_ridge_is_that_of_scikit_learn():
    draw = torch.Generator().manual_seed(1)
    x, y, new = (torch.randn(n, d, generator=draw, dtype=torch.float64) for n, d in ((40, 6), (40, 3), (9, 6)))
    size = float(x.square().sum())
    solved = StitchSide(x, new).solved[40]
    for penalty, ours in zip((0.1, 1e-3), predict_by_ridge(solved, x.T @ y, new, [0.1, 1e-3]), strict=True):
        theirs = Ridge(alpha=penalty * size, fit_intercept=False).fit(x.numpy(), y.numpy())
        np.testing.assert_allclose(ours, theirs.predict(new.numpy()), atol=1e-10)
    assert [float(of.abs().max()) for of in predict_by_ridge(solved, x.T @ y, new, [float("inf")])] == [0.0]


def test_means_of_answers_are_taken():
    rows, groups = torch.tensor([[1.0], [3.0], [5.0]], dtype=torch.float64), torch.tensor([0, 0, 1])
    assert subtract_group_means(rows, groups).tolist() == [[-1.0], [1.0], [0.0]]


def test_what_is_right_at_every_place():
    inputs = Inputs(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]]).bool(), None)
    assert find_answers(inputs, None).tolist() == [[6, 7, NONE], [9, NONE, NONE]]
    assert find_answers(inputs, torch.tensor([2, 0])).tolist() == [[2, 2, 2], [0, 0, 0]]


def test_noise_has_centres_that_only_the_answer_decides():
    stream, answers = 3 * torch.ones(40, 50, 16), torch.arange(2).repeat(40, 25)
    one, other = (draw_clusters(stream, answers, 1, seed) for seed in (0, 1))
    assert float(one.square().mean()) == pytest.approx(9, rel=0.2)
    centres = [[rows[answers == answer].mean(0) for answer in (0, 1)] for rows in (one, other)]
    for a, b in zip(*centres, strict=True):
        torch.testing.assert_close(a, b, atol=0.4, rtol=0)
    assert float((centres[0][0] - centres[0][1]).abs().max()) > 1
    assert not torch.equal(one, other)
    assert not torch.equal(one, draw_clusters(stream, answers, 2, 0))


def planted(shared, kept):
    """Scores of stitches of which the tail knows log 4 - 0.3, and so much is kept."""
    stitch, alone = Stitch(Head("b"), "a", 1, 1), np.full(10, 0.3)
    lost = (1 - kept) * (np.log(4) - 0.3)
    stitched = {stitch: {"loss": alone + lost, "correct": alone, "kl": alone, "differs": alone}}
    both = Shared(Estimate(shared, 0.01), Estimate(0.0, 0.01))
    own = {"a": {"loss": alone, "correct": alone}}
    return stitch, StitchScores(np.ones(10), own, stitched, np.ones(4, int), {stitch: both})


@pytest.mark.parametrize(
    ("shared", "kept", "misled"), [(0.0, 0.9, True), (0.5, 0.9, False), (0.0, 0.1, False), (0.09, 0.9, False)]
)
def test_what_misleads(shared, kept, misled):
    stitch, scores = planted(shared, kept)
    assert scores.compute_kept(stitch) == pytest.approx(kept)
    assert scores.is_misled(stitch) == misled


def test_one_document_of_most_predictions_does_not_say_that_a_stitch_misleads():
    stitch, scores = planted(0.07, 0.9)
    lengths = np.array([150.0, *[6.0] * 9])
    alone, stitched = ({of: {score: sums * lengths for score, sums in each.items()} for of, each in some.items()}
                       for some in (scores.alone, scores.stitched))  # fmt: skip
    assert scores.freedom == 9
    assert scores.is_misled(stitch)
    long = replace(scores, weights=lengths, alone=alone, stitched=stitched)
    assert long.compute_kept(stitch) == pytest.approx(0.9)
    assert long.freedom == 1
    assert not long.is_misled(stitch)


@pytest.mark.parametrize(("loss", "known"), [(0.3, True), (1.4, False)])
def test_a_tail_that_knows_nothing_is_warned_of(tmp_path, loss, known):
    """Four answers come as often, of which log 4 = 1.386 nats are known by their shares alone."""
    stitch, scores = planted(0.5, 0.9)
    alone = {"a": {"loss": np.full(10, loss), "correct": np.zeros(10)}}
    scores = replace(scores, alone=alone)
    run = results.create(tmp_path / "run", name="test", study="stitching", seed=0, command=[], overrides=[])
    warn_of_misled(run, scores)
    run.lock.release()
    assert (scores.compute_kept(stitch) is not None) == known
    assert run.manifest["warnings"] == (
        []
        if known
        else [
            "stitching: a knows no more of the right answers than how often each comes (loss 1.4, 1.39 for their shares "
            "alone); penalties of stitches into it say nothing"
        ]
    )


@pytest.mark.slow
def test_a_stitch_of_noise_works_and_is_seen_through(tmp_path, monkeypatch):
    """A trained tail is driven by noise that holds the next tokens, better than by any model; its rows share
    nothing."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    found = Stitching(
        model={label: transformers(path=str(ASSETS / "models" / label)) for label in ("tiny_a", "tiny_b")},
        data=registry.data.get("embedded_text").function(),
        extract=Extract(hook_points=["resid_post"], layers=[4], length=32, sequences=200),
        hardware=Hardware(),
        seed=0,
        pairs=[["tiny_b", "tiny_a"]],
        evaluation=60,
        baselines=["noise"],
        recipe=StitchRecipe(steps=200),
    )
    run = results.create(tmp_path / "run", name="test", study="stitching", seed=0, command=[], overrides=[])
    out = found.run(run)
    run.lock.release()
    other, noise = [dict(zip(PENALTIES, row, strict=True)) for row in out.tables["stitching"].rows]
    assert noise["penalty"] < 0 < other["penalty"]
    assert (noise["misleads"], other["misleads"]) == ("yes", "no")
    assert noise["shared"] == pytest.approx(0, abs=0.01)
    assert noise["shared back"] == pytest.approx(0, abs=0.01)
    assert other["shared"] > 0.4
    assert other["shared back"] > 0.4


def test_models_that_mislead_are_warned_of(tmp_path):
    stitch, scores = planted(0.0, 0.9)
    run = results.create(tmp_path / "run", name="test", study="stitching", seed=0, command=[], overrides=[])
    warn_of_misled(run, scores)
    run.lock.release()
    assert run.manifest["warnings"] == [
        "stitching: 1 of 1 stitches work although the rows of their head explain almost nothing of those of the tail "
        "beyond the right answers, most of all b -> a, resid_post@1 (keeps 0.90 of what the tail knows, rows shared "
        "0.00); their penalty says nothing of what the models share"
    ]
    table = tabulate_stitches([stitch], scores, {})
    (said,) = say_main_findings(Results(study="stitching", tables=table))
    assert said.endswith(
        "; but beyond the right answers its rows explain almost nothing of those of the tail (resid_post@1)"
    )
