"""Some events as columns: what everything that learns from them looks at."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.abi import EVENT_KIND_MASK, EVENT_SIZE_BITS, EVENT_SIZE_MASK, EventKind
from tracelloc.capture.ring import RECORD_DTYPE, Events
from tracelloc.heap.blocks import U32, U64, Blocks, Rows
from tracelloc.heap.stacks import Stacks

_WORDS: Final = RECORD_DTYPE.itemsize // 8
_FIELDS: Final = {name: field[1] // 8 for name, field in (RECORD_DTYPE.fields or {}).items()}
"""In which 64-bit word of a record each field begins."""
_FIRST: Final = _FIELDS["address"]
"""The words before are the ring's own."""
_WORD: Final = {name: word - _FIRST for name, word in _FIELDS.items()}
_KIND_SHIFT: Final = np.uint64(EVENT_SIZE_BITS)
_KIND_MASK: Final = np.uint8(EVENT_KIND_MASK)
_SIZE_MASK: Final = np.uint64(EVENT_SIZE_MASK)


class Chunk:
    """Columns of one length, in the order of the ring."""

    __slots__ = (
        "address", "caller", "has_late", "in_order", "kind", "made", "made_stack", "restored",
        "size", "stack", "tid", "time_ns",
    )  # fmt: skip

    def __init__(self, events: Events, stacks: Stacks, *, in_order: bool) -> None:
        """``in_order``: no events are missing in between, and they are in the order of time."""
        # All words in one pass: numpy picks fields one by one, slowly.
        words = events.view(np.uint64).reshape(len(events), _WORDS)[:, _FIRST:].T.copy()
        tags = words[_WORD["size_tag"]]
        self.address: U64 = words[_WORD["address"]]
        self.time_ns: U64 = words[_WORD["time_ns"]]
        """CLOCK_MONOTONIC, at the kernel's last tick."""
        self.tid: U32 = words[_WORD["tid"]].astype(np.uint32)
        self.kind: npt.NDArray[np.uint8] = (tags >> _KIND_SHIFT).astype(np.uint8) & _KIND_MASK
        self.size: U64 = tags & _SIZE_MASK
        """Bytes as requested, of allocations."""
        self.caller = self.tid
        """Threads in whose order the events stand; 0 if in none's."""
        late = self.kind == EventKind.LATE_ALLOC
        self.has_late = bool(late.any())
        """Some allocations are not in the order of time."""
        self.in_order = in_order and not self.has_late
        if self.has_late:
            self.kind[late] = EventKind.ALLOC
            self.caller = np.where(late, np.uint32(0), self.tid)
        self.made: Rows = np.flatnonzero(self.kind == EventKind.ALLOC)
        """Which of them are allocations."""
        self.made_stack: Rows = stacks.indices(words[_WORD["stack_id"]].take(self.made)).astype(
            np.intp
        )
        """Of each of these, the stack."""
        self.stack: U32 = np.empty(len(events), np.uint32)
        """The same by row; of other events undefined."""
        self.stack[self.made] = self.made_stack
        self.restored: dict[int, Blocks] = {}
        """By row: events that give back an older block, and that block."""

    def __len__(self) -> int:
        return len(self.address)

    def blocks(self, rows: Rows) -> Blocks:
        """The blocks that these events made or gave back."""
        blocks = Blocks(
            address=self.address.take(rows),
            size=self.size.take(rows),
            birth_ns=self.time_ns.take(rows),
            stack=self.stack.take(rows),
            tid=self.tid.take(rows),
        )
        for row, block in self.restored.items():
            blocks.put(rows == row, block)
        return blocks
