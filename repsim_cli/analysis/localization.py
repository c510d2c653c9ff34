"""From maps over all layers of all models to a number per layer: means over the other layers, localization, and
similarity to the same layer of a base model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

Places = Mapping[str, slice]


def other_means(values: Float[np.ndarray, "r r"]) -> dict[str, Float[np.ndarray, " r"]]:
    """Of every layer the mean of its row (its own neurons, followed by the others') and of its column (the others'
    neurons, followed by its own) over all other layers: of the other models and of its own, without itself.

    >>> found = other_means(np.array([[1.0, 0.2, 0.4], [0.6, 1.0, 0.8], [0.0, 0.1, 1.0]]))
    >>> found["row"].round(6).tolist(), found["column"].round(6).tolist()
    ([0.3, 0.7, 0.05], [0.3, 0.15, 0.6])
    """
    others = len(values) - 1
    own = values.diagonal()
    return {"row": (values.sum(1) - own) / others, "column": (values.sum(0) - own) / others}


def localization(
    neurons: Float[np.ndarray, "r r"], spread: Float[np.ndarray, "r r"]
) -> dict[str, Float[np.ndarray, " r"]]:
    """Means of a measure of single neurons minus those of a measure of whole representations (Wu et al. 2020, section
    5.1: neuronsim minus svsim). Higher: more of what a layer shares with others is in single neurons."""
    localized, distributed = other_means(neurons), other_means(spread)
    return {way: localized[way] - distributed[way] for way in localized}


def to_base(values: Float[np.ndarray, "r r"], places: Places, base: str) -> dict[str, Float[np.ndarray, " l"]]:
    """Of every model as deep as the base: the similarity of its layers with the same layers of the base, the base's
    layer explained by the model's."""
    own = places[base]
    return {
        label: values[own, place].diagonal()
        for label, place in places.items()
        if label != base and place.stop - place.start == own.stop - own.start
    }


def curve(label: str, ways: Mapping[str, np.ndarray], places: Places, names: list[str]) -> dict[str, Any]:
    """One number per layer and way, as results.json keeps it."""
    return {
        "label": label,
        "by_layer": {
            model: {
                "layers": names[place],
                **{way: [float(value) for value in values[place]] for way, values in ways.items()},
            }
            for model, place in places.items()
        },
    }


def base_curve(label: str, found: Mapping[str, np.ndarray], base: str, names: list[str]) -> dict[str, Any]:
    """Similarity to the base by layer, as results.json keeps it."""
    return {
        "label": f"{label} with {base}",
        "base": base,
        "by_layer": {
            model: {"layers": names, "same layer": [float(value) for value in values]}
            for model, values in found.items()
        },
    }
