"""What reports, files and views ask of a snapshot, known before there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a snapshot copies beside the totals."""

    top: int = 0
    """So many of the largest blocks."""
    min_age_ns: int | None = None
    """Adds ``top`` blocks of at least this age."""
    blocks: bool = False
    """Every outstanding block: 32 bytes each."""
    threads: bool = False
    """Who allocated and who freed."""
    usable: bool = False
    """What the allocator gives for each block; needs the blocks."""
    events: bool = False
    """Every event since the last snapshot that wanted them: for one who asks on and on."""
    objects: bool = False
    """A fresh count of a Python program's objects."""

    def __or__(self, other: Wanted) -> Wanted:
        """Combines two wishes. They may differ in the age only if one has none."""
        return Wanted(
            max(self.top, other.top),
            other.min_age_ns if self.min_age_ns is None else self.min_age_ns,
            self.blocks or other.blocks,
            self.threads or other.threads,
            self.usable or other.usable,
            self.events or other.events,
            self.objects or other.objects,
        )


NOTHING_ELSE: Final = Wanted()
