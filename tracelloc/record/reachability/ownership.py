"""Ownership of blocks: which ones would be freed with others, and shortest paths to blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.model.blocks import BlockSum, HolderPath, PathStep
from tracelloc.record.process.memory import U64, Mask
from tracelloc.record.reachability import foldedpaths
from tracelloc.record.reachability.blockgraph import AT_ONCE, U32, BlockGraph
from tracelloc.record.reachability.dominators import dominate, heirs, place, renumber, sum_up
from tracelloc.record.reachability.heaproots import RANKS, is_borrower, rank_of

NONE: Final = 0xFFFFFFFF
Sums = TypeVar("Sums", U32, U64)
_EMPTY: Final = np.empty(0, np.uint32)


@dataclass(slots=True)
class Ownership:
    """The roots and blocks of a graph that can be reached, and what dominates them.

    Roots and blocks have *numbers*, from 0 (the top) on, in the order of a depth-first search. All
    paths from the top to a number lead through its dominator, which has a lower number.
    """

    graph: BlockGraph
    number: U32  # The number of each node, or `NONE`
    order: U32  # The node of each number
    dominator: U32  # The number that dominates each number
    begins: U32
    targets: U32  # Number n leads to `targets[begins[n]:begins[n + 1]]`
    kinds: U32  # The kind of each number
    first_root: int  # The kind of the first root

    @classmethod
    def from_graph(cls, graph: BlockGraph) -> Ownership:
        """Computes the ownership of a graph, and takes the pointers from it."""
        nodes = graph.top + 1
        borrowers = np.array([is_borrower(root) for root in graph.roots] + [False], np.uint8)
        number, order, dominator = (np.empty(nodes, np.uint32) for _ in range(3))
        begins, targets = graph.begins, graph.targets
        graph.begins = graph.targets = _EMPTY
        count = dominate(begins, targets, graph.top, borrowers, number, order, dominator)
        order, dominator = order[:count], dominator[:count]
        new_begins, new_targets = np.empty(count + 1, np.uint32), np.empty_like(targets)
        found = renumber(begins, targets, borrowers, number, order, new_begins, new_targets)
        del begins, targets
        first, kinds = int(graph.kinds[graph.count]), graph.kinds[order]
        graph.kinds = _EMPTY
        return cls(graph, number, order, dominator, new_begins, new_targets[:found], kinds, first)

    @property
    def count(self) -> int:
        return len(self.order)

    def are_blocks(self) -> Mask:
        return self.order < self.graph.count

    def sums(self, which: U32 | Mask) -> BlockSum:
        found = BlockSum()
        for at in range(0, len(which), AT_ONCE):
            some = which[at : at + AT_ONCE]
            nodes = self.order[at : at + AT_ONCE][some] if some.dtype == bool else self.order[some]
            found += self.graph.sums(nodes[nodes < self.graph.count])
        return found

    def mark(self, numbers: U32) -> npt.NDArray[np.uint8]:
        """Returns an array with 1 for some numbers, 0 for all others."""
        found = np.zeros(self.count, np.uint8)
        found[numbers] = 1
        return found

    def heirs_of(self, numbers: U32, names: U32, top: int) -> U32:
        """Returns each number's nearest dominator among ``numbers``, by ``names``; or ``top``."""
        found = np.full(self.count, NONE, np.uint32)
        found[0] = top
        found[numbers] = names
        heirs(self.dominator, found)
        return found

    def dominated_by(self, numbers: U32) -> Mask:
        """Returns a mask of all that some numbers dominate, themselves included."""
        found: Mask = self.heirs_of(numbers, np.ones(len(numbers), np.uint32), 0) == 1
        return found

    def inherited(self, values: Sums) -> Sums:
        """Replaces values by the sums over all that each number dominates."""
        sum_up(self.dominator, values)
        return values

    def dominates(self, numbers: U32, others: U32) -> Mask:
        counts = self.inherited(np.ones(self.count, np.uint32))
        places = np.zeros(self.count, np.uint32)
        place(self.dominator, counts, places)
        found = np.empty(len(numbers), np.bool_)
        for at in range(0, len(numbers), AT_ONCE):
            some = slice(at, at + AT_ONCE)
            first, it = places[numbers[some]], places[others[some]]
            found[some] = (first <= it) & (it - first < counts[numbers[some]])
        return found

    def block_sizes(self) -> U64:
        """Returns the bytes of each number's block; 0 for roots."""
        found = np.empty(self.count, np.uint64)
        for some, sizes in self.some_sizes():
            found[some] = sizes
        return found

    def some_sizes(self) -> Iterator[tuple[slice, U64]]:
        """Yields what ``block_sizes`` returns, some numbers at a time."""
        for at in range(0, self.count, AT_ONCE):
            nodes = self.order[at : at + AT_ONCE]
            sizes = np.zeros(len(nodes), np.uint64)
            is_block = nodes < self.graph.count
            sizes[is_block] = self.graph.blocks.size_bytes[nodes[is_block]]
            yield slice(at, at + len(nodes)), sizes

    def pointers_to(self, numbers: U32) -> tuple[U32, U32]:
        """Returns pointers (from, to) to some numbers, except from blocks that these dominate."""
        if not len(numbers):
            return _EMPTY, _EMPTY
        is_wanted = self.mark(numbers)
        count = int(np.count_nonzero(is_wanted[self.targets]))
        sources, held = np.empty(count, np.uint32), np.empty(count, np.uint32)
        foldedpaths.pointers_to(self.begins, self.targets, is_wanted, sources, held)
        is_outer = ~self.dominates(held, sources)
        return sources[is_outer], held[is_outer]

    def root_number(self, root: int) -> int:
        """Returns the number of a root, given its index; ``NONE`` if it leads to no block."""
        return int(self.number[self.graph.count + root])


def numbers_of(which: Mask) -> U32:
    """Returns the numbers that a mask selects, in half the memory that ``flatnonzero`` takes."""
    found = np.empty(np.count_nonzero(which), np.uint32)
    count = 0
    for at in range(0, len(which), AT_ONCE):
        some = np.flatnonzero(which[at : at + AT_ONCE])
        found[count : (count := count + len(some))] = some + at
    return found


class BlockPaths:
    """A shortest path to each block, from the best kind of root; equal steps are folded."""

    def __init__(self, owned: Ownership) -> None:
        self._owned = owned
        graph = owned.graph
        self.parent = np.full(owned.count, NONE, np.uint32)
        """The number before each."""
        self.parent[0] = 0
        order = np.empty(owned.count, np.uint32)
        count = 0
        for rank in RANKS:
            firsts = [
                owned.root_number(n)
                for n, root in enumerate(graph.roots)
                if rank_of(root) == rank and graph.count + n not in graph.wholes
            ]
            count = foldedpaths.follow(
                owned.begins, owned.targets, 0, np.array(firsts, np.uint32), self.parent, order,
                count,
            )  # fmt: skip
        self._folds = foldedpaths.Folds()
        self.fold = np.zeros(owned.count, np.uint32)
        """The number of the fold of each."""
        self._folds.fold(order[:count], self.parent, owned.kinds, self.fold)
        self._roots = self._roots_of_folds()

    def _roots_of_folds(self) -> U32:
        found = np.empty(self._folds.count, np.uint32)
        self._folds.roots(self._owned.first_root, found)
        return found

    def largest_fold(self, which: Mask) -> int:
        """Returns the fold of most bytes among the paths to some numbers, given by a mask."""
        sums = np.zeros(self._folds.count)
        for some, sizes in self._owned.some_sizes():
            if (mine := which[some]).any():
                weights = sizes[mine].astype(np.float64)
                sums += np.bincount(self.fold[some][mine], weights, len(sums))
        return int(sums.argmax())

    def behind(self, numbers: U32, kinds: U32) -> U32:
        """Returns the folds that extend the paths to some numbers by a node of each kind."""
        found = self.fold[numbers]
        self._folds.extend(found, kinds)
        self._roots = self._roots_of_folds()
        return found

    def root_of(self, fold: int) -> int:
        return int(self._roots[fold])

    def roots_before(self, numbers: U32) -> U32:
        return self._roots[self.fold[numbers]]

    def path(self, fold: int, before: U32, numbers: U32, retained: BlockSum) -> HolderPath:
        """Returns a fold's path to ``numbers``, to which ``before`` points, or which it is."""
        graph = self._owned.graph
        counts = np.zeros(self._folds.count, np.uint32)
        seen = np.zeros(self._owned.count, np.uint8)
        foldedpaths.count_on_way(self.parent, 0, self.fold, before, seen, counts)
        counts[fold] += np.count_nonzero(seen[numbers] == 0)
        steps = []
        for each in self._folds.path(fold):
            kind = self._folds.kind(each)
            if kind == foldedpaths.ANY_KIND:
                steps.append(PathStep("", 0, int(counts[each])))
            elif kind < self._owned.first_root:
                steps.append(PathStep(*graph.kind_of(kind), int(counts[each])))
        example = int(graph.blocks.starts(self._owned.order[numbers[:1]])[0])
        root = graph.roots[self.root_of(fold)]
        return HolderPath(root, tuple(steps), self._owned.sums(numbers), example, retained)
