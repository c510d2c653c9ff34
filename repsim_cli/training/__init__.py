"""Loops and recipes of training that several studies share."""
