"""A language runtime that manages its own heap."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime with its own heap."""

    name: str
    heap: str
    """Contents of that heap: a clause."""
    advice: str
    """How to inspect it."""
    short_advice: str
    """The advice in a few words."""
    naming: str = ""
    """How to get names of generated code; empty: there is no such code, or no way."""
    collects: bool = True
    """Whether a garbage collector frees blocks late, rather than reference counts."""
    counts_objects: bool = False
    """Whether its objects are counted by type."""
