"""What is learnt from the ends of blocks, beyond that they are gone.

Which of them were temporary, which were freed by another thread, which thread did how
much, and when most was outstanding.
"""

from __future__ import annotations

import numpy as np

from tracelloc.heap.blocks import U32, U64, Blocks, Mask
from tracelloc.heap.chunk import Chunk
from tracelloc.heap.ends import Ends
from tracelloc.heap.peak import PeakFinder
from tracelloc.heap.temporary import SOON, Soon, TemporaryFinder
from tracelloc.heap.threads import ThreadBook
from tracelloc.heap.totals import Totals


class Lives:
    """The lives of one address space's blocks. Not thread safe."""

    def __init__(self, totals: Totals, soon: Soon = SOON) -> None:
        """``totals``: where temporary and remotely freed blocks are counted by stack."""
        self.soon = soon
        self.threads = ThreadBook()
        self.peaks = PeakFinder()
        self.unordered_count = 0
        """Blocks of which it is not known whether they were temporary, as they came by
        while the ring was full; in parts if blocks are sampled."""
        self._totals = totals
        self._temporary = TemporaryFinder(soon)

    def note(self, chunk: Chunk, ends: Ends) -> Mask:
        """Takes in some events, after the totals have. Returns which ends were temporary."""
        totals, threads = self._totals, self.threads
        thread = threads.rows(chunk.tid)
        made_size = chunk.size.take(chunk.made)
        threads.allocate(thread.take(chunk.made), totals.amount_of(made_size))
        threads.free(thread.take(ends.row), totals.amount_of(ends.size))
        remote = np.flatnonzero(ends.is_remote)
        if len(remote):
            self._pass_on(
                ends.stack[remote],
                ends.size[remote],
                ends.maker[remote],
                chunk.tid[ends.row[remote]],
            )
        if chunk.in_order or not self._temporary.needs_order:
            temporary = self._temporary.find(chunk, ends, thread, threads.count)
            at = np.flatnonzero(temporary)
            totals.note_temporary(ends.stack.take(at), ends.size.take(at))
        else:
            temporary = np.zeros(len(ends), np.bool_)
            unknown = self._temporary.forget(chunk, ends, thread)
            for sizes in (made_size, ends.size[unknown]):
                self.unordered_count += int(totals.parts_of(sizes).sum())
        self.peaks.look(totals, chunk, ends)
        return temporary

    def _pass_on(self, stack: U32, size: U64, maker: U32, ender: U32, sign: int = 1) -> None:
        rows = self.threads.rows
        self._totals.note_remote(stack, size, sign)
        self.threads.pass_on(rows(maker), rows(ender), self._totals.amount_of(size), sign)

    def take_back(self, block: Blocks, ender: int, *, temporary: bool) -> None:
        """The end of this block, by a resize of this thread, was none."""
        enders = np.array([ender], np.uint32)
        self.threads.free(self.threads.rows(enders), self._totals.amount_of(block.size), -1)
        if temporary:
            self._totals.note_temporary(block.stack, block.size, -1)
        if (block.tid != enders).all():
            self._pass_on(block.stack, block.size, block.tid, enders, -1)

    def inherit(self, time_ns: int) -> None:
        """Begins with what the totals say is outstanding: blocks of a parent process."""
        count, size_bytes = int(self._totals.live_count.sum()), int(self._totals.live_bytes.sum())
        self.threads.inherit(count, size_bytes)
        self.peaks.begin(self._totals, time_ns)

    def pass_by(self, count: int, size_bytes: int) -> None:
        """Blocks that some threads made and freed, it is not known which ones."""
        self.threads.pass_by(count, size_bytes)
        self.unordered_count += count
