"""What a provider of source lines gives for an address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """One function that an address belongs to, and the place in it."""

    function: str | None
    """Linkage name as the compiler wrote it; the plain one if it has none."""
    file: str | None
    line: int | None
    """From 1; None for code that belongs to no line."""
    inlined: bool
    """Whether it is not called but part of the next one in the chain."""


Chain = tuple[SourceFrame, ...]
"""Innermost first; the last one is a real function. Empty: nothing is known."""


class ChainProvider(Protocol):
    """Something that knows source lines and inlined functions of one file."""

    @property
    def reason(self) -> str | None:
        """Why it knows less than everything, in words for a person."""

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """One chain per address (the file's own virtual ones). Never raises."""

    def close(self) -> None:
        """Gives back what it holds."""
