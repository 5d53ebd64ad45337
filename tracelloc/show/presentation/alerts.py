"""Alerts shown before any figure: wrong figures, untraced growth, a high cost to the program."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from tracelloc.model.heapusage import MemoryPart
from tracelloc.model.losses import Counter
from tracelloc.model.process import MemoryUsage
from tracelloc.show.presentation.memoryparts import (
    grown_part,
    keeping_libraries,
    kept_sentences,
    large_items,
)
from tracelloc.show.presentation.objects import count_trouble, type_suspects, type_title
from tracelloc.show.presentation.processfacts import Account, account
from tracelloc.show.presentation.tracing import clock, missing_events, tracing_cost
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_percent, format_size, plural, printable

_MOST_GAPS: Final = 3
"""Most gaps named in a sentence."""
_MORE_THAN_SPACE: Final = 2
"""Limit of live over mapped bytes: a pool's chunks count in addition to blocks in them."""
_NOTABLE_BYTES: Final = 2 << 20
"""Least untraced growth to warn of: less may be buffers and pages of code."""
_KEPT_BYTES: Final = 32 << 20
_KEPT_SHARE: Final = 0.4
"""Share of RSS from which an alert says that it is freed memory."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A message in three lengths."""

    key: Hashable
    """What it is about: reports repeat the alert when this changes."""
    sentence: str
    clause: str
    """The essential part, in one line."""
    short: str
    """A few words, for narrow screens."""


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
    parts = [missing_events(gap) for gap in gaps[:_MOST_GAPS] if gap.end_s is not None]
    if len(gaps) > _MOST_GAPS:
        parts.append(plural(len(gaps) - _MOST_GAPS, "more gap"))
    sentence, last = f"figures are incomplete: {'; '.join(parts)}" if parts else "", gaps[-1]
    if last.end_s is not None:
        clause = f"figures are incomplete: {missing_events(last)}"
        return Alert(gaps, sentence, clause, f"incomplete until {clock(last.end_s)}")
    short = f"figures end at {clock(last.start_s)}"
    clause = f"{short}: {last.reason}"
    return Alert(gaps, "; ".join(filter(None, [clause, sentence])), clause, short)


def implausible_sizes(snapshot: Snapshot) -> Alert | None:
    """Detects sizes larger than all memory, or larger in sum than mapped memory."""
    impossible = snapshot.losses.counters[Counter.IMPOSSIBLE_SIZES]
    space = 0 if snapshot.memory is None else snapshot.memory.now.space
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
    """Returns the untraced growth; None if most of the growth is traced or there is little.

    ``found``: the account of the snapshot, if it is known.
    """
    found = account(snapshot) if found is None else found
    memory = snapshot.memory
    if found is None or memory is None or found.is_mostly_traced or found.traced_share is None:
        return None
    share = max(0.0, found.traced_share)
    untraced = round(found.growth_bytes * (1 - share))
    if untraced < _NOTABLE_BYTES:
        return None
    why, advice, short_advice = _where(snapshot, memory, found, share)
    percent = format_percent(share, 0)
    said = "" if short_advice in why else f"; {short_advice}"
    return Alert(
        why,
        f"only {percent} of memory growth is traced, {format_size(untraced)} are not: {why}; "
        f"{advice}",
        f"only {percent} of growth traced: {why}{said}",
        f"{percent} of growth traced: {short_advice}",
    )


def _where(
    snapshot: Snapshot, memory: MemoryUsage, found: Account, share: float
) -> tuple[str, str, str]:
    """Returns (why it is not traced, advice, short advice)."""
    now, start = memory.now, memory.start
    anonymous = now.anonymous + now.swapped - start.anonymous - start.swapped
    files, shared = now.files - start.files, now.shared - start.shared
    rest = anonymous - round(found.growth_bytes * share)
    if files > max(rest, shared):
        return (
            "pages of mapped files became resident",
            "the kernel can drop them (pmap -X PID)",
            "pages of mapped files",
        )
    if shared > rest:
        return _of_shared_memory(snapshot, memory)
    if snapshot.runtimes:
        runtime = snapshot.runtimes[0]
        trouble = count_trouble(snapshot) if runtime.counts_objects else None
        more = f"; {trouble}" if trouble else ""
        if runtime.counts_objects and (types := type_suspects(snapshot)):
            title = type_title(types[0])
            rate = f"{format_size(round(types[0].bytes_per_min))}/min"
            advice = f"most of it is {title}, {rate} (the view Objects, --show objects)"
            return runtime.heap, f"{advice}{more}", f"{title} (O: Objects)"
        return runtime.heap, f"{runtime.advice}{more}", runtime.short_advice
    return _of_the_rest(snapshot, memory)


def _of_shared_memory(snapshot: Snapshot, memory: MemoryUsage) -> tuple[str, str, str]:
    """Explains growth of shared memory: by the file that has most of it, if it is known."""
    usage = snapshot.usage
    items = [] if usage is None else large_items(usage.account, MemoryPart.SHARED)
    if not items:
        return "shared memory has grown", "pmap -X PID shows which", "shared memory (pmap -X PID)"
    name = printable(items[0][0])
    advice = "--mmap traces mappings" if memory.mapped_bytes is None else "pmap -X PID lists it"
    return f"shared memory has grown, mostly {name}", advice, f"shared memory: {name}"


def _of_the_rest(snapshot: Snapshot, memory: MemoryUsage) -> tuple[str, str, str]:
    """Explains untraced memory without a file, in a program without a known runtime."""
    grown = grown_part(snapshot)
    if grown is MemoryPart.STACKS:
        return (
            "stacks of threads have grown",
            "ls /proc/PID/task lists the threads",
            "thread stacks",
        )
    if memory.mapped_bytes is None:
        what = "memory that the program maps itself"
        # Without a walk, what a malloc library keeps can't be told from other memory.
        is_walked = snapshot.usage is not None and bool(snapshot.usage.arenas)
        if grown is None or (snapshot.events and not is_walked):
            what += ", thread stacks or fragmentation"
        advice = "--mmap traces mappings"
        return what, advice, advice
    return (
        "fragmentation, caches of the malloc library, thread stacks or an unknown allocator",
        "--allocators FILE names its functions",
        "fragmentation or an unknown allocator",
    )


def _high_cost(snapshot: Snapshot) -> Alert | None:
    """Returns what tracing costs the program, if that is much."""
    cost = tracing_cost(snapshot)
    if cost is None or not cost.is_high:
        return None
    what = f"while traced, the program needs {cost.times} times the CPU time"
    return Alert(
        "cost",
        f"{what}: tracelloc help cost says what makes it less",
        f"{what} (tracelloc help cost)",
        f"tracing: CPU ×{cost.times}",
    )


def _kept_memory(snapshot: Snapshot) -> Alert | None:
    """Returns that most of a process's memory is freed memory that it keeps, if so."""
    usage = snapshot.usage
    if usage is None:
        return None
    kept_bytes, own_bytes = usage.account.kept_bytes, usage.account.own_bytes
    if kept_bytes < max(_KEPT_BYTES, _KEPT_SHARE * own_bytes):
        return None
    size, libraries = format_size(kept_bytes), keeping_libraries(usage)
    share = format_percent(kept_bytes / own_bytes, 0)
    clause = f"{size} ({share} of RSS) freed, but kept by {libraries}"
    if usage.trimmable_bytes:
        clause += f"; malloc_trim(0) would return {format_size(usage.trimmable_bytes)}"
    sentence = "; ".join([*kept_sentences(usage)][:2])
    return Alert("kept memory", sentence, clause, f"{size} freed, but kept by {libraries}")
