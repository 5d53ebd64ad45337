"""Threads with what they hold and what they have done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelloc.snapshots.activity import ThreadActivity, ThreadFlow, ThreadWork
from tracelloc.snapshots.spread import ThreadStat


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One thread."""

    held: ThreadStat
    """The outstanding blocks that it has allocated."""
    work: ThreadWork
    """What it has done since tracing began."""

    @property
    def tid(self) -> int:
        """0: what can't be assigned to a thread."""
        return self.held.tid

    @property
    def name(self) -> str | None:
        """None: it had ended before its name was asked for."""
        return self.held.name


def thread_rows(
    held: Sequence[ThreadStat], activity: ThreadActivity | None, *, narrowed: bool
) -> list[ThreadRow]:
    """Threads that hold anything, in their order, then others that have done anything.

    If the view is ``narrowed``, those that hold something only.
    """
    works = {} if activity is None else {work.tid: work for work in activity.threads}
    rows = []
    for stat in held:
        nothing = ThreadWork(stat.tid, stat.name, 0, 0, 0, 0, 0, 0, 0, 0)
        rows.append(ThreadRow(stat, works.pop(stat.tid, nothing)))
    if not narrowed:
        rows.extend(
            ThreadRow(ThreadStat(work.tid, work.name, 0, 0, 0.0, None), work)
            for work in works.values()
        )
    return rows


def flows_of(activity: ThreadActivity, tid: int) -> tuple[list[ThreadFlow], list[ThreadFlow]]:
    """(blocks of this thread that others freed, others' that it freed), most bytes first."""
    given = [flow for flow in activity.flows if flow.maker_tid == tid]
    taken = [flow for flow in activity.flows if flow.ender_tid == tid]
    return given, taken
