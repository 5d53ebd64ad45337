"""Activity of threads, and the peak, in whole blocks for snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from tracelloc.heap.table import LiveTable, Peak
from tracelloc.heap.threads import NOBODY
from tracelloc.heap.totals import Totals


@dataclass(frozen=True, slots=True)
class ThreadWork:
    """Allocations and frees of one thread since tracing began. Bytes are as requested."""

    tid: int
    """0: unknown threads."""
    name: str | None
    """None if the thread had ended before its name was read."""
    allocated_bytes: int
    allocated_count: int
    freed_bytes: int
    """Bytes freed by this thread, whichever thread allocated them."""
    freed_count: int
    """Blocks freed by this thread, whichever thread allocated them."""
    freed_for_others_bytes: int
    """Bytes freed by this thread, allocated by others."""
    freed_for_others_count: int
    freed_by_others_bytes: int
    """Bytes allocated by this thread, freed by others."""
    freed_by_others_count: int


@dataclass(frozen=True, slots=True)
class ThreadFlow:
    """Blocks that one thread allocated and another one freed."""

    maker_tid: int
    ender_tid: int
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ThreadActivity:
    """Which threads allocate and which free."""

    threads: tuple[ThreadWork, ...]
    """Active threads only, by allocated bytes, the most first."""
    flows: tuple[ThreadFlow, ...]
    """Most bytes first."""
    names: Mapping[int, str]

    @property
    def freed_count(self) -> int:
        """Blocks freed by all threads."""
        return sum(thread.freed_count for thread in self.threads)

    @property
    def remote_freed_count(self) -> int:
        """Blocks freed by another thread than the allocating one."""
        return sum(flow.count for flow in self.flows)

    @property
    def remote_freed_bytes(self) -> int:
        """Bytes freed by another thread than the allocating one."""
        return sum(flow.size_bytes for flow in self.flows)

    @property
    def remote_share(self) -> float:
        """Share of freed blocks that another thread freed; 0 to 1."""
        return self.remote_freed_count / max(self.freed_count, 1)


def activity_of(table: LiveTable, totals: Totals, names: Mapping[int, str]) -> ThreadActivity:
    """Threads and flows in whole blocks; ``totals`` defines the unit of counts."""
    whole, sums = totals.whole_number, table.threads()
    tids = sums.tid.tolist()
    by_others: dict[int, tuple[int, int]] = {}
    for_others: dict[int, tuple[int, int]] = {}
    flows = []
    for (maker, ender), flow in table.flows().items():
        if not flow.count:
            continue
        flows.append(ThreadFlow(tids[maker], tids[ender], whole(flow.count), flow.size_bytes))
        for sums_of, row in ((by_others, maker), (for_others, ender)):
            count, size_bytes = sums_of.get(row, (0, 0))
            sums_of[row] = count + flow.count, size_bytes + flow.size_bytes
    threads = []
    for row in np.flatnonzero(sums.allocated_count | sums.freed_count).tolist():
        by_others_count, by_others_bytes = by_others.get(row, (0, 0))
        for_others_count, for_others_bytes = for_others.get(row, (0, 0))
        threads.append(
            ThreadWork(
                tid=tids[row],
                name=None if row == NOBODY else names.get(tids[row]),
                allocated_bytes=int(sums.allocated_bytes[row]),
                allocated_count=whole(int(sums.allocated_count[row])),
                freed_bytes=int(sums.freed_bytes[row]),
                freed_count=whole(int(sums.freed_count[row])),
                freed_for_others_bytes=for_others_bytes,
                freed_for_others_count=whole(for_others_count),
                freed_by_others_bytes=by_others_bytes,
                freed_by_others_count=whole(by_others_count),
            )
        )
    threads.sort(key=lambda thread: (-thread.allocated_bytes, thread.tid))
    flows.sort(key=lambda flow: (-flow.size_bytes, flow.maker_tid, flow.ender_tid))
    return ThreadActivity(tuple(threads), tuple(flows), names)


_Record = TypeVar("_Record", ThreadWork, ThreadFlow)


def merged_activity(parts: Sequence[ThreadActivity]) -> ThreadActivity | None:
    """Merges activity of several processes; None without any. Unknown threads share one row."""
    if not parts:
        return None
    names = {tid: name for part in parts for tid, name in part.names.items()}
    works = _added((work for part in parts for work in part.threads), ("tid", "name"))
    flows = _added((flow for part in parts for flow in part.flows), ("maker_tid", "ender_tid"))
    works.sort(key=lambda work: (-work.allocated_bytes, work.tid))
    flows.sort(key=lambda flow: (-flow.size_bytes, flow.maker_tid, flow.ender_tid))
    return ThreadActivity(tuple(works), tuple(flows), names)


def _added(records: Iterable[_Record], identity: tuple[str, ...]) -> list[_Record]:
    """Adds up the figures of records with equal identities."""
    found: dict[Any, _Record] = {}
    for record in records:
        key = tuple(getattr(record, name) for name in identity)
        old = found.setdefault(key, record)
        if old is not record:
            sums = {
                field.name: getattr(old, field.name) + getattr(record, field.name)
                for field in fields(record)
                if field.name not in identity
            }
            found[key] = replace(record, **sums)
    return list(found.values())


def whole_peak(totals: Totals, peak: Peak | None, stacks: int) -> Peak | None:
    """The peak in whole blocks, for ``stacks`` stacks: later ones had no live blocks then."""
    if peak is None:
        return None
    live_bytes, live_count = np.zeros(stacks, np.int64), np.zeros(stacks, np.int64)
    known = min(stacks, len(peak.live_bytes))
    live_bytes[:known] = peak.live_bytes[:known]
    live_count[:known] = totals.whole_counts(peak.live_count[:known])
    return replace(peak, live_bytes=live_bytes, live_count=live_count)
