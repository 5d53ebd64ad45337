"""Estimates what tracing costs the target, from measurements on this machine.

Each hit of a probe costs two parts. The kernel's trap is measured once on a small child process,
with a program that does nothing. The BPF program's own time is added up by the kernel while
BPF_ENABLE_STATS (Linux 5.8) is on. That costs some nanoseconds per hit, so tracelloc turns it
on only briefly now and then, or permanently if overhead is limited.

The kernel asks the probes of all processes at a place which of them a hit concerns, one after the
other (``handler_chain()`` in kernel/events/uprobes.c), so each further process with the same
library makes every hit dearer.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Final, Self

from tracelloc.dataclass import dataclass
from tracelloc.errors import PrivilegeError, TracellocError, UnsupportedError, privilege_hint
from tracelloc.record.kernel import childprogram
from tracelloc.record.kernel.attach import PLAIN, Attachment
from tracelloc.record.kernel.captureconfig import Method
from tracelloc.record.kernel.programs import program_info, statistics
from tracelloc.record.mallocs.discovery import discover, functions_of
from tracelloc.record.mallocs.families import FREE
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.text import NS_PER_S

IDLE_PROGRAM: Final = "do_nothing"  # The BPF program of the child's probes, which returns at once


class ChildEndedError(Exception):
    """Raised if the child process did not survive a requested function."""


class ProbedChild:
    """A context: a child process that runs ``childprogram``; its ``free`` can be probed."""

    def __init__(self) -> None:
        """Finds free. Raises UnsupportedError if the C library has no such function; OSError."""
        self._popen = subprocess.Popen(
            [sys.executable, "-IS", childprogram.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,  # ^C must not reach it
        )
        assert self._popen.stdout is not None
        self._popen.stdout.readline()
        self.process = Process(self._popen.pid)
        self._space = AddressSpace(self.process)
        functions = functions_of(discover(self._space.refresh()))
        found = [function for function in functions if function.signature == FREE]
        if not found:
            self.__exit__()
            raise UnsupportedError("the C library has no free that could be probed")
        self._free = found[0]
        place = self._free.offset, self._free.size
        found_at = self._free.module.elf.offsets([(*place, FREE.registers), (*place, None)])
        if found_at is None or None in found_at:
            self.__exit__()
            raise UnsupportedError("the C library's code can't be probed")
        cheap, entry = (place for place in found_at if place is not None)
        self._offset, (beyond_entry, is_single_stepped) = cheap[0], entry
        # Whether the kernel emulates the first instruction
        self.has_cheap_entry = not (beyond_entry or is_single_stepped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._space.close()
        for stream in (self._popen.stdin, self._popen.stdout):
            assert stream is not None
            stream.close()
        self._popen.wait()

    def point(self, *, at_entry: bool = False, returns: bool = False) -> ProbePoint:
        """Returns a probe point on free: a cheap one, or the first instruction (``at_entry``)."""
        offset = self._free.offset + (0 if at_entry else self._offset)
        path = self._free.module.open_path
        return ProbePoint(path, offset, IDLE_PROGRAM, "free", returns=returns)

    def probed(
        self, method: Method, program: Callable[[str], int], *points: ProbePoint
    ) -> Attachment:
        return Attachment(method, self.process.pid, points, program)

    def ask(self, what: str, code: bytes = b"") -> float:
        """Makes the child run a ``childprogram`` function with its code. Raises ChildEndedError."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            self._popen.stdin.write(f"{what} {code.hex()}\n".encode())
            self._popen.stdin.flush()
            return float(self._popen.stdout.readline())
        except (OSError, ValueError) as error:
            raise ChildEndedError(what) from error


_STRETCH_S: Final = 0.25  # Duration of one measurement of the programs' time
_GAP_S: Final = 10.0  # Time between measurements
_LOOK_S: Final = 0.1  # How often a limited overhead is checked
_NEIGHBOURS: Final = 16  # Probes of another process in a measurement


@dataclass(frozen=True, slots=True)
class TrapCosts:
    """Nanoseconds by which a probe hit delays a thread, without the program's own time."""

    cheap_ns: float  # Delay at an emulated instruction
    stepped_ns: float  # Delay at a single-stepped instruction
    return_ns: float  # Delay at a function's return
    # Additional delay, at entries and returns, for each other process with a probe at the same
    # place; None: not measured.
    neighbour_ns: float | None


class Meter:
    """Measures BPF programs' runs and the targets' CPU time, since this object was created."""

    def __init__(
        self,
        processes: Callable[[], Iterable[Process]],
        programs: Mapping[str, int],
        points: Sequence[Sequence[ProbePoint]],
    ) -> None:
        """``processes`` returns the processes traced now; ``programs``: descriptors by name.

        ``points``: each process's probe points. Use this object within ``statistics``.
        """
        self._processes = processes
        # Programs that run in tracelloc's own processes cost the targets nothing.
        self._programs = {n: fd for n, fd in programs.items() if not n.startswith(IDLE_PROGRAM)}
        every = [point for each in points for point in each]
        self._stepped = _mostly_stepped(every)
        self._returning = {point.program for point in every if point.returns}
        self._neighbours = _mean_neighbours(points)
        self._before = {name: program_info(fd) for name, fd in self._programs.items()}
        self._cpu_ns = self._read_cpu()

    def _read_cpu(self) -> dict[int, int | None]:
        return {process.pid: process.cpu_ns() for process in self._processes()}

    def share(self, costs: TrapCosts) -> float | None:
        """Returns the probes' share of CPU time since creation; None if a target came or ended."""
        used = self.used(costs)
        return None if used is None or used[1] <= 0 else min(1.0, used[0] / used[1])

    def used(self, costs: TrapCosts) -> tuple[float, int] | None:
        """Returns (probes' time, targets' CPU time, to 10 ms) in ns since creation, or None."""
        then, now = self._cpu_ns, self._read_cpu()
        if then.keys() != now.keys() or None in (*then.values(), *now.values()):
            return None
        cpu_ns = sum(now[pid] or 0 for pid in now) - sum(then[pid] or 0 for pid in then)
        spent_ns = 0.0
        for name, fd in self._programs.items():
            info, before = program_info(fd), self._before[name]
            count = info.run_cnt - before.run_cnt
            hit_ns = self._trap_ns(name, costs) + self._neighbours * (costs.neighbour_ns or 0)
            spent_ns += info.run_time_ns - before.run_time_ns + count * hit_ns
        return spent_ns, cpu_ns

    def _trap_ns(self, program: str, costs: TrapCosts) -> float:
        program = program.removesuffix(PLAIN)
        entry_ns = costs.stepped_ns if program in self._stepped else costs.cheap_ns
        # Every other run is at a return.
        return (entry_ns + costs.return_ns) / 2 if program in self._returning else entry_ns


def _mostly_stepped(points: Iterable[ProbePoint]) -> set[str]:
    balance: Counter[str] = Counter()
    for point in points:
        balance[point.program] += 1 if point.is_single_stepped else -1
    return {program for program, excess in balance.items() if excess > 0}


def _mean_neighbours(points: Iterable[Sequence[ProbePoint]]) -> float:
    """Returns how many others probe the place of each process's first point, on average."""
    places = Counter((each[0].open_path, each[0].offset) for each in points if each)
    return sum(n * (n - 1) for n in places.values()) / max(1, places.total())


def measure_traps(
    method: Method, program: Callable[[str], int], *, neighbours: bool = False
) -> TrapCosts:
    """Measures trap costs on a child process; takes some tenths of a second.

    ``program`` returns descriptors of BPF programs loaded for ``method``; the traps of a session's
    returns cost as much as other traps. ``neighbours``: whether to measure ``neighbour_ns``. Raises
    TracellocError, ChildEndedError or OSError if measuring fails.
    """
    method = Method.MULTI if method.has_links else method
    with ProbedChild() as child:
        untraced_ns = child.ask("cost")

        def delay_ns(*points: ProbePoint) -> float:
            with closing(child.probed(method, program, *points)):
                return child.ask("cost") - untraced_ns

        cheap_ns = delay_ns(child.point())
        both_ns = delay_ns(child.point(returns=True))
        # If the entry is emulated, there is no single-stepped instruction to measure.
        stepped_ns = cheap_ns if child.has_cheap_entry else delay_ns(child.point(at_entry=True))
        neighbour_ns = None
        if neighbours:
            with ProbedChild() as other:
                points = [other.point()] * _NEIGHBOURS
                with closing(other.probed(method, program, *points)):
                    among_ns = delay_ns(child.point())
            neighbour_ns = max(0.0, among_ns - cheap_ns) / _NEIGHBOURS
        return_ns = max(0.0, both_ns - cheap_ns)
        return TrapCosts(cheap_ns, max(stepped_ns, cheap_ns), return_ns, neighbour_ns)


def require_measuring() -> None:
    """Raises PrivilegeError or UnsupportedError if the programs' time can't be measured."""
    try:
        with statistics():
            pass
    except PermissionError as error:
        what = "--max-overhead measures what the probes cost, which needs CAP_SYS_ADMIN"
        raise PrivilegeError(what, hint=privilege_hint()) from error
    except OSError as error:
        what = f"--max-overhead can't measure what the probes cost: {error.strerror}"
        raise UnsupportedError(what) from error


class OverheadWatch:
    """A thread that estimates the probes' share of CPU time, now and then or permanently."""

    def __init__(
        self,
        processes: Callable[[], Iterable[Process]],
        method: Method,
        programs: Callable[[], Mapping[str, int]],
        points: Callable[[], Sequence[Sequence[ProbePoint]]],
        account: OverheadAccount | None = None,
    ) -> None:
        """Starts at once. See ``Meter``; ``account``: that of the overhead limit, if any."""
        # Share of the targets' CPU time, 0 to 1; None until known
        self.probe_share: float | None = None
        self._processes, self._method = processes, method
        self._programs, self._points, self._account = programs, points, account
        self._costs: TrapCosts | None = None
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="overhead", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        self._stopping.set()

    def join(self) -> None:
        """Waits until the thread no longer uses the programs."""
        self._thread.join()

    def check(self) -> None:
        """Raises UnsupportedError if there is a limit and the overhead can't be measured."""
        if self._account is not None and self._failure is not None:
            raise UnsupportedError(f"--max-overhead can't measure it here: {self._failure}")

    def _watch(self) -> None:
        # If measuring fails, there is no estimate; that is an error only with a limit.
        try:
            if self._account is not None:
                self._keep_account(self._account)
                return
            while not self._stopping.is_set():
                costs = self._trap_costs()
                with statistics():
                    meter = self._meter()
                    self._stopping.wait(_STRETCH_S)
                    share = meter.share(costs)
                if share is not None:
                    self.probe_share = share
                self._stopping.wait(_GAP_S)
        except (OSError, ChildEndedError, TracellocError) as failure:
            self._failure = failure

    def _trap_costs(self) -> TrapCosts:
        """Returns the trap costs: measured once, and again when neighbours come."""
        if self._costs is None or self._costs.neighbour_ns is None:
            neighbours = _mean_neighbours(self._points()) > 0
            if self._costs is None or neighbours:
                self._costs = measure_traps(
                    self._method, lambda name: self._programs()[name], neighbours=neighbours
                )
        return self._costs

    def _meter(self) -> Meter:
        return Meter(self._processes, self._programs(), self._points())

    def _keep_account(self, account: OverheadAccount) -> None:
        with statistics():
            # CPU time used while the traps are measured counts as well.
            meter, since_s = self._meter(), time.monotonic()
            while not self._stopping.is_set():
                used, now_s = meter.used(self._trap_costs()), time.monotonic()
                meter = self._meter()
                if used is not None:
                    account.add(*used, now_s - since_s)
                    self.probe_share = account.share
                since_s = now_s
                self._stopping.wait(_LOOK_S)


_PERIOD_S: Final = 60.0  # How far ahead probes may use up their allowance, in seconds
_SAFETY: Final = 1.25  # Estimated costs are multiplied by this: they omit what probes do to caches
_LEAST_DEBT_NS: Final = 10_000_000  # Debt that is always allowed: the resolution of CPU times
_BATCH_NS: Final = 50_000_000
_BATCH_S: Final = 1.0  # CPU time, or time, that is counted at once, well above that resolution
_RATE_S: Final = 10.0  # Averaging time of the target's use of processors


class OverheadAccount:
    """An account of probe costs, which says when they are more than allowed.

    The limit is a share of the CPU time that the target needs for its own work. What the probes
    cost is a debt, which the target's work repays: each second of work repays that share of a
    second. The debt of a minute's work is allowed, so that a short burst of allocations ends no
    trace. One thread calls ``add``, another one the rest.
    """

    def __init__(self, limit: float) -> None:
        """``limit``: CPU time for probes per CPU time of the target's own work, 0.05 for 5 %."""
        self.limit = limit
        self.is_exceeded = False  # Whether the probes have cost more than allowed
        self._debt_ns = 0.0
        self._own_cores: float | None = None  # Processors that the target's own work used lately
        self._probe_ns = self._cpu_ns = 0.0
        # Not yet counted: CPU time of probes and of the target in ns, and seconds
        self._batch = 0.0, 0.0, 0.0

    @property
    def share(self) -> float | None:
        """The probes' share of the target's CPU time so far, 0 to 1; None if unknown."""
        return self._probe_ns / self._cpu_ns if self._cpu_ns else None

    def add(self, probe_ns: float, cpu_ns: float, elapsed_s: float) -> None:
        """Counts an interval: CPU time of the probes, and of the target, probes included."""
        probe_ns, cpu_ns = self._batch[0] + probe_ns, self._batch[1] + cpu_ns
        elapsed_s += self._batch[2]
        self._batch = probe_ns, cpu_ns, elapsed_s
        if cpu_ns >= _BATCH_NS or elapsed_s >= _BATCH_S:
            self._batch = 0.0, 0.0, 0.0
            self._probe_ns += min(cpu_ns, probe_ns)
            self._cpu_ns += cpu_ns
            self._count(min(cpu_ns, _SAFETY * probe_ns), cpu_ns, elapsed_s)

    def _count(self, probe_ns: float, cpu_ns: float, elapsed_s: float) -> None:
        work_ns, share = cpu_ns - probe_ns, self.limit
        cores = work_ns / NS_PER_S / max(elapsed_s, 1e-6)
        before = cores if self._own_cores is None else self._own_cores
        self._own_cores = before + (cores - before) * min(1.0, elapsed_s / _RATE_S)
        self._debt_ns = max(0.0, self._debt_ns + probe_ns - share * work_ns)
        ahead_ns = share * self._own_cores * _PERIOD_S * NS_PER_S
        self.is_exceeded |= self._debt_ns > max(ahead_ns, _LEAST_DEBT_NS)
