"""The columns of the table of rows that find their pair in another column of text, by layer."""

from repsim_cli.runs.content import CHANCE

RETRIEVAL, BY_TOKENS, P_AT_MOST = "retrieval", "shared tokens alone", "p, at most"
BY_TEXT = "right text alone"  # of words: a word of the paired text at random
LOW, HIGH = "low", "high"  # of the 95 % interval
RETRIEVAL_COLUMNS = [
    "model", "other model", "from", "to", "layer", RETRIEVAL, LOW, HIGH, "rows", CHANCE, BY_TEXT, BY_TOKENS, P_AT_MOST,
]  # fmt: skip
