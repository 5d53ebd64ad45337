"""The heap of a process, found by walking it, as text and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from tracelloc.model.heapusage import ArenaUsage, BlockSum, HeapUsage, MemoryPart
from tracelloc.model.process import Target
from tracelloc.show.presentation.blockholders import WHOLE
from tracelloc.show.presentation.blocktypes import class_text, readable_class
from tracelloc.show.presentation.memoryparts import account_facts, kept_sentences, part_lines
from tracelloc.show.report.headline import headline
from tracelloc.text import format_percent, format_size, plural, printable

_MOST_ARENAS: Final = 8
_MOSTLY: Final = 0.5
"""Resident part of blocks below which a report says how much is resident."""
_UNPRINTABLE: Final = dict.fromkeys((*range(32), *range(127, 256)), ".")


def heap_lines(target: Target, heap: HeapUsage, top: int) -> Iterator[str]:
    """A report's lines, the last one empty. ``top``: rows of each table."""
    used = heap.in_use
    text = f"{format_size(used.size_bytes)} in use in {plural(used.count, 'block')}, "
    resident = heap.account.parts.get(MemoryPart.IN_USE, 0)
    if resident < _MOSTLY * used.size_bytes:
        text = f"{text.removesuffix(', ')} ({format_size(resident)} of it resident), "
    text += f"{format_size(heap.free_resident_bytes)} free but resident"
    yield headline(heap.time_s, target, text)
    yield from part_lines(heap.account)
    yield from kept_sentences(heap)
    yield from _gaps(heap)
    yield from _arenas(heap)
    yield from _table(
        "class",
        [(readable_class(row.name), row.blocks) for row in heap.classes[:top]],
        len(heap.classes) - top,
    )
    sizes = [(f"up to {row.usable_bytes:,} bytes", row.blocks) for row in heap.sizes[:top]]
    yield from _table("size", sizes, len(heap.sizes) - top)
    if heap.largest:
        yield f"{'address':>18} {'bytes':>12}  largest blocks"
        for block in heap.largest:
            name = class_text(block.class_name)
            yield f"{block.address:#18x} {block.usable_bytes:>12,}  {name}".rstrip()
            if block.contents:
                yield f"{'':>18} {readable_contents(block.contents)}"
    yield ""


def readable_contents(contents: bytes) -> str:
    """A block's first bytes in hexadecimal, and as text."""
    return f"{contents.hex(' ', 8)}  {contents.decode('latin-1').translate(_UNPRINTABLE)}"


def _gaps(heap: HeapUsage) -> Iterator[str]:
    """What the figures lack."""
    if heap.coverage < WHOLE:
        yield f"figures are at least: {format_percent(heap.coverage)} of the heap was understood"
    for arena in heap.arenas:
        for place in arena.unseen[:_MOST_ARENAS]:
            yield f"not seen in {arena.name}: {place}"
    for note in heap.notes:
        yield printable(note)
    if heap.account.swapped_bytes:
        size = format_size(heap.account.swapped_bytes)
        yield f"{size} of it are swapped out and were not read: blocks there may be missing"


def _arenas(heap: HeapUsage) -> Iterator[str]:
    """A table of arenas, the largest first."""
    yield (
        f"{'in use':>10} {'blocks':>12} {'cached':>10} {'free':>10} {'at its end':>10} "
        f"{'resident':>10}  arena"
    )
    arenas = sorted(heap.arenas, key=lambda arena: -arena.system_bytes)
    for arena in arenas[:_MOST_ARENAS]:
        yield _arena(arena, arena.name)
    rest = arenas[_MOST_ARENAS:]
    if rest:
        yield _arena(_sum_of(rest), f"{len(rest)} others")


def _arena(arena: ArenaUsage, name: str) -> str:
    sizes = (arena.cached.size_bytes, arena.free.size_bytes, arena.top_bytes, arena.resident_bytes)
    columns = " ".join(f"{format_size(size):>10}" for size in sizes)
    used = arena.in_use
    return f"{format_size(used.size_bytes):>10} {used.count:>12,} {columns}  {name}"


def _sum_of(arenas: list[ArenaUsage]) -> ArenaUsage:
    def total(name: str) -> BlockSum:
        sums = [getattr(arena, name) for arena in arenas]
        return BlockSum(sum(one.count for one in sums), sum(one.size_bytes for one in sums))

    def size(name: str) -> int:
        return sum(getattr(arena, name) for arena in arenas)

    resident: Counter[MemoryPart] = Counter()
    for arena in arenas:
        resident.update(arena.resident)
    return ArenaUsage(
        "", arenas[0].library, size("system_bytes"), size("seen_bytes"), total("in_use"),
        total("cached"), total("free"), size("top_bytes"), size("own_bytes"), resident,
    )  # fmt: skip


def _table(what: str, rows: list[tuple[str, BlockSum]], more: int) -> Iterator[str]:
    if not rows:
        return
    yield f"{'bytes':>10} {'blocks':>12}  {what}"
    for name, blocks in rows:
        yield f"{format_size(blocks.size_bytes):>10} {blocks.count:>12,}  {printable(name)}"
    if more > 0:
        yield f"{'':>23}  and {more:,} more"


def heap_json(target: Target, heap: HeapUsage) -> str:
    """A report as one line of JSON, with all sizes and classes."""
    entry: dict[str, Any] = {"time": heap.time_s, "pid": target.pid, "command": target.command}
    entry |= {
        "in_use_bytes": heap.in_use.size_bytes,
        "in_use_blocks": heap.in_use.count,
        "free_resident_bytes": heap.free_resident_bytes,
        "trimmable_bytes": heap.trimmable_bytes,
        "rss_bytes": heap.account.rss_bytes,
        "anonymous_bytes": heap.account.anonymous_bytes,
        "swapped_bytes": heap.account.swapped_bytes,
        "memory": account_facts(heap),
        "coverage": heap.coverage,
        "retries": heap.retries,
        "notes": list(heap.notes),
        "arenas": [_arena_facts(arena) for arena in heap.arenas],
        "sizes": [_flat(asdict(row)) for row in heap.sizes],
        "classes": [_flat(asdict(row)) for row in heap.classes],
        "largest": [
            {"address": block.address, "usable_bytes": block.usable_bytes,
             "class": block.class_name, "contents": block.contents.hex()}
            for block in heap.largest
        ],
    }  # fmt: skip
    return json.dumps(entry, separators=(",", ":"))


def _arena_facts(arena: ArenaUsage) -> dict[str, Any]:
    facts = asdict(arena)
    del facts["resident"]
    return _flat(facts) | {
        "free_resident_bytes": arena.free_resident_bytes,
        "resident_bytes": arena.resident_bytes,
    }


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Replaces sums of blocks by two numbers: ``in_use`` by ``in_use_blocks``, ``in_use_bytes``."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            prefix = "" if name == "blocks" else f"{name}_"
            found |= {f"{prefix}blocks": value["count"], f"{prefix}bytes": value["size_bytes"]}
        else:
            found[name] = getattr(value, "value", value)
    return found
