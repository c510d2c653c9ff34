"""Matrices between models with planted groups."""


def models(*sizes):
    return {"abcd"[g]: [f"{'abcd'[g]}{i}" for i in range(size)] for g, size in enumerate(sizes)}


def symmetric(rng, count, layers=1):
    values = rng.normal(size=(count, count, layers))
    return values + values.transpose(1, 0, 2)


def planted(rng, layers=4, apart=0.5):
    """Distances of five and five models whose groups part in the last layer."""
    values = 1 + 0.05 * symmetric(rng, 10, layers)
    values[:5, 5:, -1] += apart
    values[5:, :5, -1] += apart
    return values
