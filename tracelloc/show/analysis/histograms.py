"""Histograms of live blocks by size, age and thread, details of a stack, and wasted bytes."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.model.blocks import Blocks, Usable
from tracelloc.model.figures import ThreadActivity, ThreadWork
from tracelloc.show.analysis.differences import ALL, Limits, amounts, held_by, pick_blocks
from tracelloc.snapshots.snapshot import Snapshot, StackStat
from tracelloc.text import NS_PER_S


@dataclass(frozen=True, slots=True)
class Waste:
    """Wasted bytes of some blocks; estimates if blocks are sampled."""

    usable_bytes: int  # Usable bytes of the blocks whose usable size is known
    waste_bytes: int  # The part of the usable bytes that was not requested
    unknown_count: int  # Blocks whose usable size is unknown

    @property
    def share(self) -> float:
        return self.waste_bytes / max(self.usable_bytes, 1)


@dataclass(frozen=True, slots=True)
class TotalWaste:
    """Wasted bytes of all blocks, and how their usable sizes were found."""

    waste: Waste
    read_count: int  # Blocks whose size was read from the process
    computed_count: int  # Blocks whose size follows from the request
    header_bytes: int  # Bytes that blocks of known size occupy in addition to their usable bytes


def waste_by(
    keys: npt.NDArray[np.integer], length: int, blocks: Blocks, sample_bytes: int | None,
    usable: Usable | None,
) -> Sequence[Waste | None]:  # fmt: skip
    """Returns the waste per key below ``length``; None for each if nothing was measured."""
    if usable is None:
        return [None] * length
    known = usable.known
    waste = np.where(known, usable.size_bytes - blocks.size, np.uint64(0))
    wasted = held_by(keys, length, amounts(blocks, sample_bytes, waste)).size_bytes
    asked = held_by(keys[known], length, amounts(blocks.select(known), sample_bytes)).size_bytes
    unknown = held_by(keys[~known], length, amounts(blocks.select(~known), sample_bytes)).count
    rows = zip(asked.tolist(), wasted.tolist(), unknown.tolist(), strict=True)
    return [Waste(asked_bytes + lost, lost, count) for asked_bytes, lost, count in rows]


def total_waste(
    blocks: Blocks, sample_bytes: int | None, usable: Usable, header_bytes: int
) -> TotalWaste:
    """Sums the waste of blocks. ``header_bytes``: bytes per block besides the usable ones."""
    alike = np.zeros(len(blocks), np.intp)
    (waste,) = waste_by(alike, 1, blocks, sample_bytes, usable)
    assert waste is not None
    read, computed = (
        int(held_by(alike[chosen], 1, amounts(blocks.select(chosen), sample_bytes)).count[0])
        for chosen in (usable.read, usable.known & ~usable.read)
    )
    return TotalWaste(waste, read, computed, (read + computed) * header_bytes)


def wasteful_stacks(
    blocks: Blocks, sample_bytes: int | None, usable: Usable, n: int
) -> list[tuple[int, int, Waste]]:
    """Returns (stack, blocks, waste) of up to ``n`` stacks, largest waste first."""
    length = int(blocks.stack.max(initial=0)) + 1
    counts = held_by(blocks.stack, length, amounts(blocks, sample_bytes)).count
    wasting = [
        (index, int(counts[index]), waste)
        for index, waste in enumerate(waste_by(blocks.stack, length, blocks, sample_bytes, usable))
        if waste is not None and waste.waste_bytes
    ]
    wasting.sort(key=lambda found: (-found[2].waste_bytes, found[0]))
    return wasting[:n]


_POWERS: Final = np.array([1 << bit for bit in range(64)], np.uint64)
# Lower bounds of the age bins.
AGE_STEPS_S: Final = (0, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10_800, 36_000, 86_400)
_AGE_STEPS_NS: Final = np.array(AGE_STEPS_S, np.int64) * NS_PER_S


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin of a histogram, between two sizes in bytes or two ages in ns."""

    low: int
    # Upper bound: the largest size in the bin (`low` for one exact size), or the first age beyond
    # it; None if unbounded.
    high: int | None
    count: int
    size_bytes: int
    waste: Waste | None = None  # None if not measured


def size_bins(
    blocks: Blocks, sample_bytes: int | None = None, usable: Usable | None = None
) -> list[Bin]:
    """Returns blocks by powers of two: 0, 1, 2-3, 4-7 …, from the smallest to the largest used."""
    if not len(blocks):
        return []
    if int(blocks.size.max()) < 1 << 53:
        # The exponent of a float64 that holds the number exactly.
        keys = np.frexp(blocks.size.astype(np.float64))[1].astype(np.intp)
    else:
        keys = np.searchsorted(_POWERS, blocks.size, side="right")
    low, high = int(keys.min()), int(keys.max())
    held = held_by(keys, 65, amounts(blocks, sample_bytes))
    waste = waste_by(keys, 65, blocks, sample_bytes, usable)
    counts, sizes = held.count.tolist(), held.size_bytes.tolist()
    return [
        Bin(1 << n - 1 if n else 0, (1 << n) - 1, counts[n], sizes[n], waste[n])
        for n in range(low, high + 1)
    ]


def frequent_sizes(
    blocks: Blocks, n: int, sample_bytes: int | None = None, usable: Usable | None = None
) -> list[Bin]:
    """Returns the ``n`` exact sizes with most bytes; of equal ones, the smaller comes first."""
    if not len(blocks):
        return []
    sizes, keys = np.unique(blocks.size, return_inverse=True)
    held = held_by(keys, len(sizes), amounts(blocks, sample_bytes))
    order = np.lexsort((sizes, -held.size_bytes))[:n]
    waste = waste_by(keys, len(sizes), blocks, sample_bytes, usable)
    return [
        Bin(size, size, int(held.count[row]), int(held.size_bytes[row]), waste[row])
        for row, size in zip(order.tolist(), sizes[order].tolist(), strict=True)
    ]


def age_bins(blocks: Blocks, now_ns: int, sample_bytes: int | None = None) -> list[Bin]:
    """Returns blocks by age, in fixed bins from the youngest to the oldest used one."""
    if not len(blocks):
        return []
    ages = np.maximum(now_ns - blocks.birth_ns.astype(np.int64), 0)
    keys = np.searchsorted(_AGE_STEPS_NS, ages, side="right") - 1
    held = held_by(keys, len(_AGE_STEPS_NS), amounts(blocks, sample_bytes))
    ends = [*pairwise(_AGE_STEPS_NS.tolist()), (int(_AGE_STEPS_NS[-1]), None)]
    used = int(keys.max()) + 1
    counts, sizes = held.count.tolist(), held.size_bytes.tolist()
    return [Bin(*limits, counts[n], sizes[n]) for n, limits in enumerate(ends[:used])]


@dataclass(frozen=True, slots=True)
class ThreadStat:
    """The live blocks that one thread has allocated."""

    tid: int
    name: str | None  # None if the thread ended before its name was read
    live_bytes: int
    live_count: int
    share: float  # Share of the bytes of all threads; 0 to 1
    bytes_per_min: int | None  # Growth rate since an earlier snapshot; None without one


def threads_of(
    blocks: Blocks, names: Mapping[int, str], now_ns: int,
    before: tuple[int, Sequence[ThreadStat]] | None = None, sample_bytes: int | None = None,
) -> list[ThreadStat]:  # fmt: skip
    """Returns threads with live blocks now or in ``before`` (time, threads), the largest first."""
    # Thread ids are below 2^22 (PID_MAX_LIMIT): counting them is quicker than sorting.
    length = int(blocks.tid.max()) + 1 if len(blocks) else 0
    held = held_by(blocks.tid, length, amounts(blocks, sample_bytes))
    tids = np.flatnonzero(held.count).tolist()
    sizes = {tid: int(held.size_bytes[tid]) for tid in tids}
    counts = {tid: int(held.count[tid]) for tid in tids}
    then_ns, earlier = before or (now_ns, ())
    then = {stat.tid: stat.live_bytes for stat in earlier}
    sizes |= {tid: 0 for tid, size in then.items() if size and tid not in sizes}
    total, passed_ns = max(sum(sizes.values()), 1), now_ns - then_ns
    stats = []
    for tid, size in sizes.items():
        grown = (size - then.get(tid, 0)) * 60 * NS_PER_S
        rate = round(grown / passed_ns) if passed_ns > 0 else None
        stats.append(ThreadStat(tid, names.get(tid), size, counts.get(tid, 0), size / total, rate))
    stats.sort(key=lambda stat: (-stat.live_bytes, stat.tid))
    return stats


@dataclass(frozen=True, slots=True)
class StackDetails:
    """Figures and histograms of one stack. Ages in ns; None if not applicable."""

    stat: StackStat
    peak_bytes: int  # Most live bytes at any time
    last_age_ns: int | None  # How long ago it last allocated
    mean_age_ns: int | None
    oldest_age_ns: int | None
    sizes: list[Bin]
    ages: list[Bin]
    threads: list[ThreadStat]
    # (times on CLOCK_MONOTONIC, bytes outstanding then); the last entry is the snapshot's.
    history: tuple[list[int], list[int]]


def stack_details(snapshot: Snapshot, index: int, limits: Limits = ALL) -> StackDetails:
    """Returns figures of a stack, and histograms of its blocks if the snapshot has blocks."""
    now_ns, sampled, totals = snapshot.now_ns, snapshot.sample_bytes, snapshot.totals
    every = Blocks.empty() if snapshot.blocks is None else snapshot.blocks
    blocks = pick_blocks(every.select(every.stack == index), now_ns, limits)
    (stat,) = snapshot.stack_stats([index])
    times, sizes = snapshot.history.series(index)
    last_ns = int(totals.last_ns[index])
    ages = np.maximum(now_ns - blocks.birth_ns.astype(np.int64), 0)
    parts = amounts(blocks, sampled).parts
    return StackDetails(
        stat=stat,
        peak_bytes=max(int(totals.peak_bytes[index]), stat.live_bytes),
        last_age_ns=max(0, now_ns - last_ns) if last_ns else None,
        mean_age_ns=round(float(np.average(ages, weights=parts))) if len(ages) else None,
        oldest_age_ns=int(ages.max()) if len(ages) else None,
        sizes=size_bins(blocks, sampled),
        ages=age_bins(blocks, now_ns, sampled),
        threads=threads_of(blocks, snapshot.thread_names, now_ns, sample_bytes=sampled),
        history=([*times, now_ns], [*sizes, stat.live_bytes]),
    )


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A thread with its live blocks and its activity."""

    held: ThreadStat  # Live blocks that it has allocated
    work: ThreadWork  # Activity of the thread since tracing began


def thread_rows(
    held: Sequence[ThreadStat], activity: ThreadActivity | None, *, narrowed: bool
) -> list[ThreadRow]:
    """Returns threads with live blocks, then, unless ``narrowed``, others with any activity."""
    works = {} if activity is None else {work.tid: work for work in activity.threads}
    rows = []
    for stat in held:
        nothing = ThreadWork(stat.tid, stat.name, 0, 0, 0, 0, 0, 0, 0, 0)
        rows.append(ThreadRow(stat, works.pop(stat.tid, nothing)))
    if not narrowed:
        left = works.values()
        rows += [ThreadRow(ThreadStat(one.tid, one.name, 0, 0, 0.0, None), one) for one in left]
    return rows
