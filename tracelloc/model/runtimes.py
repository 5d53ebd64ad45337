"""A language runtime that manages a heap of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime with a heap of its own."""

    name: str
    heap: str
    """What is in that heap: a clause."""
    advice: str
    """What shows it."""
    short_advice: str
    """The advice in a few words."""
    naming: str = ""
    """What gives names to the code that it generates; empty: it generates none, or nothing does."""
    collects: bool = True
    """A garbage collector frees blocks late: references are not counted."""
    counts_objects: bool = False
    """Whether its objects are counted by type."""
