"""Inner products from products of features: the values of the cells, fewer operations, and the level of chance."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from reference import hsic as reference

from repsim_cli import measures
from repsim_cli.activations.exchange import Exchange
from repsim_cli.engine.expected import Collector, compute_products_and_means, index_row_places
from repsim_cli.measures.base import restrict_to_other_documents
from repsim_cli.measures.centring import centre_rows
from repsim_cli.measures.inner import compute_inner_products
from repsim_cli.measures.kernels import prepare_states
from repsim_cli.measures.products import compute_products_of_features, sum_squared_products

NAMES = ("cka", "cka_unbiased", "cka_columns", "linear_regression", "yanai_cca", "gulp")
ROWS = 500


def draw_sides(rows=ROWS, widths=(6, 9, 5), dtype=torch.float64, heavy=1.0):
    """Draws representations that share two directions, far from the origin; of all the first row is heavy."""
    generator = torch.Generator().manual_seed(3)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    shared = draw(rows, 2)
    sides = [3 + shared @ draw(2, width) + draw(rows, width) for width in widths]
    for side in sides:
        side[0] *= heavy
    return [side.to(dtype) for side in sides]


def prepare(measure, sides):
    return prepare_kernels(dict.fromkeys((measure.row, measure.column)), sides)


def prepare_kernels(kernels, sides):
    prepared = [prepare_states(list(kernels), side, {}) for side in sides]
    return {kernel: [of[kernel] for of in prepared] for kernel in kernels}


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 3e-6)])
@pytest.mark.parametrize("name", NAMES)
def test_they_are_those_of_the_cells(name, dtype, error):
    measure = measures.get(name)
    states = prepare(measure, draw_sides(dtype=dtype))
    pair = measure.row, measure.column
    found = compute_products_of_features(*pair, states, ROWS)
    (expected,) = compute_inner_products([pair], states, ROWS, 128, watch=lambda *_: None)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=error, atol=error * float(expected.max()))


DOCUMENTS = {
    "short": torch.arange(2000) // 7,
    "one row": torch.arange(2000),
    "longer than most": torch.arange(2000).clamp_min(250),
    "in no order": torch.arange(2000) * 997 % 2000 // 30,
}


@pytest.mark.parametrize("documents", DOCUMENTS.values(), ids=DOCUMENTS)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 3e-6)])
@pytest.mark.parametrize("name", ["cka_unbiased", "cka_columns"])
def test_cells_of_rows_of_one_document_are_left_out(name, dtype, error, documents):
    documents = documents.unique(return_inverse=True)[1]
    measure = restrict_to_other_documents(measures.get(name), documents)
    states = prepare(measure, draw_sides(len(documents), dtype=dtype))
    moved = replace(measure.column, features=lambda x: centre_rows(x))
    order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(1))
    states |= prepare_kernels([moved], [x[order] for x in draw_sides(len(documents), dtype=dtype)[:2]])
    for pair in ((measure.row, measure.column), (measure.row, moved)):
        found = compute_products_of_features(*pair, states, len(documents))
        (expected,) = compute_inner_products([pair], states, len(documents), 512, watch=lambda *_: None)
        assert found is not None
        torch.testing.assert_close(found, expected, rtol=error, atol=error * float(expected.max()))


@pytest.mark.parametrize(("count", "heavy"), [(700, 1.0), (400, 300.0)], ids=["long documents", "a heavy row"])
def test_documents_whose_cells_are_computed(count, heavy):
    """Little is left without a document that has most of the squared norm, and cells keep more digits."""
    documents = (torch.arange(3000) - count).clamp_min(0)
    measure = restrict_to_other_documents(measures.get("cka_unbiased"), documents)
    states = prepare(measure, draw_sides(3000, dtype=torch.float32, heavy=heavy))
    assert compute_products_of_features(measure.row, measure.column, states, 3000) is None


@pytest.mark.parametrize("name", ["cka", "cka_unbiased"])
def test_direct_calls_give_what_papers_define(name):
    x, y, _ = (side.numpy() for side in draw_sides(rows=120))
    assert measures.get(name)(x, y) == pytest.approx(getattr(reference, name)(x, y), rel=1e-12)


def test_a_heavy_row_does_not_take_the_digits_of_the_others():
    """Nearly all of the squared norm is then on the diagonal, which is left out."""
    measure = measures.get("cka_unbiased")
    for dtype, heavy in ((torch.float32, 1e2), (torch.float64, 1e5)):
        states = prepare(measure, draw_sides(dtype=dtype, heavy=heavy))
        assert compute_products_of_features(measure.row, measure.column, states, ROWS) is None
    x, y, _ = draw_sides(rows=120, heavy=1e4)
    assert measure(x, y) == pytest.approx(reference.cka_unbiased(x.numpy(), y.numpy()), rel=1e-6)


def test_wide_features_go_in_parts():
    parts = [centre_rows(side) for side in draw_sides(widths=(7, 3, 12))]
    others = [centre_rows(side) for side in draw_sides(widths=(4, 11))]
    for rows, columns in ((parts, parts), (parts, others)):
        expected = [[float((a.values.T @ b.values).square().sum()) for b in columns] for a in rows]
        for wide in (1, 5, 10, 100):
            torch.testing.assert_close(
                sum_squared_products(rows, columns, wide=wide), torch.tensor(expected, dtype=torch.float64)
            )


def test_cells_are_computed_where_features_are_many():
    measure = measures.get("cka")
    states = prepare(measure, draw_sides(rows=40, widths=(30, 30)))
    assert compute_products_of_features(measure.row, measure.column, states, 40) is None


@pytest.mark.parametrize("name", NAMES)
def test_the_level_of_chance_is_that_of_the_cells(name):
    measure, n = measures.get(name), 60
    places = index_row_places(Exchange(np.arange(n), np.zeros(n, int), "rows"), 3)
    states, pair = prepare(measure, draw_sides(rows=n)), (measure.row, measure.column)
    _, means = compute_products_and_means([pair], states, n, 16, places)
    collector = Collector(places, [pair])
    compute_inner_products([pair], states, n, 16, watch=collector)
    torch.testing.assert_close(means[pair], collector.means()[pair], rtol=1e-6, atol=1e-6)


def test_rows_of_documents_keep_their_level_of_chance():
    """Rows that may not all take each other's place need cells."""
    measure, n = measures.get("cka_unbiased"), 60
    places = index_row_places(Exchange(np.repeat(np.arange(20), 3), np.tile(np.arange(3), 20), "documents"), 3)
    states, pair = prepare(measure, draw_sides(rows=n)), (measure.row, measure.column)
    crosses, means = compute_products_and_means([pair], states, n, 16, places)
    collector = Collector(places, [pair])
    expected = compute_inner_products([pair], states, n, 16, watch=collector)
    assert torch.equal(crosses[0], expected[0])
    assert torch.equal(means[pair], collector.means()[pair])
