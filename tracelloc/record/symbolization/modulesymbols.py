"""Function names in mapped files and in generated code.

Names of generated code come from the perf map that its compiler writes, ``/tmp/perf-PID.map``
(tools/perf/Documentation/jit-interface.txt of the kernel): one line per function,
``START SIZE name``, numbers in hexadecimal, appended as code is generated. Node writes it with
``--perf-basic-prof``, CPython with ``-X perf``, Java with an agent. Tracelloc trusts it only if
the target's user or root owns it, since anybody may write to /tmp.
"""

import os
import re
import stat
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from tracelloc.files.dwarf import SourceLines
from tracelloc.files.elf import RawTable, Symbol, SymbolTable
from tracelloc.files.elf.debugfiles import DebugFile, DebugReferences, find_debug_file, keep_if
from tracelloc.files.elf.file import DataLayout
from tracelloc.model.figures import U64
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.procfs import Process
from tracelloc.record.symbolization.debuginfod import DEBUG_SERVERS
from tracelloc.record.worker.client import NAME_WORKER, FileWorker
from tracelloc.record.worker.targetfile import WorkerFile
from tracelloc.system.syscalls import NotRegularError, open_inside

_LARGEST_BYTES: Final = 512 << 20
_PIECE_BYTES: Final = 4 << 20  # Bytes of the file that are read at once
# Most functions that are kept: some 200 MiB. Large Java programs have a tenth.
_MOST_FUNCTIONS: Final = 1 << 20
_MOST_NAME_BYTES: Final = 128 << 20  # Most bytes of all their names
_LONGEST_NAME: Final = 1024
_RELOAD_S: Final = 1.0  # Least time between two reads of the file


# V8's `JS:*name file:line:column`; the mark tells how well it was compiled.
_JAVASCRIPT: Final = re.compile(
    r"(?:JS|LazyCompile|Function|Eval|Script):[~^*+]?(?P<name>\S*) (?P<file>\S.*):(?P<line>\d+):\d+"
)
_PYTHON: Final = re.compile(r"py::(?P<name>[^:]+):(?P<file>.+)")  # CPython's `py::name:file`


def describe(name: str) -> tuple[str, str | None, int | None]:
    """Splits a perf map's name into function, source file and first line, None where unknown."""
    if (match := _JAVASCRIPT.fullmatch(name)) is not None:
        return match["name"] or "(anonymous)", match["file"], int(match["line"][:9])
    match = _PYTHON.fullmatch(name)
    return (name, None, None) if match is None else (match["name"], match["file"], None)


class PerfMap:
    """The perf map of one process: names of generated code. Read on first use, and as it grows."""

    def __init__(self, process: Process, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._process = process
        # Read now, as the process may have ended when the file is first needed.
        self._inner_pid = process.inner_pid()
        self._users = (0, *process.user_ids())
        self._clock_s = clock_s
        self._next_look_s = float("-inf")
        self._read_bytes = 0
        self._functions: dict[int, tuple[int, str]] = {}
        self._name_bytes = 0
        self._full: str | None = None  # Why the rest of the file is not read
        self._table = SymbolTable([])
        self.reason: str | None = None  # Why the file is not trusted, if it exists

    @property
    def path(self) -> PurePosixPath:
        """Path of the perf map in the target's root, with the PID in the target's namespace."""
        return PurePosixPath(f"/tmp/perf-{self._inner_pid}.map")  # noqa: S108

    def __len__(self) -> int:
        return len(self._functions)

    def find_all(self, addresses: U64) -> list[Symbol | None]:
        """Returns the function that contains each address of the target, or None."""
        now_s = self._clock_s()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _RELOAD_S
            self.reload()
        return self._table.find_all(addresses)

    def reload(self) -> None:
        """Reads new content of the perf map, if that is trusted."""
        if (descriptor := self._open()) is None:
            return
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            self.reason = self._distrust(status)
            if self.reason is not None or status.st_size == self._read_bytes:
                return
            if status.st_size < self._read_bytes:
                self._functions.clear()
                self._read_bytes, self._name_bytes, self._full = 0, 0, None
            self.reason = self._full
            if self._full is not None:
                return
            self._read_on(file, status.st_size)
        functions = [(start, size, name) for start, (size, name) in self._functions.items()]
        self._table = SymbolTable([RawTable.made_up(functions)])

    def _read_on(self, file: BinaryIO, size_bytes: int) -> None:
        file.seek(self._read_bytes)
        while self._read_bytes < size_bytes and self._full is None:
            data = file.read(min(_PIECE_BYTES, size_bytes - self._read_bytes))
            end = data.rfind(b"\n") + 1
            if not end:
                # The last line is still being written, or endless.
                self._full = "it has endless lines" if len(data) == _PIECE_BYTES else None
                break
            self._read_bytes += end
            file.seek(self._read_bytes)
            self._add(data[:end])
        self.reason = self._full

    def _open(self) -> int | None:
        roots = [self._process.memory_directory / "root"]
        if self._inner_pid == self._process.pid:
            # An ended process has no root any more, but its file may still exist.
            roots.append(Path("/"))
        for root in roots:
            try:
                return open_inside(root, str(self.path))
            except NotRegularError as error:
                self.reason = error.strerror
                return None
            except OSError:
                continue
        return None

    def _distrust(self, status: os.stat_result) -> str | None:
        reasons = (
            (not stat.S_ISREG(status.st_mode), "it is not a regular file"),
            (status.st_uid not in self._users, "it belongs to another user"),
            (status.st_mode & stat.S_IWOTH, "others may write to it"),
            (status.st_size > _LARGEST_BYTES, "it is too large"),
        )
        return next((reason for applies, reason in reasons if applies), None)

    def _add(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            try:
                first, second, name_bytes = line.split(None, 2)
                start, size = int(first, 16), int(second, 16)
            except ValueError:
                continue
            if 0 < size < 1 << 32 and 0 <= start < 1 << 56:
                # Memory is reused for other code: the last line counts.
                name = name_bytes[:_LONGEST_NAME].decode(errors="replace")
                _, before = self._functions.get(start, (0, ""))
                self._functions[start] = size, name
                self._name_bytes += len(name) - len(before)
                if len(self._functions) > _MOST_FUNCTIONS or self._name_bytes > _MOST_NAME_BYTES:
                    self._full = f"only its first {len(self._functions):,} functions are read"
                    return


class ModuleSymbols:
    """Names and lines of one mapped file, looked up on demand by a worker. Thread safe.

    All methods and properties may raise FileReadError.
    """

    def __init__(
        self, module: Module, roots: Sequence[Path], worker: FileWorker = NAME_WORKER
    ) -> None:
        """``roots``: directories that stand for ``/`` in the search for debug files."""
        self.module = module
        self.troubles: list[str] = []  # Debug files that were found but don't fit, for display
        self._roots = roots
        self._lock = threading.RLock()
        self._file = WorkerFile(worker, module.elf.descriptor(), module.path)
        self._debug_has_lines = False

    @cached_property
    def _described(self) -> tuple[bool, bool, DebugReferences]:
        return self._file.describe()

    @property
    def has_symbols(self) -> bool:
        """Whether the file has its full symbol table, which stripping removes."""
        return self._described[0]

    @property
    def has_own_lines(self) -> bool:
        """Whether the mapped file itself has debug information."""
        return self._described[1]

    @cached_property
    def debug_file(self) -> DebugFile | None:
        """Returns the separate debug file of the module; None if there is none."""
        with self._lock:
            references = self._described[2]
            path = self.module.path
            found = find_debug_file(references, path, self._roots, self._fits, self.troubles)
            return found or self._download(references.build_id)

    def _download(self, build_id: str | None) -> DebugFile | None:
        opened = DEBUG_SERVERS.open_debug_file(build_id or "", self.module.path)
        found = opened and DebugFile(*opened, by_name=False, is_downloaded=True)
        return found if found and keep_if(found, self._fits, self.troubles) else None

    def _fits(self, found: DebugFile) -> bool:
        fits, has_lines = self._file.take_debug_file(found)
        self._debug_has_lines = fits and has_lines
        return fits

    @cached_property
    def counted(self) -> tuple[int, bool, list[str]]:
        """Returns (number of named functions, whether a table is embedded, what can't be read)."""
        self._complete()
        return self._file.count()

    def find_all(self, addresses: Sequence[int]) -> list[Symbol | None]:
        """Returns the function, or PLT stub, that contains each file address, or None."""
        self._complete()
        return self._file.symbols(addresses)

    def find_variables(
        self, addresses: Sequence[int], *, of_threads: bool = False
    ) -> list[Symbol | None]:
        """Returns variables at file addresses; ``of_threads``: offsets in thread-local blocks."""
        self._complete()
        return self._file.variables(addresses, of_threads)

    @cached_property
    def data_layout(self) -> DataLayout:
        return self._file.data_layout()

    def _complete(self) -> None:
        if not self.has_symbols:
            self.debug_file  # noqa: B018 - it is looked for

    @cached_property
    def lines(self) -> SourceLines:
        """Returns a reader of lines and inlined functions, from the file or its debug file."""
        with self._lock:
            elf, decoder = self.module.elf, self._file.decoder
            return SourceLines(elf, self.debug_file, lambda f: decoder(of_debug=f is not elf))

    @property
    def may_have_lines(self) -> bool:
        """Whether there may be debug information for the file."""
        return self.has_own_lines or (self.debug_file is not None and self._debug_has_lines)

    def close(self) -> None:
        """Closes what was opened for the module, but not the mapped file itself."""
        if "lines" in self.__dict__:
            self.lines.close()
        self._file.close()
        if (debug := self.__dict__.get("debug_file")) is not None:
            debug.close()
