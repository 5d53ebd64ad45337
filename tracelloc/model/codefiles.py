"""Code files, their mappings, and why an address may have no name."""

from enum import Enum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tracelloc.dataclass import dataclass

FileId = tuple[str, int]  # Device (as in maps) and inode of a file, whatever its names

# Name prefixes of the files with the code below main and below thread functions.
C_LIBRARY: Final = ("libc.so", "libc-2", "ld-linux", "ld-musl", "libpthread")

GENERATED: Final = "[generated code]"  # The module of functions named by a perf map


def base_name(path: str) -> str:
    """Returns the part of a path after the last slash; the path itself without a slash."""
    return path.rsplit("/", 1)[-1]


def is_c_library(path: str) -> bool:
    """Whether the file with this path belongs to the C library."""
    return base_name(path).startswith(C_LIBRARY)


def is_runtime(path: str) -> bool:
    """Whether a path is that of the C or C++ library, which calls malloc on behalf of others."""
    return is_c_library(path) or base_name(path).startswith(("libstdc++.so", "libc++.so"))


def is_loader(path: str) -> bool:
    """Whether the file with this path is the dynamic linker."""
    return base_name(path).startswith("ld-")


class Mapping(NamedTuple):
    """One line of /proc/PID/maps: addresses ``start <= a < end`` of the process."""

    start: int
    end: int
    offset: int  # File offset of `start`, in bytes
    executable: bool
    device: str
    inode: int
    path: str  # Path for display: without ` (deleted)`; `[heap]` and the like unchanged
    deleted: bool

    @property
    def is_file(self) -> bool:
        """Whether a file on disk is mapped (or was, if deleted)."""
        return self.inode != 0 and self.path.startswith("/")

    @property
    def file_id(self) -> FileId:
        """Device and inode of the mapped file: a key for caches that outlive a mapping."""
        return self.device, self.inode

    @property
    def map_file(self) -> str:
        """The mapping's file name under ``/proc/PID/map_files``: ``START-END`` in hexadecimal."""
        return f"{self.start:x}-{self.end:x}"


class Unresolved(Enum):
    """Why an address has no name."""

    UNMAPPED = "nothing is mapped there"
    NOT_CODE = "not executable memory"
    ANONYMOUS = "JIT code"
    UNREADABLE = "the file cannot be read"
    NOT_ELF = "the file is not ELF"
    NO_SYMBOL = "no symbol"
    UNREAD = "its symbols can't be read"
    KERNEL_PAGE = "a page of the kernel's"
    PENDING = "…"


class CodeModule(Protocol):
    """A mapped file with code."""

    @property
    def path(self) -> str:
        """The file's path, for display."""

    @property
    def build_id(self) -> str | None:
        """The file's build ID from the linker, in hexadecimal; None without one."""


ModuleT_co = TypeVar("ModuleT_co", bound=CodeModule, covariant=True)


@dataclass(frozen=True, slots=True)
class CodePlace(Generic[ModuleT_co]):
    """Where a code address lies: the mapping, the mapped file, and the offset in the file."""

    mapping: Mapping
    module: ModuleT_co | None  # The mapped file, if it could be read
    reason: Unresolved | None  # Why `module` is None
    file_offset: int  # Byte offset in the mapped file, or in the mapping if there is no file
