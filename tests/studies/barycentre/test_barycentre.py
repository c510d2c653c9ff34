"""Common shapes: planted rotations and noise against closed forms, another algorithm, errors, and runs."""

import numpy as np
import pytest
import torch
from helpers.printed import ASSETS
from scipy.linalg import orthogonal_procrustes

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.measures import get
from repsim_cli.runs import reader
from repsim_cli.runs.content import NEAREST
from repsim_cli.studies.barycentre import shapes
from repsim_cli.studies.barycentre.columns import FROM_SHAPE, OF_PLACES
from repsim_cli.studies.barycentre.finding import MAP, place_models
from repsim_cli.studies.barycentre.study import Barycentre

transformers = registry.models.get("transformers").function
WORDS = ("run", "-q", "study=barycentre", "extract=words", "measure=[]", "data=embedded_sentences",
         "extract.rows=300", "hardware.threads=1")  # fmt: skip


def planted(models, noise, seed=0, n=2000, width=8, widths=()):
    """Turned copies of one shape of norm 1, each with noise of its own of norm about `noise`; of these widths."""
    draw = np.random.default_rng(seed)
    shape = draw.normal(size=(n, width))
    shape -= shape.mean(0)
    shape /= np.linalg.norm(shape)
    rows = []
    for wide in widths or [width] * models:
        turn = np.linalg.qr(draw.normal(size=(wide, wide)))[0][:width]
        rows.append((shape + noise * draw.normal(size=shape.shape) / (n * width) ** 0.5) @ turn * 7 + 3)
    return shape, [torch.from_numpy(x) for x in rows]


def common(rows):
    made = shapes.normalise_shapes(shapes.convert_to_one_width(rows))
    return shapes.find_common_shape(made, shapes.rotate_onto_middle(made))


def test_turned_copies_of_one_shape_have_it_as_their_mean():
    shape, rows = planted(4, 0.0, widths=(8, 8, 11, 17))
    found = common(rows)
    assert found.distances.max() < 1e-12
    products = (found.mean @ found.mean.T).numpy()
    np.testing.assert_allclose(products, shape @ shape.T, atol=1e-12)
    assert np.abs(found.apart).max() < 1e-12


@pytest.mark.parametrize("models", [2, 3, 6])
@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
def test_noise_is_as_far_as_theory_says(models, noise):
    """Each of m shapes whose noise is drawn apart is the root of (1 - 1/m) s^2 / (1 + s^2) from their mean."""
    found = common(planted(models, noise)[1])
    wanted = ((1 - 1 / models) * noise**2 / (1 + noise**2)) ** 0.5
    assert found.distances == pytest.approx(np.full(models, wanted), rel=0.03)


def test_each_of_two_models_is_half_their_distance_away():
    draw = np.random.default_rng(1)
    x, y = (torch.from_numpy(draw.normal(size=(60, width)) ** 3) for width in (9, 5))
    found = common([x, y])
    distance = get("procrustes")(x, y)
    assert found.distances == pytest.approx([distance / 2] * 2, rel=1e-12)
    assert found.apart[0, 1] == pytest.approx(distance, rel=1e-12)
    made = shapes.normalise_shapes(shapes.convert_to_one_width([x, y]))
    assert found.objective[-1] == pytest.approx(
        shapes.bound_mean_distance(shapes.compute_squared_procrustes(made)), rel=1e-12
    )


def test_the_order_of_the_models_changes_nothing():
    _, rows = planted(5, 1.5, n=60)
    order = [3, 0, 4, 2, 1]
    one, other = common(rows), common([rows[i] for i in order])
    np.testing.assert_allclose(one.distances[order], other.distances, rtol=1e-9)
    np.testing.assert_allclose(one.apart[np.ix_(order, order)], other.apart, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(place_models(one.apart)[0][order], place_models(other.apart)[0], atol=1e-7)


def test_no_other_algorithm_finds_a_closer_mean():
    """Rotating each shape onto the mean of the others, one after the other (Ten Berge 1977), in numpy, from several
    starts; and no start is below the bound by pairs."""
    for seed in range(4):
        _, rows = planted(4, 0.8, seed, n=80, width=5)
        made = [x.numpy() for x in shapes.normalise_shapes(shapes.convert_to_one_width(rows))]
        found = common(rows)
        assert all(later <= before + 1e-15 for before, later in zip(found.objective, found.objective[1:], strict=False))
        least = shapes.bound_mean_distance(shapes.compute_squared_procrustes([torch.from_numpy(x) for x in made]))
        for start in range(4):
            turned = [x @ orthogonal_procrustes(x, made[start])[0] for x in made]
            for _ in range(200):
                for i in range(4):
                    others = sum(turned[j] for j in range(4) if j != i) / 3
                    turned[i] = made[i] @ orthogonal_procrustes(made[i], others)[0]
            mean = sum(turned) / 4
            objective = np.mean([np.square(x - mean).sum() for x in turned])
            assert least <= objective
            assert found.objective[-1] == pytest.approx(objective, rel=1e-4)
        distances = [np.linalg.norm(x - mean) for x in turned]
        assert found.distances == pytest.approx(distances, rel=1e-3)


def test_more_features_than_rows_change_no_distance():
    draw = np.random.default_rng(0)
    rows = [torch.from_numpy(draw.normal(size=(20, width))) for width in (50, 30)]
    assert [x.shape for x in shapes.convert_to_one_width(rows)] == [(20, 20)] * 2
    assert common(rows).distances[0] == pytest.approx(get("procrustes")(*rows) / 2, rel=1e-9)


def test_rows_that_are_paired_at_random_are_as_far_as_unrelated_shapes():
    """A rotation fits nothing with many more rows than features: each is the root of 1 - 1/m from the mean."""
    _, rows = planted(4, 0.3, n=20000, width=4)
    made = shapes.normalise_shapes(shapes.convert_to_one_width(rows))
    assert shapes.compute_chance_distances(made, 0) == pytest.approx([0.75**0.5] * 4, rel=0.02)
    few = shapes.normalise_shapes(shapes.convert_to_one_width(planted(4, 0.3, n=40, width=8)[1]))
    assert shapes.compute_chance_distances(few, 0).max() < 0.8


@pytest.mark.slow
def test_errors_are_the_spread_over_draws_of_documents():
    """Ten rows of a document are alike; errors over rows would be too small."""
    values, over_documents, over_rows = [], [], []
    documents = np.repeat(np.arange(40), 10)
    for seed in range(60):
        draw = np.random.default_rng(seed)
        base = draw.normal(size=(40, 5))[documents] + 0.5 * draw.normal(size=(400, 5))
        rows = []
        for noise in (0.3, 0.5, 0.9):
            own = draw.normal(size=(40, 5))[documents] + 0.3 * draw.normal(size=(400, 5))
            rows.append(torch.from_numpy((base + noise * own) @ np.linalg.qr(draw.normal(size=(5, 5)))[0]))
        whole = shapes.convert_to_one_width(rows)
        found = common(rows)
        values.append(found.distances)
        over_documents.append(shapes.estimate_distance_errors(whole, documents, found))
        over_rows.append(shapes.estimate_distance_errors(whole, np.arange(400), found))
    spread = np.std(values, axis=0)
    assert np.mean(over_documents, axis=0) == pytest.approx(spread, rel=0.25)
    assert (np.mean(over_rows, axis=0) < 0.6 * spread).all()
    assert shapes.estimate_distance_errors(whole, documents % 3, found) is None


def test_places_keep_the_distances_of_three_models():
    apart = np.array([[0.0, 3.0, 4.0], [3.0, 0.0, 5.0], [4.0, 5.0, 0.0]])
    places, shares = place_models(apart)
    np.testing.assert_allclose(np.linalg.norm(places[:, None] - places, axis=-1), apart, atol=1e-12)
    assert shares.sum() == pytest.approx(1)
    np.testing.assert_allclose(places.sum(0), 0, atol=1e-12)


@pytest.mark.drawn
@pytest.mark.slow
def test_a_run_says_which_models_are_close(repsim, newest):
    code, _, err = repsim(*WORDS, "model=[tiny_a_step100,tiny_a_step400,tiny_a]", "options.depths=[0.5,1]")
    assert code == 0, err
    found = reader.read_results(newest())
    table = found.tables[FROM_SHAPE]
    assert table.column("layer") == ["resid_post@2"] * 3 + ["resid_post@5"] * 3
    assert all(
        0 < distance < chance for distance, chance in zip(table.column("distance"), table.column("chance"), strict=True)
    )
    assert all(error > 0 for error in table.column("se"))
    for row in found.tables[OF_PLACES].rows:
        assert row[2] <= row[1]
    assert len(found.tables[MAP].rows) == 6
    assert found.tables[NEAREST].rows[0][1].startswith("tiny_a_step400 is closest to the common shape at 0.")
    assert {file.stem for file in (newest() / "figures").iterdir()} == {"barycentre", "barycentre-map"}


@pytest.mark.slow
def test_two_models_in_a_run_are_half_their_procrustes_distance_away(repsim, newest):
    """The distance is that of study=similarity on the same rows."""
    words = (
        "model=[tiny_a,tiny_b]",
        "extract.layers=[1]",
        "extract.hook_points=[resid_post]",
        "extract.normalise=none",
    )
    assert repsim(*WORDS, *words)[0] == 0
    distances = reader.read_results(newest()).tables[FROM_SHAPE].column("distance")
    code, _, err = repsim(
        "run", "-q", "extract=words", "measure=[procrustes]", "data=embedded_sentences", "extract.rows=300",
        "hardware.threads=1", "significance=none", *words,
    )  # fmt: skip
    assert code == 0, err
    (measured,) = reader.read_results(newest()).measures
    (across,) = (each for each in measured.matrices if each.rows.model != each.columns.model)
    value = float(reader.read_array(newest(), across.values)[0, 0])
    assert distances == pytest.approx([value / 2] * 2, rel=1e-5)


@pytest.mark.slow
def test_layers_are_named_in_place_of_depths(repsim, newest):
    words = ("model=[tiny_a,tiny_b]", "options.layers=[[resid_post@1,resid_post@2]]")
    code, _, err = repsim(*WORDS, *words)
    assert code == 0, err
    assert reader.read_results(newest()).tables[FROM_SHAPE].column("layer") == ["resid_post@1", "resid_post@2"]


def test_rows_of_files_are_compared(repsim, newest, tmp_path):
    _, rows = planted(3, 0.3, n=200)
    models = {}
    for i, x in enumerate(rows):
        np.savez(tmp_path / f"{i}.npz", layer=x.numpy())
        models[f"m{i}"] = f"{{kind: precomputed, path: {tmp_path / f'{i}.npz'}}}"
    given = ", ".join(f"{name}: {entry}" for name, entry in models.items())
    code, _, err = repsim("run", "-q", "study=barycentre", "measure=[]", "model=[]", f"+model={{{given}}}",
                          "extract=pooled", "hardware.threads=1")  # fmt: skip
    assert code == 0, err
    wanted = ((1 - 1 / 3) * 0.09 / 1.09) ** 0.5
    assert reader.read_results(newest()).tables[FROM_SHAPE].column("distance") == pytest.approx([wanted] * 3, rel=0.1)


@pytest.mark.parametrize(
    ("models", "options", "match"),
    [
        (["tiny_a"], {}, "model: a shape is common to two models or more, got 1; select more"),
        (["tiny_a", "tiny_b"], {"layers": [["resid_post@1"]]}, "options.layers: a layer of each of 2 models is needed"),
        (["tiny_a", "tiny_b"], {"layers": [["resid_post@1", "x"]]}, "options.layers: not read, got 'x'"),
        (["tiny_a", "tiny_b"], {"layers": [], "depths": [1.0]}, "options.layers: they stand in place of depths, got"),
    ],
)
def test_what_is_refused(models, options, match):
    with pytest.raises(BadInput, match=match):
        Barycentre(
            model={label: transformers(path=str(ASSETS / "models" / label)) for label in models},
            data=registry.data.get("embedded_text").function(),
            extract=Extract(hook_points=["resid_post"], unit="word", estimate="full"),
            hardware=Hardware(),
            seed=0,
            **options,
        )
