"""The heap of a process, found by walking it, as text and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from tracelloc.model.heapusage import ArenaUsage, HeapUsage, LargeBlock, MemoryPart
from tracelloc.model.process import Target
from tracelloc.show.presentation.blockholders import missing_lines
from tracelloc.show.presentation.blocktypes import class_text, readable_class
from tracelloc.show.presentation.memoryparts import account_facts, kept_sentences, part_lines
from tracelloc.show.tables import (
    Column,
    Columns,
    count_with,
    headline,
    json_line,
    json_of,
    sum_columns,
    table_lines,
)
from tracelloc.text import format_size, plural, printable

_MOST_ARENAS: Final = 8
_MOSTLY: Final = 0.5  # Resident part of blocks below which a report says how much is resident
_UNPRINTABLE: Final = dict.fromkeys((*range(32), *range(127, 256)), ".")
_MISSING: Final = "figures are at least: {}", "", "{}: blocks there may be missing"
_Arenas = tuple[Sequence[ArenaUsage], str]  # Arenas that a row sums up, and their name


def _sum(
    title: str, field: str, width: int = 10, write: Callable[[int], str] = format_size
) -> Column[_Arenas]:
    return Column(field, title, width, lambda row: sum(map(attrgetter(field), row[0])), write)


_ARENAS: Final[Columns[_Arenas]] = (
    _sum("in use", "in_use.size_bytes"),
    _sum("blocks", "in_use.count", 12, count_with("")),
    _sum("cached", "cached.size_bytes"),
    _sum("free", "free.size_bytes"),
    _sum("at its end", "top_bytes"),
    _sum("resident", "resident_bytes"),
    Column("name", "arena", 0, lambda row: row[1]),
)
_LARGEST: Final[Columns[LargeBlock]] = (
    Column("address", "address", 18, lambda block: block.address, hex),
    Column("bytes", "bytes", 12, lambda block: block.usable_bytes, count_with("")),
    Column("class", "largest blocks", 0, lambda block: class_text(block.class_name)),
)


def heap_lines(target: Target, heap: HeapUsage, top: int) -> Iterator[str]:
    """A report's lines, the last one empty. ``top``: rows of each table."""
    used = heap.in_use
    text = f"{format_size(used.size_bytes)} in use in {plural(used.count, 'block')}"
    resident = heap.account.parts.get(MemoryPart.IN_USE, 0)
    if resident < _MOSTLY * used.size_bytes:
        text += f" ({format_size(resident)} of it resident)"
    text += f", {format_size(heap.free_resident_bytes)} free but resident"
    yield headline(heap.time_s, target, text)
    yield from part_lines(heap.account)
    yield from kept_sentences(heap)
    swapped_bytes = heap.account.swapped_bytes
    yield from missing_lines(_MISSING, heap.coverage, heap.notes, swapped_bytes=swapped_bytes)
    for arena in heap.arenas:
        yield from (f"not seen in {arena.name}: {each}" for each in arena.unseen[:_MOST_ARENAS])
    arenas = sorted(heap.arenas, key=lambda arena: -arena.system_bytes)
    rows: list[_Arenas] = [((arena,), arena.name) for arena in arenas[:_MOST_ARENAS]]
    if rest := arenas[_MOST_ARENAS:]:
        rows.append((rest, f"{len(rest)} others"))
    yield from table_lines(_ARENAS, rows)
    classes = [(row.blocks, printable(readable_class(row.name))) for row in heap.classes]
    sizes = [(row.blocks, f"up to {row.usable_bytes:,} bytes") for row in heap.sizes]
    for what, found in (("class", classes), ("size", sizes)):
        if found[:top]:
            yield from table_lines(sum_columns(what), found[:top], more=len(found) - top)
    if heap.largest:
        yield from table_lines(
            _LARGEST, heap.largest, below=lambda block: readable_contents(block.contents, 19)
        )
    yield ""


def readable_contents(contents: bytes, indent: int = 0) -> str:
    """A block's first bytes in hexadecimal, and as text; empty if there are none."""
    if not contents:
        return ""
    text = contents.decode("latin-1").translate(_UNPRINTABLE)
    return f"{' ' * indent}{contents.hex(' ', 8)}  {text}"


def heap_json(target: Target, heap: HeapUsage) -> str:
    """A report as one line of JSON, with all sizes and classes."""
    account = heap.account
    names = {"class_name": "class", "resident": None} | dict.fromkeys(
        ("time_s", "account", "pinned", "stack_classes", "arenas")
    )
    return json_line(heap.time_s, target, {
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
                **json_of(arena, names),
                "free_resident_bytes": arena.free_resident_bytes,
                "resident_bytes": arena.resident_bytes,
            }
            for arena in heap.arenas
        ],
        **json_of(heap, names),
    })  # fmt: skip
