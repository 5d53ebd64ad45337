"""Text in cells: widths are exact whatever the text is."""

import time

import pytest
from rich.cells import cell_len

from tests.ui.screens import HOSTILE
from tracelloc.text import signed_size
from tracelloc.ui.tableview import arrow, bar, crop, fit, right, sparkline


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_exact_widths(name: str) -> None:
    for width in (0, 1, 2, 3, 7, 40, 100):
        for shown in (fit(name, width), right(name, width)):
            assert cell_len(shown) == width
            assert len(shown) <= 8 * width + 8
            assert shown.isprintable() or "\u200d" in shown
        assert cell_len(crop(name, width)) <= width


def test_cut_where_it_says_so() -> None:
    assert crop("abcdef", 6) == "abcdef"
    assert crop("abcdefg", 6) == "abcde…"
    assert fit("漢字漢字", 8) == "漢字漢字"
    assert fit("漢字漢字", 7) == "漢字漢…"
    assert fit("漢字漢字", 6) == "漢字 …"
    assert right("ab", 5) == "   ab"
    assert fit("\x1b", 6) == "\\x1b  "


def test_ten_thousand_characters_cost_no_more() -> None:
    started = time.process_time()
    for _ in range(100):
        fit("x" * 10_000 + "漢", 80)
    assert time.process_time() - started < 0.5


def test_bars() -> None:
    assert bar(1, 4) == "████"
    assert bar(0.5, 4) == "██  "
    assert bar(1 / 32, 4) == "▏   "
    assert bar(1e-9, 4) == "▏   "
    assert bar(0, 4) == "    "
    assert bar(7, 3) == "███"
    assert bar(-1, 3) == "   "
    assert bar(0.5, 0) == ""


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([9, 0, 7], 2) == "▁█"
    assert sparkline([0, 0], 4) == "  ▁▁"
    assert sparkline([], 3) == "   "
    assert sparkline([5, -5, 5], 3) == "█▁█"


def test_figures() -> None:
    assert [signed_size(n) for n in (0, 5, -2048)] == ["0 B", "+5 B", "-2.00 KiB"]
    assert [arrow(n) for n in (1, 0, -1)] == ["▲", "=", "▼"]
