"""Maps the library and the shared memory into a process, by system calls of one of its threads."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.errors import TargetError
from tracelloc.files.elf import NotElfError
from tracelloc.files.elf.file import ElfFile
from tracelloc.record.process.memory import PAGE_BYTES
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import INJECTED_FILE, INJECTED_NAME, is_injected
from tracelloc.record.sources.injected.remotecalls import RemoteThread
from tracelloc.record.sources.preloaded import ringmerge
from tracelloc.record.sources.preloaded.sharedarea import AREA_NAME, NEXT_VARIABLE, STATE_VARIABLE
from tracelloc.system.syscalls import closed_after

_READ, _WRITE, _EXECUTE = 1, 2, 4
_PRIVATE, _SHARED, _FIXED, _ANONYMOUS = 2, 1, 0x10, 0x20
_CLOEXEC, _ALLOW_SEALING, _EXEC = 1, 2, 0x10  # MFD_ of linux/memfd.h; MFD_EXEC since Linux 6.3
_DONT_FORK, _DONT_DUMP, _WIPE_ON_FORK = 10, 16, 18  # MADV_ of asm-generic/mman-common.h
_REGISTER_GLOBAL: Final = 4  # MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED
_ADD_SEALS, _KEEP = 1033, 1030  # F_ADD_SEALS, F_DUPFD_CLOEXEC
_SEALS: Final = 1 | 2 | 4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW of linux/fcntl.h
# What the library defines.
FUNCTIONS: Final = (
    "malloc", "free", "calloc", "realloc", "reallocarray", "posix_memalign", "aligned_alloc",
    "memalign", "valloc", "pvalloc", "fork", "_Fork", "syscall", "prctl", "dlclose", "dlmopen",
    "mlockall",
)  # fmt: skip
# What tracelloc reads and writes in the library's memory (probes/preloaded/injected.c).
VARIABLES: Final = (
    "tracelloc_guard", "tracelloc_next", "tracelloc_rare", "tracelloc_tid_offset",
    "tracelloc_first_stack", STATE_VARIABLE[0], NEXT_VARIABLE[0],
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LibrarySegment:
    """A PT_LOAD program header of the library, in bytes."""

    offset: int
    address: int
    file_bytes: int
    protection: int


class LibraryFile:
    """The injected library's file, and where its symbols are."""

    def __init__(self, path: Path) -> None:
        """Reads the file. Raises TargetError if it is missing."""
        try:
            self.content = path.read_bytes()
            elf = ElfFile(self.content)
        except (OSError, NotElfError) as error:
            what = f"{path} can't be read: {error}; it is built with tracelloc"
            raise TargetError(what) from error
        written = elf.data_layout.segments
        self.parts = [
            LibrarySegment(
                each.offset, each.address, each.file_size,
                _READ
                | (_EXECUTE if each.executable else 0)
                | (_WRITE if any(start <= each.address < end for start, end in written) else 0),
            )
            for each in elf.segments
        ]  # fmt: skip
        self.size_bytes = -(-max(end for _, end in written) // PAGE_BYTES) * PAGE_BYTES
        functions = elf.find_functions(FUNCTIONS)
        # Name to address, in the file's own address space
        self.symbols = {name: next(iter(places)) for name, places in functions.items()}
        for name in VARIABLES:
            address = elf.find_object(name)
            assert address is not None, name
            self.symbols[name] = address

    def is_at(self, memory: bytes) -> bool:
        """Whether memory, which begins with a library's mapping, has this library."""
        first = self.parts[0]
        return memory[: first.file_bytes] == self.content[: first.file_bytes]


@cache
def library_file() -> LibraryFile:
    """Returns the injected library's file, read once. Raises TargetError."""
    return LibraryFile(INJECTED_FILE)


def leftovers(process: Process, library: LibraryFile) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields system calls that remove what a tracelloc has left that was killed before it was done.

    Nothing refers to that yet. The process must be stopped.
    """
    for mapping in process.maps().mappings:
        if is_injected(mapping.path) and not mapping.offset:
            yield "munmap", (mapping.start, library.size_bytes)
        elif mapping.path.startswith(AREA_NAME):
            yield "munmap", (mapping.start, mapping.end - mapping.start)
    for entry in (process.memory_directory / "fd").iterdir():
        path = str(entry.readlink())
        if is_injected(path) or path.startswith(AREA_NAME):
            yield "close", (int(entry.name),)


class Mapper:
    """Maps the library and the shared memory into a process; ``unmap`` undoes that."""

    def __init__(self, remote: RemoteThread, pid: int, memory_fd: int) -> None:
        self._remote, self._call = remote, remote.call
        self._map = partial(remote.call, "mmap")
        self._pid, self._memory_fd = pid, memory_fd
        self._mapped: list[tuple[int, int]] = []
        self._descriptors: list[int] = []

    def map_library(self, library: LibraryFile) -> int:
        """Maps the library. Returns its address in the process. Raises OSError."""
        fd = self._memory_file(INJECTED_NAME, _CLOEXEC | _EXEC)
        with closed_after(self._open(fd)) as own:
            os.pwrite(own, library.content, 0)
            os.ftruncate(own, library.size_bytes)
        # All of it has the file's name from the start, so that `leftovers` are found.
        base = self._map(0, library.size_bytes, _READ, _PRIVATE, fd, 0)
        self._mapped.append((base, library.size_bytes))
        for part in library.parts:
            skipped = part.address % PAGE_BYTES
            start, end = base + part.address - skipped, base + part.address + part.file_bytes
            self._map(
                start, end - start, part.protection, _PRIVATE | _FIXED, fd, part.offset - skipped
            )
            if part.protection & _WRITE:
                os.pwrite(self._memory_fd, bytes(-end % PAGE_BYTES), end)
                end += -end % PAGE_BYTES
                zeroed = base + library.size_bytes - end
                self._map(end, zeroed, part.protection, _PRIVATE | _FIXED | _ANONYMOUS, -1, 0)
        self._close(fd)
        guard = base + library.symbols["tracelloc_guard"]
        self._call("madvise", guard, PAGE_BYTES, _WIPE_ON_FORK)
        return base

    def map_area(self) -> int:
        """Creates and maps the shared memory (``struct preload_control``). Raises OSError."""
        fd = self._memory_file(AREA_NAME.removeprefix("/memfd:"), _CLOEXEC | _ALLOW_SEALING)
        with closed_after(self._open(fd)) as own:
            os.ftruncate(own, ringmerge.FILE_BYTES)
            fcntl.fcntl(own, _ADD_SEALS, _SEALS)
            control = self._map(0, PAGE_BYTES, _READ | _WRITE, _SHARED, fd, 0)
            self._mapped.append((control, PAGE_BYTES))
            self._call("madvise", control, PAGE_BYTES, _DONT_FORK)
            self._call("madvise", control, PAGE_BYTES, _DONT_DUMP)
            registered = 1
            with suppress(OSError):
                registered = self._call("membarrier", _REGISTER_GLOBAL, 0, 0)
            fields = {
                "size_bytes": (ringmerge.FILE_BYTES, 8), "pid": (self._pid, 4),
                "registered": (int(registered == 0), 4), "magic": (ringmerge.MAGIC, 8),
            }  # fmt: skip
            for name, (value, size) in fields.items():
                os.pwrite(own, value.to_bytes(size, "little"), ringmerge.FIELDS[name])
        file = f"/proc/{self._pid}/map_files/{control:x}-{control + PAGE_BYTES:x}"
        if not os.access(file, os.F_OK):
            # Without CAP_CHECKPOINT_RESTORE, only a descriptor leads to the memory.
            self._call("fcntl", fd, _KEEP, ringmerge.KEPT_FD)
        self._close(fd)
        return control

    def unmap(self) -> None:
        """Unmaps all that this object has mapped."""
        for fd in self._descriptors:
            with suppress(OSError):
                self._call("close", fd)
        for address, size_bytes in self._mapped:
            with suppress(OSError):
                self._call("munmap", address, size_bytes)

    def _memory_file(self, name: str, flags: int) -> int:
        name_at = self._remote.write_name(name)
        try:
            fd = self._call("memfd_create", name_at, flags)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fd = self._call("memfd_create", name_at, flags & ~_EXEC)
        self._descriptors.append(fd)
        return fd

    def _open(self, fd: int) -> int:
        """Opens a memory file of the process. Raises OSError, TargetError."""
        # Another process that shares its descriptors may have put any file there.
        path = f"/proc/{self._pid}/fd/{fd}"
        with closed_after(os.open(path, os.O_PATH | os.O_CLOEXEC)) as path_fd:
            own_path = f"/proc/self/fd/{path_fd}"
            if not os.readlink(own_path).startswith("/memfd:"):  # noqa: PTH115 - it may not exist
                raise TargetError("its descriptors are changed by another process")
            return os.open(own_path, os.O_RDWR | os.O_CLOEXEC)

    def _close(self, fd: int) -> None:
        self._call("close", fd)
        self._descriptors.remove(fd)
