"""The blocks that a process has lost, found without tracing it, as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tracelloc.model.heapusage import BlockSum
from tracelloc.model.lostmemory import LostGroup, LostMemory, Shape
from tracelloc.model.process import Target
from tracelloc.show.presentation.blockholders import WHOLE
from tracelloc.show.presentation.blocktypes import class_text
from tracelloc.show.report.headline import headline
from tracelloc.show.report.heap import readable_contents
from tracelloc.text import format_percent, format_size, plural, printable


def describe(group: LostGroup) -> str:
    """One group in words: ``20 × list of 50 nodes up to 56 bytes, with 1,000 other blocks``.

    Names come from the target and are escaped.
    """
    least, most = group.least_nodes, group.most_nodes
    size = f"up to {group.usable_bytes:,} bytes"
    if group.shape is Shape.BLOCK:
        text = f"block {size}"
    elif least == most:
        text = f"{group.shape.value} of {most:,} nodes {size}"
    else:
        text = f"{group.shape.value} of {least:,} to {most:,} nodes {size}"
    if group.structures > 1 or group.shape is not Shape.BLOCK:
        text = f"{group.structures:,} × {text}"
    nodes = group.structures if group.shape is Shape.BLOCK else 0
    nodes = nodes or (group.structures * most if least == most else 0)
    others = group.blocks.count - nodes
    if nodes and others > 0:
        text += f", with {plural(others, 'other block')}"
    return f"{text}: {class_text(group.class_name)}" if group.class_name else text


def leak_lines(target: Target, found: LostMemory, top: int) -> Iterator[str]:
    """A report's lines, the last one empty. ``top``: groups to list."""
    lost = f"{_blocks(found.lost)} lost," if found.lost.count else "nothing lost"
    yield headline(found.time_s, target, f"{lost} of {_blocks(found.in_use)} in use")
    yield from _gaps(found)
    if found.known.count:
        yield f"{_blocks(found.known)} of them were reported before"
    if found.suppressed.count:
        yield f"{_blocks(found.suppressed)} of them are suppressed"
    if found.groups:
        yield f"{'bytes':>10} {'blocks':>12} {'the first one at':>18}  lost: nothing points to it"
    for group in found.groups[:top]:
        yield (
            f"{format_size(group.blocks.size_bytes):>10} {group.blocks.count:>12,} "
            f"{group.example:#18x}  {describe(group)}"
        )
        if group.contents:
            yield f"{'':>24}{readable_contents(group.contents)}"
    rest = found.groups[top:]
    if rest:
        others = sum((group.blocks for group in rest), BlockSum())
        sums = f"{format_size(others.size_bytes):>10} {others.count:>12,}"
        yield f"{sums} {'':>18}  {plural(len(rest), 'more group')}"
    yield ""


def _blocks(blocks: BlockSum) -> str:
    return f"{format_size(blocks.size_bytes)} in {plural(blocks.count, 'block')}"


def _gaps(found: LostMemory) -> Iterator[str]:
    """Says why figures may be wrong."""
    if found.coverage < WHOLE:
        yield (
            f"there may be more: {format_percent(found.coverage)} of the heap was understood, and "
            "the rest counts as pointing to whatever it holds addresses of"
        )
    for note in found.notes:
        yield printable(note)
    if found.pointers_left_out:
        yield (
            f"there may be more: {found.pointers_left_out:,} pointers did not fit into memory, and "
            "what they point to counts as in use"
        )
    if found.swapped_bytes:
        yield (
            f"{format_size(found.swapped_bytes)} of the process are swapped out and were not "
            "searched: what only they point to counts as lost"
        )


def leaks_json(target: Target, found: LostMemory) -> str:
    """A report as one line of JSON, with all groups."""
    entry: dict[str, Any] = {"time": found.time_s, "pid": target.pid, "command": target.command}
    for name in ("in_use", "lost", "known", "suppressed"):
        blocks: BlockSum = getattr(found, name)
        entry |= {f"{name}_blocks": blocks.count, f"{name}_bytes": blocks.size_bytes}
    entry |= {
        "searches": found.searches,
        "coverage": found.coverage,
        "swapped_bytes": found.swapped_bytes,
        "pointers_left_out": found.pointers_left_out,
        "notes": list(found.notes),
        "groups": [
            {
                "shape": group.shape.value,
                "class": group.class_name,
                "usable_bytes": group.usable_bytes,
                "structures": group.structures,
                "least_nodes": group.least_nodes,
                "most_nodes": group.most_nodes,
                "blocks": group.blocks.count,
                "bytes": group.blocks.size_bytes,
                "example": group.example,
                "contents": group.contents.hex(),
            }
            for group in found.groups
        ],
    }
    return json.dumps(entry, separators=(",", ":"))
