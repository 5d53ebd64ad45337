"""What the probes send: mirrors of the structs and enums in ``probes/event.h``.

Every offset, size and value here equals the C side's; a test compiles the header
and compares. All times are CLOCK_MONOTONIC nanoseconds, all sizes bytes.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

import numpy as np
import numpy.typing as npt

EVENT_SIZE_BITS: Final = 56
EVENT_SIZE_MASK: Final = (1 << EVENT_SIZE_BITS) - 1
EVENT_KIND_MASK: Final = 0xF
EVENT_PARITY_BIT: Final = 60
EVENT_LAP_BIT: Final = 61

EVENT_FIELDS: Final = [
    ("address", "<u8"),
    ("size_tag", "<u8"),
    ("stack_id", "<u8"),
    ("time_ns", "<u8"),
    ("tid", "<u4"),
    ("image", "<u4"),
]
"""``struct event``."""

EVENT_DTYPE: Final = np.dtype(EVENT_FIELDS)

POSITION_FIELDS: Final = [("count", "<u8"), ("unused", ("<u8", (7,)))]
"""``struct position``."""

POSITION_DTYPE: Final = np.dtype(POSITION_FIELDS)

SPILL_KEY_FIELDS: Final = [("address", "<u8"), ("image", "<u4"), ("parity", "<u4")]
"""``struct spill_key``."""

SPILLED_FIELDS: Final = [
    ("size", "<u8"),
    ("stack_id", "<u8"),
    ("time_ns", "<u8"),
    ("tid", "<u4"),
    ("flags", "<u4"),
]
"""``struct spilled``."""

PAIR_KEY_FIELDS: Final = [
    ("stack_id", "<u8"),
    ("size", "<u8"),
    ("image", "<u4"),
    ("parity", "<u4"),
]
"""``struct pair_key``."""

PAIR_SUMS_FIELDS: Final = [("count", "<i8"), ("bytes", "<i8"), ("time_ns", "<u8")]
"""``struct pair_sums``."""

STACK_HEAD_FIELDS: Final = [
    ("stack_id", "<u8"),
    ("n_frames", "<u2"),
    ("flags", "<u2"),
    ("image", "<u4"),
]
"""``struct stack`` up to its frames, which are ``n_frames`` little-endian u64."""

CONTROL_FIELDS: Final = [
    ("reporting", "<u4"),
    ("woken", "<u4"),
    ("clock", "<u8"),
    ("epoch", "<u8"),
    ("full", ("<u4", (2,))),
    ("tgid", "<u4"),
    ("stop_at_loads", "<u4"),
    ("kept_stacks", "<u8"),
    ("sessions", "<u8"),
]
"""``struct control``."""

PARITIES: Final = 2
"""Epochs that the probes tell apart."""

CONTROL_DTYPE: Final = np.dtype(CONTROL_FIELDS)

PYTHON_OFFSETS: Final = (
    "threads",
    "next",
    "thread_id",
    "frame",
    "has_inner",
    "inner",
    "code",
    "previous",
    "instruction",
    "entry",
    "entry_shift",
    "least_entry",
    "has_shims",
    "has_no_versions",
)
PYTHON_FIELDS: Final = [
    ("interpreter", "<u8"),
    ("namespace_device", "<u8"),
    ("namespace_inode", "<u8"),
    *((name, "<u2") for name in PYTHON_OFFSETS),
    ("unused", ("<u2", (2,))),
]
"""``struct python``."""

PYTHON_PIECE_STARTS: Final = (80, 336, 592, 912)
"""Where ``struct python_code`` has what was copied, in bytes behind the field ``code``."""

PYTHON_ENTRY: Final = 1
"""Part of the first word of a frame of Python (``struct python_stack``)."""

SPACE_FIELDS: Final = [
    ("tag", "<u8"),
    ("trampoline", "<u8"),
    ("loader_state", "<u8"),
    ("unloading", "<u8"),
    ("loads", "<u8"),
    ("changes", "<u8"),
    ("image", "<u4"),
    ("moves", "<u4"),
    ("loader_calls", "<u8"),
    ("lineage", "<u8"),
    ("python", PYTHON_FIELDS),
]
"""``struct space``."""

SPACE_DTYPE: Final = np.dtype(SPACE_FIELDS)
SALT_BITS: Final = 6
"""Low bits of a tag that rows' places depend on (``ROW_SALT_BITS``)."""
TAG_BITS: Final = 16
"""Low bits of a space's tag that rows' keys carry; above them is its generation."""
GENERATION_MASK: Final = 0xFFFFFFFF

MISS_REGISTERS: Final = 8
MISS_FIELDS: Final = [
    ("stack_id", "<u8"),
    ("generation", "<u4"),
    ("image", "<u4"),
    ("missing", "<u8"),
    ("stack_address", "<u8"),
    ("stack_pages", "<u4"),
    ("tid", "<u4"),
    ("registers", ("<u8", (MISS_REGISTERS,))),
]
"""``struct miss``, which the copy of the stack follows."""

ROW_WAYS: Final = 4
ROW_SET_DTYPE: Final = np.dtype([("keys", "<u8", (ROW_WAYS,)), ("rows", "<u8", (ROW_WAYS,))])
"""``struct row_set`` in ``probes/maps.h``."""
KEY_TAG_SHIFT: Final = 48
"""Where in a row's key the tag begins, above the address."""
REGION_SHIFT: Final = 16
REGION_TAG: Final = 1 << 47


NEAR_SPACES: Final = 1024
"""Elements of map ``near_spaces`` (``probes/maps.h``)."""


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
    FORK = 14


class FunctionCode(IntEnum):
    """What a probed function does (``enum function_kind``)."""

    ALLOC = 1
    CALLOC = 2
    POSIX_MEMALIGN = 3
    REALLOC = 4
    REALLOCF = 5
    REALLOCARRAY = 6
    RESIZE = 7
    FREE = 8
    OUTER_FREE = 9
    MAP = 10
    UNMAP = 11
    REMAP = 12
    SBRK = 13
    RETURN = 14
    EXIT = 15


COOKIE_THROWS: Final = 0x10
COOKIE_ARGUMENT_SHIFT: Final = 8
COOKIE_ARGUMENT_BITS: Final = 4
COOKIE_PLACE_SHIFT: Final = 32
COOKIE_PLACE_MASK: Final = 0xFFF
COOKIE_SIZE_SHIFT: Final = 44
"""What the cookie of a probe says: its bits (``COOKIE_`` in ``probes/event.h``)."""
OTEL_PLACE_BITS: Final = 21
OTEL_IN_MEMORY: Final = 0x10
OTEL_DISPLACEMENT_BITS: Final = 16
"""Cookies of probes on what a program reports by itself (``OTEL_`` in ``probes/event.h``)."""
WEIGHT_MANTISSA_BITS: Final = 12
WEIGHT_BITS: Final = 17
"""How sizes and weights of such blocks are one number (``WEIGHT_`` in ``probes/event.h``)."""


class EventRingNumber(IntEnum):
    """A ring of events (``enum event_ring``)."""

    EVENTS = 0
    MAPPINGS = 1


class PythonProgram(IntEnum):
    """Programs that call each other where frames of Python are walked (``enum python_program``)."""

    WALKER = 0
    ALLOCATOR = 1
    MAPPING = 2
    NAMER = 3


class Reporting(IntEnum):
    """What the probes report (``enum reporting``)."""

    STOPPED = 0
    LIVE = 1
    PAUSED = 2


class ForkFlag(IntFlag):
    """What the probes say of a process that a thread has made (``enum fork_flag``)."""

    SHARES = 1
    MARKED = 2


class SpillFlag(IntFlag):
    """What an entry of map ``spill`` says of its address (``enum spill_flag``)."""

    FREED = 1
    BORN = 2
    RESTORED = 4
    TAKEN = 8
    INNER = 16


class StackFlag(IntFlag):
    """How a stack walk ended (``enum stack_flag``)."""

    TRUNCATED = 1
    UNREADABLE = 2
    BROKEN = 4
    GUESSED = 8
    LOST_MISS = 16
    SHORT_COPY = 32
    BAD_CFI = 64
    UNMAPPED = 128
    PYTHON = 256
    CODE = 512
    NAMES = 1024


PARTIAL_REASONS: Final = {
    StackFlag.LOST_MISS: "its unwind entries were not ready yet",
    StackFlag.SHORT_COPY: "it continues beyond the memory that was copied",
    StackFlag.BAD_CFI: "call-frame information that can't be used",
    StackFlag.UNMAPPED: "an address where no code is mapped",
    StackFlag.UNREADABLE: "memory that can't be read",
    StackFlag.BROKEN: "code without frame pointers or call-frame information",
    StackFlag.TRUNCATED: "deeper than --max-frames",
}
"""Why a stack ends before its outermost frame, for people."""
PARTIAL: Final = StackFlag.LOST_MISS | StackFlag.SHORT_COPY | StackFlag.BAD_CFI | StackFlag.UNMAPPED
"""Stacks that the probes left to be finished, and that could not be."""
CUT: Final = StackFlag.LOST_MISS | StackFlag.SHORT_COPY
"""Stacks that end wherever the probes had come by then: many call sites have such a one in
common."""


class Counter(IntEnum):
    """What the probes count since they were loaded (``enum counter``)."""

    LOST_ALLOCS = 0
    LOST_FREES = 1
    LOST_RESTORES = 2
    LOST_STACKS = 3
    STACK_TABLE_FULL = 4
    CALL_TABLE_FULL = 5
    UNPAIRED_RETURNS = 6
    ABANDONED_CALLS = 7
    UNREADABLE_RESULTS = 8
    EARLIER_CALLS = 9
    SAMPLE_TABLE_FULL = 10
    MISSES = 11
    LOST_MISSES = 12
    SPILLED = 13
    SPILL_REUSES = 14
    SPILL_UNMATCHED = 15
    SPILL_ODD_RESTORES = 16
    LOST_PAIRS = 17
    LOST_INNER_FREES = 18
    LOST_MAPPINGS = 19
    SKIPPED_RUNS = 20
    IMPOSSIBLE_SIZES = 21
    LOST_PYTHON_FRAMES = 22


LOST_EVENT_COUNTERS: Final = (
    Counter.LOST_ALLOCS,
    Counter.LOST_FREES,
    Counter.LOST_RESTORES,
    Counter.LOST_INNER_FREES,
)
"""Counters of events that never reached user space: no room in the ring or overflow map."""


def count_lost(counters: npt.NDArray[np.uint64]) -> int:
    """Events that never reached user space, by all counters (``Counter``)."""
    return sum(int(counters[counter]) for counter in LOST_EVENT_COUNTERS)


ODDITY_COUNTERS: Final = (
    Counter.SPILL_REUSES,
    Counter.SPILL_UNMATCHED,
    Counter.SPILL_ODD_RESTORES,
)
"""Counters of what the overflow map finds in place of the table."""
