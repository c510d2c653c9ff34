"""A measure: how often two representations agree on the signs of their rows' sums."""

from repsim_cli import register_measure


@register_measure(
    "overlap_of_signs",
    larger_is_closer=True,
    label="Overlap of signs",
    bounds=(0.0, 1.0),
    symmetric=True,
    invariant_to={"permutation_of_neurons", "isotropic_scaling"},
    source="this package",
)
def overlap_of_signs(x, y, *, above: float = 0.0):
    """Share of rows whose sums are on the same side.

    above: the border.
    """
    return ((x.sum(1) > above) == (y.sum(1) > above)).double().mean()
