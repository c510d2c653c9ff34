"""Data sources, one file per kind; each makes sequences, as the run's models read them (`base.Data`)."""
