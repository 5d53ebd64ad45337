"""The holders of heap blocks, found without tracing, as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tracelloc.model.heapusage import (
    BlockHolders,
    BlockSum,
    HeapCoverage,
    TopHolders,
)
from tracelloc.model.process import Target
from tracelloc.show.presentation.blockholders import (
    WHOLE,
    blocks_text,
    keeper_facts,
    keeper_text,
    path_facts,
    path_text,
    sum_facts,
    top_keeper_text,
)
from tracelloc.show.report.headline import headline
from tracelloc.text import format_percent, format_size, printable

_NO_ROOT: Final = "no root leads to them: newer than the search, or lost (tracelloc leaks)"


def top_holder_lines(target: Target, found: TopHolders) -> Iterator[str]:
    """The roots that retain most of a heap, as lines; the last one is empty."""
    text = f"{blocks_text(found.heap.in_use)} in use"
    if found.shared.count:
        text += f", {format_size(found.shared.size_bytes)} of them kept by several roots"
    yield headline(found.heap.time_s, target, text)
    yield from _gaps(found.heap)
    yield _row(
        "bytes", "blocks", "kept by: so much would be freed with it, unless other roots are named"
    )
    for keeper in found.keepers:
        yield _sum_row(keeper.retained, top_keeper_text(keeper))
    if found.other_count:
        yield _sum_row(found.others, f"{found.other_count:,} more")
    if found.heap.unreached.count:
        yield _sum_row(found.heap.unreached, _NO_ROOT)
    yield ""


def holder_lines_of(target: Target, what: str, found: BlockHolders) -> Iterator[str]:
    """The holders of some blocks as lines, the last one empty. ``what``: what was asked for."""
    text = f"{printable(what)}: {blocks_text(found.blocks)}"
    if found.retained.count > found.blocks.count:
        text += f", which keep {blocks_text(found.retained)}"
    yield headline(found.heap.time_s, target, text)
    yield from _gaps(found.heap)
    reached = found.blocks.count - found.unreached.count
    for keeper in found.keepers:
        yield keeper_text(keeper, BlockSum(reached))
    if not found.keepers and reached:
        yield "no single root keeps most of these"
    if found.paths:
        yield _row("bytes", "blocks", "root keeps  pointed to by")
    for path in found.paths:
        kept = format_size(path.retained.size_bytes)
        yield _sum_row(path.blocks, f"{kept:>10}  {path_text(path)}")
    if found.more_paths:
        yield _row("", "", f"and {found.more_paths:,} more")
    if found.unreached.count:
        yield _sum_row(found.unreached, _NO_ROOT)
    yield ""


def _row(size: str, count: str, text: str) -> str:
    return f"{size:>10} {count:>12}  {text}"


def _sum_row(blocks: BlockSum, text: str) -> str:
    return _row(format_size(blocks.size_bytes), f"{blocks.count:,}", text)


def _gaps(heap: HeapCoverage) -> Iterator[str]:
    """Says why figures may be wrong."""
    if heap.coverage < WHOLE:
        yield (
            f"holders may be missing: {format_percent(heap.coverage)} of the heap was understood"
        )
    for note in heap.notes:
        yield printable(note)
    if heap.pointers_left_out:
        yield (
            f"holders may be missing: {heap.pointers_left_out:,} pointers did not fit into memory"
        )
    if heap.swapped_bytes:
        yield (
            f"holders may be missing: {format_size(heap.swapped_bytes)} of the process are "
            "swapped out and were not searched"
        )


def top_holders_json(target: Target, found: TopHolders) -> str:
    """The roots that retain most of a heap, as one line of JSON."""
    return _json(target, found.heap, {
        "holders": [keeper_facts(one) for one in found.keepers],
        "more": found.other_count,
        **sum_facts("others", found.others),
        **sum_facts("shared", found.shared),
    })  # fmt: skip


def holders_json(target: Target, what: str, found: BlockHolders) -> str:
    """The holders of some blocks, as one line of JSON."""
    return _json(target, found.heap, {
        "what": what,
        "blocks": found.blocks.count,
        "bytes": found.blocks.size_bytes,
        **sum_facts("retained", found.retained),
        **sum_facts("without_holder", found.unreached),
        "kept_by": [keeper_facts(one) for one in found.keepers],
        "paths": [path_facts(one) for one in found.paths],
        "more_paths": found.more_paths,
    })  # fmt: skip


def _json(target: Target, heap: HeapCoverage, more: dict[str, Any]) -> str:
    entry: dict[str, Any] = {"time": heap.time_s, "pid": target.pid, "command": target.command}
    entry |= {
        **sum_facts("in_use", heap.in_use),
        **sum_facts("unreached", heap.unreached),
        "coverage": heap.coverage,
        "swapped_bytes": heap.swapped_bytes,
        "pointers_left_out": heap.pointers_left_out,
        "notes": list(heap.notes),
        **more,
    }
    return json.dumps(entry, separators=(",", ":"))
