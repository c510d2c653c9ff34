"""What is done about rows and features that outweigh the others: by name, and in words."""

from collections.abc import Callable, Mapping
from typing import Any

# of rows or features that outweigh the others
ALL_REMEDIES = ("skip", "skip_tokens", "drop_features", "normalise")
NORMALISED = {
    "features": "features at unit variance",
    "directions": "no direction above 5 % of the variance",
    "rows": "rows at unit norm",
}
REMEDIED: dict[str, Callable[[Any], str]] = {
    "skip": lambda places: f"without the first {places} places",
    "skip_tokens": lambda names: f"without {', '.join(names)}",
    "drop_features": lambda share: f"without features above {share:g} of the variance",
    "normalise": lambda name: NORMALISED.get(name, f"normalise {name}"),
}


def say_treatment(remedies: Mapping[str, Any]) -> str:
    """Says what was done to the rows before they were compared, from `Extract.remedies`; empty where it was nothing.

    >>> say_treatment({"normalise": "features", "skip": 4})
    'without the first 4 places; features at unit variance'
    """
    return "; ".join(said(remedies[key]) for key, said in REMEDIED.items() if key in remedies)


# by name, those that the analysis `robustness` tries
REMEDIES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "skip 4": {"skip": 4},
    "features": {"normalise": "features"},
    "directions": {"normalise": "directions"},
    "rows": {"normalise": "rows"},
    "skip 4, features": {"skip": 4, "normalise": "features"},
    "skip 4, directions": {"skip": 4, "normalise": "directions"},
    "drop 0.05, skip 4": {"drop_features": 0.05, "skip": 4},
}
