"""The parts of a snapshot that reports, files and views request before it is taken."""

from __future__ import annotations

from typing import Final

from tracelloc.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """The parts that a snapshot copies in addition to the totals."""

    top: int = 0  # Number of the largest blocks
    min_age_ns: int | None = None  # Adds `top` blocks of at least this age
    blocks: bool = False  # Every outstanding block: 32 bytes each
    threads: bool = False  # Figures of allocating and freeing threads
    usable: bool = False  # Usable sizes of all blocks; requires `blocks`
    objects: bool = False  # A recent census of objects

    def __or__(self, other: SnapshotRequest) -> SnapshotRequest:
        """Combines two requests. Their minimum ages may differ only if one request has none."""
        return SnapshotRequest(
            max(self.top, other.top),
            other.min_age_ns if self.min_age_ns is None else self.min_age_ns,
            self.blocks or other.blocks,
            self.threads or other.threads,
            self.usable or other.usable,
            self.objects or other.objects,
        )

    def covers(self, other: SnapshotRequest) -> bool:
        """Returns whether a snapshot with these parts also has all parts of the other request."""
        return self | other == self


TOTALS_ONLY: Final = SnapshotRequest()
