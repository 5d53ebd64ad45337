"""The preloaded area: events that a process writes into shared memory by itself.

``probes/preloaded`` runs in the process and makes that memory; ``ringmerge.pyx`` puts its events in
order. The process could have written anything there to harm tracelloc: everything is copied before
it is looked at, and left out if it can't be right.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.errors import TargetError, UnsupportedError
from tracelloc.heap import sampling
from tracelloc.model.codefiles import Mapping
from tracelloc.model.counters import Counter
from tracelloc.model.events import EVENT_DTYPE, Events, Miss, SentStacks
from tracelloc.record import abi
from tracelloc.record.process.procfs import Process
from tracelloc.record.sources.preloaded import ringmerge
from tracelloc.record.sources.preloaded.holder import AreaHolder
from tracelloc.record.sources.preloaded.ringmerge import AreaRings
from tracelloc.record.sources.preloaded.stackrecords import AreaRecords

LIBRARY: Final = Path(__file__).parent / "libtracelloc.abi3.so"
"""What programs have preloaded."""
AREA_NAME: Final = "/memfd:tracelloc-preload"
"""How the shared memory is called in /proc/PID/maps."""
STATE_VARIABLE: Final = "tracelloc_preload_state"
PRECEDED: Final = ringmerge.PRECEDED
"""The variable's value where the program calls another malloc before the library's."""
REFUSALS: Final = {
    ringmerge.REFUSED: "the process could not make the memory for it",
    ringmerge.CONFINED: "the process may not make all system calls (seccomp)",
    ringmerge.LIMITED: "the process's address space is limited (RLIMIT_AS)",
}
"""Why there is no shared memory, by the variable's value (``enum preload_state``)."""
NEXT_VARIABLE: Final = "tracelloc_preload_next"
"""What has the address of the malloc that the library's calls."""

_F_GET_SEALS: Final = 1034
_SEALS: Final = 2 | 4
"""F_SEAL_SHRINK | F_SEAL_GROW, linux/fcntl.h."""
_CLOCK_SOURCES: Final = Path("/sys/devices/system/clocksource/clocksource0/available_clocksource")
_PUNCH_HOLE: Final = 1 | 2
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, linux/falloc.h."""
_LOOKS: Final = 200
_LOOK_AGAIN_S: Final = 0.001
_MOST_COUNTED: Final = 1 << 48
"""No honest counter is larger."""
"""How often, and after what time, events are looked for that threads are just writing."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def preloaded_library() -> Path:
    """What programs have preloaded. Raises UnsupportedError if there is none."""
    if not LIBRARY.exists():
        raise UnsupportedError(
            f"{LIBRARY} is missing: it is built with tracelloc, for x86-64",
            hint="--preload=off needs no library",
        )
    return LIBRARY


def area_mappings(mappings: Iterable[Mapping]) -> list[Mapping]:
    """Where a process has the shared memory: a page, and, once there are events, all of it."""
    return [mapping for mapping in mappings if mapping.path.startswith(AREA_NAME)]


def usable_clock() -> int:
    """What orders events of different threads (``enum preload_clock``).

    The kernel lists the time stamp counter only while it finds that it runs everywhere as one.
    """
    try:
        sources = _CLOCK_SOURCES.read_text().split()
    except OSError:
        sources = []
    return ringmerge.CLOCK_TSC if "tsc" in sources else ringmerge.CLOCK_COUNTER


_REASONS: Final = {
    0: "",
    ringmerge.FILTERED: "filters its system calls (seccomp)",
    ringmerge.NO_ROOM: "has no room for the memory that it would share with tracelloc",
    ringmerge.LOCKED: "locks its memory (mlockall)",
    ringmerge.DEEP_BIND: "has a library that calls the C library directly (RTLD_DEEPBIND)",
    ringmerge.NAMESPACE: "has a library in a namespace of its own (dlmopen)",
    ringmerge.NO_CLOCK: "may make no system calls, or not read the time stamp counter",
}


def _reason(number: int) -> str:
    """What ``enum preload_reason`` means, as what follows a process's name."""
    return _REASONS.get(number, "reports what it should not")


class SharedArea:
    """The shared memory of one process, from when it is found until ``close``."""

    def __init__(self, process: Process, mapping: Mapping, image: int) -> None:
        """``image``: the number of the memory image. Events are not wanted yet.

        Raises TargetError if another profiler has it, or it is not what it should be.
        """
        self.image = image
        self._process = process
        self._holder: AreaHolder | None = None
        self._is_over = self.was_given_up = False
        """``was_given_up``: whether the process had stopped reporting before we wanted that."""
        self.is_filtered = False
        """Whether some of its system calls were forbidden when last looked."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK  # a lease on the file would have us wait
        try:
            self._fd = os.open(process.mapping_path(mapping), flags)
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
        if seals & _SEALS != _SEALS or os.fstat(self._fd).st_size != ringmerge.FILE_BYTES:
            raise TargetError(f"process {pid} has {name} of another version of tracelloc preloaded")
        try:
            memory = mmap.mmap(self._fd, ringmerge.FILE_BYTES)
        except OSError as error:
            raise TargetError(
                f"process {pid}'s shared memory can't be mapped: {error.strerror}"
            ) from error
        fields = ringmerge.FIELDS
        magic, own_pid, reason = (
            int.from_bytes(memory[fields[name] : fields[name] + size], "little")
            for name, size in (("magic", 8), ("pid", 4), ("why_not", 4))
        )
        if magic != ringmerge.MAGIC:
            raise TargetError(f"process {pid} has {name} of another version of tracelloc preloaded")
        if own_pid != pid:
            # Threads go by the ids that they know themselves by.
            raise TargetError(f"process {pid} is in another PID namespace")
        if not reason and self._process.has_seccomp_filter():
            reason = ringmerge.FILTERED
        if reason:
            raise TargetError(f"process {pid} {_reason(reason)}")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TargetError(
                f"process {pid} reports to another tracelloc through {name}",
                hint="--preload=off uses probes, which several can have",
            ) from error
        return memory

    def _begin(self) -> None:
        """Forgets what was there for an earlier profiler."""
        self.rows = self._array(ringmerge.AT_ROWS, abi.ROW_SET_DTYPE, ringmerge.ROW_SETS)
        self.space = self._array(ringmerge.FIELDS["space"], abi.SPACE_DTYPE, 1)
        self._counters = self._field("counters", np.uint64, len(Counter))
        self._counters[:] = 0
        self._leaving = self._field("leaving", np.uint32)
        self._gave_up = self._field("gave_up", np.uint32)
        self._leaving[0] = self._gave_up[0] = 0
        known = ringmerge.AT_RECORDS - ringmerge.AT_KNOWN
        self._array(ringmerge.AT_KNOWN, np.dtype(np.uint8), known)[:] = 0
        self._array(ringmerge.AT_RECORDS, np.dtype(np.uint8), ringmerge.RECORD_BYTES)[:] = 0
        sampled = ringmerge.AT_RINGS - ringmerge.AT_FILTER
        self._array(ringmerge.AT_FILTER, np.dtype(np.uint8), sampled)[:] = 0
        self._records = AreaRecords(self._memory, self.image)
        self._rings: AreaRings | None = None

    def _array(self, at: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._memory, dtype, count, at)

    def _field(self, name: str, kind: Any, count: int = 1) -> npt.NDArray[Any]:
        return self._array(ringmerge.FIELDS[name], np.dtype(kind), count)

    def set_up(
        self,
        *,
        max_frames: int,
        min_size: int,
        max_size: int | None,
        sample_bytes: int | None = None,
        clock: int | None = None,
        max_stall_s: float = 1.0,
    ) -> None:
        """What is reported; before ``switch_on``. ``clock``: None: the best that there is.

        ``max_stall_s``: how long a thread waits for us before events are counted, not reported.
        """
        counter = self._field("counter", np.uint64)
        counter[0] = max(1, int(counter[0]))
        self._field("samples", np.uint32)[0] = sample_bytes is not None
        if sample_bytes is not None:
            lengths = sampling.gaps(sample_bytes)
            self._array(ringmerge.AT_GAPS, lengths.dtype, ringmerge.GAPS)[:] = lengths
        self._field("clock", np.uint32)[0] = usable_clock() if clock is None else clock
        max_stall_ticks = int(max_stall_s * ringmerge.ticks_per_second())
        self._field("max_stall", np.uint64)[0] = max_stall_ticks
        self._field("max_frames", np.uint32)[0] = max_frames
        self._field("min_size", np.uint64)[0] = min_size
        self._field("max_size", np.uint64)[0] = (1 << 64) - 1 if max_size is None else max_size

    def switch_on(self) -> None:
        """Events are wanted from here on."""
        if self._holder is None and not self._is_over:
            self.look_after()
            self._rings = AreaRings(memoryview(self._memory), self.image, time.monotonic_ns())
            self._holder = AreaHolder(self._field("holder", np.uint32))

    def switch_off(self) -> None:
        """Nothing is wanted any more; what was reported can still be taken."""
        if self._is_over:
            return
        self.was_given_up = self.is_given_up
        # The pump must not take this for the process's own doing.
        holder, self._holder = self._holder, None
        self._is_over = True
        if holder is not None:
            holder.release()

    def look_after(self) -> None:
        """To be called now and then: whether the process may make all system calls."""
        self.is_filtered = self._process.has_seccomp_filter()
        self._field("may_call", np.uint32)[0] = not self.is_filtered

    # Handing over to probes.

    def begin_leaving(self) -> None:
        """Has no thread begin a call from here on, until ``switch_off``. Raises OSError."""
        self._leaving[0] = 1
        if self._rings is not None:
            self._rings.pass_barrier()

    @property
    def is_left(self) -> bool:
        """Whether no thread is in a call, and all that was reported is taken."""
        return (self._rings is None or not self._rings.inside) and self.is_quiet

    @property
    def is_given_up(self) -> bool:
        """Whether the process reports nothing more, though it is wanted."""
        holder = self._holder
        return holder is not None and not holder.is_there and self._holder is holder

    @property
    def is_damaged(self) -> bool:
        """Whether the process has written what its library would not."""
        return self._records.is_damaged or (self._rings is not None and self._rings.is_damaged)

    @property
    def is_late(self) -> bool:
        """Whether the process has waited for us in vain, and begun by itself."""
        return bool(self._field("is_late", np.uint32)[0])

    @property
    def is_leaving(self) -> bool:
        """Whether the process waits for probes, or waited for them in vain."""
        return bool(self._leaving[0])

    @property
    def why_not(self) -> str:
        """Why what the process reports is not all that there is; empty if it is."""
        return _reason(int(self._field("why_not", np.uint32)[0]))

    @property
    def ring_share(self) -> float:
        """How full the fullest ring was, 0 to 1."""
        return 0.0 if self._rings is None else self._rings.fullest / ringmerge.SLOTS

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come since the last time."""
        return self._rings is None or (self._rings.is_quiet and not self.has_records)

    @property
    def has_records(self) -> bool:
        """Whether stacks or misses have come that are not taken."""
        return self._records.has_more

    @property
    def is_unfinished(self) -> bool:
        """Whether some thread was just writing an event when they were last taken."""
        return self._rings is not None and self._rings.is_unfinished

    def take(self, *, whole: bool = False) -> Events:
        """All events that are known to be complete, in their order.

        ``whole``: the process is gone, or stopped for good: what is unfinished stays so.
        """
        if self._rings is None:
            return np.empty(0, EVENT_DTYPE)
        if self._is_over:
            self._rings.freeze()
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
        events = np.empty(count, EVENT_DTYPE)
        if count:
            events = events[: self._rings.merge(cut, now_ns, events.view(np.uint8))]
        if self._gave_up[0]:
            # There is room again: threads may wait for more.
            self._gave_up[0] = 0
        return events

    def counters(self) -> npt.NDArray[np.uint64]:
        """Indexed by ``abi.Counter``."""
        counters: npt.NDArray[np.uint64] = np.minimum(self._counters, np.uint64(_MOST_COUNTED))
        if self._rings is not None:
            # What they would have said nobody knows.
            counters[Counter.LOST_FREES] += np.uint64(self._rings.abandoned)
        return counters

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """(memory image, stacks) that were sent since the last time."""
        return self._records.take_stacks()

    def take_misses(self, most: int) -> list[Miss]:
        """Stacks that are to be finished, at most so many."""
        return self._records.take_misses(most)

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
        start, end = ringmerge.AT_ROWS, ringmerge.AT_RINGS
        # Memory that stays there is no harm but its own.
        _LIBC.fallocate(self._fd, _PUNCH_HOLE, ctypes.c_long(start), ctypes.c_long(end - start))
        os.close(self._fd)
        self._fd = -1
