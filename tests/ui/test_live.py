"""The live view, key by key, on fixed data."""

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from tests.ui.screens import line_with, shown, text_of
from tests.ui.source import (
    CACHE,
    LEAK,
    LIVE,
    LOG,
    FakeSource,
    live,
    on_live_screen,
    press,
    settle,
    shop,
    tick,
)
from tracelloc.model.process import (
    MainLibrary,
    MallocLibrary,
    MemoryLimit,
    MemoryUsage,
    ProcessInfo,
    ResidentMemory,
)
from tracelloc.model.snapshotrequest import TOTALS_ONLY
from tracelloc.model.verdicts import Verdict
from tracelloc.show.analysis.differences import ALL
from tracelloc.show.presentation.suspects import parting_lines
from tracelloc.text import NS_PER_S, format_size
from tracelloc.ui.app import LiveApp
from tracelloc.ui.details import DetailScreen
from tracelloc.ui.dialogs import ExportDialog, QuitDialog
from tracelloc.ui.keyfooter import SearchLine
from tracelloc.ui.lineview import LIST_KEYS
from tracelloc.ui.live_screen import LIVE_KEYS, LiveScreen, view_keys
from tracelloc.ui.picker import PickerScreen
from tracelloc.ui.stackviews import BLOCKS, STACKS
from tracelloc.ui.state import MOST_MARKS
from tracelloc.ui.tableview import GROWING, Table, growth_cell
from tracelloc.ui.tree import TREE


def rows(app: LiveApp) -> list[str]:
    """What the rows of the table on top are called, as they are ordered."""
    view = app.state.settings.view
    table = app.screen.query_one(f"#{view.name}", Table)
    picture = app.state.picture
    stacks = [view.choose(key, app.state.settings) for key in table.order]
    return [picture.labels[stack].split(" (")[0] for stack in stacks]  # type: ignore[index]


async def type_search(app: LiveApp, pilot: Pilot[int], words: str) -> None:
    app.screen.query_one(SearchLine).value = words
    await settle(app, pilot)


BY_BYTES = ["record_request", "cache_lookup", "append_log", "dns::Message::decode"]


def notes(app: LiveApp) -> str:
    """The line below the tabs."""
    lines = text_of(app)
    return lines[1 + next(at for at, line in enumerate(lines) if line.startswith(" 1 Stacks"))]


@on_live_screen()
async def test_sorting(app: LiveApp, pilot: Pilot[int]) -> None:
    by_age = ["append_log", "dns::Message::decode", "record_request", "cache_lookup"]
    for keys, column, order in (
        ("t", "bytes", BY_BYTES), ("a", "count", BY_BYTES), ("p", "growth", BY_BYTES),
        ("A", "age", by_age), ("t", "bytes", BY_BYTES), ("S", "bytes", BY_BYTES[::-1]),
        ("s", "count", None), ("ssssss", "name", sorted(BY_BYTES)),
    ):  # fmt: skip
        await press(app, pilot, *keys)
        assert app.state.settings.sorting.column == column
        assert order is None or rows(app) == order, keys
        assert column != "count" or "blocks ▼" in line_with(app, " live ")
    # A click on a title sorts, another one turns the order round.
    for order in (BY_BYTES, BY_BYTES[::-1]):
        await pilot.click("#stacks", offset=(6, 0))
        await settle(app, pilot)
        assert rows(app) == order
    await press(app, pilot, "8")
    assert "uprobe sessions" in shown(app)
    await pilot.click("#tabs", offset=(18, 0))
    await settle(app, pilot)
    assert app.state.settings.view is BLOCKS
    assert rows(app)[0] == "append_log"
    await press(app, pilot, "A")
    assert rows(app)[:2] == ["append_log", "dns::Message::decode"]
    await press(app, pilot, "S")
    assert rows(app)[0] == "record_request"


async def test_waste(source: FakeSource) -> None:
    """glibc gives 8 bytes more for each of these blocks."""
    source.allocator = MainLibrary(MallocLibrary.GLIBC, "/usr/lib/libc.so.6", ())
    async with live(source) as (app, pilot):
        await press(app, pilot, "5")
        assert "19.0 KiB wasted (3.4 %), 19.0 KiB more in headers" in line_with(app, "usable sizes")
        assert "18.8 KiB    4.8 %" in line_with(app, "128 - 255 B")
        await press(app, pilot, "slash", *"cache", "enter")
        assert "240 B wasted (0.2 %), 240 B more in headers" in line_with(app, "usable sizes")


@on_live_screen()
async def test_search(app: LiveApp, pilot: Pilot[int]) -> None:
    """However fast: nothing of it becomes a command."""
    await pilot.press("slash", "a", "p", "p")
    await settle(app, pilot)
    assert app.state.settings.search == "app"
    assert app.state.settings.sorting.column == "verdict"
    await press(app, pilot, "escape")
    await press(app, pilot, "slash", "c", "a")
    assert rows(app) == ["cache_lookup"]
    await type_search(app, pilot, "CACHE")
    assert rows(app) == []
    await type_search(app, pilot, "cache|append")
    assert rows(app) == ["cache_lookup", "append_log"]
    await press(app, pilot, "enter")
    assert "2 stacks match" in notes(app)
    # The keys are the table's again, and the view goes on obeying.
    await press(app, pilot, "2")
    assert set(rows(app)) == {"cache_lookup", "append_log"}
    await press(app, pilot, "5")
    assert "160 B" not in shown(app)
    await press(app, pilot, "1", "escape")
    assert rows(app) == BY_BYTES
    assert not app.screen.query_one(SearchLine).display
    # Hidden frames, files and modules are found as well.
    for words, found in {
        "finish_grow": ["dns::Message::decode"],
        "page.c": [],
        "/src/log": ["append_log"],
        "nowhere": [],
        "(": [],
    }.items():
        await press(app, pilot, "slash")
        await type_search(app, pilot, words)
        assert rows(app) == found, words
        if not found:
            assert "no stacks match" in shown(app)
        await press(app, pilot, "escape")


@on_live_screen()
async def test_baseline_and_marks(app: LiveApp, pilot: Pilot[int], source: FakeSource) -> None:
    await press(app, pilot, "b")
    assert rows(app) == []
    assert "no live blocks allocated since the baseline" in shown(app)
    source.now_ns += 1
    source.allocate(CACHE, 777)
    source.free(source.allocate(LEAK, 160))
    source.pass_second()
    await tick(app, pilot)
    assert rows(app) == ["cache_lookup"]
    assert "777 B" in line_with(app, "cache_lookup (")
    assert "since baseline (b)" in notes(app)
    await press(app, pilot, "2")
    assert rows(app) == ["cache_lookup"]
    await press(app, pilot, "1", "b")
    assert rows(app) == BY_BYTES
    await press(app, pilot, "d")
    assert app.state.settings.difference is None
    await press(app, pilot, "M")
    for _ in range(30):
        source.pass_second()
    source.allocate(LEAK, 1000)
    await tick(app, pilot)
    await press(app, pilot, "M")
    source.pass_second()
    source.allocate(CACHE, 3000)
    await tick(app, pilot)
    assert any("┆m1" in line and "┆m2" in line for line in text_of(app))
    await press(app, pilot, "d")
    assert "change m2 → now" in notes(app)
    assert rows(app) == ["cache_lookup"]
    assert "+2.93 KiB" in line_with(app, "cache_lookup (")
    await press(app, pilot, "d")
    assert "change m1 → m2" in notes(app)
    assert rows(app) == ["record_request"]
    assert "+1000 B" in line_with(app, "record_request (")
    await press(app, pilot, "d")
    assert app.state.settings.difference is None
    assert len(rows(app)) == 4
    await press(app, pilot, "d", "escape")
    assert app.state.settings.difference is None
    # The newest marks are kept.
    for _ in range(MOST_MARKS):
        app.state.set_mark()
    await tick(app, pilot)
    names = [mark.name for mark in app.state.settings.marks]
    assert names == [f"m{number}" for number in range(3, MOST_MARKS + 3)]


@on_live_screen()
async def test_verdicts_pause_copy_and_invert(app: LiveApp, pilot: Pilot[int]) -> None:
    for said, found in {
        "leaking or growing": ["record_request"],
        "cache": ["cache_lookup"],
        "busy": [],
        "start-up": ["append_log", "dns::Message::decode"],
        "deciding or unknown": [],
        "lost or before": [],
    }.items():
        await press(app, pilot, "V")
        assert f"only {said} (V)" in notes(app)
        assert rows(app) == found, said
        await press(app, pilot, "2")
        assert set(rows(app)) == set(found)
        await press(app, pilot, "1")
    assert "no stacks have this verdict" in shown(app)
    await press(app, pilot, "V")
    assert rows(app) == BY_BYTES
    await press(app, pilot, "V", "escape")
    assert rows(app) == BY_BYTES
    await press(app, pilot, "home")
    await press(app, pilot, "y")
    assert "record_request+0x4/0x10 in /opt/shop/server (/src/server.c:32)" in app.clipboard
    await press(app, pilot, "space")
    assert "FROZEN" in text_of(app)[0]
    await press(app, pilot, "space")
    assert "FROZEN" not in text_of(app)[0]
    await press(app, pilot, "4", "escape")
    assert app.state.settings.view is STACKS
    await press(app, pilot, "escape")
    assert app.is_running
    await press(app, pilot, "i")
    assert app.state.settings.view is TREE
    assert "callers ↓" in line_with(app, "share")
    await press(app, pilot, "i")
    assert "callees ↓" in line_with(app, "share")
    await press(app, pilot, "3", "slash", *"dns", "enter")
    assert any("found:" in line for line in text_of(app))


async def test_where_memory_comes_from_and_when_it_ends(source: FakeSource) -> None:
    grown = 1 << 20
    source.memory = MemoryUsage(
        now=ResidentMemory(20 << 20, 4 << 20, 0, 0),
        start=ResidentMemory((20 << 20) - grown, 4 << 20, 0, 0),
        pss_bytes=None,
        limit=MemoryLimit("cgroup", 64 << 20, 40 << 20),
        history=tuple((60 * n * 10**9, (20 + n) << 20) for n in range(4)),
    )
    async with live(source, (160, 40)) as (app, pilot):
        await tick(app, pilot)
        # 532 KiB of 1 MiB; a MiB a minute into 40 MiB.
        line = line_with(app, "Heap")
        assert "RSS 24.0 MiB (+1.00 MiB, 52.0 % explained)" in line
        assert "cgroup full in 40 m" in text_of(app)[0]
        await press(app, pilot, "8")
        assert "limit of 64.0 MiB is reached in 40 m" in line_with(app, "memory growth")


def test_what_fills_is_not_shown_as_a_leak() -> None:
    styles = [growth_cell(1 << 20, of).style for of in (Verdict.CACHE, Verdict.GROWING, None)]
    assert styles == ["dim", GROWING, GROWING]


@pytest.mark.parametrize(("tids", "tid"), [((0, 101), None), ((0, 101, 102), 101)])
async def test_one_thread_alone_is_not_a_limit(
    tmp_path: Path, tids: tuple[int, ...], tid: int | None
) -> None:
    """Blocks from before tracing have no thread: they are not those of another one."""
    source = FakeSource({1: [("leaf", "/opt/shop/server", None, None)]}, tmp_path)
    for one in tids:
        source.allocate(1, 100, one)
    source.pass_second()
    async with live(source) as (app, pilot):
        await press(app, pilot, "m")
        assert app.state.settings.limits == replace(ALL, tid=tid)


@on_live_screen()
async def test_threads_and_limits(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "m")
    assert "thread 101" in notes(app)
    assert rows(app) == ["record_request", "append_log"]
    await press(app, pilot, "greater_than_sign")
    assert rows(app) == ["record_request", "cache_lookup"]
    await press(app, pilot, "greater_than_sign")
    assert rows(app) == ["dns::Message::decode"]
    await press(app, pilot, "less_than_sign", "m")
    assert app.state.settings.limits.tid is None
    await press(app, pilot, "7", "down", "enter")
    assert app.state.settings.view is STACKS
    assert app.state.settings.limits.tid is not None
    await press(app, pilot, "escape")
    assert app.state.settings.limits == ALL
    await press(app, pilot, "L", *"100s", "enter")
    assert app.state.settings.limits.min_age_ns == 100 * 10**9
    assert "age ≥ 1 m 40 s" in notes(app)
    assert rows(app) == ["record_request", "append_log", "dns::Message::decode"]
    await press(app, pilot, "L", "tab", "tab", *"4k", "enter")
    assert rows(app) == ["append_log", "dns::Message::decode"]
    await press(app, pilot, "L", "tab", *"never", "enter")
    assert "is not a duration" in shown(app)
    await press(app, pilot, "escape")
    assert rows(app) == ["append_log", "dns::Message::decode"]
    await press(app, pilot, "escape")
    assert rows(app) == BY_BYTES
    # A bar of a histogram is a limit, too.
    await press(app, pilot, "6", "end", "enter")
    assert app.state.settings.view is STACKS
    assert app.state.settings.limits.min_age_ns > 0


@on_live_screen()
async def test_filters(app: LiveApp, pilot: Pilot[int], source: FakeSource) -> None:
    await press(app, pilot, "n")
    assert "finish_grow" in rows(app)[-1]
    assert "filters off (n)" in notes(app)
    await press(app, pilot, "n")
    assert rows(app) == BY_BYTES
    await press(app, pilot, "f")
    assert re.search(r"\[x\] rust +2 frames  Rust's core, allocation", shown(app))
    await press(app, pilot, *["down"] * list(source.filters.groups).index("rust"), "space")
    assert source.filters.groups["rust"] is False
    assert "[ ] rust" in shown(app)
    await press(app, pilot, "escape")
    assert "finish_grow" in rows(app)[-1]
    await press(app, pilot, "f", "n", "escape")
    assert all(source.filters.groups.values())
    assert rows(app) == BY_BYTES


@on_live_screen()
async def test_suspects_come_first(app: LiveApp, pilot: Pilot[int], source: FakeSource) -> None:
    """What holds most is on top of those that are none, however large."""
    source.allocate(LOG, 10 << 20)
    await tick(app, pilot)
    assert rows(app)[:2] == ["record_request", "append_log"]
    assert "1 growing, 187 KiB/min" in line_with(app, "Heap")
    await press(app, pilot, "t")
    assert rows(app)[:2] == ["append_log", "record_request"]
    await press(app, pilot, "v")
    assert rows(app)[:2] == ["record_request", "append_log"]
    await press(app, pilot, "v")
    assert rows(app)[-1] == "record_request"


async def test_export(source: FakeSource, tmp_path: Path) -> None:
    path = tmp_path / "out.folded"
    async with live(source) as (app, pilot):
        await press(app, pilot, "e")
        assert app.screen.query_one("#path", Input).value.startswith("shop-server-2954-")
        app.screen.query_one("#path", Input).value = str(tmp_path / "none" / "x.folded")
        await press(app, pilot, "enter")
        assert "error:" in shown(app)
        path.write_text("old")
        app.screen.query_one("#path", Input).value = str(path)
        await press(app, pilot, "enter")
        assert "out.folded exists: Enter overwrites it" in shown(app)
        assert path.read_text() == "old"
        await press(app, pilot, "enter")
        await app.workers.wait_for_complete()
        await settle(app, pilot)
        assert app.screen is app.screen_stack[0], "the dialog is closed"
        (toast,) = app._notifications
        assert toast.message.startswith(f"wrote {path} ")
    lines = path.read_text().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == sum(LIVE.values())


@on_live_screen((100, 60))
async def test_help_shows_every_key(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "question_mark")
    texts = "\n".join(map(str, app.screen.query_one(Table).order))
    for binding in (*LIVE_KEYS, *view_keys(app.state.views)):
        assert binding.tooltip in texts, binding
    for text in (each.tooltip for each in LIST_KEYS):
        assert text in texts
    assert "Open the row" in texts
    await press(app, pilot, "escape")
    assert not isinstance(app.screen, DetailScreen)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_leaving(source: FakeSource, key: str) -> None:
    async with live(source) as (app, pilot):
        await pilot.press(key)
    assert (app.return_value, app.failure) == (None, None)


@pytest.mark.parametrize("keys", ["q q", "q enter", "ctrl+c ctrl+c"])
async def test_leaving_asks_once_where_much_would_be_lost(source: FakeSource, keys: str) -> None:
    source.writes_files = False
    async with live(source) as (app, pilot):
        assert app.state.picture.snapshot.elapsed_ns > 60 * NS_PER_S
        first, second = keys.split()
        await press(app, pilot, first)
        assert isinstance(app.screen, QuitDialog)
        await press(app, pilot, "escape")
        assert isinstance(app.screen, LiveScreen)
        await press(app, pilot, first, "e") if first == "q" else await press(app, pilot, first)
        if first == "q":
            assert isinstance(app.screen, ExportDialog)
            await press(app, pilot, "escape", first)
        await pilot.press(second)


async def test_choosing_a_process(source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ProcessInfo(77, "srv", "/usr/bin/srv", "root", 1 << 20, 0, "malloc", None, known=True)
    monkeypatch.setattr(source, "list_processes", lambda: [other])
    async with live(source) as (app, pilot):
        for key in ("escape", "enter"):
            await press(app, pilot, "P")
            picker = app.screen
            assert isinstance(picker, PickerScreen)
            while picker.current is None:
                await pilot.pause(0.01)
            await pilot.press(key)
    assert app.return_value == 77


def test_what_stays_when_the_screen_is_left(tmp_path: Path) -> None:
    source = shop(tmp_path)
    snapshot = source.take_snapshot(TOTALS_ONLY).root
    namer = source.namer(snapshot.target)
    (line,) = parting_lines(snapshot, namer, 3)
    words, rate = line.rsplit(", ", 1)
    live = format_size(LIVE["record_request"])
    assert words == f"growing: record_request (server.c:32) ← handle_request, {live}"
    assert rate.startswith("+18")
    assert rate.endswith(" KiB/min")
    assert list(parting_lines(snapshot, namer, 0)) == ["1 more suspect"]


@on_live_screen((160, 40))
async def test_suspects_stay_first(app: LiveApp, pilot: Pilot[int], source: FakeSource) -> None:
    """A cache has changed by far more than what leaks."""
    await tick(app, pilot)
    first = rows(app)[0]
    await press(app, pilot, "M")
    source.pass_second()
    source.allocate(CACHE, 300_000)
    source.allocate(LEAK, 160)
    await tick(app, pilot)
    await press(app, pilot, "d")
    assert rows(app)[0] == first
    assert "cache_lookup" in rows(app)[1]
    await press(app, pilot, "s")
    assert "cache_lookup" in rows(app)[0], "by change"


@on_live_screen((80, 24))
async def test_old_data_are_dim_and_say_so(app: LiveApp, pilot: Pilot[int]) -> None:
    assert app.state.age_s == 0.0
    app.refresher.interval_s = 1e9
    await tick(app, pilot)  # The next one is due in years.
    app.state._renewed_s = time.monotonic() - 12.5
    app.screen._show_age()
    await pilot.pause()
    assert re.search(r" 1[2-9] s old ", text_of(app)[0])
    assert app.screen.has_class("old")
    app.state._renewed_s = time.monotonic()
    app.screen._show_age()
    await pilot.pause()
    assert "old" not in text_of(app)[0]
    assert not app.screen.has_class("old")


@on_live_screen((120, 40))
async def test_the_table_of_the_heaps_peak(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "X")
    assert "at the peak 581 KiB" in text_of(app)[10]
    assert "at peak ▼" in text_of(app)[11]
    await press(app, pilot, "v")
    assert "at peak" not in shown(app)
