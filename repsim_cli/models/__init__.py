"""Model sources, one file per kind. A source describes a model before any weights are loaded, and loads it."""
