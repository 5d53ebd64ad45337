"""Names of generated code, from the file that its maker writes for perf.

``/tmp/perf-PID.map`` (tools/perf/Documentation/jit-interface.txt of the kernel): one line
per function, ``START SIZE name``, numbers in hexadecimal, appended as code is made. Node
writes it with ``--perf-basic-prof``, CPython with ``-X perf``, Java with an agent. It is
believed only if the target's user or root owns it: anybody may write to /tmp.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np

from tracelloc.elf import RawTable, Symbol, SymbolTable
from tracelloc.elf.debugfiles import open_inside
from tracelloc.target.procfs import Process

_LARGEST_BYTES: Final = 512 << 20
_LONGEST_NAME: Final = 4096
_RELOAD_S: Final = 1.0
"""The file is looked at again no more often than this."""


_JAVASCRIPT: Final = re.compile(
    r"(?:JS|LazyCompile|Function|Eval|Script):[~^*+]?(?P<name>\S*) (?P<file>\S.*):(?P<line>\d+):\d+"
)
"""V8's ``JS:*name file:line:column``; the mark says how well it was compiled."""
_PYTHON: Final = re.compile(r"py::(?P<name>[^:]+):(?P<file>.+)")
"""CPython's ``py::name:file``."""


def describe(name: str) -> tuple[str, str | None, int | None]:
    """Function, source file and the function's first line, as far as the name tells."""
    match = _JAVASCRIPT.fullmatch(name)
    if match is not None:
        return match["name"] or "(anonymous)", match["file"], int(match["line"][:9])
    match = _PYTHON.fullmatch(name)
    if match is not None:
        return match["name"], match["file"], None
    return name, None, None


class PerfMap:
    """The perf map of one process; read when first needed, and again as it grows."""

    def __init__(self, process: Process, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._process = process
        # Asked now: the process may have ended when the file is first needed.
        self._inner_pid = process.inner_pid()
        self._users = (0, *process.user_ids())
        self._clock_s = clock_s
        self._next_look_s = float("-inf")
        self._read_bytes = 0
        self._functions: dict[int, tuple[int, str]] = {}
        self._table = SymbolTable([])
        self.reason: str | None = None
        """Why the file is not believed, if it is there."""

    @property
    def path(self) -> PurePosixPath:
        """In the target's own root, by the PID that the target has for itself."""
        return PurePosixPath(f"/tmp/perf-{self._inner_pid}.map")  # noqa: S108

    def __len__(self) -> int:
        return len(self._functions)

    def find_all(
        self, addresses: np.ndarray[tuple[int], np.dtype[np.uint64]]
    ) -> list[Symbol | None]:
        """The functions that hold these addresses of the target, None where there is none."""
        now_s = self._clock_s()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _RELOAD_S
            self.reload()
        return self._table.find_all(addresses)

    def reload(self) -> None:
        """Reads what is new in the file, if it may be believed."""
        descriptor = self._open()
        if descriptor is None:
            return
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            self.reason = self._distrust(status)
            if self.reason is not None or status.st_size == self._read_bytes:
                return
            if status.st_size < self._read_bytes:
                self._functions.clear()
                self._read_bytes = 0
            file.seek(self._read_bytes)
            data = file.read(status.st_size - self._read_bytes)
        # The last line may still be being written.
        data = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(data)
        self._add(data)

    def _open(self) -> int | None:
        roots = [self._process.memory_directory / "root"]
        if self._inner_pid == self._process.pid:
            # A process that has ended has no root any more, but its file may be there.
            roots.append(Path("/"))
        for root in roots:
            with suppress(OSError):
                return open_inside(root, self.path)
        return None

    def _distrust(self, status: os.stat_result) -> str | None:
        if not stat.S_ISREG(status.st_mode):
            return "it is no regular file"
        if status.st_uid not in self._users:
            return "it belongs to another user"
        if status.st_mode & stat.S_IWOTH:
            return "others may write to it"
        if status.st_size > _LARGEST_BYTES:
            return "it is too large"
        return None

    def _add(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            fields = line.split(None, 2)
            if len(fields) < 3:
                continue
            try:
                start, size = int(fields[0], 16), int(fields[1], 16)
            except ValueError:
                continue
            if 0 < size < 1 << 32 and 0 <= start < 1 << 56:
                # Memory is used again for other code: the last line holds.
                self._functions[start] = size, fields[2][:_LONGEST_NAME].decode(errors="replace")
        functions = [(start, size, name) for start, (size, name) in self._functions.items()]
        self._table = SymbolTable([RawTable.made_up(functions)])
