"""Comparison from Python: the models and texts of a program, hub ids or folders -> a result with labelled matrices."""
