"""The names of the numbers of a layer, and the columns of their tables."""

OF_LAYER = "layers one by one"
DIMENSION, RANK, ENTROPY, CURVATURE, COSINE = "dimension", "rank", "entropy", "curvature", "cosine"
ALIKE, INFLUENCE, SAME_CLASS, BY_CHANCE = "CKA before", "influence", "same class", "class by chance"
KL_WITHOUT, LOSS_WITHOUT = "KL without", "loss without"
OF_LAYER_COLUMNS = [
    "model", "layer", DIMENSION, RANK, ENTROPY, CURVATURE, COSINE, ALIKE, INFLUENCE, SAME_CLASS, BY_CHANCE, KL_WITHOUT,
    LOSS_WITHOUT,
]  # fmt: skip
BY_SCALE_COLUMNS = ["model", "layer", "k", DIMENSION, f"± {DIMENSION}"]
DOCUMENTS, DOCUMENTS_WITHOUT = "documents", "documents of blocks left out"  # that errors are over
GROUPS = 20  # of documents that are left out one after the other, at most, for the error of the dimension
# the numbers by which layers stand out, and whether as the highest
STANDING_OUT = {DIMENSION: True, CURVATURE: False, SAME_CLASS: True, KL_WITHOUT: False, INFLUENCE: False}
DIFFERENCES_COLUMNS = ["model", "layer", *STANDING_OUT]
