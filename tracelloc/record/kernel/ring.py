"""Reads the probes' rings through shared memory, without a call per record.

Rings of events are array maps (``probes/ring.h``); the others are BPF ring buffers. The kernel maps
a ring buffer as one page with the consumer's position (written by tracelloc), one with the
producer's, then the data twice in a row so that no record is split. tracelloc maps only the
beginning of the second copy, as the whole copy would count as memory again (kernel/bpf/ringbuf.c;
Documentation/bpf/ringbuf.rst). Each record has an 8-byte head with its length and two flag bits;
positions only grow. Everything runs on the thread that pumps events.
"""

import mmap
import os
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.events import EVENT_DTYPE, Events, Miss, SentStacks
from tracelloc.record import abi
from tracelloc.record.kernel import records
from tracelloc.record.kernel.records import load_acquire, store_release

HEAD_BYTES: Final = 8
BUSY: Final = 1 << 31
DISCARD: Final = 1 << 30
_LENGTH_MASK: Final = DISCARD - 1
_PAGE: Final = mmap.PAGESIZE

_MISS_DTYPE: Final = np.dtype(abi.MISS_FIELDS)


class EventRing:
    """A ring of ``struct event`` in an array map."""

    def __init__(self, slots: Events, positions: npt.NDArray[Any]) -> None:
        """``slots``: a power of two of them; ``positions``: counts of reserved and taken slots."""
        self._slots = slots
        words = positions.view(np.uint64).reshape(len(positions), -1)
        self._reserved, self._taken = words[0], words[1]

    @property
    def room(self) -> int:
        """Capacity of the ring in events."""
        return len(self._slots)

    @property
    def consumed(self) -> int:
        """Number of slots taken since the start."""
        return load_acquire(self._taken)

    @property
    def produced(self) -> int:
        """Number of slots reserved since the start."""
        return load_acquire(self._reserved)

    def take_events(self) -> Events:
        """Takes all events before the first unfinished one: copies them, and frees their slots."""
        start, end = self.consumed, self.produced
        events = np.empty(end - start, EVENT_DTYPE)
        if start != end:
            count = records.copy_events(self._slots.view(np.uint8), start, events.view(np.uint8))
            events = events[:count]
            store_release(self._taken, start + count)
        return events


class BpfRing:
    """A BPF ring buffer map, read through shared memory; ``size_bytes`` of data."""

    longest_pages = 1  # Upper limit of a record's length including its head, in pages

    def __init__(self, map_fd: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._consumer_page = mmap.mmap(map_fd, _PAGE)
        mapped_bytes = size_bytes + min(size_bytes, self.longest_pages * _PAGE)
        self._producer_pages = mmap.mmap(
            map_fd, _PAGE + mapped_bytes, prot=mmap.PROT_READ, offset=_PAGE
        )
        self._consumer = np.frombuffer(self._consumer_page, np.uint64, 1)
        self._producer = np.frombuffer(self._producer_pages, np.uint64, 1)
        self.data = memoryview(self._producer_pages)[_PAGE:]

    @property
    def consumed(self) -> int:
        """Position up to which records were read and released, in bytes since the start."""
        return load_acquire(self._consumer)

    @consumed.setter
    def consumed(self, position: int) -> None:
        store_release(self._consumer, position)

    @property
    def produced(self) -> int:
        """Position up to which the kernel has reserved records, in bytes since the start."""
        return load_acquire(self._producer)

    def offset(self, position: int) -> int:
        """Returns the offset in ``data`` of a position."""
        return position & (self.size_bytes - 1)


class StackRing(BpfRing):
    """The ring of ``struct stack``: few records, of any length."""

    longest_pages = 2

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """Takes (memory image, its stacks, oldest first), by image, and frees their space."""
        start, end = self.consumed, self.produced
        if start == end:
            return []
        found = records.StackRecords(self.data, self.size_bytes, start, end)
        count = sum(stacks for _, stacks, _ in found.images)
        sent = SentStacks(
            ids=np.empty(count, np.uint64),
            flags=np.empty(count, np.uint16),
            depths=np.empty(count, np.int64),
            frames=np.empty(sum(frames for *_, frames in found.images), np.uint64),
        )
        if count:
            found.copy(sent.ids, sent.flags, sent.depths, sent.frames)
        self.consumed = found.end
        parts = []
        stack = frame = 0
        for image, stacks, frames in found.images:
            ends = stack + stacks, frame + frames
            parts.append((image, sent.part(slice(stack, ends[0]), slice(frame, ends[1]))))
            stack, frame = ends
        return parts


def miss_of(data: memoryview, at: int) -> Miss:
    """Decodes the ``struct miss`` at an offset, and the stack pages copied after it."""
    head = np.frombuffer(data, _MISS_DTYPE, 1, at)[0]
    at += _MISS_DTYPE.itemsize
    pages = int(head["stack_pages"])
    path = b""
    if not head["stack_id"]:
        path = bytes(data[at : at + abi.LIBRARY_PATH_BYTES]).partition(b"\0")[0] or b"?"
    n_pages = pages.bit_length()
    return Miss(
        stack_id=int(head["stack_id"]),
        generation=int(head["generation"]),
        image=int(head["image"]),
        missing=int(head["missing"]),
        registers=tuple(head["registers"].tolist()),
        stack_address=int(head["stack_address"]),
        stack=bytes(data[at : at + n_pages * abi.STACK_PAGE_BYTES]),
        stack_holes=~pages & (1 << n_pages) - 1,
        library=os.fsdecode(path),
    )


class MissRing(BpfRing):
    """The ring of ``struct miss``: few records, of two sizes."""

    longest_pages = 18

    def take_misses(self, most: int) -> list[Miss]:
        """Takes up to ``most`` finished misses, oldest first, and releases their space."""
        found: list[Miss] = []
        position = self.consumed
        while len(found) < most and position < self.produced:
            at = self.offset(position)
            length = records.read_head(self.data, at)
            if length & BUSY:
                break
            if not length & DISCARD:
                found.append(miss_of(self.data, at + HEAD_BYTES))
            position += (HEAD_BYTES + (length & _LENGTH_MASK) + 7) & ~7
            self.consumed = position
        return found
