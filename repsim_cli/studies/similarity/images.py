"""The feature maps of an image of each class, for the analysis `feature_maps`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from repsim_cli.activations.inputs import name_errors
from repsim_cli.activations.readings import Reading
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.data.base import Sequences
from repsim_cli.data.images import Patches
from repsim_cli.engine.extraction import Extraction
from repsim_cli.models.source import Source
from repsim_cli.runs.content import FEATURE_MAPS, Matrix, Side
from repsim_cli.runs.results import Run
from repsim_cli.studies.similarity.feature_maps import compute_feature_maps


def check_feature_maps(readings: Sequence[Reading]) -> None:
    """Raises BadInput unless a model reads images."""
    if not any(isinstance(r.source, Source) and r.source.modality == "images" for r in readings):
        kinds = sorted({r.source.modality if isinstance(r.source, Source) else "stored activations" for r in readings})
        raise BadInput(f"analyses.feature_maps: needs a model of images, got {', '.join(kinds)}; drop it")


def keep_maps(run: Run, extraction: Extraction, sequences: Mapping[str, Sequences]) -> dict[str, Matrix]:
    """Keeps for every model of images the maps of all layers of the first image of each class, and these images."""
    matrices = {}
    for number, reading in enumerate(extraction.readings):
        source = reading.source
        if not isinstance(source, Source) or source.modality != "images":
            continue
        given, tokenizer = sequences[reading.label], extraction.tokenizers[reading.label]
        assert given.labels is not None
        codes, firsts = np.unique(given.labels.codes, return_index=True)
        pixels = torch.from_numpy(given.inputs[firsts])
        model = name_errors(reading.label, source.load, False)
        maps = compute_feature_maps(model, source, reading.points, pixels, tokenizer.before)
        stem = slug("feature_maps", f"{number:02d}", reading.label)
        values = torch.cat([x.flatten(1) for x in maps], 1).double().numpy()
        classes = [given.labels.names[code] for code in codes]
        matrices[f"feature maps of {reading.label}"] = Matrix(
            rows=Side(model="images", layers=classes),
            columns=Side(model=reading.label, layers=[layer.name for layer in reading.layers]),
            values=run.write_array(stem, values),
            n=len(firsts),
            label="mean over channels",
            details={"images": run.write_array(slug(stem, "images"), restore_pixels(pixels.numpy(), tokenizer))},
            about={"kind": FEATURE_MAPS, "shapes": [list(x.shape[1:]) for x in maps]},
        )
    return matrices


def restore_pixels(pixels: Any, patches: Patches) -> np.ndarray:
    """Images (n, height, width, channels), from 0 to 1, of normalised pixels (n, channels, height, width)."""
    return np.clip(pixels.transpose(0, 2, 3, 1) * patches.std + patches.mean, 0, 1)
