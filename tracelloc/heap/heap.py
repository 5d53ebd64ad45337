"""The heap of one memory image: everything that a forked child gets a copy of, in one value."""

from __future__ import annotations

from tracelloc.heap.ranges import RangeTable
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.heap.unreachable import UnreachableBlocks
from tracelloc.model.figures import U32, U64, History, Mask
from tracelloc.model.process import DEFAULT_POLICY, TemporaryPolicy


class Heap:
    """Blocks, totals, lifetimes and history with call stacks, guarded by the session's lock."""

    def __init__(
        self,
        now_ns: int,
        stacks: Stacks | None = None,
        sample_bytes: int | None = None,
        temporary: TemporaryPolicy = DEFAULT_POLICY,
    ) -> None:
        """Starts empty at ``now_ns`` (CLOCK_MONOTONIC). Other parameters: see ``LiveTable``."""
        self.stacks = Stacks() if stacks is None else stacks
        self.table = LiveTable(self.stacks, sample_bytes, temporary)
        self.table.cohorts.begin(now_ns)
        self.ranges = RangeTable(self.stacks)
        self.history = History(now_ns)
        self.unreachable = UnreachableBlocks()

    def fork(self, now_ns: int) -> Heap:
        """Returns a forked child's heap; blocks freed before ``now_ns`` do not count for it."""
        child = Heap.__new__(Heap)
        child.stacks = self.stacks
        child.table = self.table.fork()
        child.ranges = self.ranges.fork()
        child.history = History(now_ns, self.table.totals.live_bytes)
        child.unreachable = UnreachableBlocks()
        return child

    def renewed(self, now_ns: int, stacks: Stacks) -> Heap:
        """Returns an empty heap for the program executed at ``now_ns``, with these call stacks."""
        return Heap(now_ns, stacks, self.table.totals.sample_bytes, self.table.temporary)

    def add_earlier(self, addresses: U64, sizes: U64, stacks: U32) -> Mask:
        """Adds blocks that existed when tracing began (``LiveTable.add_earlier``)."""
        before = self.table.totals.live_bytes
        added = self.table.add_earlier(addresses, sizes, stacks)
        more = self.table.totals.live_bytes
        more[: len(before)] -= before
        self.history.add_before(more)
        return added

    @property
    def live_bytes(self) -> int:
        """Outstanding bytes of all stacks."""
        return self.table.live_bytes
