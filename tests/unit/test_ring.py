"""Reading rings. The kernel's side is imitated in a file: a record that is still being
written, or one just where the ring ends, can't be had from a real one on demand."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

import pytest

from tracelloc.capture.ring import (
    BUSY,
    DISCARD,
    RECORD_DTYPE,
    EventRing,
    Ring,
    StackRing,
)

PAGE = mmap.PAGESIZE
SIZE = 4 * PAGE


class Kernel:
    """The producer of a ring in a file of the same layout."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ring")
        os.truncate(self.fd, 2 * PAGE + 2 * SIZE)
        self.position = 0

    def start_at(self, ring: Ring, position: int) -> None:
        self.position = position
        ring.consumed = position
        os.pwrite(self.fd, struct.pack("<Q", position), PAGE)

    def produce(self, payload: bytes, flags: int = 0) -> int:
        """Writes a record into both copies of the data. Returns its position."""
        record = struct.pack("<II", len(payload) | flags, 0) + payload
        record += bytes(-len(record) % 8)
        at = self.position
        for n, byte in enumerate(record):
            offset = (at + n) % SIZE
            for copy in (0, SIZE):
                os.pwrite(self.fd, bytes([byte]), 2 * PAGE + copy + offset)
        self.position += len(record)
        os.pwrite(self.fd, struct.pack("<Q", self.position), PAGE)
        return at

    def finish(self, at: int, length: int, flags: int = 0) -> None:
        """Clears the busy bit of a record."""
        for copy in (0, SIZE):
            os.pwrite(self.fd, struct.pack("<I", length | flags), 2 * PAGE + copy + at % SIZE)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    os.close(kernel.fd)


def event(address: int) -> bytes:
    return struct.pack("<QQQQII", address, 0, 0, 0, 1, 1)


def test_events_in_order_and_once(kernel: Kernel) -> None:
    ring = EventRing(kernel.fd, SIZE)
    assert len(ring.take()) == 0
    for n in range(5):
        kernel.produce(event(n))
    assert ring.take()["address"].tolist() == [0, 1, 2, 3, 4]
    assert len(ring.take()) == 0
    kernel.produce(event(5))
    assert ring.take()["address"].tolist() == [5]
    assert ring.consumed == ring.produced == 6 * RECORD_DTYPE.itemsize


def test_a_record_that_is_being_written_holds_back_what_follows(kernel: Kernel) -> None:
    ring = EventRing(kernel.fd, SIZE)
    kernel.produce(event(1))
    busy = kernel.produce(event(2), BUSY)
    kernel.produce(event(3))
    assert ring.take()["address"].tolist() == [1]
    assert len(ring.take()) == 0
    kernel.finish(busy, 40)
    assert ring.take()["address"].tolist() == [2, 3]


@pytest.mark.parametrize("before_end", [8, 24, 40, 48, 96])
def test_events_across_the_end(kernel: Kernel, before_end: int) -> None:
    ring = EventRing(kernel.fd, SIZE)
    kernel.start_at(ring, 7 * SIZE - before_end)
    for n in range(4):
        kernel.produce(event(n))
    assert ring.take()["address"].tolist() == [0, 1, 2, 3]


def test_full_ring(kernel: Kernel) -> None:
    ring = EventRing(kernel.fd, SIZE)
    kernel.start_at(ring, 3 * SIZE - 48)
    for n in range(SIZE // 48):
        kernel.produce(event(n))
    taken = ring.take()
    assert taken["address"].tolist() == list(range(SIZE // 48))
    # A copy: what the kernel writes next must not change it.
    kernel.produce(event(999))
    assert taken["address"][0] == 0


def stack(stack_id: int, flags: int, frames: list[int], image: int = 3) -> bytes:
    return struct.pack(f"<QHHI{len(frames)}Q", stack_id, len(frames), flags, image, *frames)


def test_stacks(kernel: Kernel) -> None:
    ring = StackRing(kernel.fd, SIZE)
    kernel.start_at(ring, SIZE - 16)
    kernel.produce(stack(7, 1, [10, 20, 30]))
    kernel.produce(stack(8, 0, []), DISCARD)
    kernel.produce(stack(9, 2, [40]))
    busy = kernel.produce(stack(10, 0, [50]), BUSY)
    kernel.produce(stack(11, 0, [60]))
    ((image, sent),) = ring.take()
    assert list(sent.rows()) == [(7, 1, (10, 20, 30)), (9, 2, (40,))]
    assert image == 3
    assert list(sent.select(sent.ids == 9).rows()) == [(9, 2, (40,))]
    assert ring.take() == []
    kernel.finish(busy, 24)
    assert [sent.ids.tolist() for _, sent in ring.take()] == [[10, 11]]
    assert ring.consumed == ring.produced


def test_stacks_of_several_images(kernel: Kernel) -> None:
    ring = StackRing(kernel.fd, SIZE)
    for number in range(60):
        frames = list(range(number % 4))
        kernel.produce(stack(number, 0, frames, image=number % 7 % 3), DISCARD * (number % 5 == 0))
    taken = ring.take()
    assert [image for image, _ in taken] == [0, 1, 2]
    assert [list(sent.rows()) for _, sent in taken] == [
        [
            (number, 0, tuple(range(number % 4)))
            for number in range(60)
            if number % 7 % 3 == image and number % 5
        ]
        for image in range(3)
    ]
