"""Dominators and folded paths of graphs, against slow and plain searches."""

from itertools import pairwise

import numpy as np
import pytest

from tracelloc.record.reachability import foldedpaths
from tracelloc.record.reachability.dominators import dominate, heirs, place, renumber, sum_up
from tracelloc.record.reachability.links import BY_ADDRESS, MARKED, NO_ROOT, Links

NONE = 0xFFFFFFFF
Pairs = list[tuple[int, int]]


class Graph:
    """Nodes that lead to others, and what is computed of them from the last node on, the top."""

    def __init__(self, pairs: Pairs, count: int, borrowers: tuple[int, ...] = ()) -> None:
        self.pairs, self.nodes, self.top = pairs, count, count - 1
        self.borrowers = np.zeros(count, np.uint8)
        self.borrowers[[*borrowers]] = 1
        self.begins = np.zeros(count + 1, np.uint32)
        ordered = sorted(pairs)
        np.add.at(self.begins, [source + 1 for source, _ in ordered], 1)
        self.begins = np.cumsum(self.begins).astype(np.uint32)
        self.targets = np.array([target for _, target in ordered], np.uint32)
        self.number, order, dominator = (np.empty(count, np.uint32) for _ in range(3))
        found = dominate(
            self.begins, self.targets, self.top, self.borrowers, self.number, order, dominator
        )
        self.order, self.dominator = order[:found], dominator[:found]

    def dominators(self) -> dict[int, int]:
        return dict(zip(self.order.tolist(), self.order[self.dominator].tolist(), strict=True))

    def reached(self, without: int = -1) -> set[int]:
        """Nodes that can be reached from the top without one of them."""
        seen: set[int] = set()
        waiting = [self.top] if without != self.top else []
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += [to for at, to in self.pairs if at == node and to != without]
        return seen

    def plain_dominators(self) -> dict[int, int]:
        """Dominators, found by removing each node in turn."""
        reached = self.reached()
        lost = {node: reached - self.reached(without=node) for node in reached}
        found = {self.top: self.top}
        for node in reached - {self.top}:
            above = [other for other in reached if node in lost[other] and other != node]
            found[node] = min(above, key=lambda other: len(lost[other]))
        return found


@pytest.mark.parametrize("seed", range(100))
def test_random_graphs(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 30))
    pairs = random.integers(0, count, (int(random.integers(0, 3 * count)), 2)).tolist()
    graph = Graph([(source, target) for source, target in pairs], count)
    dominators = graph.plain_dominators()
    assert graph.dominators() == dominators
    assert (graph.number != NONE).sum() == len(graph.order)
    assert graph.number[graph.order].tolist() == list(range(len(graph.order)))
    # Sums and places.
    under: dict[int, set[int]] = {node: {node} for node in dominators}
    for node in dominators:
        above = node
        while above != graph.top:
            above = dominators[above]
            under[above].add(node)
    counts = np.ones(len(graph.order), np.uint64)
    sum_up(graph.dominator, counts)
    assert counts.tolist() == [len(under[node]) for node in graph.order.tolist()]
    places = np.zeros(len(graph.order), np.uint32)
    place(graph.dominator, counts, places)
    for number, node in enumerate(graph.order.tolist()):
        inside = (places >= places[number]) & (places < places[number] + counts[number])
        assert set(graph.order[inside].tolist()) == under[node]


def test_lists_folds_and_borrowers() -> None:
    """An iterative algorithm takes a pass for each node here, as would recursion a frame."""
    count = 300_000
    pairs = [(n, n + 1) for n in range(count - 2)] + [(n + 1, n) for n in range(count - 2)]
    graph = Graph([*pairs, (count - 1, 0), (count - 1, count - 2)], count)
    assert set(graph.dominators().values()) == {graph.top}
    graph = Graph([(4, 0), (0, 1), (1, 2), (4, 3)], 5)
    heir = np.full(5, NONE, np.uint32)
    heir[graph.number[[4, 0]]] = [9, 7]
    heirs(graph.dominator, heir)
    assert heir[graph.number[[0, 1, 2, 3]]].tolist() == [7, 7, 7, 9]
    # Top 5 → 4 (root) → 0 → 1, 2; 3 is elsewhere.
    parent = np.array([4, 0, 0, 4, 5, 5], np.uint32)
    folds = np.array([2, 3, 3, 4, 1, 0], np.uint32)
    counts, seen = np.zeros(5, np.uint32), np.zeros(6, np.uint8)
    foldedpaths.count_on_way(parent, 5, folds, np.array([1, 2, 2], np.uint32), seen, counts)
    assert counts.tolist() == [0, 1, 1, 2, 0]
    graph = Graph([(0, 1), (2, 1), (1, 0), (2, 0)], 3)
    wanted = np.array([0, 1, 0], np.uint8)
    sources, found = np.empty(2, np.uint32), np.empty(2, np.uint32)
    assert foldedpaths.pointers_to(graph.begins, graph.targets, wanted, sources, found) == 2
    assert (sources.tolist(), found.tolist()) == ([0, 2], [1, 1])
    assert foldedpaths.pointers_to(graph.begins, graph.targets, wanted, sources[:1], found[:1]) == 2
    found = chain([n * n for n in range(1, 2000)])
    assert len(found) == 25
    assert found[-1] == foldedpaths.ANY_KIND
    # More than the table has room for at first, and all found again.
    count = 5000
    folds, found = fold([(count, n) for n in range(count)], [*range(count), count])
    assert found[:count] == [[n] for n in range(count)]
    again = np.zeros(count, np.uint32)
    folds.extend(again, np.arange(count, dtype=np.uint32))
    assert len(np.unique(again)) == count
    assert folds.count == count + 1


def test_borrowers_hold_only_what_nothing_before_them_leads_to() -> None:
    """Top 5 leads to 3, then to the borrower 4: of 0, 1 and 2, only 2 is the borrower's.

    So is what 2 leads to.
    """
    pairs = [(3, 0), (0, 1), (2, 0), (4, 1), (4, 2), (5, 3), (5, 4)]
    assert Graph(pairs, 6).dominators()[1] == 5
    graph = Graph(pairs, 6, borrowers=(4,))
    assert graph.dominators() == {0: 3, 1: 0, 2: 4, 3: 5, 4: 5, 5: 5}
    begins = np.empty(len(graph.order) + 1, np.uint32)
    targets = np.empty(len(pairs), np.uint32)
    found = renumber(
        graph.begins, graph.targets, graph.borrowers, graph.number, graph.order, begins, targets
    )
    left = {
        (graph.order[at], graph.order[to])
        for at, (first, last) in enumerate(pairwise(begins.tolist()))
        for to in targets[first:last].tolist()
    }
    assert found == 5
    assert left == set(pairs) - {(2, 0), (4, 1)}


def fold(pairs: Pairs, kinds: list[int]) -> tuple[foldedpaths.Folds, list[list[int]]]:
    """Folds of all nodes of a graph whose last one is the top, as kinds."""
    graph = Graph(pairs, len(kinds))
    parent, order = np.full(len(kinds), NONE, np.uint32), np.empty(len(kinds), np.uint32)
    parent[graph.top] = graph.top
    roots = np.array([target for source, target in pairs if source == graph.top], np.uint32)
    count = foldedpaths.follow(graph.begins, graph.targets, graph.top, roots, parent, order, 0)
    folds, found = foldedpaths.Folds(), np.zeros(len(kinds), np.uint32)
    folds.fold(order[:count], parent, np.array(kinds, np.uint32), found)
    return folds, [[folds.kind(each) for each in folds.path(int(one))] for one in found]


def chain(kinds: list[int]) -> list[int]:
    """The fold of the last node of a chain from the top."""
    count = len(kinds)
    pairs = [(count, 0), *((n, n + 1) for n in range(count - 1))]
    return fold(pairs, [*kinds, 99])[1][count - 1]


@pytest.mark.parametrize(
    ("kinds", "folded"),
    [
        ([1] * 1000, [1]),
        ([70, 1, 1, 1, 2], [70, 1, 2]),
        ([70] + [1, 2] * 50, [70, 1, 2]),
        ([70] + [1, 2, 3] * 50 + [4], [70, 1, 2, 3, 4]),
        ([70] + [1, 4, 8, 2] * 50, [70, 1, 4, 8, 2]),
        # A rest of 16 bytes that was too small for a block of its own.
        ([70, 7, 7, 9, 7, 7], [70, 7]),
        ([70, 7, 9], [70, 7, 9]),
        ([70, *range(1, 60, 3)], [70, *range(1, 60, 3)]),
    ],
)
def test_runs_are_one_step(kinds: list[int], folded: list[int]) -> None:
    assert chain(kinds) == folded


BASE = 0x7F0000000000


def links_of(*, most: int = 1000) -> Links:
    """Three blocks of 64, 128 and 64 bytes."""
    starts = np.array([BASE, BASE + 64, BASE + 256], np.uint64)
    return Links(starts, starts + np.array([64, 128, 64], np.uint64), most)


def connected(links: Links, roots: Pairs, nodes: int) -> list[list[int]]:
    begins = np.zeros(nodes + 1, np.uint32)
    targets = np.empty(links.edge_count + len(roots), np.uint32)
    sources, others = np.array(roots, np.uint32).reshape(-1, 2).T
    links.graph(sources.copy(), others.copy(), begins, targets)
    return [targets[first:last].tolist() for first, last in pairwise(begins.tolist())]


def test_pointers_between_blocks() -> None:
    """A chunk that was alone in its bin points to its own header, the end of the block before."""
    starts = np.array([BASE, BASE + 64], np.uint64)
    for offset in range(0, 32, 8):
        links = Links(starts, starts + np.uint64(64), 10)
        links.scan(np.array([BASE + 48], np.uint64), BASE + 64 + offset, NO_ROOT)
        assert links.edge_count == (offset not in {16, 24})
    links = links_of(most=1)
    links.scan(np.array([BASE + 64, BASE + 256], np.uint64), BASE, NO_ROOT)
    assert (links.edge_count, links.left_out) == (1, 1)
    starts = np.array([BASE + 4096, BASE + (1 << 30)], np.uint64)
    links = Links(starts, starts + np.array([(1 << 30) - 8192, 64], np.uint64), 10)
    links.scan(np.arange(BASE, BASE + (1 << 30), 1 << 20, dtype=np.uint64), 8, 1)
    assert links.root_count == 1
    links.scan(np.array([BASE + (1 << 30) - 4097, BASE + (1 << 30) - 4096], np.uint64), 8, 2)
    assert links.root_count == 2
    links = links_of()
    words = np.zeros(40, np.uint64)
    words[0] = BASE + 70  # to the second block
    words[1] = BASE + 71  # again
    words[2] = BASE  # to itself
    words[8] = BASE + 256 | 0xFF << 56  # with a tag
    words[24] = BASE + 64  # not in a block
    words[33] = BASE + 200  # to no block
    links.scan(words, BASE, NO_ROOT)
    assert (links.edge_count, links.root_count) == (2, 0)
    links.scan(words[24:25], BASE + 192, 5)
    links.scan(words[24:25], BASE + 200, 5)
    links.scan(words[24:25], BASE + 208, BY_ADDRESS)
    origins, held = np.empty((2, 2), np.uint64)
    links.roots(origins, held)
    assert (origins.tolist(), held.tolist()) == ([5, BASE + 208], [1, 1])
    assert connected(links, [(3, 1), (4, 3)], 5) == [[1], [2], [], [1], [3]]


def test_pointers_to_memory_in_which_blocks_may_be_by_now() -> None:
    starts, growth = np.array([BASE], np.uint64), np.array([[BASE + 64], [BASE + 256]], np.uint64)
    links = Links(starts, starts + np.uint64(64), 1000, growth=growth)
    words = np.array([BASE + 63, BASE + 64, BASE + 255, BASE + 256], np.uint64)
    for address, root in ((BASE, NO_ROOT), (BASE + 64, 5), (BASE + 96, BY_ADDRESS)):
        links.scan(words, address, root)
    links.scan(words, BASE + 128, NO_ROOT)
    found = np.empty((2, links.root_count), np.uint64)
    links.roots(*found)
    first, last = MARKED + BASE + 64, MARKED + BASE + 255
    assert found.T.tolist() == [
        [MARKED, first], [MARKED, last], [5, 0], [5, first], [5, last],
        [BASE + 96, 0], [BASE + 104, first], [BASE + 112, last],
    ]  # fmt: skip
