"""Searches for the holders of blocks that accumulate, in the background.

A stack whose blocks are pointed to but accumulate may belong to a container that only grows. One
search reads the target's memory once, and finds who holds the blocks of several such stacks. The
process pays nothing for it, and it is rare: it takes tracelloc about two seconds of CPU time per
million blocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, Protocol

import numpy as np

from tracelloc.errors import PrivilegeError, UnsupportedError
from tracelloc.heap.heap import Heap
from tracelloc.model.figures import U64
from tracelloc.model.heapusage import BlockHolders
from tracelloc.model.verdicts import CODE_OF, Findings, Verdict
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.reachability.blockholders import HolderFinder
from tracelloc.record.session.background import BackgroundTurns, Turn
from tracelloc.record.session.memorybudget import MemoryBudget, MemoryStage
from tracelloc.record.session.supervision import Supervisor
from tracelloc.text import NS_PER_S

HOLDER_SEARCH: Final = "holder search"
_PAUSE_NS: Final = 30 * NS_PER_S
"""Least time from one search to the next."""
_AGAIN_NS: Final = 300 * NS_PER_S
"""Time to the next search if no other stack grows."""
_OLD_NS: Final = 10 * NS_PER_S
"""Pointers to younger blocks may be in registers, or being moved."""
_SHARE: Final = 1 / 64
"""Largest share of one processor's time that searches take."""
_MOST_CPU_NS: Final = 60 * NS_PER_S
"""CPU time limit of one search."""
_MOST_STACKS: Final = 3
"""Suspects and stacks in one search."""
_MOST_PATHS: Final = 3
_MOST_BLOCKS: Final = 1 << 18
"""Most blocks of each to ask about."""
_AT_ONCE: Final = 8192
"""Blocks copied at a time while events wait."""
_LOST_SHARE: Final = 1 / 4
"""If so many of the old blocks have no pointer to them, they are lost rather than held."""
_LEAST_SHARE: Final = 1 / 100
"""A stack that is not a suspect has at least so much of all live bytes."""
_MEMORY_SHARE: Final = 1 / 2
"""The part of the memory left that a search may use."""


class HeldProcess(Protocol):
    """The parts of a traced process that a search needs."""

    process: Process
    space: AddressSpace
    heap: Heap
    findings: Findings | None
    holders: Mapping[int, BlockHolders]
    """Found by the last search."""
    holders_ns: int
    """When that was; 0: not yet."""


class HolderSearches:
    """Schedules searches. Call ``run_due`` with the session's lock, ``close`` without it."""

    def __init__(
        self,
        lock: threading.RLock,
        supervisor: Supervisor,
        budget: MemoryBudget | None,
        *,
        debug: bool = False,
    ) -> None:
        self._lock = lock
        self._supervisor = supervisor
        self._budget = budget
        self._debug = debug
        self.turns = BackgroundTurns(HOLDER_SEARCH, _SHARE, supervisor)

    def run_due(self, processes: Sequence[HeldProcess], now_ns: int) -> None:
        """Begins a search if one is due: of the process that has waited longest."""
        if self._budget is None or self._budget.stage is MemoryStage.WHOLE:
            self.turns.run_due(
                lambda: [self._turn(each, now_ns) for each in processes if _is_due(each, now_ns)],
                now_ns,
            )

    def _turn(self, one: HeldProcess, now_ns: int) -> Turn:
        work = partial(self._search, one, growing_stacks(one), now_ns)
        return Turn(one.heap, one.process.pid, _PAUSE_NS, work)

    def _search(self, one: HeldProcess, stacks: Mapping[int, list[int]], now_ns: int) -> None:
        heap, began_ns = one.heap, time.thread_time_ns()

        def check() -> None:
            if self.turns.is_over:
                raise InterruptedError
            if time.thread_time_ns() - began_ns > _MOST_CPU_NS:
                raise TimeoutError("reading its memory takes too long")

        memory_bytes = None
        if self._budget is not None:
            memory_bytes = int(self._budget.left_bytes * _MEMORY_SHARE)
        finder = HolderFinder(
            one.process, space=one.space, check=check, debug=self._debug, memory_bytes=memory_bytes
        )
        try:
            with closing(finder):
                asked = self._old_blocks(heap, list(stacks.values()), now_ns - _OLD_NS)
                each = finder.holders_of_each(asked, _MOST_PATHS)
                if not all(found.keepers for found in each):
                    # A block that is being inserted may point to the container from a stack.
                    again = finder.holders_of_each(asked, _MOST_PATHS)
                    each = [a if a.keepers else b for a, b in zip(each, again, strict=True)]
        except InterruptedError:
            return
        except (PrivilegeError, UnsupportedError, OSError, MemoryError) as error:
            # Its memory can't be searched, now or later.
            self._supervisor.note_failure(HOLDER_SEARCH, one.process.pid, error, is_final=True)
            return
        is_sampled = heap.table.totals.sample_bytes is not None
        found = {
            stack: replace(holders, is_sample=is_sampled or len(addresses) == _MOST_BLOCKS)
            for stack, holders, addresses in zip(stacks, each, asked, strict=True)
        }
        with self._lock:
            if one.heap is heap:
                one.holders, one.holders_ns = found, now_ns

    def _old_blocks(self, heap: Heap, groups: list[list[int]], born_by_ns: int) -> list[U64]:
        """The addresses of old blocks of each group of stacks, some if there are too many.

        Blocks have random slots in the table, so the first ones are a fair sample.
        """
        parts: list[list[U64]] = [[] for _ in groups]
        counts = [0] * len(groups)
        at: int | None = 0
        while at is not None and min(counts) < _MOST_BLOCKS:
            with self._lock:
                at, some = heap.table.some_blocks(at, born_by_ns, _AT_ONCE)
            for number, stacks in enumerate(groups):
                found = some.address[np.isin(some.stack, stacks)]
                parts[number].append(found)
                counts[number] += len(found)
        return [np.concatenate(each)[:_MOST_BLOCKS] for each in parts]


def growing_stacks(one: HeldProcess) -> dict[int, list[int]]:
    """The stacks whose holders are of interest, the most important first.

    Of a suspect it is all stacks, under the first one. Others grow, but not for long enough to be
    listed. Stacks that lose their blocks have no holders.
    """
    findings = one.findings
    if findings is None:
        return {}
    sites, codes = findings.sites, [CODE_OF[each] for each in (Verdict.LEAKING, Verdict.GROWING)]
    is_large = sites.alive_bytes >= _LEAST_SHARE * sites.alive_bytes.sum()
    rows = np.flatnonzero(np.isin(sites.code, codes) & is_large)
    order = rows[np.argsort(-sites.rate_bytes_per_min[rows], kind="stable")].tolist()
    groups = [[member.stack for member in each.members] for each in findings.suspects]
    groups += [[stack] for stack in order if stack not in findings.suspect_of]
    if not groups:
        return {}
    asked, lost = one.heap.unreachable.last_counts()
    found = {}
    for group in groups:
        known = [stack for stack in group if stack < len(asked)]
        if lost[known].sum() < asked[known].sum() * _LOST_SHARE:
            found[group[0]] = group
    return dict(islice(found.items(), _MOST_STACKS))


def _is_due(one: HeldProcess, now_ns: int) -> bool:
    if one.heap.unreachable.is_refused:
        return False
    stacks = growing_stacks(one)
    is_new = not stacks.keys() <= one.holders.keys()
    return is_new or (bool(stacks) and now_ns - one.holders_ns >= _AGAIN_NS)
