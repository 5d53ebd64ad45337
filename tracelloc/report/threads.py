"""The section of threads: who allocates, who frees, and what goes from one to another."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from tracelloc.report.part import StackFrames, StackLines, amount, entry_lines, largest
from tracelloc.snapshots.activity import ThreadActivity, ThreadFlow, ThreadWork
from tracelloc.snapshots.snapshot import Snapshot, StackStat
from tracelloc.text import printable
from tracelloc.units import about_of


@dataclass(frozen=True, slots=True)
class ThreadsPart:
    """The busiest threads, the largest flows, and the stacks whose blocks wander."""

    activity: ThreadActivity
    top: int
    wandering: int
    """Stacks of which any block was freed by another thread."""
    entries: tuple[StackStat, ...]
    about: str

    @classmethod
    def of(cls, snapshot: Snapshot, top: int) -> ThreadsPart:
        """From a snapshot with threads; ``top`` of each kind."""
        assert snapshot.threads is not None
        wandering, order = largest(snapshot.totals.remote_count, top)
        return cls(
            activity=snapshot.threads,
            top=top,
            wandering=wandering,
            entries=tuple(snapshot.stack_stats(order)),
            about=about_of(snapshot.sample_bytes),
        )

    @property
    def stacks(self) -> Set[int]:
        """Of all entries."""
        return {entry.index for entry in self.entries}

    def lines(self, stack: StackLines) -> Iterator[str]:
        """Threads, flows, stacks."""
        activity, about = self.activity, self.about
        threads, flows = activity.threads[: self.top], activity.flows[: self.top]
        yield f"==> {len(threads)} top threads out of {len(activity.threads)}:"
        for number, thread in enumerate(threads):
            yield f"  {number:>4}: {self._thread(thread)}"
        remote = amount(activity.remote_freed_bytes, activity.remote_freed_count, about)
        yield (
            f"==> {remote} freed by another thread ({activity.remote_share:.1%} of all that "
            f"were freed), {len(flows)} top ways out of {len(activity.flows)}:"
        )
        for number, flow in enumerate(flows):
            yield f"  {number:>4}: {self._flow(flow)}"
        if self.entries:
            yield f"==> {len(self.entries)} top stacks out of {self.wandering} of these:"
            yield from entry_lines(self.entries, self._line, stack)

    def _line(self, stat: StackStat) -> str:
        remote = amount(stat.remote_bytes, stat.remote_count, self.about)
        share = stat.remote_count / max(stat.allocated_count, 1)
        return f"{remote} freed by other threads, {share:.1%} of all that it has made"

    def _thread(self, thread: ThreadWork) -> str:
        about = self.about
        made = amount(thread.allocated_bytes, thread.allocated_count, about)
        freed = amount(thread.freed_bytes, thread.freed_count, about)
        parts = [f"{self._name(thread.tid)}: allocated {made}", f"freed {freed}"]
        if thread.remote_freed_count:
            remote = amount(thread.remote_freed_bytes, thread.remote_freed_count, about)
            parts.append(f"of these {remote} of other threads")
        if thread.handed_count:
            handed = amount(thread.handed_bytes, thread.handed_count, about)
            parts.append(f"other threads freed {handed} of its own")
        return ", ".join(parts)

    def _flow(self, flow: ThreadFlow) -> str:
        moved = amount(flow.size_bytes, flow.count, self.about)
        return f"{moved} from {self._name(flow.maker_tid)} to {self._name(flow.ender_tid)}"

    def _name(self, tid: int) -> str:
        if not tid:
            return "threads that are not known"
        name = self.activity.names.get(tid)
        return f"thread {tid}" if name is None else f"thread {tid} ({printable(name)})"

    def facts(self, stack: StackFrames) -> dict[str, Any]:
        """``threads`` and ``flows`` are all of them, ``top_allocators`` by remote frees.

        ``tid`` is 0 for what can't be assigned to a thread.
        """
        activity = self.activity
        return {
            "remote_freed_bytes": activity.remote_freed_bytes,
            "remote_freed_allocations": activity.remote_freed_count,
            "remote_share": round(activity.remote_share, 6),
            "threads": [
                {
                    "tid": thread.tid,
                    "name": thread.name,
                    "allocated_bytes": thread.allocated_bytes,
                    "allocations": thread.allocated_count,
                    "freed_bytes": thread.freed_bytes,
                    "frees": thread.freed_count,
                    "remote_freed_bytes": thread.remote_freed_bytes,
                    "remote_frees": thread.remote_freed_count,
                    "handed_bytes": thread.handed_bytes,
                    "handed_allocations": thread.handed_count,
                }
                for thread in activity.threads
            ],
            "flows": [
                {
                    "from_tid": flow.maker_tid,
                    "to_tid": flow.ender_tid,
                    "bytes": flow.size_bytes,
                    "allocations": flow.count,
                }
                for flow in activity.flows
            ],
            "top_allocators": [
                {
                    "remote_freed_bytes": stat.remote_bytes,
                    "remote_frees": stat.remote_count,
                    "allocations": stat.allocated_count,
                    "stack_id": stat.index,
                    "stack": stack(stat.index),
                }
                for stat in self.entries
            ],
        }
