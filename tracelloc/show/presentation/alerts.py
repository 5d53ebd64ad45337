"""Alerts shown before any figure: wrong figures, untraced growth, a high cost to the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from tracelloc.model.heapusage import MemoryPart
from tracelloc.model.losses import Counter
from tracelloc.model.process import MemoryUsage
from tracelloc.show.presentation.memoryparts import grown_part, kept_memory, large_items
from tracelloc.show.presentation.objects import count_trouble, type_suspects, type_title
from tracelloc.show.presentation.processfacts import Account, account
from tracelloc.show.presentation.tracing import HighCost, incompleteness, tracing_cost
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_percent, format_size, plural, printable

_MORE_THAN_SPACE: Final = 2
"""Limit of live over mapped bytes: a pool's chunks count in addition to blocks in them."""

_NOTABLE_BYTES: Final = 2 << 20
"""Least untraced growth to warn of: less may be buffers and pages of code."""


class Alert(Protocol):
    """A message in three lengths."""

    @property
    def sentence(self) -> str:
        """Returns the whole message."""

    @property
    def clause(self) -> str:
        """Returns the essential part, in one line."""

    @property
    def short(self) -> str:
        """Returns a few words, for narrow screens."""


@dataclass(frozen=True, slots=True)
class ImplausibleSizes:
    """Implausible sizes reported for a custom allocator."""

    what: str
    short: str

    @property
    def sentence(self) -> str:
        """Returns the problem and what to do."""
        return f"{self.what}: correct size or size_bytes in the custom allocators file"

    @property
    def clause(self) -> str:
        """Returns the sentence without the advice."""
        return self.what


def implausible_sizes(snapshot: Snapshot) -> ImplausibleSizes | None:
    """Detects sizes larger than all memory, or larger in sum than mapped memory."""
    impossible = snapshot.losses.counters[Counter.IMPOSSIBLE_SIZES]
    if impossible:
        what = plural(impossible, "allocation")
        return ImplausibleSizes(
            f"{what} with sizes that cannot be (the argument is a pointer?) are left out",
            f"{what} of impossible sizes",
        )
    space = 0 if snapshot.memory is None else snapshot.memory.now.space
    if not space or snapshot.losses.events or snapshot.live_bytes <= _MORE_THAN_SPACE * space:
        return None
    live = format_size(snapshot.live_bytes)
    return ImplausibleSizes(
        f"{live} cannot be live: the process has {format_size(space)} of address space",
        f"{live} cannot be live",
    )


@dataclass(frozen=True, slots=True)
class UntracedGrowth:
    """A process grows mostly by memory that is not in traced blocks."""

    share: float
    """Traced share of the growth."""
    bytes: int
    """Untraced growth."""
    why: str
    advice: str
    short_advice: str

    @property
    def sentence(self) -> str:
        """Returns the whole message, for lines that are long enough."""
        return (
            f"only {format_percent(self.share, 0)} of memory growth is traced, "
            f"{format_size(self.bytes)} are not: {self.why}; {self.advice}"
        )

    @property
    def clause(self) -> str:
        """Returns the message without figures in bytes."""
        said = self.short_advice in self.why
        return f"only {format_percent(self.share, 0)} of growth traced: {self.why}" + (
            "" if said else f"; {self.short_advice}"
        )

    @property
    def short(self) -> str:
        """Returns the message for narrow screens."""
        return f"{format_percent(self.share, 0)} of growth traced: {self.short_advice}"


def untraced_growth(snapshot: Snapshot, found: Account | None = None) -> UntracedGrowth | None:
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
    return UntracedGrowth(share, untraced, *_where(snapshot, memory, found, share))


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


def alert_of(snapshot: Snapshot, found: Account | None = None) -> Alert | None:
    """Returns the alert to show first, or None. ``found``: the snapshot's account, if known."""
    return (
        incompleteness(snapshot)
        or implausible_sizes(snapshot)
        or untraced_growth(snapshot, found)
        or high_cost(snapshot)
        or kept_memory(snapshot)
    )


def high_cost(snapshot: Snapshot) -> HighCost | None:
    """Returns what tracing costs the program, if that is much."""
    cost = tracing_cost(snapshot)
    return None if cost is None else cost.alert
