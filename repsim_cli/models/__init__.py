"""Model sources, one file per kind. A source answers for a model before any weight loads, and loads it."""
