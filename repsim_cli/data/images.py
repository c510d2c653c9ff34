"""Labelled images: CIFAR-10, and the handwritten digits that come with scikit-learn. Nothing is unpickled."""

import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path, refuse
from repsim_cli.base.registry import data, did_you_mean
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Data, Labels, Modality, Sequences, draw
from repsim_cli.data.files import find_file, read_npz_arrays
from repsim_cli.data.hub import DataRow, HubTable, read_hub_records, read_parquet_records

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_HUB = HubTable("uoft-cs/cifar10", "plain_text")
CIFAR10_FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE  # bytes of one image in the binary version: its label, then red, green, blue
IMAGE_FILES = ("PNG", "JPEG", "BMP", "GIF", "WEBP")  # formats that Pillow reads itself
SEVENTH = 7  # of the digits, every seventh is held out
COLUMNS = {"images": ("images", "x", "img", "image"), "labels": ("labels", "y", "label")}


@dataclass(frozen=True)
class Patches:
    """How an image model reads an image of size (height, width): tokens as of the class, then patches row by row.

    size: None: any, with a single place.
    before: the number of tokens before the patches.
    mean, std: per channel, of pixels from 0 to 1, for the normalisation.
    """

    size: tuple[int, int] | None
    patch: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    before: int = 1

    @property
    def patches(self) -> int:
        return 1 if self.size is None else (self.size[0] // self.patch[0]) * (self.size[1] // self.patch[1])

    @property
    def places(self) -> int:
        return self.before + self.patches


class Pixels(NamedTuple):
    """Images with values from 0 to `white`, and the codes of their labels."""

    values: Shaped[np.ndarray, "N H W C"]
    codes: Int[np.ndarray, " N"]
    white: int = 255


@dataclass(frozen=True)
class Images(Data):
    """Labelled images, each a sequence of patches; normalised as the model requires, never resized.

    read(): all images.
    names: the labels, in the order of their codes.
    advice: what else can be done where a model reads another shape.
    """

    modality: ClassVar[Modality] = "images"

    read: Callable[[], Pixels]
    names: tuple[str, ...]
    source: str
    advice: str = ""

    @property
    def labelled(self) -> bool:
        return bool(self.names)

    def labels_of_examples(self) -> dict[str, list[str]]:
        return {"label": [self.names[code] for code in self.read().codes]}

    def sequences(self, tokenizer: Patches, extract: Extract, seed: int) -> Sequences:
        pixels, codes, white = self.read()
        wanted = (*(tokenizer.size or pixels.shape[1:3]), tokenizer.channels)
        if pixels.shape[1:] != wanted:
            raise BadInput(
                f"data: images differ in shape from the model's input, got {_say_shape(pixels.shape[1:])} for "
                f"{_say_shape(wanted)} ({self.source}); use a model of that image_size and num_channels{self.advice}"
            )
        drawn = draw(len(pixels), extract.sequences, seed)
        made = arrange_patches(pixels[drawn] / white, drawn, tokenizer, len(pixels))
        return replace(made, labels=Labels(codes[drawn], self.names))


def arrange_patches(
    values: Shaped[np.ndarray, "N H W C"], drawn: Int[np.ndarray, " N"], patches: Patches, documents: int
) -> Sequences:
    """Makes sequences of images with values from 0 to 1. drawn: their numbers among all images. documents: how many
    images there are."""
    shape = (len(drawn), patches.places)
    text = np.ones(shape, bool)
    text[:, : patches.before] = False
    position = np.broadcast_to(np.arange(patches.places) - patches.before, shape)
    normalised = (values - patches.mean) / patches.std
    return Sequences(
        inputs=np.ascontiguousarray(normalised.transpose(0, 3, 1, 2), np.float32),
        mask=np.ones(shape, bool),
        text=text,
        document=np.where(text, drawn[:, None], -1).astype(np.int32),
        position=position.astype(np.int32),
        documents=documents,
        available=documents,
        example=drawn,
    )


def _say_shape(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


@data.register("digits")
def digits(
    *,
    side: Literal[8, 16, 24, 32] = 8,
    channels: Literal[1, 3] = 1,
    split: Literal["all", "train", "test"] = "all",
) -> Images:
    """1797 handwritten digits of 8 x 8 pixels, in grey (Alpaydin and Kaynak 1998), shipped with scikit-learn.

    side: height and width, in pixels; larger images are interpolated linearly.
    channels: 3 repeats the grey values as red, green and blue.
    split: `test` is every seventh image (256), `train` the others (1541).
    """

    def read() -> Pixels:
        from scipy.ndimage import zoom
        from sklearn.datasets import load_digits

        bunch: Any = load_digits()
        test = np.arange(len(bunch.target)) % SEVENTH == SEVENTH - 1
        kept = {"all": np.ones_like(test), "train": ~test, "test": test}[split]
        larger = side // bunch.images.shape[1]
        images: Any = zoom(bunch.images[kept], (1, larger, larger), order=1, mode="nearest", grid_mode=True)
        return Pixels(np.repeat(images[..., None], channels, axis=3), bunch.target[kept], white=16)

    part = "" if split == "all" else f", {split}"
    size = "" if (side, channels) == (8, 1) else f", {_say_shape((side, side, channels))}"
    return Images(read, tuple("0123456789"), f"scikit-learn digits{part}{size}", ", or data.side and data.channels")


@data.register("cifar10")
def cifar10(*, path: str | None = None, split: Literal["train", "test"] = "test") -> Images:
    """60,000 colour images of 32 x 32 pixels in ten classes (Krizhevsky 2009).

    path: a .bin file or the folder of the binary version, an .npz with arrays x (or images) and y (or labels), or a
        .parquet file of the hub's form; null: download from the hub.
    split: which images are read, where the hub or a folder has both.
    """
    if path is None:
        return Images(lambda: _decode(read_hub_records(CIFAR10_HUB, split)), CIFAR10, f"{CIFAR10_HUB.hub}, {split}")
    place = expand_path(path)
    if place.name.endswith(("-batches-py", ".tar.gz", ".pkl")) or any(map(_is_pickled, (place, place / "test_batch"))):
        raise BadInput(
            f"path: the python version is pickled, which can run code, got '{path}'; unpack cifar-10-binary.tar.gz and "
            "name its folder, or save arrays x and y with numpy.savez"
        )
    if place.is_dir():
        files = [find_file(str(place / name), (".bin",)) for name in CIFAR10_FILES[split]]
    else:
        files = [find_file(path, (".bin", ".npz", ".parquet"))]
    readers = {
        ".npz": _read_array_pixels,
        ".parquet": lambda file: _decode(read_parquet_records(file)),
        ".bin": _read_binary_pixels,
    }

    def read() -> Pixels:
        parts = [readers[file.suffix](file) for file in files]
        return Pixels(np.concatenate([p.values for p in parts]), np.concatenate([p.codes for p in parts]))

    # now: everything that is quick to read, and the first image of files that must be decoded
    for file in files:
        _decode(islice(read_parquet_records(file), 1)) if file.suffix == ".parquet" else readers[file.suffix](file)
    return Images(read, CIFAR10, str(place))


def _is_pickled(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return stream.read(1) == b"\x80"


def _read_binary_pixels(file: Path) -> Pixels:
    size = file.stat().st_size
    if not size or size % RECORD:
        raise BadInput(f"{file}: not the binary version, got {size} bytes; a whole number of records of {RECORD}")
    records = np.fromfile(file, np.uint8).reshape(-1, RECORD)
    return _check(records[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), records[:, 0], file)


def _read_array_pixels(file: Path) -> Pixels:
    arrays = read_npz_arrays(file)
    images, labels = (_take_column(arrays, COLUMNS[what], file) for what in ("images", "labels"))
    return _check(images, labels, file, arrays.get("label_names", np.array(CIFAR10)).ravel().tolist())


def _decode(records: Iterable[DataRow]) -> Pixels:
    images, codes, where = [], [], "data"
    for where, fields in records:
        images.append(_decode_image(_take_column(fields, COLUMNS["images"], where), where))
        codes.append(_find_label_code(str(_take_column(fields, COLUMNS["labels"], where)), where))
    return _check(np.array(images), np.array(codes), where)


def _decode_image(value: Any, where: str) -> Shaped[np.ndarray, "H W 3"]:
    """An image file in memory, as the hub stores it. Its size is read before its pixels, which may not fit."""
    import PIL.Image

    content = value.get("bytes") if isinstance(value, dict) else None
    if not isinstance(content, bytes):
        raise BadInput(f"{where}: not an image, got {value!r:.60}; write {{bytes: the image's file}}")
    with (
        refuse(f"{where}: not a complete image", content[:20], f"write one of {', '.join(IMAGE_FILES)}"),
        warnings.catch_warnings(action="ignore", category=PIL.Image.DecompressionBombWarning),
        PIL.Image.open(io.BytesIO(content), formats=IMAGE_FILES) as opened,
    ):
        if opened.size != (SIDE, SIDE):
            raise BadInput(
                f"{where}: an image of a different size, got {_say_shape(opened.size)}; give {SIDE} x {SIDE}"
            )
        return np.asarray(opened.convert("RGB"))


def _take_column(fields: dict[str, Any], names: tuple[str, ...], where: Any) -> Any:
    for name in names:
        if name in fields:
            return fields[name]
    raise BadInput(f"{where}: no column '{names[0]}', got {', '.join(fields)}; name it {' or '.join(names)}")


def _find_label_code(name: str, where: str) -> int:
    if name not in CIFAR10:
        raise BadInput(f"{where}: unknown label, got '{name}'; {did_you_mean(name, CIFAR10)}")
    return CIFAR10.index(name)


def _check(images: np.ndarray, codes: np.ndarray, where: Any, names: Sequence[Any] = CIFAR10) -> Pixels:
    """The images, once they are whole, of bytes and labelled. names: the meaning of the codes, in their order."""
    shape = (SIDE, SIDE, 3)
    if images.ndim != 4 or images.shape[1:] != shape or codes.shape != images.shape[:1] or not len(images):
        raise BadInput(
            f"{where}: not images with labels, got {_say_shape(images.shape)} and {_say_shape(codes.shape)}; "
            f"(n, {_say_shape(shape)}) and n"
        )
    if images.dtype != np.uint8:
        raise BadInput(f"{where}: pixels are not bytes, got {images.dtype}; write uint8 from 0 to 255")
    if codes.dtype.kind not in "iu":
        raise BadInput(f"{where}: labels are not whole numbers, got {codes.dtype}; write integers from 0 to 9")
    unknown = (codes < 0) | (codes >= len(names))
    if unknown.any():
        raise BadInput(f"{where}: unknown label, got {codes[unknown][0]}; labels go from 0 to {len(names) - 1}")
    meant = np.array(
        [_find_label_code(str(name), str(where)) if number in codes else -1 for number, name in enumerate(names)]
    )
    return Pixels(images, meant[codes])
