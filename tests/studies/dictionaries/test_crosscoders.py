"""Crosscoders: planted latents of one side, of the other and of both; files of other programs; runs; what is refused."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch

from repsim_cli.base.errors import BadInput
from repsim_cli.engine.exchanges import draw_document_orders
from repsim_cli.runs import reader
from repsim_cli.runs.content import CODED
from repsim_cli.studies.dictionaries.columns import OF_LATENTS, OF_SIDES
from repsim_cli.studies.dictionaries.crosscoders import BETWEEN, OF_ALL, Crosscoder, load, tell_whose
from repsim_cli.studies.dictionaries.formats import Dictionary
from repsim_cli.studies.dictionaries.other_sides import DRAWS, compute_shares_from_others
from repsim_cli.studies.dictionaries.study_crosscoder import convert_to_crosscoder, say_rows

ROUNDING = 1e-4  # below it a code is none
D, ROWS, KINDS = 24, 400, (6, 5, 4)  # latents of the first side, of the second, of both
FIRST, SECOND, BOTH = (slice(0, 6), slice(6, 11), slice(11, 15))


def planted(seed=0, hidden=False):
    """Rows of two sides from sparse codes, and the crosscoder that they come from. hidden: the latents of the first side
    are in the rows of the second too, of which the crosscoder knows nothing."""
    draw = torch.Generator().manual_seed(seed)
    latents = sum(KINDS)
    basis = torch.linalg.qr(torch.randn(D, D, generator=draw))[0]
    decoder = torch.zeros(2, latents, D)
    decoder[0, FIRST], decoder[1, SECOND] = basis[FIRST], basis[SECOND]
    decoder[0, BOTH], decoder[1, BOTH] = basis[11:15], basis[15:19]
    code = (0.1 + torch.rand(ROWS, latents, generator=draw)) * (torch.rand(ROWS, latents, generator=draw) < 0.3)
    code[:, 3] = 0  # dead
    bias = torch.randn(2, D, generator=draw)
    rows = [code @ part + b for part, b in zip(decoder, bias, strict=True)]
    if hidden:
        rows[1] = rows[1] + code[:, FIRST] @ basis[FIRST]
    encoder = decoder.transpose(1, 2).contiguous()
    encoder[:, :, BOTH] /= 2
    before = sum(b @ part for b, part in zip(bias, encoder, strict=True))
    return Crosscoder(encoder, -before - ROUNDING, decoder, bias), rows, code


def saved(crosscoder, folder, layout):
    """Written as other programs do."""
    folder.mkdir(parents=True)
    tensors = {
        "nanda": {"W_enc": crosscoder.encoder, "b_enc": crosscoder.encoder_bias,
                  "W_dec": crosscoder.decoder.permute(1, 0, 2).contiguous(), "b_dec": crosscoder.bias},
        "learning": {"encoder.weight": crosscoder.encoder, "encoder.bias": crosscoder.encoder_bias,
                     "decoder.weight": crosscoder.decoder, "decoder.bias": crosscoder.bias,
                     "code_normalization_id": torch.tensor(1)},
        "openmoss": {"W_E": crosscoder.encoder, "b_E": crosscoder.encoder_bias.repeat(2, 1) / 2,
                     "W_D": crosscoder.decoder, "b_D": crosscoder.bias},
    }[layout]  # fmt: skip
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("layout", ["nanda", "learning", "openmoss"])
def test_files_of_other_programs_are_read(tmp_path, layout):
    made, rows, code = planted()
    read = load(saved(made, tmp_path / "c", layout))
    torch.testing.assert_close(read.encode(rows), code, atol=2 * ROUNDING, rtol=0)
    for x, y in zip(read.decode(read.encode(rows)), rows, strict=True):
        torch.testing.assert_close(x, y, atol=1e-3, rtol=0)


def test_a_threshold_is_of_codes_times_decoder_norms(tmp_path):
    made, rows, _ = planted()
    for kind, norms in (
        (1, made.decoder.norm(dim=2).sum(0)),
        (2, made.decoder.norm(dim=2).square().sum(0).sqrt()),
        (4, torch.ones(made.width)),
    ):
        folder = saved(made, tmp_path / str(kind), "learning")
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        tensors |= {"threshold": torch.tensor(0.5), "k": torch.tensor(4), "code_normalization_id": torch.tensor(kind)}
        safetensors.torch.save_file(tensors, folder / "model.safetensors")
        whole = made.encode(rows)
        torch.testing.assert_close(load(folder).encode(rows), torch.where(whole * norms > 0.5, whole, 0.0))


def test_planted_latents_are_told_and_explain_everything():
    made, rows, code = planted()
    assert tell_whose(made.norms).tolist() == [0] * 6 + [1] * 5 + [OF_ALL] * 4
    said = say_rows(made, rows, np.arange(ROWS), 0)
    assert (said.left.sum(1) < 1e-6 * said.squares.sum(1)).all()
    assert (said.shuffled.sum(1) > 0.5 * said.squares.sum(1)).all()
    assert said.counts.tolist() == (code > 0).sum(0).tolist()
    assert np.isnan(said.kept[:, 3]).all()
    alive = np.arange(made.width) != 3
    assert np.abs(said.kept[0, FIRST][alive[FIRST]]).max() < 0.02
    assert np.abs(said.kept[1, SECOND]).max() < 0.02


def test_latents_that_the_other_side_has_too_stand_in_its_errors():
    """The decoder norms say that they are of the first side alone, which is an artefact."""
    made, rows, _ = planted(hidden=True)
    assert tell_whose(made.norms)[0] == 0
    said = say_rows(made, rows, np.arange(ROWS), 0)
    found = said.kept[0, FIRST][[0, 1, 2, 4, 5]]
    assert found == pytest.approx(np.ones(5), abs=0.02)
    assert np.abs(said.kept[1, SECOND]).max() < 0.02


def test_what_the_other_side_tells_is_nothing_where_the_sides_are_independent():
    """Latents of both sides have equal norms in either case; against least squares by numpy, latent by latent."""
    made, rows, _ = planted()
    shuffled = [rows[0], rows[1][torch.randperm(ROWS, generator=torch.Generator().manual_seed(9))]]
    for given, shared in ((rows, True), (shuffled, False)):
        found = compute_shares_from_others(made, given, np.arange(ROWS), 0, size=64)
        again = compute_shares_from_others(made, given, np.arange(ROWS), 0, size=ROWS)
        assert found.values == pytest.approx(again.values, abs=1e-4, nan_ok=True)
        assert abs(found.values[0, FIRST][[0, 1, 2, 4, 5]].mean()) < 0.1  # the second side says nothing of these
        both = tell_whose(made.norms) == OF_ALL
        median, reach = found.find_median(both)
        assert median == pytest.approx(np.median(found.values[:, both]))
        assert (median > reach) == shared
        assert median > 0.5 if shared else abs(median) < 0.2
    strengths, orders = [], [torch.from_numpy(each) for each in draw_document_orders(np.arange(ROWS), DRAWS, 0)]
    unpaired = [[rows[0][own], rows[1][other]] for other, own in zip(orders, orders[1:] + orders[:1], strict=True)]
    for read in (rows, [rows[0][orders[0]], rows[1]], *unpaired):
        code = made.encode(read).double().numpy()
        left = rows[0].double().numpy() - made.bias[0].double().numpy() - code @ made.decoder[0].double().numpy()
        own, direction = code[:, 11], made.decoder[0, 11].double().numpy()
        target = left + np.outer(own, direction)
        strengths.append(np.linalg.lstsq(np.outer(own, direction).reshape(-1, 1), target.ravel(), rcond=None)[0][0])
    every, others, *neither = strengths
    found = compute_shares_from_others(made, rows, np.arange(ROWS), 0, size=ROWS)
    middle = np.mean(neither)
    assert found.values[0, 11] == pytest.approx((others - middle) / (every - middle), abs=1e-4)
    assert found.drawn[:, 0, 11] == pytest.approx((np.array(neither) - middle) / (every - middle), abs=1e-4)


@pytest.mark.slow
def test_sides_that_have_nothing_in_common_are_seldom_said_to():
    """The codes of random latents and rows of 40 documents; 0.01 is promised."""
    of, draws, beyond = np.repeat(np.arange(40), 10), 100, 0
    for rng in np.random.default_rng(0).spawn(draws):
        decoder, zeros = rng.normal(size=(2, 48, 16)) / 4, np.zeros((2, 16))
        arrays = decoder.transpose(0, 2, 1), np.full(48, -0.5), decoder, zeros
        made = Crosscoder(*(torch.from_numpy(each).float() for each in arrays))
        rows = [rng.normal(size=(40, 16))[of] + rng.normal(size=(400, 16)) for _ in range(2)]
        found = compute_shares_from_others(made, [torch.from_numpy(x).float() for x in rows], of, 0, size=400)
        median, reach = found.find_median(np.ones(48, bool))
        beyond += median > reach
    assert beyond / draws <= 0.04


def test_the_norms_of_a_latent_between():
    assert tell_whose(np.array([[1.0, 0.5, 0.1], [1.0, 0.1, 0.15], [0.9, 1.0, 0.95]])).tolist() == [BETWEEN, 0, OF_ALL]


def test_a_dictionary_of_joined_rows_is_a_crosscoder():
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randn(50, 6, generator=draw) * 3 + 1, torch.randn(50, 6, generator=draw) - 2]
    dictionary = Dictionary(
        torch.randn(12, 20, generator=draw), torch.randn(20, generator=draw), torch.randn(20, 12, generator=draw),
        torch.randn(12, generator=draw), torch.full((20,), 0.7),
    )  # fmt: skip
    means, spreads = [x.mean(0) for x in rows], [3.0, 2.0]
    joined = torch.cat([(x - mean) / spread for x, mean, spread in zip(rows, means, spreads, strict=True)], 1)
    made = convert_to_crosscoder(dictionary, means, spreads)
    code = dictionary.encode(joined)
    torch.testing.assert_close(made.encode(rows), code, atol=1e-4, rtol=1e-4)
    said = dictionary.decode(code).split(6, 1)
    for x, mean, spread, part in zip(made.decode(code), means, spreads, said, strict=True):
        torch.testing.assert_close(x, mean + spread * part, atol=1e-4, rtol=1e-4)


@pytest.mark.drawn
def test_a_run_says_whose_latents_there_are(repsim, newest, tmp_path):
    made, rows, _ = planted()
    saved(made, tmp_path / "c", "nanda")
    for name, x in zip("ab", rows, strict=True):
        np.savez(tmp_path / f"{name}.npz", layer=x.numpy())
    models = ", ".join(f"{name}: {{kind: precomputed, path: {tmp_path / name}.npz}}" for name in "ab")
    code, _, err = repsim("run", "-q", "study=crosscoder", "measure=[]", "model=[]", f"+model={{{models}}}", "extract=pooled",
                          f"options.path={tmp_path / 'c'}")  # fmt: skip
    assert code == 0, err
    found = reader.read_results(newest())
    assert found.tables[OF_SIDES].column("explained") == pytest.approx([1, 1], abs=1e-5)
    assert dict(zip(found.tables[OF_LATENTS].column("of"), found.tables[OF_LATENTS].column("latents"), strict=True)) == {
        "a": 6, "b": 5, "all sides": 4, "between": 0,
    }  # fmt: skip
    assert found.tables[OF_LATENTS].column("never active")[0] == pytest.approx(1 / 6)
    assert found.tables[CODED].rows[0][1].startswith("the crosscoder explains 1.00 of its variance (se ")
    assert [file.name for file in (newest() / "figures").glob("*.png")] == ["crosscoder.png"]


def test_one_is_trained_where_none_is_given(repsim, newest):
    code, _, err = repsim("run", "-q", "experiment=tiny/crosscoder", "extract.sequences=24", "extract.length=32",
                          "options.recipe.width=32", "options.recipe.k=4", "options.recipe.steps=30")  # fmt: skip
    assert code == 0, err
    found = reader.read_results(newest())
    assert sum(found.tables[OF_LATENTS].column("latents")) == 32
    assert all(value > 0 for value in found.tables[OF_SIDES].column("explained"))


def test_what_is_refused(repsim, tmp_path):
    made, _, _ = planted()
    folder = saved(made, tmp_path / "c", "openmoss")
    (folder / "config.json").write_text(json.dumps({"act_fn": "jumprelu"}))
    with pytest.raises(BadInput, match="config.json asks for more than is supported, got act_fn=jumprelu"):
        load(folder)
    with pytest.raises(BadInput, match="path: no such folder or file, got '.*nowhere'; check the path"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "cc_weights.pt").touch()
    with pytest.raises(
        BadInput, match=r"one .safetensors file is needed in the folder, got 0 .* save the tensors of the"
    ):
        load(tmp_path / "empty")
    safetensors.torch.save_file({"W_enc": torch.ones(3, 4)}, tmp_path / "flat.safetensors")
    with pytest.raises(BadInput, match="encoders .sides, features, latents. are needed"):
        load(tmp_path / "flat.safetensors")
    tensors = {"W_enc": made.encoder, "W_dec": made.decoder.contiguous()}
    safetensors.torch.save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(BadInput, match="W_dec does not fit W_enc"):
        load(tmp_path / "other.safetensors")
    saved(made, tmp_path / "good", "nanda")
    words = ("run", "-q", "experiment=tiny/crosscoder", f"options.path={tmp_path / 'good'}")
    code, _, err = repsim(*words)
    assert code == 2
    assert f"options.path: a crosscoder of {D} features, got 64 at resid_post@4 of 'tiny_a_step400'" in err
    code, _, err = repsim(*words[:-1], "options.path=nowhere", "extract.layers=[9]")
    assert code == 2
    assert "error: options.path: no such folder or file, got 'nowhere'; check the path" in err
    assert "error: extract.layers, model.tiny_a_step400: layer out of range, got 9" in err
    code, _, err = repsim(*words, "extract.layers=[1,2]")
    assert code == 2
    assert "options.sides: one layer is read of each model where sides are not named, got 4 layers of 2 models" in err
