"""Judges the stacks of one memory image, a part at a time."""

import time
from collections.abc import Iterator

from tracelloc.model.codefiles import is_runtime
from tracelloc.model.losses import Counter, count_lost
from tracelloc.model.verdicts import Findings
from tracelloc.record.facets.facet import InspectedProcess
from tracelloc.record.runtimes.known import garbage_collection
from tracelloc.record.sources.eventsource import Sources
from tracelloc.verdict.judge import Judge, KnownLosses


class StackJudge:
    """Judges the stacks of one memory image. The session's lock guards this object."""

    def __init__(self, process: InspectedProcess, sources: Sources, first_look_ns: int) -> None:
        """``first_look_ns``: when to judge the stacks for the first time, CLOCK_MONOTONIC."""
        self.findings: Findings | None = None  # Findings about the stacks; None before any event
        self.judged_ns = 0  # When some of the stacks were judged last
        self._process, self._sources = process, sources
        self._judge = Judge(self._is_in_runtime, first_look_ns)
        self._looking: Iterator[Findings | None] | None = None
        self._is_over = False

    def go_on(self, now_ns: int, until_ns: int) -> None:
        """Judges some more stacks if due, until this thread's CPU time is ``until_ns``."""
        if self._looking is None and not self._is_over and self._judge.is_due(now_ns):
            self._looking = self._look(now_ns)
        while self._looking is not None and time.thread_time_ns() < until_ns:
            self.judged_ns = now_ns
            try:
                self.findings = next(self._looking) or self.findings
            except StopIteration:
                self._looking = None

    def judge_all(self, now_ns: int) -> None:
        """Judges all stacks at once, without pauses for events."""
        self._looking = None
        for findings in () if self._is_over else self._look(now_ns):
            self.findings = findings or self.findings

    def stop(self) -> None:
        """Judges no stacks from now on."""
        self._is_over, self._looking = True, None

    def _look(self, now_ns: int) -> Iterator[Findings | None]:
        counters, heap = self._sources.counters(), self._process.heap
        table, frees = heap.table, int(counters[Counter.LOST_FREES])
        losses = KnownLosses(count_lost(counters), frees, table.oddities.address_reuses)
        return self._judge.judge_stacks(
            table.cohorts, table.totals, heap.stacks, now_ns, losses,
            unreachable=heap.unreachable,
            resident_bytes=self._process.process.rss_bytes() or 0,
            collection=garbage_collection(m.path for m in self._process.space.modules),
        )  # fmt: skip

    def _is_in_runtime(self, address: int) -> bool:
        mapping = self._process.space.find_stored(address)
        return mapping is not None and is_runtime(mapping.path)
