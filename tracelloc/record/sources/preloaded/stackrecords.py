"""Reads stacks that a process with the preloaded library has sent, also unfinished ones.

Stacks are in a ring of records in the shared memory (``probes/preloaded/records.h``), to which the
process may write at any time: tracelloc copies each record, then checks it.
"""

import mmap
import struct
import time
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.events import Miss, SentStacks
from tracelloc.model.stacks import StackFlag
from tracelloc.record import abi
from tracelloc.record.kernel.ring import miss_of
from tracelloc.record.sources.preloaded import ringmerge

_HEAD_BYTES: Final = 8
_STACK: Final = struct.Struct("<QHHI")  # The head of `struct stack`
_MISS_BYTES: Final = np.dtype(abi.MISS_FIELDS).itemsize
# Flags with which walks end; the other bits are for other records.
_DATED, _PLACED = int(StackFlag.DATED), int(StackFlag.PLACED)
_WALKED: Final = 0xFF | _DATED | _PLACED
_PLACED_WORDS: Final = 3
_MOST_WAITING: Final = 1024  # Most misses stored at once
_UNWRITTEN_S: Final = 5.0  # Longest time that a record may be unwritten


class AreaRecords:
    """The ring of stack records in one process's shared memory. Not thread safe."""

    def __init__(self, memory: mmap.mmap, image: int) -> None:
        """``memory``: the whole shared memory; ``image``: the number of the memory image."""
        self._memory, self._image = memory, image
        self._reserved, self._shared_taken = (
            np.frombuffer(memory, np.uint64, 1, ringmerge.FIELDS[name])
            for name in ("records_reserved", "records_taken")
        )
        self._taken = int(self._reserved[0])
        self._shared_taken[0] = self._taken
        self._stacks: list[tuple[int, int, npt.NDArray[np.uint64]]] = []
        self._misses: list[Miss] = []
        self._unwritten_since_s: float | None = None
        self.is_damaged = False  # Whether a record is impossible; nothing more is read then

    @property
    def has_more(self) -> bool:
        """Whether there are records to take, or to be declared as taken."""
        return int(self._reserved[0]) != int(self._shared_taken[0])

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """Takes stacks sent since the last call: (memory image, its call stacks)."""
        self._read()
        taken, self._stacks = self._stacks, []
        if not taken:
            return []
        ids, flags, frames = zip(*taken, strict=True)
        depths = np.fromiter(map(len, frames), np.int64, len(frames))
        columns = np.array(ids, np.uint64), np.array(flags, np.uint16), depths
        return [(self._image, SentStacks(*columns, np.concatenate(frames)))]

    def take_misses(self, most: int) -> list[Miss]:
        """Takes up to ``most`` stacks that user space must finish."""
        if len(self._misses) < most:
            self._read()
        taken, self._misses = self._misses[:most], self._misses[most:]
        return taken

    def _read(self) -> None:
        end, begun = int(self._reserved[0]), self._taken
        if not self._misses:
            # Only now: a thread waits in dlclose(3) until the misses before have been processed.
            ringmerge.fence()  # the zeros must be there first
            self._shared_taken[0] = begun
        if end == begun or self.is_damaged or len(self._misses) >= _MOST_WAITING:
            self._unwritten_since_s = None
            return
        if not 0 <= end - begun <= ringmerge.RECORD_BYTES:
            self.is_damaged = True
            return
        while self._taken < end and self._read_one(end):
            pass
        now_s = time.monotonic()
        if self._taken != begun:
            self._unwritten_since_s = None
        elif self._unwritten_since_s is None:
            self._unwritten_since_s = now_s
        elif now_s - self._unwritten_since_s > _UNWRITTEN_S:
            # Its thread has left it, and no other will finish it.
            self.is_damaged = True

    def _read_one(self, end: int) -> bool:
        at = self._taken % ringmerge.RECORD_BYTES
        start = ringmerge.AT_RECORDS + at
        head = int.from_bytes(self._memory[start : start + _HEAD_BYTES], "little")
        length = head & 0xFFFFFFFF
        room = min(ringmerge.RECORD_BYTES - at, end - self._taken)
        if not head:
            return False
        ringmerge.fence()  # the rest was written before
        if not _HEAD_BYTES <= length <= room or length % 8:
            self.is_damaged = True
            return False
        record = self._memory[start + _HEAD_BYTES : start + length]
        self.is_damaged = not self._note(head >> ringmerge.KIND_SHIFT, record)
        # The next reader recognizes unwritten records by the zeros.
        self._memory[start : start + length] = bytes(length)
        self._taken += length
        return not self.is_damaged

    def _note(self, kind: int, record: bytes) -> bool:
        if kind == ringmerge.RECORD_STACK and len(record) >= _STACK.size:
            stack_id, n_frames, flags, _ = _STACK.unpack_from(record)
            is_whole = len(record) >= _STACK.size + 8 * n_frames
            is_odd = flags & _PLACED and n_frames != _PLACED_WORDS
            is_odd = is_odd or (flags & _DATED and not n_frames)
            if not stack_id or n_frames > ringmerge.MOST_FRAMES + 1 or not is_whole or is_odd:
                return False
            frames = np.frombuffer(record, np.uint64, n_frames, _STACK.size)
            self._stacks.append((stack_id, flags & _WALKED, frames))
        elif kind == ringmerge.RECORD_MISS and len(record) >= _MISS_BYTES:
            miss = miss_of(memoryview(record), 0)
            if not miss.stack_id:
                return False
            self._misses.append(replace(miss, image=self._image))
        else:
            return kind == ringmerge.RECORD_PAD
        return True
