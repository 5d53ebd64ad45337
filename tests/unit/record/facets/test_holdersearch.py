"""When processes are searched for the holders of growing stacks, and what happens if it fails."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.blockholders import KEPT
from tests.searches import add_search
from tests.unit.events import A, records
from tests.unit.inspected import Lab, Traced
from tests.unit.leaks import watched
from tracelloc.errors import UnsupportedError
from tracelloc.heap.heap import Heap
from tracelloc.heap.unreachable import UnreachableBlocks
from tracelloc.model.blocks import BlockHolders, BlockSum, RootKind, SuspectHolders
from tracelloc.model.verdicts import CODE_OF, Findings, Judgement, Member, Suspect, Verdict
from tracelloc.record.facets import holders
from tracelloc.record.facets.holders import HoldersFacet

BLOCKS = {0x10: 1, 0x20: 1, 0x30: 2, 0x40: 3}  # The stack of each block


def heap_of(blocks: Mapping[int, int]) -> Heap:
    """A heap with blocks of some stacks, by address; stacks are numbered from 1 on."""
    heap = Heap(0)
    heap.table.apply(records([(A, address, 1000, stack, 0) for address, stack in blocks.items()]))
    note_search(heap)
    return heap


def note_search(heap: Heap, lost: int = 0) -> None:
    """Adds a pointer search that found no pointer to so many of the blocks."""
    blocks = heap.table.blocks()
    add_search(heap.unreachable, blocks, np.arange(len(blocks)) >= lost)


def findings_of(heap: Heap, suspects: Sequence[Suspect] = ()) -> Findings:
    """All stacks grow."""
    count = len(heap.table.totals)
    template = watched(400.0).findings
    sites = replace(
        template.sites.select(np.zeros(count, np.intp)),
        code=np.full(count, CODE_OF[Verdict.GROWING], np.uint8),
        rate_bytes_per_min=np.arange(count, dtype=np.float64),
        alive_bytes=heap.table.totals.live_bytes.astype(np.float64),
    )
    suspect_of = {member.stack: each for each in suspects for member in each.members}
    return replace(template, sites=sites, suspects=tuple(suspects), suspect_of=suspect_of)


def suspect(*stacks: int) -> Suspect:
    judgement = Judgement(
        Verdict.GROWING, 1.0, 0, 0.1, "", 0.0, never_freed=True, survivors=9, retracted=0,
        searched=100, unreachable=0,
    )  # fmt: skip
    return Suspect(judgement, tuple(Member(each, 1.0, 0.5) for each in stacks), None)


def growing(heap: Heap | None = None, at_once: int = 8192) -> Traced:
    """A process whose stacks all grow."""
    heap = heap or heap_of(BLOCKS)
    return Traced(heap, findings=findings_of(heap), at_once=at_once)


class Searches(Lab):
    """Searches that find what they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failure: Exception | None = None) -> None:
        super().__init__(HoldersFacet, monkeypatch)
        self.found: list[BlockHolders] = []
        """What the next searches find, if not the usual."""
        self._failure = failure
        monkeypatch.setattr(holders, "HolderFinder", lambda *_, **__: self)

    def holders_of_each(self, each: Sequence[Iterable[Any]], most: int) -> list[BlockHolders]:
        self.asked.append([sorted(map(int, addresses)) for addresses in each])
        if self._failure is not None:
            raise self._failure
        found = self.found.pop(0) if self.found else KEPT
        return [found for _ in each]

    def close(self) -> None:
        """There is nothing to close."""

    def holders(self, one: Traced) -> Mapping[int, BlockHolders]:
        """Found by the last search."""
        found: SuspectHolders | None = self.facet(one).result
        return found.by_stack


def test_when_stacks_are_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, one = Searches(monkeypatch), growing()
    assert [lab.count_due(at_s, one) for at_s in (40, 75, 339, 341)] == [1, 0, 0, 1]
    assert lab.asked[0] == [[0x40], [0x30], [0x10, 0x20]]
    assert list(lab.holders(one)) == [3, 2, 1]
    assert lab.holders(one)[1] == KEPT
    lab, one = Searches(monkeypatch), growing()
    codes = one.findings.sites.code.copy()
    codes[3] = CODE_OF[Verdict.BUSY]
    later = one.findings
    one.findings = replace(later, sites=replace(later.sites, code=codes))
    assert lab.count_due(40, one) == 1
    one.findings = later
    assert [lab.count_due(at_s, one) for at_s in (50, 71)] == [0, 1]
    assert lab.asked == [[[0x30], [0x10, 0x20]], [[0x40], [0x30], [0x10, 0x20]]]
    lab, one = Searches(monkeypatch), growing()
    one.findings = findings_of(one.heap, [suspect(2, 1)])
    assert lab.count_due(40, one) == 1
    assert lab.asked == [[[0x10, 0x20, 0x30], [0x40]]]
    assert list(lab.holders(one)) == [2, 3]
    # It has no holders. Before a pointer search, that is unknown.
    lab, one = Searches(monkeypatch), growing(heap_of({16 * n: 1 for n in range(1, 101)}))
    note_search(one.heap, lost=88)
    assert lab.count_due(40, one) == 0
    one.findings = findings_of(one.heap, [suspect(1)])
    assert lab.count_due(80, one) == 0
    one.heap.unreachable = UnreachableBlocks()
    assert lab.count_due(120, one) == 0
    note_search(one.heap, lost=87)
    one.heap.unreachable.is_refused = True
    assert lab.count_due(200, one) == 0
    one.heap.unreachable.is_refused = False
    assert lab.count_due(240, one) == 1


@pytest.mark.parametrize(
    ("unreached", "held", "in_one_way", "kind", "keeps", "shows"),
    [
        (1, 3, 3, RootKind.VARIABLE, True, True),
        (1, 2, 2, RootKind.VARIABLE, False, False),
        (1, 3, 2, RootKind.VARIABLE, False, False),
        (1, 3, 3, RootKind.STACK, False, False),
        (0, 4, 4, RootKind.STACK, False, True),
    ],
)
def test_who_keeps_the_blocks_of_a_stack_that_loses_some(
    unreached: int, held: int, in_one_way: int, kind: RootKind, keeps: bool, shows: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Stale contents of stacks may point to lost blocks, and keep nothing."""
    lab, one = Searches(monkeypatch), growing()
    root = replace(KEPT.keepers[0].root, kind=kind)
    found = replace(
        KEPT, blocks=BlockSum(4, 4), unreached=BlockSum(unreached, unreached),
        keepers=(replace(KEPT.keepers[0], root=root, held=BlockSum(held, held)),),
        paths=(replace(KEPT.paths[0], root=root, blocks=BlockSum(in_one_way, in_one_way)),),
    )  # fmt: skip
    lab.found = [found]
    assert lab.count_due(40, one) == 1
    assert one.heap.unreachable.kept_stacks == (frozenset({1, 2, 3}) if keeps else frozenset())
    assert bool(lab.holders(one)[1].blocks.count) is shows


def test_samples_and_heaps_that_cannot_be_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program may be changing its container."""
    lab, one = Searches(monkeypatch), growing()
    lab.found = [replace(KEPT, keepers=()), KEPT]
    assert lab.count_due(40, one) == 2
    assert lab.holders(one) == dict.fromkeys((3, 2, 1), KEPT)
    monkeypatch.setattr(holders, "_MOST_BLOCKS", 2)
    lab, one = Searches(monkeypatch), growing(heap_of({16 * n: 1 for n in range(1, 50)}), at_once=1)
    assert lab.count_due(40, one) == 1
    ((addresses,),) = lab.asked
    assert len(set(addresses)) == 2
    assert lab.holders(one)[1].is_sample
    lab, one = Searches(monkeypatch, UnsupportedError("its malloc library is unknown")), growing()
    assert [lab.count_due(at_s, one) for at_s in (40, 80, 400)] == [1, 0, 0]
    (line,) = lab.said
    assert "holder search of process 1 failed: its malloc library is unknown;" in line
