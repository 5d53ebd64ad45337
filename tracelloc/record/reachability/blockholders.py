"""Finds the holders of heap blocks: what points to them, and which blocks that retains."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, replace
from tracelloc.errors import TargetError
from tracelloc.model.blocks import (
    BlockHolders,
    BlockSum,
    HeapCoverage,
    HeapRoot,
    HolderPath,
    Keeper,
    PathStep,
    TopHolders,
)
from tracelloc.record.heapwalk.walk import while_alive
from tracelloc.record.process.memory import U64
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.reachability.blockgraph import U32, BlockGraph, read_graph
from tracelloc.record.reachability.heaproots import RootReader
from tracelloc.record.reachability.ownership import NONE, BlockPaths, Ownership, numbers_of

MOST_PATHS: Final = 10
_MOST_OF: Final = 90  # A keeper holds at least so many of 100 blocks
_LARGE: Final = 50  # A block with several roots is listed itself if it keeps a 1/n of all
_ADDRESS: Final = re.compile(r"0[xX][0-9a-fA-F]{1,16}")

Rows = npt.NDArray[np.intp]
Selection = Callable[[BlockGraph], Rows]  # Selects blocks; raises TargetError if there are none


class HolderFinder:
    """Finds holders in one process, which is not stopped. All methods raise NotWalkableError,
    OSError, MemoryError, TargetError and PrivilegeError.
    """

    def __init__(
        self,
        process: Process,
        *,
        space: AddressSpace | None = None,
        check: Callable[[], object] = lambda: None,
        debug: bool = False,
        memory_bytes: int | None = None,
    ) -> None:
        """``space``: the process's address space, if another owner has it.

        ``check``: called for each MiB of memory; what it raises ends the search.
        ``memory_bytes``: most memory to use for the graph; None: what is available.
        """
        self._process = process
        self._own_space = AddressSpace(process) if space is None else None
        self._space = self._own_space or space
        self._check = check
        self._memory_bytes = memory_bytes
        self._roots = RootReader(debug=debug)

    def close(self) -> None:
        self._roots.close()
        if self._own_space is not None:
            self._own_space.close()

    def holders(self, select: Selection, most: int = MOST_PATHS) -> BlockHolders:
        """Finds the holders of selected blocks now; ``most``: paths to return."""
        graph = self._read()
        rows = select(graph)
        owned = Ownership.from_graph(graph)
        return _holders(owned, BlockPaths(owned), rows, most)

    def holders_of_each(self, each: Sequence[U64], most: int) -> list[BlockHolders]:
        """Finds the holders of several sets of blocks, given by addresses, in one search."""
        wanted = [np.unique(addresses) for addresses in each]
        owned = Ownership.from_graph(graph := self._read())
        paths = BlockPaths(owned)
        return [_holders(owned, paths, graph.blocks.containing(some), most) for some in wanted]

    def top(self, most: int) -> TopHolders:
        return _top(self._read(), most)

    def _read(self) -> BlockGraph:
        space = self._space
        assert space is not None
        return while_alive(
            self._process,
            lambda thread: read_graph(space, thread, self._roots, self._check, self._memory_bytes),
        )


def selection(what: str) -> Selection:
    """Returns a selection of blocks by address (``0x…``), size in bytes, or class name."""
    if _ADDRESS.fullmatch(what):
        return lambda graph: _at_address(graph, int(what, 16))
    if what.isascii() and what.isdigit():
        return lambda graph: _of_size(graph, int(what))
    return lambda graph: _of_class(graph, what)


def _at_address(graph: BlockGraph, address: int) -> Rows:
    rows = graph.blocks.containing(np.array([address & (1 << 64) - 1], np.uint64))
    if not len(rows):
        raise TargetError(f"no block in use contains {address:#x}")
    return rows


def _of_size(graph: BlockGraph, size_bytes: int) -> Rows:
    """Returns blocks of the size that a request for so many bytes gets: malloc rounds up."""
    usable = graph.blocks.usable_bytes()
    larger = usable[usable >= size_bytes]
    found = int(larger.min()) if len(larger) else 0
    # glibc, which has headers, rounds up to multiples of 16, others by a fifth at most.
    most = 16 if graph.blocks.overhead_bytes.any() else max(16, size_bytes // 4)
    if not found or found - size_bytes > most:
        raise TargetError(
            f"no block in use is of {size_bytes:,} bytes",
            hint="tracelloc heap -p PID lists the sizes that there are",
        )
    return np.flatnonzero(usable == found)


def _of_class(graph: BlockGraph, pattern: str) -> Rows:
    names = {kind: name for kind, (name, _) in graph.kind_names.items() if name}
    kinds = [kind for kind, name in names.items() if name == pattern] or [
        kind
        for kind, name in names.items()
        if name.endswith(f"::{pattern}") or fnmatchcase(name, pattern)
    ]
    if not kinds:
        raise TargetError(
            f"no block in use is an object of a class {pattern}",
            hint="tracelloc heap -p PID lists the classes: those with virtual functions are known",
        )
    return np.flatnonzero(np.isin(graph.kinds[: graph.count], kinds))


def _coverage(graph: BlockGraph, owned: Ownership) -> HeapCoverage:
    return HeapCoverage(
        time_s=graph.time_s,
        in_use=BlockSum(graph.count, int(graph.blocks.size_bytes.sum())),
        unreached=graph.sums(numbers_of(owned.number[: graph.count] == NONE)),
        coverage=graph.coverage,
        swapped_bytes=graph.swapped_bytes,
        pointers_left_out=graph.left_out,
        notes=tuple(graph.notes),
    )


def _top(graph: BlockGraph, most: int) -> TopHolders:
    owned = Ownership.from_graph(graph)
    owners = _BlockOwners.of(owned)
    paths = owners.paths
    counts, sums = np.zeros(owners.count + 1, np.intp), np.zeros(owners.count + 1)
    for some, sizes in owned.some_sizes():
        counts += np.bincount(owners.owner[some], minlength=len(counts))
        sums += np.bincount(owners.owner[some], sizes.astype(np.float64), len(sums))
    counts, sums = counts[:-1], sums[:-1]
    order = np.lexsort((np.arange(owners.count), -sums))[: np.count_nonzero(counts)]
    others = _other_roots(owned, paths, owners.large)
    roots, keepers = len(graph.roots), []
    for number in order[:most].tolist():
        is_mine = owners.owner == number
        fold = paths.largest_fold(is_mine)
        is_mine &= paths.fold == fold
        held = numbers_of(is_mine)
        kept = BlockSum(int(counts[number]), int(sums[number]))
        path = paths.path(fold, held, held, kept)
        if number < 2 * roots:
            keeper = Keeper(graph.roots[number % roots], None, 0, kept, kept)
        else:
            keeper = _keeper(owned, int(owners.large[number - 2 * roots]), path.root, kept, kept)
            keeper = replace(keeper, other_roots=others.get(keeper.address, ()))
        keepers.append(replace(keeper, path=path, is_shared=number >= roots))
    rest = order[most:]
    return TopHolders(
        heap=_coverage(graph, owned),
        keepers=tuple(keepers),
        others=BlockSum(int(counts[rest].sum()), int(sums[rest].sum())),
        other_count=len(rest),
        shared=BlockSum(int(counts[roots:].sum()), int(sums[roots:].sum())),
    )


@dataclass(slots=True)
class _BlockOwners:
    """Owners of blocks: the only root that leads to a block, or the one on the path to it. A large
    block with several roots is itself the owner of all blocks that it retains.
    """

    owner: U32  # By number: roots, roots again for shared blocks, large blocks; `count`: none
    count: int
    large: U32  # The numbers of the large blocks
    paths: BlockPaths

    @classmethod
    def of(cls, owned: Ownership) -> _BlockOwners:
        graph, roots = owned.graph, len(owned.graph.roots)
        shared = numbers_of((owned.dominator == 0) & owned.are_blocks())
        kept = owned.inherited(owned.block_sizes())
        is_large = kept[shared] * np.uint64(_LARGE) >= kept[0]
        del kept
        paths = BlockPaths(owned)
        large, small = shared[is_large], shared[~is_large]
        count = 2 * roots + len(large)
        names = [
            np.arange(roots, dtype=np.uint32),
            paths.roots_before(small) + np.uint32(roots),
            np.arange(2 * roots, count, dtype=np.uint32),
        ]
        numbers = [owned.number[graph.count : graph.top], small, large]
        owner = owned.heirs_of(np.concatenate(numbers), np.concatenate(names), count)
        owner[~owned.are_blocks()] = count
        return cls(owner, count, large, paths)


def _other_roots(
    owned: Ownership, paths: BlockPaths, blocks: U32
) -> dict[int, tuple[HeapRoot, ...]]:
    """Returns, by address, the roots that lead to a block, but for the root of its path."""
    graph = owned.graph
    sources, held = owned.pointers_to(blocks)
    mine, others = paths.roots_before(held), paths.roots_before(sources)
    rows = np.flatnonzero(mine != others)
    addresses = graph.blocks.starts(owned.order[held[rows]]).tolist()
    found: dict[int, dict[HeapRoot, None]] = {}
    for address, root in zip(addresses, others[rows].tolist(), strict=True):
        found.setdefault(address, {})[graph.roots[root]] = None
    return {address: tuple(roots) for address, roots in found.items()}


def _keeper(
    owned: Ownership, number: int, root: HeapRoot, retained: BlockSum, held: BlockSum
) -> Keeper:
    """Makes a keeper of a root, or of a block to which ``root`` leads."""
    graph, node = owned.graph, int(owned.order[number])
    if node >= graph.count:
        return Keeper(graph.roots[node - graph.count], None, 0, retained, held)
    step = PathStep(*graph.kind_of(int(owned.kinds[number])), 1)
    return Keeper(root, step, int(graph.blocks.starts(owned.order[[number]])[0]), retained, held)


def _holders(owned: Ownership, paths: BlockPaths, rows: Rows, most: int) -> BlockHolders:
    graph, numbers = owned.graph, owned.number[rows]
    is_reached = numbers != NONE
    wanted = numbers[is_reached]
    found, more = _paths(owned, paths, wanted, most)
    return BlockHolders(
        heap=_coverage(graph, owned),
        blocks=graph.sums(rows),
        unreached=graph.sums(rows[~is_reached]),
        retained=owned.sums(owned.dominated_by(wanted)),
        paths=found,
        keepers=_keepers(owned, paths, wanted),
        more_paths=more,
    )


def _keepers(owned: Ownership, paths: BlockPaths, wanted: U32) -> tuple[Keeper, ...]:
    """Returns the last root, and block, through which all paths to most wanted blocks lead."""
    if not len(wanted):
        return ()
    graph = owned.graph
    is_wanted = owned.mark(wanted)
    held = owned.inherited(is_wanted.astype(np.uint32))
    # As it holds more than half of them, each of these is dominated by the one before.
    chain = np.flatnonzero(held >= np.uint32(-(-len(wanted) * _MOST_OF // 100)))[1:]
    del held
    chain = chain[is_wanted[chain] == 0]
    is_root = owned.order[chain] >= graph.count
    # Of a list's nodes, the first one keeps the others.
    is_first = owned.kinds[chain] != owned.kinds[owned.dominator[chain]]
    keepers: list[Keeper] = []
    for number in (*chain[is_root][-1:].tolist(), *chain[~is_root & is_first][-1:].tolist()):
        inner = owned.dominated_by(np.array([number], np.uint32))
        retained = owned.sums(inner)
        of_them = owned.sums(wanted[inner[wanted]])
        before = int(paths.roots_before(np.array([number], np.uint32))[0])
        root = keepers[0].root if keepers else graph.roots[before]
        keepers.append(_keeper(owned, number, root, retained, of_them))
    return tuple(keepers)


def _paths(
    owned: Ownership, paths: BlockPaths, wanted: U32, most: int
) -> tuple[tuple[HolderPath, ...], int]:
    """Returns paths that hold blocks, but for those through themselves, and how many more."""
    sources, held = owned.pointers_to(wanted)
    folds = paths.behind(sources, owned.kinds[held])
    counts = np.bincount(folds, minlength=1)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
    roots = [owned.root_number(paths.root_of(fold)) for fold in order[:most]]
    sizes = owned.inherited(owned.block_sizes())[roots].tolist()
    blocks = owned.inherited(owned.are_blocks().astype(np.uint32))[roots].tolist()
    found = []
    for fold, *kept in zip(order[:most], blocks, sizes, strict=True):
        rows, retained = np.flatnonzero(folds == fold), BlockSum(*kept)
        ends = np.flatnonzero(owned.mark(held[rows])).astype(np.uint32)
        found.append(paths.path(fold, sources[rows], ends, retained))
    found.sort(key=lambda path: -path.blocks.count)
    return tuple(found), max(0, len(order) - most)
