"""`repsim analyse` and `repsim claims`: from the run folder alone, to the same bytes; and what they refuse."""

import itertools
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.recorded import recorded
from helpers.small_run import SMALL

from repsim_cli.base import environment, registry
from repsim_cli.base.errors import BadConfig, BadInput, Degenerate
from repsim_cli.cli.claims import make_claims_table
from repsim_cli.findings.analyse import analyse, choose_options, find_analysis_card, note_short, refuse_units
from repsim_cli.findings.analysis import Finished, Planned
from repsim_cli.findings.claims import UNTESTABLE, find_claims
from repsim_cli.runs import reader, results
from repsim_cli.runs.content import BY_BLOCK, CHANCE, COPIES, END_TO_END, Matrix, Measured, Results, Side, Table
from repsim_cli.studies.stitching.finding_penalties import Penalties, penalties


def test_analysing_again_changes_no_byte(repsim, newest):
    code, _, err = repsim("run", *SMALL, "analyses.agreement={}")
    assert code == 0, err
    folder = newest()
    first, manifest = (folder / "results.json").read_bytes(), reader.read_manifest(folder)
    again = repsim("analyse", folder)
    assert again[0] == 0, again[2]
    assert (folder / "results.json").read_bytes() == first
    assert reader.read_manifest(folder)["seconds"] == manifest["seconds"]
    found = recorded(folder)
    assert set(found["analyses"]) == {"agreement", "base_model", "diagnostics", "maps"}
    assert {claim["name"] for claim in found["claims"]} == {"falls_with_layer_distance"}
    assert {"version", "commit", "dirty"} == set(found["analyses"]["agreement"]["code"])


@pytest.mark.parametrize(
    ("study", "claim", "problem"),
    [
        ("finetune", "freezing_two_thirds_costs_little",
         "claims: freezing_two_thirds_costs_little needs settings; set analyses.variants={models: ...}"),
        ("stitching", "analyses.penalties",
         "analyses.penalties: pairs of models of one group and of two are compared, got no groups; set groups"),
    ],
)  # fmt: skip
def test_what_a_run_does_not_have(study, claim, problem):
    planned = Planned(study=study, models={}, measures={}, groups={}, base=None)
    given = {"penalties": Penalties()} if claim.startswith("analyses") else {}
    with pytest.raises(BadConfig) as refused:
        choose_options(planned, given, [] if given else [claim])
    assert refused.value.problems == [problem]


def test_without_groups_claims_about_them_are_untestable():
    nothing = Finished(
        folder=Path(),
        manifest={"facts": {"a": {"kind": "live", "family": "a", "layers": [], "widths": []}}},
        results=Results(study="stitching"),
    )
    (verdict,) = penalties(nothing, Penalties(), find_claims(["between_groups_cost_late"])).claims
    assert (verdict.verdict, verdict.why) == (UNTESTABLE, "needs groups of models")


@pytest.fixture
def folder(finished, tmp_path):
    """A run that a test may change."""
    return shutil.copytree(finished(*SMALL), tmp_path / "outputs" / "run")


@pytest.mark.drawn
def test_an_analysis_is_added(repsim, folder):
    before = recorded(folder)
    code, out, err = repsim("analyse", folder, "analyses.blocks={least: 5}")
    assert code == 0, err
    assert "block structure:" in out
    added = recorded(folder)
    assert added["analyses"]["blocks"]["options"] == {"least": 5}
    assert added["tables"]["block structure"]["analysis"] == "blocks"
    assert (folder / "figures" / "by-layer-neighbours_cka.png").is_file()
    assert {key: added[key] for key in ("measures", "claims")} == {key: before[key] for key in ("measures", "claims")}


def test_an_analysis_is_replaced(repsim, folder):
    before = recorded(folder)
    assert repsim("analyse", folder, "analyses.blocks={least: 5}")[0] == 0
    assert recorded(folder)["curves"].keys() > before["curves"].keys()
    assert repsim("analyse", folder, "analyses.blocks={least: 50}")[0] == 0
    replaced = recorded(folder)
    assert (replaced["tables"]["block structure"]["rows"], replaced["curves"].keys()) == ([], before["curves"].keys())
    assert repsim("analyse", folder, "claims=[early_layers_agree]")[0] == 0
    assert {claim["name"] for claim in recorded(folder)["claims"]} == {
        "falls_with_layer_distance",
        "early_layers_agree",
    }


def test_an_analysis_loads_neither_torch_nor_a_model(folder):
    script = (
        "import sys\nfrom repsim_cli.cli import main\n"
        f"try: main(['analyse', {str(folder)!r}, '+analyses.agreement={{}}'])\nexcept SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'transformers', 'hydra'} & {name.split('.')[0] for name in sys.modules}"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("analyses.agreemnt={}", "analyses: unknown analysis, got 'agreemnt'; did you mean 'agreement'?"),
        ("analyses.blocks={leest: 3}", "analyses.blocks.leest: unknown key, got 3; did you mean 'least'?"),
        ("analyses.blocks={least: many}", "analyses.blocks.least: wrong value, got 'many'; give integer"),
        ("analyses.ranks={}", "analyses.ranks: it is about runs of the study effective_rank, got similarity; drop it"),
        ("analyses.agreement={}", "analyses.agreement: 3 measures are needed, got 1; select more"),
        (
            "claims=[falls_with_distance]",
            "claims: unknown claim, got 'falls_with_distance'; did you mean 'falls_with_la",
        ),
        (
            "claims=[larger_models_converge_earlier]",
            "claims: larger_models_converge_earlier is about runs of the study",
        ),
        ("options.rows=3", "analyse: neither analyses nor claims, got 'options'; write +analyses.NAME={}"),
        ("claims=3", "analyse: neither analyses nor claims, got 'claims=3'; write +analyses.NAME={}"),
        ("analyses=3", "analyse: neither analyses nor claims, got 'analyses=3'; write +analyses.NAME={}"),
        ("+x={", "analyse: the value is not YAML, got 'x={'; put it into quotes"),
        ("+analyses.blocks", "analyse: not key=value, got 'analyses.blocks'; e.g. k=5"),
    ],
)
def test_what_cannot_be_analysed(repsim, finished, word, message):
    code, _, err = repsim("analyse", finished(*SMALL, "measure=[cka]", "base=null"), word)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"error: {message}")


OF_MAPS = [name for name in registry.analyses.names() if "similarity" in find_analysis_card(name).studies]


@pytest.mark.parametrize("name", OF_MAPS)
def test_an_analysis_that_a_run_has_nothing_for_is_one_line(repsim, finished, tmp_path, name):
    run = shutil.copytree(finished(*SMALL, "measure=[cka]", "base=null"), tmp_path / "run")
    code, _, err = repsim("analyse", run, f"+analyses.{name}={{}}")
    assert code == 0 or (code == 2 and err.startswith(f"error: analyses.{name}: "))
    assert err.count("error: ") == bool(code)


def test_a_failed_analysis_keeps_what_was_measured(repsim, newest, monkeypatch):
    from repsim_cli.findings import agreement

    errors = [BadInput, Degenerate]

    def fails(maps):
        raise errors.pop()("cka is the same for all pairs of layers, got 1; leave it out of the agreement")

    with monkeypatch.context() as patch:
        patch.setattr(agreement, "correlate_measures", fails)
        for words, ended in ((("run", "-q", *SMALL, "analyses.agreement={}"), 1), (("analyse", "latest"), 2)):
            code, _, err = repsim(*words)
            assert err.startswith("error: analyses.agreement: cka is the same for all pairs of layers")
            assert code == ended
    assert not errors
    assert reader.read_manifest(newest())["status"] == "failed"
    assert [measure["label"] for measure in recorded(newest())["measures"]] == ["cka", "rsa", "mutual_knn"]
    assert repsim("analyse", newest(), "claims=[early_layers_agree]")[0] == 0
    assert reader.read_manifest(newest())["status"] == "failed"
    assert repsim("analyse", newest())[0] == 0
    assert "agreement" in recorded(newest())["analyses"]
    manifest = reader.read_manifest(newest())
    assert (manifest["status"], manifest["error"]) == ("complete", None)


def test_analyses_share_what_they_read(folder, monkeypatch):
    """Every matrix is read, the code described and results.json written once, however many analyses there are."""
    read, described, written = [], [], []
    keep = reader.read_array, environment.describe_code, results.Run.write_results
    monkeypatch.setattr(reader, "read_array", lambda *words: read.append(words[1]) or keep[0](*words))
    monkeypatch.setattr(environment, "describe_code", lambda: described.append(1) or keep[1]())
    monkeypatch.setattr(results.Run, "write_results", lambda run, whole: written.append(whole) or keep[2](run, whole))
    options = {name: find_analysis_card(name).options() for name in ("maps", "agreement", "blocks", "base_model")}
    with results.amend(folder) as run:
        analyse(run, options, find_claims(["falls_with_layer_distance"]), 0.95)
    assert (len(read), len(described), len(written)) == (len(set(read)), 1, 1)
    assert list(written[0].analyses) == ["diagnostics", "maps", "agreement", "blocks", "base_model"]


def test_claims_of_a_damaged_run_are_left_out(repsim, folder):
    (folder / "arrays").rename(folder / "elsewhere")  # arrays are not read for claims
    assert "  similarity: cka " in repsim("claims", "falls_with_layer_distance")[1]
    (folder / "results.json").write_text("{}")
    code, out, err = repsim("claims", "falls_with_layer_distance")
    assert (code, "similarity: " in out) == (0, False)
    assert "results.json: not as the run left it" in err


def test_claims_are_listed_with_the_verdicts_of_the_newest_runs(repsim, finished, tmp_path):
    code, out, _ = repsim("claims", "falls_with_layer_distance")
    assert code == 0
    assert out.splitlines() == [
        "falls_with_layer_distance (Brown et al. 2023, section 4, analysis maps)",
        "  Within a model, similarity falls with the distance between layers.",
        "  holds where mean over models of Spearman's rho between similarity and layer distance is at most -0.5",
        "  unit: model",
    ]
    shutil.copytree(finished(*SMALL), tmp_path / "outputs" / "run")
    out = repsim("claims", "falls_with_layer_distance")[1]
    assert "  similarity: cka " in out
    assert "rsa " in out
    assert repsim("claims", "falls_with_layer_distanse")[2] == (
        "error: claims: unknown claim, got 'falls_with_layer_distanse'; did you mean 'falls_with_layer_distance'?\n"
    )


def test_the_page_lists_every_claim():
    """Its verdicts are those of `repsim claims --check tiny`, which `make nightly` runs."""
    page = (Path(__file__).parents[2] / "experiments" / "claims.md").read_text()
    claims = sorted(find_claims(registry.claims.names()), key=lambda claim: (claim.source, claim.name))
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    expected = list(make_claims_table(claims, {}))[2:]
    assert [row.split(" | ")[:5] for row in rows] == [row.split(" | ")[:5] for row in expected]


@pytest.mark.slow
def test_claims_of_an_experiment_are_not_tested_on_other_models(repsim, newest):
    words = (
        "-q",
        "experiment=tiny/pythia_cka",
        "extract.estimate=full",
        "extract.rows=200",
        "extract.sequences=8",
        "hardware.threads=1",
    )
    code, _, err = repsim("run", *words[1:], "model=[tiny_a]")
    assert code == 0
    assert recorded(newest())["claims"] == []
    assert err.splitlines()[0] == (
        "WARNING: claims: the 3 of tiny_pythia_cka are about its own models and are not tested; "
        "claims=[NAME,...] asks for those that suit yours"
    )
    _, _, err = repsim("run", "--from", newest(), "model=[tiny_b]", "dry_run=true")
    assert "claims" not in err  # that run tested none
    assert "claims" not in repsim("run", "model=[tiny_a]", "dry_run=true")[2]
    assert repsim("run", *words, "model=[tiny_a]", "claims=[falls_with_layer_distance]")[0] == 0
    assert {claim["name"] for claim in recorded(newest())["claims"]} == {"falls_with_layer_distance"}
    assert repsim("run", *words)[0] == 0
    assert {claim["name"] for claim in recorded(newest())["claims"]} >= {
        "falls_with_layer_distance",
        "early_layers_agree",
    }


@pytest.mark.drawn
@pytest.mark.slow
def test_the_overview_of_the_demo_is_few_figures(repsim, newest, monkeypatch):
    words = ("extract.sequences=16", "extract.batch_rows=256", "hardware.threads=1", "figures.which=overview")
    assert repsim("run", "-q", *words)[0] == 0
    files = {file.name for file in (newest() / "figures").iterdir()}
    names = ("cka_unbiased-all", "mutual_knn-all")
    assert files == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    # the names alone: `all` draws with what the overview is drawn with
    monkeypatch.setattr(
        "repsim_cli.findings.analyse.save", lambda folder, jobs, *_: [folder / name for name, _ in jobs]
    )
    drawn = repsim("plot", newest(), "--all")[1].splitlines()
    # values, errors, every pair of four models; every two models under both measures; diagnostics
    assert len(drawn) == 2 * (2 + 10) + 6 + 1


def test_a_verdict_names_the_models_it_rests_on_that_fall_short(tmp_path):
    of = {"e": END_TO_END, "l": BY_BLOCK, "other": ""}
    facts = {
        label: {"kind": "live", "family": "", "layers": [], "widths": [], "training": x} for label, x in of.items()
    }
    manifest = {"facts": facts, "short": {"e": "93.8 %", "other": "50 %"}}
    run = Finished(folder=tmp_path, manifest=manifest, results=Results(study="similarity"))
    claims = find_claims(["c1_is_nearest_to_the_first_block", "layer_wise_distances_are_larger", "early_layers_agree"])
    verdicts = note_short([claim.untestable("gw", "no layers") for claim in claims], run, claims)
    assert [x.why for x in verdicts] == ["no layers", "no layers; e: 93.8 %", "no layers; e: 93.8 %; other: 50 %"]


@pytest.mark.parametrize(("fresh", "refused"), [(["a", "b"], True), (["a"], False)])
def test_claims_on_trained_models_are_not_tested_on_untrained_ones(fresh, refused, tmp_path):
    facts = {
        label: {"kind": "live", "family": "", "layers": [], "widths": [], "trained": label not in fresh}
        for label in "ab"
    }
    run = Finished(folder=tmp_path, manifest={"facts": facts}, results=Results(study="layers"))
    assert run.untrained == {*fresh}
    claims = find_claims(["dimension_peaks_inside", "pythia_2_8b_has_a_small_head"])
    given = [replace(claim.untestable("layers", ""), verdict="holds", p=0.01) for claim in claims]
    of_models, fact = refuse_units(given, run, claims)
    assert fact == given[1]  # read from the shape alone
    assert of_models.verdict == (UNTESTABLE if refused else "holds")
    assert of_models.why == ("needs trained models, got untrained ones" if refused else "")
    assert of_models.p == (None if refused else 0.01)


@pytest.mark.parametrize(
    ("beside", "named"),
    [
        ({}, ""),
        ({"b": {"weights_hash": "1", "source": "elsewhere"}}, "a and b"),
        ({"b": {"weights_hash": "1", "adapter": "x"}}, ""),
        ({"b": {"weights_hash": "1"}, "e": {"weights_hash": "4"}}, "a and b; d and e"),
        ({"table": [["a", "b"], ["b", "c"]]}, "a, b and c"),
        ({"table": [["a", "seed"]], "seed": {"weights_hash": "1"}}, ""),
    ],
)
def test_claims_are_not_tested_on_copies(beside, named, tmp_path):
    """Copies are told by what was loaded or by all layers; seeds that a study trains are what it makes them."""
    facts = {
        label: {"kind": "live", "family": "", "layers": [], "widths": [], "training": "t" if label == "seed" else ""}
        for label in (*"abcde", "seed")
    }
    identities = {label: {"weights_hash": str(i), "source": label} for i, label in enumerate(facts, 1)} | beside
    tables = {COPIES: Table(columns=["model", "other"], rows=beside["table"])} if "table" in beside else {}
    run = Finished(
        folder=tmp_path, manifest={"facts": facts, "models": identities}, results=Results(study="layers", tables=tables)
    )
    claims = find_claims(["dimension_peaks_inside", "pythia_2_8b_has_a_small_head"])
    given = [replace(claim.untestable("layers", ""), verdict="holds", p=0.01) for claim in claims]
    of_models, fact = refuse_units(given, run, claims)
    assert fact == given[1]
    assert of_models.verdict == (UNTESTABLE if named else "holds")
    assert of_models.why == (
        f"needs models that are independent, got copies: {named}; keep one of them" if named else ""
    )


@pytest.mark.parametrize(
    ("groups", "whole"),
    [
        ({"x": ["a_0", "a_1", "b_0", "b_1"], "y": ["c_0", "c_1", "d_0", "d_1"]}, ["a", "b", "c", "d"]),
        ({"x": ["a_0", "a_1", "b_0", "b_1"], "y": ["c_0"]}, ["a", "b"]),
        ({"x": ["a_0", "a_1"], "y": ["c_0", "c_1"]}, []),  # the seeds of two trainings
        ({"x": ["a_0", "b_0", "c_0"], "y": ["a_1", "b_1", "c_1"]}, []),
        ({"x": ["a_0", "b_0"], "y": ["c_0", "d_0"]}, []),
        ({}, []),
    ],
)
def test_groups_of_whole_trainings_are_not_held_against_other_groups_of_models(groups, whole, tmp_path):
    facts = {
        f"{entry}_{seed}": {"kind": "live", "family": "", "layers": [], "widths": [], "entry": entry}
        for entry in "abcd"
        for seed in (0, 1)
    }
    manifest = {"facts": facts, "groups": groups}
    run = Finished(folder=tmp_path, manifest=manifest, results=Results(study="similarity"))
    assert run.whole_trainings == whole
    claims = find_claims(["groups_differ_late", "falls_with_layer_distance"])
    given = [replace(claim.untestable("cka", ""), verdict="holds", p=0.01) for claim in claims]
    of_groups, other = refuse_units(given, run, claims)
    assert other.verdict == "holds"
    assert of_groups.verdict == (UNTESTABLE if whole else "holds")
    assert ("all seeds of a training in one: " + ", ".join(whole) in of_groups.why) == bool(whole)


@pytest.mark.parametrize("common", [False, True])
def test_claims_across_models_need_two_that_have_something_in_common(common, tmp_path):
    """The measure's chance says what is common: two models beyond it are enough, and claims within models are tested
    all the same."""
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "chance.npy", np.full((2, 2), 0.2))
    facts = {label: {"kind": "live", "family": "", "layers": ["x", "y"], "widths": [4, 4]} for label in "abc"}
    matrices = []
    for number, (a, b) in enumerate(itertools.combinations("abc", 2)):
        values = np.array([[0.21, 0.2], [0.19, 0.2]]) + (0.5 if common and not number else 0.0)
        np.save(tmp_path / "arrays" / f"{number}.npy", values)
        sides = [Side(model=model, layers=["x", "y"]) for model in (a, b)]
        details = {CHANCE: "arrays/chance.npy"}
        matrices.append(Matrix(rows=sides[0], columns=sides[1], values=f"arrays/{number}.npy", details=details))
    card = {"larger_is_closer": True, "symmetric": True, "bounds": [0.0, 1.0], "label": "CKA"}
    chance = {"units": "rows", "spread": 0.01, "mean": "exact", "orders": 8}
    measured = Measured(name="cka", label="cka", settings={}, estimate={}, card=card, matrices=matrices, chance=chance)
    run = Finished(folder=tmp_path, manifest={"facts": facts}, results=Results(study="similarity", measures=[measured]))
    claims = find_claims(["early_layers_agree", "groups_differ_late", "falls_with_layer_distance"])
    given = [
        replace(claim.untestable(of, ""), verdict="holds", p=0.01)
        for claim, of in zip(claims, ("cka", "cka, layers", "cka"), strict=True)
    ]
    across, of_groups, within = refuse_units(given, run, claims)
    assert within.verdict == "holds"
    for each in (across, of_groups):
        assert each.verdict == ("holds" if common else UNTESTABLE)
        assert each.why == (
            "" if common else "needs two models that have something in common beyond chance by this measure"
        )
