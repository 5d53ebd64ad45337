"""Searches for the holders of blocks that accumulate.

A stack whose blocks are pointed to but accumulate may belong to a container that only grows. One
search reads the target's memory once, and finds who holds the blocks of several such stacks. The
process pays nothing for a search. Searches are rare: one takes tracelloc about two seconds of CPU
time per million blocks.
"""

from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from tracelloc.errors import PrivilegeError, UnsupportedError
from tracelloc.heap.heap import Heap
from tracelloc.model.blocks import BlockHolders, BlockSum, RootKind, SuspectHolders
from tracelloc.model.figures import U64
from tracelloc.record.facets.facet import OLD_NS, Facet, InspectedProcess, InspectionBudget
from tracelloc.record.reachability.blockholders import HolderFinder
from tracelloc.text import NS_PER_S

_PAUSE_NS: Final = 30 * NS_PER_S  # Least time from one search to the next
_AGAIN_NS: Final = 300 * NS_PER_S  # Time to the next search if no other stack grows
_MOST_STACKS: Final = 3  # Suspects and stacks in one search
_MOST_PATHS: Final = 3
_MOST_BLOCKS: Final = 1 << 18  # Most blocks of each to ask about
# If so many of the old blocks have no pointer to them, pointers to the others may be stale memory
# contents, unless a variable keeps nearly all of these.
_LOST_SHARE: Final = 1 / 4
_MOSTLY_LOST: Final = 7 / 8  # If so many have none, it does not matter who keeps the others
_KEPT_SHARE: Final = 0.9
_UNSURE_ROOTS: Final = RootKind.STACK, RootKind.REGISTERS, RootKind.RUNTIME, RootKind.MAPPING
_LEAST_SHARE: Final = 1 / 100  # Of all live bytes, that a stack has if it is not a suspect
_MEMORY_SHARE: Final = 1 / 2  # The part of the memory left that a search may use


class HoldersFacet(Facet[SuspectHolders]):
    """What holds the blocks of growing stacks: paths of pointers from roots."""

    name = "holders"
    task = "holder search"
    share = 1 / 128
    # If memory can't be searched now, it can't be searched later.
    final_errors = PrivilegeError, UnsupportedError, OSError, MemoryError
    found_ns = 0  # When the last search began; 0: there was none
    _asked: Heap
    _kept: frozenset[int] = frozenset()  # Stacks of which a root keeps what is not lost

    def pause_ns(self, now_ns: int) -> int | None:
        """Returns some seconds if another stack grows, minutes if not; None without any. In ns."""
        if not self.context.reads_memory or self.process.heap.unreachable.is_refused:
            return None
        stacks, known = growing_stacks(self.process), self.result.by_stack if self.result else {}
        is_new = not stacks.keys() <= known.keys()
        is_due = is_new or (bool(stacks) and now_ns - self.found_ns >= _AGAIN_NS)
        return _PAUSE_NS if is_due else None

    def inspect(self, budget: InspectionBudget) -> SuspectHolders:
        self._asked, stacks = self.process.heap, growing_stacks(self.process)
        memory_bytes = budget.memory_bytes and int(budget.memory_bytes * _MEMORY_SHARE)
        finder = HolderFinder(
            self.process.process, space=self.process.space, check=budget.check,
            debug=self.context.debug, memory_bytes=memory_bytes,
        )  # fmt: skip
        with closing(finder):
            asked = self._old_blocks(list(stacks.values()), budget.now_ns - OLD_NS)
            each = finder.holders_of_each(asked, _MOST_PATHS)
            if not all(found.keepers for found in each):
                # A block that is being inserted may point to the container from a stack.
                again = finder.holders_of_each(asked, _MOST_PATHS)
                each = [a if a.keepers else b for a, b in zip(each, again, strict=True)]
        is_sampled = self._asked.table.totals.sample_bytes is not None
        found: dict[int, BlockHolders] = {}
        kept: list[int] = []
        for stack, holders, addresses in zip(stacks, each, asked, strict=True):
            found[stack] = replace(holders, is_sample=is_sampled or len(addresses) == _MOST_BLOCKS)
            if _has_keeper(holders):
                kept += stacks[stack]
            elif holders.unreached.count >= _LOST_SHARE * holders.blocks.count:
                found[stack] = replace(holders, blocks=BlockSum(0, 0), keepers=(), paths=())
        self._kept = frozenset(kept)
        return SuspectHolders(found)

    def accept(self, result: SuspectHolders) -> None:
        """Keeps a result, unless it belongs to an earlier heap, whose stacks have other numbers."""
        if self.process.heap is self._asked:
            self.result, self.found_ns = result, self.began_ns
            self._asked.unreachable.kept_stacks = self._kept

    def _old_blocks(self, groups: list[list[int]], born_by_ns: int) -> list[U64]:
        """Returns addresses of old blocks of each group: a fair sample, if there are many."""
        parts: list[list[U64]] = [[] for _ in groups]
        counts = [0] * len(groups)
        for some in self.process.old_blocks(born_by_ns):
            for number, stacks in enumerate(groups):
                found = some.address[np.isin(some.stack, stacks)]
                parts[number].append(found)
                counts[number] += len(found)
            if min(counts, default=_MOST_BLOCKS) >= _MOST_BLOCKS:
                break
        return [np.concatenate(part)[:_MOST_BLOCKS] for part in parts]


def _has_keeper(found: BlockHolders) -> bool:
    """Whether a variable keeps nearly all that is pointed to, in one way, unlike stale memory."""
    if not found.keepers or found.keepers[0].root.kind in _UNSURE_ROOTS:
        return False
    root, reached = found.keepers[0].root, found.blocks.count - found.unreached.count
    ways = (path.blocks.count for path in found.paths if path.root == root)
    return min(found.keepers[0].held.count, max(ways, default=0)) >= _KEPT_SHARE * reached


def growing_stacks(one: InspectedProcess) -> dict[int, list[int]]:
    """Returns the stacks whose holders are of interest, the most important first.

    The key is a suspect's first stack, the value all its stacks. Further stacks grow, but not for
    long enough to be suspects. Stacks that lose nearly all of their blocks have no holders.
    """
    findings = one.findings
    if findings is None:
        return {}
    sites = findings.sites
    rows = sites.growing()
    order = rows[sites.alive_bytes[rows] >= _LEAST_SHARE * sites.alive_bytes.sum()].tolist()
    groups = [[member.stack for member in each.members] for each in findings.suspects]
    groups += [[stack] for stack in order if stack not in findings.suspect_of]
    if not groups:
        return {}
    asked, lost = one.heap.unreachable.last_counts()
    found = {}
    for group in groups:
        known = [stack for stack in group if stack < len(asked)]
        if lost[known].sum() < asked[known].sum() * _MOSTLY_LOST:
            found[group[0]] = group
    return dict(islice(found.items(), _MOST_STACKS))
