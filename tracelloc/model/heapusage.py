"""How a process's heap is used at one time, and where its resident memory is."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, Protocol

from tracelloc.dataclass import dataclass, field
from tracelloc.model.blocks import BlockSum
from tracelloc.model.process import MallocLibrary


class MemoryPart(Enum):
    """A use of resident memory, in the order of reports. The value is displayed."""

    IN_USE = "heap blocks in use"
    CACHED = "freed, in thread caches"
    FREE = "freed, between blocks in use"
    TOP = "free at the ends of arenas"
    OWN = "data of the malloc library"
    RUNTIME = "heap of a language runtime"
    CODE = "generated code"
    OTHER = "other memory without a file"
    STACKS = "stacks of threads"
    DATA = "variables of programs and libraries"
    FILES = "pages of mapped files"
    SHARED = "shared memory"
    AGAIN = "shared memory at further addresses"
    TRACELLOC = "tracelloc's library and probes"


KEPT_PARTS = MemoryPart.CACHED, MemoryPart.FREE, MemoryPart.TOP  # Free, but still resident
HEAP_PARTS = (MemoryPart.IN_USE, *KEPT_PARTS, MemoryPart.OWN)  # Told apart by a walk


@dataclass(frozen=True, slots=True)
class RuntimeFigures:
    """The heap of a language runtime by its own counters, in bytes, at its last collection."""

    name: str
    used_bytes: int
    committed_bytes: int
    limit_bytes: int
    metaspace_used_bytes: int
    metaspace_committed_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """The resident memory of one process by part."""

    parts: Mapping[MemoryPart, int]  # Resident bytes; missing ones are 0, or in `OTHER`
    # The largest (name, resident bytes) in each part; names may come from the target.
    items: Mapping[MemoryPart, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    swapped_bytes: int = 0
    page_table_bytes: int = 0  # Size of the kernel's page tables for the process
    huge_bytes: int = 0  # Resident memory without a file in transparent huge pages
    hugetlb_bytes: int = 0  # Memory in pages of hugetlbfs, which does not count as resident
    device_bytes: int = 0  # Mapped memory of devices, which does not count as resident
    devices: tuple[str, ...] = ()  # The files of that
    runtime: RuntimeFigures | None = None
    stacks: int = 0  # Number of threads' stacks; 0 if they can't be told from each other
    threads: int = 0  # Number of living threads, without the first one, whose stack has no end
    stack_space_bytes: int = 0  # Address space of the stacks
    # Resident anonymous bytes that other processes have, too, since a fork: by part, the heap's
    # under `IN_USE`.
    inherited: Mapping[MemoryPart, int] = field(default_factory=dict)

    @property
    def rss_bytes(self) -> int:
        """Bytes of all resident memory, as the kernel counts it."""
        return sum(self.parts.values())

    @property
    def own_bytes(self) -> int:
        """Bytes of resident memory that the process would have without tracelloc."""
        return self.rss_bytes - self.parts.get(MemoryPart.TRACELLOC, 0)

    @property
    def kept_bytes(self) -> int:
        return sum(self.parts.get(part, 0) for part in KEPT_PARTS)

    @property
    def heap_bytes(self) -> int:
        return sum(self.parts.get(part, 0) for part in HEAP_PARTS)

    @property
    def anonymous_bytes(self) -> int:
        """Resident bytes without a file: heap, stacks and other anonymous memory."""
        with_file = MemoryPart.FILES, MemoryPart.SHARED, MemoryPart.AGAIN, MemoryPart.TRACELLOC
        return self.rss_bytes - sum(self.parts.get(part, 0) for part in with_file)


NO_ACCOUNT: Final = MemoryAccount({})


@dataclass(frozen=True, slots=True)
class ArenaUsage:
    """How a part of the heap with its own free lists (an arena) is used."""

    name: str
    library: MallocLibrary
    system_bytes: int  # Bytes requested from the kernel, by the library's own count
    seen_bytes: int  # Part of `system_bytes` that the walk accounts for
    in_use: BlockSum
    cached: BlockSum  # Free blocks that threads keep for themselves
    free: BlockSum  # Other free blocks, without the rest at the end of the heap
    top_bytes: int  # The rest at the end of the heap
    own_bytes: int  # Bytes between blocks of the library's own data, and of foreign sbrk memory
    resident: Mapping[MemoryPart, int]  # Resident bytes by part
    unseen: tuple[str, ...] = ()  # Where the walk had to stop, and why, for display

    @property
    def free_resident_bytes(self) -> int:
        return sum(self.resident.get(part, 0) for part in KEPT_PARTS)

    @property
    def resident_bytes(self) -> int:
        return sum(self.resident.values())


@dataclass(frozen=True, slots=True)
class PinningStack:
    """Blocks of one call stack in pages that are at most a quarter in use (pinned pages)."""

    stack: int  # Index in `CallStacks`
    kept_bytes: int  # Free bytes that the blocks keep; a page's are divided among its blocks
    blocks: BlockSum


@dataclass(frozen=True, slots=True)
class PinnedPages:
    """Resident pages of the heap that are at most a quarter in use: blocks pin the free rest."""

    kept_bytes: int = 0  # Free bytes in the pages, which can't be returned to the kernel
    blocks: BlockSum = field(default_factory=BlockSum)  # In use in these pages
    largest: tuple[tuple[int, BlockSum], ...] = ()  # (usable bytes, blocks) that keep most bytes
    by_stack: tuple[PinningStack, ...] = ()  # That keep most bytes; empty if not traced


@dataclass(frozen=True, slots=True)
class SizeUsage:
    """Blocks in use of one size."""

    usable_bytes: int  # Most bytes that a program may have requested for such a block
    blocks: BlockSum


@dataclass(frozen=True, slots=True)
class ClassUsage:
    """Blocks in use that begin with an object of a C++ class."""

    name: str
    blocks: BlockSum


@dataclass(frozen=True, slots=True)
class StackClass:
    """The C++ class with which most blocks of a call stack begin."""

    stack: int  # Index in `CallStacks`
    name: str
    count: int  # Blocks in use that begin with the class


@dataclass(frozen=True, slots=True)
class LargeBlock:
    """One of the largest blocks in use."""

    address: int
    usable_bytes: int
    class_name: str  # Empty if unknown
    contents: bytes  # The first bytes of the block; empty unless requested


@dataclass(frozen=True, slots=True)
class HeapUsage:
    """The heap of one process at one time, and where all its resident memory is."""

    time_s: float  # Seconds since 1970
    arenas: tuple[ArenaUsage, ...]
    sizes: tuple[SizeUsage, ...] = ()  # Blocks in use by size, most bytes first
    classes: tuple[ClassUsage, ...] = ()  # Blocks in use by class, most bytes first
    stack_classes: tuple[StackClass, ...] = ()  # Of traced blocks; empty if there are none
    largest: tuple[LargeBlock, ...] = ()
    trimmable_bytes: int | None = None  # Bytes that malloc_trim(0) would return; None: no such call
    notes: tuple[str, ...] = ()  # Gaps in the figures; may contain names from the target
    retries: int = 0  # How often a part was read again, since the process changed it meanwhile
    account: MemoryAccount = NO_ACCOUNT  # All resident memory of the process, the heap included
    pinned: PinnedPages = PinnedPages()

    @property
    def in_use(self) -> BlockSum:
        return BlockSum(
            sum(arena.in_use.count for arena in self.arenas),
            sum(arena.in_use.size_bytes for arena in self.arenas),
        )

    @property
    def free_resident_bytes(self) -> int:
        return sum(arena.free_resident_bytes for arena in self.arenas)

    @property
    def coverage(self) -> float:
        return part_seen(self.arenas)


NO_MEMORY: Final = HeapUsage(0.0, ())  # Usage of a program that has just been executed


@dataclass(frozen=True, slots=True)
class HeapUsages:
    """Where a process's resident memory was some seconds ago, and where it was at first."""

    now: HeapUsage
    first: HeapUsage  # Usage at the beginning of tracing, or of the program


class SeenMemory(Protocol):
    """Memory that a malloc library requested, and how much of it a walk accounts for, in bytes."""

    @property
    def system_bytes(self) -> int:
        """Bytes requested from the kernel, by the malloc library's own count."""

    @property
    def seen_bytes(self) -> int:
        """Bytes of ``system_bytes`` that the walk accounts for."""


def part_seen(arenas: Iterable[SeenMemory]) -> float:
    """Returns the share of some arenas' bytes that a walk accounts for, 0 to 1."""
    sizes = [(arena.system_bytes, arena.seen_bytes) for arena in arenas]
    system_bytes = sum(system for system, _ in sizes)
    return sum(map(min, sizes)) / system_bytes if system_bytes else 1.0
