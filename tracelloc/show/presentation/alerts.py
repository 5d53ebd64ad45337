"""Alerts that are shown before any figure: what figures lack, and what tracing costs.

The probes' share of the target's CPU time means little if the program idles: a large part of
almost nothing does no harm. Views therefore show the CPU time added per second, and the factor by
which the program's own work takes more CPU time.
"""

import time
from collections.abc import Hashable
from typing import Any, Final

from tracelloc.dataclass import dataclass
from tracelloc.model.heapusage import MemoryPart
from tracelloc.model.losses import Completeness, Counter, Gap, completeness_of
from tracelloc.model.process import MemoryUsage, Space
from tracelloc.show.presentation import memoryparts
from tracelloc.show.presentation.objects import count_trouble, type_place, type_suspects
from tracelloc.show.presentation.processfacts import Account, account
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_percent, format_size, plural, printable

# From what on the cost of tracing is high: CPU time of the program, and processors for probes.
_HIGH_FACTOR, _HIGH_CORES = 2.0, 0.2
_MOST_TIMES: Final = 10.0  # Largest factor of the CPU time that is told exactly
_MOST_GAPS: Final = 3  # Most gaps named in a sentence
# Limit of live over mapped bytes: a pool's chunks count in addition to blocks in them.
_MORE_THAN_SPACE: Final = 2
# Least untraced growth to warn of: less may be buffers and pages of code.
_NOTABLE_BYTES: Final = 2 << 20
_KEPT_BYTES: Final = 32 << 20
_KEPT_SHARE: Final = 0.4  # Share of RSS from which an alert says that it is freed memory


@dataclass(frozen=True, slots=True)
class Alert:
    """A message in three lengths."""

    key: Hashable  # Identifies the subject: reports repeat the alert when this changes
    sentence: str  # The whole message
    clause: str  # The essential part, in one line
    short: str  # A few words, for narrow screens


def alert_of(snapshot: Snapshot, found: Account | None = None) -> Alert | None:
    """Returns the alert to show first, or None. ``found``: the snapshot's account, if known."""
    return (
        incompleteness(snapshot)
        or implausible_sizes(snapshot)
        or untraced_growth(snapshot, found)
        or _high_cost(snapshot)
        or _kept_memory(snapshot)
    )


def incompleteness(snapshot: Snapshot) -> Alert | None:
    """Returns what the figures lack, in which time spans, and why; None if they are complete."""
    gaps = snapshot.gaps
    if not gaps:
        return None
    parts = [_missing_events(gap) for gap in gaps[:_MOST_GAPS] if gap.end_s is not None]
    if len(gaps) > _MOST_GAPS:
        parts.append(plural(len(gaps) - _MOST_GAPS, "more gap"))
    sentence, last = f"figures are incomplete: {'; '.join(parts)}" if parts else "", gaps[-1]
    if last.end_s is not None:
        clause = f"figures are incomplete: {_missing_events(last)}"
        return Alert(gaps, sentence, clause, f"incomplete until {_clock(last.end_s)}")
    short = f"figures end at {_clock(last.start_s)}"
    clause = f"{short}: {last.reason}"
    return Alert(gaps, "; ".join(filter(None, [clause, sentence])), clause, short)


def implausible_sizes(snapshot: Snapshot) -> Alert | None:
    """Detects sizes larger than all memory, or larger in sum than mapped memory."""
    impossible = snapshot.losses.counters[Counter.IMPOSSIBLE_SIZES]
    memory = None if snapshot.space is not Space.HOST else snapshot.memory
    space = 0 if memory is None else memory.now.space
    if impossible:
        what = plural(impossible, "allocation")
        clause = f"{what} with sizes that cannot be (the argument is a pointer?) are left out"
        short = f"{what} of impossible sizes"
    elif not space or snapshot.losses.events or snapshot.live_bytes <= _MORE_THAN_SPACE * space:
        return None
    else:
        short = f"{format_size(snapshot.live_bytes)} cannot be live"
        clause = f"{short}: the process has {format_size(space)} of address space"
    advice = "correct size or size_bytes in the custom allocators file"
    return Alert("sizes", f"{clause}: {advice}", clause, short)


def untraced_growth(snapshot: Snapshot, found: Account | None = None) -> Alert | None:
    """Returns the untraced growth; None if most of the growth is traced or there is little."""
    found = account(snapshot) if found is None else found
    memory = snapshot.memory
    if found is None or memory is None or found.is_mostly_traced:
        return None
    untraced = found.untraced_bytes
    if untraced < _NOTABLE_BYTES:
        return None
    why, advice, short_advice = _where(snapshot, memory, found)
    untraced_share = format_percent(untraced / found.growth_bytes, 0)
    said = f"; {short_advice}"
    if f"{why} (O)" == f"is {short_advice}":
        said = " (O)"
    elif short_advice in why:
        said = ""
    return Alert(
        why,
        f"{untraced_share} of memory growth ({format_size(untraced)}) {why}; {advice}",
        f"{untraced_share} of the growth {why}{said}",
        f"{untraced_share} of the growth: {short_advice}",
    )


def _where(snapshot: Snapshot, memory: MemoryUsage, found: Account) -> tuple[str, str, str]:
    now, start = memory.now, memory.start
    anonymous = now.anonymous + now.swapped - start.anonymous - start.swapped
    files, shared = now.files - start.files, now.shared - start.shared
    rest = anonymous - (found.growth_bytes - found.untraced_bytes - found.file_bytes)
    if files - found.file_bytes > max(rest, shared):
        return "is file pages, not heap", "the kernel can drop them (pmap -X PID)", "file pages"
    if shared > rest:
        return _of_shared_memory(snapshot, memory)
    if snapshot.runtimes:
        runtime = snapshot.runtimes[0]
        trouble = count_trouble(snapshot) if runtime.counts_objects else None
        more = f"; {trouble}" if trouble else ""
        if runtime.counts_objects and (types := type_suspects(snapshot)):
            title = f"{runtime.name} objects: {type_place(types[0])}"
            rate = f"{format_size(round(types[0].bytes_per_min))}/min"
            advice = f"they grow by {rate} (the view Objects, --show objects)"
            return f"is {title}", f"{advice}{more}", f"{title} (O)"
        return f"is not malloc's: {runtime.heap}", f"{runtime.advice}{more}", runtime.short_advice
    return _of_the_rest(snapshot, memory)


def _of_shared_memory(snapshot: Snapshot, memory: MemoryUsage) -> tuple[str, str, str]:
    """Explains growth of shared memory by the file with most of it, if that is known."""
    usage = snapshot.usage
    items = [] if usage is None else memoryparts.large_items(usage.account, MemoryPart.SHARED)
    if not items:
        return "is shared memory", "pmap -X PID shows which", "shared memory (pmap -X PID)"
    name = printable(items[0][0])
    advice = "--mmap traces mappings" if memory.mapped_bytes is None else "pmap -X PID lists it"
    return f"is shared memory, mostly {name}", advice, f"shared memory: {name}"


def _of_the_rest(snapshot: Snapshot, memory: MemoryUsage) -> tuple[str, str, str]:
    """Explains untraced memory without a file, in a program without a known runtime."""
    grown = memoryparts.grown_part(snapshot)
    if grown is MemoryPart.STACKS:
        if snapshot.usage is not None and memoryparts.unjoined_stacks(snapshot.usage.account):
            return (
                "is stacks of threads that were never joined",
                "stacks with pthread_create show what starts them",
                "stacks of threads that were never joined",
            )
        return "is stacks of threads", "ls /proc/PID/task lists the threads", "thread stacks"
    if memory.mapped_bytes is None:
        what = "is memory that the program maps itself"
        # Without a walk, what a malloc library keeps can't be told from other memory.
        is_walked = snapshot.usage is not None and bool(snapshot.usage.arenas)
        if grown is None or (snapshot.events and not is_walked):
            what += ", thread stacks or fragmentation"
        advice = "--mmap traces mappings"
        return what, advice, advice
    return (
        "is fragmentation, caches of the malloc library, thread stacks or an unknown allocator",
        "--allocators FILE names its functions",
        "fragmentation or an unknown allocator",
    )


def _high_cost(snapshot: Snapshot) -> Alert | None:
    cost = tracing_cost(snapshot)
    if cost is None or not cost.is_high:
        return None
    what = f"while traced, the program needs {cost.times} the CPU time"
    return Alert(
        "cost", f"{what}: tracelloc help cost says what makes it less",
        f"{what} (tracelloc help cost)", f"target slowed {cost.times}",
    )  # fmt: skip


def _kept_memory(snapshot: Snapshot) -> Alert | None:
    usage = snapshot.usage
    if usage is None:
        return None
    kept_bytes, own_bytes = usage.account.kept_bytes, usage.account.own_bytes
    if kept_bytes < max(_KEPT_BYTES, _KEPT_SHARE * own_bytes):
        return None
    size, libraries = format_size(kept_bytes), memoryparts.keeping_libraries(usage)
    share = format_percent(kept_bytes / own_bytes, 0)
    clause = f"{size} ({share} of RSS) freed, but kept by {libraries}"
    if usage.trimmable_bytes:
        clause += f"; malloc_trim(0) would return {format_size(usage.trimmable_bytes)}"
    sentence = "; ".join([*memoryparts.kept_sentences(usage)][:2])
    return Alert("kept memory", sentence, clause, f"{size} freed, but kept by {libraries}")


def _missing_events(gap: Gap) -> str:
    assert gap.end_s is not None
    span = f"between {_clock(gap.start_s)} and {_clock(gap.end_s)}"
    what = "some events" if gap.lost_events is None else plural(gap.lost_events, "event")
    return f"{what} {span} missing ({gap.reason})"


def _clock(time_s: float) -> str:
    return time.strftime("%H:%M:%SZ", time.gmtime(time_s))


def completeness_word(snapshot: Snapshot) -> str:
    """Formats ``complete``, ``at_least`` or ``until_15:03:22Z``, one word of a log line."""
    state = completeness_of(snapshot.gaps)
    until = f"_{_clock(snapshot.gaps[-1].start_s)}" if state is Completeness.UNTIL else ""
    return f"{state.value}{until}"


def completeness_facts(snapshot: Snapshot) -> dict[str, Any]:
    """Returns what the figures lack, for JSON. Times in seconds since 1970."""
    return {
        "state": completeness_of(snapshot.gaps).value,
        "gaps": [
            {
                "from": round(gap.start_s, 3),
                "to": None if gap.end_s is None else round(gap.end_s, 3),
                "lost_events": gap.lost_events,
                "reason": gap.reason,
            }
            for gap in snapshot.gaps
        ],
    }


@dataclass(frozen=True, slots=True)
class TracingCost:
    """The CPU time that tracing costs the target."""

    cores: float  # Processors that tracing uses: CPU time added per second
    factor: float  # Factor by which the program's own work takes more CPU time

    @property
    def short(self) -> str:
        """Formats ``tracer 8 % CPU, target slowed 1.2×``."""
        return f"tracer {_percent_of_core(self.cores)} CPU, target slowed {self.times}"

    @property
    def sentence(self) -> str:
        return (
            f"tracing takes about {_percent_of_core(self.cores)} of one core; the program needs "
            f"{self.times} the CPU time"
        )

    @property
    def is_high(self) -> bool:
        return self.factor >= _HIGH_FACTOR and self.cores >= _HIGH_CORES

    @property
    def times(self) -> str:
        """The factor as text, as exact as it is known: ``1.2×``, ``≥ 2.4×``."""
        if self.factor >= _MOST_TIMES:
            # The error of the estimates is as large as the remaining CPU time.
            return f"≥ {_MOST_TIMES:.0f}×"
        if self.factor >= _HIGH_FACTOR:
            # A program pays more for traps than a small process does.
            return f"≥ {self.factor:.1f}×"
        return f"{self.factor:.{2 if self.factor < 1.095 else 1}f}×"


def _percent_of_core(cores: float) -> str:
    return format_percent(cores, 1 if cores < 0.0995 else 0)


def tracing_cost(snapshot: Snapshot) -> TracingCost | None:
    """Returns the cost of tracing; None until it has been measured."""
    share, cores = snapshot.overhead.probe_share, snapshot.cpu_cores
    if share is None or cores is None:
        return None
    return TracingCost(share * cores, 1 / max(1 - share, 0.01))


def overhead_line(snapshot: Snapshot) -> str:
    """Formats one line on the overhead of tracing."""
    cost = tracing_cost(snapshot)
    parts = [f"{snapshot.overhead.events_per_s:,.0f} events/s"]
    if cost is not None:
        parts.append(cost.sentence + (" (less: tracelloc help cost)" if cost.is_high else ""))
    return ", ".join(parts)
