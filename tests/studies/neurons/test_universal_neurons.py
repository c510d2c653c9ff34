"""Universal neurons: correlations against numpy, planted counterparts among noise and rotated copies, what is refused."""

import numpy as np
import pytest
import torch
from helpers.composing import composed
from helpers.recorded import recorded

from repsim_cli.base import registry
from repsim_cli.base.errors import BadConfig, BadInput
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.config.run import validate
from repsim_cli.studies.neurons.counterparts import CrossMoments, draw_rotation, find_counterparts
from repsim_cli.studies.neurons.finding import EXCESS, MODELS, compute_excess_correlation
from repsim_cli.studies.neurons.study import UniversalNeurons

STUDY = ("study=universal_neurons", "measure=[]", "model=[]", "extract.estimate=moments", "hardware.threads=1")
ROWS, NEURONS, SHARED = 2000, 120, 12


def gathered(models, ends):
    """Moments of [layer, ...] of each model, in batches that end at these rows and at the last."""
    moments = CrossMoments()
    for part in np.split(np.arange(len(models[0][0])), ends):
        moments.add([[torch.from_numpy(x[part]).float() for x in layers] for layers in models])
    return moments


def test_counterparts_against_numpy():
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(300, 5))
    shapes = ((4, 6), (5, 3), (7, 2))
    # layers with something in common, and far from the origin
    models = [
        [mixed @ rng.normal(size=(5, d)) + rng.normal(size=(300, d)) + 100 * rng.normal(size=d) for d in own]
        for own in shapes
    ]
    models = [[x.astype(np.float32).astype(float) for x in own] for own in models]
    found = find_counterparts(gathered(models, [100, 107, 257]), rotations=2, seed=3)
    assert sorted(found) == [(a, b) for a in range(3) for b in range(3) if a != b]
    for (a, b), own in found.items():
        x, count = np.hstack(models[a]), sum(shapes[a])
        correlations = np.corrcoef(x.T, np.hstack(models[b]).T)[:count, count:]
        assert own.correlation == pytest.approx(correlations.max(1), abs=1e-9)
        assert np.array_equal(own.neuron, correlations.argmax(1))
        for draw in range(2):
            turned = [y @ draw_rotation(y.shape[1], [3, draw, b, i]) for i, y in enumerate(models[b])]
            expected = np.corrcoef(x.T, np.hstack(turned).T)[:count, count:].max(1)
            assert own.rotated[draw] == pytest.approx(expected, abs=1e-9)


def test_a_rotation_is_orthogonal_and_seeded():
    q = draw_rotation(30, [1, 2])
    assert q @ q.T == pytest.approx(np.eye(30), abs=1e-12)
    assert np.array_equal(q, draw_rotation(30, [1, 2]))
    assert not np.allclose(q, draw_rotation(30, [1, 3]))


def test_excess_by_hand():
    above, control = compute_excess_correlation(np.array([[0.0], [0.0], [0.0], [0.0], [0.9], [0.2], [0.4]]))
    assert (above.tolist(), control.ravel().tolist()) == ([pytest.approx(0.6)], pytest.approx([-0.2, 0.2]))


@pytest.fixture(scope="module")
def planted(finished, tmp_path_factory):
    """A run on noise `x` of 120 neurons in two layers. In `copy` are 12 of them, permuted, with noise, in `opposite`
    the same times -1, with two neurons that never vary; `turned` is x in another basis. And where the 12 are."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, ROWS, NEURONS))
    places = rng.permutation(NEURONS - 2)[:SHARED]
    y[:, places] = x[:, :SHARED] + rng.normal(size=(ROWS, SHARED)) / 3
    flat = np.where(np.arange(NEURONS) < NEURONS - 2, -y, 0.1)
    folder = tmp_path_factory.mktemp("planted")
    for name, values in {"x": x, "copy": y, "opposite": flat, "turned": x @ draw_rotation(NEURONS, [7])}.items():
        first, second = np.split(np.float32(values), [50], axis=1)
        np.savez(folder / f"{name}.npz", first=first, second=second)
    names = ("x", "copy", "opposite", "turned")
    return finished(*STUDY, *(f"+model.{x}={{kind: precomputed, path: {folder / x}.npz}}" for x in names)), places


def shares(folder):
    """The share of neurons whose excess is above the threshold, by pair of models."""
    return {(row[0], row[1]): row[-1] for row in recorded(folder)["tables"]["counterparts by pair of models"]["rows"]}


def test_planted_neurons_are_found_and_none_in_a_rotated_copy(planted):
    folder, places = planted
    found = shares(folder)
    assert found["x", "copy"] == found["copy", "x"] == SHARED / NEURONS
    assert {share for pair, share in found.items() if pair not in {("x", "copy"), ("copy", "x")}} == {0}
    values = np.load(folder / recorded(folder)["matrices"]["counterparts of x in copy"]["values"])
    layer, _, other_layer, other, correlation = values[:5]
    assert layer.tolist() == [0] * 50 + [1] * 70
    assert np.array_equal((other_layer * 50 + other)[:SHARED], places)
    assert correlation[:SHARED] == pytest.approx(np.sqrt(0.9), abs=0.02)


def test_listed_neurons_say_how_many_rotated_bases_reach_as_much(planted):
    """None where neurons are planted; all where none has a counterpart."""
    rows = recorded(planted[0])["tables"]["neurons of the largest excess"]["rows"]
    of_bases = {model: [row[4] for row in rows if row[0] == model] for model in ("copy", "opposite")}
    assert of_bases["copy"] == ["0 of 5"] * 5
    assert of_bases["opposite"] == ["5 of 5"] * 5


def test_constant_neurons_are_left_out(planted):
    folder, _ = planted
    rows = recorded(folder)["tables"]["universal neurons"]["rows"]
    assert {row[0]: row[1:3] for row in rows} == {
        "x": [120, 0], "copy": [120, 0], "opposite": [120, 2], "turned": [120, 0]
    }  # fmt: skip
    matrices = recorded(folder)["matrices"]
    assert np.load(folder / matrices["counterparts of opposite in x"]["values"]).shape == (5 + 5, NEURONS - 2)
    layer, other = np.load(folder / matrices["counterparts of x in opposite"]["values"])[2:4].astype(int)
    assert not ((layer == 1) & (other >= 68)).any()


def test_neurons_of_opposite_sign_are_counterparts_by_absolute_correlation():
    x, other = np.random.default_rng(0).normal(size=(2, 200, 30))
    other[:, 3] = -x[:, 7]
    signed, unsigned = (
        find_counterparts(gathered([[x], [other]], [100]), rotations=2, seed=0, absolute=absolute)[0, 1]
        for absolute in (False, True)
    )
    assert signed.neuron[7] != 3
    assert (unsigned.neuron[7], unsigned.correlation[7]) == (3, pytest.approx(1))


def test_a_model_whose_neurons_never_vary(repsim, tmp_path):
    np.savez(tmp_path / "y.npz", a=np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32))
    np.savez(tmp_path / "flat.npz", a=np.full((50, 3), np.float32(0.1)))
    given = (f"+model.{name}={{kind: precomputed, path: {tmp_path / name}.npz}}" for name in ("y", "flat"))
    code, _, err = repsim("run", "-q", *STUDY, *given)
    assert (code, "model.flat: no neuron varies over the rows, got 3 constant ones; leave it out" in err) == (2, True)


def test_mlps_that_are_not_four_times_as_wide_as_the_stream(repsim, newest):
    odd = "{kind: random, config: {model_type: gpt_neox, vocab_size: 512, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 48}, tokenizer: tiny_a, seeds: [0, 1]}"  # fmt: skip
    short = ("extract.hook_points=[mlp_post]", "extract.sequences=4", "extract.length=32", "extract.skip=0")
    code, _, err = repsim("run", "-q", *STUDY, *short, f"+model.odd={odd}")
    assert code == 0, err
    assert {row[0]: row[1] for row in recorded(newest())["tables"]["universal neurons"]["rows"]} == {"odd_0": 96, "odd_1": 96}  # fmt: skip


@pytest.mark.slow
@pytest.mark.drawn
def test_the_tiny_study(repsim, newest):
    code, out, err = repsim("run", "experiment=tiny/universal_neurons", "extract.layers=[2,3]", "hardware.threads=1")
    assert code == 0, err
    assert "neurons of the largest excess:" in out
    said = " ".join(out.split())
    assert (
        "neurons have a counterpart of excess correlation above 0.5 in tiny_b (95 % interval over neurons 0 %" in said
    )
    assert "; 0 % in rotated bases); mean" in said
    names = {file.stem for file in (newest() / "figures").iterdir()}
    assert names == {"universal-neurons", "by-layer-mean_excess_correlation"}
    rows = [dict(zip(MODELS, row, strict=True)) for row in recorded(newest())["tables"]["universal neurons"]["rows"]]
    assert [row["model"] for row in rows] == ["tiny_a", "tiny_b"]
    assert all(row[EXCESS] > 0.02 and row["universal in rotated bases"] == 0 for row in rows)
    assert {claim["name"]: claim["verdict"] for claim in recorded(newest())["claims"]} == {
        "neurons_match_better_than_rotated_bases": "not testable here",  # two models
        "one_percent_of_neurons_are_universal": "not testable here",
    }
    excess, _ = (claim["value"] for claim in recorded(newest())["claims"])
    assert excess == pytest.approx(np.mean([row[EXCESS] for row in rows]))


def study(extract=None, **changes):
    sources = {name: registry.models.get("shipped").function(name=name) for name in ("tiny_a", "tiny_b")}
    settings = {
        "model": sources,
        "data": registry.data.get("embedded_text").function(),
        "extract": Extract(**{"hook_points": ["mlp_post"], "estimate": "moments", **(extract or {})}),
        "hardware": Hardware(),
        "seed": 0,
    }
    return UniversalNeurons(**{**settings, **changes})


def test_what_is_refused():
    tiny_a = registry.models.get("shipped").function(name="tiny_a")
    cases = [
        ({"model": {"tiny_a": tiny_a}}, r"model: neurons are compared between models, got \['tiny_a'\]; select two or more"),
        ({"extract": {"estimate": "full"}}, "extract.estimate: correlations are of all rows, got full; use extract.estimate=moments"),
        ({"extract": {"layers": [9]}}, "extract.layers, model.tiny_a: layer out of range, got 9; the model has layers 0 to 5"),
        ({"hardware": Hardware(memory_gb=0.4)}, r"hardware.memory_gb: the run needs about .*; read fewer layers \(extract.layers=\[0,-1\]\)"),
    ]  # fmt: skip
    for changes, message in cases:
        with pytest.raises(BadInput, match=message):
            study(**changes)
    assert study().plan()["neurons, at most"] == 2 * 6 * 256


def test_too_few_rows_and_other_rows_are_refused(repsim, tmp_path):
    for name, rows in (("a", 2), ("b", 5), ("c", 6), ("d", 2)):
        np.savez(tmp_path / f"{name}.npz", x=np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32))
    given = {name: f"+model.{name}={{kind: precomputed, path: {tmp_path / name}.npz}}" for name in "abcd"}
    with pytest.raises(BadConfig, match="data: correlations need 3 rows, got 2; give more rows"):
        validate(composed(*STUDY, given["a"], given["d"]))
    code, _, err = repsim("run", *STUDY, given["a"], "options.rotations=1", "extract.normalise=rows")
    assert code == 2
    assert "options.rotations: wrong value, got 1; give greater than or equal to 2" in err
    assert "extract.normalise: the study universal_neurons reads features as models give them, got rows" in err
    with pytest.raises(BadConfig, match="models have different numbers of rows, got b: 5, c: 6; rows must be paired"):
        validate(composed(*STUDY, given["b"], given["c"]))
