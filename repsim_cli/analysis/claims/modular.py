"""Models 0, E and L of Gao et al. 2024 among those of a run."""

from collections.abc import Iterable


def of_letter(letter: str, labels: Iterable[str]) -> str | None:
    """The first model with this letter as a part of its label.

    >>> of_letter("l", ["modsum_e", "modsum_tiny_l", "modsum_l_published"])
    'modsum_tiny_l'
    """
    return next((label for label in labels if letter in label.split("_")), None)
