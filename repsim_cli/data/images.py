"""Labelled images: CIFAR-10, and the handwritten digits that come with scikit-learn. Nothing is unpickled."""

import io
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from repsim_cli.data.base import Data, Labels, Modality, Sequences, draw
from repsim_cli.data.hub import HubTable, Record, hub_records, parquet_records
from repsim_cli.data.text import existing
from repsim_cli.errors import BadInput
from repsim_cli.registry import data, did_you_mean
from repsim_cli.settings import Extract

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_HUB = HubTable("uoft-cs/cifar10", "plain_text")
CIFAR10_FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE  # bytes of one image in the binary version: its label, then red, green, blue
COLUMNS = {"images": ("images", "x", "img", "image"), "labels": ("labels", "y", "label")}


@dataclass(frozen=True)
class Patches:
    """How an image model reads an image of size (height, width): a class token, then patches row by row.

    mean, std: per channel, of pixels from 0 to 1; what it subtracts, and then divides by.
    """

    size: tuple[int, int]
    patch: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def places(self) -> int:
        return 1 + (self.size[0] // self.patch[0]) * (self.size[1] // self.patch[1])


class Pixels(NamedTuple):
    """values: from 0 to 1. codes: of the labels."""

    values: Float[np.ndarray, "N H W C"]
    codes: Int[np.ndarray, " N"]


@dataclass(frozen=True)
class Images(Data):
    """Labelled images, one a sequence of patches; they are normalised as the model asks, never resized.

    read(): all of them. names: of the labels, in the order of their codes.
    """

    modality: ClassVar[Modality] = "images"

    read: Callable[[], Pixels]
    names: tuple[str, ...]
    source: str

    def sequences(self, tokenizer: Patches, extract: Extract, seed: int) -> Sequences:
        pixels, codes = self.read()
        wanted = (*tokenizer.size, tokenizer.channels)
        if pixels.shape[1:] != wanted:
            raise BadInput(
                f"data: images of another shape than the model's, got {_by(pixels.shape[1:])} for {_by(wanted)} "
                f"({self.source}); use a model of that image_size and num_channels"
            )
        drawn = draw(len(pixels), extract.sequences, seed)
        values = (pixels[drawn] - tokenizer.mean) / tokenizer.std
        shape = (len(drawn), tokenizer.places)
        text = np.ones(shape, bool)
        text[:, 0] = False  # the class token
        position = np.broadcast_to(np.arange(-1, tokenizer.places - 1), shape)
        return Sequences(
            inputs=np.ascontiguousarray(values.transpose(0, 3, 1, 2), np.float32),
            mask=np.ones(shape, bool),
            text=text,
            document=np.where(text, drawn[:, None], -1).astype(np.int32),
            position=position.astype(np.int32),
            documents=len(pixels),
            example=drawn,
            labels=Labels(codes[drawn], self.names),
        )


def _by(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


@data.register("digits")
def digits() -> Images:
    """1797 handwritten digits of 8 x 8 pixels, in grey (Alpaydin and Kaynak 1998), shipped with scikit-learn."""

    def read() -> Pixels:
        from sklearn.datasets import load_digits

        found: Any = load_digits()
        return Pixels(found.images[..., None] / 16.0, found.target)

    return Images(read, tuple("0123456789"), "scikit-learn digits")


@data.register("cifar10")
def cifar10(*, path: str | None = None, split: Literal["train", "test"] = "test") -> Images:
    """60000 images of 32 x 32 pixels, in colour (Krizhevsky 2009).

    path: a .bin file or the folder of the binary version, an .npz with arrays x (or images) and y (or labels), a
    .parquet of the hub's; null: the hub.
    """
    if path is None:
        return Images(lambda: _decoded(hub_records(CIFAR10_HUB, split)), CIFAR10, f"{CIFAR10_HUB.hub}, {split}")
    place = Path(path).expanduser()
    if "python" in place.name or place.name.endswith(("-batches-py", ".tar.gz", ".pkl")) or _pickled(place):
        raise BadInput(
            f"path: the python version is pickled, which can run code, got '{path}'; unpack cifar-10-binary.tar.gz and "
            "name its folder, or save arrays x and y with numpy.savez"
        )
    if place.is_dir():
        files = [existing(str(place / name), (".bin",)) for name in CIFAR10_FILES[split]]
    else:
        files = [existing(path, (".bin", ".npz", ".parquet"))]
    readers = {".npz": _arrays, ".parquet": lambda file: _decoded(parquet_records(file)), ".bin": _binary}

    def read() -> Pixels:
        parts = [readers[file.suffix](file) for file in files]
        return Pixels(np.concatenate([p.values for p in parts]), np.concatenate([p.codes for p in parts]))

    return Images(read, CIFAR10, str(place))


def _pickled(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return stream.read(1) == b"\x80"


def _binary(file: Path) -> Pixels:
    size = file.stat().st_size
    if not size or size % RECORD:
        raise BadInput(f"{file}: not the binary version, got {size} bytes; a whole number of records of {RECORD}")
    records = np.fromfile(file, np.uint8).reshape(-1, RECORD)
    return _checked(records[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), records[:, 0], file)


def _arrays(file: Path) -> Pixels:
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"{file}: not a whole .npz file of numbers, got '{error}'; write it again") from None
    images, labels = (_one_of(arrays, COLUMNS[what], file) for what in ("images", "labels"))
    names = arrays.get("label_names")
    if names is not None and labels.size and labels.min() >= 0 and labels.max() < len(names):
        labels = np.array([_code(str(names[i]), str(file)) for i in labels])
    return _checked(images, labels, file)


def _decoded(records: Iterable[Record]) -> Pixels:
    import PIL.Image

    images, codes, where = [], [], "data"
    for where, fields in records:
        image = _one_of(fields, COLUMNS["images"], where)
        with PIL.Image.open(io.BytesIO(image["bytes"])) as opened:
            images.append(np.asarray(opened.convert("RGB")))
        codes.append(_code(str(_one_of(fields, COLUMNS["labels"], where)), where))
    if len({image.shape for image in images}) > 1:
        raise BadInput(f"{where}: images of several shapes, got {_by(images[0].shape)} first; give one shape")
    return _checked(np.array(images), np.array(codes), where)


def _one_of(fields: dict[str, Any], names: tuple[str, ...], where: Any) -> Any:
    for name in names:
        if name in fields:
            return fields[name]
    raise BadInput(f"{where}: no column '{names[0]}', got {', '.join(fields)}; name it {' or '.join(names)}")


def _code(name: str, where: str) -> int:
    if name not in CIFAR10:
        raise BadInput(f"{where}: unknown label, got '{name}'; {did_you_mean(name, CIFAR10)}")
    return CIFAR10.index(name)


def _checked(images: np.ndarray, codes: np.ndarray, where: Any) -> Pixels:
    """Whole images with labels, as float from 0 to 1."""
    shape = (SIDE, SIDE, 3)
    if images.ndim != 4 or images.shape[1:] != shape or len(images) != len(codes) or not len(images):
        raise BadInput(
            f"{where}: not images with labels, got {_by(images.shape)} and {_by(codes.shape)}; (n, {_by(shape)}) and n"
        )
    if images.dtype != np.uint8:
        raise BadInput(f"{where}: pixels are not bytes, got {images.dtype}; write uint8 from 0 to 255")
    codes = codes.astype(np.int64)
    if codes.min() < 0 or codes.max() >= len(CIFAR10):
        raise BadInput(f"{where}: unknown label, got {codes[(codes < 0) | (codes > 9)][0]}; labels go from 0 to 9")
    return Pixels(images / 255.0, codes)
