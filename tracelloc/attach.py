"""Attaching BPF programs to a process's code through perf events.

perf_event_open(2) with the ``uprobe`` PMU (Linux 4.17): one descriptor per probe, no
tracefs needed, and closing it takes the probe away again, also when we are killed.
The event's PID makes the kernel filter by address space: all threads of the target,
none of its forked children.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tracelloc.errors import PrivilegeError, TargetError, UnsupportedError
from tracelloc.placement import ProbePoint

_PMU: Final = Path("/sys/bus/event_source/devices/uprobe")
_PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}
_PERF_FLAG_FD_CLOEXEC: Final = 8
_IOC_ENABLE: Final = 0x2400
_IOC_SET_BPF: Final = 0x40042408


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


class PerfAttachment:
    """Attached probes, one perf event each."""

    def __init__(self, pid: int, points: Sequence[ProbePoint], program: Callable[[str], int]):
        """Attaches all points in order, or none.

        ``program`` gives the descriptor of a loaded BPF program by name. Raises
        TargetError, PrivilegeError or UnsupportedError.
        """
        self._descriptors: list[int] = []
        self._libc = ctypes.CDLL(None, use_errno=True)
        pmu_type, return_bit = _read_pmu()
        try:
            for point in points:
                config = 1 << return_bit if point.is_return else 0
                self._attach(pid, point, pmu_type, config, program(point.program))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._descriptors)

    def _attach(
        self, pid: int, point: ProbePoint, pmu_type: int, config: int, program: int
    ) -> None:
        path = ctypes.create_string_buffer(os.fsencode(point.open_path))
        attr = _PerfEventAttr(
            type=pmu_type,
            size=ctypes.sizeof(_PerfEventAttr),
            config=config,
            uprobe_path=ctypes.addressof(path),
            probe_offset=point.offset,
        )
        descriptor = self._libc.syscall(
            _PERF_EVENT_OPEN[platform.machine()],
            ctypes.byref(attr),
            ctypes.c_int(pid),
            ctypes.c_int(-1),
            ctypes.c_int(-1),
            ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC),
        )
        if descriptor < 0:
            raise _explain(ctypes.get_errno(), pid, point)
        self._descriptors.append(descriptor)
        try:
            fcntl.ioctl(descriptor, _IOC_SET_BPF, program)
            fcntl.ioctl(descriptor, _IOC_ENABLE, 0)
        except OSError as error:
            raise _explain(error.errno or 0, pid, point) from error

    def close(self) -> None:
        """Takes every probe away; entries first, so that no new call is begun."""
        while self._descriptors:
            os.close(self._descriptors.pop())


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


def _explain(code: int, pid: int, point: ProbePoint) -> Exception:
    where = f"could not probe {point.label}: {os.strerror(code)}"
    if code in (errno.EPERM, errno.EACCES):
        return PrivilegeError(where, hint="run tracelloc as root (sudo)")
    if code in (errno.ESRCH, errno.ENOENT):
        return TargetError(f"{where}: process {pid} is ending")
    if code in (errno.EMFILE, errno.ENFILE):
        return UnsupportedError(where, hint="raise the limit of open files (ulimit -n)")
    return UnsupportedError(where)
