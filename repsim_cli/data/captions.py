"""Images with captions: models of images read the images, models of text the captions, the same pairs for all."""

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Shaped

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path, refuse
from repsim_cli.base.registry import data
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Data, Modality, Sequences, draw
from repsim_cli.data.files import decode_cell, find_file
from repsim_cli.data.images import IMAGE_FILES, Patches, arrange_patches
from repsim_cli.data.labelled import Example, Examples
from repsim_cli.data.table import SUFFIXES, Column, open_table

MOST = 100_000_000  # pixels of an image


class Picture(NamedTuple):
    """where: its place, for error messages. given: its file, or the content of that."""

    where: str
    given: Path | bytes


@dataclass(frozen=True)
class Captions(Data):
    """Pairs of an image and a caption. Images are resized to what a model reads, whatever their shape, uncropped."""

    modality: ClassVar[Modality] = "text"

    pictures: tuple[Picture, ...]
    captions: Examples
    source: str

    @property
    def modalities(self) -> frozenset[Modality]:
        return frozenset({"text", "images"})

    def sequences(self, tokenizer: Any, extract: Extract, seed: int) -> Sequences:
        if not isinstance(tokenizer, Patches):
            return self.captions.sequences(tokenizer, extract, seed)
        if tokenizer.size is None:
            raise BadInput(
                f"data: images of one size are needed, got a model of any ({self.source}); use another model"
            )
        drawn = draw(len(self.pictures), extract.sequences, seed)
        values = np.stack([read_picture(self.pictures[i], tokenizer) for i in drawn])
        return arrange_patches(values, drawn, tokenizer, len(self.pictures))


@data.register("captions")
def captions(
    *,
    path: str,
    image: Column = "image",
    caption: Column = "caption",
    split: str = "train",
    subset: str | None = None,
) -> Captions:
    """Images with captions: an image model reads the images, a text model the captions, a row for each pair.

    Rows without a caption are left out and counted. Give each image once: two captions of one image are not independent
    rows.

    path: a .csv, .tsv, .jsonl or .parquet file, a folder written by `Dataset.save_to_disk`, or the id of a data set on
        the hub.
    image: the column of the images: a file (relative to the table's folder), or its content.
    caption: the column of the captions.
    split: of a folder or data set with splits.
    subset: the configuration of a data set on the hub; null: its default.
    Example: repsim run model=[] +model.eye='{kind: transformers, path: DIR}' +model.tongue='{kind: transformers, path:
        DIR}' data=captions data.path=FILE extract=pooled measure=[mutual_knn,cka_unbiased]
    """
    columns = {"image": image, "caption": caption}
    source, rows = open_table(path, columns, None, None, None, split, subset)
    folder = find_file(path, SUFFIXES).parent if expand_path(path).is_file() else Path()
    pictures, texts, empty = [], [], 0
    for where, fields in rows:
        for key, column in columns.items():
            if fields is None or column not in fields:
                known = ", ".join(map(repr, fields or ()))
                raise BadInput(f"{where}: no column '{column}', got {known:.160}; set data.{key}")
        assert fields is not None
        said = decode_cell(fields[caption], where, caption)
        if not isinstance(said, str) or not said.strip():
            empty += 1
            continue
        pictures.append(_find_picture(fields[image], where, folder))
        texts.append(Example((said,), None))
    if not pictures:
        raise BadInput(f"{source}: no image with a caption, got {empty} rows without a caption; set data.caption")
    left_out = ["an empty caption"] * empty
    return Captions(tuple(pictures), Examples(lambda: iter([*texts, *left_out]), (), source), source)


def _find_picture(value: Any, where: str, folder: Path) -> Picture:
    """Finds the file of an image, or its content, in what a cell holds."""
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return Picture(where, value)
    if not isinstance(value, str) or not value:
        raise BadInput(f"{where}: not an image, got {value!r:.60}; write its file, or its content as bytes")
    file = folder / Path(value).expanduser()
    if not file.is_file():
        raise BadInput(f"{where}: no such image, got '{value}'; write files relative to {folder or Path()}")
    return Picture(where, file)


def read_picture(picture: Picture, patches: Patches) -> Shaped[np.ndarray, "H W C"]:
    """Reads an image at the size and with the channels of a model, with values from 0 to 1."""
    import PIL.Image

    assert patches.size is not None
    opened_from = io.BytesIO(picture.given) if isinstance(picture.given, bytes) else picture.given
    shown = picture.given[:20] if isinstance(picture.given, bytes) else str(picture.given)
    with (
        refuse(f"{picture.where}: not a complete image", shown, f"write one of {', '.join(IMAGE_FILES)}"),
        warnings.catch_warnings(action="ignore", category=PIL.Image.DecompressionBombWarning),
        PIL.Image.open(opened_from, formats=IMAGE_FILES) as opened,
    ):
        if opened.width * opened.height > MOST:
            raise BadInput(
                f"{picture.where}: too large an image, got {opened.width} x {opened.height}; make it smaller"
            )
        pixels = opened.convert("L" if patches.channels == 1 else "RGB")
        height, width = patches.size
        values = np.asarray(pixels.resize((width, height), PIL.Image.Resampling.BICUBIC), np.float64) / 255
    return values[..., None] if values.ndim == 2 else values
