"""Sizes and durations, read and written."""

from collections.abc import Callable
from typing import Any

import pytest

from tracelloc import text as module
from tracelloc.text import printable

CASES = {
    module.parse_size: {
        "0": 0, "4096": 4096, "4k": 4096, "4K": 4096, "4KiB": 4096, "4kb": 4096, "8MiB": 8 << 20,
        "1.5g": 3 << 29, "2t": 2 << 40, " 7 B ": 7, "15.5EiB": 31 << 59,
    },
    module.parse_duration: {
        "0": 0, "10": 10, "1.5": 1.5, ".5s": 0.5, "500ms": 0.5, "30s": 30, "5m": 300, "5min": 300,
        "2h": 7200, "1d": 86400, "250us": 0.00025, "7ns": 7e-9, "1h30m": 5400, "2 m 48 s": 168,
        "3 h 05 m": 11_100, "20 ms": 0.02,
    },
    module.format_size: {
        0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1.00 KiB", 1536: "1.50 KiB",
        10 * 1024 - 1: "10.0 KiB", 10240: "10.0 KiB", 102400 - 20: "100 KiB",
        1023 << 10: "1023 KiB", (1 << 20) - 1: "1.00 MiB", 3407872: "3.25 MiB",
        100977868: "96.3 MiB", 5 << 40: "5.00 TiB", -1536: "-1.50 KiB", 3 << 60: "3.00 EiB",
    },
    module.format_duration: {
        -1: "0 s", 0: "0 s", 0.00025: "0.25 ms", 0.02: "20 ms", 0.1: "0.1 s", 0.44: "0.4 s",
        2: "2 s", 9.94: "9.9 s", 9.96: "10 s", 45.2: "45 s", 59.9: "1 m", 168: "2 m 48 s",
        300: "5 m", 362: "6 m 02 s", 3599.9: "1 h", 5400: "1 h 30 m", 11_100: "3 h 05 m",
        86_400: "1 d", 200_000: "2 d 07 h",
    },
    module.format_estimate: {
        5: "5 s", 100: "2 m", 11_119: "3 h 05 m", 3 * 86_400 + 7200: "3 d 02 h",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("function", "given"),
    [pytest.param(f, x, id=f"{f.__name__}-{x}") for f, cases in CASES.items() for x in cases],
)
def test_figures_and_texts(function: Callable[[Any], Any], given: str | float) -> None:
    assert function(given) == pytest.approx(CASES[function][given])


REFUSED = {
    module.parse_size: ["", "k", "-1", "1e3", "4kk", "0x10", "16EiB", "١٢q", "1.2.3"],
    module.parse_duration: ["", "s", "-1", "1w", "1h30", "1h x 2m", "1e3", "nan", "inf"],
}


@pytest.mark.parametrize("function", REFUSED)
def test_refused(function: Callable[[str], float]) -> None:
    words = r"size|large" if function is module.parse_size else "is not a duration"
    for text in REFUSED[function]:
        with pytest.raises(ValueError, match=words):
            function(text)


def test_words() -> None:
    assert [module.format_percent(n) for n in (0, 0.1449, 1)] == ["0.0 %", "14.5 %", "100.0 %"]
    assert module.format_percent(0.05, 0) == "5 %"
    assert module.plural(1, "free") == "1 free"
    assert module.plural(0, "free") == "0 frees"
    assert printable("std::vec<ünï>") == "std::vec<ünï>"
    assert printable("a\x1b[31mb\nc\x9b") == "a\\x1b[31mb\\x0ac\\x9b"
    assert printable("\u202eevil\u2066") == "\\u202eevil\\u2066"
    assert printable("\udcff") == "\\udcff"
