"""Measures that settings or data exclude: refused with the reason, or skipped on demand."""

import pytest
from helpers.composing import composed

from repsim_cli import measures
from repsim_cli.base.errors import BadConfig
from repsim_cli.config import presets
from repsim_cli.config.run import validate

SAMPLE = ("model=[tiny_a]", "extract.estimate=full", "extract.rows=200")


@pytest.mark.parametrize(
    ("overrides", "kept", "reason"),
    [
        (["extract.estimate=moments", "measure=[svcca,cka_unbiased,mutual_knn]"], ["svcca"], "cka_unbiased is not a function of second moments, got moments; use full"),
        (["extract.estimate=ratio_of_sums", "measure=[cka,mutual_knn]"], ["cka"], "mutual_knn is not made of HSIC; use per_batch or full"),
        (["significance=closed_form", "significance.clusters=row", "measure=[mutual_knn,rsa]"], ["rsa"], "mutual_knn has no closed form; use significance=permutation"),
        (["significance=permutation", "measure=[gromov_wasserstein,cka]"], ["cka"], "gromov_wasserstein does not depend on how rows are paired"),
        (["extract.rows=60", "measure=[mean_cca,cka]"], ["cka"], "mean_cca needs more rows than features, got 60 for 64"),
        (["measure=[cka,tolerance_difference]"], ["cka"], "tolerance_difference needs a label per row, got data without labels"),
        (["measure=[cka,gaussian_mutual_information]"], ["cka"], "gaussian_mutual_information of a layer with itself is infinite"),
        (["measure=[cka,attention_js]"], ["cka"], "the study similarity compares activations, got attention_js, a measure of attention"),
        (["+model.w={kind: random, config: {model_type: gpt2, n_embd: 32, n_layer: 1, n_head: 2, vocab_size: 512}, tokenizer: tiny_a}", "measure=[cka,euclidean]"], ["cka"], "euclidean needs equal widths, got 32"),
    ],
)  # fmt: skip
def test_an_unsuitable_measure_is_refused_or_skipped(overrides, kept, reason):
    words = [*SAMPLE, *overrides]
    with pytest.raises(BadConfig) as caught:
        validate(composed(*words))
    (problem,) = caught.value.problems
    assert reason in problem
    assert problem.endswith("; skip_unsuitable=true runs the others")
    config = validate(composed(*words, "skip_unsuitable=true"))
    assert config.plan()["measures"] == list(config.study.measures) == kept
    skipped = config.plan()["measures skipped"]
    assert skipped == config.skipped
    assert skipped.keys() == config.keys.measure.keys() - set(kept)
    assert any(reason in why for why in skipped.values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["study=probes", "model=[tiny_a]"], "data: it has no labels of rows that are a mean, got "),
        (["study=similarity", "model=[tiny_a]", "measure=[tolerance_difference]"],
         "measure: tolerance_difference needs a label per row, got data without labels"),
        (["study=outputs", "model=[tiny_nli,tiny_plain]"], "data: accuracy_difference needs a label per example, got "),
        (["study=stitching", "model=[tiny_nli,tiny_plain]", "options.recipe.layer=identity"],
         "data: classifiers need a label per example, got "),
    ],
)  # fmt: skip
def test_a_plan_refuses_a_table_without_the_labels_that_are_needed(repsim, tmp_path, words, message):
    (tmp_path / "bare.csv").write_text("text\n" + "".join(f"rain falls on roof {i}\n" for i in range(40)))
    table = ["data=table", f"data.path={tmp_path}/bare.csv", "data.text=text", "extract=pooled"]
    code, _, err = repsim("run", *words, *table, "dry_run=true")
    assert code == 2
    assert message in err


def test_how_many_are_unsuitable_is_said_and_all_is_too_many():
    words = [*SAMPLE, "significance=permutation", "skip_unsuitable=true"]
    with pytest.raises(BadConfig, match=r"gromov_wasserstein does not depend .*\(2 of 2 measures are unsuitable\)$"):
        validate(composed(*words, "measure=[gromov_wasserstein,wasserstein]"))
    with pytest.raises(BadConfig, match=r"gromov_wasserstein does not depend .*bands=true$"):
        validate(composed(*words, "measure=[gromov_wasserstein]"))
    with pytest.raises(BadConfig, match=r"attention_js, a measure of attention; .*\(2 of 2 measures are unsuitable\)$"):
        validate(composed(*words, "measure=[attention_js,attention_cka]"))
    with pytest.raises(BadConfig, match=r"\(2 of 3 measures are unsuitable\); skip_unsuitable=true runs the others$"):
        validate(composed(*words, "measure=[gromov_wasserstein,wasserstein,cka]", "skip_unsuitable=false"))


def test_all_measures_that_read_what_the_study_reads():
    words = [*SAMPLE, "measure=all", "skip_unsuitable=true"]
    config = validate(composed(*words))
    assert list(config.keys.measure) == measures.names()
    assert config.keys.measure["mutual_knn"] == presets.read_table_entries("measure")["mutual_knn"]
    assert not config.skipped.keys() & set(config.study.measures)
    assert config.skipped.keys() | set(config.study.measures) == set(measures.names())
    config = validate(composed("experiment=tiny/ptb_attention", "measure=all"))
    assert (list(config.study.measures), config.skipped) == (measures.names("attention"), {})
    config = validate(composed(*words, "measure=[all,mutual_knn]", "measure.mutual_knn.k=7"))
    assert config.study.measures["mutual_knn"].settings == {"k": 7, "rows": "centred"}
    assert "measures skipped" not in validate(composed(*SAMPLE, "measure=[cka]")).plan()


def test_a_measure_whose_package_is_missing_is_skipped(monkeypatch):
    monkeypatch.setattr(measures, "find_missing", lambda card: card.package)
    with pytest.raises(BadConfig, match=r"ripser: needed by rtd, and not installed; .*; skip_unsuitable=true runs the"):
        validate(composed(*SAMPLE, "measure=[cka,rtd]"))
    config = validate(composed(*SAMPLE, "measure=[cka,rtd]", "skip_unsuitable=true"))
    assert list(config.study.measures) == ["cka"]
    assert "not installed" in config.skipped["rtd"]


@pytest.mark.parametrize("overrides", [["study=convergence", "+options.pairs=true"], ["study=training_view"]])
def test_studies_of_training_skip_measures_too(overrides):
    words = ["model=[tiny_a_series]", "extract.estimate=full", "extract.rows=60", *overrides]
    config = validate(composed(*words, "measure=[mean_cca,neuronsim,cka]", "skip_unsuitable=true"))
    kept = ["cka"] if config.keys.study == "convergence" else ["neuronsim", "cka"]
    assert config.plan()["measures"] == kept
    assert "mean_cca needs more rows than features" in config.skipped["mean_cca"]
