"""repsim: compare the inside of language models."""

__version__ = "0.1.0"
