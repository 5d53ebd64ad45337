"""Reading BPF ring buffers through memory, without a call per record.

The kernel lets a ring be mapped: one page with the consumer's position (ours to
write), one with the producer's, then the data twice in a row so that no record is
split (kernel/bpf/ringbuf.c; Documentation/bpf/ringbuf.rst). Each record has an
8-byte head, its length and two flag bits; positions only grow. Everything runs on
the thread that pumps events.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc import abi

HEAD_BYTES: Final = 8
BUSY: Final = 1 << 31
DISCARD: Final = 1 << 30
_LENGTH_MASK: Final = DISCARD - 1
_PAGE: Final = mmap.PAGESIZE

RECORD_DTYPE: Final = np.dtype([("length", "<u4"), ("page", "<u4"), *abi.EVENT_FIELDS])
"""One record of the event ring with its head: 48 bytes."""

_MISS_DTYPE: Final = np.dtype(abi.MISS_FIELDS)

Events = npt.NDArray[Any]
"""A structured array of RECORD_DTYPE."""


class Ring:
    """The shared memory of one ring buffer map of ``size_bytes`` data."""

    def __init__(self, map_fd: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._consumer_page = mmap.mmap(map_fd, _PAGE)
        self._producer_pages = mmap.mmap(
            map_fd, _PAGE + 2 * size_bytes, prot=mmap.PROT_READ, offset=_PAGE
        )
        self._consumer = np.frombuffer(self._consumer_page, np.uint64, 1)
        self._producer = np.frombuffer(self._producer_pages, np.uint64, 1)
        self.data = memoryview(self._producer_pages)[_PAGE:]

    @property
    def consumed(self) -> int:
        """Position up to which records were given back, in bytes since the start."""
        return int(self._consumer[0])

    @consumed.setter
    def consumed(self, position: int) -> None:
        self._consumer[0] = position

    @property
    def produced(self) -> int:
        """Position up to which records were reserved, in bytes since the start."""
        return int(self._producer[0])

    def offset(self, position: int) -> int:
        """Where in ``data`` a position lies."""
        return position & (self.size_bytes - 1)


class EventRing(Ring):
    """The ring of ``struct event``: all records have one size, so a stretch is an array."""

    def take(self) -> Events:
        """Copies out all finished records, oldest first, and gives their room back."""
        start = self.consumed
        n = (self.produced - start) // RECORD_DTYPE.itemsize
        if n == 0:
            return np.empty(0, RECORD_DTYPE)
        view = np.frombuffer(self.data, RECORD_DTYPE, n, self.offset(start))
        unfinished = np.flatnonzero(view["length"] & np.uint32(BUSY))
        if len(unfinished):
            n = int(unfinished[0])
        # As plain bytes: numpy copies records field by field, twenty times as slowly.
        events = view[:n].view(np.uint8).copy().view(RECORD_DTYPE)
        self.consumed = start + n * RECORD_DTYPE.itemsize
        return events


@dataclass(frozen=True, slots=True)
class SentStack:
    """One record of ring ``stacks``: ``struct stack``."""

    stack_id: int
    flags: int
    """Of ``enum stack_flag``."""
    image: int
    """The memory image that the addresses are in."""
    frames: tuple[int, ...]
    """Return addresses, innermost first."""


class StackRing(Ring):
    """The ring of ``struct stack``: few records, of any length."""

    HEAD = struct.Struct("<II")
    _STACK = struct.Struct("<QHHI")

    def take(self) -> Iterator[SentStack]:
        """Yields all finished records, oldest first, giving back their room."""
        position = self.consumed
        while position < self.produced:
            at = self.offset(position)
            length, _ = self.HEAD.unpack_from(self.data, at)
            if length & BUSY:
                return
            if not length & DISCARD:
                stack_id, n_frames, flags, image = self._STACK.unpack_from(
                    self.data, at + HEAD_BYTES
                )
                frames = np.frombuffer(
                    self.data, np.uint64, n_frames, at + HEAD_BYTES + self._STACK.size
                )
                yield SentStack(stack_id, flags, image, tuple(frames.tolist()))
            # Heads stand on multiples of eight.
            position += (HEAD_BYTES + (length & _LENGTH_MASK) + 7) & ~7
            self.consumed = position


@dataclass(frozen=True, slots=True)
class Miss:
    """A stack to be finished: ``struct miss`` with the memory behind it."""

    stack_id: int
    generation: int
    image: int
    """The memory image that the addresses are in."""
    missing: int
    """The address that has no row."""
    registers: tuple[int, ...]
    """By ``enum miss_register``: ip, sp, bp, bx, r12 to r15."""
    stack_address: int
    stack: bytes
    """What could be copied from there on."""


class MissRing(Ring):
    """The ring of ``struct miss``: few records, of two sizes."""

    def take(self, most: int) -> list[Miss]:
        """Copies out up to ``most`` finished records, oldest first, and gives back their room."""
        found: list[Miss] = []
        position = self.consumed
        while len(found) < most and position < self.produced:
            at = self.offset(position)
            length, _ = StackRing.HEAD.unpack_from(self.data, at)
            if length & BUSY:
                break
            if not length & DISCARD:
                at += HEAD_BYTES
                head = np.frombuffer(self.data, _MISS_DTYPE, 1, at)[0]
                at += _MISS_DTYPE.itemsize
                found.append(
                    Miss(
                        stack_id=int(head["stack_id"]),
                        generation=int(head["generation"]),
                        image=int(head["image"]),
                        missing=int(head["missing"]),
                        registers=tuple(head["registers"].tolist()),
                        stack_address=int(head["stack_address"]),
                        stack=bytes(self.data[at : at + int(head["stack_bytes"])]),
                    )
                )
            position += (HEAD_BYTES + (length & _LENGTH_MASK) + 7) & ~7
            self.consumed = position
        return found
