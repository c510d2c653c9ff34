"""Promises of claims."""

from levels import Promise

PROMISES: list[Promise] = []
