"""What tracing costs the target, estimated from measurements on this machine.

Two parts per probe that is hit: the kernel's trap, whose price is measured once on a
small child of ours with a program that does nothing, and the BPF program's own time,
which the kernel adds up while it is asked to (BPF_ENABLE_STATS, Linux 5.8). Asking costs
some nanoseconds per probe, so it is done for a second now and then.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tracelloc.capture.attach import PLAIN
from tracelloc.capture.child import Child, ChildEndedError
from tracelloc.capture.method import Method
from tracelloc.capture.proginfo import program_info, statistics
from tracelloc.errors import TracellocError
from tracelloc.placement import ProbePoint
from tracelloc.target.procfs import Process
from tracelloc.text import NS_PER_S

_STRETCH_S: Final = 0.25
"""How long programs are timed at a time."""
_GAP_S: Final = 10.0
"""How long they are left alone in between."""


@dataclass(frozen=True, slots=True)
class TrapCosts:
    """Nanoseconds by which one hit of a probe delays a thread, the program's time apart."""

    cheap_ns: float
    """At an instruction that the kernel emulates."""
    stepped_ns: float
    """At one that it single-steps."""
    return_ns: float
    """At a function's return."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """The price of tracing, for views."""

    events_per_s: float
    probe_share: float | None
    """Share of the target's CPU time, 0 to 1: estimated; None until it was measured."""
    slow_probes: tuple[str, ...]
    """Functions probed at an instruction that is single-stepped."""


class Meter:
    """Counts the programs' runs and the targets' CPU time over a stretch of time."""

    def __init__(
        self,
        processes: Callable[[], Iterable[Process]],
        programs: Mapping[str, int],
        points: Collection[ProbePoint],
    ) -> None:
        """``processes``: those that are traced now; ``programs``: descriptors by name.

        To be used within ``statistics``.
        """
        self._processes = processes
        self._programs = programs
        self._stepped = _mostly_stepped(points)
        self._returning = {p.program for p in points if p.returns}
        self._before = {name: program_info(fd) for name, fd in programs.items()}
        self._cpu_ns = self._read_cpu()

    def _read_cpu(self) -> dict[int, int | None]:
        return {process.pid: process.cpu_ns() for process in self._processes()}

    def share(self, costs: TrapCosts) -> float | None:
        """The probes' part of the CPU time that the targets have used since the beginning.

        None where that is not known, as when one of them has come or gone meanwhile.
        """
        then, now = self._cpu_ns, self._read_cpu()
        if then.keys() != now.keys() or None in (*then.values(), *now.values()):
            return None
        cpu_ns = sum(now[pid] or 0 for pid in now) - sum(then[pid] or 0 for pid in then)
        if cpu_ns <= 0:
            return None
        spent_ns = 0.0
        for name, fd in self._programs.items():
            info, before = program_info(fd), self._before[name]
            count = info.run_cnt - before.run_cnt
            spent_ns += info.run_time_ns - before.run_time_ns + count * self._trap_ns(name, costs)
        return min(1.0, spent_ns / cpu_ns)

    def _trap_ns(self, program: str, costs: TrapCosts) -> float:
        program = program.removesuffix(PLAIN)
        entry_ns = costs.stepped_ns if program in self._stepped else costs.cheap_ns
        # Every other run is at a return.
        return (entry_ns + costs.return_ns) / 2 if program in self._returning else entry_ns


def _mostly_stepped(points: Iterable[ProbePoint]) -> set[str]:
    """Programs most of whose probes are at instructions that are single-stepped."""
    balance: Counter[str] = Counter()
    for point in points:
        balance[point.program] += 1 if point.is_single_stepped else -1
    return {program for program, excess in balance.items() if excess > 0}


def measure_traps(method: Method, program: Callable[[str], int]) -> TrapCosts:
    """Measures on a child; takes some tenths of a second.

    ``program`` gives descriptors of BPF programs loaded for ``method``; sessions' returns are
    trapped like others. Raises
    TracellocError, ChildEndedError or OSError if it can't be done here.
    """
    method = Method.MULTI if method.has_links else method
    with Child() as child:
        untraced_ns = child.ask("cost")

        def delay_ns(*points: ProbePoint) -> float:
            attachment = child.probed(method, program, *points)
            try:
                return child.ask("cost") - untraced_ns
            finally:
                attachment.close()

        cheap_ns = delay_ns(child.point())
        both_ns = delay_ns(child.point(returns=True))
        # Where the entry itself is emulated there is nothing that is single-stepped to measure by.
        stepped_ns = cheap_ns if child.has_cheap_entry else delay_ns(child.point(at_entry=True))
        return TrapCosts(cheap_ns, max(stepped_ns, cheap_ns), max(0.0, both_ns - cheap_ns))


class RateMeter:
    """Events per second, lately."""

    def __init__(self) -> None:
        self._since: tuple[int, int] | None = None
        self._rate: float | None = None

    def note(self, now_ns: int, events: int) -> None:
        """To be told now and then how many events there were."""
        if self._since is None:
            self._since = now_ns, events
        elapsed_ns = now_ns - self._since[0]
        if elapsed_ns >= NS_PER_S:
            self._rate = (events - self._since[1]) * NS_PER_S / elapsed_ns
            self._since = now_ns, events

    def per_second(self, elapsed_ns: int, events: int) -> float:
        """Over the last second or so; before that, over all of ``elapsed_ns``."""
        if self._rate is not None:
            return self._rate
        return events * NS_PER_S / max(1, elapsed_ns)


class OverheadWatch:
    """A thread that estimates the probes' share of the targets' CPU time now and then."""

    def __init__(
        self,
        processes: Callable[[], Iterable[Process]],
        method: Method,
        programs: Callable[[], Mapping[str, int]],
        points: Iterable[ProbePoint],
    ) -> None:
        """Begins at once. See ``Meter``; ``programs``: those that are loaded now."""
        self.probe_share: float | None = None
        """Share of the targets' CPU time, 0 to 1; None until it is known."""
        self._processes = processes
        self._method = method
        self._programs = programs
        self._points = list(points)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="overhead", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Tells the thread to end soon; may be called twice."""
        self._stopping.set()

    def join(self) -> None:
        """Waits until it no longer uses the programs."""
        self._thread.join()

    def _watch(self) -> None:
        # Where it can't be measured, there is no estimate: never a reason to fail.
        with suppress(OSError, ChildEndedError, TracellocError):
            costs = measure_traps(self._method, lambda name: self._programs()[name])
            while not self._stopping.is_set():
                self._measure_once(costs)
                self._stopping.wait(_GAP_S)

    def _measure_once(self, costs: TrapCosts) -> None:
        with statistics():
            meter = Meter(self._processes, self._programs(), self._points)
            self._stopping.wait(_STRETCH_S)
            share = meter.share(costs)
        if share is not None:
            self.probe_share = share
