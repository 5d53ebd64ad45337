"""The high-water mark: what was outstanding when most was, and of which stacks it was.

It is found in the order of events, not at the ends of batches: an allocation counts from
its return, a free from its call. A block that is being resized counts as freed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelloc.heap.blocks import U64
from tracelloc.heap.chunk import Chunk
from tracelloc.heap.ends import Ends
from tracelloc.heap.totals import Totals

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Peak:
    """One moment. Columns are by stack; stacks that came later are missing at the end."""

    time_ns: int
    """CLOCK_MONOTONIC, at the kernel's last tick."""
    size_bytes: int
    """Outstanding bytes of all stacks."""
    live_bytes: I64
    live_count: I64
    """As in ``Totals``: in parts of blocks if they were sampled."""


class PeakFinder:
    """Follows what is outstanding event by event. Not thread safe."""

    def __init__(self) -> None:
        self.peak: Peak | None = None
        """None before the first event."""

    def begin(self, totals: Totals, time_ns: int) -> None:
        """Begins with what is outstanding now."""
        held = totals.live_bytes
        self.peak = Peak(time_ns, int(held.sum()), held, totals.live_count)

    def look(self, totals: Totals, chunk: Chunk, ends: Ends) -> None:
        """Looks for a higher peak in some events. ``totals``: after them.

        Where events are not in order, only what is outstanding after them is looked at.
        """
        live_bytes = totals.live_bytes
        size_bytes = int(live_bytes.sum())
        highest = 0 if self.peak is None else self.peak.size_bytes
        # Nothing can have been outstanding but what is now, and what was freed here.
        freed = int(totals.bytes_of(ends.size).sum()) if chunk.in_order else 0
        if self.peak is not None and size_bytes + freed <= highest:
            return
        row = len(chunk) - 1
        sizes = None
        if chunk.in_order:
            sizes = _steps(chunk, ends, totals.bytes_of)
            held = np.cumsum(sizes)
            row = int(held.argmax())
            size_bytes += int(held[row] - held[-1])
        if self.peak is not None and size_bytes <= highest:
            return
        live_count = totals.live_count
        if sizes is not None:
            # Back from the end: what happened after the peak is undone.
            later = slice(row + 1, None)
            stack = np.zeros(len(chunk), np.uint32)
            stack[chunk.made], stack[ends.row] = chunk.made_stack, ends.stack
            for restored_row, block in chunk.restored.items():
                stack[restored_row] = block.stack[0]
            np.subtract.at(live_bytes, stack[later], sizes[later])
            np.subtract.at(live_count, stack[later], _steps(chunk, ends, totals.parts_of)[later])
        self.peak = Peak(int(chunk.time_ns[row]), size_bytes, live_bytes, live_count)


def _steps(chunk: Chunk, ends: Ends, value_of: Callable[[U64], I64]) -> I64:
    """By how much each event changes what is outstanding. ``value_of``: sizes' worth."""
    steps = np.zeros(len(chunk), np.int64)
    steps[chunk.made] = value_of(chunk.size.take(chunk.made))
    steps[ends.row] = -value_of(ends.size)
    for row, block in chunk.restored.items():
        steps[row] = value_of(block.size)[0]
    return steps
