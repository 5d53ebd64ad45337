"""Growth of memory that the traced blocks do not account for: how much, why, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracelloc.model.process import MemoryUsage
from tracelloc.show.presentation.objects import type_suspects, type_title
from tracelloc.show.presentation.processfacts import Account, account
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_percent, format_size

_NOTABLE_BYTES: Final = 2 << 20
"""Least untraced growth to warn of: less may be buffers and pages of code."""


@dataclass(frozen=True, slots=True)
class UntracedGrowth:
    """A process grows mostly by memory that is not in traced blocks."""

    share: float
    """Traced share of the growth."""
    bytes: int
    """Untraced growth."""
    why: str
    advice: str
    short_advice: str

    @property
    def sentence(self) -> str:
        """Returns the whole message, for lines that are long enough."""
        return (
            f"only {format_percent(self.share, 0)} of memory growth is traced, "
            f"{format_size(self.bytes)} are not: {self.why}; {self.advice}"
        )

    @property
    def clause(self) -> str:
        """Returns the message without figures in bytes."""
        return (
            f"only {format_percent(self.share, 0)} of growth traced: {self.why}; "
            f"{self.short_advice}"
        )

    @property
    def short(self) -> str:
        """Returns the message for narrow screens."""
        return f"{format_percent(self.share, 0)} of growth traced: {self.short_advice}"


def untraced_growth(snapshot: Snapshot, found: Account | None = None) -> UntracedGrowth | None:
    """Returns the untraced growth; None if most of the growth is traced or there is little.

    ``found``: the account of the snapshot, if it is known.
    """
    found = account(snapshot) if found is None else found
    memory = snapshot.memory
    if found is None or memory is None or found.is_mostly_traced or found.traced_share is None:
        return None
    share = max(0.0, found.traced_share)
    untraced = round(found.growth_bytes * (1 - share))
    if untraced < _NOTABLE_BYTES:
        return None
    return UntracedGrowth(share, untraced, *_where(snapshot, memory, found, share))


def _where(
    snapshot: Snapshot, memory: MemoryUsage, found: Account, share: float
) -> tuple[str, str, str]:
    """Returns (why it is not traced, advice, short advice)."""
    now, start = memory.now, memory.start
    anonymous = now.anonymous + now.swapped - start.anonymous - start.swapped
    files, shared = now.files - start.files, now.shared - start.shared
    rest = anonymous - round(found.growth_bytes * share)
    if files > max(rest, shared):
        return (
            "pages of mapped files became resident",
            "the kernel can drop them (pmap -X PID)",
            "pages of mapped files",
        )
    if shared > rest:
        return "shared memory has grown", "pmap -X PID shows which", "shared memory (pmap -X PID)"
    if snapshot.runtimes:
        runtime = snapshot.runtimes[0]
        if runtime.counts_objects and (types := type_suspects(snapshot)):
            title = type_title(types[0])
            rate = f"{format_size(round(types[0].bytes_per_min))}/min"
            advice = f"most of it is {title}, {rate} (the view Objects, --show objects)"
            return runtime.heap, advice, f"{title} (O: Objects)"
        return runtime.heap, runtime.advice, runtime.short_advice
    if memory.mapped_bytes is None:
        advice = "--mmap traces mappings"
        return "memory that the program maps itself, thread stacks or fragmentation", advice, advice
    return (
        "fragmentation, caches of the malloc library, thread stacks or an unknown allocator",
        "--allocators FILE names its functions",
        "fragmentation or an unknown allocator",
    )
