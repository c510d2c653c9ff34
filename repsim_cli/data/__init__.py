"""Data sources, one file per kind; each yields documents, which the run's own tokenizer turns into sequences."""
