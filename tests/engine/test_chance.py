"""The level of chance against brute force, and against models that share nothing."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
import torch
from helpers.recorded import recorded
from hypothesis import example, given
from hypothesis import strategies as st

from repsim_cli import measures
from repsim_cli.activations.exchange import Exchange, draw_derangement, find_exchange
from repsim_cli.activations.segments import BOTH, SEQUENCE
from repsim_cli.engine import chance, overlaps
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.engine.expected import index_row_places
from repsim_cli.engine.overlaps import compute_mean_overlap, count_overlaps
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.permuted import permute_pairs, permute_sampled
from repsim_cli.measures.inner import compute_matrix_tile
from repsim_cli.runs import reader

EXACT = ("cka", "cka_unbiased", "rsa", "linear_regression", "rsm_norm_difference")


def units(lengths):
    return Exchange(
        np.repeat(np.arange(len(lengths)), lengths), np.concatenate([np.arange(k) for k in lengths]), "documents"
    )


def drawn(lengths, seed, count=3, documents=1.0, width=4):
    rng, of = np.random.default_rng(seed), units(lengths).units
    effect = rng.normal(size=(count, len(lengths), width)) * documents
    return [torch.from_numpy(rng.normal(size=(len(of), width)) + part[of]) for part in effect]


def list_met(given):
    """The cells that each cell may meet."""
    unit, place = given.units, given.places
    rows = [np.flatnonzero(place == p) for p in place]
    return {
        (i, j): [
            (k, m)
            for k, m in itertools.product(rows[i], rows[j])
            if unit[k] != unit[i] and unit[m] != unit[j] and (unit[k] == unit[m]) == (unit[i] == unit[j])
        ]
        for i, j in itertools.product(range(len(unit)), repeat=2)
    }


def mean_of_pairings(a, b, given):
    """The mean product, for each cell, of two cells of its places that may meet; scaled to all cells by the norms of
    those whose places others have."""
    met, places = list_met(given), given.places
    groups = defaultdict(list)
    for i, j in met:
        groups[places[i], places[j], given.units[i] == given.units[j]].append((i, j))
    total, known = 0.0, np.zeros(a.shape, bool)
    for cells in groups.values():
        products = [a[cell] * b[other] for cell in cells for other in met[cell]]
        total += len(cells) * np.mean(products) if products else 0
        known[tuple(np.transpose(cells))] = bool(products)
    return total / np.prod([(x[known] ** 2).sum() / (x**2).sum() for x in (a, b)]) ** 0.5


@given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=2, max_size=9))
@example({(0, 0), (1, 0), (2, 1), (3, 1)})  # no unit has both places
@example({(0, 0), (0, 1), (1, 0), (2, 1)})  # one alone has
def test_chance_is_exact_where_every_cell_has_others_to_meet(rows):
    given = Exchange(*np.array(sorted(rows)).T, "documents")
    found = index_row_places(given, 1)
    assert (found is not None and found.whole) == all(list_met(given).values())


def test_places_that_fewest_units_have_are_left_out_where_there_is_no_room():
    """Sums by place of so many representations of nine rows have room for two places, or for one."""
    given = Exchange(np.array([0, 0, 1, 1, 2, 2, 3, 3, 3]), np.array([5, 7, 5, 7, 5, 8, 5, 8, 7]), "documents")
    for representations, counts in ((3_400_000, [4, 3, 0]), (3_500_000, [4, 0])):
        found = index_row_places(given, representations)
        of_place = np.bincount(found.place)
        assert of_place[:-1].tolist() == counts[:-1]
        assert not found.whole
        assert found.across[-1].tolist() == found.together[-1].tolist() == [0] * len(counts)


def prepared(names, sides, given, tile=4, **settings):
    seen = {}
    compute_all_pairs(
        {name: measures.get(name, **(settings if "knn" in name else {})) for name in names},
        sides,
        tile=tile,
        places=index_row_places(given, len(sides)),
        observe=lambda label, measure, found, values: seen.update({label: (measure, found, values)}),
    )
    return seen


@pytest.mark.parametrize("lengths", [[3] * 5, [1] * 7, [4] * 2, [4, 2, 2, 3, 3], [1, 3, 2, 2]])
@pytest.mark.parametrize("tile", [4, 512])
def test_means_of_inner_products_are_those_of_all_pairings(lengths, tile):
    given, sides = units(lengths), drawn(lengths, 0)
    everything = slice(0, len(given.units))
    for measure, found, _ in prepared(EXACT, sides, given, tile).values():
        rows, columns = found.states[measure.row], found.states[measure.column]
        for a, b in itertools.product(range(3), repeat=2):
            x, y = (
                compute_matrix_tile(kernel, state, everything, everything, len(given.units)).double().numpy()
                for kernel, state in ((measure.row, rows[a]), (measure.column, columns[b]))
            )
            expected = mean_of_pairings(x, y, given)
            assert float(found.expected[a, b]) == pytest.approx(expected, rel=1e-5, abs=1e-5), measure.name


def test_chance_is_not_known_where_few_cells_have_others_to_meet():
    """Documents of 1 and 12 rows have two first rows; a fifth of the norm is known of [2, 4, 4] rows, not of these."""
    for lengths, known in (([1, 12], False), ([2, 4, 4], True)):
        for _, found, _ in prepared(("cka", "rsa"), drawn(lengths, 0), units(lengths)).values():
            assert found.expected.isfinite().all() == found.expected.isfinite().any() == known


@pytest.mark.parametrize("lengths", [[3] * 5, [4, 2, 2, 3, 4]])
def test_means_of_shared_neighbours_are_those_of_all_pairings(lengths):
    given, sides = units(lengths), drawn(lengths, 1)
    states = [measures.get("mutual_knn", k=2).prepare(x) for x in sides]
    found = compute_mean_overlap([state.lists for state in states], index_row_places(given, 3))
    members = np.zeros((3, 15, 15))
    for a, state in enumerate(states):
        members[a, np.arange(15), state.lists.numpy()] = 1
    for a, b in itertools.product(range(3), repeat=2):
        assert float(found[a, b]) == pytest.approx(mean_of_pairings(members[a], members[b], given), rel=1e-5)


def test_shared_keys_are_summed_the_same_whether_few_or_most_entries_are_known(monkeypatch):
    lists = [torch.randperm(15, generator=torch.Generator().manual_seed(a))[:, None].T.repeat(2, 1) for a in range(3)]
    places = index_row_places(units([3] * 5), 3)
    monkeypatch.setattr(overlaps, "AT_ONCE", 4)
    found = []
    for filled in (0, 2):
        monkeypatch.setattr(overlaps, "FILLED", filled)
        found.append(compute_mean_overlap(lists, places))
    torch.testing.assert_close(*found)


def test_values_under_an_order_without_computing_all_of_them():
    """Values stand beside the exact mean: each order moves one of the sampled layers, and lists of neighbours are
    kept."""
    given, sides, some = units([3] * 5), drawn([3] * 5, 2), [0, 2]
    orders = torch.from_numpy(np.stack([draw_derangement(given, [k]) for k in range(3)]))
    found = prepared(("cka_unbiased", "rsa", "linear_regression", "mutual_knn"), sides, given, k=2)
    neighbours = found.pop("mutual_knn")[1]
    for name, (_, states, _) in found.items():
        expected, sampled = permute_pairs(states, orders)[:, some][:, :, some], permute_sampled(states, some, orders)
        known = sampled.isfinite()
        assert known.any(1).sum(1).tolist() == [1, 1, 1]
        torch.testing.assert_close(sampled[known], expected[known], msg=name)
    shared = count_overlaps([state.lists for state in neighbours.states], orders) / (15 * 2)
    torch.testing.assert_close(shared, permute_pairs(neighbours, orders))


@pytest.mark.parametrize("name", ["cka_unbiased", "cka", "mutual_knn", "rsa", "procrustes", "svcca"])
@pytest.mark.parametrize("lengths", ["equal", "unequal"])
def test_models_that_share_nothing_have_the_level_of_chance(name, lengths):
    """Values minus chance are 0 on average, though half of the variance lies between documents."""
    rng, gaps = np.random.default_rng(0), []
    for seed in range(24):
        sizes = [8] * 12 if lengths == "equal" else rng.integers(5, 12, 12).tolist()
        given, sides = units(sizes), drawn(sizes, seed, count=2, width=8)
        observe = chance.observe_chance(given, lambda batch: np.arange(len(given.units)), 1, seed)  # noqa: B023
        (measure, found, values) = prepared([name], sides, given, tile=64)[name]
        statistics = observe(0, measure, found, values)
        level = statistics.get("chance", statistics.get("drawn"))
        gaps.append(
            float(values[0, 1] - level[0, 1]) if level[0, 1].isfinite() else float(values[0, 1] - level.nanmean())
        )
    error = np.std(gaps, ddof=1) / len(gaps) ** 0.5
    assert abs(np.mean(gaps)) < 4 * error
    assert error < 0.05


def observed(names, sides, given, batches=1, batch=0, seed=0):
    """What is observed of a batch, by measure."""
    observe = chance.observe_chance(given, lambda batch: np.arange(len(given.units)), batches, seed)
    return {name: observe(batch, *of) for name, of in prepared(names, sides, given).items()}


def make_dot(compare=lambda a, b: float((a * b).sum())):
    """The simplest measure without an exact level of chance."""
    return measures.Pairwise(name="dot", card=measures.card("procrustes"), prepare=lambda x: x, compare=compare)


def find_level(measure, sides, rows, statistics=None, seed=0):
    """The level of chance of documents of one row, batch by batch, and the statistics of the run."""
    given, names = units([1] * len(sides[0])), [str(i) for i in range(len(sides))]
    observe = statistics or chance.observe_chance(given, rows.__getitem__, len(rows), seed)
    made, _ = estimate_all_pairs(
        {"mine": measure}, lambda first: ([x[some] for x in sides] for some in rows[first:]), names=names,
        estimate="per_batch", statistics=observe,
        places=lambda batch: index_row_places(given.keep(rows[batch]), len(sides)),
    )  # fmt: skip
    return chance.compute_chance_level(made["mine"], given, ""), made["mine"].statistics


@pytest.mark.parametrize(
    ("measure", "layers", "batches"),
    [(measures.get("cka_unbiased"), 2, 8), (make_dot(), 8, 1)],
    ids=["exact", "drawn"],
)
def test_the_spread_is_that_of_the_mean_over_batches_under_random_pairings(measure, layers, batches):
    """Its square, over 32 seeds, is the variance of 100 pairings of each batch of 8 rows, over the batches."""
    rows, sides = np.arange(8 * batches).reshape(batches, 8), drawn([1] * 8 * batches, 1, count=layers)

    def vary(batch, measure, prepared, values):
        orders = np.stack([draw_derangement(units([1] * 8), [k]) for k in range(100)])
        return {"variance": permute_pairs(prepared, torch.from_numpy(orders)).var(0)}

    _, seen = find_level(measure, sides, rows, vary)
    levels, found = zip(*(find_level(measure, sides, rows, seed=seed) for seed in range(32)), strict=True)
    chosen = found[0]["apart" if batches == 8 else "drawn"].isfinite()
    for level in levels:
        assert [level.about[key] for key in ("units", "partnered", "batches")] == ["documents", 1, batches]
        assert level.about["orders"] == (8 if batches == 8 else 4)
        assert level.cells.isfinite().all()
    square = np.mean([level.about["spread"] ** 2 for level in levels])
    assert square == pytest.approx(float(seen["variance"][chosen].mean()) / batches, rel=0.2)


def test_one_pairing_has_no_spread():
    """One is drawn of few layers of a slow measure in one batch; of others there are four."""

    def draw(orders):
        cells = torch.full((4, 4), 0.5, dtype=torch.float64)
        return lambda *_: {
            "drawn": cells, "square": cells.square(), "pairings": torch.tensor(float(orders)), "chance known": torch.ones(())
        }  # fmt: skip

    given = make_dot(), drawn([1] * 8, 0, count=4), np.arange(8)[None]
    assert [find_level(*given, draw(n))[0].about["spread"] for n in (1, 2)] == [None, None]  # both have one value
    about = find_level(*given)[0].about
    assert about["orders"] == 4
    assert about["spread"] > 0


@pytest.mark.parametrize(("lengths", "copies"), [([8, 8], 1), ([8], 6)], ids=["two", "equal"])
@pytest.mark.parametrize("name", ["cka_unbiased", "mutual_knn", "procrustes"])
def test_pairings_of_two_units_or_of_equal_ones_have_no_spread(name, lengths, copies):
    """All are one pairing, and differ by rounding alone."""
    sides = [torch.tile(side, (copies, 1)).float() for side in drawn(lengths, 3)]
    given, rows = units(lengths * copies), np.arange(len(sides[0]))[None]
    made, _ = estimate_all_pairs(
        {"mine": measures.get(name)}, lambda first: [sides][first:], names=["a", "b", "c"], estimate="per_batch",
        statistics=chance.observe_chance(given, rows.__getitem__, 1, 0), places=lambda batch: index_row_places(given, 3),
    )  # fmt: skip
    about = chance.compute_chance_level(made["mine"], given, "").about
    assert (about["orders"] > 1, about["spread"]) == (True, None)


def test_few_pairs_are_solved_again():
    """No more than half of them are, or the two of two layers; four times at least, where they are not slow."""
    solved = []

    def compare(a, b):
        solved.append(1)
        return float((a * b).sum())

    measure, given = make_dot(compare), units([1] * 8)
    for layers in (2, 3, 5, 8, 13, 30):
        seen = []
        sides = drawn([1] * 8, 0, count=layers)
        compute_all_pairs({"dot": measure}, sides, observe=lambda *of: seen.append(of[1:]))  # noqa: B023
        pairs = len(solved)
        for batches in (1, 3):
            solved.clear()
            observe = chance.observe_chance(given, lambda batch: np.arange(8), batches, 0)
            found = observe(0, *seen[0])
            least = 2 * min(4, -(-8 // batches))
            assert least <= len(solved) <= max(least, pairs / 2)
            assert 1 <= float(found["pairings"]) <= -(-8 // batches)
        solved.clear()


def test_pairings_are_of_the_first_batches_and_the_mean_of_all():
    given, sides = units([1] * 12), drawn([1] * 12, 0)
    for batch, known in ((7, True), (8, False)):
        found = observed(("cka_unbiased", "mutual_knn", "procrustes"), sides, given, 20, batch)
        assert ("apart" in found["cka_unbiased"]) == ("drawn" in found["procrustes"]) == known
        assert "chance" not in found["procrustes"]
        for exact in ("cka_unbiased", "mutual_knn"):
            assert found[exact]["chance"].isfinite().all()


def test_a_layer_with_itself_is_drawn_where_there_is_no_other():
    for count in (1, 2):
        for name, found in observed(("cka_unbiased", "procrustes"), drawn([1] * 12, 0, count), units([1] * 12)).items():
            spread = found["apart" if "cka" in name else "drawn"]
            assert torch.equal(spread.isfinite(), torch.eye(count) == (1 if count == 1 else 0))


def test_measures_that_do_not_pair_rows_have_no_chance():
    assert observed(("magnitude_difference",), drawn([1] * 12, 0), units([1] * 12)) == {"magnitude_difference": {}}


def test_a_similarity_is_no_part_of_its_level_of_chance():
    """A layer and itself: random pairings that leave documents in place would keep a share of 1."""
    given, (x, _) = units([8] * 4), drawn([8] * 4, 0, count=2, documents=0.0, width=16)
    (_, found, values) = prepared(["cka_unbiased"], [x, x], given)["cka_unbiased"]
    by_chance = found.expected[0, 1] / found.norms[0]
    assert float(values[0, 1]) == pytest.approx(1)
    assert abs(float(by_chance)) < 0.2


@pytest.mark.parametrize("lengths", [[3] * 5, [2, 5, 3, 7, 4], [1] * 9])
def test_an_order_that_leaves_nothing_in_place(lengths):
    given = units(lengths)
    for seed in range(20):
        order = draw_derangement(given, [seed])
        assert sorted(order) == list(range(len(order)))
        assert (given.places[order] == given.places).all()
        partners = np.bincount(given.places)[given.places] > 1
        assert ((given.units[order] != given.units) == partners).all()


def test_units_are_documents_then_sequences_then_rows():
    batches, documents, ends = [np.arange(24)], np.repeat(np.arange(6), 4), np.tile([BOTH, 0, 0, 0], 6)
    assert find_exchange(documents, ends, batches).what == "documents"
    alone = np.tile([SEQUENCE, 0, 0, 0], 6)
    alone[0] = BOTH
    found = find_exchange(np.zeros(24, int), alone, batches)
    assert (found.what, len(np.unique(found.units))) == ("sequences", 6)
    assert find_exchange(np.arange(24), np.full(24, BOTH), batches).what == "rows"
    assert find_exchange(np.zeros(24, int), np.full(24, BOTH), batches).what == "rows"  # copies, each of one row
    assert find_exchange(np.zeros(24, int), np.array([BOTH, *[0] * 23]), batches) is None


def test_units_exchange_with_those_that_share_what_is_held():
    """Documents with those of one topic; rows with those of one token, the first of a document with the first."""
    batches, documents, ends = [np.arange(24)], np.repeat(np.arange(6), 4), np.tile([BOTH, 0, 0, 0], 6)
    topic = documents % 2
    found = find_exchange(documents, ends, batches, alike=topic)
    order = draw_derangement(found, [0])
    assert (topic[order] == topic).all()
    assert (order != np.arange(24)).all()
    token = np.tile([5, 5, 6, 7], 6)
    found = find_exchange(documents, ends, batches, held=token)
    order = draw_derangement(found, [0])
    assert (token[order] == token).all()
    assert len(np.unique(found.places)) == 4


@pytest.mark.slow
def test_runs_know_chance_without_being_asked(repsim, newest):
    words = (
        "model=[tiny_a,tiny_b]",
        "extract.sequences=16",
        "extract.batch_rows=400",
        "extract.layers=[0,3,-1]",
        "measure=[cka_unbiased,mutual_knn,procrustes]",
    )
    assert repsim("run", *words)[0] == 0
    for measure in recorded(newest())["measures"]:
        assert measure["null"] is None
        assert measure["chance"]["units"] in ("documents", "sequences")
        assert measure["chance"]["spread"] > 0
        for matrix in measure["matrices"]:
            level, values = (
                reader.read_array(newest(), path) for path in (matrix["details"]["chance"], matrix["values"])
            )
            assert level.shape == values.shape
            larger = measure["card"]["larger_is_closer"]
            assert (level < values).mean() > 0.9 if larger else (level > values).mean() > 0.9
    assert repsim("run", *words, "significance.chance=false")[0] == 0
    assert all(
        measure["chance"] == {"unknown": "significance.chance=false"} for measure in recorded(newest())["measures"]
    )


def test_entries_are_summed_by_what_they_share():
    """All pairs of entries of two representations one by one, where a key has several entries and a weight of its
    own."""
    from repsim_cli.engine.overlaps import _sum_shared

    rng = np.random.default_rng(0)
    keys, counted = rng.integers(0, 7, (3, 40)), rng.random((3, 40)) < 0.7
    weight = rng.random(7)[keys]
    expected = [
        [
            sum(
                weight[a, e]
                for e in range(40)
                for f in range(40)
                if counted[a, e] and counted[b, f] and keys[a, e] == keys[b, f]
            )
            for b in range(3)
        ]
        for a in range(3)
    ]
    np.testing.assert_allclose(_sum_shared(keys, weight, counted), expected)
    np.testing.assert_allclose(_sum_shared(keys, weight, counted, rows=1), [expected[0][1:]])
