"""The columns of the table of rows that find their pair in another column of text, by layer."""

from repsim_cli.runs.content import CHANCE

RETRIEVAL, BY_TOKENS, P_AT_MOST = "retrieval", "shared tokens alone", "p, at most"
RETRIEVAL_COLUMNS = ["model", "other model", "from", "to", "layer", RETRIEVAL, "rows", CHANCE, BY_TOKENS, P_AT_MOST]
