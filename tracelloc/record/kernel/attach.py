"""Attaches BPF programs to a process's code. All methods deliver the same events.

``uprobe_multi`` links (bpf(2), Linux 6.6): one descriptor holds all probes of a program
in a file. They cost the target less and detach quickly. Return probes need a second link,
unless the link is a session (Linux 6.13): there the program runs at both ends, and decides at
the entry whether the return is wanted. Perf events (perf_event_open(2) with the ``uprobe`` PMU,
Linux 4.17): one descriptor per probe, and one of a link that stores its cookie (Linux 5.15).

No method needs tracefs. With all of them the kernel filters by address space: all threads of the
target, none of its forked children. Closing a descriptor detaches its probes; the kernel
closes it if tracelloc is killed.

The kernel identifies the address space by one thread: for links, the main thread. If that
thread ends (pthread_exit(3)) while others continue, perf events report nothing more. Links
still work while their breakpoints stay. But the kernel removes a breakpoint when any probe at
its address is detached, and inserts no new one (``uprobe_multi_link_filter()`` in
kernel/trace/bpf_trace.c). tracelloc therefore also opens perf events of another thread, which
run no program and keep the breakpoints in place.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.errors import PrivilegeError, TargetError, UnsupportedError, privilege_hint, scarcity
from tracelloc.record import abi
from tracelloc.record.kernel.captureconfig import Method
from tracelloc.record.mallocs.families import ALLOCATOR_PROGRAM, MAPPING_PROGRAM
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.urgency import Urgency, claim, renounce
from tracelloc.system import syscalls
from tracelloc.system.syscalls import U32, U64, layout

_PMU: Final = Path("/sys/bus/event_source/devices/uprobe")
_IOC_ENABLE: Final = 0x2400
# `config` holds the offset of a reference counter from this bit on, kernel/events/core.c.
_COUNTER_BIT: Final = 32
_DISABLED: Final = 1  # Breakpoints are inserted even so, include/uapi/linux/perf_event.h
_MULTI_RETURN: Final = 1  # BPF_F_UPROBE_MULTI_RETURN, include/uapi/linux/bpf.h

_PERF_EVENT: Final = 41  # BPF_PERF_EVENT, include/uapi/linux/bpf.h, like the next two
_UPROBE_MULTI: Final = 48
_UPROBE_SESSION: Final = 57
# Programs that also run at function returns.
_SESSION_PROGRAMS: Final = (ALLOCATOR_PROGRAM, MAPPING_PROGRAM)

# Threads that close descriptors, started on demand.
_CLOSERS: Final = ThreadPoolExecutor(64, thread_name_prefix="detach")


# Suffix of a program's name: the program is loaded for links that are not sessions.
PLAIN: Final = "/plain"


def attach_type(method: Method, program: str) -> int:
    """Returns the expected_attach_type with which to load the program of this name."""
    if method is Method.SESSION and program in _SESSION_PROGRAMS:
        return _UPROBE_SESSION
    return _UPROBE_MULTI if method.has_links else 0


class _PerfEventAttr(ctypes.Structure):
    _fields_ = layout(
        (U32, "type size"),
        (U64, "config sample_period sample_type read_format flags"),
        (U32, "wakeup_events bp_type"),
        (U64, "uprobe_path probe_offset"),
    )


class _LinkAttr(ctypes.Structure):
    _fields_ = layout(
        (U32, "prog_fd target_fd attach_type flags"),
        (U64, "path offsets ref_ctr_offsets cookies"),
        (U32, "count multi_flags pid padding"),
    )


class _EventLinkAttr(ctypes.Structure):
    _fields_ = layout((U32, "prog_fd target_fd attach_type flags"), (U64, "cookie"))


class Attachment:
    """Probes that are attached to one process, until ``close``."""

    def __init__(
        self, method: Method, pid: int, points: Sequence[ProbePoint], program: Callable[[str], int]
    ) -> None:
        """Attaches probes at all points in their order, or none.

        ``program`` returns the descriptor of a BPF program by name, loaded for this method.
        Raises TargetError, PrivilegeError, or UnsupportedError if the kernel lacks the method.
        """
        self.method, self.points = method, points
        # The thread by which the kernel identifies the address space
        self.thread_id = Process(pid).thread_id
        self._program = program
        self._links: list[int] = []
        self._events: list[int] = []
        try:
            if method.has_links:
                self._attach_links(pid)
            if not method.has_links or self.thread_id != pid:
                self.move(self.thread_id)
        except BaseException:
            self.close()
            raise

    def move(self, thread_id: int) -> list[int]:
        """Identifies the address space by another thread, after the previous one has ended.

        Perf events miss what happened in between; links miss nothing. Returns descriptors for
        ``close_soon``. Raises TracellocError, and has then changed nothing.
        """
        events: list[int] = []
        try:
            with Urgency():
                self._open_events(thread_id, events)
        except BaseException:
            _close_all(events)
            raise
        before, self._events = self._events, events
        self.thread_id = thread_id
        return before

    def _attach_links(self, pid: int) -> None:
        def kind(probe: _Probe) -> tuple[bool, str, str]:
            return not probe.is_return, probe.point.open_path, probe.program(self.method)

        # Sorting is stable, and keeps exits before entries.
        probes = _probes(self.points, self.method)
        with Urgency():
            for _, group in groupby(sorted(probes, key=kind), key=kind):
                self._links.append(self._link(pid, list(group)))

    def _link(self, pid: int, probes: Sequence[_Probe]) -> int:
        """Attaches probes with one program in one file by a link; returns its descriptor."""
        first, name = probes[0].point, probes[0].program(self.method)
        path_bytes = ctypes.create_string_buffer(os.fsencode(first.open_path))
        words = ctypes.c_uint64 * len(probes)
        offsets = words(*(probe.point.offset for probe in probes))
        cookies = words(*(probe.cookie for probe in probes))
        counters = words(*(probe.point.counter_offset for probe in probes))
        attributes = _LinkAttr(
            prog_fd=self._program(name),
            attach_type=attach_type(self.method, name),
            path=ctypes.addressof(path_bytes),
            offsets=ctypes.addressof(offsets),
            ref_ctr_offsets=ctypes.addressof(counters) if any(counters) else 0,
            cookies=ctypes.addressof(cookies),
            count=len(probes),
            multi_flags=_MULTI_RETURN if probes[0].is_return else 0,
            pid=pid,
        )
        try:
            return syscalls.bpf(syscalls.BPF_LINK_CREATE, attributes)
        except OSError as error:
            raise _explain(error, pid, first) from error

    def _open_events(self, thread_id: int, events: list[int]) -> None:
        """Opens a perf event per probe, with its program; with links, one per address, without."""
        pmu_type, return_bit = _read_pmu()
        keeps = self.method.has_links
        places = {(p.open_path, p.offset): _Probe(p) for p in self.points}
        for probe in places.values() if keeps else _probes(self.points, self.method):
            path_bytes = ctypes.create_string_buffer(os.fsencode(probe.point.open_path))
            attributes = _PerfEventAttr(
                type=pmu_type,
                size=ctypes.sizeof(_PerfEventAttr),
                config=probe.point.counter_offset << _COUNTER_BIT
                | (1 << return_bit if probe.is_return else 0),
                flags=_DISABLED,
                uprobe_path=ctypes.addressof(path_bytes),
                probe_offset=probe.point.offset,
            )
            try:
                descriptor = syscalls.perf_event_open(attributes, thread_id)
                events.append(descriptor)
                if not keeps:
                    program = self._program(probe.point.program)
                    link = _EventLinkAttr(program, descriptor, _PERF_EVENT, 0, probe.cookie)
                    events.append(syscalls.bpf(syscalls.BPF_LINK_CREATE, link))
                    fcntl.ioctl(descriptor, _IOC_ENABLE, 0)
            except OSError as error:
                raise _explain(error, thread_id, probe.point) from error

    def close(self) -> None:
        links, self._links = self._links, []
        events, self._events = self._events, []
        _close_all([*links, *events])


@dataclass(frozen=True, slots=True)
class _Probe:
    """A probe to attach: at a probe point, or at the return of the point's function."""

    point: ProbePoint
    is_return: bool = False

    @property
    def cookie(self) -> int:
        return abi.FunctionCode.RETURN if self.is_return else self.point.cookie

    def program(self, method: Method) -> str:
        """Returns the name of the BPF program that the probe runs.

        A function that may throw is never in a session. If another process is traced as well,
        a session makes the kernel insert a return probe, which no exception can unwind past.
        """
        name = self.point.program
        throws = self.point.cookie & abi.COOKIE_THROWS
        is_session = attach_type(method, name) == _UPROBE_SESSION
        return name + PLAIN if throws and is_session else name


def _probes(points: Iterable[ProbePoint], method: Method) -> list[_Probe]:
    """Returns the probes to attach: those at functions' returns, then those at entries."""
    has_exits = method is not Method.SESSION  # A session's probe covers both
    exits = [_Probe(p, is_return=True) for p in points if p.returns and has_exits]
    return exits + [_Probe(point) for point in points]


def _close_all(descriptors: Iterable[int]) -> None:
    """Closes the descriptors of probes, in parallel: they wait for the same grace period."""
    list(_CLOSERS.map(_close, descriptors))


def close_soon(descriptors: Iterable[int]) -> None:
    """Closes the descriptors of probes without waiting."""
    for descriptor in descriptors:
        _CLOSERS.submit(_close, descriptor)


def _close(descriptor: int) -> None:
    claim()
    try:
        os.close(descriptor)
    finally:
        renounce()


def _read_pmu() -> tuple[int, int]:
    """Returns (type number, bit of ``config`` that requests a return probe)."""
    try:
        number, form = ((_PMU / name).read_text() for name in ("type", "format/retprobe"))
    except OSError as error:
        hint = "it needs CONFIG_UPROBE_EVENTS=y"
        raise UnsupportedError("this kernel has no uprobes", hint=hint) from error
    return int(number), int(form.strip().partition(":")[2])


def _explain(
    error: OSError, pid: int, point: ProbePoint
) -> PrivilegeError | TargetError | UnsupportedError:
    where = f"could not probe {point.label}: {scarcity(error) or error.strerror}"
    if error.errno in (errno.EPERM, errno.EACCES):
        return PrivilegeError(where, hint=privilege_hint())
    if error.errno in (errno.ESRCH, errno.ENOENT):
        return TargetError(f"{where}: process {pid} is ending")
    # An address can have only one reference counter (kernel/events/uprobes.c), and the one that
    # bcc's Python binding passes is arbitrary.
    hint = "if another tool (such as bcc's memleak) probes it as well, end that one first"
    return UnsupportedError(where, hint=hint if error.errno == errno.EINVAL else "")
