"""Text for people: printable names, and parsing and formatting of sizes, times and counts.

Names from the target are hostile until proven printable.
"""

import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_S: Final = 1.0  # How long something may take before progress is shown

# Characters of a readable name; a name that would be longer is left as it is.
LONGEST_TEXT: Final = 64 << 10

# C0 and C1 controls, surrogates, line separators, and what turns the writing direction.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(name: str) -> str:
    """Returns the name with escapes for every character that could control a terminal."""
    return _UNSAFE.sub(lambda match: _escape(match[0]), name)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines to standard output; characters that UTF-8 cannot encode become escapes."""
    text = "".join(f"{line}\n" for line in lines)
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


_STATUS_IS_SHOWN: Final = threading.Event()


def show_status(text: str) -> None:
    """Shows a status line on standard error, a terminal, in place of the last status line."""
    _STATUS_IS_SHOWN.set()
    print(f"\rtracelloc: {text}\x1b[K", end="", file=sys.stderr, flush=True)


def clear_status() -> None:
    """Removes the status line, if one is shown."""
    if _STATUS_IS_SHOWN.is_set():
        _STATUS_IS_SHOWN.clear()
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def leave_status() -> None:
    """Moves below the status line, if one is shown."""
    if _STATUS_IS_SHOWN.is_set():
        _STATUS_IS_SHOWN.clear()
        print(file=sys.stderr)


class Progress:
    """Reports slow steps on standard error, even while they block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""
        self._due = self._ended = self._shown = False
        self._timer = threading.Timer(PATIENCE_S, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def note(self, text: str) -> None:
        """Sets the current step, which is shown once all steps together have taken a second."""
        with self._lock:
            self._text = text
            if self._due:
                self._show()

    def end(self) -> None:
        """Removes the progress line; no further step is shown."""
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._shown:
                leave_status()

    def _expire(self) -> None:
        with self._lock:
            self._due = True
            if self._text and not self._ended:
                self._show()

    def _show(self) -> None:
        self._shown = True
        if sys.stderr.isatty():
            show_status(f"{self._text}…")
        else:
            print(f"tracelloc: {self._text}…", file=sys.stderr, flush=True)


@contextmanager
def progress_of(text: str) -> Iterator[Progress]:
    """Reports a step on standard error if it is slow."""
    progress = Progress()
    progress.note(text)
    try:
        yield progress
    finally:
        progress.end()


NS_PER_S: Final = 1_000_000_000

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtpe]?)(i?b)?", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_DURATION = re.compile(rf"({_NUMBER.pattern})\s*(ns|us|ms|min|[smhd])", re.IGNORECASE)
_SECONDS: Final = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
# A unit, its seconds, the next smaller unit, its seconds.
_UNITS: Final = (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1))


def parse_size(text: str) -> int:
    """Parses bytes from ``4096``, ``4k``, ``8MiB``, ``1.5g`` (powers of 1024), or ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write bytes, or 4k, 8MiB, 1.5g")
    number, letter = match[1], match[2].lower()
    scale = 1 << (10 * (" kmgtpe".index(letter) if letter else 0))
    size = int(number) * scale if number.isdigit() else round(float(number) * scale)
    if size >= 1 << 64:
        raise ValueError(f"{text!r} is too large: sizes end below 16 EiB")
    return size


def parse_percent(text: str) -> float:
    """Parses a share: 0.05 from ``5`` or ``5%``. Raises ValueError."""
    number = text.strip().removesuffix("%").strip()
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"{text!r} is not a percentage such as 5 or 0.5%")
    return float(number) / 100


def parse_duration(text: str) -> float:
    """Parses seconds from ``500ms``, ``30s``, ``1h 30m`` or a number, or raises ValueError."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _DURATION.findall(text)
    if not parts or _DURATION.sub("", text).strip():
        raise ValueError(f"{text!r} is not a duration: write seconds, or 500ms, 30s, 5m, 1h30m")
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)


def format_size(size_bytes: int) -> str:
    """Formats bytes with three digits in binary units: ``512 B``, ``3.25 MiB``, ``96.3 MiB``."""
    sign = "-" if size_bytes < 0 else ""
    value = float(abs(size_bytes))
    if value < 1024:
        return f"{sign}{abs(size_bytes)} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        value /= 1024
        # 1023.5 and more would be shown as 1024 of this unit.
        if value < 1023.5 or unit == "EiB":
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{sign}{value:.{digits}f} {unit}"


def signed_size(size_bytes: int) -> str:
    """Formats bytes with their sign: ``+1.10 MiB``, ``-3 B``; zero has none."""
    return f"+{format_size(size_bytes)}" if size_bytes > 0 else format_size(size_bytes)


def format_time(time_s: float) -> str:
    """Formats seconds since 1970 as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def format_duration(seconds: float) -> str:
    """Formats seconds: ``20 ms``, ``0.4 s``, ``45 s``, ``2 m 48 s``, ``3 h 05 m``, ``2 d``."""
    if 0 < seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 9.95:
        return f"{max(round(seconds, 1), 0):g} s"
    whole = round(seconds)
    for unit, unit_s, smaller, smaller_s in _UNITS:
        if whole >= unit_s:
            rest = whole % unit_s // smaller_s
            return f"{whole // unit_s} {unit}" + (f" {rest:02} {smaller}" if rest else "")
    return f"{whole} s"


def format_estimate(seconds: float) -> str:
    """Formats seconds, from 90 on in whole minutes: ``40 s``, ``12 m``, ``3 h 05 m``."""
    return format_duration(seconds if seconds < 90 else round(seconds / 60) * 60)


def format_percent(share: float, digits: int = 1) -> str:
    """Formats a share: ``14.5 %`` for 0.145."""
    return f"{100 * share:.{digits}f} %"


def about_of(sample_bytes: int | None) -> str:
    """Returns the prefix of figures: ``~`` if blocks are sampled and figures are estimates."""
    return "" if sample_bytes is None else "~"


def sampling_of(sample_bytes: int) -> str:
    """Formats a sampling rate: ``one in 512 KiB``."""
    return f"one in {format_size(sample_bytes)}" if sample_bytes else "weighed by the program"


def plural(count: int, noun: str) -> str:
    """Formats a count with its noun: ``1 free``, ``1,200 frees``, ``3 processes``."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}{ending}"


def amount(size_bytes: int, count: int, noun: str = "block", about: str = "") -> str:
    """Formats ``1.5 MiB in 20 blocks``; ``about`` is ``~`` if both figures are estimates."""
    return f"{about}{format_size(size_bytes)} in {about}{plural(count, noun)}"


def split_arguments(text: str) -> list[str]:
    """Splits a list of generic arguments at its outermost commas."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in "<([{":
            depth += 1
        elif letter in ")]}" or (letter == ">" and text[at - 1 : at] not in ("-", "=")):
            depth -= 1
        elif letter == "," and not depth:
            found.append(text[start:at].strip())
            start = at + 1
    return [*found, text[start:].strip()]
