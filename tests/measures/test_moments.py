"""Measures from second moments, streamed: the same values as from all rows at once, in memory that does not grow."""

import itertools
import re

import numpy as np
import pytest
import torch
from helpers.recorded import recorded
from helpers.streamed import STREAMED

from repsim_cli import measures
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.engine.estimates import check_estimate
from repsim_cli.engine.moments import _compute_covariances, compute_pairs_from_moments, plan_passes
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures.base import MeasureWarning

WIDTHS = [5, 8, 13, 20]


def representations(n=900):
    """float32, far from the origin, of very different variances, with a dead and a doubled neuron."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(n, 6, generator=generator)
    found = []
    for d in WIDTHS:
        x = base @ torch.randn(6, d, generator=generator) + torch.randn(n, d, generator=generator)
        found.append(x * torch.logspace(0, -2, d) + 50 * torch.randn(d, generator=generator))
    found[2][:, 3] = 7.0
    found[1][:, 2] = 2 * found[1][:, 3]
    return found


def streamed(xs, size=128):
    return lambda chosen: ([xs[a][i : i + size] for a in chosen] for i in range(0, len(xs[0]), size))


def found_by(names, xs, room, **settings):
    bound = {name: measures.get(name) for name in names}
    return compute_pairs_from_moments(bound, streamed(xs, **settings), names="abcd", widths=WIDTHS, room=room)


@pytest.mark.filterwarnings("ignore::repsim_cli.measures.base.MeasureWarning")
@pytest.mark.parametrize("room", [1.0, 3e3, 1e5])
def test_streamed_is_in_memory(room):
    """A pass for each pair of layers, for several, for all; the last batch is not full."""
    assert {"neuronsim", "mixedsim", "svcca", "pwsim", "pwcca", "cka", "linear_regression"} <= set(STREAMED)
    xs = representations()
    exact = compute_all_pairs({name: measures.get(name) for name in STREAMED}, [x.double() for x in xs])
    matrices, notices = found_by(STREAMED, xs, room)
    for name in STREAMED:
        np.testing.assert_allclose(matrices[name].values, exact[name], atol=1e-10, err_msg=name)
        low, high = measures.card(name).bounds
        assert matrices[name].values.min() >= low
        assert matrices[name].values.max() <= high
        assert (matrices[name].rows, matrices[name].estimate, matrices[name].se) == (900, "moments", None)
    assert notices == ["c: dead neurons were dropped, got 1 of 13 without variance"]
    torch.testing.assert_close(
        found_by(["mixedsim"], xs, room, size=900)[0]["mixedsim"].values, matrices["mixedsim"].values
    )


def massive(n=3000):
    """float32 rows as language models have them: massive features, an offset of 3000 times the spread, nearly equal
    neurons, one that is dead, and rows of which the first are unlike the others."""
    generator = torch.Generator().manual_seed(2)
    base = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    found = []
    for d in WIDTHS:
        x = base @ torch.randn(6, d, generator=generator, dtype=torch.float64)
        x += 1e-3 * torch.randn(n, d, generator=generator, dtype=torch.float64)
        x[:, 1] = 3000 * (1 + x[:, 1] / 3000)
        x[:, 2] *= 500 * (torch.rand(n, generator=generator) < 0.01)
        x[:, 4] = x[:, 3] * (1 + 1e-6 * torch.randn(n, generator=generator))
        x[:40] += 20
        found.append(x.float())
    found[2][:, 0] = 7.1
    return found


@pytest.mark.filterwarnings("ignore::repsim_cli.measures.base.MeasureWarning")
def test_products_of_float32_where_they_are_exact_enough():
    """`cka` and `neuronsim` alone; with a measure that decomposes, all products are of float64."""
    xs, cells = massive(), [(a, b) for a in range(4) for b in range(a, 4)]
    exact = compute_all_pairs({name: measures.get(name) for name in ("cka", "neuronsim")}, [x.double() for x in xs])
    found, _ = found_by(["cka", "neuronsim"], xs, 1e5)
    both, _ = found_by(["cka", "neuronsim", "mean_cca"], xs, 1e5)
    for name, values in exact.items():
        np.testing.assert_allclose(found[name].values, values, atol={"cka": 1e-8}.get(name, 1e-6), err_msg=name)
        np.testing.assert_allclose(both[name].values, values, atol=1e-10, err_msg=name)
        assert (found[name].values != both[name].values).any()
    np.testing.assert_allclose(found["cka"].values.diagonal(), 1, atol=1e-12)
    single, double = (_compute_covariances(streamed(xs)(range(4)), range(4), cells, kind)[0] for kind in (True, False))
    for a, b in cells:
        sizes = [double[c, c].diagonal().sqrt() for c in (a, b)]
        assert ((single[a, b] - double[a, b]).abs() <= 1e-5 * sizes[0][:, None] * sizes[1]).all()
    assert {name for name in STREAMED if measures.get(name).moments.single} == {
        "cka", "neuronsim", "hard_correlation_match", "soft_correlation_match", "soft_matching", "partial_soft_matching"
    }  # fmt: skip


def test_as_few_passes_as_memory_allows():
    """Every pair once, layers with themselves first; of 24 layers of 1024, 300 products of 8 MB, in two passes."""
    passes = plan_passes([1024] * 24, room=1.3e9)
    assert [len(cells) for cells in passes] == [154, 146]
    assert sorted(itertools.chain(*passes)) == [(a, b) for a in range(24) for b in range(a, 24)]
    assert passes[0][:24] == [(a, a) for a in range(24)]
    few = plan_passes([1024] * 81, room=1.3e9)
    assert len(few) == -(-81 * 82 // 2 // 154)
    # a pass of many layers reads few of them
    assert max(len({layer for cell in cells for layer in cell}) for cells in few[1:]) < 45
    asked = []
    xs = representations()

    def counted(chosen):
        asked.append(list(chosen))
        return streamed(xs)(chosen)

    bound = {"cka": measures.get("cka")}
    compute_pairs_from_moments(bound, counted, names="abcd", widths=WIDTHS, room=5600.0)
    assert asked == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_what_second_moments_cannot_do():
    with pytest.raises(BadInput, match="extract.estimate: mutual_knn is not a function of second moments, got moments"):
        check_estimate(measures.get("mutual_knn"), "moments")
    xs = representations(n=24)
    why = found_by(["pwcca"], xs, 1e5)[0]["pwcca"].undefined[2, 2]
    assert re.match(r"c and c: some canonical correlations are 1 .* got 12 \+ 12 directions in 24", why)
    xs[3][:] = 1.0
    found = found_by(["cka"], xs, 1e5)[0]["cka"]
    assert found.undefined[3, 3].startswith("d: all rows are equal, got a constant representation; drop this layer")
    assert found.values[3].isnan().all()
    assert found.values[:3, :3].isfinite().all()
    why = found_by(["mixedsim"], [x[:10] for x in representations()], 1e5)[0]["mixedsim"].undefined[2, 2]
    assert why.startswith("c: mixedsim needs more rows than features, got 10 rows of 12 features")
    with pytest.raises(BadInput, match="extract: no row is left; give more text"):
        found_by(["cka"], [x[:0] for x in representations()], 1e5)


def test_the_estimate_has_no_null(repsim):
    words = ["run", "model=[tiny_a]", "measure=[cka]", "extract.estimate=moments"]
    code, _, err = repsim(*words, "significance=permutation")
    assert code == 2
    assert "significance: sums over all rows have neither null nor standard error, got estimate moments" in err


@pytest.mark.slow
def test_runs_read_stored_rows_again(repsim, newest):
    """Blocks of few layers with and without the cache, and one block: the same numbers, each row once in the cache."""
    from repsim_cli.engine import footprint
    from repsim_cli.runs import reader

    words = ["model=[tiny_a,tiny_b]", "measure=[cka,neuronsim]", "extract.estimate=moments", "extract.sequences=4"]
    values = []
    for room, cache in ((1e9, "true"), (1e5, "false"), (1e5, "true")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(footprint, "count_cross_product_bytes", lambda comparison, room=room: room)
            code, _, err = repsim("run", *words, f"cache={cache}", "hardware.threads=1")
        assert code == 0, err
        folder = newest()
        found = recorded(folder)
        assert found["measures"][0]["estimate"]["kind"] == "moments"
        rows = reader.read_manifest(folder)["rows"]
        assert found["measures"][0]["estimate"]["rows"] == rows
        values.append([reader.read_array(folder, m["values"]) for one in found["measures"] for m in one["matrices"]])
    for other in values[1:]:
        for one, two in zip(values[0], other, strict=True):
            np.testing.assert_allclose(one, two, atol=1e-12)


def test_warnings_name_the_kind():
    with pytest.warns(MeasureWarning, match="dead neurons were dropped, got 1 of 3"):
        registry.measures.get("neuronsim").function().prepare(torch.tensor([[1.0, 2.0, 1.0], [2.0, 2.0, 3.0], [0.0, 2.0, 1.0]]))  # fmt: skip
