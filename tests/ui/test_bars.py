"""Histograms: figures, and what choosing a row says."""

from textual.pilot import Pilot

from tests.ui.screens import MIB, ViewApp, on_screen, text_of
from tracelloc.show.analysis.histograms import AGE_STEPS_S, Bin
from tracelloc.text import NS_PER_S
from tracelloc.ui.histogramviews import AGES as AGES_VIEW
from tracelloc.ui.histogramviews import SIZES as SIZES_VIEW
from tracelloc.ui.histogramviews import (
    age_label,
    bar_rows,
    histogram_columns,
    size_label,
    size_rows,
)
from tracelloc.ui.tableview import Table
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
