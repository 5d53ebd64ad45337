"""Fixtures of unit tests."""

from tests.unit.stage import stage

__all__ = ["stage"]
