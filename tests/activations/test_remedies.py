"""Rows and features that are left out, and scales: against plain numpy, the same for all models and estimates."""

import json

import numpy as np
import pytest
import torch

from repsim_cli.activations.places import (
    count_kept_rows,
    list_row_documents,
    list_row_labels,
    list_row_positions,
    mark_kept_rows,
    mark_read_places,
    mark_row_beginnings,
    mark_row_places,
)
from repsim_cli.activations.readings import Layer
from repsim_cli.activations.remedies import Remedies, skip_in_all
from repsim_cli.activations.rows import RowBlock
from repsim_cli.activations.segments import BOTH, DOCUMENT, SEQUENCE
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Labels, Sequences
from repsim_cli.runs.content import DIAGNOSTICS, FEATURE_SHARE, LEFT_OUT


class Words:
    """A tokenizer whose tokens are numbers: 0 is bos, 9 a line break."""

    bos_token_id = 0
    eos_token_id = None

    def decode(self, ids):
        return {0: "<s>", 8: " ", 9: " \n"}.get(ids[0], f"t{ids[0]}")


def extract(**given) -> Extract:
    return Extract(hook_points=["resid_post"], **given)


def texts(ids, document, position, word=None, labels=None) -> Sequences:
    ids, document = np.asarray(ids), np.asarray(document)
    return Sequences(
        inputs=ids,
        mask=ids >= 0,
        text=document >= 0,
        document=document,
        position=np.asarray(position),
        documents=2,
        word=None if word is None else np.asarray(word),
        labels=labels,
    )


PACKED = texts(
    [[0, 1, 9, 2, 3], [0, 4, 5, 8, 6]], [[-1, 0, 0, 0, 1], [-1, 1, 1, 1, 1]], [[-1, 0, 1, 2, 0], [-1, 1, 2, 3, 4]]
)


def listed(array: np.ndarray | None) -> list:
    assert array is not None
    return array.tolist()


def alone(given: Sequences, settings: Extract) -> Sequences:
    return skip_in_all({"a": given}, {"a": Words()}, settings)["a"]


def test_places_and_tokens_are_skipped():
    settings = extract(skip=2)
    given = alone(PACKED, settings)
    assert listed(list_row_positions(given, settings)) == [2, 3, 4, 2, 3, 4]
    assert list_row_documents(given, settings).tolist() == [0, 0, 1, 1, 1, 1]
    # document 0 began at a place that is skipped, the second sequence goes on with document 1
    assert mark_row_beginnings(given, settings).tolist() == [BOTH, 0, DOCUMENT, SEQUENCE, 0, 0]
    assert listed(mark_kept_rows(given, settings)) == [False, True, True, True, False, True, True, True]
    settings = extract(skip_tokens=["newline"])
    assert listed(list_row_positions(alone(PACKED, settings), settings)) == [1, 3, 4, 1, 2, 3, 4]
    settings = extract(skip_tokens=["newline", "bos"], padding="keep")
    assert listed(list_row_positions(alone(PACKED, settings), settings)) == [1, 3, 4, 1, 2, 3, 4]
    assert mark_kept_rows(PACKED, extract()) is None


def test_a_word_that_one_model_skips_is_skipped_for_all():
    """The second tokenizer splits the first word in three, so that the second word is further back."""
    one = texts([[1, 2, 3, 4]], [[0, 0, 0, 0]], [[0, 1, 2, 3]], word=[[0, 1, 2, 3]])
    two = texts([[1, 1, 1, 2, 3, 4]], [[0] * 6], [[0, 0, 0, 1, 2, 3]], word=[[0, 0, 0, 1, 2, 3]])
    for piece, kept in (("last", [2, 3]), ("first", [2, 3]), ("mean", [2, 3])):
        settings = extract(unit="word", piece=piece, skip=2)
        marked = skip_in_all({"a": one, "b": two}, {"a": Words(), "b": Words()}, settings)
        words = [
            given.position[places][left]
            for given, places, left in (
                (given, mark_row_places(given, settings), mark_kept_rows(given, settings)) for given in marked.values()
            )
        ]
        assert [x.tolist() for x in words] == [kept, kept]
        assert [count_kept_rows(given, settings).tolist() for given in marked.values()] == [[2], [2]]


@pytest.mark.parametrize(("unit", "read"), [("mean", [3, 4]), ("first", [3]), ("last", [4])])
def test_pooled_rows_leave_places_out_and_a_sequence_without_any_other_is_no_row(unit, read):
    """The first sequence has two places only; it is a row of no model, and has no label."""
    given = texts([[1, 2, -1, -1, -1], [1, 2, 3, 4, 5]], [[0, 0, -1, -1, -1], [1] * 5], [[0, 1, -1, -1, -1], range(5)],
                  labels=Labels(np.array([0, 1]), ("a", "b")))  # fmt: skip
    settings = extract(unit=unit, skip=3)
    marked = alone(given, settings)
    assert np.flatnonzero(mark_read_places(marked, settings)[1]).tolist() == read
    assert count_kept_rows(marked, settings).tolist() == [0, 1]
    assert listed(mark_kept_rows(marked, settings)) == [False, True]
    assert list_row_documents(marked, settings).tolist() == [1]
    assert listed(list_row_labels(marked, settings)) == [1]
    assert list_row_positions(marked, settings) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (extract(skip=9), "^extract.skip: no row is left of 8, as all stand in the first 9 places for some model, got skip=9; "
         "extract.skip=0 reads them$"),
        (extract(skip_tokens=["eos"]), "^extract.skip_tokens: no tokenizer of the run has such a token, got eos; drop it$"),
        (extract(skip=1, unit="sequence"), "^extract.skip: a row of all tokens of a sequence has all its places, got unit=seq"),
    ],
)  # fmt: skip
def test_what_cannot_be_skipped(settings, message):
    with pytest.raises(BadInput, match=message):
        alone(PACKED, settings)
    with pytest.raises(BadInput, match="^extract: stored activations do not say at which places their rows are, got"):
        skip_in_all({}, {}, settings)


def test_numbers_and_patches_have_no_tokens():
    with pytest.raises(
        BadInput, match=r"^extract.skip_tokens: these models read no tokens of text, got \['newline'\]; set"
    ):
        skip_in_all({"a": PACKED}, {"a": object()}, extract(skip_tokens=["newline"]))


LAYER = Layer("a", "h", 5)


def blocks_of(x: np.ndarray, size: int):
    rows = torch.from_numpy(x).float()
    return (RowBlock(i, [rows[i : i + size]]) for i in range(0, len(rows), size))


def treated(x: np.ndarray, settings: Extract, left: np.ndarray | None = None, size: int = 100) -> np.ndarray:
    remedies = Remedies(settings, left)
    if settings.features_changed:
        remedies.measure(remedies.rows(blocks_of(x, size)), [LAYER])
    found = list(remedies.apply(blocks_of(x, size), [LAYER]))
    ends = np.cumsum([0, *(len(block.rows[0]) for block in found)])
    assert [block.first for block in found] == ends[:-1].tolist()
    return torch.cat([block.rows[0] for block in found]).numpy()


def rows(n: int = 500) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 5)) * [1, 2, 30, 4, 1e-3] + [0, 5, 1, 0, 0]


def test_they_are_those_of_plain_numpy_in_this_order():
    x, left = rows(), np.arange(500) % 7 > 1
    kept = x[left]
    assert treated(x, extract(skip=2), left) == pytest.approx(kept, rel=1e-5)
    assert treated(x, extract(normalise="features"), left) == pytest.approx(kept / kept.std(0), rel=1e-4)
    assert treated(x, extract(normalise="directions"), left) == pytest.approx(kept, rel=1e-5)  # too narrow
    assert treated(x, extract(normalise="rows"), left) == pytest.approx(
        kept / np.linalg.norm(kept, axis=1, keepdims=True), rel=1e-5
    )
    without = kept[:, [0, 1, 3, 4]]
    assert treated(x, extract(drop_features=0.5), left) == pytest.approx(without, rel=1e-5)
    both = extract(drop_features=0.5, normalise="rows")
    assert treated(x, both, left) == pytest.approx(without / np.linalg.norm(without, axis=1, keepdims=True), rel=1e-5)


def test_a_constant_feature_and_a_row_of_zeros_stay():
    x = rows()
    x[:, 1], x[3] = 7.0, 0.0
    x[3, 1] = 7.0
    found = treated(x, extract(normalise="features"))
    assert (found[:, 1] == 7).all()
    x[3] = 0
    assert (treated(x, extract(normalise="rows"))[3] == 0).all()


def test_scales_are_the_same_to_the_bit_however_rows_pass():
    x = rows(3000)
    settings = extract(drop_features=0.5, normalise="features")
    scalings = []
    for size in (3000, 700, 64):
        remedies = Remedies(settings, None)
        remedies.measure(blocks_of(x, size), [LAYER])
        scalings.append(remedies.scalings[LAYER])
    for scaling in scalings[1:]:
        assert torch.equal(scaling.scale, scalings[0].scale)
        assert scaling.dropped == scalings[0].dropped == [2]
        assert scaling.share == scalings[0].share


def test_a_layer_of_which_no_feature_is_left():
    with pytest.raises(
        RunFailed, match="^extract.drop_features: every feature of h of 'a' has more than this share of the"
    ):
        treated(np.random.default_rng(0).normal(size=(50, 5)), extract(drop_features=0.1))


def test_where_an_interrupted_run_begins_again():
    remedies = Remedies(extract(skip=1), np.array([False, True, True, False, True]))
    assert [remedies.first(row) for row in range(4)] == [1, 2, 4, 5]
    assert Remedies(extract(), None).first(3) == 3


# ---- end to end ----


@pytest.fixture
def stored(tmp_path):
    """Two layers that differ in the scales of their features alone."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 12)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", h0=x, h1=x * np.array([1000, *np.linspace(0.5, 3, 11)], np.float32))
    return [
        "model=[]", f"+model.mine={{kind: precomputed, path: {tmp_path / 'rows.npz'}}}", "extract.estimate=full",
        "measure=[cka]", "hardware.threads=1",
    ]  # fmt: skip


def between(newest) -> float:
    whole = json.loads((newest() / "results.json").read_text())
    return float(np.load(newest() / whole["measures"][0]["matrices"][0]["values"])[0, 1])


def test_features_to_unit_variance_make_cka_blind_to_their_scales(repsim, newest, stored):
    assert repsim("run", *stored)[0] == 0
    assert between(newest) < 0.5
    assert repsim("run", *stored, "extract.normalise=features")[0] == 0
    assert between(newest) == pytest.approx(1, abs=1e-6)
    assert json.loads((newest() / "manifest.json").read_text())["warnings"] == []


def test_features_that_are_left_out_are_in_a_table_also_from_the_cache(repsim, newest, stored):
    tables = []
    for _ in range(2):
        assert repsim("run", *stored, "extract.drop_features=0.5")[0] == 0
        whole = json.loads((newest() / "results.json").read_text())
        tables.append(whole["tables"])
        assert whole["measures"][0]["estimate"]["remedies"]["drop_features"] == 0.5
    assert json.loads((newest() / "manifest.json").read_text())["matrices_cached"] == ["cka"]
    assert tables[0] == tables[1]
    (_, _, none, which, share), (_, layer, count, first, much) = tables[0][LEFT_OUT]["rows"]
    assert (none, which, share) == (0, "", 0.0)
    assert (layer, count, first) == ("h1", 1, "0")
    assert much > 0.99
    diagnosed = tables[0][DIAGNOSTICS]
    assert diagnosed["rows"][1][3] == 11  # the diagnostics are of the rows as they are compared
    assert diagnosed["rows"][1][diagnosed["columns"].index(FEATURE_SHARE)] < 0.5


SMALL = ("model=[tiny_a]", "measure=[cka]", "extract.sequences=8", "extract.batch_rows=256", "extract.skip=0",
         "extract.normalise=none", "hardware.threads=1")  # fmt: skip


@pytest.mark.parametrize("estimate", ["per_batch", "full", "moments", "ratio_of_sums"])
def test_every_estimate_skips_and_a_second_remedy_runs_no_model(repsim, newest, monkeypatch, shared, estimate):
    monkeypatch.setenv("REPSIM_CACHE", str(shared("remedies", lambda folder: None)))
    measure = "measure=[cka_unbiased]" if estimate == "ratio_of_sums" else "measure=[cka]"
    words = (*SMALL, measure, f"extract.estimate={estimate}")
    assert repsim("run", *words)[0] == 0
    for remedy in ("extract.skip=3", "extract.normalise=features"):
        code, _, err = repsim("run", *words, remedy)
        assert code == 0, err
        manifest = json.loads((newest() / "manifest.json").read_text())
        assert (manifest["models_run"], manifest["matrices_cached"]) == ([], [])
        table = json.loads((newest() / "results.json").read_text())["tables"][DIAGNOSTICS]
        at = [table["columns"].index(f"norm at place {place}") for place in (0, 2, 3)]
        assert [table["rows"][0][i] is None for i in at] == ([True, True, False] if "skip" in remedy else [False] * 3)
    assert manifest["remedies"] == {"normalise": "features", "rows_left_out": 0, "share_left_out": 0.0}


def test_many_rows_left_out_are_warned_about(repsim, newest):
    code, out, _ = repsim("run", *SMALL, "extract.skip=20")
    assert code == 0
    assert "extract.skip: 160 of 1024 rows are left out, as some model skips their places" in out
    manifest = json.loads((newest() / "manifest.json").read_text())
    assert manifest["remedies"] == {"skip": 20, "rows_left_out": 160, "share_left_out": 160 / 1024}
    assert (manifest["rows"], manifest["data"]["rows_skipped"]) == (864, 160)


def test_permutations_of_what_is_left(repsim, newest):
    code, _, err = repsim(
        "run", *SMALL, "significance=permutation", "significance.permutations=19", "extract.estimate=full",
        "extract.skip=4", "extract.normalise=rows", "data=embedded_sentences", "extract.unit=mean", "extract.sequences=60",
    )  # fmt: skip
    assert code == 0, err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("study=effective_rank", "model=[tiny_a_series]", "extract.skip=4"),
         "extract.skip: the study effective_rank reads rows as models give them, got 4; leave it at its default"),
        (("measure=[euclidean]", "extract.drop_features=0.1"),
         "extract.drop_features: euclidean compares feature by feature, got 0.1; use extract.normalise=features"),
        (("extract.skip_tokens=[newlines]",), "extract.skip_tokens.0: "),
        (("extract.drop_features=0",), "extract.drop_features: "),
    ],
)  # fmt: skip
def test_settings_that_are_refused(repsim, words, message):
    code, _, err = repsim("run", "hardware.threads=1", *words)
    assert code == 2
    assert message in err


@pytest.mark.slow
def test_models_run_once_without_the_cache_though_the_rows_pass_twice(repsim, newest):
    words = ("run", "model=[tiny_a,tiny_b]", "measure=[cka]", "extract.sequences=8", "extract.batch_rows=256")
    whole = []
    for cache in ("true", "false"):
        code, _, err = repsim(*words, "extract.normalise=features", f"cache={cache}", "hardware.threads=1")
        assert code == 0, err
        run = newest()
        manifest = json.loads((run / "manifest.json").read_text())
        assert not (run / "activations").exists()
        arrays = [np.load(file).tolist() for file in sorted((run / "arrays").glob("*.npy"))]
        whole.append((manifest["data"]["tokens_read"], manifest["models_run"], arrays))
    assert whole[0] == whole[1]
