"""The section of threads: who allocates, who frees, and what goes from one to another."""

from __future__ import annotations

from collections.abc import Iterator

from tracelloc.report.part import Entry, Part, Request, largest
from tracelloc.snapshots.activity import ThreadActivity, ThreadFlow, ThreadWork
from tracelloc.text import printable
from tracelloc.views.facts import thread_facts


def threads_part(given: Request) -> Part:
    """The busiest threads, the largest flows, and the stacks by blocks others have freed."""
    snapshot = given.snapshot
    assert snapshot.threads is not None
    wandering, order = largest(snapshot.totals.remote_count, given.top)
    lines = list(_lines(snapshot.threads, given))
    if order:
        lines.append(f"==> {len(order)} top stacks out of {wandering} of these:")
    entries = [
        Entry(
            stat.index,
            f"{given.amount(stat.remote_bytes, stat.remote_count)} freed by other threads, "
            f"{stat.remote_count / max(stat.allocated_count, 1):.1%} of all that it has made",
            {
                "remote_freed_bytes": stat.remote_bytes,
                "remote_frees": stat.remote_count,
                "allocations": stat.allocated_count,
            },
        )
        for stat in snapshot.stack_stats(order)
    ]
    return Part(lines, thread_facts(snapshot.threads), "top_allocators", entries)


def _lines(activity: ThreadActivity, given: Request) -> Iterator[str]:
    threads, flows = activity.threads[: given.top], activity.flows[: given.top]
    yield f"==> {len(threads)} top threads out of {len(activity.threads)}:"
    for number, thread in enumerate(threads):
        yield f"  {number:>4}: {_thread(thread, activity, given)}"
    remote = given.amount(activity.remote_freed_bytes, activity.remote_freed_count)
    yield (
        f"==> {remote} freed by another thread ({activity.remote_share:.1%} of all that "
        f"were freed), {len(flows)} top ways out of {len(activity.flows)}:"
    )
    for number, flow in enumerate(flows):
        yield f"  {number:>4}: {_flow(flow, activity, given)}"


def _thread(thread: ThreadWork, activity: ThreadActivity, given: Request) -> str:
    made = given.amount(thread.allocated_bytes, thread.allocated_count)
    freed = given.amount(thread.freed_bytes, thread.freed_count)
    parts = [f"{_name(thread.tid, activity)}: allocated {made}", f"freed {freed}"]
    if thread.remote_freed_count:
        remote = given.amount(thread.remote_freed_bytes, thread.remote_freed_count)
        parts.append(f"of these {remote} of other threads")
    if thread.handed_count:
        handed = given.amount(thread.handed_bytes, thread.handed_count)
        parts.append(f"other threads freed {handed} of its own")
    return ", ".join(parts)


def _flow(flow: ThreadFlow, activity: ThreadActivity, given: Request) -> str:
    moved = given.amount(flow.size_bytes, flow.count)
    return f"{moved} from {_name(flow.maker_tid, activity)} to {_name(flow.ender_tid, activity)}"


def _name(tid: int, activity: ThreadActivity) -> str:
    if not tid:
        return "threads that are not known"
    name = activity.names.get(tid)
    return f"thread {tid}" if name is None else f"thread {tid} ({printable(name)})"
