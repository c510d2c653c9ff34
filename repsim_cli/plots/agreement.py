"""Agreement between measures: their rank correlations, clustered, with the tree beside them."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.plots.heatmap import heatmap
from repsim_cli.results import read_array

TREE = 0.9  # inches that the tree takes


def figures(folder: Path, results: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """`measure-agreement`, where the study compared measures."""
    if "agreement" in results:
        yield "measure-agreement", partial(_figure, folder, results["agreement"])


def _figure(folder: Path, found: dict[str, Any]) -> Any:
    rho, names = read_array(folder, found["rho"]), found["measures"]
    title = f"Agreement of measures\nSpearman's rho over {found['pairs']:,} ordered pairs of layers"
    figure, axes = heatmap(rho, names, names, title, "Spearman's rho", (-1.0, 1.0), "RdBu_r", "{:.2f}")
    add_tree(figure, axes, read_array(folder, found["linkage"]), "1 - rho")
    return figure


def add_tree(figure: Any, axes: Any, linkage: np.ndarray, label: str) -> Any:
    """The tree of a matrix whose rows come in the order of its leaves, to the right of the colour bar: its axes."""
    from scipy.cluster.hierarchy import dendrogram

    width = figure.get_size_inches()[0]
    box = axes.get_position()
    tree = figure.add_axes((box.x1 + 1.1 / width, box.y0, TREE / width, box.height))
    drawn = dendrogram(linkage, orientation="right", no_plot=True)
    for along, depth in zip(drawn["icoord"], drawn["dcoord"], strict=True):
        # leaves stand at 5, 15, 25 ... in the tree, at 0, 1, 2 ... in the matrix
        tree.plot(depth, (np.asarray(along) - 5) / 10, color="0.25", linewidth=1)
    tree.set_ylim(axes.get_ylim())
    tree.set_xlim(0, None)
    tree.set_yticks([])
    tree.set_xlabel(label, fontsize=7)
    tree.tick_params(labelsize=6, length=2)
    tree.spines[["top", "right", "left"]].set_visible(False)
    return tree
