"""Sizes and durations, read and written."""

from __future__ import annotations

import pytest

from tracelloc import text as module
from tracelloc.text import printable


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("4k", 4096), ("4K", 4096), ("4KiB", 4096), ("4kb", 4096),
     ("8MiB", 8 << 20), ("1.5g", 3 << 29), ("2t", 2 << 40), (" 7 B ", 7), ("15.5EiB", 31 << 59)],
)  # fmt: skip
def test_parse_size(text: str, size: int) -> None:
    assert module.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "1e3", "4kk", "0x10", "16EiB", "١٢q", "1.2.3"])
def test_parse_size_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|large"):
        module.parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("10", 10), ("1.5", 1.5), (".5s", 0.5), ("500ms", 0.5), ("30s", 30), ("5m", 300),
     ("5min", 300), ("2h", 7200), ("1d", 86400), ("250us", 0.00025), ("7ns", 7e-9)],
)  # fmt: skip
def test_parse_duration(text: str, seconds: float) -> None:
    assert module.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1", "1w", "1h30m", "1e3", "nan", "inf"])
def test_parse_duration_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        module.parse_duration(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"),
     (10 * 1024 - 1, "10.0 KiB"), (10240, "10.0 KiB"), (102400 - 20, "100 KiB"),
     (1023 << 10, "1023 KiB"), ((1 << 20) - 1, "1.00 MiB"), (3407872, "3.25 MiB"),
     (100977868, "96.3 MiB"), (5 << 40, "5.00 TiB"), (-1536, "-1.50 KiB"), (3 << 60, "3.00 EiB")],
)  # fmt: skip
def test_format_size(size: int, text: str) -> None:
    assert module.format_size(size) == text


def test_format_times() -> None:
    assert module.format_age(682_577_117_136) == "682.6s"
    assert module.format_age(-5) == "0.0s"
    pairs = {0.5: "500ms", 30: "30s", 90: "90s", 300: "5m", 3600: "1h", 5400: "1h30m"}
    assert {module.format_duration(s) for s in pairs} == set(pairs.values())


def test_plural() -> None:
    assert module.plural(1, "free") == "1 free"
    assert module.plural(0, "free") == "0 frees"


def test_printable() -> None:
    assert printable("std::vec<ünï>") == "std::vec<ünï>"
    assert printable("a\x1b[31mb\nc\x9b") == "a\\x1b[31mb\\x0ac\\x9b"
    assert printable("\u202eevil\u2066") == "\\u202eevil\\u2066"
    assert printable("\udcff") == "\\udcff"
