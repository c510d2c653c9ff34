"""What says that documents cannot be exchanged, and what rows must share to be exchanged, in runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.recorded import recorded

from repsim_cli.activations import segments
from repsim_cli.base.errors import BadInput
from repsim_cli.engine.clusters import Clusters
from repsim_cli.engine.validity import (
    FOUND,
    REASONS,
    TOO_ALIKE,
    compare_neighbours,
    explain_invalid_null,
    find_range,
    is_unmoved,
    measure_dependence,
)

GROUP = np.arange(60 * 3).reshape(60, 3)
PLACES = [slice(0, 1), slice(1, 2)]


def sides(effects, count=2):
    """Representations of 60 documents of 3 rows, whose documents have these effects in each."""
    rng = np.random.default_rng(0)
    return [
        torch.from_numpy(np.repeat(effects(rng), 3, axis=0) + 0.5 * rng.normal(size=(180, 5))) for _ in range(count)
    ]


def plain(rng):
    return rng.normal(size=(60, 5))


def serial(rng):
    effects = rng.normal(size=(60, 5))
    for i in range(1, 60):
        effects[i] = 0.7 * effects[i - 1] + 0.7 * effects[i]
    return effects


def twice(rng):
    return np.repeat(rng.normal(size=(30, 5)), 2, axis=0)


def said(both, order="any", **properties):
    held = {name: [values] for name, values in properties.items()}
    found = torch.stack([measure_dependence(x, [GROUP], held, 0) for x in both])
    return explain_invalid_null(found, 1, PLACES, documents=60, shifted=order == "shifts")


LABEL, LENGTH = np.arange(60) % 3, np.arange(60) * 7 % 60


@pytest.mark.parametrize("given", [{}, {"label": LABEL}, {"length": LENGTH}])
def test_independent_documents_are_not_accused(given):
    assert said(sides(plain), **given) == []


def test_each_fault_is_named_with_its_remedy():
    (fault,) = said(sides(serial))
    assert fault.startswith("documents that follow each other are alike; ")
    assert "significance.order=shifts" in fault
    assert said(sides(lambda rng: plain(rng) + 2 * rng.normal(size=(3, 5))[LABEL]), label=LABEL) == [
        REASONS["label"].format("documents")
    ]
    longer = LENGTH[:, None] / 20
    assert said(sides(lambda rng: plain(rng) + longer * rng.normal(size=5)), length=LENGTH) == [
        REASONS["length"].format("documents")
    ]


def test_a_constant_layer_says_nothing():
    assert said([torch.ones(180, 5, dtype=torch.float64)] * 2) == []


def test_copies_are_found_where_all_their_rows_are_the_same():
    rows = [x.view(60, 3, 5) for x in sides(plain)]
    for x in rows:
        x[7] = x[20]
    assert said([x.reshape(180, 5) for x in rows]) == [REASONS["twice"].format("documents")]


def test_a_null_holds_where_one_side_alone_depends_on_the_order():
    assert said([*sides(serial, 1), *sides(plain, 1)]) == []


def test_shifts_need_enough_documents_that_are_not_alike():
    assert said(sides(serial), "shifts") == []
    walk = sides(lambda rng: np.cumsum(rng.normal(size=(60, 5)), axis=0))
    assert said(walk, "shifts") == [TOO_ALIKE.format("documents")]


def draw_blocks(rng):
    """Rows alike in blocks of four."""
    return np.repeat(rng.normal(size=(15, 5)), 4, axis=0) + 0.5 * rng.normal(size=(60, 5))


def test_blocks_are_no_series():
    (fault,) = said(sides(draw_blocks), "shifts")
    assert "in blocks" in fault
    assert "significance.clusters" in fault
    (fault,) = said(sides(draw_blocks))
    assert "significance.order=shifts" in fault  # nobody can tell yet


def test_rows_are_told_of_their_documents():
    found = torch.stack([measure_dependence(x, [GROUP], {}, 0) for x in sides(serial)])
    (fault,) = explain_invalid_null(found, 1, PLACES, documents=60, by_row=True)
    assert fault.startswith("rows that follow each other are alike; give the documents")
    assert "shifts" not in fault


@pytest.mark.parametrize("seed", range(3))
def test_a_series_is_not_taken_for_blocks(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, 12))
    for i in range(1, 400):
        x[i] = 0.8 * x[i - 1] + 0.6 * x[i]
    assert 0.7 < compare_neighbours(torch.from_numpy(x - x.mean(0))) < 1.4
    blocks = np.repeat(rng.normal(size=(40, 12)), 10, axis=0) + 0.5 * rng.normal(size=(400, 12))
    assert compare_neighbours(torch.from_numpy(blocks - blocks.mean(0))) > 2


def test_alike_at_a_distance_is_what_plain_sums_say():
    """Plain sums over 12 documents: products of those 1, 2 and 3 apart, less what those further apart fall below
    zero."""
    means = torch.from_numpy(serial(np.random.default_rng(1))[:12])
    means -= means.mean(0)
    apart = [float((means[: 12 - lag] * means[lag:]).sum()) / (12 - lag) for lag in range(7)]
    less = min(float(np.mean(apart[4:])), 0.0)
    expected = [max(value - less, 0.0) / (apart[0] - less) for value in apart[1:4]]
    assert find_range(means).tolist() == pytest.approx(expected, abs=1e-12)


def test_copies_are_counted_in_pairs():
    effects = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4)))
    effects[3] = effects[5] = effects[8]
    x = effects.repeat_interleave(2, dim=0)
    found = measure_dependence(x, [np.arange(18).reshape(9, 2)], {}, 0)
    assert found[FOUND.index("twice"), 0] == 3
    assert measure_dependence(x[:4], [np.arange(4).reshape(2, 2)], {}, 0).sum() == 0  # two documents show nothing


@pytest.mark.parametrize(("change", "unmoved"), [(0.0, True), (5e-6, True), (1e-3, False)])
def test_pairings_that_change_rounding_alone_change_nothing(change, unmoved):
    observed = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    drawn = observed.expand(4, 1, 2).clone()
    drawn[2, 0, 1] += change
    assert is_unmoved(observed, drawn) == unmoved


def test_what_has_no_value_or_is_zero_is_not_unmoved():
    nothing = torch.full((1, 2), torch.nan, dtype=torch.float64)
    assert not is_unmoved(nothing, nothing.expand(4, 1, 2))
    assert not is_unmoved(torch.zeros(1, 2), torch.zeros(4, 1, 2))


TABLE = "text,label,topic\n" + "".join(
    f"the {noun} {verb} {adverb},{'ab'[i % 2]},{'xyz'[i % 3]}\n"
    for i, (noun, verb, adverb) in enumerate(
        (noun, verb, adverb)
        for noun in ("cat", "dog", "king", "ship")
        for verb in ("sees", "takes", "loses")
        for adverb in ("now", "often", "here", "today")
    )
)


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "table.csv"
    file.write_text(TABLE)
    return [
        "model=[tiny_a,tiny_b]", "measure=[cka_unbiased,mutual_knn]", "data=table", f"data.path={file}", "data.group=topic",
        "data.label=label", "extract.estimate=full", "extract.unit=mean", "extract.normalise=none", "figures.format=[]",
    ]  # fmt: skip


@pytest.mark.slow
def test_rows_are_exchanged_within_a_column(repsim, newest, table):
    code, _, err = repsim("run", *table, "significance=permutation", "significance.within=group")
    assert code == 0, err
    for measure in recorded(newest())["measures"]:
        assert measure["null"]["within"] == ["group"]
        assert measure["chance"]["units"] == "rows within group"


@pytest.mark.slow
def test_chance_within_a_token_is_higher(repsim, newest):
    """What the token itself gives is more than what random pairings give, and less than the value."""
    words = [
        "model=[tiny_a,tiny_b]",
        "measure=[cka_unbiased,mutual_knn]",
        "extract.sequences=20",
        "extract.layers=[0,-1]",
    ]
    levels = []
    for more in ([], ["significance.within=token"]):
        assert repsim("run", *words, *more)[0] == 0
        found = recorded(newest())["measures"]
        levels.append([np.load(newest() / m["matrices"][1]["details"]["chance"]).mean() for m in found])
    values = [np.load(newest() / m["matrices"][1]["values"]).mean() for m in found]
    for plainly, of_token, value in zip(*levels, values, strict=True):
        assert plainly < of_token < value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["significance=permutation", "significance.within=token", "data=embedded", "extract.unit=token"],
            "significance.within: rows of a document depend on each other, so that no exchange of single rows keeps its",
        ),
        (
            ["significance=closed_form", "significance.clusters=row", "significance.within=position"],
            "significance.within: the closed form is of rows in any order, got closed_form; use significance=permutation",
        ),
        (
            ["significance=closed_form", "significance.clusters=row", "significance.order=shifts"],
            "significance.order: the closed form is of rows in any order",
        ),
        (
            ["significance=closed_form", "significance.clusters=label", "data=overlap_nli", "extract=pooled"],
            "significance.method: tokens of a document depend on each other and the closed form takes rows as independent",
        ),
        (
            ["significance.within=colour", "data=embedded"],
            "significance.within: no such property of these rows, got 'colour'",
        ),
        (
            ["significance=permutation", "significance.clusters=author"],
            "significance.clusters: no such property of these rows, got 'author'",
        ),
    ],
)
def test_what_cannot_be_held_is_refused(repsim, words, message):
    code, _, err = repsim("run", "model=[tiny_a,tiny_b]", "measure=[cka_unbiased]", "extract.sequences=32", *words)
    assert code == 2
    assert message in err


@pytest.mark.parametrize("method", ["permutation", "closed_form"])
def test_stored_rows_have_no_column_to_cluster_by(repsim, tmp_path, method):
    """Stored rows are not taken as independent in silence."""
    rng = np.random.default_rng(0)
    for name in "ab":
        np.savez(tmp_path / name, x=rng.normal(size=(60, 4)))
    models = [f"+model.{name}={{kind: precomputed, path: {tmp_path / name}.npz}}" for name in "ab"]
    code, _, err = repsim(
        "run", "model=[]", *models, "measure=[cka_unbiased]", "extract.estimate=full",
        f"significance={method}", "significance.clusters=author",
    )  # fmt: skip
    assert code == 2
    assert "significance." in err


def test_chance_says_of_which_documents_and_rows(repsim, newest, table):
    code, _, err = repsim("run", *table, "significance.clusters=group")
    assert code == 0, err
    for measure in recorded(newest())["measures"]:
        assert measure["chance"]["units"] == "documents by group"
        assert 0.3 < measure["chance"]["partnered"] <= 1
        assert measure["chance"]["batches"] == 1


def test_what_rows_share_is_of_whole_documents_or_of_single_rows():
    """Documents trade places with those of their label; a place inside them is kept anyway, and a token cannot be."""
    documents, begins = np.repeat(np.arange(24), 3), np.tile([segments.BOTH, 0, 0], 24)
    held = {"label": documents % 2, "position": np.tile([0, 1, 2], 24)}
    clusters = Clusters(documents=documents, beginnings=begins, whole=None, held=held)
    groups = clusters.segments([np.arange(72)], 2).batches[0]
    assert sorted(len(group) for group in groups) == [12, 12]
    assert all(len(np.unique(held["label"][group])) == 1 for group in groups)
    assert clusters.exchange([np.arange(72)]).what == "documents within label, position"
    one_row = np.where(np.arange(72) == 71, 2, documents % 2)
    token = replace(clusters, held={"label": documents % 2, "token": one_row})
    with pytest.raises(BadInput, match="rows of a document depend on each other.*got token with clusters"):
        token.segments([np.arange(72)], 2)
    alone = replace(token, documents=np.arange(72), beginnings=np.full(72, segments.BOTH))
    assert [len(group) for group in alone.segments([np.arange(72)], 2).batches[0]] == [36, 35]


def test_stored_rows_of_a_document_trade_places_together_wherever_they_stand(repsim, newest, tmp_path):
    documents = np.tile(np.arange(20), 4)
    for name in "ab":
        np.savez(tmp_path / name, x=np.random.default_rng(0).normal(size=(80, 4)), documents=documents)
    models = [f"+model.{name}={{kind: precomputed, path: {tmp_path / name}.npz}}" for name in "ab"]
    words = ("model=[]", *models, "measure=[cka]", "extract.estimate=full", "significance=permutation")
    code, _, err = repsim("run", *words)
    assert code == 0, err
    (measure,) = recorded(newest())["measures"]
    assert (measure["null"]["segments"], measure["null"]["share"]) == (20, 1)
    assert measure["chance"]["units"] == "documents"
