"""The probes in the kernel: compiling and loading them, and the memory shared with them."""

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import replace
from tracelloc.errors import UnsupportedError
from tracelloc.heap import sampling
from tracelloc.model.events import EVENT_DTYPE, NO_EVENTS, EventBatch, Events, Miss, SentStacks
from tracelloc.model.losses import Counter
from tracelloc.record import abi
from tracelloc.record.kernel.attach import PLAIN, Attachment, attach_type
from tracelloc.record.kernel.bpfmaps import delete_entry, set_entry, take_entry
from tracelloc.record.kernel.captureconfig import MAPPING_SLOTS, CaptureConfig, Method
from tracelloc.record.kernel.drain import Drain, Spill, StackDrain
from tracelloc.record.kernel.programs import KPROBE, RAW_TRACEPOINT, Programs, program_info
from tracelloc.record.kernel.ring import BpfRing, EventRing, MissRing, StackRing
from tracelloc.record.kernel.rowtable import RowMemory
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.kernel.trials import is_missed_by_links, usable_methods
from tracelloc.record.mallocs.families import ALLOCATOR_PROGRAM, FREE_PROGRAM, MAPPING_PROGRAM
from tracelloc.record.probe_points.placement import Arguments, ProbePoint
from tracelloc.startup import STARTUP

WALKER: Final = "walk_python"
NAMER: Final = "name_python_frames"  # In `probes/python.bpf.c`
_CALLERS: Final = {
    ALLOCATOR_PROGRAM: abi.PythonProgram.ALLOCATOR,
    "usdt_alloc": abi.PythonProgram.ALLOCATOR,
    MAPPING_PROGRAM: abi.PythonProgram.MAPPING,
}


def connect_walker(programs: Programs, name: str, attach_type: int) -> None:
    """Lets a program that captures stacks get Python frames, by its attach type's walker.

    Programs can only call programs of their own attach type. Raises UnsupportedError.
    """
    number = _CALLERS.get(name.partition("/")[0])
    if number is None:
        return
    for own, place in ((WALKER, abi.PythonProgram.WALKER), (NAMER, abi.PythonProgram.NAMER)):
        loaded = f"{own}/{attach_type}"
        if loaded not in programs.loaded:
            programs.load(loaded, KPROBE, attach_type)
            programs.let_call(loaded, attach_type, place)
    programs.let_call(name, attach_type, number)


# The programs for uprobes in `probes/heap.bpf.c`.
_OFTEN: Final = "loader_changes", "do_nothing"
PROGRAMS: Final = (ALLOCATOR_PROGRAM, FREE_PROGRAM, "exception_enter", *_OFTEN)

# Uprobe programs for programs that report their own allocations: `probes/usdt.bpf.c`.
USDT_PROGRAMS: Final = ("usdt_alloc", "usdt_free", *_OFTEN)
# Programs that run for every process, and their raw tracepoints; the second is attached only if
# children are followed.
TRACEPOINTS: Final = {"process_execs": "sched_process_exec", "process_forks": "task_newtask"}


class Capture:
    """The loaded probes with their rings, counters and control words: a ``ProbeSource``."""

    waits_ms = 5, 100  # How long the rings may be left unread, with many events and with few
    is_urgent = False
    is_quiet = True
    has_stacks = True
    has_probes = True  # Whether it can probe functions

    def __init__(
        self, config: CaptureConfig, method: Method | None = None, *, debug: bool = False
    ) -> None:
        """Compiles the probes, creates maps. Raises UnsupportedError. ``method`` forces one."""
        self.config = config
        self._methods = usable_methods() if method is None else [method]
        self._has_attached = False
        self._loaded_for: Method | None = None
        self._names = USDT_PROGRAMS if config.usdt else PROGRAMS
        if config.trace_mappings:
            self._names = (*self._names, MAPPING_PROGRAM)
        self._bpf = Programs(
            config.compile(debug=debug),
            simpler=lambda: config.compile(debug=debug, iterates=False),
            debug=debug,
        )
        wakeup_fds = [self._bpf.map_fd("wakeups")]
        self._wakeups = BpfRing(wakeup_fds[0], mmap.PAGESIZE)
        # Readable for epoll when the ring of events is half full, and at every miss
        self.wakeup_fds: Sequence[int] = wakeup_fds
        self._rings: list[BpfRing | EventRing] = []
        self._misses: MissRing | None = None
        # The unwind rows of all address spaces, if stacks are walked by rows
        self.rows: RowMemory | None = None
        if config.use_rows:
            wakeup_fds.append(self._bpf.map_fd("misses"))
            self._misses = MissRing(wakeup_fds[-1], config.misses_size_bytes)
            self._rings.append(self._misses)
            self.rows = RowMemory(self._shared("rows", abi.ROW_SET_DTYPE, config.row_sets))
        self._counters = self._shared("counters", np.dtype(np.uint64), len(Counter))
        self._threads = self._shared("threads", np.dtype(np.uint64), config.max_threads)
        self._control = self._shared("control", abi.CONTROL_DTYPE, 1)
        self._drain = self._make_drain(config)
        self._mappings: EventRing | None = None
        if config.trace_mappings:
            self._mappings = self._event_ring("mappings", MAPPING_SLOTS)
        spaces = config.max_spaces if config.follow else 1
        self._spaces = self._shared("spaces", abi.SPACE_DTYPE, spaces)
        if config.follow:
            self._near_spaces = self._shared("near_spaces", np.dtype(np.uint64), abi.NEAR_SPACES)
        self._free_slots = list(range(spaces - 1, -1, -1))
        self._tracepoints: list[int] = []
        self._watching: list[int] = []  # Descriptors of the programs at the tracepoints
        ring = StackRing(self._bpf.map_fd("stacks"), config.stacks_size_bytes)
        self._rings.append(ring)
        kept = self._bpf.map_fd("kept_stacks") if config.spill_entries else None
        self._stacks = StackDrain(ring, self._control, kept, config.max_frames)
        self._places: dict[Arguments, int] = {}
        if config.usdt:
            places = self._shared("usdt_probes", np.dtype(abi.USDT_PROBE_FIELDS), abi.USDT_PROBES)
            self._usdt_probes = places
        if config.sample_bytes is not None:
            lengths = sampling.gaps(config.sample_bytes)
            self._shared("gaps", lengths.dtype, len(lengths))[:] = lengths

    def _make_drain(self, config: CaptureConfig) -> Drain:
        ring = self._event_ring("events", config.ring_slots)
        if not config.spill_entries:
            return Drain(ring, self._control, None)
        try:
            spill = Spill(self._bpf.map_fd("spill"), self._bpf.map_fd("pairs"))
        except OSError as error:
            raise UnsupportedError(f"the kernel refused a map of maps: {error.strerror}") from error
        return Drain(ring, self._control, spill)

    def _event_ring(self, name: str, slots: int) -> EventRing:
        first = 2 * abi.EventRingNumber[name.upper()]
        positions = self._shared("positions", abi.POSITION_DTYPE, 2 * len(abi.EventRingNumber))
        events = self._shared(name, EVENT_DTYPE, slots)
        ring = EventRing(events, positions[first : first + 2])
        self._rings.append(ring)
        return ring

    def _shared(self, table: str, dtype: np.dtype[Any], entries: int) -> npt.NDArray[Any]:
        """Maps the memory of a mappable array map, which lives as long as the returned array."""
        pages = -(-dtype.itemsize * entries // mmap.PAGESIZE)
        memory = mmap.mmap(self._bpf.map_fd(table), pages * mmap.PAGESIZE)
        return np.frombuffer(memory, dtype, entries)

    @property
    def method(self) -> Method:
        """The attach method; final once probes are attached."""
        return self._methods[0]

    def attach(self, pid: int, points: Sequence[ProbePoint]) -> Attachment:
        """Attaches probes by the first method that works, or none. Raises TracellocError."""
        points = [replace(p, cookie=self._place(p.arguments)) if p.arguments else p for p in points]
        if not self._has_attached and len(self._methods) > 1 and is_missed_by_links(pid):
            self._methods = [Method.PERF]
        while True:
            try:
                self.load()
                attachment = Attachment(self.method, pid, points, self.program)
            except UnsupportedError:
                if self._has_attached or len(self._methods) == 1:
                    raise
                del self._methods[0]
            else:
                self._has_attached = True
                return attachment

    def _place(self, arguments: Arguments) -> int:
        """Returns the index of a description in map `usdt_probes`; equal ones share it."""
        number = self._places.setdefault(arguments, len(self._places))
        if number >= abi.USDT_PROBES:
            raise UnsupportedError(f"it has arguments in more than {abi.USDT_PROBES:,} places")
        for role, where in arguments:
            for name in where.__slots__:
                self._usdt_probes[role][name][number] = getattr(where, name)
        return number

    def load(self) -> None:
        """Loads every program for the current method, once. Raises UnsupportedError."""
        if self._loaded_for is self.method:
            return
        STARTUP.note("loading the probes into the kernel")
        for name in self._names:
            self._load(name)
        self._control["sessions"][0] = self.method is Method.SESSION
        self._loaded_for = self.method

    def _load(self, name: str) -> None:
        expected = attach_type(self.method, name)
        self._bpf.load(name, KPROBE, expected)
        if self.config.runtime_frames:
            connect_walker(self._bpf, name, expected)

    @property
    def programs(self) -> dict[str, int]:
        """The descriptors of the uprobe programs, by name."""
        loaded = self.loaded.items()
        return {name: fd for name, fd in loaded if name.removesuffix(PLAIN) in self._names}

    @property
    def loaded(self) -> dict[str, int]:
        return self._bpf.loaded

    def program(self, name: str) -> int:
        """Returns the descriptor of a program; plain programs are loaded on first use."""
        if name.endswith(PLAIN) and name not in self.loaded:
            self._load(name)
        return self._bpf.fd(name)

    def set_live(self, live: bool) -> None:
        self._control["reporting"][0] = abi.Reporting.LIVE if live else abi.Reporting.STOPPED

    def set_stop_at_loads(self, stop: bool) -> None:
        """Sets whether a thread gets the stop signal after the loader has mapped something."""
        self._control["stop_at_loads"][0] = stop

    @property
    def overflows(self) -> int:
        return self._drain.overflows

    def take_events(self) -> EventBatch:
        """Takes all complete events, in order. Raises OSError."""
        # Before the ring is read: from here on the probes may wake the reader again. Their clock
        # is reset as well, long before its tick count wraps around.
        self._wakeups.consumed = self._wakeups.produced
        self._control["woken"][0] = 0
        self._control["clock"][0] = 0
        return self._drain.take_batch()

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """Takes all stacks that the probes have sent: (memory image, its call stacks)."""
        return self._stacks.take_stacks()

    def take_misses(self, most: int) -> list[Miss]:
        return [] if self._misses is None else self._misses.take_misses(most)

    def fail(self, error: Exception) -> None:
        """Raises ``error``, which reading has failed with: nothing can replace the probes."""
        raise error

    def take_mappings(self) -> Events:
        return NO_EVENTS if self._mappings is None else self._mappings.take_events()

    def until_now(self) -> Callable[[], bool]:
        """Returns a function that tells whether all records written by now have been taken."""
        written = [(ring, ring.produced) for ring in self._rings]
        return lambda: all(ring.consumed >= position for ring, position in written)

    def new_space(self) -> SpaceControl:
        """Returns the control words of one more address space. Raises UnsupportedError."""
        if not self._free_slots:
            raise UnsupportedError(f"more than {len(self._spaces)} processes can't be traced")
        return SpaceControl(self._spaces, self._free_slots.pop(), self.rows)

    def free_space(self, words: SpaceControl) -> None:
        self._free_slots.append(words.slot)

    def assign(self, pid: int, words: SpaceControl) -> None:
        """Assigns an address space to a process, if children are traced."""
        if self.config.follow:
            slot = ctypes.c_uint32(words.slot)
            set_entry(self._bpf.map_fd("space_of"), ctypes.c_uint32(pid), slot)
            # A displaced entry is still found in the hash map.
            self._near_spaces[pid % abi.NEAR_SPACES] = pid << 32 | words.slot + 1

    def unassign(self, pid: int) -> None:
        """Stops tracing a process. Only if children are followed."""
        place = pid % abi.NEAR_SPACES
        if int(self._near_spaces[place]) >> 32 == pid:
            self._near_spaces[place] = 0
        delete_entry(self._bpf.map_fd("space_of"), ctypes.c_uint32(pid))

    def take_fork(self, thread_id: int) -> abi.ForkFlag | None:
        """Takes the probes' record of the stopped process that a thread has forked.

        None if probes were not live, or the parent is not traced. Only if children are followed.
        """
        said = take_entry(self._bpf.map_fd("forks"), ctypes.c_uint32(thread_id))
        return None if said is None else abi.ForkFlag(said)

    def watch(self, pid: int) -> None:
        """Makes the probes report when a process calls exec. Raises UnsupportedError."""
        self._control["tgid"][0] = pid
        for name, tracepoint in TRACEPOINTS.items():
            if name == "process_forks" and not self.config.follow:
                continue
            self._watching.append(self._bpf.load(name, RAW_TRACEPOINT))
            self._tracepoints.append(self._bpf.attach_tracepoint(name, tracepoint))

    def notices_execs(self) -> bool:
        """Returns whether the control words count the programs that the first process executes."""
        return True

    def take_trap(self, _thread_id: int) -> bool | None:
        """Returns None: the trap of a stopped thread is the program's own."""
        return None

    def forget_image(self, _pid: int) -> None:
        """Handles the end of a process's memory image: probes outlive it."""

    def counters(self) -> npt.NDArray[np.uint64]:
        """Returns a copy of all counters, indexed by ``abi.Counter``."""
        counters = self._counters.copy()
        missed = sum(program_info(fd).recursion_misses for fd in self._watching)
        counters[Counter.SKIPPED_RUNS] = missed
        return counters

    def forget_threads(self, pid: int, is_gone: Callable[[int], bool]) -> int:
        """Drops records of unfinished calls of a process's ended threads; returns how many.

        ``is_gone`` is called after the records are listed, so the record of a thread that starts
        meanwhile and is in its first call is kept. The probes see PIDs of the initial namespace:
        if tracelloc runs in another one, nothing matches and nothing is dropped.
        """
        slots = np.flatnonzero(self._threads >> np.uint64(32) == pid)
        thread_ids = (self._threads[slots] & np.uint64(0xFFFFFFFF)).tolist()
        gone = np.fromiter(map(is_gone, thread_ids), np.bool_, len(slots))
        self._threads[slots[gone]] = 0
        return int(gone.sum())

    def note_sampled(self, addresses: npt.NDArray[np.uint64]) -> None:
        """Makes the probes of a sampled trace report frees of these blocks, too."""
        if self.config.sample_bytes is not None:
            sampled = self._bpf.map_fd("sampled")
            for address in addresses.tolist():
                set_entry(sampled, ctypes.c_uint64(address), ctypes.c_uint64(0))

    def close(self) -> None:
        self._drain.close()
        for descriptor in self._tracepoints:
            os.close(descriptor)
        self._tracepoints.clear()
        self._bpf.close()
