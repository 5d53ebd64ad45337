"""What has come since a moment that the user marked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelloc.snapshots.analysis import change
from tracelloc.snapshots.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class StackChange:
    """What one stack has more."""

    stack: int
    live_bytes: int
    live_count: int
    """May be negative: fewer, but larger blocks."""


@dataclass(frozen=True, slots=True)
class SinceMark:
    """All that has changed; outstanding figures may be negative."""

    elapsed_ns: int
    live_bytes: int
    live_count: int
    allocated_bytes: int
    freed_bytes: int
    growing: int
    """Stacks that hold more bytes."""
    top: tuple[StackChange, ...]
    """Those that hold most more, the largest first."""


def since_mark(snapshot: Snapshot, mark: Snapshot | None, top: int) -> SinceMark | None:
    """None without a mark, and where the process has begun another program since."""
    if mark is None or mark.target.exec_count != snapshot.target.exec_count:
        return None
    changed = change(mark, snapshot)
    more = np.flatnonzero(changed.live_bytes > 0)
    largest = more[np.lexsort((more, -changed.live_bytes[more]))][:top].tolist()
    return SinceMark(
        elapsed_ns=changed.elapsed_ns,
        live_bytes=int(changed.live_bytes.sum()),
        live_count=int(changed.live_count.sum()),
        allocated_bytes=int(changed.allocated_bytes.sum()),
        freed_bytes=int(changed.freed_bytes.sum()),
        growing=len(more),
        top=tuple(
            StackChange(row, int(changed.live_bytes[row]), int(changed.live_count[row]))
            for row in largest
        ),
    )
