"""Maps of all layers: the orders in which they are drawn."""

import shutil

import numpy as np
import pytest
from test_analyse import SMALL

from repsim_cli import results
from repsim_cli.draw.heatmap import pair
from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.maps import figures


@pytest.mark.parametrize("order", ["depth", "cluster"])
def test_layers_are_drawn_in_the_order_of_the_analysis(repsim, finished, tmp_path, order):
    folder = shutil.copytree(finished(*SMALL), tmp_path / "outputs" / "day" / "run")
    before = results.read_results(folder)
    assert repsim("analyse", folder, f"+analyses.maps={{order: {order}}}")[0] == 0
    run = Finished(folder=folder, manifest=results.read_facts(folder), results=results.read_results(folder))
    assert run.results.analyses["maps"]["options"] == {"order": order}
    figure = dict(figures(run, False))["cka-all"]()
    (axes,) = pair(figure)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert axes.get_xlabel() == f"layers by {order}, resid_post by block"
    if order == "depth":
        assert names[:4] == ["tiny_a 0", "tiny_b 0", "tiny_a 1", "tiny_b 1"]
    else:
        assert sorted(names) == sorted(f"{model} {block}" for model in ("tiny_a", "tiny_b") for block in range(6))
    # cells come with their names
    everywhere = [f"{model} {block}" for model in ("tiny_a", "tiny_b") for block in range(6)]
    at = [everywhere.index(name) for name in names]
    (drawn,) = (image.get_array() for image in axes.images)
    np.testing.assert_allclose(drawn, run.maps["cka"].values[np.ix_(at, at)], atol=1e-12)
    assert results.read_results(folder).measures == before.measures


def test_an_order_that_does_not_exist(repsim, finished):
    code, _, err = repsim("analyse", finished(*SMALL), "+analyses.maps={order: size}")
    assert code == 2
    assert "analyses.maps.order: wrong value, got 'size'; give 'model', 'depth' or 'cluster'" in err
