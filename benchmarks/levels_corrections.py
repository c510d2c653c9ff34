"""Promises of corrections."""

from levels import Promise

PROMISES: list[Promise] = []
