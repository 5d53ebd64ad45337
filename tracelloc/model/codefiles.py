"""Files of code, where a process maps them, and why an address may have no name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

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


def is_runtime(path: str) -> bool:
    """Whether this file is the C library or C++'s: callers of malloc that ask for others."""
    return is_c_library(path) or base_name(path).startswith(("libstdc++.so", "libc++.so"))


def is_loader(path: str) -> bool:
    """Whether this file is the dynamic linker."""
    return base_name(path).startswith("ld-")


class Mapping(NamedTuple):
    """One line of maps: addresses ``start <= a < end`` of the process."""

    start: int
    end: int
    offset: int
    """File offset of ``start``, in bytes."""
    executable: bool
    device: str
    inode: int
    path: str
    """Path for people: without `` (deleted)``; ``[heap]`` and the like as they are."""
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


class Unresolved(Enum):
    """Why an address has no name."""

    UNMAPPED = "nothing is mapped there"
    NOT_CODE = "not executable memory"
    ANONYMOUS = "code that belongs to no file (JIT)"
    UNREADABLE = "the file cannot be read"
    NOT_ELF = "the file is not ELF"
    NO_SYMBOL = "no symbol covers it"
    UNREAD = "its symbols can't be read"
    KERNEL_PAGE = "a page of the kernel's"
    PENDING = "its name is still being looked up"


class CodeModule(Protocol):
    """A mapped file of code."""

    @property
    def file_id(self) -> FileId:
        """Which file it is."""

    @property
    def path(self) -> str:
        """Path for people."""

    @property
    def build_id(self) -> str | None:
        """The linker's identification of its contents, in hexadecimal."""


ModuleT_co = TypeVar("ModuleT_co", bound=CodeModule, covariant=True)


@dataclass(frozen=True, slots=True)
class Place(Generic[ModuleT_co]):
    """Where an address lies."""

    mapping: Mapping
    module: ModuleT_co | None
    """The file, if there is one that could be read."""
    reason: Unresolved | None
    """Why there is no module."""
    file_offset: int
    """In the mapped file, in bytes; in the mapping, if there is no file."""
