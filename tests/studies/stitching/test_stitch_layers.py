"""Stitch layers: what least squares and training find, and what is kept of them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.stitched_models import same_layer, some, whole

from repsim_cli.runs import cache
from repsim_cli.studies.stitching.evaluate import (
    Head,
    PassSettings,
    Stitch,
    evaluate_stitches,
    make_next_token_task,
)
from repsim_cli.studies.stitching.layers import (
    KINDS,
    PairedSums,
    start_at_identity,
    start_at_least_squares,
)
from repsim_cli.studies.stitching.models import (
    EMBED,
)
from repsim_cli.studies.stitching.train import Fitting, StitchRecipe, fit_key, fit_stitches


def test_least_squares_finds_the_map():
    """The map with intercept, the best orthogonal one, and of singular covariances the smallest; in two parts as in
    one."""
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    rotation = torch.linalg.qr(torch.randn(6, 6))[0]
    if torch.det(rotation) > 0:
        rotation[0] *= -1  # a reflection
    y = x @ rotation + torch.arange(6.0)
    for kind in ("linear", "orthogonal", "affine"):
        layer = KINDS[kind].build(6, 6)
        moments = PairedSums(layer, 6, 6, torch.device("cpu"))
        for part in (slice(0, 80), slice(80, None)):
            moments.add(x[part], y[part])
        start_at_least_squares(layer, kind, moments)
        given = layer[:-1](x)
        design = torch.cat([given, torch.ones(200, 1)], dim=1).double().numpy()
        # the rows behind a LayerNorm sum to zero but for rounding, which is nothing to fit
        best = design @ np.linalg.lstsq(design, y.double().numpy(), rcond=1e-5)[0]
        assert np.abs(layer(x).detach().numpy() - best).max() < 1e-4, kind
        if kind == "orthogonal":
            weights = layer[-1].weight.detach()
            assert torch.allclose(weights @ weights.T, torch.eye(6), atol=1e-5)
        start_at_identity(layer)
        assert torch.allclose(layer(x), given, atol=1e-6)


def test_an_orthogonal_layer_stays_orthogonal():
    model, given = whole("gpt2"), some()
    stitch = Stitch(Head("m"), "m", 0, 1)
    recipe = StitchRecipe(layer="orthogonal", steps=5, warm_up=0, batch=2, clip=1.0)
    fit = fit_stitches(model, model, [stitch], given, make_next_token_task(), Fitting(recipe, batch_size=4, seed=0))[
        stitch
    ]
    weights = fit.layer[-1].weight
    assert torch.allclose(weights @ weights.T, torch.eye(32), atol=1e-4)
    assert not torch.allclose(weights, KINDS["orthogonal"].build(32, 32)[-1].weight, atol=1e-2)


def test_training_between_widths_with_gradients_for_the_layer_alone():
    head, tail = whole("gpt_neox", label="a"), whole("gpt2", label="b", n_embd=48)
    calls = Counter()
    head.model.gpt_neox.layers[0].register_forward_hook(lambda *_: calls.update(["head"]))
    stitches = [Stitch(Head("a"), "b", at, into) for at, into in ((EMBED, 0), (1, 1), (2, 2))]
    recipe = StitchRecipe(layer="linear", steps=40, warm_up=5, batch=4, init_sequences=2, scale_rate=True, clip=1.0)
    fits = fit_stitches(head, tail, stitches, some(), make_next_token_task(), Fitting(recipe, batch_size=2, seed=0))
    # one pass for the start, and two in each of 40 steps, for three layers
    assert calls["head"] == 1 + 2 * 40
    for stitch, fit in fits.items():
        assert fit.layer[0].weight.shape == (48, 32)
        assert fit.diverged is None, stitch
        assert fit.losses[-5:].mean() < fit.losses[:5].mean(), stitch
    for model in (head, tail):
        assert not any(weights.requires_grad or weights.grad is not None for weights in model.model.parameters())


def test_layers_do_not_depend_on_which_others_are_trained_beside_them():
    model, given = whole("gpt2"), some()
    stitches = same_layer([Head("m", "shuffled")], ["m"], [0, 1])
    recipe = StitchRecipe(steps=4, warm_up=1, batch=4)

    def fit(which):
        return fit_stitches(model, model, which, given, make_next_token_task(), Fitting(recipe, batch_size=4, seed=3))

    both, one = fit(stitches), fit(stitches[1:])
    assert np.array_equal(both[stitches[1]].losses, one[stitches[1]].losses)
    assert torch.equal(both[stitches[1]].layer[-1].weight, one[stitches[1]].layer[-1].weight)


def test_a_finished_layer_is_read_from_the_cache(monkeypatch, tmp_path):
    """One of two layers is finished, then the run is killed: what it leaves is what a whole run leaves."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    model, given = whole("gpt2"), some()
    stitches = same_layer([Head("m")], ["m"], [0, 1])
    recipe = StitchRecipe(steps=3, warm_up=1, batch=4)
    identities = {"m": model.source.identity()}
    keys = {s: fit_key(s, identities, given, make_next_token_task(), recipe, {"seed": 0}) for s in stitches}
    assert len(set(keys.values())) == 2
    other = fit_key(stitches[0], identities, given, make_next_token_task(), replace(recipe, clip=1.0), {"seed": 0})
    assert other not in keys.values()

    def fit(which):
        with cache.use("stitches", list(keys.values())) as entries:
            own = {stitch: entries[keys[stitch]] for stitch in stitches}
            return fit_stitches(
                model, model, which, given, make_next_token_task(), Fitting(recipe, batch_size=4, seed=0), entries=own
            )  # fmt: skip

    whole_run = fit_stitches(
        model, model, stitches, given, make_next_token_task(), Fitting(recipe, batch_size=4, seed=0)
    )
    fit(stitches[:1])
    calls = Counter()
    model.model.transformer.h[0].register_forward_hook(lambda *_: calls.update(["block"]))
    resumed = fit(stitches)
    for stitch in stitches:
        assert np.array_equal(resumed[stitch].losses, whole_run[stitch].losses)
        for a, b in zip(resumed[stitch].layer.parameters(), whole_run[stitch].layer.parameters(), strict=True):
            assert torch.equal(a, b)
    calls.clear()
    fit(stitches)
    assert not calls


def test_an_evaluation_goes_on_where_it_was_killed(monkeypatch, tmp_path):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    model, other, given = whole("gpt2", label="a"), whole("gpt2", label="b", seed=1), some()
    stitches = same_layer([Head("a")], ["b"], [0, 1])
    arguments = ({Head("a"): model}, {"b": other}, stitches, given, make_next_token_task())
    plain = evaluate_stitches(*arguments, PassSettings(batch_size=2))

    def killed(items, **_):
        yield from list(items)[:2]
        raise KeyboardInterrupt

    with cache.use("stitching", ["key"]) as entries, pytest.raises(KeyboardInterrupt):
        evaluate_stitches(*arguments, PassSettings(batch_size=2, entry=entries["key"], progress=killed))
    calls = Counter()
    model.model.transformer.h[0].register_forward_hook(lambda *_: calls.update(["block"]))
    with cache.use("stitching", ["key"]) as entries:
        resumed = evaluate_stitches(*arguments, PassSettings(batch_size=2, entry=entries["key"]))
        assert entries["key"].complete
    assert calls["block"] == 1
    for stitch in stitches:
        assert all(np.array_equal(resumed.stitched[stitch][k], v) for k, v in plain.stitched[stitch].items())
