"""The command line, checked once and then frozen."""

from __future__ import annotations

import argparse
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NoReturn

from tracelloc import __version__
from tracelloc.attach import Method
from tracelloc.errors import UsageError
from tracelloc.outputs import Output
from tracelloc.units import NS_PER_S, parse_duration, parse_size

_LARGEST_RING: Final = 1 << 30
_SPARSEST: Final = 1 << 40
_LONGEST_S: Final = 100 * 365 * 86400.0


class Mode(Enum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"
    HEADLESS = "headless"
    """Nothing; progress goes to standard error."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. Times in seconds or ns, sizes in bytes, as named."""

    pid: int
    mode: Mode
    top: int
    min_age_ns: int | None
    interval_s: float
    count: int | None
    duration_s: float | None
    outputs: tuple[Output, ...]
    events_size_bytes: int
    min_block_bytes: int
    max_block_bytes: int | None
    sample_bytes: int | None
    allocator: str | None
    method: Method | None
    """None: the best that the kernel has."""
    filters_path: Path | None
    use_filters: bool
    debug: bool


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line as one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint="tracelloc --help shows the options")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, defaults and units in its help."""
    parser = _Parser(
        prog="tracelloc",
        usage="tracelloc -p PID [options]",
        description="Shows what a running process has allocated and not freed, and which "
        "call stacks allocated it. The process needs no preparation and is left as it was.",
        epilog="SIZE is bytes, or 4k, 8MiB, 1.5g (powers of 1024). AGE and S are seconds, or "
        "500ms, 30s, 5m, 2h. Ctrl-C ends tracing; SIGUSR1 writes the files and goes on.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.epilog = _wrapped(parser.epilog or "")
    add = parser.add_argument
    add("-p", "--pid", type=_positive, required=True, metavar="PID", help="process to trace")
    views = parser.add_mutually_exclusive_group()
    views.add_argument(
        "--text", action="store_true", help="text reports on standard output (default)"
    )
    views.add_argument(
        "--json", action="store_true", help="JSON instead: one object per report, on one line"
    )
    add("--top", type=_count, default=2, metavar="N", help="entries per section (default 2)")
    add(
        "--age",
        type=_duration,
        metavar="AGE",
        help="add a section of the largest allocations at least this old",
    )
    add(
        "--interval",
        type=_duration,
        default=1.0,
        metavar="S",
        help="time between reports (default 1s)",
    )
    add("--count", type=_positive, metavar="N", help="end after N reports")
    add(
        "--duration",
        type=_duration,
        metavar="S",
        help="end after this time (default: when the process ends, or Ctrl-C)",
    )
    add(
        "--flamegraph",
        metavar="FILE",
        help="write outstanding bytes as folded stacks to FILE at the end and on SIGUSR1; "
        "without --text or --json nothing but progress is shown",
    )
    add(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help="write FILE at the same moments; its suffix names the format: .fg, .folded; "
        "can be given several times",
    )
    add(
        "--min-size",
        type=_size,
        default=0,
        metavar="SIZE",
        help="ignore smaller allocations (default 0)",
    )
    add(
        "--max-size",
        type=_size,
        metavar="SIZE",
        help="ignore larger allocations (default: no limit)",
    )
    add(
        "--sample",
        type=_size,
        metavar="SIZE",
        help="report about one allocation per SIZE allocated bytes and estimate the rest, for "
        "targets that must not pay for every stack (default: report all, exactly)",
    )
    add(
        "--allocator",
        metavar="NAME|PATH",
        help="trace only the allocator in files whose name contains NAME, or in PATH "
        "(default: every one found)",
    )
    add(
        "--filters",
        type=Path,
        metavar="FILE",
        help="TOML file with more rules on which frames to hide",
    )
    add("--no-filters", action="store_true", help="show every frame")
    add(
        "--events-size",
        type=_size,
        default=8 << 20,
        metavar="SIZE",
        help="buffer between probes and reader (default 8MiB); larger if events are lost",
    )
    add(
        "--attach",
        choices=["auto", *(method.value for method in Method)],
        default="auto",
        help="how probes are attached: uprobe_multi links (Linux 6.6) or perf events "
        "(default: links where the kernel has them)",
    )
    add("--debug", action="store_true", help="show tracebacks and compiler messages")
    add("--version", action="version", version=f"tracelloc {__version__}")
    return parser


def parse_options(arguments: Sequence[str]) -> Options:
    """Options from the arguments after the program's name. Raises UsageError."""
    given = build_parser().parse_args(arguments)
    if given.interval < 0.01:
        raise UsageError("--interval must be at least 10ms")
    if max(given.interval, given.duration or 0, given.age or 0) > _LONGEST_S:
        raise UsageError("times end at a hundred years")
    if given.duration is not None and given.duration <= 0:
        raise UsageError("--duration must be more than 0")
    if given.max_size is not None and given.max_size < given.min_size:
        raise UsageError("--max-size is below --min-size: nothing would be left")
    if given.sample is not None and not 0 < given.sample <= _SPARSEST:
        raise UsageError("--sample must be between 1 and 1TiB")
    outputs = [Output.flamegraph(given.flamegraph)] if given.flamegraph else []
    outputs.extend(Output.by_suffix(path) for path in given.output)
    return Options(
        pid=given.pid,
        mode=_mode(given, bool(outputs)),
        top=given.top,
        min_age_ns=None if given.age is None else round(given.age * NS_PER_S),
        interval_s=given.interval,
        count=given.count,
        duration_s=given.duration,
        outputs=tuple(outputs),
        events_size_bytes=_ring_size(given.events_size),
        min_block_bytes=given.min_size,
        max_block_bytes=given.max_size,
        sample_bytes=given.sample,
        allocator=given.allocator,
        method=None if given.attach == "auto" else Method(given.attach),
        filters_path=given.filters,
        use_filters=not given.no_filters,
        debug=given.debug,
    )


def _mode(given: argparse.Namespace, writes_files: bool) -> Mode:
    if given.json:
        return Mode.JSON
    # Reports that are counted were asked for.
    if given.text or not writes_files or given.count is not None:
        return Mode.TEXT
    return Mode.HEADLESS


def _ring_size(size_bytes: int) -> int:
    """The next power of two of at least a page, as the kernel wants it."""
    if not 0 < size_bytes <= _LARGEST_RING:
        raise UsageError("--events-size must be between 1 and 1GiB")
    return max(mmap.PAGESIZE, 1 << (size_bytes - 1).bit_length())


def _wrapped_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Lets argparse show our own sentence instead of the type's name."""

    def checked(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


_duration: Final = _wrapped_type(parse_duration)
_size: Final = _wrapped_type(parse_size)


def _integer(text: str, lowest: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < lowest or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {lowest}")
    return int(text)


def _positive(text: str) -> int:
    return _integer(text, 1)


def _count(text: str) -> int:
    return _integer(text, 0)


def _wrapped(text: str) -> str:
    words, lines = text.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 78:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
