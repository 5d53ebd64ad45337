"""The view of single blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Final

from tracelloc.heap.blocks import BlockCopy
from tracelloc.snapshots.analysis import BlockOrder, list_blocks
from tracelloc.snapshots.blocks import BlockStat
from tracelloc.ui.stacks import name_cell
from tracelloc.ui.table import Cell, Column, Rows, Table, clean, span
from tracelloc.ui.view import Selection, Sorting, Source, View
from tracelloc.units import NS_PER_S, format_size

MOST_BLOCKS: Final = 2_000
COLUMNS: Final = (
    Column("bytes", "size", 10),
    Column("age", "age", 9),
    Column("address", "address", 14, right=False, from_width=76),
    Column("thread", "thread", 18, right=False, from_width=100),
    Column("name", "allocated by", 0, right=False, descending=False),
)
_ORDERS: Final = {("age", True): BlockOrder.AGE, ("age", False): BlockOrder.YOUTH}
"""Of all blocks. Other columns sort the largest."""


def maker(_source: Source) -> Callable[[Selection], Rows]:
    """Makes a row per block; the key is (address, index of the stack, number).

    Processes that were forked have blocks of the same address and stack: these are numbered.
    """

    def rows(selection: Selection) -> Rows:
        settings, labels = selection.settings, selection.labels
        sorting = settings.sorting
        left = replace(selection.snapshot, blocks=BlockCopy([selection.unlimited_blocks()]))
        order = _ORDERS.get((sorting.column, sorting.descending), BlockOrder.SIZE)
        found = list(list_blocks(left, MOST_BLOCKS, order, settings.all_limits).largest)
        keys: dict[str, Callable[[BlockStat], Any]] = {
            "thread": lambda block: block.tid,
            "name": lambda block: labels.get(block.stack, ""),
            "address": lambda block: block.address,
        }
        if sorting.column in keys:
            found.sort(key=keys[sorting.column], reverse=sorting.descending)
        elif sorting == Sorting("bytes", descending=False):
            found.reverse()
        copies: Counter[tuple[int, int]] = Counter()
        known: dict[Hashable, BlockStat] = {}
        for block in found:
            copies[block.address, block.stack] += 1
            known[block.address, block.stack, copies[block.address, block.stack]] = block
        names = selection.snapshot.thread_names

        def cell(key: Hashable, column: str) -> Cell:
            assert isinstance(key, tuple)
            address, stack, _ = key
            if column == "address":
                return f"0x{address:x}"
            if column == "name":
                return name_cell(labels.get(stack, "…"), settings.search)
            block = known.get(key)
            if block is None:
                # Its row waits for the next order.
                return "freed" if column == "bytes" else ""
            if column == "bytes":
                return format_size(block.size_bytes)
            if column == "age":
                return span(block.age_ns / NS_PER_S)
            return clean(f"{block.tid} {names.get(block.tid, '[ended]')}")

        return Rows(list(known), cell, sorting.column, sorting.descending, selection.why_empty)

    return rows


BLOCKS: Final = View(
    name="blocks",
    title="Allocations",
    key="2",
    maker=maker,
    widget=lambda: Table(COLUMNS),
    choose=lambda key, _settings: int(key[1]),
    sorting=Sorting("bytes"),
    shows_stack=True,
)
