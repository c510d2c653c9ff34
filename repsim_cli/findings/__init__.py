"""The frame of analyses, and those of any map: from the run folder alone. Needs neither torch nor a model."""
