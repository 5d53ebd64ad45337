"""What /proc says about a process. Parsing is pure; the root of /proc can be given.

Formats: proc_pid_maps(5), proc_pid_stat(5), proc_pid_status(5).
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelloc.errors import PrivilegeError, TargetError

PROC: Final = Path("/proc")
TRAMPOLINE_MAPPING: Final = "[uprobes]"
"""Where the kernel keeps the instruction that hijacked returns go to."""

FileId = tuple[str, int]
"""Device (as maps writes it) and inode: one file, however many names it has."""


C_LIBRARY: Final = ("libc.so", "libc-2", "ld-linux", "ld-musl", "libpthread")
"""How the files are called that hold the code below main and thread functions."""


def base_name(path: str) -> str:
    """What follows the last slash; the path itself if there is none."""
    return path.rsplit("/", 1)[-1]


def is_c_library(path: str) -> bool:
    """Whether this file is the C library, or came with it."""
    return base_name(path).startswith(C_LIBRARY)


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of maps: addresses ``start <= a < end`` of the process."""

    start: int
    end: int
    offset: int
    """File offset of ``start``, in bytes."""
    executable: bool
    device: str
    inode: int
    path: str
    """As shown to people: without `` (deleted)``; ``[heap]`` and the like as they are."""
    deleted: bool

    @property
    def is_file(self) -> bool:
        """Whether a file on disk is mapped (or was, if deleted)."""
        return self.inode != 0 and self.path.startswith("/")

    @property
    def file_id(self) -> FileId:
        """Which file, for caches that outlive a mapping."""
        return self.device, self.inode

    @property
    def map_file(self) -> str:
        """The name under ``/proc/PID/map_files``."""
        return f"{self.start:x}-{self.end:x}"


def parse_maps(text: str) -> list[Mapping]:
    """Mappings from the text of ``/proc/PID/maps``, in address order."""
    mappings = []
    for line in text.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 5:
            continue
        start, _, end = fields[0].partition("-")
        path = fields[5] if len(fields) > 5 else ""
        deleted = path.endswith(" (deleted)")
        mappings.append(
            Mapping(
                start=int(start, 16),
                end=int(end, 16),
                offset=int(fields[2], 16),
                executable="x" in fields[1],
                device=fields[3],
                inode=int(fields[4]),
                path=path.removesuffix(" (deleted)"),
                deleted=deleted,
            )
        )
    return mappings


class AddressMap:
    """Mappings that can be asked by address."""

    def __init__(self, mappings: Iterable[Mapping]) -> None:
        self.mappings: Sequence[Mapping] = sorted(mappings, key=lambda m: m.start)
        self._starts = [m.start for m in self.mappings]

    def find(self, address: int) -> Mapping | None:
        """The mapping that holds an address."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at >= 0 and address < self.mappings[at].end:
            return self.mappings[at]
        return None


@dataclass(frozen=True, slots=True)
class Process:
    """A process under a /proc, named by its PID there."""

    pid: int
    root: Path = PROC

    @property
    def directory(self) -> Path:
        """``/proc/PID``."""
        return self.root / str(self.pid)

    def exists(self) -> bool:
        """Whether it is there and not a zombie."""
        try:
            return self.state() not in "ZX"
        except TargetError:
            return False

    def _read(self, name: str) -> bytes:
        try:
            return (self.directory / name).read_bytes()
        except (FileNotFoundError, ProcessLookupError) as error:
            raise TargetError(f"there is no process {self.pid}") from error
        except PermissionError as error:
            raise PrivilegeError(
                f"process {self.pid} may not be inspected: {error.strerror}",
                hint="run tracelloc as root (sudo)",
            ) from error

    def _stat(self) -> list[str]:
        # The command stands in parentheses and may hold anything, those included.
        return self._read("stat").decode(errors="replace").rpartition(")")[2].split()

    def state(self) -> str:
        """One letter: R, S, D, T (stopped), Z (zombie) …"""
        return self._stat()[0]

    def command(self) -> str:
        """The short name (comm), at most 15 bytes."""
        return self._read("comm").decode(errors="replace").removesuffix("\n")

    def is_kernel_thread(self) -> bool:
        """Kernel threads have no memory of their own (PF_KTHREAD in the flags of stat)."""
        return bool(int(self._stat()[6]) & 0x00200000)

    def maps(self) -> AddressMap:
        """Its mappings now."""
        return AddressMap(parse_maps(self._read("maps").decode(errors="surrogateescape")))

    def rss_bytes(self) -> int | None:
        """Resident memory, or None once the process is gone."""
        try:
            return int(self._read("statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (TargetError, IndexError):
            return None

    def cpu_ns(self) -> int | None:
        """CPU time of all its threads, user and system; None once the process is gone."""
        try:
            fields = self._stat()
        except TargetError:
            return None
        return (int(fields[11]) + int(fields[12])) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))

    def thread_ids(self) -> set[int]:
        """Threads that are there now; empty once the process is gone."""
        try:
            return {int(task.name) for task in (self.directory / "task").iterdir()}
        except (FileNotFoundError, ProcessLookupError):
            return set()

    def open_mapping(self, mapping: Mapping) -> int:
        """A file descriptor of the mapped file itself, even if its name is gone.

        ``map_files`` leads to the inode, whatever its path is now or in whichever mount
        namespace; where that is not allowed, the path inside the process's root serves.
        Raises OSError.
        """
        try:
            return os.open(self.mapping_path(mapping), os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            inside = f"{self.directory}/root{mapping.path}"
            descriptor = os.open(inside, os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(descriptor).st_ino != mapping.inode:
                os.close(descriptor)
                raise
            return descriptor

    def mapping_path(self, mapping: Mapping) -> str:
        """The path by which the kernel, or we, open the mapped file."""
        return f"{self.directory}/map_files/{mapping.map_file}"
