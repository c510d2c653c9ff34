"""Promises of universality."""

from levels import Promise

PROMISES: list[Promise] = []
