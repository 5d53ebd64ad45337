"""The preloaded lane: events that a process writes into shared memory by itself.

``probes/lane`` is what runs in the process and makes that memory, ``lanemerge.pyx`` puts its events
in order. What is read here the process could have written to harm us: everything is copied before
it is looked at, and left out if it can't be.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc import abi, sampling
from tracelloc.capture import lanemerge
from tracelloc.capture.laneholder import LaneHolder
from tracelloc.capture.lanemerge import LaneRings
from tracelloc.capture.ring import Events, Miss, SentStacks, miss_of
from tracelloc.errors import TargetError, UnsupportedError
from tracelloc.target.procfs import Mapping, Process

LIBRARY: Final = Path(__file__).parent / "libtracelloc.abi3.so"
"""What programs have preloaded."""
AREA_NAME: Final = "/memfd:tracelloc-lane"
"""How the shared memory is called in /proc/PID/maps."""
STATE_VARIABLE: Final = "tracelloc_lane_state"
REFUSED: Final = 2
"""The variable's value where the shared memory can't be made (``enum lane_state``)."""
PRECEDED: Final = 3
"""The variable's value where the program calls another malloc before the library's."""
NEXT_VARIABLE: Final = "tracelloc_lane_next"
"""What has the address of the malloc that the library's calls."""

_F_GET_SEALS: Final = 1034
_SEALS: Final = 2 | 4
"""F_SEAL_SHRINK | F_SEAL_GROW, linux/fcntl.h."""
_CLOCK_SOURCES: Final = Path("/sys/devices/system/clocksource/clocksource0/available_clocksource")
_HEAD_BYTES: Final = 8
_STACK: Final = struct.Struct("<QHHI")
"""The head of ``struct stack``."""
_MISS_BYTES: Final = np.dtype(abi.MISS_FIELDS).itemsize
_WALKED: Final = 0xFF
"""Flags of stacks that walks end with; the others are for other records."""
_PUNCH_HOLE: Final = 1 | 2
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, linux/falloc.h."""
_LOOKS: Final = 200
_LOOK_AGAIN_S: Final = 0.001
"""How often, and after what time, events are looked for that threads are just writing."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def preloaded_library() -> Path:
    """What programs have preloaded. Raises UnsupportedError if there is none."""
    if not LIBRARY.exists():
        raise UnsupportedError(
            f"{LIBRARY} is missing: it is built with tracelloc, for x86-64",
            hint="--lane=off needs no library",
        )
    return LIBRARY


def area_mappings(mappings: Iterable[Mapping]) -> list[Mapping]:
    """Where a process has the shared memory: a page, and, once there are events, all of it."""
    return [mapping for mapping in mappings if mapping.path.startswith(AREA_NAME)]


def usable_clock() -> int:
    """What orders events of different threads (``enum lane_clock``).

    The kernel lists the time stamp counter only while it finds that it runs everywhere as one.
    """
    try:
        sources = _CLOCK_SOURCES.read_text().split()
    except OSError:
        sources = []
    return lanemerge.CLOCK_TSC if "tsc" in sources else lanemerge.CLOCK_COUNTER


_REASONS: Final = {
    0: "",
    lanemerge.DEEP_BIND: "has a library that calls the C library directly (RTLD_DEEPBIND)",
    lanemerge.NAMESPACE: "has a library in a namespace of its own (dlmopen)",
    lanemerge.NO_CLOCK: "may make no system calls, or not read the time stamp counter",
}


def _reason(number: int) -> str:
    """What ``enum lane_reason`` means, as what follows a process's name."""
    return _REASONS.get(number, "reports what it should not")


class Lane:
    """The shared memory of one process, from when it is found until ``close``."""

    def __init__(self, process: Process, mapping: Mapping, image: int) -> None:
        """``image``: the number of the memory image. Events are not wanted yet.

        Raises TargetError if another profiler has it, or it is not what it should be.
        """
        self.image = image
        self._process = process
        self._holder: LaneHolder | None = None
        self._is_over = False
        try:
            self._fd = os.open(process.mapping_path(mapping), os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise TargetError(
                f"the memory of {LIBRARY.name} in process {process.pid} can't be opened: "
                f"{error.strerror}"
            ) from error
        try:
            self._memory = self._map()
        except BaseException:
            os.close(self._fd)
            raise
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._begin()

    def _map(self) -> mmap.mmap:
        pid, name = self._process.pid, LIBRARY.name
        try:
            seals = fcntl.fcntl(self._fd, _F_GET_SEALS)
        except OSError:
            seals = 0
        if seals & _SEALS != _SEALS or os.fstat(self._fd).st_size != lanemerge.FILE_BYTES:
            raise TargetError(f"process {pid} has {name} of another version of tracelloc preloaded")
        memory = mmap.mmap(self._fd, lanemerge.FILE_BYTES)
        fields = lanemerge.FIELDS
        magic, own_pid, reason = (
            int.from_bytes(memory[fields[name] : fields[name] + size], "little")
            for name, size in (("magic", 8), ("pid", 4), ("why_not", 4))
        )
        if magic != lanemerge.MAGIC:
            raise TargetError(f"process {pid} has {name} of another version of tracelloc preloaded")
        if own_pid != pid:
            # Threads go by the ids that they know themselves by.
            raise TargetError(f"process {pid} is in another PID namespace")
        if reason:
            raise TargetError(f"process {pid} {_reason(reason)}")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TargetError(
                f"process {pid} reports to another tracelloc through {name}",
                hint="--lane=off uses probes, which several can have",
            ) from error
        return memory

    def _begin(self) -> None:
        """Forgets what was there for an earlier profiler."""
        self.rows = self._array(lanemerge.AT_ROWS, abi.ROW_SET_DTYPE, lanemerge.ROW_SETS)
        self.space = self._array(lanemerge.FIELDS["space"], abi.SPACE_DTYPE, 1)
        self._counters = self._field("counters", np.uint64, len(abi.Counter))
        self._counters[:] = 0
        self._unmappable = self._field("unmappable", np.uint32)
        self._unmappable[0] = 0
        self._field("leaving", np.uint32)[0] = 0
        known = lanemerge.AT_RECORDS - lanemerge.AT_KNOWN
        self._array(lanemerge.AT_KNOWN, np.dtype(np.uint8), known)[:] = 0
        self._array(lanemerge.AT_RECORDS, np.dtype(np.uint8), lanemerge.RECORD_BYTES)[:] = 0
        sampled = lanemerge.AT_RINGS - lanemerge.AT_FILTER
        self._array(lanemerge.AT_FILTER, np.dtype(np.uint8), sampled)[:] = 0
        self._reserved = self._field("records_reserved", np.uint64)
        self._taken = int(self._reserved[0])
        self._field("records_taken", np.uint64)[0] = self._taken
        self._stacks: list[tuple[int, int, npt.NDArray[np.uint64]]] = []
        self._misses: list[Miss] = []
        self._rings: LaneRings | None = None

    def _array(self, at: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._memory, dtype, count, at)

    def _field(self, name: str, kind: Any, count: int = 1) -> npt.NDArray[Any]:
        return self._array(lanemerge.FIELDS[name], np.dtype(kind), count)

    def set_up(
        self,
        *,
        max_frames: int,
        min_size: int,
        max_size: int | None,
        sample_bytes: int | None = None,
        clock: int | None = None,
    ) -> None:
        """What is reported; before ``switch_on``. ``clock``: None: the best that there is."""
        counter = self._field("counter", np.uint64)
        counter[0] = max(1, int(counter[0]))
        self._field("samples", np.uint32)[0] = sample_bytes is not None
        if sample_bytes is not None:
            lengths = sampling.gaps(sample_bytes)
            self._array(lanemerge.AT_GAPS, lengths.dtype, lanemerge.GAPS)[:] = lengths
        self._field("clock", np.uint32)[0] = usable_clock() if clock is None else clock
        self._field("max_frames", np.uint32)[0] = max_frames
        self._field("min_size", np.uint64)[0] = min_size
        self._field("max_size", np.uint64)[0] = (1 << 64) - 1 if max_size is None else max_size

    def switch_on(self) -> None:
        """Events are wanted from here on."""
        if self._holder is None and not self._is_over:
            self.look_after()
            self._rings = LaneRings(memoryview(self._memory), self.image, time.monotonic_ns())
            self._holder = LaneHolder(self._field("holder", np.uint32))

    def switch_off(self) -> None:
        """Nothing is wanted any more; what was reported can still be taken."""
        # The pump must not take this for the process's own doing.
        holder, self._holder = self._holder, None
        self._is_over = True
        if holder is not None:
            holder.release()

    def look_after(self) -> None:
        """To be called now and then: whether threads that wait may make system calls."""
        self._field("may_call", np.uint32)[0] = not self._process.has_seccomp_filter()

    @property
    def is_late(self) -> bool:
        """Whether the process has waited for us in vain, and begun by itself."""
        return bool(self._field("is_late", np.uint32)[0])

    @property
    def has_left(self) -> bool:
        """Whether the process waits for probes, for which ``why_not`` has the reason."""
        return bool(self._field("leaving", np.uint32)[0] == lanemerge.LEFT)

    @property
    def is_leaving(self) -> bool:
        """Whether the process has begun to wait for that."""
        return bool(self._field("leaving", np.uint32)[0])

    @property
    def why_not(self) -> str:
        """Why what the process reports is not all that there is; empty if it is."""
        return _reason(int(self._field("why_not", np.uint32)[0]))

    @property
    def ring_share(self) -> float:
        """How full the fullest ring was, 0 to 1."""
        return 0.0 if self._rings is None else self._rings.fullest / lanemerge.SLOTS

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come since the last time."""
        return self._rings is None or (self._rings.is_quiet and not self.has_records)

    @property
    def has_records(self) -> bool:
        """Whether stacks or misses have come that are not taken."""
        return int(self._reserved[0]) != self._taken

    @property
    def is_unfinished(self) -> bool:
        """Whether some thread was just writing an event when they were last taken."""
        return self._rings is not None and self._rings.is_unfinished

    def take(self, *, whole: bool = False) -> Events:
        """All events that are known to be complete, in their order. Raises TargetError.

        ``whole``: the process is gone, or stopped for good: what is unfinished stays so.
        """
        refusal = int(self._unmappable[0])
        if refusal:
            raise TargetError(
                f"process {self._process.pid} can't have the memory for its events: "
                f"{os.strerror(refusal)}",
                hint="--lane=off needs none of the process's own",
            )
        if self._rings is None:
            return np.empty(0, abi.EVENT_DTYPE)
        holder = self._holder
        if holder is not None and not holder.is_there and self._holder is holder:
            why = self.why_not
            raise TargetError(
                f"process {self._process.pid} goes on untraced: it "
                + (why or "had to wait for tracelloc, which did nothing for seconds"),
                hint="--lane=off traces it all the same" if why else "--lane=off never has it wait",
            )
        now_ns = time.monotonic_ns()
        count, cut = self._rings.look(whole, now_ns)
        looks = 0
        while self._is_over and not whole and self._rings.is_unfinished:
            # Whoever was at it when it was switched off is soon done, unless it is gone.
            time.sleep(_LOOK_AGAIN_S)
            looks += 1
            count, cut = self._rings.look(looks > _LOOKS, now_ns)
            if looks > _LOOKS:
                break
        events = np.empty(count, abi.EVENT_DTYPE)
        if count:
            events = events[: self._rings.merge(cut, now_ns, events.view(np.uint8))]
        return events

    def counters(self) -> npt.NDArray[np.uint64]:
        """Indexed by ``abi.Counter``."""
        counters = self._counters.copy()
        if self._rings is not None:
            # What they would have said nobody knows.
            counters[abi.Counter.LOST_FREES] += np.uint64(self._rings.abandoned)
        return counters

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """(memory image, stacks) that were sent since the last time."""
        self._read_records()
        taken, self._stacks = self._stacks, []
        if not taken:
            return []
        ids, flags, frames = zip(*taken, strict=True)
        depths = np.fromiter(map(len, frames), np.int64, len(frames))
        columns = np.array(ids, np.uint64), np.array(flags, np.uint16), depths
        return [(self.image, SentStacks(*columns, np.concatenate(frames)))]

    def take_misses(self, most: int) -> list[Miss]:
        """Stacks that are to be finished, at most so many."""
        self._read_records()
        taken, self._misses = self._misses[:most], self._misses[most:]
        return taken

    def _read_records(self) -> None:
        end = int(self._reserved[0])
        if end == self._taken or not 0 <= end - self._taken <= lanemerge.RECORD_BYTES:
            return
        begun = self._taken
        while self._taken < end:
            at = self._taken % lanemerge.RECORD_BYTES
            start = lanemerge.AT_RECORDS + at
            head = int.from_bytes(self._memory[start : start + _HEAD_BYTES], "little")
            length = head & 0xFFFFFFFF
            room = min(lanemerge.RECORD_BYTES - at, end - self._taken)
            if not _HEAD_BYTES <= length <= room or length % 8:
                break
            record = self._memory[start + _HEAD_BYTES : start + length]
            self._note_record(head >> lanemerge.KIND_SHIFT, record)
            # Whoever comes next tells by the zeros what is not written yet.
            self._memory[start : start + length] = bytes(length)
            self._taken += length
        if self._taken != begun:
            self._field("records_taken", np.uint64)[0] = self._taken

    def _note_record(self, kind: int, record: bytes) -> None:
        """Notes a record that is no longer in the process's reach."""
        if kind == lanemerge.RECORD_STACK and len(record) >= _STACK.size:
            stack_id, n_frames, flags, _ = _STACK.unpack_from(record)
            if stack_id and len(record) >= _STACK.size + 8 * n_frames:
                frames = np.frombuffer(record, np.uint64, n_frames, _STACK.size)
                self._stacks.append((stack_id, flags & _WALKED, frames))
        elif kind == lanemerge.RECORD_MISS and len(record) >= _MISS_BYTES:
            miss = miss_of(memoryview(record), 0)
            if miss.stack_id:
                self._misses.append(replace(miss, image=self.image))

    # The end.

    def release_rings(self, is_gone: Callable[[int], bool]) -> None:
        """Gives back rings of threads that are gone."""
        if self._rings is None:
            return
        for ring, thread_id in self._rings.owners():
            if is_gone(thread_id):
                self._rings.release(ring)

    def close(self) -> None:
        """Switches it off, and gives the memory back. May be called twice."""
        self.switch_off()
        if self._fd < 0:
            return
        start, end = lanemerge.AT_ROWS, lanemerge.AT_RINGS
        # Memory that stays there is no harm but its own.
        _LIBC.fallocate(self._fd, _PUNCH_HOLE, ctypes.c_long(start), ctypes.c_long(end - start))
        os.close(self._fd)
        self._fd = -1
