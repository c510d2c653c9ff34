"""Topological measures: subsets and landmarks under a seed, exact barcodes, and what happens without the packages."""

import importlib.util

import numpy as np
import pytest

from repsim_cli import measures
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.measures.base import MeasureWarning

PACKAGES = {"rtd": "ripser", "geometry_score": "gudhi"}
NAMES = list(PACKAGES)
installed = pytest.mark.skipif(len(set(NAMES) & set(measures.available())) < 2, reason="needs repsim-cli[topology]")


def draw(n=60, d=5, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@installed
@pytest.mark.parametrize(
    ("name", "settings"), [("rtd", {"rows": 20, "subsets": 3}), ("geometry_score", {"landmarks": 12, "repeats": 20})]
)
def test_draws_go_by_the_seed(name, settings):
    x, y = draw(), draw(seed=1)
    first, again, other = (measures.get(name, **settings, seed=seed)(x, y) for seed in (0, 0, 1))
    assert first == again != other
    assert measures.get(name, **settings)(x, x) == 0


@installed
def test_rtd_is_the_mean_over_its_subsets():
    x, y = draw(), draw(seed=1)
    whole = measures.get("rtd", rows=20, subsets=3)(x, y)
    generator = np.random.default_rng(0)
    subsets = [generator.choice(60, 20, replace=False) for _ in range(3)]
    assert whole == pytest.approx(np.mean([measures.get("rtd")(x[rows], y[rows]) for rows in subsets]), abs=1e-12)


@installed
def test_barcodes_keep_float64():
    """ripser's own float32 would leave 1e-7 of the distances; that of close ones is all there is here."""
    x = np.array([[0.0], [1.0], [3.0]])
    y = np.array([[0.0], [1.0 + 1e-9], [3.0]])
    assert measures.get("rtd")(x, y) == pytest.approx(1e-9 / 3, rel=1e-6)


@installed
def test_geometry_score_does_not_see_the_order_of_rows():
    x, y = draw(), draw(seed=1)
    few = measures.get("geometry_score", landmarks=12, repeats=20)
    assert few(x, y[::-1]) == pytest.approx(few(x, y), abs=1e-12)


@installed
def test_more_than_a_hundred_holes_are_counted():
    """The published code would call both sides 0."""
    x, y = draw(300, 16), draw(300, 8, seed=1)
    assert measures.get("geometry_score", repeats=3)(x, y) > 0.01


@installed
def test_a_ring_against_a_line():
    """One hole all the time, though no complex has a triangle; none, which is warned about."""
    ring = np.array([[0, 2], [1, 1], [2, 0], [1, -1], [0, -2], [-1, -1], [-2, 0], [-1, 1]])
    line = np.cumsum(np.arange(8.0))[:, None]
    with pytest.warns(MeasureWarning, match="y: no complex of 7 landmarks of 8 rows has a hole, and layers without"):
        assert measures.get("geometry_score", landmarks=7)(ring, line) == pytest.approx(2)


@pytest.fixture
def absent(monkeypatch):
    """The packages are not installed."""
    find = importlib.util.find_spec
    hidden = set(PACKAGES.values())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in hidden else find(name, *rest))


@pytest.mark.parametrize("name", NAMES)
def test_absent_packages(absent, name):
    assert name in measures.names()
    assert name not in measures.available()
    package = PACKAGES[name]
    text = rf"^{name}: {package}: needed by {name}, and not installed; pip install -e '.\[topology\]'$"
    with pytest.raises(BadInput, match=text):
        measures.get(name)


def test_absent_packages_on_the_command_line(absent, repsim, tmp_path):
    listed = repsim("list", "measure")[1].splitlines()
    assert [line.split()[0] for line in listed if "unavailable: needs " in line] == sorted(NAMES)
    code, _, err = repsim("run", "experiment=tiny/pythia_cka", "measure=[cka,rtd]")
    assert (code, err) == (
        2,
        "error: ripser: needed by rtd, and not installed; pip install -e '.[topology]'; "
        "skip_unsuitable=true runs the others\n",
    )
    file = str(tmp_path / "x.npy")
    np.save(file, draw(20, 3))
    assert repsim("measure", "rtd", file, file)[::2] == (
        2,
        "error: rtd: ripser: needed by rtd, and not installed; pip install -e '.[topology]'\n",
    )


def test_comments_say_what_is_needed():
    from repsim_cli.cli.listing import NEEDS
    from repsim_cli.config.presets import describe_group

    for name, comment in describe_group("measure").items():
        if name == "all":
            continue
        needed = [line.removeprefix(NEEDS) for line in comment if line.startswith(NEEDS)]
        package = registry.measures.get(name).card.package
        assert needed == ([package] if package else []), name
