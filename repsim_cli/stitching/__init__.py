"""Stitched models: the first blocks of one, a stitch layer, the last blocks of another."""
