"""Reading rings. The other side is imitated: a record that is still being written, or one
just where the ring ends, can't be had from a real one on demand."""

import mmap
import os
import re
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from tracelloc import probes
from tracelloc.model.events import EVENT_DTYPE, EVENT_LAP_BIT, EVENT_SIZE_MASK
from tracelloc.record import abi
from tracelloc.record.abi import MISS_REGISTERS
from tracelloc.record.kernel.ring import BUSY, DISCARD, BpfRing, EventRing, MissRing, StackRing

PAGE = mmap.PAGESIZE
SIZE = 4 * PAGE


class Kernel:
    """The producer of a ring in a file of the same layout."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ring")
        os.truncate(self.fd, 2 * PAGE + 2 * SIZE)
        self.position = 0

    def start_at(self, ring: BpfRing, position: int) -> None:
        self.position = position
        ring.consumed = position
        os.pwrite(self.fd, struct.pack("<Q", position), PAGE)

    def produce(self, payload: bytes, flags: int = 0) -> int:
        """Writes a record into both copies of the data. Returns its position."""
        record = struct.pack("<II", len(payload) | flags, 0) + payload
        record += bytes(-len(record) % 8)
        at = self.position
        for n, byte in enumerate(record):
            for copy in (0, SIZE):
                os.pwrite(self.fd, bytes([byte]), 2 * PAGE + copy + (at + n) % SIZE)
        self.position += len(record)
        os.pwrite(self.fd, struct.pack("<Q", self.position), PAGE)
        return at


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    os.close(kernel.fd)


ROOM = 256


class Probes:
    """Those who write a ring of events in plain memory: what ``probes/ring.h`` says."""

    def __init__(self, start: int = 0) -> None:
        self.slots = np.zeros(ROOM, EVENT_DTYPE)
        self.positions = np.zeros(2, abi.POSITION_DTYPE)
        self.positions["count"] = start
        self.ring = EventRing(self.slots, self.positions)
        # What was there in the lap before.
        for slot in range(max(0, start - ROOM), start):
            self.finish(slot, 0)

    def reserve(self) -> int:
        self.positions["count"][0] += 1
        return int(self.positions["count"][0]) - 1

    def finish(self, slot: int, address: int) -> None:
        lap = slot // ROOM + 1 & 7
        self.slots[slot % ROOM]["address"] = address
        self.slots[slot % ROOM]["size_tag"] = 5 | lap << EVENT_LAP_BIT

    def produce(self, address: int) -> None:
        self.finish(self.reserve(), address)

    def taken(self) -> list[int]:
        events = self.ring.take_events()
        assert (events["size_tag"] & EVENT_SIZE_MASK == 5).all()
        addresses: list[int] = events["address"].tolist()
        return addresses


@pytest.mark.parametrize(
    "start", [0, *range(ROOM - 4, ROOM + 1), 7 * ROOM - 1, 8 * ROOM, 2**40 * ROOM - 2]
)
def test_an_event_that_is_being_written_holds_back_what_follows(start: int) -> None:
    """All are taken once, and in order."""
    probes = Probes(start)
    assert probes.taken() == []
    probes.produce(1)
    busy = probes.reserve()
    probes.produce(3)
    probes.produce(4)
    assert probes.taken() == [1]
    assert probes.taken() == []
    probes.finish(busy, 2)
    assert probes.taken() == [2, 3, 4]
    assert probes.ring.consumed == probes.ring.produced == start + 4


def test_full_ring() -> None:
    probes = Probes(3 * ROOM - 1)
    for n in range(ROOM):
        probes.produce(n)
    taken = probes.ring.take_events()
    assert taken["address"].tolist() == list(range(ROOM))
    # A copy: what the probes write next must not change it.
    probes.produce(999)
    assert taken["address"][0] == 0


def test_little_of_the_second_copy_is_mapped(kernel: Kernel) -> None:
    """All of it would count as memory of ours once more."""
    os.truncate(kernel.fd, 2 * PAGE + 2 * 64 * PAGE)
    for kind, pages in ((StackRing, 2), (MissRing, 18)):
        assert len(kind(kernel.fd, 64 * PAGE).data) == (64 + pages) * PAGE
        assert len(kind(kernel.fd, PAGE).data) == 2 * PAGE
    text = (probes.directory() / "maps.h").read_text() + (
        probes.directory() / "event.h"
    ).read_text()
    miss_pages = int(re.findall(r"#define LARGE_MISS_PAGES (\d+)", text)[0])
    assert MissRing.longest_pages * PAGE >= 8 + MISS_BYTES + miss_pages * PAGE
    assert StackRing.longest_pages * PAGE >= 8 + 16 + 8 * MOST_FRAMES


def stack(stack_id: int, flags: int, frames: list[int], image: int = 3) -> bytes:
    return struct.pack(f"<QHHI{len(frames)}Q", stack_id, len(frames), flags, image, *frames)


def test_stacks(kernel: Kernel) -> None:
    ring = StackRing(kernel.fd, SIZE)
    kernel.start_at(ring, SIZE - 16)
    kernel.produce(stack(7, 1, [10, 20, 30]))
    kernel.produce(stack(8, 0, []), DISCARD)
    kernel.produce(stack(9, 2, [40], image=2))
    kernel.produce(stack(12, 0, [70]))
    busy = kernel.produce(stack(10, 0, [50]), BUSY)
    kernel.produce(stack(11, 0, [60]))
    (two, other), (three, sent) = ring.take_stacks()
    assert (two, list(other.rows())) == (2, [(9, 2, (40,))])
    assert (three, list(sent.rows())) == (3, [(7, 1, (10, 20, 30)), (12, 0, (70,))])
    assert list(sent.select(sent.ids == 12).rows()) == [(12, 0, (70,))]
    assert ring.take_stacks() == []
    for copy in (0, SIZE):  # it is not busy any more
        os.pwrite(kernel.fd, struct.pack("<I", 24), 2 * PAGE + copy + busy % SIZE)
    assert [sent.ids.tolist() for _, sent in ring.take_stacks()] == [[10, 11]]
    assert ring.consumed == ring.produced


MISS_BYTES = 40 + 8 * MISS_REGISTERS
MOST_FRAMES = 512


def miss(stack_id: int, stack: bytes, pages: int) -> bytes:
    registers = range(stack_id, stack_id + MISS_REGISTERS)
    head = struct.pack(f"<QIIQQII{MISS_REGISTERS}Q", stack_id, 5, 3, 77, 88, pages, 9, *registers)
    return head + stack


@pytest.mark.parametrize("before_end", [8, 16, 64, 104, 112, 120, PAGE, PAGE + 112, PAGE + 8192])
def test_misses_across_the_end(kernel: Kernel, before_end: int) -> None:
    ring = MissRing(kernel.fd, SIZE)
    kernel.start_at(ring, 7 * SIZE - before_end)
    stack = os.urandom(2 * abi.STACK_PAGE_BYTES)
    kernel.produce(miss(40, stack, 0b10))
    kernel.produce(miss(41, b"", 0), DISCARD)
    kernel.produce(miss(42, b"", 0))
    busy = kernel.produce(miss(43, b"", 0), BUSY)
    first, second = ring.take_misses(9)
    assert (first.stack_id, first.generation, first.image) == (40, 5, 3)
    assert (first.missing, first.stack_address) == (77, 88)
    assert first.registers == tuple(range(40, 40 + MISS_REGISTERS))
    assert (first.stack, first.stack_holes) == (stack, 0b01)
    assert (second.stack_id, second.stack, second.stack_holes) == (42, b"", 0)
    assert ring.consumed == busy
