"""Outstanding blocks as columns, copied from the live table; mappings; and holders of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, field
from tracelloc.model.figures import F64, U32, U64, Mask, Rows
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
    """A sum over blocks: how many there are, and their bytes."""

    count: int = 0
    size_bytes: int = 0

    def __add__(self, other: BlockSum) -> BlockSum:
        return BlockSum(self.count + other.count, self.size_bytes + other.size_bytes)


@dataclass(slots=True)
class Blocks:
    """Live blocks in columns of equal length: one block per row. ``size`` in bytes, ``birth_ns`` on
    CLOCK_MONOTONIC, ``stack`` an index of ``CallStacks``, ``tid`` the thread that allocated.
    """

    address: U64
    size: U64
    birth_ns: U64
    stack: U32
    tid: U32
    weight: F64 | None = None  # How many each sampled block stands for, by the program's report

    @classmethod
    def empty(cls, rows: int = 0) -> Blocks:
        """Returns uninitialized columns with ``rows`` rows."""
        return cls._of([np.empty(rows, dtype) for _, dtype in _COLUMNS])

    @classmethod
    def _of(cls, columns: list[npt.NDArray[Any]]) -> Blocks:
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.address)

    def columns(self) -> Iterator[npt.NDArray[Any]]:
        """Yields all columns but ``weight``, in the order of the fields."""
        return (getattr(self, name) for name, _ in _COLUMNS)

    def select(self, rows: Mask | Rows | slice) -> Blocks:
        """Returns the blocks in some rows, as a copy; for a slice, as a view."""
        found = self._of([getattr(self, name)[rows] for name, _ in _COLUMNS])
        found.weight = None if self.weight is None else self.weight[rows]
        return found

    def largest(self, n: int) -> Blocks:
        """Returns the ``n`` largest blocks; of equal ones, the older, then the lower one first."""
        return self.select(first_rows(n, ~self.size, self.birth_ns, self.address))

    @classmethod
    def concatenate(cls, parts: list[Blocks]) -> Blocks:
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
    """Returns how many blocks each sampled block stands for. ``mean_bytes``: ``heap.sampling``."""
    return -1 / np.expm1(np.maximum(size_bytes, 1) / -float(mean_bytes))


def first_rows(n: int, main: U64, second: U64, third: U64) -> Rows:
    """Returns the rows of the n smallest values, in order, without sorting all values."""
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
    """One live block, for views and reports."""

    address: int
    size_bytes: int
    age_ns: int
    stack: int
    tid: int


@dataclass(frozen=True, slots=True)
class BlockSelection:
    """The largest blocks of a selection, and the sums of all selected blocks."""

    count: int
    size_bytes: int
    largest: tuple[BlockStat, ...]  # By size; of equally large blocks, the older first


def block_stats(blocks: Blocks, now_ns: int) -> tuple[BlockStat, ...]:
    """Returns one record per block, in the order of the rows."""
    columns = blocks.address, blocks.size, blocks.birth_ns, blocks.stack, blocks.tid
    return tuple(
        BlockStat(address, size, max(0, now_ns - birth_ns), stack, tid)
        for address, size, birth_ns, stack, tid in zip(*(c.tolist() for c in columns), strict=True)
    )


class Usable(NamedTuple):
    """Usable sizes of blocks in columns: a row per block."""

    size_bytes: U64  # Usable size, which is at least the requested size
    known: Mask  # Whether the size is known; otherwise `size_bytes` is meaningless
    read: Mask  # Whether the size was read from the process rather than computed from the request


@dataclass(frozen=True, slots=True)
class ReadSizes:
    """Usable sizes that were read from the process, addresses ascending."""

    address: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    birth_ns: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    size_bytes: U64 = field(default_factory=lambda: np.empty(0, np.uint64))

    def find(self, blocks: Blocks) -> tuple[Mask, U64]:
        """Returns which of some blocks have a known size, and the sizes in bytes (0 if unknown)."""
        sizes = np.zeros(len(blocks), np.uint64)
        if not len(self.address):
            return np.zeros(len(blocks), np.bool_), sizes
        rows = np.minimum(np.searchsorted(self.address, blocks.address), len(self.address) - 1)
        # A later block may have the same address.
        there = (self.address[rows] == blocks.address) & (self.birth_ns[rows] == blocks.birth_ns)
        sizes[there] = self.size_bytes[rows[there]]
        return there, sizes

    def select(self, rows: Mask) -> ReadSizes:
        return ReadSizes(self.address[rows], self.birth_ns[rows], self.size_bytes[rows])


@dataclass(frozen=True, slots=True)
class UsableSizes:
    """Usable sizes of the blocks of one snapshot."""

    main: MainLibrary  # The malloc library that all blocks are counted as
    read: ReadSizes
    unusual: bool = False  # Whether the malloc library's build has unknown size classes


@dataclass(frozen=True, slots=True)
class EarlierKind:
    """Blocks from before tracing of one class and size: the blocks of an artificial stack."""

    stack: int  # Index in `CallStacks` of the artificial stack, which names class and size
    class_name: str  # C++ class of the blocks; empty if unknown
    least_bytes: int  # Usable size of the smallest blocks of this kind
    most_bytes: int  # Usable size of the largest blocks of this kind
    count: int  # Blocks when tracing began
    size_bytes: int  # Usable bytes when tracing began


@dataclass(frozen=True, slots=True)
class EarlierBlocks:
    """All blocks from before tracing. Sizes are usable sizes: requested sizes are not known."""

    kinds: tuple[EarlierKind, ...]  # Kinds of blocks, most bytes first
    coverage: float  # Share of the heap's bytes that the walk could read, 0 to 1
    notes: tuple[str, ...] = ()  # Reasons why blocks are missing; may contain names from the target

    @property
    def count(self) -> int:
        return sum(kind.count for kind in self.kinds)

    @property
    def size_bytes(self) -> int:
        return sum(kind.size_bytes for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class MappedStack:
    """The memory that one call stack has mapped and that is not unmapped yet."""

    stack: int
    count: int
    size_bytes: int
    oldest_ns: int


@dataclass(frozen=True, slots=True)
class Mappings:
    """Memory that the program itself has mapped (mmap) and not unmapped yet."""

    stacks: tuple[MappedStack, ...]  # Call stacks, most mapped bytes first
    of_allocators_bytes: int  # Bytes that malloc libraries mapped for blocks, not in `stacks`

    @property
    def count(self) -> int:
        return sum(held.count for held in self.stacks)

    @property
    def size_bytes(self) -> int:
        return sum(held.size_bytes for held in self.stacks)


@dataclass(frozen=True, slots=True)
class PartFigures:
    """Figures of one part of a run (such as a test), of blocks allocated in that part only."""

    peak_bytes: int  # Most bytes that were live at a time
    allocated_bytes: int
    allocated_count: int
    live_bytes: int  # Bytes that are live at the end of the part
    live_count: int
    at_peak: Sequence[tuple[int, BlockSum]]  # Stacks whose blocks were live at the peak


# Who holds blocks: the ways that lead to them from outside the heap, at one time.


class RootKind(Enum):
    """The kind of memory in which a path of pointers to a block begins."""

    VARIABLE = "variable"  # A variable of a module; without a symbol, a word of the module's data
    MODULE = "module"  # All data of a module without symbols
    THREAD_LOCAL = "thread-local"
    STACK = "stack"
    REGISTERS = "registers"
    KERNEL = "kernel"  # Data that the program has given to the kernel
    RUNTIME = "runtime"  # The heap of a language's runtime
    MAPPING = "mapping"  # Memory of no other kind


@dataclass(frozen=True, slots=True)
class HeapRoot:
    """Memory outside the heap, or registers, with pointers to blocks."""

    kind: RootKind
    name: str  # Such as `app::g_sessions`, `stack of thread 17 (worker)`; from the target
    module: str = ""  # Path of the module with the variable
    thread_ids: tuple[int, ...] = ()  # Threads to which the root belongs, if any
    file: str = ""  # Source file that declares the variable; empty if unknown
    line: int = 0


@dataclass(frozen=True, slots=True)
class PathStep:
    """Blocks of one size and class that follow each other on a path from a root."""

    class_name: str  # C++ class; empty if unknown
    usable_bytes: int  # Most that a program may have requested for each; 0 if sizes differ
    count: int


@dataclass(frozen=True, slots=True)
class HolderPath:
    """How some blocks are held: the path from a root to the pointers to these blocks."""

    root: HeapRoot
    steps: tuple[PathStep, ...]  # From the root on; the last: the held blocks and their like
    blocks: BlockSum  # The blocks that this path holds; other paths may hold them as well
    example: int  # Address of one of `blocks`
    retained: BlockSum  # All blocks to which every path leads through the root


@dataclass(frozen=True, slots=True)
class Keeper:
    """A root or block through which all paths to some blocks lead."""

    root: HeapRoot  # The root itself, or one that leads to the block
    step: PathStep | None  # Size and class of the keeping block; None if the keeper is `root`
    address: int  # Address of the keeping block; 0 for a root
    retained: BlockSum  # To which all paths lead through the keeper, itself included
    held: BlockSum  # The part of `retained` that the search asked about
    path: HolderPath | None = None  # To most of these; None: certain blocks were asked for
    is_shared: bool = False  # By several roots: freeing one of them frees nothing
    other_roots: tuple[HeapRoot, ...] = ()  # Others that lead to the block, not `root`


@dataclass(frozen=True, slots=True)
class HeapCoverage:
    """When a heap was searched for holders, and how completely."""

    time_s: float  # Seconds since 1970
    in_use: BlockSum  # All blocks of the heap that are in use
    unreached: BlockSum  # Blocks to which no path leads
    coverage: float = 1.0  # Share of the heap's bytes that the search could read, 0 to 1
    swapped_bytes: int = 0  # Bytes of the process that are swapped out, and were not searched
    pointers_left_out: int = 0  # Number of pointers not stored for want of memory: holders may lack
    notes: tuple[str, ...] = ()  # Gaps in the search; may contain names from the target


@dataclass(frozen=True, slots=True)
class BlockHolders:
    """The holders of some blocks at one time."""

    heap: HeapCoverage
    blocks: BlockSum  # The blocks that were asked about
    unreached: BlockSum  # The part of `blocks` to which no path leads
    retained: BlockSum  # Blocks to which all paths lead through any of `blocks`, these included
    paths: tuple[HolderPath, ...]  # Most blocks first; several may hold a block
    # The root, and the last block on the way, through which all paths to most of `blocks` lead.
    # Empty if there is none: several roots share the blocks.
    keepers: tuple[Keeper, ...]
    more_paths: int = 0  # Number of further paths, not in `paths`
    is_sample: bool = False  # Whether only some were asked about: `paths` count theirs


@dataclass(frozen=True, slots=True)
class TopHolders:
    """The roots that retain most of a heap, and large retaining blocks with several roots."""

    heap: HeapCoverage
    keepers: tuple[Keeper, ...]  # Most bytes first
    others: BlockSum  # Blocks that further keepers retain
    other_count: int  # Number of further keepers
    shared: BlockSum  # That no single root retains, as several lead to them: in other figures, too


@dataclass(frozen=True, slots=True)
class SuspectHolders:
    """Holders of the blocks of growing stacks, from a search up to some minutes ago."""

    by_stack: Mapping[int, BlockHolders]  # By the first stack of each suspect
