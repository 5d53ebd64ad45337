"""The peak, temporary allocations and threads on the screen: a made-up shop of known figures."""

from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from tests.ui.screens import line_with, shown, text_of
from tests.ui.source import (
    CACHE,
    LEAK,
    LIVE,
    LOG,
    PAGE,
    SECONDS,
    STACKS,
    FakeSource,
    live,
    on_live_screen,
    press,
    tick,
)  # fmt: skip
from tracelloc.heap.table import LiveTable
from tracelloc.show.presentation.profile import Metric
from tracelloc.ui.app import LiveApp
from tracelloc.ui.histogramviews import THREADS
from tracelloc.ui.nodes import ROOT, Nodes
from tracelloc.ui.tableview import Table

PAGE_BYTES = 50_000
# Each second a page is made, while all that stays is there, and freed at once.
PEAK_BYTES = sum(LIVE.values()) + PAGE_BYTES
HANDED = SECONDS - 30  # Entries of the cache that another thread has freed


def nodes_of(app: LiveApp) -> Nodes:
    nodes = app.state.picture.content
    assert isinstance(nodes, Nodes)
    return nodes


def own(app: LiveApp, function: str) -> int:
    """What the stacks weigh that end in a function."""
    nodes = nodes_of(app)
    return sum(
        int(nodes.tree.own[nodes.metric][node])
        for node, step in enumerate(nodes.tree.steps)
        if step.name == function
    )


@on_live_screen()
async def test_tree_by_each_metric(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "w")
    assert nodes_of(app).metric is Metric.BYTES, "elsewhere it leads to the tree"
    assert nodes_of(app).weight(ROOT) == sum(LIVE.values())
    found = {}
    for metric in (Metric.BLOCKS, Metric.ALLOCATED, Metric.GROWTH, Metric.PEAK):
        await press(app, pilot, "w")
        assert nodes_of(app).metric is metric
        assert f"by {metric.value} (w)" in line_with(app, "(w)")
        found[metric] = nodes_of(app).weight(ROOT)
    assert found[Metric.BLOCKS] == SECONDS * 20 + 30 + 2
    assert found[Metric.ALLOCATED] == PEAK_BYTES + HANDED * 4096 + (SECONDS - 1) * PAGE_BYTES
    assert found[Metric.PEAK] == PEAK_BYTES
    assert own(app, "render_page") == PAGE_BYTES, "though it holds nothing"
    assert own(app, "cache_lookup") == 30 * 4096
    assert "peak" in line_with(app, "callees")
    await press(app, pilot, "w")
    assert (nodes_of(app).weight(ROOT), own(app, "render_page")) == (SECONDS, SECONDS)
    await press(app, pilot, "3")
    assert f"temporary {SECONDS}" in line_with(app, "colors: module")
    await press(app, pilot, "w")
    assert app.state.settings.metric is Metric.BYTES
    # Limits leave out what is freed.
    await press(app, pilot, *"4wwww")
    assert own(app, "render_page") == PAGE_BYTES
    app.state.change(limits=replace(app.state.settings.limits, min_size_bytes=4096))
    await tick(app, pilot)
    assert own(app, "render_page") == own(app, "record_request") == 0
    assert nodes_of(app).weight(ROOT) == LIVE["cache_lookup"] + LIVE["append_log"] + 5 * 1024


async def test_threads(source: FakeSource) -> None:
    # Somebody who only ever frees.
    source.apply([(2, source.allocate(LOG, 10_000, tid=101), 0, 0, 104)])
    async with live(source, (140, 40)) as (app, pilot):
        assert app.state.picture.snapshot.threads is None, "nobody has asked for them"
        taken = source.taken
        await press(app, pilot, "7")
        assert source.taken == taken + 1
        moved = (HANDED * 4096 + 10_000) / 1024
        share = 100 * (HANDED + 1) / (SECONDS + HANDED + 1)
        assert line_with(app, "freed by other threads").strip() == (
            f"freed by other threads: {moved:.0f} KiB in {HANDED + 1} blocks, "
            f"{share:.1f} % of all frees"
        )
        view = app.screen.query_one("#threads", Table)
        assert set(view.order) == {101, 102, 103, 104}
        assert THREADS.choose(0, app.state.settings) is None, "what is nobody's"
        activity = app.state.picture.snapshot.threads
        works = {work.tid: work for work in activity.threads}
        work = works[101]
        assert (work.freed_count, work.freed_for_others_bytes) == (SECONDS + HANDED, HANDED * 4096)
        assert (work.freed_by_others_bytes, works[104].freed_for_others_bytes) == (10_000, 10_000)
        assert works[102].freed_by_others_count == HANDED
        # live, thread, blocks, allocated, freed, for others, by others
        assert line_with(app, " 104 ").split()[:3] == ["0", "B", "104"]
        assert "9.77 KiB          9.77 KiB              0 B  [ended]" in line_with(app, " 104 ")
        assert f"{HANDED * 4} KiB         9.77 KiB  worker-1" in line_with(app, "worker-1")
        view.move_to(list(view.order).index(101))
        await tick(app, pilot)
        assert "101 worker-1: 9.77 KiB to 104 [ended], 360 KiB from 102 worker-2" in line_with(
            app, " to 104"
        )
        # What it has freed is no matter of limits, but who holds nothing is not in the way.
        app.state.change(search="cache_lookup")
        await tick(app, pilot)
        assert list(view.order) == [102]
        app.state.change(search="")
        await press(app, pilot, "1")
        await tick(app, pilot)
        assert app.state.picture.snapshot.threads is None


@on_live_screen()
async def test_threads_while_frozen_and_another_program(
    app: LiveApp, pilot: Pilot[int], source: FakeSource
) -> None:
    """What was not asked for before is not there; the rest is as ever."""
    taken = source.taken
    await press(app, pilot, "space", "7")
    assert source.taken == taken
    assert "worker-2" in shown(app)
    assert "freed by other threads" not in shown(app)
    await press(app, pilot, "space")
    await tick(app, pilot)
    assert app.state.picture.snapshot.threads is not None
    await press(app, pilot, *"4wwww")
    source.table = LiveTable(source.table.stacks)
    source.table.cohorts.begin(source.now_ns)
    source.target = replace(source.target, command="other", exec_count=1)
    source.allocate(LOG, 1000, tid=103)
    await tick(app, pilot)
    assert nodes_of(app).weight(ROOT) == own(app, "append_log") == 1000
    assert nodes_of(app).tree.steps[ROOT].name == "other"
    await press(app, pilot, "7")
    assert app.state.picture.content.order == [103]


@on_live_screen()
async def test_details(app: LiveApp, pilot: Pilot[int]) -> None:
    for stack, words in (
        (CACHE, f"at heap peak: 120 KiB (20.7 %)   freed by other threads {HANDED} (75.0 %)"),
        (LEAK, "at heap peak: 375 KiB (64.6 %)"),
        (PAGE, f"at heap peak: 48.8 KiB (8.4 %)   temporary {SECONDS} (100.0 %)"),
    ):
        app.state.open_details(stack)
        await tick(app, pilot)
        assert line_with(app, "at heap peak:") == f" {words}"
        await press(app, pilot, "escape")


async def test_peak_in_the_header_and_temporary_column(source: FakeSource) -> None:
    source.free(source.allocate(LOG, 7))
    source.now_ns += 34_000_000_000
    async with live(source, (180, 40)) as (app, pilot):
        assert "peak 581 KiB 35 s ago" in text_of(app)[1]
        assert "50.0 %" in line_with(app, "append_log")
        app.screen.action_sort_by("temporary")
        await tick(app, pilot)
        assert "append_log" in next(line for line in text_of(app) if line.startswith("›"))


async def test_estimates_are_marked(tmp_path: Path) -> None:
    source = FakeSource(STACKS, tmp_path, sample_bytes=512)
    source.allocate(LOG, 1 << 20)
    source.free(source.allocate(PAGE, 1 << 20))
    source.pass_second()
    async with live(source, (180, 40)) as (app, pilot):
        assert "peak ~2.00 MiB" in text_of(app)[1]
        await press(app, pilot, *"4wwww")
        assert "~2.00 MiB" in line_with(app, "▾ shop-server")
        await press(app, pilot, "7")
        assert "~1.00 MiB" in line_with(app, "worker-1")
