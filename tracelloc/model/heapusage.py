"""How a process's heap is used at one time, where its resident memory is, and who holds blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from tracelloc.model.process import MallocLibrary


class MemoryPart(Enum):
    """A part of resident memory, in the order of reports. The value is for display."""

    IN_USE = "heap blocks in use"
    CACHED = "freed, in thread caches"
    FREE = "freed, between blocks in use"
    TOP = "free at the ends of arenas"
    OWN = "data of the malloc library"
    RUNTIME = "heap of a language runtime"
    OTHER = "other memory without a file"
    STACKS = "stacks of threads"
    DATA = "variables of programs and libraries"
    FILES = "pages of mapped files"
    SHARED = "shared memory"
    TRACELLOC = "tracelloc's library and probes"


KEPT_PARTS = MemoryPart.CACHED, MemoryPart.FREE, MemoryPart.TOP  # Free, but still resident
# All parts that a walk of the heap tells apart.
HEAP_PARTS = (MemoryPart.IN_USE, *KEPT_PARTS, MemoryPart.OWN)


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """The resident memory of one process by part."""

    # Resident bytes; a part that is missing is 0, or not told apart from `OTHER`.
    parts: Mapping[MemoryPart, int]
    # The largest (name, resident bytes) of parts; names may come from the target.
    items: Mapping[MemoryPart, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    swapped_bytes: int = 0
    page_table_bytes: int = 0  # Size of the page tables, which the kernel has for the process
    huge_bytes: int = 0  # Resident memory without a file in transparent huge pages
    hugetlb_bytes: int = 0  # Memory in pages of hugetlbfs, which does not count as resident

    @property
    def rss_bytes(self) -> int:
        """All resident memory, as the kernel counts it."""
        return sum(self.parts.values())

    @property
    def own_bytes(self) -> int:
        """Resident memory that the process would have without tracelloc."""
        return self.rss_bytes - self.parts.get(MemoryPart.TRACELLOC, 0)

    @property
    def kept_bytes(self) -> int:
        """Free memory of the heap that is still resident."""
        return sum(self.parts.get(part, 0) for part in KEPT_PARTS)

    @property
    def heap_bytes(self) -> int:
        """Resident memory of the walked heap."""
        return sum(self.parts.get(part, 0) for part in HEAP_PARTS)

    @property
    def anonymous_bytes(self) -> int:
        """Resident memory without a file."""
        with_file = MemoryPart.FILES, MemoryPart.SHARED, MemoryPart.TRACELLOC
        return self.rss_bytes - sum(self.parts.get(part, 0) for part in with_file)


NO_ACCOUNT: Final = MemoryAccount({})


@dataclass(frozen=True, slots=True)
class BlockSum:
    """A number of blocks, and their bytes."""

    count: int = 0
    size_bytes: int = 0

    def __add__(self, other: BlockSum) -> BlockSum:
        return BlockSum(self.count + other.count, self.size_bytes + other.size_bytes)


@dataclass(frozen=True, slots=True)
class ArenaUsage:
    """A part of the heap with its own free lists."""

    name: str
    library: MallocLibrary
    system_bytes: int  # Requested from the kernel, by the library's own count
    seen_bytes: int  # Part of `system_bytes` that the walk accounts for
    in_use: BlockSum
    cached: BlockSum  # Free blocks that threads keep for themselves
    free: BlockSum  # Other free blocks, without the rest at the end of the heap
    top_bytes: int  # The rest at the end of the heap
    own_bytes: int  # The library's own data between the blocks, and what others have put there
    resident: Mapping[MemoryPart, int]  # Resident bytes by part
    unseen: tuple[str, ...] = ()  # Places that were not understood

    @property
    def free_resident_bytes(self) -> int:
        """Free memory of all kinds that is resident."""
        return sum(self.resident.get(part, 0) for part in KEPT_PARTS)

    @property
    def resident_bytes(self) -> int:
        """All of it that is resident."""
        return sum(self.resident.values())


@dataclass(frozen=True, slots=True)
class PinningStack:
    """Blocks of one call stack in such pages."""

    stack: int  # Index in `CallStacks`
    kept_bytes: int  # Free bytes that they keep; those of a page are divided among its blocks
    blocks: BlockSum


@dataclass(frozen=True, slots=True)
class PinnedPages:
    """Resident pages of the heap of which blocks in use take up a quarter or less."""

    kept_bytes: int = 0  # Free bytes in these pages, which can't be returned to the kernel
    blocks: BlockSum = BlockSum()  # The blocks in use in these pages
    # (usable bytes, blocks) of the sizes that keep most.
    largest: tuple[tuple[int, BlockSum], ...] = ()
    # The call stacks that keep most; empty if the process is not traced.
    by_stack: tuple[PinningStack, ...] = ()


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
    count: int  # Blocks in use that begin with it


@dataclass(frozen=True, slots=True)
class LargeBlock:
    """One of the largest blocks in use."""

    address: int
    usable_bytes: int
    class_name: str  # Empty if unknown
    contents: bytes  # The first bytes of the block; empty unless requested


@dataclass(frozen=True, slots=True)
class HeapUsage:
    """The heap of one process, and where all its resident memory is."""

    time_s: float  # Seconds since 1970
    arenas: tuple[ArenaUsage, ...]
    sizes: tuple[SizeUsage, ...] = ()  # Blocks in use by size, most bytes first
    classes: tuple[ClassUsage, ...] = ()  # Blocks in use by class, most bytes first
    # Classes of traced blocks; empty if the process is not traced, or sampled.
    stack_classes: tuple[StackClass, ...] = ()
    largest: tuple[LargeBlock, ...] = ()
    # What malloc_trim(0) would return to the kernel now; None if the library has no such call.
    trimmable_bytes: int | None = None
    notes: tuple[str, ...] = ()  # What is missing; may contain names from the target
    retries: int = 0  # How often a part was read again, since the process changed it meanwhile
    account: MemoryAccount = NO_ACCOUNT  # All resident memory of the process, the heap included
    pinned: PinnedPages = PinnedPages()

    @property
    def in_use(self) -> BlockSum:
        """All blocks in use."""
        return BlockSum(
            sum(arena.in_use.count for arena in self.arenas),
            sum(arena.in_use.size_bytes for arena in self.arenas),
        )

    @property
    def free_resident_bytes(self) -> int:
        """Free memory that the process keeps."""
        return sum(arena.free_resident_bytes for arena in self.arenas)

    @property
    def coverage(self) -> float:
        """The part of the heap that was seen, 0 to 1."""
        return part_seen(self.arenas)


NO_MEMORY: Final = HeapUsage(0.0, ())  # Usage of a program that has just been executed


@dataclass(frozen=True, slots=True)
class HeapUsages:
    """Where a process's resident memory is, some seconds old, and where it was at first."""

    now: HeapUsage
    first: HeapUsage  # At the beginning of tracing, or of the program


class SeenMemory(Protocol):
    """Memory that a malloc library requested, and how much of it a walk accounts for, in bytes."""

    @property
    def system_bytes(self) -> int:
        """Requested from the kernel, by the library's own count."""

    @property
    def seen_bytes(self) -> int:
        """Part of ``system_bytes`` that the walk accounts for."""


def part_seen(arenas: Iterable[SeenMemory]) -> float:
    """The part of some arenas that a walk accounts for, 0 to 1."""
    sizes = [(arena.system_bytes, arena.seen_bytes) for arena in arenas]
    system_bytes = sum(system for system, _ in sizes)
    return sum(map(min, sizes)) / system_bytes if system_bytes else 1.0


class RootKind(Enum):
    """Where a path to a block begins."""

    VARIABLE = "variable"  # A variable of a module; without a symbol, a word of its data
    MODULE = "module"  # All data of a module without symbols
    THREAD_LOCAL = "thread-local"
    STACK = "stack"
    REGISTERS = "registers"
    KERNEL = "kernel"  # Data that the program has given to the kernel
    MAPPING = "mapping"  # Other memory


@dataclass(frozen=True, slots=True)
class HeapRoot:
    """Memory outside the heap, or registers, with pointers to blocks."""

    kind: RootKind
    name: str  # Such as `app::g_sessions`, `stack of thread 17 (worker)`; from the target
    module: str = ""  # Path of the module with the variable
    thread_ids: tuple[int, ...] = ()  # Threads to which it belongs, if any
    # Source file that declares the variable, from debug information; empty if unknown.
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class PathStep:
    """A run of blocks of one kind on the way to others."""

    class_name: str  # C++ class; empty if unknown
    # Most bytes that a program may have requested for each; 0 if they are of several kinds.
    usable_bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class HolderPath:
    """How blocks are held: the way from a root to the pointers to them."""

    root: HeapRoot
    # From the root on. The last step has the blocks themselves, and all of their kind that lead to
    # them.
    steps: tuple[PathStep, ...]
    blocks: BlockSum  # The blocks that are held this way; others may hold them as well
    example: int  # Address of one of them
    retained: BlockSum  # All blocks to which every path leads through the root


@dataclass(frozen=True, slots=True)
class Keeper:
    """A root or block through which all paths to some blocks lead."""

    root: HeapRoot  # The root itself, or one that leads to the block
    step: PathStep | None  # Size and class of the block; None if it is the root itself
    address: int  # The block's; 0 for a root
    # The blocks to which all paths lead through it, itself included: freed with it.
    retained: BlockSum
    held: BlockSum  # The part that was asked about
    # The path to most bytes that it retains; None if blocks were asked for.
    path: HolderPath | None = None
    # Whether several roots lead to what `retained` has: freeing one frees nothing.
    is_shared: bool = False
    # Other roots that lead to the block, as far as they differ from `root`.
    other_roots: tuple[HeapRoot, ...] = ()


@dataclass(frozen=True, slots=True)
class HeapCoverage:
    """What a reader must know about the figures."""

    time_s: float  # Seconds since 1970
    in_use: BlockSum  # All blocks of the heap that are in use
    unreached: BlockSum  # Blocks to which no path leads
    coverage: float = 1.0  # The part of the heap that was seen, 0 to 1
    swapped_bytes: int = 0  # Memory of the process that is swapped out, and was not searched
    pointers_left_out: int = 0  # Pointers for which there was no memory: holders may be missing
    notes: tuple[str, ...] = ()  # Gaps in the search; may contain names from the target


@dataclass(frozen=True, slots=True)
class BlockHolders:
    """The holders of some blocks at one time."""

    heap: HeapCoverage
    blocks: BlockSum  # The blocks that were asked about
    unreached: BlockSum  # The part to which no path leads
    retained: BlockSum  # Blocks to which all paths lead through one of them, themselves included
    # The ways in which they are held, by most blocks first. A block may be held several ways.
    paths: tuple[HolderPath, ...]
    # The root, and the last block on the way, through which all paths to most of them lead. Empty
    # if there is none: several roots share them.
    keepers: tuple[Keeper, ...]
    more_paths: int = 0  # Paths that are left out
    # Whether only some of the blocks were asked about: `paths` count only their holders.
    is_sample: bool = False


@dataclass(frozen=True, slots=True)
class TopHolders:
    """The roots that retain most of a heap, and blocks that do and have several roots."""

    heap: HeapCoverage
    keepers: tuple[Keeper, ...]  # Most bytes first
    others: BlockSum  # Blocks retained by further ones
    other_count: int  # Number of further ones
    # Blocks that no root retains, as several lead to them: in the other figures as well.
    shared: BlockSum


@dataclass(frozen=True, slots=True)
class SuspectHolders:
    """The holders of the blocks of stacks that grow, some minutes old."""

    by_stack: Mapping[int, BlockHolders]  # By a suspect's first stack
