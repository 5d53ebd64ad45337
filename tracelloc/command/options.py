"""The command line, checked once and then frozen."""

from __future__ import annotations

import argparse
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Final

from tracelloc.capture.attach import Method
from tracelloc.capture.bpf import CaptureConfig
from tracelloc.command.outputs import OutputFile
from tracelloc.command.parser import parse_trace
from tracelloc.errors import UsageError
from tracelloc.export import FOLDED, PPROF, exporter_for
from tracelloc.live.address import ListenAddress, PushConfig
from tracelloc.report.sections import wanted_by
from tracelloc.snapshots.snapshot import Wanted
from tracelloc.target.allocators import MallocChoice
from tracelloc.text import NS_PER_S
from tracelloc.tracing.config import TraceConfig
from tracelloc.views.profile import METRICS
from tracelloc.watching import WatchOptions, watch_of

_LARGEST_RING: Final = 1 << 30
_MOST_PROCESSES: Final = 1024
_SPARSEST: Final = 1 << 40
_LONGEST_S: Final = 100 * 365 * 86400.0


class Mode(Enum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"
    HEADLESS = "headless"
    """Nothing; progress goes to standard error."""
    TUI = "tui"
    """A screen that takes keys; nothing else is written there."""

    @property
    def reports(self) -> bool:
        """Whether reports are written."""
        return self in (Mode.TEXT, Mode.JSON)


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. Times in seconds or ns, sizes in bytes, as named."""

    pid: int | None
    """None: the user chooses from a list, only with a screen; or there is a command or a name."""
    name: str | None
    """Name of the process to find."""
    as_root: bool
    """A command runs with our rights, not with those of who called sudo."""
    program_output: Path | None
    """Where a copy goes of what a program writes that is started beside the screen."""
    command: tuple[str, ...]
    """The program to start and trace, with its arguments; empty: a running one is traced."""
    mode: Mode
    report: Path | None
    """Where reports go; None: the standard stream that is free for them."""
    show: frozenset[str]
    """Sections that reports have beside the usual ones."""
    top: int
    min_age_ns: int | None
    interval_s: float
    count: int | None
    duration_s: float | None
    outputs: tuple[OutputFile, ...]
    listen: ListenAddress | None
    push: PushConfig | None
    trace: TraceConfig
    """Without what ``allocators_paths`` name."""
    allocators_paths: tuple[Path, ...]
    """Files that name more allocators."""
    filters_paths: tuple[Path, ...]
    filter_groups: tuple[tuple[str, bool], ...]
    """Groups of filters to switch, in this order."""
    use_filters: bool
    """Whether the shipped and the user's own filters apply."""
    sources: tuple[tuple[str, str], ...]
    """Directories of source files: as compiled, and where they are now."""
    short_names: bool
    watch: WatchOptions
    since_mark: bool
    """Files hold what has come since the mark, once one is set."""

    @property
    def wanted(self) -> Wanted:
        """What snapshots must have for the reports and files."""
        files = (output.exporter.wanted for output in self.outputs)
        return reduce(or_, files, wanted_by(self.show) | Wanted(self.top, self.min_age_ns))


def parse_options(arguments: Sequence[str], *, terminal: bool = False) -> Options:
    """Options from the arguments after the program's name. Raises UsageError.

    ``terminal``: standard input, output and error are one that a screen can be drawn on.
    """
    options, command = _split(arguments)
    given = parse_trace(options)
    _check(given, command)
    outputs, push = outputs_of(given), push_of(given)
    watch = watch_of(given)
    terminal = terminal and not (watch.rules or watch.on_leak)
    mode = _mode(given, bool(outputs or given.listen or push), terminal)
    _check_mode(given, command, mode)
    return Options(
        pid=given.pid,
        name=given.name,
        as_root=given.as_root,
        program_output=given.program_output,
        command=command,
        mode=mode,
        report=given.report,
        show=given.show,
        top=given.top,
        min_age_ns=None if given.age is None else round(given.age * NS_PER_S),
        interval_s=given.interval,
        count=given.count,
        duration_s=given.duration,
        outputs=outputs,
        listen=given.listen,
        push=push,
        trace=_config_of(given),
        allocators_paths=tuple(given.allocators),
        filters_paths=tuple(given.filters),
        filter_groups=tuple(given.filter_group),
        use_filters=not given.no_filters,
        sources=tuple(given.sources),
        short_names=given.short_names,
        watch=watch,
        since_mark=given.since_mark,
    )


def _config_of(given: argparse.Namespace) -> TraceConfig:
    capture = CaptureConfig(
        events_size_bytes=_ring_size(given.events_size),
        spill_entries=given.overflow_entries,
        min_block_bytes=given.min_size,
        max_block_bytes=given.max_size,
        sample_bytes=given.sample,
        use_rows=given.stacks != "fp",
        max_frames=given.max_frames,
        trace_mappings=given.mmap,
        follow=given.follow is not None,
    )
    return TraceConfig(
        capture=capture,
        selection=MallocChoice(given.malloc, mappings=given.mmap),
        method=None if given.attach == "auto" else Method(given.attach),
        temporary=given.temporary,
        most_processes=given.follow_limit,
        followed_names=given.follow or frozenset(),
        debug=given.debug,
    )


def push_of(given: argparse.Namespace) -> PushConfig | None:
    """Where to push to. Raises UsageError."""
    if given.push is None:
        if given.push_name is not None or given.push_label:
            raise UsageError("--push-name and --push-label need --push URL")
        return None
    if not 1 <= given.push_interval <= 86400:
        raise UsageError("--push-interval must be between 1s and a day")
    url, authorization = given.push
    labels = tuple(given.push_label)
    return PushConfig(url, authorization, given.push_interval, given.push_name, labels)


def outputs_of(given: argparse.Namespace) -> tuple[OutputFile, ...]:
    """The files that were asked for. Raises UsageError."""
    named = ((FOLDED, getattr(given, "flamegraph", None)), (PPROF, getattr(given, "pprof", None)))
    chosen = [(exporter, path) for exporter, path in named if path]
    chosen += [(exporter_for(path), path) for path in given.output]
    metric = METRICS[given.metric]
    return tuple(OutputFile(Path(path), kind, metric, given.output_mode) for kind, path in chosen)


def _check(given: argparse.Namespace, command: tuple[str, ...]) -> None:
    """Raises UsageError for what makes no sense."""
    if given.pid is not None and given.name is not None:
        raise UsageError("-p and -n both name a process", hint="leave out one")
    if command and not given.pid is given.name is None:
        raise UsageError(
            "either a command is traced or a process", hint="leave out -p and -n, or -- CMD"
        )
    longest_s = max(given.interval, given.duration or 0, given.age or 0)
    least, most, sample = given.min_size, given.max_size, given.sample
    for wrong, message in (
        (given.interval < 0.01, "--interval must be at least 10ms"),
        (longest_s > _LONGEST_S, "times must be below a hundred years"),
        (given.duration == 0, "--duration must be more than 0"),
        (
            most is not None and most < least,
            "--max-size is below --min-size: everything would be ignored",
        ),
        (
            sample is not None and not 0 < sample <= _SPARSEST,
            "--sample must be between 1 and 1TiB",
        ),
        (given.follow_limit > _MOST_PROCESSES, f"--follow-limit must be at most {_MOST_PROCESSES}"),
    ):
        if wrong:
            raise UsageError(message)


def _check_mode(given: argparse.Namespace, command: tuple[str, ...], mode: Mode) -> None:
    """Raises UsageError for what makes no sense with or without a screen."""
    if given.pid is given.name is None and not command and mode is not Mode.TUI:
        raise UsageError(
            "a process is required",
            hint="-p PID or -n NAME trace a running one, -- CMD starts one",
        )
    if given.program_output is not None and not (command and mode is Mode.TUI):
        raise UsageError(
            "--program-output copies the output of a program that the screen shows",
            hint="without a screen, redirect the program's own output",
        )


def _split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """(our options, the command after ``--``)"""
    arguments = list(arguments)
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    if at + 1 == len(arguments):
        raise UsageError("no command follows --", hint="write tracelloc -- CMD [ARG...]")
    return arguments[:at], tuple(arguments[at + 1 :])


def _mode(given: argparse.Namespace, has_other_ways: bool, terminal: bool) -> Mode:
    if given.json:
        return Mode.JSON
    # Reports that are counted were asked for.
    if given.tui or (terminal and not given.text and given.count is None):
        if given.tui and not terminal:
            raise UsageError(
                "--tui needs a terminal as standard input, output and error",
                hint="run it in a terminal, or write reports by --text or --json",
            )
        return Mode.TUI
    if given.text or not has_other_ways or given.count is not None:
        return Mode.TEXT
    return Mode.HEADLESS


def _ring_size(size_bytes: int) -> int:
    """The next power of two of at least a page, as the kernel wants it."""
    if not 0 < size_bytes <= _LARGEST_RING:
        raise UsageError("--events-size must be between 1 and 1GiB")
    return max(mmap.PAGESIZE, 1 << (size_bytes - 1).bit_length())
