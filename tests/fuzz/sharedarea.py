"""The memory that a process shares with the profiler, written to by steps that bytes describe.

Steps do what threads of a process do (reserve, write, send records), and what they would not: write
anywhere, also between one look of the profiler's and the next.
"""

import mmap
import struct
from collections.abc import Iterator
from functools import cache
from typing import Final

import numpy as np

from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.events import EVENT_DTYPE, EVENT_LAP_BIT, EVENT_SIZE_BITS
from tracelloc.record.sources.preloaded import ringmerge
from tracelloc.record.sources.preloaded.ringmerge import AreaRings
from tracelloc.record.sources.preloaded.stackrecords import AreaRecords

STEP: Final = struct.Struct("<BBHQ")  # A step: its kind, a ring, a word of small numbers, a value
RESERVE, WRITE, SET, RECORD, TAKE, RACE, OWN = range(7)
_STEPS: Final = 7
_MOST_STEPS: Final = 4000
_RINGS: Final = 8
_WORD: Final = struct.Struct("<Q")
_OWNER_AT: Final = 128
_CONTROL_BYTES: Final = 512


@cache
def _memory() -> mmap.mmap:
    return mmap.mmap(-1, ringmerge.FILE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class FuzzedArea:
    """Plays steps, and takes what there is as a trace does."""

    def __init__(self) -> None:
        self._memory = _memory()
        self._memory.madvise(mmap.MADV_DONTNEED)
        for ring in range(3):
            self._set(self._ring(ring) + _OWNER_AT, 1)
        self._memory[ringmerge.FIELDS["clock"]] = ringmerge.CLOCK_COUNTER
        self._stamp = 1
        self._set(ringmerge.FIELDS["counter"], 2)
        self._now_ns = 1
        self._rings = AreaRings(memoryview(self._memory), 7, self._now_ns)
        self._records = AreaRecords(self._memory, 7)
        self._table = LiveTable(Stacks())

    def _set(self, at: int, word: int) -> None:
        self._memory[at : at + 8] = _WORD.pack(word & (1 << 64) - 1)

    def _get(self, at: int) -> int:
        return int(_WORD.unpack_from(self._memory, at)[0])

    def _ring(self, number: int) -> int:
        return ringmerge.AT_RINGS + number * ringmerge.RING_BYTES

    def play(self, data: bytes) -> None:
        """Does what the bytes say, then takes the rest."""
        race: list[tuple[int, int]] = []
        for what, ring, small, value in _steps(data):
            ring %= _RINGS
            if what == RESERVE:
                self._set(self._ring(ring), self._get(self._ring(ring)) + 1 + value % 5)
            elif what == WRITE:
                self._write(ring, small, value)
            elif what == SET:
                self._set(small % _CONTROL_BYTES, value)
            elif what == OWN:
                self._set(self._ring(ring) + _OWNER_AT, value & 0xFFFFFFFF)
            elif what == RECORD:
                self._record(small, value)
            elif what == RACE:
                slots_at, _ = ringmerge.slots_of(ring)
                race.append((slots_at + small % 4096 * 8, value))
            else:
                self._now_ns += value % 10**9
                self._take(race, whole=small % 16 == 1)
                race = []
        self._take(race, whole=True)

    def _write(self, ring: int, small: int, value: int) -> None:
        """Reserves a slot and writes an event, which may be none."""
        slot = self._get(self._ring(ring))
        self._set(self._ring(ring), slot + 1)
        at, slots = ringmerge.slots_of(ring)
        at += slot % slots * EVENT_DTYPE.itemsize
        kind, size = small & 15, value & 0xFFFF
        if small & 16:
            size = value >> 10
        tag = size | kind << EVENT_SIZE_BITS | slot // slots + 1 << EVENT_LAP_BIT
        stamp = value if small & 32 else self._stamp
        self._stamp += 1
        self._set(ringmerge.FIELDS["counter"], self._stamp + 1)
        address = value >> 16 if small & 64 else 4096 + value % 64 * 16
        fields = address, tag & (1 << 64) - 1, small >> 8, stamp, small >> 12, 0
        self._memory[at : at + EVENT_DTYPE.itemsize] = struct.pack("<QQQQII", *fields)

    def _record(self, small: int, value: int) -> None:
        """Sends a record of a kind, with so many frames or pages of memory."""
        field = ringmerge.FIELDS["records_reserved"]
        reserved, kind, n = self._get(field), small & 3, small >> 4 & 31
        if kind == ringmerge.RECORD_STACK:
            content = struct.pack("<QHHI", value, n + (small >> 9 << 4), 0, 0) + bytes(8 * n)
        else:
            content = struct.pack("<QIIQQII", value, 0, 0, value, 0, value & 0x1FFFF, 1)
            content += bytes(64 + 64 * n)
        length = 8 + len(content) if small & 4 else value & 0xFFFF
        at = reserved % ringmerge.RECORD_BYTES
        if at + 8 + len(content) < ringmerge.RECORD_BYTES:
            start = ringmerge.AT_RECORDS + at
            head = length | kind << ringmerge.KIND_SHIFT
            self._memory[start : start + 8 + len(content)] = _WORD.pack(head) + content
        self._set(field, reserved + length)

    def _take(self, race: list[tuple[int, int]], *, whole: bool) -> None:
        """Takes what is there; some of it changes after it was looked at."""
        count, cut = self._rings.find_events(whole, self._now_ns)
        for at, value in race:
            self._set(at, value)
        if count:
            events = np.empty(count, EVENT_DTYPE)
            events = events[: self._rings.merge(cut, self._now_ns, events.view(np.uint8))]
            if len(events):
                assert (events["image"] == 7).all()
                assert (np.diff(events["time_ns"].astype(np.int64)) >= 0).all()
                self._table.apply(events, by_time=True)
        if self._rings.is_damaged or self._records.is_damaged:
            self._rings.freeze()
        for _, stacks in self._records.take_stacks():
            for stack_id, flags, frames in stacks.rows():
                self._table.stacks.add(stack_id, frames, flags)
        self._records.take_misses(64)
        blocks = self._table.raw_blocks()
        assert len(blocks) == self._table.count
        assert bool((blocks.address != 0).all())
        assert len(np.unique(blocks.address)) == len(blocks)
        assert int(blocks.birth_ns.max(initial=0)) <= self._now_ns
        assert bool((self._table.totals.live_bytes >= 0).all())
        assert bool((self._table.totals.live_count >= 0).all())


def _steps(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    usable = len(data) // STEP.size * STEP.size
    for number, (what, ring, small, value) in enumerate(STEP.iter_unpack(data[:usable])):
        if number == _MOST_STEPS:
            return
        yield what % _STEPS, ring, small, value


def play(data: bytes) -> None:
    """The reader: no byte of the shared memory may do harm."""
    FuzzedArea().play(data)


def honest() -> list[bytes]:
    """Steps of an honest process: blocks come and go on three rings, with a stack."""
    steps = [STEP.pack(RECORD, 0, 2 | 4 | 3 << 4, 5)]
    for number in range(60):
        kind = 1 if number % 3 else 2
        steps.append(STEP.pack(WRITE, number % 3, kind | 5 << 8, 100 + number))
        if number % 10 == 9:
            steps.append(STEP.pack(TAKE, 0, 0, 1000))
    return [b"".join(steps)]
