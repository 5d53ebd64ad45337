"""Attaching BPF programs to a process's code. Both ways give the same events.

``uprobe_multi`` links (bpf(2), Linux 6.6): one descriptor holds all probes of a program
in a file, the cheaper way for the target, and quick to take away. Perf events
(perf_event_open(2) with the ``uprobe`` PMU, Linux 4.17): one descriptor per probe.

Neither needs tracefs. In both the kernel filters by address space: all threads of the
target, none of its forked children. Closing a descriptor takes its probes away, which
the kernel also does when we are killed.

Which address space that is, the kernel asks of one thread: the main one, for links. When
that ends (pthread_exit(3)) while others go on, perf events see nothing more. Links do for
as long as the breakpoints stay, but those are taken out as soon as any probe at their place
goes, and new ones are not put in (``uprobe_multi_link_filter()`` in kernel/trace/bpf_trace.c).
So events of another thread that run no program are opened beside them, which keep the
breakpoints where they are.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Final

from tracelloc import syscalls
from tracelloc.errors import (
    PrivilegeError,
    TargetError,
    TracellocError,
    UnsupportedError,
    privilege_hint,
)
from tracelloc.placement import ProbePoint
from tracelloc.target.procfs import Process

_PMU: Final = Path("/sys/bus/event_source/devices/uprobe")
_IOC_ENABLE: Final = 0x2400
_IOC_SET_BPF: Final = 0x40042408
_DISABLED: Final = 1
"""Breakpoints are there all the same, include/uapi/linux/perf_event.h."""
_MULTI_RETURN: Final = 1
"""BPF_F_UPROBE_MULTI_RETURN, include/uapi/linux/bpf.h."""

UPROBE_MULTI: Final = 48
"""BPF_TRACE_UPROBE_MULTI: what programs for such links are loaded for."""


_CLOSERS: Final = ThreadPoolExecutor(64, thread_name_prefix="detach")
"""Threads that close descriptors, made when they are needed."""


class Method(Enum):
    """How probes are attached."""

    MULTI = "multi"
    PERF = "perf"

    @property
    def attach_type(self) -> int | None:
        """The expected_attach_type that programs must be loaded with, if any."""
        return UPROBE_MULTI if self is Method.MULTI else None


class _PerfEventAttr(ctypes.Structure):
    """``struct perf_event_attr`` up to config2, PERF_ATTR_SIZE_VER1."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("uprobe_path", ctypes.c_uint64),
        ("probe_offset", ctypes.c_uint64),
    )


class _LinkAttr(ctypes.Structure):
    """``union bpf_attr``, link_create with uprobe_multi."""

    _fields_ = (
        ("prog_fd", ctypes.c_uint32),
        ("target_fd", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("path", ctypes.c_uint64),
        ("offsets", ctypes.c_uint64),
        ("ref_ctr_offsets", ctypes.c_uint64),
        ("cookies", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("multi_flags", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
    )


class Attachment:
    """Probes that are in place, until ``close``."""

    def __init__(
        self,
        method: Method,
        pid: int,
        points: Sequence[ProbePoint],
        program: Callable[[str], int],
    ) -> None:
        """Attaches all points in their order, or none.

        ``program`` gives the descriptor of a BPF program by name, loaded for this method.
        Raises TargetError, PrivilegeError, or UnsupportedError if the kernel lacks it.
        """
        self.method = method
        self.points = points
        self.thread_id = Process(pid).thread_id
        """The thread that the kernel is to ask."""
        self._program = program
        self._links: list[int] = []
        self._events: list[int] = []
        try:
            if method is Method.MULTI:
                self._attach_links(pid)
            if method is Method.PERF or self.thread_id != pid:
                self.move(self.thread_id)
        except BaseException:
            self.close()
            raise

    def move(self, thread_id: int) -> list[int]:
        """Has the kernel ask another thread: the one that it has asked so far has ended.

        What happened in between is missed by perf events, not by links. Returns descriptors
        for ``close_soon``. Raises TracellocError, and has then changed nothing.
        """
        events: list[int] = []
        try:
            self._open_events(thread_id, events)
        except BaseException:
            _close_all(events)
            raise
        before, self._events = self._events, events
        self.thread_id = thread_id
        return before

    def _attach_links(self, pid: int) -> None:
        def link(point: ProbePoint) -> tuple[str, str, bool]:
            return point.open_path, point.program, point.is_return

        # Sorting is stable and puts ends of calls first, as the points' order asks for.
        ordered = sorted(self.points, key=lambda point: (not point.ends_calls, link(point)))
        for (path, name, is_return), group in groupby(ordered, key=link):
            members = list(group)
            path_bytes = ctypes.create_string_buffer(os.fsencode(path))
            offsets = (ctypes.c_uint64 * len(members))(*(point.offset for point in members))
            attributes = _LinkAttr(
                prog_fd=self._program(name),
                attach_type=UPROBE_MULTI,
                path=ctypes.addressof(path_bytes),
                offsets=ctypes.addressof(offsets),
                count=len(members),
                multi_flags=_MULTI_RETURN if is_return else 0,
                pid=pid,
            )
            try:
                self._links.append(syscalls.bpf(syscalls.BPF_LINK_CREATE, attributes))
            except OSError as error:
                raise _explain(error, pid, members[0]) from error

    def _open_events(self, thread_id: int, events: list[int]) -> None:
        """One per point, with its program; beside links, one per breakpoint, with none."""
        pmu_type, return_bit = _read_pmu()
        keeps = self.method is Method.MULTI
        points = self.points
        if keeps:
            places = {(p.open_path, p.offset): replace(p, is_return=False) for p in points}
            points = list(places.values())
        for point in points:
            path_bytes = ctypes.create_string_buffer(os.fsencode(point.open_path))
            attributes = _PerfEventAttr(
                type=pmu_type,
                size=ctypes.sizeof(_PerfEventAttr),
                config=1 << return_bit if point.is_return else 0,
                flags=_DISABLED if keeps else 0,
                uprobe_path=ctypes.addressof(path_bytes),
                probe_offset=point.offset,
            )
            try:
                descriptor = syscalls.perf_event_open(attributes, thread_id)
                events.append(descriptor)
                if not keeps:
                    fcntl.ioctl(descriptor, _IOC_SET_BPF, self._program(point.program))
                    fcntl.ioctl(descriptor, _IOC_ENABLE, 0)
            except OSError as error:
                raise _explain(error, thread_id, point) from error

    def close(self) -> None:
        """Takes every probe away."""
        descriptors = [*self._links, *self._events]
        self._links, self._events = [], []
        _close_all(descriptors)


def _close_all(descriptors: Iterable[int]) -> None:
    """Closes probes' descriptors.

    Each close waits until no processor can still be in the probe; side by side they
    wait for the same moment.
    """
    list(_CLOSERS.map(os.close, descriptors))


def close_soon(descriptors: Iterable[int]) -> None:
    """Closes probes' descriptors without waiting for it."""
    for descriptor in descriptors:
        _CLOSERS.submit(os.close, descriptor)


def _read_pmu() -> tuple[int, int]:
    """(type number, bit of ``config`` that asks for a return probe)."""
    try:
        number = int((_PMU / "type").read_text())
        format_text = (_PMU / "format/retprobe").read_text()
    except OSError as error:
        raise UnsupportedError(
            "this kernel has no uprobes", hint="it needs CONFIG_UPROBE_EVENTS=y"
        ) from error
    return number, int(format_text.strip().partition(":")[2])


def _explain(error: OSError, pid: int, point: ProbePoint) -> TracellocError:
    where = f"could not probe {point.label}: {error.strerror}"
    if error.errno in (errno.EPERM, errno.EACCES):
        return PrivilegeError(where, hint=privilege_hint())
    if error.errno in (errno.ESRCH, errno.ENOENT):
        return TargetError(f"{where}: process {pid} is ending")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return UnsupportedError(where, hint="raise the limit of open files (ulimit -n)")
    if error.errno == errno.EINVAL:
        # One place can have one reference counter only (kernel/events/uprobes.c), and
        # bcc's Python binding leaves to chance which one it passes.
        hint = "if another tool (such as bcc's memleak) probes it as well, end that one first"
        return UnsupportedError(where, hint=hint)
    return UnsupportedError(where)
