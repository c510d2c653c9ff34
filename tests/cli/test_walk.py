"""Every kind of study, ended in each of its stages and resumed each time: the same bits as undisturbed."""

from collections import Counter
from contextlib import contextmanager

import pytest
from helpers import printed
from helpers.printed import SHORTER, words_of
from helpers.recorded import recorded
from helpers.timers import set_timers

from repsim_cli.cli.kinds import read_kind
from repsim_cli.runs import reader
from repsim_cli.runs.cache import Entry
from repsim_cli.runs.results import Run

CLASSIFIER = (
    "{kind: finetuned, config: {model_type: bert, vocab_size: 120, hidden_size: WIDTH, num_hidden_layers: 2,"
    " num_attention_heads: 2, intermediate_size: 16, max_position_embeddings: 40}, train: {kind: overlap_nli, split:"
    " train, examples: 60}, evaluate: {kind: overlap_nli, examples: 60}, seeds: SEEDS, recipe: {length: 40, steps: 2,"
    " batch_size: 8}}"
)


def classifiers(label, width, *seeds):
    return f"+model.{label}={CLASSIFIER.replace('WIDTH', str(width)).replace('SEEDS', str(list(seeds)))}"


SMALL = (
    "model=[tiny_a,tiny_b]",
    "extract.layers=[0,3]",
    "extract.length=32",
    "extract.sequences=24",
    "extract.batch_rows=64",
)
PERMUTED = (*SMALL, "significance=permutation", "significance.permutations=19")
MODELS = ("model=[]", classifiers("a", 16, 0, 1, 2), classifiers("b", 8, 3, 4, 5))
POOLED = ("extract=pooled", "extract.length=40", "extract.sequences=60", "extract.rows=60")
SAMPLE = "{data: {kind: overlap_nli, examples: 60, seed: SEED}, tests: {seeds: {a: a}}}"
STUDIES = {
    **{study: words for study, words in SHORTER.items() if words is not None},
    "finetune": ("study=finetune", "measure=[]", "model=[]", classifiers("a", 16, 0, 1)),
    "grounding": (
        "study=grounding", *MODELS, *POOLED, "measure=[cka,procrustes]",
        f"+options.samples={{one: {SAMPLE.replace('SEED', '0')}, two: {SAMPLE.replace('SEED', '1')}}}",
    ),
    "modular_training": (
        "study=modular_training", "measure=[]", "model=[]",
        "+model.mine={kind: modular, recipe: {moduli: [5, 3], blocks: 2, epochs: 3}}",
    ),
    "universality": (
        "study=universality", *MODELS, classifiers("c", 24, 3, 4, 5), *POOLED, "data=overlap_nli", "data.examples=80",
        "measure=[cka_unbiased,svcca]", "extract.hook_points=[resid_post]", "extract.estimate=full",
        "significance=permutation", "significance.permutations=19",
        "+options.factors={width: {base: a, values: {half: b, twice: c}}}",
    ),
    "similarity, permuted": PERMUTED,
    "similarity, without a cache": (*PERMUTED, "cache=false"),
    "similarity, under remedies": (*SMALL, "measure=[cka,mutual_knn]", "analyses.robustness={}", "cache=false"),
    "similarity of groups": (
        *SMALL, "model=[tiny_a,tiny_b,tiny_a_step100,tiny_a_step400]",
        "+groups={late: [tiny_a,tiny_b], early: [tiny_a_step100,tiny_a_step400]}",
    ),
    "similarity, one by one": (*SMALL, "measure=[gromov_wasserstein,procrustes]", "extract.estimate=full", "extract.rows=40"),
    "convergence of two series": (
        "study=convergence", "measure=[cka]", "model=[tiny_a_series]", "extract.length=32", "extract.sequences=40",
        "+model.other={kind: series, folder: OTHER}",
    ),
}  # fmt: skip
MOST = 2  # times that a run is ended at the same place


@pytest.fixture
def ended(monkeypatch):
    """ended(begin): where the runs that begin(words) starts and resumes are ended: at each place the first time that they
    come by, until they come to no other."""
    ends, passed, begun = [], Counter(), []

    def by(place):
        if not begun:  # entries of configs and tokenizers are made before there is a run to go on from
            return
        passed[place] += 1
        if passed[place] <= MOST and (place, passed[place]) not in ends:
            ends.append((place, passed[place]))
            raise KeyboardInterrupt

    @contextmanager
    def staged(self, name, stage=Run.stage):
        begun.append(name)
        with stage(self, name):
            by(f"start of {name}")
            yield
        by(f"end of {name}")

    def finish(self, *args, finish=Entry.finish, **more):
        by(f"before an entry of {self.kind}")
        finish(self, *args, **more)
        by(f"after an entry of {self.kind}")

    def run(begin):
        set_timers(monkeypatch, due=True)
        monkeypatch.setattr(Run, "stage", staged)
        monkeypatch.setattr(Entry, "finish", finish)
        code = begin()
        while code == 130:
            passed.clear()
            begun.clear()
            code = begin("resume=latest")
        return ends

    return run


def content(folder):
    """What a run found, but for the seconds that it took."""
    found = recorded(folder)
    for table in found["tables"].values():
        kept = [i for i, column in enumerate(table["columns"]) if "seconds" not in column]
        table["rows"] = [[row[i] for i in kept] for row in table["rows"]]
    found["warnings"] = sorted(found["warnings"])
    return {**found, **{file.name: file.read_bytes() for file in sorted((folder / "arrays").glob("*"))}}


@pytest.mark.nightly
@pytest.mark.parametrize("study", STUDIES)
def test_a_study_goes_on_from_each_of_its_stages(
    repsim, newest, ended, shared, tiny_folder, study, tmp_path, monkeypatch
):
    (tmp_path / "other").mkdir()
    for step in (1, 2):  # with another tokenizer
        (tmp_path / "other" / f"step{step}").symlink_to(tiny_folder("gpt2", step))
    words = [word.replace("OTHER", str(tmp_path / "other")) for word in STUDIES[study]]
    if SHORTER.get(study) is not None:
        words = [*words_of(read_kind("study", study).example, printed.places(tmp_path, shared))[1:], *words]

    def begin(*more, cache="two"):
        monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / cache))
        code, _, err = repsim("run", "-q", *words, "hardware.threads=1", *more)
        assert code in (0, 130), err
        return code

    begin(cache="one")
    expected = content(newest())
    ends = ended(begin)
    assert len(reader.read_manifest(newest())["resumed"]) == len(ends) >= 4
    found = content(newest())
    assert [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)] == []
