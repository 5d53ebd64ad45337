"""Events and call stacks as every source reports them: the columns of one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass

EVENT_SIZE_BITS: Final = 56
EVENT_SIZE_MASK: Final = (1 << EVENT_SIZE_BITS) - 1
EVENT_KIND_MASK: Final = 0xF
EVENT_PARITY_BIT: Final = 60
EVENT_LAP_BIT: Final = 61

# `struct event`.
EVENT_FIELDS: Final = [
    ("address", "<u8"),
    ("size_tag", "<u8"),
    ("stack_id", "<u8"),
    ("time_ns", "<u8"),
    ("tid", "<u4"),
    ("image", "<u4"),
]

EVENT_DTYPE: Final = np.dtype(EVENT_FIELDS)
WEIGHT_MANTISSA_BITS: Final = 12
WEIGHT_BITS: Final = 17  # Of the weight of a block that the program has sampled, below its size


class EventKind(IntEnum):
    """What happened to a block (``enum event_kind``)."""

    ALLOC = 1
    FREE = 2
    REALLOC_FREE = 3
    RESTORE = 4
    LATE_ALLOC = 5
    INNER_FREE = 6
    MAP = 7
    UNMAP = 8
    UNMAP_FAILED = 9
    PART = 13
    FORK = 14


class PartMark(IntEnum):
    """The marks at the beginnings and ends of a run's parts (``enum part_mark``)."""

    END = 1
    PLAIN = 2
    STACKS = 3
    KEEPS = 4


U64 = npt.NDArray[np.uint64]

Events = npt.NDArray[Any]  # A structured array of `EVENT_DTYPE`


@dataclass(frozen=True, slots=True)
class SentStacks:
    """Stacks from ring ``stacks``, in columns: one element per ``struct stack``."""

    ids: U64
    flags: npt.NDArray[np.uint16]  # Bits of `enum stack_flag`
    depths: npt.NDArray[np.int64]  # Frames of each stack
    frames: U64  # Return addresses of all stacks, one stack after the other, innermost first

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, stacks: slice, frames: slice) -> SentStacks:
        """Returns consecutive stacks: ``frames`` is where their return addresses are."""
        ids, flags, depths = self.ids[stacks], self.flags[stacks], self.depths[stacks]
        return SentStacks(ids, flags, depths, self.frames[frames])

    def rows(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yields (id, flags, frames) of each stack."""
        frames, ends = self.frames.tolist(), np.cumsum(self.depths).tolist()
        heads = zip(self.ids.tolist(), self.flags.tolist(), [0, *ends[:-1]], ends, strict=False)
        for stack_id, flags, start, end in heads:
            yield stack_id, flags, tuple(frames[start:end])

    def select(self, mask: npt.NDArray[np.bool_]) -> SentStacks:
        if mask.all():
            return self
        return SentStacks(
            self.ids[mask],
            self.flags[mask],
            self.depths[mask],
            self.frames[np.repeat(mask, self.depths)],
        )


# `struct pair_key`.
PAIR_KEY_FIELDS: Final = [("stack_id", "<u8"), ("size", "<u8"), ("image", "<u4"), ("parity", "<u4")]

# `struct pair_sums`.
PAIR_SUMS_FIELDS: Final = [("count", "<i8"), ("bytes", "<i8"), ("time_ns", "<u8")]

# Allocated and freed blocks of one stack: their number and bytes.
PAIR_DTYPE: Final = np.dtype([*PAIR_KEY_FIELDS, *PAIR_SUMS_FIELDS])


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The events that sources reported since the last batch."""

    events: Events  # Events in their order for each address and each thread
    pairs: npt.NDArray[Any]  # Sums (PAIR_DTYPE) of allocated and freed blocks not in `events`
    ring_share: float  # Used share of the ring, 0 to 1
    overflowed: bool  # The ring was full: the order of events of different addresses is unknown
    image: int | None = None  # Of all events: then in order, without forks; None: unknown

    def __bool__(self) -> bool:
        """Whether the batch has events, so that there may be more."""
        return self.overflowed or len(self.events) > 0


@dataclass(frozen=True, slots=True)
class Miss:
    """A stack that user space must finish unwinding: ``struct miss`` with the stack's memory."""

    stack_id: int
    generation: int
    image: int  # The memory image that the addresses belong to
    missing: int  # The code address for which the probes had no unwind row
    registers: tuple[int, ...]  # As `Architecture.miss_registers`: PC, SP, FP, others preserved
    stack_address: int
    stack: bytes  # The copied memory from `stack_address` on
    stack_holes: int  # Pages of `stack` that could not be copied: one bit each
    library: str = ""  # Instead of a stack: the path of one mapped at `stack_address`


NO_EVENTS: Final[Events] = np.empty(0, EVENT_DTYPE)
NO_PAIRS: Final[npt.NDArray[Any]] = np.empty(0, PAIR_DTYPE)


def joined_events(parts: Sequence[Events]) -> Events:
    """Joins arrays of events, in order; as bytes, which is quicker than field by field."""
    return np.concatenate([part.view(np.uint8) for part in parts]).view(EVENT_DTYPE)


def joined_batch(batches: Sequence[EventBatch]) -> EventBatch:
    """Joins the events of several batches, in order; at most one of them has pairs."""
    some = [batch for batch in batches if batch]
    if len(some) == 1:
        return some[0]
    if not some:
        share = max((batch.ring_share for batch in batches), default=0.0)
        return EventBatch(NO_EVENTS, NO_PAIRS, share, overflowed=False)
    return EventBatch(
        joined_events([batch.events for batch in some]),
        np.concatenate([batch.pairs for batch in some]),
        max(batch.ring_share for batch in batches),
        any(batch.overflowed for batch in some),
    )
