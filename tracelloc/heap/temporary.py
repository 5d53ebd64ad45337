"""Temporary allocations: freed soon after by the allocating thread.

``TemporaryPolicy`` defines "soon": before the thread has made more than so many other allocations,
or within some time. Code with many of them could often avoid them, or reuse one block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_BETWEEN: Final = 64
"""Largest number of other allocations that a policy allows."""


@dataclass(frozen=True, slots=True)
class TemporaryPolicy:
    """What counts as temporary."""

    between: int = 1
    """At most this many other allocations of the thread lie in between."""
    life_ns: int | None = None
    """If given, this counts instead: the block lived at most so long, by the kernel's ticks,
    which are 1 to 10 ms apart."""


DEFAULT_POLICY: Final = TemporaryPolicy()
