"""Images with captions: files and their content, the same pairs for both kinds of models, planted agreement, errors."""

import csv
import io

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract
from repsim_cli.data.captions import captions, read_picture
from repsim_cli.data.images import Patches
from repsim_cli.runs import reader

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "white": (240, 240, 240), "black": (5, 5, 5),
           "yellow": (230, 220, 10)}  # fmt: skip
PATCHES = Patches((32, 32), (4, 4), 3, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
RUN = ("run", "-q", "study=similarity", "data=captions", "extract=pooled", "measure=[cka_unbiased,mutual_knn]",
       "measure.mutual_knn.k=15", "model=[vit_cifar10,tiny_a]", "extract.layers=[0,2]", "hardware.threads=1")  # fmt: skip


def picture(colour, seed, size=(40, 30)):
    """An image of a colour with some noise, as the content of a file."""
    noise = np.random.default_rng(seed).normal(0, 12, (size[1], size[0], 3))
    content = io.BytesIO()
    PIL.Image.fromarray(np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8)).save(content, "PNG")
    return content.getvalue()


def pairs(count=96):
    """Colours, and captions that say them."""
    names = [list(COLOURS)[i % len(COLOURS)] for i in range(count)]
    return names, [f"This is a picture of a {name} {name} {name} wall." for name in names]


def write_csv(folder, names, said):
    (folder / "pictures").mkdir()
    with (folder / "pairs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption"])
        for i, (name, caption) in enumerate(zip(names, said, strict=True)):
            (folder / "pictures" / f"{i}.png").write_bytes(picture(name, i))
            writer.writerow([f"pictures/{i}.png", caption])
    return folder / "pairs.csv"


def test_files_and_contents_are_the_same_images(tmp_path):
    names, said = pairs(6)
    table = write_csv(tmp_path, names, said)
    contents = [{"bytes": picture(name, i), "path": None} for i, name in enumerate(names)]
    pq.write_table(pa.table({"photo": contents, "text": said}), tmp_path / "pairs.parquet")
    extract = Extract(hook_points=["resid_post"], unit="mean", sequences=4)
    one = captions(path=str(table)).sequences(PATCHES, extract, 0)
    other = captions(path=str(tmp_path / "pairs.parquet"), image="photo", caption="text").sequences(PATCHES, extract, 0)
    np.testing.assert_array_equal(one.inputs, other.inputs)
    assert one.inputs.shape == (4, 3, 32, 32)
    assert one.text.shape == (4, 1 + 64)
    assert (~one.text[:, 0]).all()


def test_an_image_is_read_at_the_size_and_in_the_colours_of_a_model(tmp_path):
    table = write_csv(tmp_path, ["red"], ["a red one"])
    (first,) = captions(path=str(table)).pictures
    values = read_picture(first, PATCHES)
    assert values.shape == (32, 32, 3)
    np.testing.assert_allclose(values.mean((0, 1)) * 255, COLOURS["red"], atol=4)
    grey = read_picture(first, Patches((8, 16), (4, 4), 1, (0.0,), (1.0,)))
    assert grey.shape == (8, 16, 1)


@pytest.mark.parametrize("paired", [True, False])
def test_planted_agreement_is_found_and_wrong_captions_have_none(repsim, newest, tmp_path, paired):
    names, said = pairs()
    if not paired:
        said = [said[i] for i in np.random.default_rng(0).permutation(len(said))]
    code, _, err = repsim(*RUN, f"data.path={write_csv(tmp_path, names, said)}")
    assert code == 0, err
    cka, knn = reader.read_results(newest()).measures
    for measured, least, most in ((cka, 0.3, 0.1), (knn, 0.6, 0.3)):
        (across,) = (each for each in measured.matrices if each.rows.model != each.columns.model)
        value = reader.read_array(newest(), across.values).max()
        assert value > least if paired else value < most, measured.name


def test_rows_without_a_caption_are_left_out_of_both(repsim, newest, tmp_path):
    names, said = pairs(40)
    said[3] = said[7] = " "
    code, _, err = repsim(*RUN, f"data.path={write_csv(tmp_path, names, said)}")
    assert code == 0, err
    assert reader.read_results(newest()).measures[0].matrices[0].n == 38


def test_what_is_refused(repsim, tmp_path):
    table = write_csv(tmp_path, ["red", "blue"], ["one", "two"])
    with pytest.raises(BadInput, match=r"line 2: no column 'photo', got .*; set data.image"):
        captions(path=str(table), image="photo")
    table.write_text("image,caption\nnone.png,a\n")
    with pytest.raises(BadInput, match="line 2: no such image, got 'none.png'; write files relative to"):
        captions(path=str(table))
    (tmp_path / "none.png").write_text("no image")
    broken = captions(path=str(table))
    with pytest.raises(BadInput, match="line 2: not a complete image"):
        read_picture(broken.pictures[0], PATCHES)
    code, _, err = repsim(*RUN, f"data.path={table}", "extract=words")
    assert code == 2
    assert "extract.unit: words need text" in err
    assert "use extract=pooled" in err
    code, _, err = repsim(*RUN, f"data.path={table}", "extract=tokens")
    assert code == 2
    assert "model: tokenizers differ" in err
