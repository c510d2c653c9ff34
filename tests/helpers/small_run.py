"""The words of a run that analyses are tried on."""

SMALL = (
    "model=[tiny_a,tiny_b]", "measure=[cka,rsa,mutual_knn]", "extract.estimate=full", "extract.sequences=8", "extract.rows=200",
    "base=tiny_a", "claims=[falls_with_layer_distance]", "hardware.threads=1",
)  # fmt: skip
# two models under one measure, in batches
TWO_MODELS = (
    "model=[tiny_a,tiny_b]",
    "measure=[cka_unbiased]",
    "extract.length=32",
    "extract.sequences=24",
    "extract.batch_rows=64",
)
