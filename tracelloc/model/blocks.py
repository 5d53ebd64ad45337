"""Outstanding blocks as columns, copied from the live table; mappings; and who holds blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, field
from tracelloc.model.figures import F64, I64, U32, U64, Mask, Rows
from tracelloc.model.process import MainLibrary

_COLUMNS: Final = (
    ("address", np.uint64),
    ("size", np.uint64),
    ("birth_ns", np.uint64),
    ("stack", np.uint32),
    ("tid", np.uint32),
)


@dataclass(frozen=True, slots=True)
class BlockSum:
    """A number of blocks, and their bytes."""

    count: int = 0
    size_bytes: int = 0

    def __add__(self, other: BlockSum) -> BlockSum:
        return BlockSum(self.count + other.count, self.size_bytes + other.size_bytes)


@dataclass(slots=True)
class Blocks:
    """Columns of equal length: one block per row.

    ``size`` in bytes, ``birth_ns`` on CLOCK_MONOTONIC, ``stack`` an index of
    ``CallStacks``, ``tid`` the thread that allocated.
    """

    address: U64
    size: U64
    birth_ns: U64
    stack: U32
    tid: U32
    # How many blocks each one stands for, if the program has reported that.
    weight: F64 | None = None

    @classmethod
    def empty(cls, rows: int = 0) -> Blocks:
        """Uninitialized columns of ``rows`` rows."""
        return cls._of([np.empty(rows, dtype) for _, dtype in _COLUMNS])

    @classmethod
    def _of(cls, columns: list[npt.NDArray[Any]]) -> Blocks:
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.address)

    def columns(self) -> Iterator[npt.NDArray[Any]]:
        """Yields the columns in their order."""
        return (getattr(self, name) for name, _ in _COLUMNS)

    def select(self, rows: Mask | Rows | slice) -> Blocks:
        """Some rows, as a copy; a view for a slice."""
        found = self._of([getattr(self, name)[rows] for name, _ in _COLUMNS])
        found.weight = None if self.weight is None else self.weight[rows]
        return found

    def largest(self, n: int) -> Blocks:
        """The ``n`` largest, in order; of equal ones, the older, then the lower address first."""
        return self.select(first_rows(n, ~self.size, self.birth_ns, self.address))

    @classmethod
    def concatenate(cls, parts: list[Blocks]) -> Blocks:
        """All rows of the parts, in their order."""
        if not parts:
            return cls.empty()
        whole = cls._of(
            [np.concatenate([getattr(part, name) for part in parts]) for name, _ in _COLUMNS]
        )
        weights = [part.weight for part in parts if part.weight is not None]
        if weights:
            # All parts have weights or none, except parts without blocks.
            whole.weight = np.concatenate(weights)
        return whole


def weights(size_bytes: U64, mean_bytes: int) -> F64:
    """How many blocks of its size each sampled block stands for; at least 1.

    ``mean_bytes``: mean distance of the samples, see ``heap.sampling``.
    """
    inverse: F64 = np.expm1(np.maximum(size_bytes, 1) / -float(mean_bytes))
    return -1 / inverse


def first_rows(n: int, main: U64, second: U64, third: U64) -> Rows:
    """The rows of the n smallest values, in order, without sorting all."""
    rows, before, left = np.arange(len(main)), [], n
    for key in (main, second):
        if not 0 < left < len(rows):
            break
        values = key[rows]
        last = np.partition(values, left - 1)[left - 1]
        before.append(rows[values < last])
        rows, left = rows[values == last], left - len(before[-1])
    rows = np.concatenate([*before, rows])
    return rows[np.lexsort((third[rows], second[rows], main[rows]))][: max(n, 0)]


@dataclass(frozen=True, slots=True)
class BlockStat:
    """One live block."""

    address: int
    size_bytes: int
    age_ns: int
    stack: int
    tid: int


@dataclass(frozen=True, slots=True)
class BlockSelection:
    """The largest of some blocks, and the sums of all of them."""

    count: int
    size_bytes: int
    largest: tuple[BlockStat, ...]  # By size; of equal ones, the older first


def block_stats(blocks: Blocks, now_ns: int) -> tuple[BlockStat, ...]:
    """One record per block, in order."""
    columns = blocks.address, blocks.size, blocks.birth_ns, blocks.stack, blocks.tid
    return tuple(
        BlockStat(address, size, max(0, now_ns - birth_ns), stack, tid)
        for address, size, birth_ns, stack, tid in zip(*(c.tolist() for c in columns), strict=True)
    )


class Usable(NamedTuple):
    """Columns, a row per block."""

    size_bytes: U64  # At least the requested size
    known: Mask  # Whether the size is known; otherwise it is meaningless
    read: Mask  # Whether the size was read from the process rather than computed from the request


@dataclass(frozen=True, slots=True)
class ReadSizes:
    """Usable sizes that were read from the process, addresses ascending."""

    address: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    birth_ns: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    size_bytes: U64 = field(default_factory=lambda: np.empty(0, np.uint64))

    def find(self, blocks: Blocks) -> tuple[Mask, U64]:
        """Which of some blocks have a size here, and the sizes (0 for others)."""
        sizes = np.zeros(len(blocks), np.uint64)
        if not len(self.address):
            return np.zeros(len(blocks), np.bool_), sizes
        rows = np.minimum(np.searchsorted(self.address, blocks.address), len(self.address) - 1)
        # A later block may have the same address.
        same = self.birth_ns[rows] == blocks.birth_ns
        there = (self.address[rows] == blocks.address) & same
        sizes[there] = self.size_bytes[rows[there]]
        return there, sizes

    def select(self, rows: Mask) -> ReadSizes:
        """Some of the sizes."""
        return ReadSizes(self.address[rows], self.birth_ns[rows], self.size_bytes[rows])


@dataclass(frozen=True, slots=True)
class UsableSizes:
    """Usable sizes of the blocks of one snapshot."""

    main: MainLibrary  # The malloc library that all blocks are counted as
    read: ReadSizes
    unusual: bool = False  # The allocator was built in a way for which no sizes are known


@dataclass(frozen=True, slots=True)
class EarlierKind:
    """Earlier blocks of one class and size. Its live blocks are those of the stack."""

    stack: int  # Index in `CallStacks`: not a call stack, but what these blocks have in common
    class_name: str  # C++ class of the blocks; empty if unknown
    least_bytes: int  # Usable size of the smallest that belong here
    most_bytes: int  # Usable size of the largest
    count: int  # Blocks when tracing began
    size_bytes: int  # Usable bytes when tracing began


@dataclass(frozen=True, slots=True)
class EarlierBlocks:
    """All blocks from before tracing. Sizes are usable sizes: what was requested is not known."""

    kinds: tuple[EarlierKind, ...]  # By bytes, the most first
    coverage: float  # The part of the heap that was seen, 0 to 1
    notes: tuple[str, ...] = ()  # What is missing; may contain names from the target

    @property
    def count(self) -> int:
        """Blocks when tracing began."""
        return sum(kind.count for kind in self.kinds)

    @property
    def size_bytes(self) -> int:
        """Usable bytes when tracing began."""
        return sum(kind.size_bytes for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class MappedStack:
    """The mappings of one call stack."""

    stack: int
    count: int
    size_bytes: int
    oldest_ns: int


@dataclass(frozen=True, slots=True)
class Mappings:
    """Mappings of the program itself that are not unmapped yet."""

    stacks: tuple[MappedStack, ...]  # The largest first
    of_allocators_bytes: int  # Bytes mapped by allocators' libraries for blocks, excluded above

    @property
    def count(self) -> int:
        """Number of ranges."""
        return sum(held.count for held in self.stacks)

    @property
    def size_bytes(self) -> int:
        """Size of all ranges, in whole pages."""
        return sum(held.size_bytes for held in self.stacks)


@dataclass(frozen=True, slots=True)
class PartFigures:
    """Blocks that were allocated in a part; blocks from before it do not count."""

    peak_bytes: int  # Most bytes that were live at a time
    allocated_bytes: int
    allocated_count: int
    live_bytes: int  # Bytes that are live at its end
    live_count: int
    at_peak: I64  # Bytes that were live at the peak, by stack
    at_peak_count: I64
    problem: str = ""  # Why events are missing; empty if none are


# Who holds blocks: the ways that lead to them from outside the heap, at one time.


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
