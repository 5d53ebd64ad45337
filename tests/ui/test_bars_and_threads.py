"""Histograms and threads: figures, sorting, what choosing a row says."""

from textual.pilot import Pilot

from tests.ui.screens import (
    MIB,
    ViewApp,
    on_screen,
    styled,
    text_of,
)
from tracelloc.model.figures import ThreadActivity, ThreadFlow, ThreadWork
from tracelloc.show.analysis.histograms import (
    AGE_STEPS_S,
    Bin,
    ThreadRow,
    ThreadStat,
    thread_rows,
)
from tracelloc.text import NS_PER_S
from tracelloc.ui.histogramviews import AGES as AGES_VIEW
from tracelloc.ui.histogramviews import (
    COLUMNS,
    age_label,
    bar_rows,
    histogram_columns,
    size_label,
    size_rows,
    thread_table,
)
from tracelloc.ui.histogramviews import SIZES as SIZES_VIEW
from tracelloc.ui.histogramviews import THREADS as THREADS_VIEW
from tracelloc.ui.tableview import Table, TableRows
from tracelloc.ui.view import Settings, Sorting

BINS = [
    Bin(0, 0, 3, 0),
    Bin(1, 1, 0, 0),
    Bin(512, 1023, 120, 80_000),
    Bin(1024, 2047, 90_000, 120_000_000),
    Bin(MIB // 2, MIB - 1, 3, 2_000_000),
    Bin(1 << 43, (1 << 44) - 1, 1, 1 << 43),
]
FREQUENT = [Bin(1 << 43, 1 << 43, 1, 1 << 43), Bin(1536, 1536, 70_000, 70_000 * 1536)]
AGES = [
    Bin(low * NS_PER_S, high and high * NS_PER_S, 10 * at, 1000 * at * at)
    for at, (low, high) in enumerate(zip(AGE_STEPS_S, [*AGE_STEPS_S[1:], None], strict=True))
]
HELD = [
    ThreadStat(4242, "api-server", 52 * MIB, 1200, 0.7, 2 * MIB),
    ThreadStat(4243, "tokio-runtime-w", 10 * MIB, 90_000, 0.2, -3000),
    ThreadStat(4250, None, 5 * MIB, 3, 0.1, 0),
    ThreadStat(4_194_303, "漢字", 0, 0, 0.0, None),
]
ACTIVITY = ThreadActivity(
    (
        ThreadWork(4242, "api-server", 90 * MIB, 5000, 40 * MIB, 2900, 2 * MIB, 100, MIB, 30),
        ThreadWork(4243, "tokio-runtime-w", 20 * MIB, 99_000, 11 * MIB, 9060, MIB, 60, 0, 0),
        ThreadWork(4250, None, 5 * MIB, 3, 0, 0, 0, 0, 0, 0),
        ThreadWork(0, None, 4096, 4, 0, 0, 0, 0, 2 * MIB, 130),
        ThreadWork(4300, "reaper", 0, 0, 3 * MIB, 40, 0, 0, 0, 0),
    ),
    (ThreadFlow(0, 4242, 100, 2 * MIB), ThreadFlow(4242, 4243, 30, MIB // 2),
     ThreadFlow(0, 4243, 30, MIB // 2)),
    {4242: "api-server", 4243: "tokio-runtime-w", 4300: "reaper"},
)  # fmt: skip
THREADS = thread_rows(HELD, ACTIVITY, narrowed=False)


def threads_by(column: str, threads: list[ThreadRow] = THREADS) -> TableRows:
    return thread_table(threads, ACTIVITY, Sorting(column, column != "thread"), "")


@on_screen(lambda: Table(histogram_columns("size")))
async def test_choosing_a_bar(app: ViewApp, pilot: Pilot[None], view: Table) -> None:
    view.show(bar_rows(size_rows(BINS, FREQUENT), size_label))
    await pilot.press("down", "down", "enter", "end", "enter", "up", "up", "enter")
    chosen = [message.key[:2] for message in app.sent]
    assert chosen == [(512, 1023), (1536, 1536)], "no heading"
    view.show(bar_rows(size_rows(BINS[2:], FREQUENT), size_label), at_once=True)
    await pilot.press("home", "down", "up")
    view.show(bar_rows(size_rows(BINS, FREQUENT), size_label), at_once=True)
    assert view.key == (512, 1023, 0), "the cursor stays on its bar"
    await pilot.pause()
    assert "8 TiB - 16 TiB" in text_of(app)[6]
    assert "0.0 %" in text_of(app)[3]
    view.show(bar_rows(size_rows(BINS, FREQUENT), size_label, Sorting("count")), at_once=True)
    await pilot.pause()
    assert "blocks ▼" in text_of(app)[0]
    assert "99.9 %" in text_of(app)[4]
    settings = SIZES_VIEW.choose((512, 1023, 0), Settings(SIZES_VIEW))
    assert isinstance(settings, Settings)
    limits = settings.limits
    assert (limits.min_size_bytes, limits.max_size_bytes) == (512, 1023)


@on_screen(lambda: Table(histogram_columns("size")))
async def test_equal_sizes_are_two_rows(app: ViewApp, pilot: Pilot[None], view: Table) -> None:
    """A bin of one size and that size among the frequent ones: the cursor passes both."""
    rows = bar_rows(size_rows([Bin(1, 1, 5, 5)], [Bin(1, 1, 5, 5)]), size_label)
    view.show(rows)
    await pilot.press("end")
    assert (view.cursor, view.key) == (2, (1, 1, 1))
    view.show(rows, at_once=True)
    assert view.cursor == 2
    assert text_of(app)[1].split()[-2:] == text_of(app)[3].split()[-2:]
    assert "100.0 %" in text_of(app)[1], "what is counted twice is one whole"


@on_screen(lambda: Table(histogram_columns("age")))
async def test_choosing_an_age(app: ViewApp, pilot: Pilot[None], view: Table) -> None:
    view.show(bar_rows(AGES, age_label))
    await pilot.press("down", "enter", "end", "enter")
    assert [message.key[:2] for message in app.sent] == [
        (NS_PER_S, 3 * NS_PER_S), (86_400 * NS_PER_S, None)
    ]  # fmt: skip
    assert app.sent[0].view is view
    settings = AGES_VIEW.choose(app.sent[0].key, Settings(AGES_VIEW))
    assert isinstance(settings, Settings)
    assert settings.limits.min_age_ns == NS_PER_S
    assert settings.limits.max_age_ns == 3 * NS_PER_S - 1, "what is older is in the next one"
    settings = AGES_VIEW.choose(app.sent[1].key, Settings(AGES_VIEW))
    assert isinstance(settings, Settings)
    assert settings.limits.min_age_ns == 86_400 * NS_PER_S
    assert settings.limits.max_age_ns is None


@on_screen(lambda: Table(COLUMNS))
async def test_sorting_threads(app: ViewApp, pilot: Pilot[None], view: Table) -> None:
    view.show(threads_by("bytes", THREADS[:4]))
    await pilot.press("end")
    view.show(threads_by("growth", THREADS[:4]), at_once=True)
    assert view.order == [4242, 4250, 4_194_303, 4243]
    assert view.key == 4_194_303, "the cursor stays on its thread"
    await pilot.click(view, offset=(52, 0))
    assert [message.key for message in app.sent] == ["count"]
    app.sent.clear()
    view.show(threads_by("count", THREADS[:4]), at_once=True)
    assert view.order == [4243, 4242, 4250, 4_194_303]
    view.show(threads_by("thread", THREADS[:4]), at_once=True)
    assert view.order == [4242, 4243, 4250, 4_194_303]
    view.show(threads_by("count", THREADS[:3]), at_once=True)
    assert view.order == [4243, 4242, 4250]
    await pilot.press("home", "enter")
    assert [message.key for message in app.sent] == [4243]
    await pilot.click(view, offset=(20, 2), times=2)
    assert [message.key for message in app.sent] == [4243, 4242]
    assert any("4242" in text for text in styled(app, "bold"))
    assert THREADS_VIEW.choose(0, Settings(THREADS_VIEW)) is None, "what is nobody's"
    settings = THREADS_VIEW.choose(4242, Settings(THREADS_VIEW))
    assert isinstance(settings, Settings)
    assert settings.limits.tid == 4242
