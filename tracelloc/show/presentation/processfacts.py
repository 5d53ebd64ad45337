"""Formats memory, waste, overhead and losses of a whole process, as text and JSON.

The growth of the process since tracing began is compared with the live blocks allocated
since, including the malloc library's overhead: rounding up and, in glibc, headers. If a
snapshot has all usable sizes, the overhead is exact to the byte. Otherwise tracelloc computes
it from the mean size of each stack's blocks (``heap/usable.py``), which is exact if a stack's
blocks are all of one size. If mappings are traced, the resident part of the process's own
mappings counts as well; mappings of malloc libraries count through their blocks.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.heap.usable import (
    Formula,
    formula_for,
    has_sizes,
    header_bytes,
    main_library,
    usable_of,
)
from tracelloc.model.blocks import UsableSizes
from tracelloc.model.codefiles import base_name
from tracelloc.model.figures import Mask, Totals
from tracelloc.model.losses import Counter, LossCounts
from tracelloc.model.process import MemoryLimit, MemoryUsage, Space
from tracelloc.model.verdicts import Verdict
from tracelloc.show.analysis.histograms import TotalWaste, Waste, total_waste
from tracelloc.show.presentation.memoryparts import account_facts, growth_by_parts, memory_sentences
from tracelloc.show.presentation.suspects import suspects_of
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import (
    NS_PER_S,
    about_of,
    format_estimate,
    format_percent,
    format_size,
    plural,
    printable,
)

# Least growth that is analyzed: pages and rounding are of this size.
_NOTABLE_BYTES: Final = 1 << 20
_MOSTLY_TRACED: Final = 0.7
_MORE_THAN_ALL: Final = 1.3
_SLOPE_NS: Final = 60 * NS_PER_S  # Least time over which growth of resident memory is measured
_FARTHEST_S: Final = 30 * 86400.0
# Furthest forecast, as a multiple of the time over which growth was measured.
_FORECAST_PER_WATCHED: Final = 100.0


@dataclass(frozen=True, slots=True)
class Account:
    """The growth of a process's memory, and the part in traced blocks, in bytes."""

    growth_bytes: int  # Growth of memory in use since tracing began, swapped pages included
    traced_bytes: int  # Live bytes of blocks allocated since tracing began
    overhead_bytes: int | None  # Overhead of the malloc library on traced blocks; None if unknown
    mapped_bytes: int | None  # Resident bytes of its own mappings; None if they are not traced
    file_bytes: int  # Growth by code and data of files, as they are used; 0: no walked heap tells
    # Share of the growth that is in traced blocks, the walked heap, or code and data of files that
    # the walk has told apart. None with little other growth than that of files.
    traced_share: float | None
    sentence: str  # The account in words

    @property
    def untraced_bytes(self) -> int:
        """The growth outside of the share; 0 if that is None."""
        share = self.traced_share
        return 0 if share is None else round(self.growth_bytes * (1 - max(0.0, share)))

    @property
    def is_mostly_traced(self) -> bool:
        """Whether growth, other than by code and data of files, is mostly traced."""
        most_bytes = (1 - _MOSTLY_TRACED) * (self.growth_bytes - self.file_bytes)
        return self.traced_share is None or self.untraced_bytes <= most_bytes


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast of when memory will run out."""

    limit: MemoryLimit  # The limit that will be reached
    rate_bytes_per_min: float
    # Whether the rate is the sum of leaks; otherwise, it is the recent rate of all memory.
    by_leaks: bool
    left_s: float  # Time until then

    @property
    def sentence(self) -> str:
        whose = "leaks" if self.by_leaks else "memory growth"
        return (
            f"at {format_size(round(self.rate_bytes_per_min))}/min of {whose}, the "
            f"{self.limit.what}'s limit of {format_size(self.limit.size_bytes)} is reached in "
            f"{format_estimate(self.left_s)}"
        )


def forecast(snapshot: Snapshot) -> Forecast | None:
    """Forecasts when memory runs out: by leaks, if any, else by recent growth; None: not soon."""
    memory = snapshot.memory
    if memory is None or memory.limit is None:
        return None
    leaking = [s.judgement for s in suspects_of(snapshot) if s.judgement.verdict is Verdict.LEAKING]
    if leaking:
        rate = sum(judgement.rate_bytes_per_min for judgement in leaking)
        watched_ns = snapshot.now_ns - min(judgement.since_ns for judgement in leaking)
    else:
        rate, watched_ns = _slope_per_min(memory)
    if rate <= 0:
        return None
    left_s = memory.limit.free_bytes / rate * 60
    if left_s > min(_FARTHEST_S, _FORECAST_PER_WATCHED * watched_ns / NS_PER_S):
        return None
    return Forecast(memory.limit, rate, bool(leaking), left_s)


def _slope_per_min(memory: MemoryUsage) -> tuple[float, int]:
    """Returns (bytes/min, ns measured) of the newer half of the samples; 0 if that is short."""
    if len(memory.history) < 2:
        return 0.0, 0
    last_ns, last = memory.history[-1]
    middle_ns = (memory.history[0][0] + last_ns) // 2
    from_ns, first = next(point for point in memory.history if point[0] >= middle_ns)
    if last_ns - from_ns < _SLOPE_NS:
        return 0.0, 0
    return (last - first) / (last_ns - from_ns) * 60 * NS_PER_S, last_ns - from_ns


def account(snapshot: Snapshot) -> Account | None:
    """Compares memory growth with traced blocks; None if they can't be."""
    memory = snapshot.memory
    if memory is None or snapshot.space is not Space.HOST:
        return None
    growth = memory.now.kept - memory.start.kept
    traced = snapshot.live_bytes - (snapshot.earlier.size_bytes if snapshot.earlier else 0)
    overhead = _overhead(snapshot)
    mapped = memory.mapped_bytes
    known = traced + (overhead or 0) + (mapped or 0)
    by_parts = growth_by_parts(snapshot)
    if by_parts is None:
        whole, of_files, explained = growth, 0, known
        sentence = _sentence(snapshot, memory, growth, known, overhead or 0)
    else:
        whole, of_files, of_heap, sentence = by_parts
        # A mapping that moves while the heap is walked may be missing there.
        explained = max(of_heap, traced + (overhead or 0)) + (mapped or 0)
    share = (explained + of_files) / whole if whole - of_files >= _NOTABLE_BYTES else None
    return Account(growth, traced, overhead, mapped, of_files, share, sentence)


def _overhead(snapshot: Snapshot) -> int | None:
    """Returns the malloc library's overhead on traced live blocks; None if unknown."""
    sizes = snapshot.usable
    if sizes is not None and has_sizes(sizes) and snapshot.blocks is not None:
        blocks = snapshot.blocks
        if snapshot.earlier is not None:
            blocks = blocks.select(~snapshot.are_earlier[blocks.stack])
        total = total_waste(
            blocks, snapshot.sample_bytes, usable_of(sizes, blocks), header_bytes(sizes.main)
        )
        if not total.waste.unknown_count:
            return total.waste.waste_bytes + total.header_bytes
    main = main_library(snapshot.allocators)
    formula = None if main is None or main.others else formula_for(main)
    if main is None or formula is None:
        return None
    holding = (snapshot.totals.live_count > 0) & ~snapshot.are_earlier
    return _overhead_by_means(snapshot.totals, holding, formula, header_bytes(main))


def _overhead_by_means(totals: Totals, holding: Mask, formula: Formula, header: int) -> int:
    """Returns the overhead at stacks' mean block sizes, without unknown roundings."""
    counts, held = totals.live_count[holding], totals.live_bytes[holding]
    mean = np.ceil(np.maximum(held, 0) / counts).astype(np.uint64)
    usable, known = formula(mean)
    each = np.where(known, usable, mean).astype(np.int64) + header
    return max(0, int((each * counts).sum()) - int(held.sum()))


def _sentence(
    snapshot: Snapshot, memory: MemoryUsage, growth: int, known: int, overhead: int
) -> str:
    """Formats the account. ``known``: bytes of blocks and mappings, ``overhead`` included."""
    rss = f"RSS {format_size(memory.now.rss)}"
    signed = f"{'+' if growth >= 0 else ''}{format_size(growth)} since tracing began"
    what = f"traced blocks{' and mappings' if memory.mapped_bytes else ''}"
    added = ""
    if overhead >= _NOTABLE_BYTES:
        added = f", {format_size(overhead)} of it overhead of the malloc library"
    traced = f"{format_size(known)} in {what}{added}"
    if growth < _NOTABLE_BYTES:
        is_more = known >= _NOTABLE_BYTES + max(0, growth)
        return f"{rss}, {signed}, {traced}{_why_more(snapshot) if is_more else ''}"
    share = known / growth
    if share > _MORE_THAN_ALL:
        return f"{rss}, {signed}, {traced}{_why_more(snapshot)}"
    part = format_percent(min(share, 1), 0)
    traced = f"{rss}, {signed}, {part} of it in {what}{added}"
    return traced if share >= _MOSTLY_TRACED else f"{traced}; {_elsewhere(memory, known)}"


def _why_more(snapshot: Snapshot) -> str:
    """Explains why traced blocks may exceed the growth of resident memory."""
    why = "memory counts as resident (RSS) once it is written to"
    if snapshot.losses.oddities.unmatched_frees:
        why += ", and memory that was freed before is used again"
    return f" (more than RSS has grown: {why})"


def _elsewhere(memory: MemoryUsage, known: int) -> str:
    """Returns the kind of untraced memory that has grown most, in words."""
    now, start = memory.now, memory.start
    anonymous = now.anonymous + now.swapped - start.anonymous - start.swapped - known
    files, shared = now.files - start.files, now.shared - start.shared
    if files >= max(anonymous, shared):
        return f"resident pages of mapped files have grown by {format_size(files)}"
    if shared >= anonymous:
        return f"shared memory has grown by {format_size(shared)}"
    untraced = "" if memory.mapped_bytes is not None else ", direct mmap, thread stacks"
    return (
        f"anonymous memory outside of them has grown by {format_size(anonymous)}: fragmentation, "
        f"malloc caches{untraced} or another malloc library"
    )


def memory_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yields sentences on where memory comes from and when it runs out."""
    if (found := account(snapshot)) is not None:
        yield found.sentence
    if snapshot.usage is not None:
        yield from memory_sentences(snapshot.usage, snapshot.first_usage)
    if (ahead := forecast(snapshot)) is not None:
        yield ahead.sentence


def memory_facts(snapshot: Snapshot) -> dict[str, Any]:
    """Returns memory figures for JSON, in bytes and seconds; {} if memory was never read."""
    memory, found, ahead = snapshot.memory, account(snapshot), forecast(snapshot)
    if memory is None or found is None:
        return {}
    limit = memory.limit
    return {
        "anonymous_bytes": memory.now.anonymous,
        "file_bytes": memory.now.files,
        "shared_bytes": memory.now.shared,
        "swapped_bytes": memory.now.swapped,
        "pss_bytes": memory.pss_bytes,
        "growth_bytes": found.growth_bytes,
        "traced_bytes": found.traced_bytes,
        "malloc_overhead_bytes": found.overhead_bytes,
        "mapped_bytes": found.mapped_bytes,
        "traced_share": None if found.traced_share is None else round(found.traced_share, 4),
        "explanation": found.sentence,
        "account": None if snapshot.usage is None else account_facts(snapshot.usage),
        "limit": None if limit is None else limit.what,
        "limit_bytes": None if limit is None else limit.size_bytes,
        "limit_free_bytes": None if limit is None else limit.free_bytes,
        "limit_reached_in_s": None if ahead is None else round(ahead.left_s),
        "limit_rate_bytes_per_min": None if ahead is None else round(ahead.rate_bytes_per_min, 1),
    }


def waste_text(waste: Waste, about: str) -> str:
    """Formats the wasted bytes of a bin, a size or a stack. ``about``: ``~`` before estimates."""
    known = f"{about}{format_size(waste.waste_bytes)} wasted ({format_percent(waste.share)})"
    if not waste.unknown_count:
        return known
    unknown = f"{about}{waste.unknown_count:,} of unknown usable size"
    return f"{known}, {unknown}" if waste.usable_bytes else unknown


def waste_line(sizes: UsableSizes, total: TotalWaste, about: str) -> str:
    """Formats usable and wasted bytes of all blocks, their source, and reasons for doubt."""
    return printable(", ".join(_parts(sizes, total, about)))


def _parts(sizes: UsableSizes, total: TotalWaste, about: str) -> Iterator[str]:
    usable = format_size(total.waste.usable_bytes)
    yield f"usable sizes ({sizes.main.library.value}): {about}{usable}"
    yield waste_text(total.waste, about)
    if total.header_bytes:
        yield f"{about}{format_size(total.header_bytes)} more in headers"
    if total.read_count:
        yield f"{about}{total.read_count:,} read from the process"
    if total.computed_count:
        yield f"{about}{total.computed_count:,} computed"
    if (why := why_uncertain(sizes)) is not None:
        yield why


def why_uncertain(sizes: UsableSizes) -> str | None:
    """Returns why usable sizes are uncertain; None if they are not."""
    main = sizes.main
    if not has_sizes(sizes):
        return f"sizes of {main.library.value} in {base_name(main.file)} are not known"
    if main.others:
        others = ", ".join(main.others)
        return f"all blocks are counted as {main.library.value}'s, but there is also {others}"
    return None


_LOSS_TEXTS: Final = {
    Counter.SKIPPED_RUNS: "fork{s} or exec{s} unseen",
    Counter.LOST_MAPPINGS: "mapping event{s} lost",
    Counter.LOST_STACKS: "stack{s} lost",
    Counter.STACK_TABLE_FULL: "stack{s} without room in the stack table",
    Counter.UNPAIRED_RETURNS: "unpaired return{s}",
    Counter.ABANDONED_CALLS: "abandoned call{s}",
    Counter.SAMPLE_TABLE_FULL: "sample{s} lost",
    Counter.LOST_PAIRS: "short-lived allocation{s} uncounted",
    Counter.IMPOSSIBLE_SIZES: "allocation{s} of impossible size{s} left out",
    Counter.UNREADABLE_RESULTS: "unreadable result{s}",
}


def losses_line(snapshot: Snapshot) -> str:
    """Formats one line on losses: three fixed figures, then all others that are not 0."""
    losses = snapshot.losses
    parts = [
        f"lost {plural(losses.events, 'event')}",
        f"{plural(losses.oddities.unmatched_frees, 'unmatched free')}",
        f"{plural(snapshot.truncated_stacks, 'truncated stack')}",
    ]
    if snapshot.broken_stacks:
        parts.append(plural(snapshot.broken_stacks, "broken stack"))
    if snapshot.unsure_stacks:
        parts.append(f"{plural(snapshot.unsure_stacks, 'stack')} that may lack compiled frames")
    if count := snapshot.partial_allocations:
        share = count / max(int(snapshot.totals.allocated_count.sum()), 1)
        what = f"{about_of(snapshot.sample_bytes)}{plural(count, 'allocation')}"
        parts.append(f"{what} ({format_percent(share, 2)}) with partial stacks")
    parts.extend(_rare_losses(losses))
    if losses.overflows:
        parts.append(_overflows(losses))
    if snapshot.count_bounds is not None:
        least, most = snapshot.count_bounds
        parts.append(f"at least {least:,} and at most {most:,} live allocations, bytes unknown")
    elif losses.events:
        parts.append("live figures are uncertain")
    return ", ".join(parts)


def _overflows(losses: LossCounts) -> str:
    """Formats how often the event ring overflowed, and the consequences."""
    text = (
        f"{plural(losses.overflows, 'overflow')} of the event ring, "
        f"{plural(losses.spilled_events, 'event')} in the overflow map"
    )
    if losses.events:
        return f"{text} or lost"
    return f"{text}: figures are exact, but peaks during that time were not seen"


def _rare_losses(losses: LossCounts) -> Iterator[str]:
    for counter, text in _LOSS_TEXTS.items():
        if count := losses.counters[counter]:
            yield f"{count:,} {text.format(s='' if count == 1 else 's')}"
    for task, count in losses.failed_tasks.items():
        yield f"{task} failed" if count == 1 else f"{task} failed {count:,} times"
    if losses.oddities.address_reuses:
        yield f"{plural(losses.oddities.address_reuses, 'unseen free')} found by address reuse"
    if losses.oddities.odd_restores:
        yield plural(losses.oddities.odd_restores, "unmatched failed realloc")
