"""The study of shapes: the published table of the Pythia models again, and how a model stands apart."""

from dataclasses import replace

import pytest

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.findings.architecture import (
    COLUMNS,
    compute_neighbour_ratios,
    pythia_2_8b_has_a_small_head,
    tabulate_architectures,
)
from repsim_cli.runs.content import Facts
from repsim_cli.runs.reader import read_results
from repsim_cli.studies.architecture.study import Architectures

# Brown et al. 2023, table 1 (d_head, rotary), and the parameters without embeddings that Pythia's authors publish
PUBLISHED = {
    "70m": (64, 16, 18_915_328),
    "160m": (64, 16, 85_056_000),
    "410m": (64, 16, 302_311_424),
    "1b": (256, 64, 805_736_448),
    "1_4b": (128, 32, 1_208_602_624),
    "2_8b": (80, 20, 2_517_652_480),
    "6_9b": (128, 32, 6_444_163_072),
    "12b": (128, 32, 11_327_027_200),
}


def random(**arguments):
    return registry.models.get("random").function(**arguments)


def shape(heads, width, layers=1):
    """What the manifest says of a model without a vocabulary."""
    parameters = 12 * layers * width**2
    return Facts(
        kind="live", family="gpt2", layers=[], widths=[], blocks=layers, width=width, heads=heads,
        head_width=width // heads, rotary=0, parameters=parameters,
    )  # fmt: skip


def rows(models, factor):
    return tabulate_architectures(models, factor).rows


def test_the_shipped_shapes_are_pythias():
    from repsim_cli.config.presets import read_table_entries

    for size, (d_head, rotary, parameters) in PUBLISHED.items():
        entry = read_table_entries("model")[f"pythia_{size}_shape"]
        source = random(**{k: v for k, v in entry.items() if k != "kind"})
        assert (source.head_width, source.rotary) == (d_head, rotary), size
        assert source.parameters - source.vocabulary * source.width == parameters, size


def test_the_published_table(repsim, newest):
    code, out, _ = repsim("run", "experiment=pythia_architecture")
    assert code == 0
    results = read_results(newest())
    shapes = results.tables["architecture"]
    (claim,) = results.claims
    assert (claim.name, claim.verdict, claim.value) == ("pythia_2_8b_has_a_small_head", "holds", 0.625)
    assert "claim pythia_2_8b_has_a_small_head (d_head): holds (0.625, threshold" in out
    assert shapes.columns == COLUMNS
    found = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in shapes.rows}
    assert list(found) == [f"pythia_{size}_shape" for size in PUBLISHED]
    apart = {label: row["stands apart"] for label, row in found.items() if row["stands apart"]}
    assert apart == {"pythia_1b_shape": "large", "pythia_2_8b_shape": "small"}
    assert found["pythia_2_8b_shape"]["d_head / neighbours"] == 80 / 128
    lines = [line.split() for line in out.splitlines()]
    assert ["pythia_2_8b_shape", "32", "2,560", "32", "80", "20", "2,646,430,720", "0.625", "small"] in lines


def test_a_model_stands_apart_from_its_neighbours_by_parameters():
    models = {"big": shape(2, 64), "small": shape(4, 16), "middle": shape(2, 32), "odd": shape(1, 60)}
    given = rows(models, 1.5)
    assert [row[0] for row in given] == ["small", "middle", "odd", "big"]
    assert [row[4] for row in given] == [4, 16, 60, 32]
    assert [row[7] for row in given] == [4 / 38, 16 / 32, 60 / 16, 32 / 38]
    assert [row[8] for row in given] == ["small", "small", "large", ""]
    assert [row[8] for row in rows(models, 100.0)] == [""] * 4


def test_the_threshold_itself_is_not_apart():
    assert compute_neighbour_ratios([96, 64, 64]) == [1.5, 0.8, 0.8]
    models = {str(i): shape(1, width, layers) for i, (width, layers) in enumerate([(96, 1), (64, 8), (64, 9)])}
    assert [row[8] for row in rows(models, 1.5)] == ["", "", ""]


def test_with_two_models_nothing_is_said():
    assert [row[7:] for row in rows({"a": shape(1, 8), "b": shape(1, 800)}, 1.5)] == [[None, ""], [None, ""]]


def test_the_claim_fails_and_is_untestable():
    """The model is known by its shape, whatever its label is."""
    large, small, mine = (replace(shape(32, 2560, 32), family="gpt_neox", head_width=width) for width in (96, 80, 80))
    others = {"a": shape(1, 128), "b": shape(1, 128)}
    given = pythia_2_8b_has_a_small_head({"mine": mine, **others})
    assert (given.verdict, given.value) == ("holds", 0.625)
    assert pythia_2_8b_has_a_small_head({"pythia_2_8b": large, **others}).verdict == "fails"
    for models in ({"pythia_2_8b": small}, {"pythia_2_8b": shape(1, 80), **others}):
        verdict = pythia_2_8b_has_a_small_head(models)
        assert (verdict.verdict, verdict.value) == ("not testable here", None)
        assert verdict.why == "needs a model of the shape of Pythia 2.8b and two neighbours"


def test_bad_settings(repsim):
    with pytest.raises(BadInput, match="model: no model is selected"):
        Architectures(model={})
    words = ["experiment=pythia_architecture", "analyses.architecture.factor=1"]
    assert repsim("run", *words)[2] == "error: analyses.architecture.factor: wrong value, got 1; give greater than 1\n"


def test_stored_activations_have_no_architecture(tmp_path):
    import numpy as np

    np.savez(tmp_path / "acts.npz", a=np.ones((4, 2), "f4"))
    stored = registry.models.get("precomputed").function(path=str(tmp_path / "acts.npz"))
    with pytest.raises(BadInput, match="model.x: stored activations have no architecture, got kind precomputed"):
        Architectures(model={"x": stored})
