"""Lost structures, against a plain search; roots by kinds of memory; parts of one object."""

import os
from itertools import pairwise

import numpy as np
import pytest

from tests.marked import bits_of
from tracelloc.model.blocks import Blocks
from tracelloc.model.lostmemory import Shape
from tracelloc.model.process import MallocLibrary
from tracelloc.record.facets.pointers import ObjectParts
from tracelloc.record.heapwalk.arenas import Arena, BlockState, WalkedHeap
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability.blockgraph import room_of
from tracelloc.record.reachability.lostgroups import BlockLinks, _shapes
from tracelloc.record.reachability.roots import DEAD, QUIET, ROOT, MemoryKinds
from tracelloc.record.reachability.structures import components, gather

Pairs = list[tuple[int, int]]
BASE, BLOCK_BYTES = 0x10000, 64


def links_of(pairs: Pairs, count: int) -> BlockLinks:
    """Pointers between ``count`` blocks, as a scan of the blocks finds them."""
    starts = np.arange(count, dtype=np.uint64) * np.uint64(BLOCK_BYTES) + np.uint64(BASE)
    bits = bits_of(starts, starts + np.uint64(BLOCK_BYTES), len(pairs))
    for source, target in pairs:
        if source != target:
            word = np.array([BASE + BLOCK_BYTES * target], np.uint64)
            bits.scan(word, BASE + BLOCK_BYTES * source)
    return BlockLinks.among(bits, starts)


def components_of(pairs: Pairs, count: int) -> list[int]:
    links = links_of(pairs, count)
    component = np.empty(count, np.uint32)
    number = components(links.begins, links.targets, component)
    found: list[int] = component.tolist()
    assert sorted(set(found)) == list(range(number))
    return found


def reach(pairs: Pairs, count: int) -> list[set[int]]:
    leads = [{to for at, to in pairs if at == n} for n in range(count)]
    found = []
    for n in range(count):
        seen, waiting = {n}, [n]
        while waiting:
            fresh = leads[waiting.pop()] - seen
            seen |= fresh
            waiting += fresh
        found.append(seen)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_components_are_blocks_that_reach_each_other(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 40))
    pairs = [tuple(pair) for pair in random.integers(0, count, (count + seed, 2)).tolist()]
    component, reached = components_of(pairs, count), reach(pairs, count)
    for a in range(count):
        for b in range(count):
            assert (component[a] == component[b]) == (b in reached[a] and a in reached[b])


def test_lists_and_shared_blocks() -> None:
    count = 1_000_000
    begins = np.maximum(np.arange(-1, count, dtype=np.int64), 0).astype(np.uint32)
    links = BlockLinks(begins, np.arange(count - 1, dtype=np.uint32))
    assert components(links.begins, links.targets, np.empty(count, np.uint32)) == count
    structure, about = np.empty(count, np.uint32), np.zeros((1, 4), np.uint32)
    first, kinds = np.array([count - 1], np.uint32), np.zeros(count, np.uint32)
    gather(links.begins, links.targets, first, kinds, structure, about)
    assert about.tolist() == [[count, count, count - 1, 1]]
    assert not structure.any()
    links = links_of([(0, 2), (1, 2), (2, 3)], 4)
    structure, about = np.empty(4, np.uint32), np.zeros((2, 4), np.uint32)
    firsts, kinds = np.array([0, 1], np.uint32), np.array([0, 0, 1, 0], np.uint32)
    gather(links.begins, links.targets, firsts, kinds, structure, about)
    assert structure.tolist() == [0, 1, 0, 0]
    assert about.tolist() == [[3, 2, 0, 0], [1, 1, 0, 0]]
    random = np.random.default_rng(3)
    pairs = [(a, b) for a, b in random.integers(0, 50, (2000, 2)).tolist() if a != b]
    links = links_of(pairs, 50)
    assert [
        links.targets[first:last].tolist() for first, last in pairwise(links.begins.tolist())
    ] == [sorted({b for a, b in pairs if a == n}) for n in range(50)]
    links = links_of([(1, 0), (1, 0), (0, 1)], 2)
    assert (links.begins.tolist(), links.targets.tolist()) == ([0, 1, 2], [1, 0])


@pytest.mark.parametrize(
    ("nodes", "between", "most", "cyclic", "shape"),
    [
        (1, 0, 0, False, Shape.BLOCK), (1, 0, 0, True, Shape.BLOCK), (50, 49, 1, False, Shape.LIST),
        (50, 50, 1, True, Shape.RING), (40, 78, 2, True, Shape.DOUBLY_LINKED_LIST),
        (40, 80, 2, True, Shape.DOUBLY_LINKED_LIST), (31, 30, 2, False, Shape.TREE),
        (63, 124, 3, True, Shape.TREE), (9, 20, 5, False, Shape.GRAPH),
        (9, 30, 5, True, Shape.GRAPH),
    ],
)  # fmt: skip
def test_shapes(nodes: int, between: int, most: int, cyclic: bool, shape: Shape) -> None:
    columns = (np.array([value], np.uint32) for value in (nodes, between, most))
    (found,) = _shapes(*columns, np.array([cyclic])).tolist()
    assert tuple(Shape)[found] is shape


def test_kinds_and_splits_of_memory() -> None:
    assert list(MemoryKinds().split([(8, 16), (24, 32)])) == [(8, 16, ROOT), (24, 32, ROOT)]
    random = np.random.default_rng(5)
    for _ in range(200):

        def ranges(number: int) -> list[tuple[int, int]]:
            pairs = np.sort(random.integers(0, 60, (number, 2)), axis=1).tolist()
            return [(first, last) for first, last in pairs]

        quiet, dead = ranges(4), ranges(3)
        edges = sorted(set(random.integers(0, 64, 6).tolist()))
        runs = list(zip(edges[::2], edges[1::2], strict=False))
        wanted = {
            at: DEAD if any(a <= at < b for a, b in dead)
            else QUIET if any(a <= at < b for a, b in quiet) else ROOT
            for first, last in runs for at in range(first, last)
        }  # fmt: skip
        kinds = MemoryKinds.merge(quiet, dead[:2]).without(dead[2:])
        parts = list(kinds.split(runs))
        assert {at: kind for first, last, kind in parts for at in range(first, last)} == wanted
        assert all(first < last for first, last, _ in parts)


@pytest.mark.parametrize(
    ("library", "room"),
    [(MallocLibrary.GLIBC, [((1 << 26) + 4096, 1 << 27)]), (MallocLibrary.MIMALLOC, [])],
)
def test_only_arenas_of_glibc_grow_in_place(
    library: MallocLibrary, room: list[tuple[int, int]]
) -> None:
    """Another library's data at a multiple of 64 MiB says nothing of the memory behind it."""
    start = (1 << 26) + 64
    ends = [start | BlockState.IN_USE, (1 << 26) + 4096 | BlockState.END]
    arena = Arena("arena", library, 0).add(np.array(ends, np.uint64))
    assert room_of(WalkedHeap([arena], [(1 << 26, start)])) == room


COUNT = 200


def objects(stacks: list[int], pointers: list[tuple[int, int]]) -> dict[int, int]:
    """``stacks``: of the blocks, by number; ``pointers``: from block to block, in its last word."""
    heap = np.zeros((len(stacks), BLOCK_BYTES // 8), np.uint64)
    address = heap.ctypes.data + BLOCK_BYTES * np.arange(len(stacks), dtype=np.uint64)
    blocks = Blocks.empty(len(stacks))
    blocks.address[:], blocks.size[:], blocks.stack[:] = address, BLOCK_BYTES, stacks
    for number, (source, target) in enumerate(pointers):
        heap[source, 7 - number % 3] = address[target]
    at = dict(zip(address.tolist(), stacks, strict=True))
    parts = ObjectParts(np.unique(stacks))
    for start in range(0, len(stacks), 150):
        parts.add(blocks.select(slice(start, start + 150)))

    def stacks_at(addresses: np.ndarray) -> np.ndarray:
        return np.array([at.get(each, -1) for each in addresses.tolist()], np.int64)

    return parts.find(RemoteMemory(Process(os.getpid())), stacks_at)


def test_objects_with_parts() -> None:
    """In this process's own memory."""
    stacks = [5, 7, 9, 4] * COUNT
    pointers = [
        (n + source, n + target)
        for n in range(0, 4 * COUNT, 4)
        for source, target in ((0, 1), (1, 2), (0, 0))
    ]
    assert objects(stacks, pointers) == {5: 5, 7: 5, 9: 5}
    # Half of the blocks of stack 3 belong to blocks of stack 1, half to those of stack 2.
    stacks = [1, 3, 2, 3] * COUNT
    pointers = [(n, n + 1) for n in range(0, 4 * COUNT, 2)]
    assert objects(stacks, pointers) == {1: 1, 2: 1, 3: 1}
    # A third of the blocks of stack 2 belong to blocks of stack 1.
    stacks = [1, 2, 2, 2] * COUNT
    pointers = [(n, n + 1) for n in range(0, 4 * COUNT, 4)]
    assert objects(stacks, pointers) == {}
