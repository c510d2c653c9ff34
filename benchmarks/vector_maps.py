"""Planted rotations with noise: what maps recover, against closed forms and the true rotation.

    python benchmarks/vector_maps.py

Rows are Gaussian, of 64 numbers; the new rows are a rotation of them, moved, with independent noise in every number.
1000 rows are fitted, 1000 held out; means over 5 draws. R^2 of least squares has an exact expectation, that of the
rotation one to the first order in the noise; the neighbours that can be found are those that the true rotation finds.
"""

import numpy as np

from repsim_cli.studies.vectors.fits import KINDS, centre_pair
from repsim_cli.studies.vectors.scores import MAIN, hold_out, score_mapped_rows

D, N, DRAWS = 64, 1000, 5
NOISE = (0.0, 0.1, 0.3, 0.6, 1.0)


def drawn(noise: float, seed: int) -> dict[str, tuple[float, float]]:
    """R^2 and recall at 10 by kind of map, and by the true rotation."""
    rng = np.random.default_rng(seed)
    x, turn = rng.normal(size=(2 * N, D)), np.linalg.qr(rng.normal(size=(D, D)))[0]
    y = x @ turn + 2 + noise * rng.normal(size=x.shape)
    given, out, mean = centre_pair(x[:N], y[:N]), hold_out(x[N:], y[N:], np.arange(N)), y[:N].mean(0)
    mapped = {kind: KINDS[kind](given, D // 4)(out.x) for kind in KINDS} | {"true": out.x @ turn + 2}
    found = {kind: score_mapped_rows(out, rows, mean) for kind, rows in mapped.items()}
    return {kind: (of["R^2"].value, of[MAIN].value) for kind, of in found.items()}


def expected(kind: str, noise: float) -> float:
    s = noise**2
    errors = {"affine": s * (N + 1) * (N - 2) / (N * (N - D - 2)), "rotation": s * (1 + (D - 1) / (2 * N) + 1 / N)}
    return 1 - errors[kind] / ((1 + s) * (1 + 1 / N))


def main() -> None:
    print("noise  map       R^2     closed form  recall@10  true rotation")
    for noise in NOISE:
        draws = [drawn(noise, seed) for seed in range(DRAWS)]
        true = np.mean([draw["true"][1] for draw in draws])
        for kind in KINDS:
            r2, recall = np.mean([draw[kind] for draw in draws], axis=0)
            form = f"{expected(kind, noise):.4f}" if kind in ("affine", "rotation") else "-"
            print(f"{noise:5}  {kind:8}  {r2:.4f}  {form:11}  {recall:9.3f}  {true:.3f}")


if __name__ == "__main__":
    main()
