"""Reports the walked heap, blocks from before tracing, and the objects of Python programs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Final

import numpy as np

from tracelloc.heap.usable import formula_for, main_library
from tracelloc.model.blocks import EarlierKind
from tracelloc.model.heapusage import ArenaUsage, HeapUsage, LargeBlock, MemoryPart
from tracelloc.model.objects import UNKNOWN, Holders, ObjectCensus
from tracelloc.model.process import Target
from tracelloc.model.verdicts import Findings
from tracelloc.show import tables
from tracelloc.show.presentation.blockholders import missing_lines
from tracelloc.show.presentation.blocktypes import class_text, readable_class
from tracelloc.show.presentation.memoryparts import account_facts, memory_sentences, part_lines
from tracelloc.show.presentation.naming import stack_title
from tracelloc.show.presentation.objects import (
    NOT_COUNTED,
    census_facts,
    growths,
    holder_text,
    object_facts,
    type_columns,
)
from tracelloc.show.report.content import Entry, Request, SectionContent
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import amount, format_percent, format_size, plural, printable

_MOST_ARENAS: Final = 8
_MOSTLY: Final = 0.5  # Resident part of blocks below which a report says how much is resident
_UNPRINTABLE: Final = dict.fromkeys((*range(32), *range(127, 256)), ".")
_MISSING: Final = "figures are at least: {}", "", "{}: blocks there may be missing"
_Arenas = tuple[Sequence[ArenaUsage], str]  # Arenas that a row sums up, and their name


def _sum(
    title: str, field: str, width: int = 10, write: Callable[[int], str] = format_size
) -> tables.Column[_Arenas]:
    return tables.Column(
        field, title, width, lambda row: sum(map(attrgetter(field), row[0])), write
    )


_ARENAS: Final[tables.Columns[_Arenas]] = (
    _sum("in use", "in_use.size_bytes"), _sum("blocks", "in_use.count", 12, tables.count_with("")),
    _sum("cached", "cached.size_bytes"), _sum("free", "free.size_bytes"),
    _sum("at its end", "top_bytes"), _sum("resident", "resident_bytes"),
    tables.Column("name", "arena", 0, lambda row: row[1]),
)  # fmt: skip
_LARGEST: Final[tables.Columns[LargeBlock]] = (
    tables.Column("address", "address", 18, lambda block: block.address, hex),
    tables.Column("bytes", "bytes", 12, lambda block: block.usable_bytes, tables.count_with("")),
    tables.Column("class", "largest blocks", 0, lambda block: class_text(block.class_name)),
)


def heap_lines(target: Target, heap: HeapUsage, top: int) -> Iterator[str]:
    """Yields the lines of a report, the last one empty. ``top``: rows of each table."""
    used = heap.in_use
    text = f"{format_size(used.size_bytes)} in use in {plural(used.count, 'block')}"
    resident = heap.account.parts.get(MemoryPart.IN_USE, 0)
    if resident < _MOSTLY * used.size_bytes:
        text += f" ({format_size(resident)} of it resident)"
    text += f", {format_size(heap.free_resident_bytes)} free but resident"
    yield tables.headline(heap.time_s, target, text)
    yield from part_lines(heap.account)
    yield from memory_sentences(heap)
    swapped_bytes = heap.account.swapped_bytes
    yield from missing_lines(_MISSING, heap.coverage, heap.notes, swapped_bytes=swapped_bytes)
    for arena in heap.arenas:
        yield from (f"not seen in {arena.name}: {each}" for each in arena.unseen[:_MOST_ARENAS])
    arenas = sorted(heap.arenas, key=lambda arena: -arena.system_bytes)
    rows: list[_Arenas] = [((arena,), arena.name) for arena in arenas[:_MOST_ARENAS]]
    if rest := arenas[_MOST_ARENAS:]:
        rows.append((rest, f"{len(rest)} others"))
    yield from tables.table_lines(_ARENAS, rows)
    classes = [(row.blocks, printable(readable_class(row.name))) for row in heap.classes]
    sizes = [(row.blocks, f"up to {row.usable_bytes:,} bytes") for row in heap.sizes]
    for what, found in (("class", classes), ("size", sizes)):
        if found[:top]:
            yield from tables.table_lines(
                tables.sum_columns(what), found[:top], more=len(found) - top
            )
    if heap.largest:
        yield from tables.table_lines(
            _LARGEST, heap.largest, below=lambda block: readable_contents(block.contents, 19)
        )
    yield ""


def readable_contents(contents: bytes, indent: int = 0) -> str:
    """Formats a block's first bytes in hexadecimal and as text; empty if there are none."""
    if not contents:
        return ""
    text = contents.decode("latin-1").translate(_UNPRINTABLE)
    return f"{' ' * indent}{contents.hex(' ', 8)}  {text}"


def heap_json(target: Target, heap: HeapUsage) -> str:
    """Returns a report as one line of JSON, with all sizes and classes."""
    account = heap.account
    names = {"class_name": "class", "resident": None} | dict.fromkeys(
        ("time_s", "account", "pinned", "stack_classes", "arenas")
    )
    return tables.json_line(heap.time_s, target, {
        "in_use_bytes": heap.in_use.size_bytes,
        "in_use_blocks": heap.in_use.count,
        "free_resident_bytes": heap.free_resident_bytes,
        "rss_bytes": account.rss_bytes,
        "anonymous_bytes": account.anonymous_bytes,
        "swapped_bytes": account.swapped_bytes,
        "memory": account_facts(heap),
        "coverage": heap.coverage,
        "arenas": [
            {
                **tables.json_of(arena, names),
                "free_resident_bytes": arena.free_resident_bytes,
                "resident_bytes": arena.resident_bytes,
            }
            for arena in heap.arenas
        ],
        **tables.json_of(heap, names),
    })  # fmt: skip


# A stack that allocates most of the blocks of a size, and its share of these allocations. Only
# stacks count that always allocate the same size.
Likeness = tuple[int, float]
_LEAST_COUNT: Final = 10  # Allocations of a stack before its size says something
_LEAST_SHARE: Final = 0.5
_SEEN: Final = 0.999  # Part of the heap below which a report says how much was seen


def earlier_part(given: Request) -> SectionContent | None:
    """Makes the section of blocks from before tracing; None if they are not in the figures."""
    snapshot, earlier = given.snapshot, given.snapshot.earlier
    if earlier is None:
        return None
    counts = snapshot.totals.live_count
    live_stacks = [kind.stack for kind in earlier.kinds if counts[kind.stack]]
    stats = {stat.index: stat for stat in snapshot.stack_stats(live_stacks)}
    live = [(kind, stats[kind.stack]) for kind in earlier.kinds if kind.stack in stats]
    live_bytes = sum(stat.live_bytes for _, stat in live)
    live_count = sum(stat.live_count for _, stat in live)
    lost = {kind.stack: _lost(snapshot.findings, kind.stack) for kind in earlier.kinds}
    live.sort(key=lambda pair: (-lost[pair[0].stack][1], -pair[1].live_bytes))
    lost_count = sum(count for count, _ in lost.values())
    lost_bytes = sum(size for _, size in lost.values())
    alike = find_alike(snapshot, [kind for kind, _ in live[: given.style.top]])
    entries, novelties = [], set()
    for kind, stat in live[: given.style.top]:
        count, size = lost[kind.stack]
        text = f"{amount(stat.live_bytes, stat.live_count)} {_of(kind)}"
        if count:
            text += f", {_lost_words(count, size)}"
        figures = {
            "class": kind.class_name or None, "least_usable_bytes": kind.least_bytes,
            "most_usable_bytes": kind.most_bytes, "bytes": stat.live_bytes,
            "allocations": stat.live_count, "lost_bytes": size, "lost_allocations": count,
        }  # fmt: skip
        like = alike.get(kind.stack)
        # Counts of lost blocks vary a little between searches.
        novelties.add((kind.stack, count.bit_length(), like and like[0]))
        complete = partial(_with_allocator, like)
        entries.append(Entry(kind.stack, text, figures, has_frames=False, complete=complete))
    freed = earlier.size_bytes - live_bytes
    title = (
        f"==> allocated before tracing: {amount(live_bytes, live_count)}, "
        f"{format_size(freed)} freed since; {len(entries)} top kinds out of {len(live):,}:"
    )
    lines = [title]
    if sum(count > 0 for count, _ in lost.values()) > 1:
        lines.append(f"==> of these, {_lost_words(lost_count, lost_bytes)}")
    if earlier.coverage < _SEEN:
        lines.append(f"==> {format_percent(earlier.coverage, 1)} of the heap was seen")
    lines += [f"==> {printable(note)}" for note in earlier.notes]
    facts: dict[str, Any] = {
        "bytes": live_bytes, "allocations": live_count, "freed_bytes": freed,
        "freed_allocations": earlier.count - live_count, "lost_bytes": lost_bytes,
        "lost_allocations": lost_count, "coverage": round(earlier.coverage, 6),
        "notes": list(earlier.notes),
    }  # fmt: skip
    also = {like[0] for like in alike.values()}
    return SectionContent(lines, facts, "top_kinds", entries, also=also, novelties=novelties)


def _with_allocator(like: Likeness | None, given: Request, entry: Entry) -> Entry:
    """Returns the entry with the stack that allocates such blocks now."""
    if like is None:
        return replace(entry, facts={**entry.facts, "alike": None})
    index, share = like
    title = stack_title(given.namer.stack(given.snapshot, index), index)
    percent = format_percent(share, 0)
    words = f"      {percent} of such blocks are now allocated in {printable(title)}"
    facts = {"stack_id": index, "share": round(share, 4), "allocated_in": title}
    return replace(entry, facts={**entry.facts, "alike": facts}, more=[words])


def _of(kind: EarlierKind) -> str:
    size = format_size(kind.most_bytes)
    words = f"of {size}" if kind.least_bytes == kind.most_bytes else f"of up to {size}"
    return f"{words}, class {class_text(kind.class_name)}" if kind.class_name else words


def _lost(findings: Findings | None, stack: int) -> tuple[int, int]:
    """Returns the known (number, bytes) of a kind's blocks to which nothing points."""
    if findings is None or stack >= len(findings.sites):
        return 0, 0
    sites = findings.sites
    return int(sites.unreachable[stack]), int(sites.unreachable_bytes[stack])


def _lost_words(count: int, size_bytes: int) -> str:
    blocks = f"{plural(count, 'block')} ({format_size(size_bytes)})"
    return f"{blocks} lost: nothing points to {'it' if count == 1 else 'them'}"


def find_alike(snapshot: Snapshot, kinds: Iterable[EarlierKind]) -> dict[int, Likeness]:
    """Returns by a kind's stack the stack that allocates at least half of such blocks now."""
    main = main_library(snapshot.allocators)
    formula = None if main is None else formula_for(main)
    if formula is None:
        return {}
    totals = snapshot.totals
    counts, sums = totals.allocated_count, totals.allocated_bytes
    is_steady = (counts >= _LEAST_COUNT) & ~snapshot.are_earlier
    is_steady &= sums % np.maximum(counts, 1) == 0
    stacks = np.flatnonzero(is_steady)
    usable, known = formula((sums[stacks] // counts[stacks]).astype(np.uint64))
    stacks, usable = stacks[known], usable[known]
    found = {}
    for kind in kinds:
        alike = stacks[(usable >= kind.least_bytes) & (usable <= kind.most_bytes)]
        if not len(alike):
            continue
        share = float(counts[alike].max() / counts[alike].sum())
        if share >= _LEAST_SHARE:
            found[kind.stack] = int(alike[counts[alike].argmax()]), share
    return found


_LEAST_GROWTH: Final = 10  # Objects by which a type has to grow for its holders to be looked for
_MOST_HOLDERS: Final = 4  # Holders of a type that are listed


def census_totals(now: ObjectCensus) -> str:
    """Formats the totals of a census: ``1,234 objects of 56 types, 7.8 MiB``."""
    size_bytes = sum(found.size_bytes for found in now.types)
    types = plural(len(now.types), "type")
    return f"{now.count:,} objects of {types}, {format_size(size_bytes)}"


def type_table(now: ObjectCensus, first: ObjectCensus, top: int) -> Iterator[str]:
    """Yields the types that have grown most since ``first``, or the largest if it is ``now``."""
    *columns, name = type_columns(now, first)
    shown = [*(columns[:2] if now is first else columns), name]
    yield from tables.table_lines(shown, growths(now, first)[:top])
    if now.changed_pools:
        yield (
            f"{plural(now.changed_pools, 'pool')} of 16 KiB changed while being read: "
            "counts may be off by that much"
        )


def holder_lines(name: str, found: Holders, *, is_new: bool) -> Iterator[str]:
    """Yields the holders of a type's objects. ``is_new``: of objects since the first census."""
    objects = plural(found.sample_count, "new object" if is_new else "object")
    yield f"{printable(name)}: holders ({objects} examined)"
    shown = found.holders[:_MOST_HOLDERS]
    for one in shown:
        share = format_percent(one.count / found.sample_count)
        yield f"{share:>10}  {holder_text(one)}"
    rest = found.sample_count - sum(one.count for one in shown)
    if rest:
        yield f"{format_percent(rest / found.sample_count):>10}  others"
    unresolved = sum(one.count for one in found.holders if one.unresolved)
    if unresolved:
        yield f"{'':12}of {unresolved}, steps have no name ({UNKNOWN})"
    if found.skipped_tables:
        yield f"{'':12}{plural(found.skipped_tables, 'table')} could not be read"


def objects_part(given: Request) -> SectionContent:
    """Makes the section of a Python program's objects by type, and holders of growing types."""
    found = given.snapshot.objects
    facts = object_facts(found)
    if found is None or found.now is None or found.first is None:
        return SectionContent([f"==> {NOT_COUNTED}: {facts['trouble']}"], facts)
    now, first, top = found.now, found.first, given.style.top
    lines = [f"==> {census_totals(now)}, {plural(top, 'top type')}:"]
    lines += [f"    {line}" for line in type_table(now, first, top)]
    for name, holders in list(found.holders.items())[:top]:
        lines += [f"    {line}" for line in holder_lines(name, holders, is_new=True)]
    if now.no_holders:
        lines.append(f"==> {printable(now.no_holders)}")
    return SectionContent(lines, facts)


def wanted_types(now: ObjectCensus, first: ObjectCensus, most: int) -> list[str]:
    """Returns the types to find holders of: those that have grown most, or the largest."""
    rows = growths(now, first)
    if now is not first:
        rows = [row for row in rows if row.bytes_change > 0 and row.count_change >= _LEAST_GROWTH]
    return [row.now.name for row in rows[:most]]


def text_census(
    target: Target, now: ObjectCensus, first: ObjectCensus, top: int,
    holders: Mapping[str, Holders] | None = None,
) -> Iterator[str]:  # fmt: skip
    """Yields the lines of a census, the last one empty."""
    yield tables.headline(now.time_s, target, census_totals(now))
    yield from type_table(now, first, top)
    for name, found in (holders or {}).items():
        yield from holder_lines(name, found, is_new=now is not first)
    if now.no_holders:
        yield f"==> {printable(now.no_holders)}"
    yield ""


def json_census(
    target: Target, now: ObjectCensus, first: ObjectCensus,
    holders: Mapping[str, Holders] | None = None,
) -> str:  # fmt: skip
    """Returns a census as one line of JSON."""
    facts = census_facts(now, first, holders or {})
    return tables.json_line(facts.pop("time"), target, facts)
