"""Dictionaries compared: planted shared latents, paired features, whole runs, and what is refused."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.recorded import recorded

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.engine.exchanges import draw_document_orders
from repsim_cli.runs.content import Matrix, Side
from repsim_cli.studies.dictionaries.compare import (
    compare_feature_spaces,
    correlate,
    draw_mirrored,
    match_latents,
    match_one_to_one,
)
from repsim_cli.studies.dictionaries.finding import SHARED as SHARED_COLUMNS
from repsim_cli.studies.dictionaries.finding import compute_matched_shares, make_shared_row
from repsim_cli.studies.dictionaries.formats import Dictionary, save
from repsim_cli.studies.dictionaries.study import Features, GivenDictionary
from repsim_cli.studies.dictionaries.train import DictionaryRecipe

WIDTH, SHARED = 40, 15


def unit(count, width, seed):
    return F.normalize(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)), dim=1)


def sides(decoder, encoder):
    return {"decoder": decoder, "encoder": encoder}


def test_a_shared_part_is_recovered_exactly():
    """Permuted; some of it times -1, which only absolute cosines see."""
    rng = np.random.default_rng(0)
    a = sides(unit(WIDTH, 64, 0), unit(WIDTH, 64, 1))
    order, signs = rng.permutation(WIDTH), torch.ones(WIDTH)
    signs[:5] = -1
    b = {}
    for number, (side, x) in enumerate(a.items()):
        mixed = unit(WIDTH, 64, 2 + number)
        mixed[:SHARED] = 3 * x[:SHARED]  # of any length
        b[side] = (signs[:, None] * mixed)[order]
    for absolute, expected in ((False, SHARED - 5), (True, SHARED)):
        found = match_latents(a, b, absolute)
        assert compute_matched_shares(np.stack(found), 0.7) == [expected / WIDTH] * 3
        assert found.decoder[SHARED - expected : SHARED] == pytest.approx(1)
        assert found.agree[SHARED - expected : SHARED].all()
    by_encoder = match_latents(a, sides(b["decoder"], b["encoder"][rng.permutation(WIDTH)]), True)
    assert compute_matched_shares(np.stack(by_encoder), 0.7)[:2] == [SHARED / WIDTH] * 2
    assert compute_matched_shares(np.stack(by_encoder), 0.7)[2] < SHARED / WIDTH  # other partners
    # of the smaller one, whichever comes first
    small = {side: x[:20] for side, x in a.items()}
    assert all(
        np.array_equal(*pair) for pair in zip(match_latents(small, b, True), match_latents(b, small, True), strict=True)
    )
    assert compute_matched_shares(np.stack(match_latents(small, b, True)), 0.7) == [SHARED / 20] * 3


def test_mirrors_keep_lengths_along_axes_and_the_sign_of_large_ones():
    scale = torch.linspace(0.5, 1, 32)
    scale[0] = 5
    rows = torch.randn(4000, 32, generator=torch.Generator().manual_seed(0)) * scale
    given = sides(torch.eye(32), unit(32, 32, 1))
    for each in draw_mirrored(given, rows, 3, 0):
        moved = given["decoder"].double() @ each["decoder"]
        assert each["encoder"].norm(dim=1) == pytest.approx(np.ones(32))
        assert moved[0, 0] == pytest.approx(1, abs=0.01)
        assert moved[1:, 1:].diagonal().abs().max() < 0.99 or moved.diagonal().min() < 0


def imagine_dictionary(rng, axes, count):
    """Latents that follow the large axes of rows of a steep spectrum, as those of trained dictionaries do."""
    decoder = torch.from_numpy(rng.standard_normal((count, len(axes))) * axes)
    return sides(F.normalize(decoder, dim=1), F.normalize(decoder + 0.05 * torch.from_numpy(axes), dim=1))


def test_dictionaries_of_unrelated_rows_share_no_more_than_chance_and_planted_latents_are_seen():
    """Makes dictionaries of rows with a steep spectrum, of which some latents are alike by their covariance alone."""
    axes, matrix = np.arange(1, 25) ** -0.5, Matrix(
        rows=Side(model="m", layers=[]), columns=Side(model="latents", layers=[]), values="", n=24, label="cosine",
        about={"layer": "l", "dictionaries": ["a", "b"]},
    )  # fmt: skip
    found, told = [], []
    for draw in range(40):
        rng = np.random.default_rng(draw)
        rows = torch.from_numpy(rng.standard_normal((400, 24)) * axes)
        a, b = (imagine_dictionary(rng, axes, 24) for _ in range(2))
        for planted, into in ((0, found), (8, told)):
            for side, x in b.items():
                x[:planted] = a[side][:planted]
            each = [match_latents(a, other, False) for other in (b, *draw_mirrored(b, rows, 19, draw))]
            values = np.stack([side for pair in each for side in (pair.decoder, pair.encoder, pair.agree)])
            row = dict(zip(SHARED_COLUMNS, make_shared_row(matrix, values, 0.7), strict=True))
            assert row["shared: low"] <= row["shared"] <= row["shared: high"]
            into.append([row["shared by decoder"], row["p: by decoder"], row["p: shared"]])
    shares, by_decoder, by_both = np.array(found).T
    assert shares.mean() > 0.03
    assert max((by_decoder <= 0.05).mean(), (by_both <= 0.05).mean()) <= 0.12
    assert (np.array(told)[:, 2] <= 0.05).mean() >= 0.8


def test_correlations_of_latents_against_numpy():
    a, b = torch.rand(50, 4), torch.rand(50, 3)
    a[:, 2] = 0
    found = correlate(a, b)
    assert not found[2].any()
    kept = [0, 1, 3]
    assert found[kept] == pytest.approx(np.corrcoef(a[:, kept].T.numpy(), b.T.numpy())[:3, 3:], abs=1e-5)


def test_spaces_of_paired_features():
    """Decoders that are equal up to scale and to the order of latents and features; and decoders that are unrelated."""
    made = torch.Generator().manual_seed(0)
    code, decoder = torch.rand(500, 30, generator=made) * (torch.rand(500, 30, generator=made) < 0.2), unit(30, 8, 1)
    order, orders = torch.randperm(30, generator=made), list(draw_document_orders(np.arange(500), 49, 0))
    for other, alike in ((2 * decoder.flip(1)[order], True), (unit(30, 8, 5), False)):
        found = compare_feature_spaces((code, code[:, order]), (decoder, other), least=0.5, orders=orders)
        assert found is not None
        assert (found.pairs, found.correlation) == (30, pytest.approx(1, abs=1e-5))
        for name in ("svcca", "rsa"):
            assert len(found.null[name]) == 49
            assert (found.values[name] > 0.999) == alike
            assert (found.null[name] < found.values[name]).all() or not alike
        assert abs(found.null["rsa"].mean()) < 0.1
    noise = torch.rand(500, 30, generator=made)
    assert compare_feature_spaces((code, noise), (decoder, decoder), least=0.5, orders=orders[:9]) is None


@pytest.mark.slow
def test_features_that_correlate_by_chance_are_no_common_space():
    """Unrelated models with few rows, where RSA of features that are paired at random would be below in nine of
    ten."""
    found = []
    for draw in range(25):
        made = torch.Generator().manual_seed(draw)
        rows, decoders = torch.randn(2, 150, 12, generator=made), (unit(32, 12, draw), unit(32, 12, 1000 + draw))
        codes = [torch.relu(x @ decoder.T - 0.5) for x, decoder in zip(rows, decoders, strict=True)]
        orders = list(draw_document_orders(np.arange(150), 19, draw))
        spaces = compare_feature_spaces(tuple(codes), decoders, least=0.1, orders=orders)
        found.append([(1 + (spaces.null[name] >= spaces.values[name]).sum()) / 20 for name in ("svcca", "rsa")])
    for p in np.array(found).T:
        assert (p <= 0.05).mean() <= 0.12
        assert 0.35 < p.mean() < 0.65
    assert match_one_to_one(np.array([[0.0, 1.0], [0.9, 0.95]]))[1].tolist() == [1, 0]


# ---- whole runs ----


@pytest.mark.drawn
@pytest.mark.slow
def test_the_tiny_study_with_a_dictionary_from_a_folder(repsim, newest, tmp_path):
    decoder = unit(48, 64, 0)
    save(Dictionary(decoder.T, torch.zeros(48), decoder, torch.zeros(64), torch.zeros(48)), tmp_path / "given")
    given = f"+options.dictionaries.mine={{path: {tmp_path / 'given'}, model: tiny_a, layer: resid_post@3}}"
    short = (
        "options.recipe.steps=30",
        "extract.layers=[2,3]",
        "extract.normalise=none",
        "options.pairings=19",
        "options.least_correlation=0.5",
    )
    code, out, err = repsim("run", "experiment=tiny/features", "hardware.threads=1", *short, given)
    assert code == 0, err
    assert "shared latents:" in out
    assert len(re.findall(r"WARNING: feature spaces: x: \d+ rows for 64 features; svcca is inflated", err)) == 1
    assert {file.stem for file in (newest() / "figures").iterdir()} == {
        "shared-latents", "feature-spaces-tiny_a-tiny_b",
        "cross-reconstruction-resid_post@2", "cross-reconstruction-resid_post@3",
    }  # fmt: skip
    found = recorded(newest())
    tables = {name: table["rows"] for name, table in found["tables"].items()}
    assert [row[:4] for row in tables["dictionaries"] if row[:2] == ["tiny_a", "resid_post@3"]] == [
        ["tiny_a", "resid_post@3", name, latents] for name, latents in (("seed 0", 128), ("seed 1", 128), ("mine", 48))
    ]  # fmt: skip
    trained = [row for row in tables["dictionaries"] if row[2] != "mine"]
    assert len(trained) == 8
    assert all(row[4] > 0.3 and 3 < row[5] < 6 for row in trained)
    (mine,) = (row for row in tables["dictionaries"] if row[2] == "mine")
    assert mine[4] < min(row[4] for row in trained)
    pairs = [row[2] for row in tables["shared latents"] if row[:2] == ["tiny_a", "resid_post@3"]]
    assert "latents are shared by seed 0 and seed 1 (95 % interval over latents: 0 % to " in " ".join(out.split())
    assert pairs == ["seed 0 and seed 1", "seed 0 and mine", "seed 1 and mine"]
    assert [(row[1], row[3]) for row in tables["feature spaces"]] == [
        (f"resid_post@{a}", f"resid_post@{b}") for a in (2, 3) for b in (2, 3)
    ]  # fmt: skip
    own, across, _, _ = (row[3] for row in tables["cross-reconstruction"] if row[0] == "resid_post@3")
    assert own > across > 0.1
    claims = {claim["name"]: claim for claim in found["claims"]}
    # the given dictionary is no seed
    seeds = [row[SHARED_COLUMNS.index("shared")] for row in tables["shared latents"] if row[2] == "seed 0 and seed 1"]
    assert claims["seeds_share_few_latents"]["value"] == pytest.approx(np.mean(seeds))
    assert claims["seeds_share_few_latents"]["why"] == "needs 3 models with a value, got 2 models"
    assert claims["feature_spaces_are_alike"]["why"] == "needs 3 models with a value, got 2 models"
    others = [row[3] for row in tables["cross-reconstruction"] if row[1] != row[2]]
    assert claims["one_code_serves_other_models"]["value"] == pytest.approx(np.mean(others))
    files = list((tmp_path / "cache" / "models").rglob("sae_weights.safetensors"))
    assert len(files) == 8 + 2 * 2


# ---- what is refused ----


def study(given=None, extract=None, **changes):
    sources = {name: registry.models.get("shipped").function(name=name) for name in ("tiny_a", "tiny_b")}
    settings = {
        "model": sources,
        "data": registry.data.get("embedded_text").function(),
        "extract": Extract(**{"hook_points": ["resid_post"], "layers": [3], "estimate": "full", **(extract or {})}),
        "hardware": Hardware(),
        "seed": 0,
        "recipe": DictionaryRecipe(),
        "dictionaries": given and {"mine": GivenDictionary(**given)},
    }
    return Features(**{**settings, **changes})


def test_what_is_refused(tmp_path):
    def saved(width):
        x = unit(8, width, 0)
        folder = tmp_path / str(width)
        save(Dictionary(x.T, torch.zeros(8), x, torch.zeros(width), torch.zeros(8)), folder)
        return {"path": str(folder), "model": "tiny_a", "layer": "resid_post@3"}

    short = registry.models.get("random").function(config={"model_type": "gpt_neox", "vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}, tokenizer="tiny_a")  # fmt: skip
    tiny_a = registry.models.get("shipped").function(name="tiny_a")
    cases = [
        ({"model": {}}, "model: no model is selected; e.g."),
        ({"extract": {"estimate": "moments"}}, "extract.estimate: dictionaries are trained on one sample of rows, got moments; use full"),
        ({"extract": {"layers": [9]}}, "extract.layers, model.tiny_a: layer out of range, got 9; the model has layers 0 to 5"),
        ({"extract": {"rows": 99}}, "extract.rows: dictionaries need 100 rows, got 99; raise rows and sequences"),
        ({"seeds": 0}, "options.seeds: no dictionary is left, got 0; train some, or name options.dictionaries"),
        ({"model": {"tiny_a": tiny_a, "short": short}, "extract": {"layers": "all"}}, "options.universal: models need equally many layers, got 6 of 'tiny_a' and 2 of 'short'; choose extract.layers that all have, e.g."),
        ({"given": saved(64) | {"model": "tiny_c"}}, "options.dictionaries.mine.model: no such model, got 'tiny_c'; did you mean"),
        ({"given": saved(64) | {"layer": "resid_post@4"}}, "options.dictionaries.mine.layer: no such layer, got 'resid_post@4'; did you mean"),
        ({"given": saved(32)}, "options.dictionaries.mine: it is of another layer, got 32 features for 64 of resid_post@3 of 'tiny_a'; name another"),
        ({"given": saved(64), "extract": {"normalise": "features"}}, "options.dictionaries.mine: it reads activations as models give them, got .*; set extract.normalise=none"),
        ({"given": saved(64) | {"path": str(tmp_path)}}, "options.dictionaries.mine.path: no dictionary in the folder"),
        ({"hardware": Hardware(memory_gb=0.1)}, "hardware.memory_gb: the run needs about"),
    ]  # fmt: skip
    for changes, message in cases:
        extract = {"layers": [3], **changes.get("extract", {})}
        with pytest.raises(BadInput, match=message):
            study(**{**changes, "extract": extract})
    assert not study(model={"tiny_a": tiny_a}).universal
    assert study(given=saved(64), seeds=0).plan()["dictionaries"] == 1


def test_a_wrong_recipe_and_constant_rows_on_the_command_line(repsim, tmp_path):
    code, _, err = repsim("run", "experiment=tiny/features", "options.recipe.k=200")
    assert (code, err.strip()) == (2, "error: options.recipe.k: more active latents than there are, got 200 of 128; lower k")  # fmt: skip
    np.savez(tmp_path / "flat.npz", x=np.ones((200, 3), np.float32))
    words = ("study=features", "measure=[]", "model=[]", "extract.estimate=full", f"+model.flat={{kind: precomputed, path: {tmp_path / 'flat.npz'}}}")  # fmt: skip
    code, _, err = repsim("run", "-q", *words)
    assert (code, "x of 'flat': its rows are all the same, got 200 of them; leave it out" in err) == (2, True), err
