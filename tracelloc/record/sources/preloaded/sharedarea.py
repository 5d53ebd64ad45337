"""The preloaded library's shared area: events that a process itself writes to shared memory.

``probes/preloaded`` runs in the process and creates that memory; ``ringmerge.pyx`` orders the
events. A malicious process could write anything there: tracelloc copies everything before
it reads it, and drops what can't be right.
"""

import ctypes
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import native
from tracelloc.errors import TargetError, UnsupportedError
from tracelloc.heap import sampling
from tracelloc.model.codefiles import Mapping
from tracelloc.model.events import EVENT_DTYPE, Events
from tracelloc.model.losses import Counter
from tracelloc.record import abi
from tracelloc.record.process.memory import PAGE_BYTES
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.sources.preloaded import ringmerge
from tracelloc.record.sources.preloaded.holder import AreaHolder
from tracelloc.record.sources.preloaded.ringmerge import AreaRings
from tracelloc.record.sources.preloaded.stackrecords import AreaRecords
from tracelloc.system.syscalls import closed_after, closed_on_error
from tracelloc.text import NS_PER_S

LIBRARY: Final = Path(__file__).parent / "libtracelloc.abi3.so"  # The library that programs preload
AREA_NAME: Final = "/memfd:tracelloc-preload"  # The name of the shared memory in /proc/PID/maps
# A variable of the library, the field of the shared memory that has its value at the start, and
# the size of both in bytes. The state is 0 before the library's initialization.
STATE_VARIABLE: Final = "tracelloc_preload_state", "state", 4
# The variable's value if the program calls another malloc before the library's.
PRECEDED: Final = ringmerge.PRECEDED
# Why there is no shared memory, by the variable's value (`enum preload_state`).
REFUSALS: Final = {
    ringmerge.REFUSED: "the process could not make the memory for it",
    ringmerge.CONFINED: "the process may not make all system calls (seccomp)",
    ringmerge.LIMITED: "the process's address space is limited (RLIMIT_AS)",
    ringmerge.WITHDRAWN: "it was injected earlier, and is idle (--preload inject uses it again)",
}
# A variable: what makes a forked child report, and what that returns to.
CHILD_CODE: Final = "tracelloc_preload_in_child"
# The address of the malloc that the library calls.
NEXT_VARIABLE: Final = "tracelloc_preload_next", "next", 8

_F_GET_SEALS: Final = 1034
_SEALS: Final = 2 | 4  # F_SEAL_SHRINK | F_SEAL_GROW, linux/fcntl.h
_CLOCK_SOURCES: Final = Path("/sys/devices/system/clocksource/clocksource0/available_clocksource")
_PUNCH_HOLE: Final = 1 | 2  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, linux/falloc.h
_LOOKS, _LOOK_AGAIN_S = 200, 0.001  # How often, how far apart to look for unfinished events
_MOST_COUNTED: Final = 1 << 48  # Upper limit of plausible counters
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def preloaded_library() -> Path:
    """Returns the path of the preloaded library. Raises UnsupportedError if it is missing."""
    if not LIBRARY.exists():
        raise UnsupportedError(
            f"{LIBRARY} is missing: it is built with tracelloc, for {native().title}",
            hint="--preload=off needs no library",
        )
    return LIBRARY


def area_mappings(mappings: Iterable[Mapping]) -> list[Mapping]:
    """Returns the mappings of the shared memory: a page, and the whole once there are events."""
    return [mapping for mapping in mappings if mapping.path.startswith(AREA_NAME)]


def usable_clock() -> int:
    """Returns the clock that orders events of different threads (``enum preload_clock``)."""
    # The kernel lists the time stamp counter only while it is synchronized across processors.
    with suppress(OSError):
        if "tsc" in _CLOCK_SOURCES.read_text().split():
            return ringmerge.CLOCK_TSC
    return ringmerge.CLOCK_COUNTER


# Predicates of a process by `enum preload_reason`
_REASONS: Final = {
    0: "",
    ringmerge.FILTERED: "filters its system calls (seccomp)",
    ringmerge.NO_ROOM: "has no room for the memory that it would share with tracelloc",
    ringmerge.LOCKED: "locks its memory (mlockall)",
    ringmerge.DEEP_BIND: "has a library that calls the C library directly (RTLD_DEEPBIND)",
    ringmerge.NAMESPACE: "has a library in a namespace of its own (dlmopen)",
    ringmerge.NO_CLOCK: "may make no system calls, or not read the time stamp counter",
}
_UNKNOWN_REASON: Final = "reports what it should not"


def _open_area(process: Process, mapping: Mapping, flags: int) -> int:
    """Opens the shared memory. Raises OSError.

    Only root may open a mapping; others open the library's descriptor, which stays open for them.
    """
    try:
        return os.open(process.mapping_path(mapping), flags)
    except PermissionError:
        for entry in (process.memory_directory / "fd").iterdir():
            if entry.stat().st_ino == mapping.inode and str(entry.readlink()).startswith(AREA_NAME):
                return os.open(entry, flags)
        raise


def read_field(process: Process, mapping: Mapping, name: str, size_bytes: int) -> int:
    """Returns a field of the shared memory; 0 if it can't be read."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    with suppress(OSError), closed_after(_open_area(process, mapping, flags)) as area:
        return int.from_bytes(os.pread(area, size_bytes, ringmerge.FIELDS[name]), "little")
    return 0


def is_used(space: AddressSpace) -> bool:
    """Returns whether any tracelloc takes the events of a process's library. Raises OSError."""
    for mapping in area_mappings(space.mappings):
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
        with closed_after(_open_area(space.process, mapping, flags)) as area:
            if not _takes_lock(area):
                return True
    return False


def _takes_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class SharedArea:
    """The shared memory of one process, from its discovery until ``close``."""

    def __init__(
        self, process: Process, mapping: Mapping, image: int, inherited_filters: int = 0
    ) -> None:
        """``image`` is the number of the memory image. Events are not wanted yet.

        ``inherited_filters``: filters of system calls that permit what the library does.
        Raises TargetError if another profiler uses the memory, or it is not as expected.
        """
        self.image, self._process, self._inherited_filters = image, process, inherited_filters
        self._holder: AreaHolder | None = None
        # `was_given_up`: whether the process had stopped reporting before tracelloc asked
        self._is_over = self.was_given_up = False
        self.is_filtered = False  # Whether seccomp restricted the process at the last check
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK  # a lease on the file would block open
        try:
            self._fd = _open_area(process, mapping, flags)
        except OSError as error:
            what = f"the memory of {LIBRARY.name} in process {process.pid} can't be opened"
            raise TargetError(f"{what}: {error.strerror}") from error
        with closed_on_error(self._fd):
            self._memory = self._map()
        self._begin()

    def _map(self) -> mmap.mmap:
        pid, name = self._process.pid, LIBRARY.name
        try:
            seals = fcntl.fcntl(self._fd, _F_GET_SEALS)
        except OSError:
            seals = 0
        other = f"process {pid} has {name} of another version of tracelloc preloaded"
        if seals & _SEALS != _SEALS or os.fstat(self._fd).st_size != ringmerge.FILE_BYTES:
            raise TargetError(other)
        try:
            memory = mmap.mmap(self._fd, ringmerge.FILE_BYTES)
        except OSError as error:
            what = f"process {pid}'s shared memory can't be mapped: {error.strerror}"
            raise TargetError(what) from error
        fields = ringmerge.FIELDS
        magic, own_pid, reason = (
            int.from_bytes(memory[fields[name] : fields[name] + size], "little")
            for name, size in (("magic", 8), ("pid", 4), ("why_not", 4))
        )
        if magic != ringmerge.MAGIC:
            raise TargetError(other)
        if own_pid != pid:
            # Threads identify themselves by the ids of their own namespace.
            raise TargetError(f"process {pid} is in another PID namespace")
        if not reason and self._process.has_seccomp_filter(self._inherited_filters):
            reason = ringmerge.FILTERED
        if reason:
            raise TargetError(f"process {pid} {_REASONS.get(reason, _UNKNOWN_REASON)}")
        if not _takes_lock(self._fd):
            raise TargetError(
                f"process {pid} reports to another tracelloc through {name}",
                hint="--preload=off uses probes, which several can have",
            )
        return memory

    def _begin(self) -> None:
        self.rows = self._array(ringmerge.AT_ROWS, abi.ROW_SET_DTYPE, ringmerge.ROW_SETS)
        self.space = self._array(ringmerge.FIELDS["space"], abi.SPACE_DTYPE, 1)
        self._counters = self._field("counters", np.uint64, len(Counter))
        self._counters[:] = 0
        self._leaving = self._field("leaving", np.uint32)
        self._gave_up = self._field("gave_up", np.uint32)
        self._waited = self._field("waited", np.uint64)
        self._leaving[0] = self._gave_up[0] = self._waited[0] = 0
        if not self._clear(ringmerge.AT_KNOWN, ringmerge.AT_RINGS):
            raise TargetError(f"the memory shared with process {self.pid} can't be cleared")
        self.records = AreaRecords(self._memory, self.image)
        self._rings: AreaRings | None = None

    def _array(self, at: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._memory, dtype, count, at)

    def _field(self, name: str, kind: Any, count: int = 1) -> npt.NDArray[Any]:
        return self._array(ringmerge.FIELDS[name], np.dtype(kind), count)

    def set_up(
        self,
        *,
        max_frames: int,
        sizes: tuple[int, int | None],
        sample_bytes: int | None,
        max_stall_s: float,
        clears: bool,
    ) -> None:
        """Sets what the process reports; called before ``switch_on``.

        ``sizes``: of the smallest and the largest block reported; largest 0: no frees, either.
        ``max_stall_s``: how long a thread waits for tracelloc before it only counts events;
        ``clears``: whether malloc returns cleared memory.
        """
        counter = self._field("counter", np.uint64)
        counter[0] = max(1, int(counter[0]))
        self._field("samples", np.uint32)[0] = sample_bytes is not None
        if sample_bytes is not None:
            lengths = sampling.gaps(sample_bytes)
            self._array(ringmerge.AT_GAPS, lengths.dtype, ringmerge.GAPS)[:] = lengths
        self._field("clock", np.uint32)[0] = usable_clock()
        self._ticks_per_s = ringmerge.ticks_per_second()
        self._field("max_stall", np.uint64)[0] = int(max_stall_s * self._ticks_per_s)
        self._field("clears", np.uint64)[0] = clears
        self._field("max_frames", np.uint32)[0] = max_frames
        least, most = sizes
        self._field("min_size", np.uint64)[0] = least
        self._field("max_size", np.uint64)[0] = (1 << 64) - 1 if most is None else most

    def switch_on(self) -> None:
        """Makes the process report events from now on."""
        if self._holder is None and not self._is_over:
            self.check_for_changes()
            self._rings = AreaRings(memoryview(self._memory), self.image, time.monotonic_ns())
            self._holder = AreaHolder(self._field("holder", np.uint32))

    def switch_off(self) -> None:
        """Stops the process from reporting; events already reported can still be taken."""
        if self._is_over:
            return
        self.was_given_up = self.is_given_up
        # The pump must not mistake this for the process giving up.
        holder, self._holder = self._holder, None
        self._is_over = True
        if holder is not None:
            holder.release()

    def check_for_changes(self) -> None:
        """Checks whether the process may make all system calls; to be called regularly."""
        self.is_filtered = self._process.has_seccomp_filter(self._inherited_filters)
        self._field("may_call", np.uint32)[0] = not self.is_filtered

    # Handing over to probes.

    def begin_leaving(self) -> None:
        """Keeps threads from starting calls until ``switch_off``. Raises OSError."""
        self._leaving[0] = 1
        if self._rings is not None:
            self._rings.pass_barrier()

    @property
    def pid(self) -> int:
        """The process whose memory it is."""
        return self._process.pid

    @property
    def is_left(self) -> bool:
        """Whether no thread is in a call, and all reported events are taken."""
        return (self._rings is None or not self._rings.inside) and self.is_quiet

    @property
    def is_given_up(self) -> bool:
        """Whether the process has stopped reporting although events are wanted."""
        holder = self._holder
        return holder is not None and not holder.is_there and self._holder is holder

    @property
    def is_damaged(self) -> bool:
        """Whether the process has written something that its library would not."""
        return self.records.is_damaged or (self._rings is not None and self._rings.is_damaged)

    @property
    def is_late(self) -> bool:
        """Whether the process waited for tracelloc in vain, and has then started without it."""
        return bool(self._field("is_late", np.uint32)[0])

    @property
    def is_leaving(self) -> bool:
        """Whether the process waits for probes to take over, or has waited for them in vain."""
        return bool(self._leaving[0])

    @property
    def why_not(self) -> str:
        """Why the process does not report all events, as a predicate; empty if it does."""
        return _REASONS.get(int(self._field("why_not", np.uint32)[0]), _UNKNOWN_REASON)

    @property
    def waited_ns(self) -> float:
        """Total time in ns for which threads have waited for tracelloc."""
        return min(int(self._waited[0]), _MOST_COUNTED) * NS_PER_S / self._ticks_per_s

    @property
    def ring_share(self) -> float:
        """How full the fullest ring was, 0 to 1."""
        return 0.0 if self._rings is None else self._rings.fullest

    @property
    def is_quiet(self) -> bool:
        """Whether the process has reported nothing since events were last taken."""
        return self._rings is None or (self._rings.is_quiet and not self.records.has_more)

    def take_events(self, *, whole: bool = False) -> Events:
        """Takes all complete events, in order. ``whole``: the process is gone, or has stopped."""
        if self._rings is None:
            return np.empty(0, EVENT_DTYPE)
        if self._is_over:
            self._rings.freeze()
        now_ns = time.monotonic_ns()
        count, cut = self._rings.find_events(whole, now_ns)
        for look in range(_LOOKS + 1):
            if not self._is_over or whole or not self._rings.is_unfinished:
                break
            # A thread that was writing at the switch-off finishes soon, unless it is gone.
            time.sleep(_LOOK_AGAIN_S)
            count, cut = self._rings.find_events(look == _LOOKS, now_ns)
        events = np.empty(count, EVENT_DTYPE)
        if count:
            events = events[: self._rings.merge(cut, now_ns, events.view(np.uint8))]
        if self._gave_up[0]:
            # The rings have space again: threads may wait for it.
            self._gave_up[0] = 0
        return events

    def counters(self) -> npt.NDArray[np.uint64]:
        """Returns the process's counters of losses, indexed by ``Counter``."""
        counters: npt.NDArray[np.uint64] = np.minimum(self._counters, np.uint64(_MOST_COUNTED))
        if self._rings is not None:
            # The kind of abandoned events is unknown.
            counters[Counter.LOST_FREES] += np.uint64(self._rings.abandoned)
        return counters

    # The end.

    def release_rings(self, is_gone: Callable[[int], bool]) -> None:
        """Makes the rings of ended threads available again."""
        if self._rings is not None:
            for ring in [ring for ring, owner in self._rings.owners() if is_gone(owner)]:
                self._rings.release(ring)

    def close(self) -> None:
        """Stops the process's reports, and unmaps the memory. May be called twice."""
        self.switch_off()
        if self._fd < 0:
            return
        # If this fails, the memory stays in use, which only costs the process.
        self._clear(ringmerge.AT_ROWS, ringmerge.AT_RINGS)
        # The first ring's counter of calls must stay; the other rings' if a call may be under way.
        is_used = self._rings is not None and self._rings.inside
        first = ringmerge.slots_of(0)[0] if is_used else ringmerge.AT_RINGS + PAGE_BYTES
        self._clear(first, ringmerge.FILE_BYTES)
        os.close(self._fd)
        self._fd = -1

    def _clear(self, start: int, end: int) -> bool:
        """Gives memory back to the kernel (zeros; new for who still writes); whether it did."""
        size_bytes = ctypes.c_long(end - start)
        return not _LIBC.fallocate(self._fd, _PUNCH_HOLE, ctypes.c_long(start), size_bytes)
