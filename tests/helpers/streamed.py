"""Measures of second moments."""

from repsim_cli import measures

STREAMED = [name for name in measures.names() if measures.get(name).moments]
