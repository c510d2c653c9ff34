"""Promises of nulls."""

from levels import Promise

PROMISES: list[Promise] = []
