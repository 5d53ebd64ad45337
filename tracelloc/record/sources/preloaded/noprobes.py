"""Tracing without probes, for users who may not load BPF programs.

Only the library reports events then. A program that tracelloc starts is followed by ptrace(2).
Where probes would stop the program, it has breakpoints: in the dynamic linker, until the library is
mapped, and in the library, until that is initialized. Both are gone before any of the program's own
code runs, so its forked children have none. What these execute is followed likewise, if children
are. A process that runs already has no breakpoints, and is not
followed: if it executes another program, /proc shows that.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import native
from tracelloc.errors import PrivilegeError, TargetError
from tracelloc.model.codefiles import Mapping as CodeMapping
from tracelloc.model.events import NO_EVENTS, NO_PAIRS, EventBatch, Events, Miss, SentStacks
from tracelloc.model.losses import Counter
from tracelloc.record import abi
from tracelloc.record.kernel.attach import Attachment
from tracelloc.record.kernel.capabilities import missing_rights
from tracelloc.record.kernel.captureconfig import CaptureConfig, Method
from tracelloc.record.kernel.rowtable import RowMemory
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.sources.preloaded import ringmerge
from tracelloc.record.sources.preloaded.preloadedsource import may_vouch

_STOPS: Final = "loader_changes"  # The program of points at which a process stops
_UNNEEDED: Final = "exception_enter"
# How often it is checked whether a running process has executed another program.
_IMAGE_S: Final = 0.1
_CONSISTENT: Final = 0  # RT_CONSISTENT, link.h


class Breakpoints(Attachment):
    """Breakpoints in one process, each until a thread reaches it."""

    def __init__(self, pid: int, points: Sequence[ProbePoint], *, is_stopped: bool = True) -> None:
        """Inserts breakpoints if the process is stopped, otherwise none. Raises TargetError."""
        self.method, self.points = Method.PERF, points
        self._process = Process(pid)
        self._trap = native().breakpoint_code
        self._covered: dict[int, bytes] = {}  # The instructions' first bytes, by address
        self.inserted: set[int] = set()  # Addresses of all breakpoints so far
        mappings = self._process.maps().mappings
        for point in points if is_stopped else ():
            address = _address_of(point.open_path, point.offset, mappings, executable=True)
            self._covered[address] = self._process.read_memory(address, len(self._trap))
            self.insert(address)
            if point.counter_offset:
                # What the kernel does for a probe with a reference counter.
                path, offset = point.open_path, point.counter_offset
                variable = _address_of(path, offset, mappings, executable=False)
                awaited = ringmerge.VOUCHED * may_vouch() + 1
                self._write(variable, awaited.to_bytes(2, "little"))

    def insert(self, address: int) -> None:
        self.inserted.add(address)
        self._write(address, self._trap)

    def remove(self, address: int) -> bool:
        """Removes the breakpoint at an address, if any. Returns whether there was one."""
        if (covered := self._covered.get(address)) is not None:
            self._write(address, covered)
        return covered is not None

    def forget(self, address: int) -> None:
        """Forgets a breakpoint that is removed for good."""
        del self._covered[address]

    def _write(self, address: int, data: bytes) -> None:
        try:
            with (self._process.memory_directory / "mem").open("r+b", buffering=0) as memory:
                os.pwrite(memory.fileno(), data, address)
        except OSError as error:
            why = f"process {self._process.pid} can't be stopped: {error.strerror}"
            raise TargetError(why) from error

    @property
    def thread_id(self) -> int:  # type: ignore[override]
        """A thread of the process that has not ended: breakpoints belong to none."""
        return self._process.thread_id

    def close(self) -> None:
        """Removes the remaining breakpoints. May be called twice; the process may be gone."""
        with suppress(TargetError):
            for address in self._covered:
                self.remove(address)
        self._covered = {}


class NoProbes:
    """A ``ProbeSource`` for use without BPF: no events, and breakpoints that stop the target."""

    waits_ms = 100, 100
    is_urgent = has_stacks = has_probes = False
    is_quiet = True
    overflows = 0
    method = Method.PERF
    programs: Final[Mapping[str, int]] = {}

    def __init__(self, config: CaptureConfig, running: Process | None = None) -> None:
        """``running``: the process, unless tracelloc starts it."""
        self._running = running
        self._image = self._look_at_image()
        self._image_due_s = 0.0
        self.config = config
        self.wakeup_fds: Sequence[int] = ()
        self._spaces: dict[int, SpaceControl] = {}  # By PID
        self._breakpoints: dict[int, list[Breakpoints]] = {}  # Likewise

    def attach(self, pid: int, points: Sequence[ProbePoint]) -> Breakpoints:
        """Makes a stopped process stop at some points. Raises PrivilegeError for other probes."""
        if others := [p for p in points if p.program not in (_STOPS, _UNNEEDED)]:
            raise PrivilegeError(
                f"{others[0].label} needs a probe, and probes need {missing_rights()}",
                hint="tracelloc doctor lists what helps here",
            )
        stops = [p for p in points if p.program == _STOPS]
        found = Breakpoints(pid, stops, is_stopped=self._running is None)
        self._breakpoints.setdefault(pid, []).append(found)
        return found

    def take_trap(self, thread_id: int) -> bool | None:
        """Handles a stopped thread's trap. Returns whether there is new code; None: not ours."""
        registers = ptrace.registers(thread_id)
        address = registers.program_counter - native().breakpoint_advance
        pid = Process(thread_id).group_id()
        breakpoints = self._breakpoints.get(pid, ())
        if not any(address in each.inserted for each in breakpoints):
            return None
        if registers.program_counter != address:
            registers.program_counter = address
            ptrace.set_registers(thread_id, registers)
        found = next((each for each in breakpoints if each.remove(address)), None)
        if found is None:  # removed since the thread reached it
            return False
        if self._is_mapping(pid):
            ptrace.step(thread_id)
            found.insert(address)
            return False
        found.forget(address)
        return True

    def _is_mapping(self, pid: int) -> bool:
        address = self._spaces[pid].loader_state
        state = Process(pid).read_memory(address, 4) if address else b""
        return int.from_bytes(state, "little") != _CONSISTENT

    def forget_image(self, pid: int) -> None:
        """Forgets the breakpoints of a program that is gone."""
        self._breakpoints.pop(pid, None)

    def assign(self, pid: int, words: SpaceControl) -> None:
        """Assigns an address space to a process."""
        self._spaces[pid] = words

    def unassign(self, pid: int) -> None:
        """Forgets a process."""
        self._spaces.pop(pid, None)
        self.forget_image(pid)

    def _look_at_image(self) -> tuple[int, ...]:
        """Returns addresses that differ between two programs that the process executes."""
        try:
            return () if self._running is None else self._running.program_addresses()
        except TargetError:  # it has ended
            return self._image

    def notices_execs(self) -> bool:
        """Returns whether control words count execs: NoProbes counts those of a running process."""
        if self._running is not None and time.monotonic() >= self._image_due_s:
            self._image_due_s = time.monotonic() + _IMAGE_S
            before, self._image = self._image, self._look_at_image()
            for words in self._spaces.values() if before != self._image else ():
                words.note_exec()
        return self._running is not None

    def new_space(self) -> SpaceControl:
        """Returns the control words of one more address space, with rows of its own."""
        rows = RowMemory(np.zeros(self.config.row_sets, abi.ROW_SET_DTYPE))
        rows.is_filled = not self.config.follow  # of each process, that would be 16 MiB
        return SpaceControl(np.zeros(1, abi.SPACE_DTYPE), 0, rows)

    def take_events(self) -> EventBatch:
        """Returns an empty batch: there are no probes."""
        return EventBatch(NO_EVENTS, NO_PAIRS, 0, overflowed=False)

    def take_mappings(self) -> Events:
        return NO_EVENTS

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        return []

    def take_misses(self, _most: int) -> list[Miss]:
        return []

    def take_fork(self, _thread_id: int) -> abi.ForkFlag | None:
        """Returns None: no child is traced."""
        return None

    def until_now(self) -> Callable[[], bool]:
        """Returns a function that returns True: there is nothing to read."""
        return lambda: True

    def counters(self) -> npt.NDArray[np.uint64]:
        return np.zeros(len(Counter), np.uint64)

    def forget_threads(self, _pid: int, _is_gone: Callable[[int], bool]) -> int:
        """Returns 0: there is no state of threads."""
        return 0

    def program(self, name: str) -> int:
        """Raises KeyError: there are no programs."""
        raise KeyError(name)

    def fail(self, error: Exception) -> None:
        """Raises an error with which reading has failed: nothing replaces this source."""
        raise error

    def _do_nothing(self, *_what: Any, **_how: Any) -> None:
        """Does nothing, as there is nothing in the kernel: stands for several methods."""

    watch: Any = _do_nothing
    free_space = set_live = set_stop_at_loads = note_sampled = close = watch


def _address_of(
    open_path: str, offset: int, mappings: Sequence[CodeMapping], *, executable: bool
) -> int:
    """Returns the process address of an offset of a mapped file. Raises TargetError."""
    inode = os.stat(open_path).st_ino
    found = [
        mapping.start + offset - mapping.offset
        for mapping in mappings
        if mapping.inode == inode
        and mapping.executable is executable
        and 0 <= offset - mapping.offset < mapping.end - mapping.start
    ]
    if not found:
        raise TargetError("a library of the process is not mapped where it should be")
    # Writable data follows what is read-only, and may share a page of the file with it.
    return found[-1]
