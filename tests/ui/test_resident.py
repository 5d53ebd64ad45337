"""The tab of resident memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from textual.pilot import Pilot

from tests.ui.screens import SIZES, compare, text_of
from tests.ui.source import live, on_live_screen, press, shop
from tests.unit.memoryusages import arena, usage
from tracelloc.model.heapusage import HeapUsages, MemoryPart
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.ui.app import LiveApp
from tracelloc.ui.tableview import Table

MIB = 1 << 20


def walked(one: Snapshot) -> Snapshot:
    """A server that has freed most of its memory, and keeps it."""
    arenas = arena("main arena", 200 * MIB), arena("arena 1", 90 * MIB)
    now = usage(
        one.time_s - 3, arenas=arenas, trimmable_bytes=270 * MIB,
        in_use=7, cached=1, free=282, top=2, stacks=3, files=4, data=1,
    )  # fmt: skip
    kept_bytes = np.maximum(one.series.rss_bytes, 0) // 2
    facets = {"heap": HeapUsages(now, usage(in_use=289, free=1, stacks=3, files=4, data=1))}
    return replace(one, series=replace(one.series, kept_bytes=kept_bytes), facets=facets)


@pytest.mark.parametrize("size", SIZES)
async def test_parts_and_what_is_kept(tmp_path: Path, size: tuple[int, int]) -> None:
    async with live(shop(tmp_path, change=walked), size=size) as (app, pilot):
        await press(app, pilot, "R")
        table = app.screen.query_one("#memory", Table)
        assert table.has_focus
        order = [part for part, _ in table.order]
        assert order[:3] == [MemoryPart.FREE, MemoryPart.IN_USE, MemoryPart.FILES]
        await compare("memory", app, pilot)
        await press(app, pilot, "s")
        assert {part for part, _ in table.order} == {
            MemoryPart.IN_USE, MemoryPart.CACHED, MemoryPart.FREE, MemoryPart.TOP,
            MemoryPart.STACKS, MemoryPart.FILES, MemoryPart.DATA,
        }  # fmt: skip


@on_live_screen()
async def test_before_memory_was_examined(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "R")
    assert "resident memory is being examined" in " ".join(text_of(app))


def mapped(one: Snapshot) -> Snapshot:
    """A program that maps its memory itself."""
    now = usage(one.time_s - 3, other=300, in_use=7)
    items = {MemoryPart.OTHER: (("[vdso]", 8192),)}
    now = replace(now, account=replace(now.account, items=items))
    return replace(one, facets={"heap": HeapUsages(now, now)})


async def test_only_large_items_of_a_part_are_named(tmp_path: Path) -> None:
    async with live(shop(tmp_path, change=mapped)) as (app, pilot):
        await press(app, pilot, "R")
        text = " ".join(text_of(app))
        assert MemoryPart.OTHER.value in text
        assert "RSS 307 MiB, examined" in text
        assert "[vdso]" not in text
