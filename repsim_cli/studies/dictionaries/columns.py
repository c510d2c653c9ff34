"""The names of the numbers of a dictionary in a model, and the columns of their table."""

IN_MODELS = "dictionaries in models"
SAID, SHUFFLED, MEAN = "dictionary", "shuffled", "mean"  # what stands in for a layer's rows
EXPLAINED, RECOVERED, MORE, DIVERGENCE = "explained", "recovered", "loss more", "KL"
ACTIVE, DEAD, BY_SHUFFLED, FROM_BASE = "active", "dead", "shuffled", "minus base"
FREEDOM = "degrees of freedom"  # of errors
COLUMNS = [
    "model", "dictionary", "layer", "documents", FREEDOM, EXPLAINED, f"± {EXPLAINED}", f"{EXPLAINED} {BY_SHUFFLED}",
    RECOVERED, f"± {RECOVERED}", f"{RECOVERED} {BY_SHUFFLED}", MORE, f"± {MORE}", DIVERGENCE, ACTIVE, DEAD,
    f"{EXPLAINED} {FROM_BASE}", f"± {EXPLAINED} {FROM_BASE}", f"{RECOVERED} {FROM_BASE}", f"± {RECOVERED} {FROM_BASE}",
]  # fmt: skip

OF_SIDES, OF_LATENTS, NORMS = "what a crosscoder says of each side", "latents of a crosscoder", "decoder norms"
SIDES_COLUMNS = ["side", "model", "layer", "explained", "± explained", "explained shuffled", "rows", "documents"]
LATENTS_COLUMNS = ["of", "latents", "share", "never active", "active on a row", "in the errors of others",
                   "from the others' rows", "by chance, at most"]  # fmt: skip
ALL_SIDES, BETWEEN_SIDES = "all sides", "between"
