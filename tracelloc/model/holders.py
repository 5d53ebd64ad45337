"""Who holds blocks: the ways that lead to them from outside the heap, at one time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tracelloc.model.blocks import BlockSum


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
