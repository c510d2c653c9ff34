"""What follows from a finished run: one file per topic, from the run folder alone. Needs neither torch nor a model."""
