"""Every kind of study, ended in each of its stages and resumed each time: the same bits as undisturbed."""

import json
from collections import Counter
from contextlib import contextmanager

import pytest
from nights import nightly
from recorded import recorded
from test_describe import EXAMPLES, SHORTER, places, words_of  # noqa: F401

from repsim_cli import results
from repsim_cli.cache import Entry
from repsim_cli.content import COSTS
from repsim_cli.results import Run

CLASSIFIER = (
    "{kind: finetuned, config: {model_type: bert, vocab_size: 120, hidden_size: WIDTH, num_hidden_layers: 2,"
    " num_attention_heads: 2, intermediate_size: 16, max_position_embeddings: 40}, train: {kind: overlap_nli, split:"
    " train, examples: 60}, evaluate: {kind: overlap_nli, examples: 60}, seeds: SEEDS, recipe: {length: 40, steps: 2,"
    " batch_size: 8}}"
)


def classifier(label: str, width: int, *seeds: int) -> str:
    return f"+model.{label}={CLASSIFIER.replace('WIDTH', str(width)).replace('SEEDS', str(list(seeds)))}"


SMALL = ("model=[tiny_a,tiny_b]", "extract.length=32", "extract.sequences=24", "extract.batch_rows=64")
PERMUTED = (*SMALL, "extract.layers=[0,3]", "significance=permutation", "significance.permutations=9")
MODELS = ("model=[]", classifier("a", 16, 0, 1, 2), classifier("b", 8, 3, 4, 5))
PAIRS = ("data=overlap_nli", "data.examples=80", "extract=pooled", "extract.length=40", "extract.sequences=60", "extract.rows=60")
SAMPLE = "{data: {kind: overlap_nli, examples: 60, seed: SEED}, tests: {seeds: {a: a}}}"
FACTORS = "{width: {base: a, values: {half: b, twice: c}}}"
STUDIES = {
    **{
        study: words
        for study, words in SHORTER.items()
        if words is not None
    },
    "finetune": ("study=finetune", "measure=[]", "model=[]", classifier("a", 16, 0, 1)),
    "grounding": (
        "study=grounding", *MODELS, *PAIRS[2:], "measure=[cka,procrustes]",
        f"+options.samples={{one: {SAMPLE.replace('SEED', '0')}, two: {SAMPLE.replace('SEED', '1')}}}",
    ),
    "modular_training": (
        "study=modular_training", "measure=[]", "model=[]",
        "+model.mine={kind: modular, recipe: {moduli: [5, 3], blocks: 2, epochs: 3}}",
    ),
    "universality": (
        "study=universality", *MODELS, classifier("c", 24, 3, 4, 5), *PAIRS, "measure=[cka_unbiased,svcca]",
        "extract.hook_points=[resid_post]", "extract.estimate=full", "significance=permutation",
        "significance.permutations=19", f"+options.factors={FACTORS}",
    ),
    "similarity, permuted": PERMUTED,
    "similarity, without a cache": (*PERMUTED, "cache=false"),
    "similarity, under remedies": (*SMALL, "extract.layers=[0,3]", "measure=[cka,mutual_knn]", "analyses.robustness={}", "cache=false"),
    "convergence of two series": (
        "study=convergence", "measure=[cka]", "model=[tiny_a_series]", "extract.length=32", "extract.sequences=40",
        "+model.other={kind: series, folder: OTHER}",
    ),
}  # fmt: skip
MOST = 2  # times that runs are ended at the same place


@pytest.fixture
def ended(monkeypatch):
    """ended(begin): the places at which a run is ended, that begin(resumed) starts and resumes: each the first time that
    it comes by."""
    places, passed = [], Counter()

    def by(place: str) -> None:
        passed[place] += 1
        if passed[place] <= MOST and (place, passed[place]) not in places:
            places.append((place, passed[place]))
            raise KeyboardInterrupt

    @contextmanager
    def staged(self, name, stage=Run.stage):
        with stage(self, name):
            by(f"start of {name}")
            yield
        by(f"end of {name}")

    def finish(self, *args, finish=Entry.finish, **more):
        by(f"before an entry of {self.kind}")
        finish(self, *args, **more)
        by(f"after an entry of {self.kind}")

    def run(begin) -> list[tuple[str, int]]:
        monkeypatch.setattr("repsim_cli.studies.matrices.SAVE_EVERY", -1.0)
        monkeypatch.setattr(Run, "stage", staged)
        monkeypatch.setattr(Entry, "finish", finish)
        code = begin(())
        while code == 130:
            passed.clear()
            code = begin(("resume=latest",))
        assert code == 0
        return places

    return run


def content(folder):
    """All that a run found, but for what it took."""
    found = recorded(folder)
    found["tables"].pop(COSTS, None)
    arrays = {file.name: file.read_bytes() for file in sorted((folder / "arrays").glob("*"))}
    return {**found, "warnings": sorted(found["warnings"])}, arrays


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_is_resumed_from_each_of_its_stages(repsim, newest, ended, places, tiny_folder, study, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "other").mkdir()
    for step in (1, 2):
        (tmp_path / "other" / f"step{step}").symlink_to(tiny_folder("gpt2", step))
    words = [word.replace("OTHER", str(tmp_path / "other")) for word in STUDIES[study]]
    if study in SHORTER and SHORTER[study] is not None:
        words = (*words_of(EXAMPLES[f"study {study}"], places)[1:], *words)
    words = ("run", "-q", *words, "hardware.threads=1")
    errors = []
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "one"))
    code, _, err = repsim(*words)
    assert code == 0, err
    expected = content(newest())

    def begin(more):
        monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "two"))
        code, _, err = repsim(*words, *more)
        errors.append(err)
        assert code in (0, 130), err
        return code

    stopped = ended(begin)
    with open("/tmp/walk.txt", "a") as f:
        print(study, len(stopped), stopped, file=f)
    folder = newest()
    assert len(json.loads((folder / "manifest.json").read_text())["resumed"]) == len(stopped)
    assert len(stopped) >= 4
    assert content(folder) == expected
