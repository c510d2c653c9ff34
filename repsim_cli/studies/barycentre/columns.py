"""The columns of the tables of common shapes."""

FROM_SHAPE, OF_PLACES = "distances from the common shape", "common shapes"
FROM_COLUMNS = ["depth", "model", "layer", "distance", "se", "chance"]
PLACE_COLUMNS = [
    "depth", "mean squared distance", "at least, by pairs", "steps", "rows", "documents", "width",
]  # fmt: skip
GROUPS = 10  # of documents, left out one after the other for the errors of distances
APART = "distances after the common rotation"  # about.kind of a matrix of models
