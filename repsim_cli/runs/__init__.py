"""The run folder: written, read and found; its typed content; the cache of entries that are found by their content."""
