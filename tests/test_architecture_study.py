"""The study of shapes: the published table of the Pythia models again, and how a model stands apart."""

import pytest

from repsim_cli import registry
from repsim_cli.analysis.claims.shapes import SHAPE_CLAIMS
from repsim_cli.errors import BadInput
from repsim_cli.results import read_results
from repsim_cli.studies.architecture import COLUMNS, Architectures, rows, to_neighbours

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
    config = {
        "model_type": "gpt2",
        "n_embd": width,
        "n_head": heads,
        "n_layer": layers,
        "vocab_size": 8,
        "n_positions": 8,
    }
    return random(config=config)


def test_the_shipped_shapes_are_pythias():
    from repsim_cli.cli.configs import entries

    for size, (d_head, rotary, parameters) in PUBLISHED.items():
        entry = entries("model")[f"pythia_{size}_shape"]
        source = random(**{k: v for k, v in entry.items() if k != "kind"})
        assert (source.head_width, source.rotary) == (d_head, rotary), size
        assert source.parameters - source.vocabulary * source.width == parameters, size


def test_the_published_table(repsim, newest):
    code, out, _ = repsim("run", "experiment=pythia_architecture")
    assert code == 0
    results = read_results(newest())
    table = results["tables"]["architecture"]
    (claim,) = results["claims"]
    assert (claim["name"], claim["verdict"], claim["value"]) == ("pythia_2_8b_has_a_small_head", "holds", 0.625)
    assert "claim pythia_2_8b_has_a_small_head (d_head): holds (0.625, threshold" in out
    assert table["columns"] == COLUMNS
    found = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in table["rows"]}
    assert list(found) == [f"pythia_{size}_shape" for size in PUBLISHED]
    apart = {label: row["stands apart"] for label, row in found.items() if row["stands apart"]}
    assert apart == {"pythia_1b_shape": "large", "pythia_2_8b_shape": "small"}
    assert found["pythia_2_8b_shape"]["d_head / neighbours"] == 80 / 128
    lines = [line.split() for line in out.splitlines()]
    assert ["pythia_2_8b_shape", "32", "2,560", "32", "80", "20", "2,646,430,720", "0.625", "small"] in lines


def test_a_model_stands_apart_from_its_neighbours_by_parameters():
    models = {"big": shape(2, 64), "small": shape(4, 16), "middle": shape(2, 32), "odd": shape(1, 60)}
    table = rows(models, 1.5)
    assert [row[0] for row in table] == ["small", "middle", "odd", "big"]
    assert [row[4] for row in table] == [4, 16, 60, 32]
    assert [row[7] for row in table] == [4 / 38, 16 / 32, 60 / 16, 32 / 38]
    assert [row[8] for row in table] == ["small", "small", "large", ""]
    assert [row[8] for row in rows(models, 100.0)] == [""] * 4


def test_the_threshold_itself_is_not_apart():
    assert to_neighbours([96, 64, 64]) == [1.5, 0.8, 0.8]
    models = {str(i): shape(1, width, layers) for i, (width, layers) in enumerate([(96, 1), (64, 8), (64, 9)])}
    assert [row[8] for row in rows(models, 1.5)] == ["", "", ""]


def test_with_two_models_nothing_is_said():
    assert [row[7:] for row in rows({"a": shape(1, 8), "b": shape(1, 800)}, 1.5)] == [[None, ""], [None, ""]]


def test_the_claim_fails_and_is_untestable():
    claim = SHAPE_CLAIMS["pythia_2_8b_has_a_small_head"]
    assert claim({"pythia_2_8b": 0.9, "pythia_1b": 1.0}, 1.5).verdict == "fails"
    for ratios in ({"pythia_1b": 0.1}, {"pythia_2_8b": None}):
        finding = claim(ratios, 1.5)
        assert (finding.verdict, finding.value, finding.why) == (
            "not testable here",
            None,
            "needs pythia_2_8b and two neighbours",
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"claims": ["pythia_2_8b_has_a_big_head"]},
            "options.claims: unknown claim, got .*; did you mean 'pythia_2_8b_has_a_small",
        ),
        ({"model": {}}, "model: no model is selected, got none"),
        ({"factor": 1.0}, "options.factor: must be above 1, got 1.0; 1.5 is the default"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(BadInput, match=message):
        Architectures(**{"model": {"a": shape(1, 8)}, **arguments})


def test_stored_activations_have_no_architecture(tmp_path):
    import numpy as np

    np.savez(tmp_path / "acts.npz", a=np.ones((4, 2), "f4"))
    stored = registry.models.get("precomputed").function(path=str(tmp_path / "acts.npz"))
    with pytest.raises(BadInput, match="model.x: stored activations have no architecture, got kind precomputed"):
        Architectures(model={"x": stored})
