"""Studies: short linear recipes from settings to results. Each is imported when it runs."""
