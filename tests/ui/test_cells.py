"""Text in cells: widths are exact whatever the text is."""

import time

import pytest
from rich.cells import cell_len

from tests.ui.screens import HOSTILE
from tracelloc.text import signed_size
from tracelloc.ui.tableview import arrow, bar, crop, fit, sparkline


@pytest.mark.parametrize("name", [*HOSTILE, "x" * 10_000 + "漢"], ids=range(len(HOSTILE) + 1))
def test_exact_widths(name: str) -> None:
    """Ten thousand characters cost no more."""
    started = time.process_time()
    for width in (0, 1, 2, 3, 7, 40, *[100] * 100):
        for shown in (fit(name, width), fit(name, width, to_right=True)):
            assert cell_len(shown) == width
            assert len(shown) <= 8 * width + 8
            assert shown.isprintable() or "\u200d" in shown
        assert cell_len(crop(name, width)) <= width
    assert time.process_time() - started < 0.5


def test_texts() -> None:
    for shown, expected in (
        (crop("abcdef", 6), "abcdef"), (crop("abcdefg", 6), "abcde…"),
        (fit("漢字漢字", 8), "漢字漢字"), (fit("漢字漢字", 7), "漢字漢…"),
        (fit("漢字漢字", 6), "漢字 …"), (fit("ab", 5, to_right=True), "   ab"),
        (fit("\x1b", 6), "\\x1b  "),
        (bar(1, 4), "████"), (bar(0.5, 4), "██  "), (bar(1 / 32, 4), "▏   "),
        (bar(1e-9, 4), "▏   "), (bar(0, 4), "    "), (bar(7, 3), "███"), (bar(-1, 3), "   "),
        (bar(0.5, 0), ""), (sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8), "▁▂▃▄▅▆▇█"),
        (sparkline([9, 0, 7], 2), "▁█"), (sparkline([0, 0], 4), "  ▁▁"), (sparkline([], 3), "   "),
        (sparkline([5, -5, 5], 3), "█▁█"), (signed_size(0), "0 B"), (signed_size(5), "+5 B"),
        (signed_size(-2048), "-2.00 KiB"), ("".join(arrow(n) for n in (1, 0, -1)), "▲=▼"),
    ):  # fmt: skip
        assert shown == expected
