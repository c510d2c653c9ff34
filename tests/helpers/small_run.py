"""The words of a run that analyses are tried on."""

SMALL = (
    "model=[tiny_a,tiny_b]", "measure=[cka,rsa,mutual_knn]", "extract.estimate=full", "extract.sequences=8", "extract.rows=200",
    "base=tiny_a", "claims=[falls_with_layer_distance]", "hardware.threads=1",
)  # fmt: skip
