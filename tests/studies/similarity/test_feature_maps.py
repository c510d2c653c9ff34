"""The strip of feature maps: what the study keeps, what is drawn of it, and what is refused."""

import re

import numpy as np
import pytest
import torch
from helpers.recorded import recorded

from repsim_cli.base import registry
from repsim_cli.base.errors import RunFailed
from repsim_cli.base.settings import Extract
from repsim_cli.figures.frame import Style
from repsim_cli.findings.analyse import draw
from repsim_cli.runs import reader
from repsim_cli.runs.content import FEATURE_MAPS, Matrix, Side
from repsim_cli.studies.similarity.feature_maps import arrange_in_plane, compute_feature_maps
from repsim_cli.studies.similarity.finding_feature_maps import Network, _split_into_planes
from repsim_cli.training.resnet_model import ResNetShape, resnet9

TINY = (
    "-q", "experiment=tiny/cifar10_resnet9", "model.resnet9_tiny.recipe.epochs=1", "model.resnet9_tiny.shape.widths=[4,6,8,6]",
    "model.resnet9_tiny_random.shape.widths=[4,6,8,6]", "extract.rows=24", "extract.sequences=60",
    "measure=[gromov_wasserstein]", "~analyses.sub_networks", "hardware.threads=1", "figures.format=[svg]",
)  # fmt: skip


def test_maps_are_means_over_channels(monkeypatch):
    source = resnet9(shape=ResNetShape(widths=[4, 6, 8, 6], image_size=16))
    model = source.load(False)
    data = registry.data.get("digits").function(side=16, channels=3)
    pixels = torch.from_numpy(
        data.sequences(source.tokenizer(), Extract(hook_points=["conv@0"], sequences=2), 0).inputs
    )
    from repsim_cli.activations.hook_points import expand

    points = expand(["relu@0", "conv@7", "pool@7", "linear@8"], "all", source)
    found = compute_feature_maps(model, source, points, pixels, 0)
    with torch.no_grad():
        wanted = model.blocks[0](pixels).mean(1)
        logits = model(pixels) / 0.2
    torch.testing.assert_close(found[0], wanted)
    assert [tuple(x.shape) for x in found] == [(2, 16, 16), (2, 2, 2), (2, 2, 3), (2, 2, 5)]
    torch.testing.assert_close(found[3].flatten(1), logits)
    tokens = torch.arange(2 * 5 * 3.0).view(2, 5, 3)  # a class token, then 2 x 2 patches
    assert arrange_in_plane(tokens, 1, "resid_post@0")[0].tolist() == [[4, 7], [10, 13]]
    with pytest.raises(
        RunFailed, match="resid_post@0: its places form no square, got 5; leave out analyses.feature_maps"
    ):
        arrange_in_plane(tokens, 0, "resid_post@0")


def test_planes_in_the_order_in_which_they_were_kept():
    matrix = Matrix(
        rows=Side(model="images", layers=["7"]), columns=Side(model="m", layers=["conv@0", "pool@0", "linear@1"]),
        about={"shapes": [[2, 2], [1, 1], [1, 3]]},
    )  # fmt: skip
    planes = _split_into_planes(np.arange(8.0), matrix)
    assert {name: plane.tolist() for name, plane in planes.items()} == {
        "conv@0": [[0, 1], [2, 3]], "pool@0": [[4]], "linear@1": [[5, 6, 7]],
    }  # fmt: skip


def test_steps_are_distances_to_the_next_layer():
    values = np.array([[0.0, 1, 5, 6], [3, 0, 4, 5], [5, 4, 0, 9], [6, 5, 9, 0]])
    assert Network(list("abcd"), values).steps.tolist() == [2, 4, 9]


@pytest.mark.nightly
@pytest.mark.drawn
def test_the_tiny_study(repsim, newest, monkeypatch, tmp_path):
    """A model is trained, the maps of an image of each class are kept, the figure is drawn again from the folder."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    code, _, err = repsim("run", *TINY)
    assert code == 0, err
    folder, run = newest(), recorded(newest())
    read = reader.read_results(folder)
    kept = {name: m for name, m in read.matrices.items() if m.about.get("kind") == FEATURE_MAPS}
    assert list(kept) == ["feature maps of resnet9_tiny_random", "feature maps of resnet9_tiny"]
    matrix = kept["feature maps of resnet9_tiny"]
    assert matrix.rows.layers == list("0123456789")
    shapes = dict(zip(matrix.columns.layers, matrix.about["shapes"], strict=True))
    assert (shapes["conv@0"], shapes["relu@3"], shapes["pool@4"], shapes["norm@7"]) == (
        [16, 16],
        [8, 8],
        [4, 4],
        [2, 2],
    )
    values, images = (reader.read_array(folder, path) for path in (matrix.values, matrix.details["images"]))
    assert values.shape == (10, sum(height * width for height, width in shapes.values()))
    assert images.shape == (10, 16, 16, 3)
    assert 0 <= images.min() < images.max() <= 1
    digits = registry.data.get("digits").function(side=16, channels=3, split="test").read()
    zeros = digits.values[digits.codes == 0] / 16
    assert np.abs(zeros - images[0]).max((1, 2, 3)).min() < 1e-6
    verdicts = {claim["name"]: claim for claim in run["claims"]}
    assert len(verdicts) == 4
    assert {claim["measure"] for claim in verdicts.values()} == {"gromov_wasserstein"}
    trained = next(
        reader.read_array(folder, m["values"])
        for m in run["measures"][0]["matrices"]
        if m["rows"]["model"] == "resnet9_tiny"
    )
    random = next(
        reader.read_array(folder, m["values"])
        for m in run["measures"][0]["matrices"]
        if m["rows"]["model"] == m["columns"]["model"] == "resnet9_tiny_random"
    )
    difference = verdicts["training_separates_the_layers"]["value"]
    assert difference == pytest.approx(np.log(trained.diagonal(1).mean()) - np.log(random.diagonal(1).mean()))
    assert {claim["verdict"] for claim in verdicts.values()} == {"not testable here"}  # one of each
    figure = folder / "figures" / "feature-maps.svg"
    before = figure.read_bytes()
    assert b"4.pool" in before
    assert b"resnet9_tiny_random" in before
    style = Style(width="page", format=("svg",), titles=False)
    (page,) = draw(folder, only=["feature_maps"], into=tmp_path / "page", style=style)
    widths = [float(width) for width in re.findall(rb'<image [^>]*width="([\d.]+)"', page.read_bytes())]
    assert len(widths) == 2 * 28
    assert 0.7 * 6.75 * 72 < sum(widths[:28]) < 6.75 * 72
    figure.unlink()
    assert repsim("plot", str(folder))[0] == 0
    assert figure.read_bytes() == before
    code, _, err = repsim("analyse", str(folder), "+analyses.feature_maps={label: '7'}")
    assert code == 0, err
    assert b"first image of class 7" in figure.read_bytes()
    code, _, err = repsim("analyse", str(folder), "+analyses.feature_maps={label: ship}")
    assert code != 0
    assert "label: no image of this class, got 'ship'; " in err


def test_what_cannot_have_feature_maps(repsim, tmp_path):
    for words, message in [
        (["model=[tiny_a]", "measure=[cka]"], "analyses.feature_maps: needs a model of images, got text; drop it"),
        (["model=[vit_digits]", "data=digits", "measure=[cka]", "extract=pooled", "extract.hook_points=[embed]"],
         "analyses.feature_maps: 4 layers of a model are needed, got 1 of 'vit_digits'; read more"),
    ]:  # fmt: skip
        code, _, err = repsim("run", *words, "+analyses.feature_maps={}")
        assert code == 2
        assert message in err, err
