"""Formats where resident memory is, and the freed memory that the malloc library keeps."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tracelloc.dataclass import dataclass
from tracelloc.model.heapusage import (
    HEAP_PARTS,
    KEPT_PARTS,
    NO_ACCOUNT,
    HeapUsage,
    MemoryAccount,
    MemoryPart,
)
from tracelloc.model.process import MallocLibrary
from tracelloc.show.tables import Column, json_of, table_lines
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import (
    format_duration,
    format_percent,
    format_size,
    plural,
    printable,
    signed_size,
)

_LEAST_KEPT_BYTES: Final = 4 << 20
# Share of RSS from which freed memory that the process keeps is worth a sentence.
_LEAST_KEPT_SHARE: Final = 0.2
_MOST_ITEMS: Final = 3
_LEAST_ITEM_SHARE: Final = 0.05  # Share of a part from which an item is named
_LEAST_CHANGE_BYTES: Final = 1 << 20
_MOST_CHANGES: Final = 4
_LEAST_RATE_S: Final = 10.0
_STACK_CACHE: Final = 40 << 20
_MANY_ARENAS: Final = 3
_OLD_S: Final = 15.0  # Age from which an account says how old it is
# The parts of the process's own resident memory.
OWN_PARTS: Final = tuple(part for part in MemoryPart if part is not MemoryPart.TRACELLOC)
# Parts whose large items have rows.
_SPLIT_PARTS: Final = MemoryPart.RUNTIME, MemoryPart.OTHER, MemoryPart.SHARED
_NAMED_PARTS: Final = (MemoryPart.RUNTIME, MemoryPart.OTHER, MemoryPart.FILES, MemoryPart.SHARED)


def growth_by_parts(snapshot: Snapshot) -> tuple[int, int, int, str] | None:
    """Compares the current account of memory with the first; None: the heap was not walked.

    Returns (growth in bytes; that of code and data of files, which become resident as needed;
    that of the walked heap: in use, kept, and the malloc library's own data; the same in words).
    """
    usage, first = snapshot.usage, snapshot.first_usage
    if usage is None or first is None or not usage.arenas:
        return None
    now, before = usage.account, first.account
    growth = now.own_bytes - before.own_bytes
    changes = _changes(now, before)
    notable = [
        f"{signed_size(change)} {part.value}"
        for part, change in sorted(changes.items(), key=lambda row: -abs(row[1]))
        if abs(change) >= max(_LEAST_CHANGE_BYTES, _LEAST_ITEM_SHARE * abs(growth))
    ][:_MOST_CHANGES]
    words = f": {', '.join(notable)}" if notable else ""
    rss = f"RSS {format_size(now.own_bytes)}{account_age(snapshot)}"
    of_files = max(0, changes[MemoryPart.FILES]) + max(0, changes[MemoryPart.DATA])
    sentence = f"{rss}, {signed_size(growth)} since tracing began{words}"
    return growth, of_files, now.heap_bytes - before.heap_bytes, sentence


def grown_part(snapshot: Snapshot) -> MemoryPart | None:
    """Returns the part outside the heap that has grown most since tracing began, or None."""
    usage, first = snapshot.usage, snapshot.first_usage
    if usage is None or first is None:
        return None
    changes = _changes(usage.account, first.account)
    return max((part for part in OWN_PARTS if part not in HEAP_PARTS), key=changes.__getitem__)


def _changes(now: MemoryAccount, before: MemoryAccount) -> dict[MemoryPart, int]:
    return {part: now.parts.get(part, 0) - before.parts.get(part, 0) for part in OWN_PARTS}


def account_age(snapshot: Snapshot) -> str:
    """Formats the age of the account in parentheses; empty if it is still accurate."""
    usage = snapshot.usage
    if usage is None:
        return ""
    age_s = snapshot.time_s - usage.time_s
    now = usage.account.own_bytes if snapshot.rss_bytes is None else snapshot.rss_bytes
    is_other = abs(now - usage.account.own_bytes) > _LEAST_ITEM_SHARE * now
    return f" ({format_duration(max(age_s, 0.1))} ago)" if age_s >= _OLD_S or is_other else ""


@dataclass(frozen=True, slots=True)
class PartRow:
    """A row of the table of resident memory: one part, a large item of one, or the sum."""

    part: MemoryPart | None  # None: all resident memory
    item: str  # Name of the item; empty for a part without its items that have rows
    title: str
    size_bytes: int
    change_bytes: int  # Change since the earlier account
    share: float | None  # The part of resident memory; None for all of it
    text: str  # The title, with the part's largest items


CHANGE: Final[Column[PartRow]] = Column(
    "change", "change", 12, lambda row: row.change_bytes, signed_size
)
BYTES: Final[Column[PartRow]] = Column("bytes", "bytes", 10, lambda p: p.size_bytes, format_size)
SHARE: Final[Column[PartRow]] = Column(
    "share", "of RSS", 8, lambda row: row.share,
    lambda share: "" if share is None else format_percent(share),
)  # fmt: skip


def part_rows(account: MemoryAccount, before: MemoryAccount = NO_ACCOUNT) -> list[PartRow]:
    """Returns a row per part of RSS and large item, with its change since ``before``."""
    total, rows = max(account.own_bytes, 1), []
    for part in OWN_PARTS:
        items, earlier = (dict(each.items.get(part, ())) for each in (account, before))
        size, was = account.parts.get(part, 0), before.parts.get(part, 0)
        least = _LEAST_ITEM_SHARE * total if part in _SPLIT_PARTS else math.inf
        sizes = {name: (n, earlier.get(name, 0)) for name, n in items.items() if n >= least}
        title = f"other {part.value}" if sizes else part.value
        text = title if sizes else part_title(account, part)
        named = [*sizes.values()]
        sizes[""] = size - sum(n for n, _ in named), was - sum(n for _, n in named)
        for name, (now, then) in sizes.items():
            row = [f"{part.value}: {printable(name)}"] * 2 if name else [title, text]
            if now or then:
                rows.append(PartRow(part, name, row[0], now, now - then, now / total, row[1]))
    return rows


def part_lines(account: MemoryAccount, before: MemoryAccount | None = None) -> Iterator[str]:
    """Yields a table of the parts of RSS. ``before``: adds a column of changes since then."""
    changes = [] if before is None else [CHANGE]
    name: Column[PartRow] = Column("part", "resident memory", 0, lambda row: row.text)
    before = before or NO_ACCOUNT
    total, change = account.own_bytes, account.own_bytes - before.own_bytes
    rss = PartRow(None, "", "RSS", total, change, None, f"RSS{_beside(account)}")
    return table_lines([BYTES, SHARE, *changes, name], [*part_rows(account, before), rss])


def part_title(account: MemoryAccount, part: MemoryPart) -> str:
    """Returns a part's title, with its largest items if these add information."""
    items = large_items(account, part)[:_MOST_ITEMS] if part in _NAMED_PARTS else []
    named = ", ".join(f"{printable(name)} {format_size(size)}" for name, size in items)
    return f"{part.value} ({named})" if named else str(part.value)


def large_items(account: MemoryAccount, part: MemoryPart) -> list[tuple[str, int]]:
    """Returns (name, bytes) of items that are a notable share of a part, the largest first."""
    least = _LEAST_ITEM_SHARE * account.parts.get(part, 0)
    return [(name, size) for name, size in account.items.get(part, ()) if size >= least]


def _beside(account: MemoryAccount) -> str:
    """Formats the memory that belongs to the process but is not resident."""
    beside = (
        (account.swapped_bytes, "swapped out"),
        (account.page_table_bytes, "of page tables"),
        (account.hugetlb_bytes, "of reserved huge pages"),
        (account.device_bytes, f"of devices ({printable(', '.join(account.devices))})"),
        (account.parts.get(MemoryPart.TRACELLOC, 0), MemoryPart.TRACELLOC.value),
    )
    words = [f"{format_size(size)} {what}" for size, what in beside if size]
    huge = f", {format_size(account.huge_bytes)} of it in transparent huge pages"
    text = huge if account.huge_bytes else ""
    return f"{text}; besides, {', '.join(words)}" if words else text


def account_sentences(usage: HeapUsage, first: HeapUsage | None = None) -> Iterator[str]:
    """Yields sentences on a runtime's heap, ended threads' stacks, and what was inherited."""
    account, runtime = usage.account, usage.account.runtime
    if runtime is not None:
        yield (
            f"{runtime.name}: {format_size(runtime.used_bytes)} used, "
            f"{format_size(runtime.committed_bytes)} of {format_size(runtime.limit_bytes)} "
            f"committed; metaspace {format_size(runtime.metaspace_used_bytes)} used, "
            f"{format_size(runtime.metaspace_committed_bytes)} committed, at the last collection"
        )
    unjoined = unjoined_stacks(account)
    ended, size_bytes = account.stacks - account.threads, account.parts.get(MemoryPart.STACKS, 0)
    least = max(_LEAST_KEPT_BYTES, _LEAST_ITEM_SHARE * account.own_bytes)
    if ended > 0 and (unjoined or size_bytes >= least):
        threads = plural(account.threads + 1, "thread")
        why = "of threads that were never joined" if unjoined else "kept for new threads"
        rate = _rate(usage, first, lambda each: each.parts.get(MemoryPart.STACKS, 0))
        yield (
            f"{format_size(size_bytes)} in {plural(account.stacks, 'stack')} "
            f"({format_size(account.stack_space_bytes)} of address space){rate}, "
            f"{threads} {'live' if account.threads else 'lives'}: {ended:,} stacks are {why}"
        )
    inherited = sum(account.inherited.values())
    if inherited >= max(_LEAST_CHANGE_BYTES, _LEAST_ITEM_SHARE * account.anonymous_bytes):
        yield from _inherited(usage, first, inherited)


def unjoined_stacks(account: MemoryAccount) -> int:
    """Returns the number of stacks of ended threads, if more than glibc keeps for new threads."""
    ended = account.stacks - account.threads
    # glibc keeps no more address space than glibc.pthread.stack_cache_size.
    unused = account.stack_space_bytes * ended // max(account.stacks, 1)
    return ended if unused > _STACK_CACHE else 0


def _rate(
    usage: HeapUsage, first: HeapUsage | None, size_bytes: Callable[[MemoryAccount], int]
) -> str:
    """Formats the growth of a part since the first usage; "" if that is too recent."""
    if first is None or usage.time_s - first.time_s < _LEAST_RATE_S:
        return ""
    grown = size_bytes(usage.account) - size_bytes(first.account)
    return f", {signed_size(round(grown * 60 / (usage.time_s - first.time_s)))} a minute"


def _inherited(usage: HeapUsage, first: HeapUsage | None, shared: int) -> Iterator[str]:
    account = usage.account
    private = account.anonymous_bytes - shared
    rate = _rate(usage, first, lambda each: each.anonymous_bytes - sum(each.inherited.values()))
    parts = sorted(account.inherited.items(), key=lambda row: -row[1])[:_MOST_ITEMS]
    names = {MemoryPart.IN_USE: "the heap"}
    words = ", ".join(f"{format_size(n)} in {names.get(part, part.value)}" for part, n in parts)
    yield (
        f"{format_size(private)} of {format_size(account.anonymous_bytes)} without a file is no "
        f"longer shared with the parent or its children{rate}: copied or new since the fork; "
        f"still shared: {words}"
    )


def memory_sentences(usage: HeapUsage, first: HeapUsage | None = None) -> Iterator[str]:
    """Yields all sentences on a process's memory. ``first``: an earlier usage, for rates."""
    yield from account_sentences(usage, first)
    yield from kept_sentences(usage)


def kept_sentences(usage: HeapUsage) -> Iterator[str]:
    """Yields sentences on kept freed memory: how much, why, cures; none if it is little."""
    account = usage.account
    kept = account.kept_bytes
    if kept < max(_LEAST_KEPT_BYTES, _LEAST_KEPT_SHARE * account.own_bytes):
        return
    libraries = keeping_libraries(usage)
    arenas = sum(arena.name != "mappings" for arena in usage.arenas)
    where = f" in {arenas:,} arenas" if arenas > 1 else ""
    share = format_percent(kept / max(account.own_bytes, 1), 0)
    yield (
        f"{format_size(kept)} ({share}) of RSS is freed memory that {libraries} keeps{where}: "
        f"{_split(account.parts)}"
    )
    if usage.trimmable_bytes is not None:
        rest = "; the rest shares pages with blocks in use, or is at the ends of arenas"
        is_less = usage.trimmable_bytes < kept / 2
        trimmed = format_size(usage.trimmable_bytes)
        yield f"malloc_trim(0) would return {trimmed} to the kernel now{rest if is_less else ''}"
    pinned = usage.pinned
    if pinned.kept_bytes >= _LEAST_KEPT_SHARE * kept and pinned.largest:
        size, blocks = pinned.largest[0]
        yield (
            f"{format_size(pinned.kept_bytes)} lie in pages of which a quarter or less is in use, "
            f"by {plural(pinned.blocks.count, 'block')}, most of them of up to {size:,} bytes "
            f"({blocks.count:,})"
        )
    yield from _cures(usage, kept)


def _split(parts: Mapping[MemoryPart, int]) -> str:
    words = {
        MemoryPart.CACHED: "in thread caches",
        MemoryPart.FREE: "between blocks in use",
        MemoryPart.TOP: "at the ends of arenas",
    }
    rows = sorted(((parts.get(part, 0), part) for part in KEPT_PARTS), key=lambda row: -row[0])
    return ", ".join(f"{format_size(size)} {words[part]}" for size, part in rows if size)


def _cures(usage: HeapUsage, kept: int) -> Iterator[str]:
    """Yields advice that makes the malloc library keep less freed memory."""
    libraries = {arena.library for arena in usage.arenas}
    parts = usage.account.parts
    if libraries == {MallocLibrary.GLIBC}:
        if usage.trimmable_bytes is not None and usage.trimmable_bytes >= kept / 2:
            yield (
                "-XX:TrimNativeHeapInterval=5000 makes the JVM call it (JDK 17.0.9 and newer)"
                if usage.account.runtime
                else "the program can call malloc_trim(0) whenever it has freed much"
            )
        if parts.get(MemoryPart.CACHED, 0) >= kept / 2:
            yield "GLIBC_TUNABLES=glibc.malloc.tcache_count=0 in the environment: no thread caches"
        if parts.get(MemoryPart.TOP, 0) >= kept / 2 and len(usage.arenas) > _MANY_ARENAS:
            yield "MALLOC_ARENA_MAX=2 in the environment may help: fewer arenas have fewer ends"
    elif MallocLibrary.JEMALLOC in libraries:
        yield "MALLOC_CONF=background_thread:true,dirty_decay_ms:1000 returns it sooner"


def keeping_libraries(usage: HeapUsage) -> str:
    """Returns the names of the heap's malloc libraries, as text."""
    return " and ".join(dict.fromkeys(arena.library.value for arena in usage.arenas))


def account_facts(usage: HeapUsage) -> dict[str, Any]:
    """Returns the account of resident memory as JSON values, in bytes."""
    account, pinned = usage.account, usage.pinned
    return {
        "parts": {part.name.lower(): account.parts.get(part, 0) for part in MemoryPart},
        "items": [
            {"part": part.name.lower(), "name": name, "bytes": size}
            for part, items in account.items.items()
            for name, size in items
        ],
        "inherited": [
            {"part": part.name.lower(), "bytes": size} for part, size in account.inherited.items()
        ],
        "rss_bytes": account.rss_bytes,
        "kept_bytes": account.kept_bytes,
        **json_of(account, dict.fromkeys(("parts", "items", "inherited"))),
        "pinned_bytes": pinned.kept_bytes,
        "pinning_blocks": pinned.blocks.count,
        "trimmable_bytes": usage.trimmable_bytes,
        "coverage": round(usage.coverage, 6),
        "notes": list(usage.notes),
    }
