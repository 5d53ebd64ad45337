"""Parses and checks the command line, before any slow import."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelloc.command.parser import parse_trace
from tracelloc.errors import UsageError
from tracelloc.show.export import exporter_for
from tracelloc.text import NS_PER_S, printable

if TYPE_CHECKING:
    from tracelloc.model.snapshotrequest import SnapshotRequest
    from tracelloc.record.session.config import TraceConfig
    from tracelloc.show.alerts.rules import WatchRule
    from tracelloc.show.export.outputfile import OutputFile
    from tracelloc.show.publish.address import ListenAddress, PushConfig
    from tracelloc.system.memorylimits import MemoryGroup

_LARGEST_RING: Final = 1 << 30
_MOST_PROCESSES: Final = 1024
_LEAST_MEMORY: Final = 128 << 20
_LEAST_OVERHEAD: Final = 0.001
_MOST_OVERHEAD: Final = 10
_SPARSEST: Final = 1 << 40
_LONGEST_S: Final = 100 * 365 * 86400.0


class Mode(Enum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"
    HEADLESS = "headless"  # Nothing; progress goes to standard error
    TUI = "tui"  # A screen that takes keys; nothing else is written there

    @property
    def reports(self) -> bool:
        return self in (Mode.TEXT, Mode.JSON)


class Options(argparse.Namespace):
    """A parsed command line; each option's help describes its field. In seconds and bytes."""

    # None: the user chooses from a list, or there is a command, or a control group to find.
    pid: int | None
    name: str | None
    group_name: str | None
    waits: bool
    plain: bool
    follow: frozenset[str] | None  # Names of the commands to follow; empty: all
    as_root: bool
    program_output: Path | None
    malloc: str | None
    allocators_paths: Sequence[Path]
    trace_mappings: bool
    sample_bytes: int | None
    max_memory: int | None
    max_overhead: float | None
    preload: str
    report: Path | None
    json_full: bool
    show: frozenset[str]
    top: int
    min_age_ns: int | None
    interval_s: float | None  # None: chosen by where reports go
    count: int | None
    duration_s: float | None
    since_mark: bool
    fail_if: Sequence[WatchRule]
    on_leak: Sequence[str] | None
    suppressions: Sequence[Path]
    listen: ListenAddress | None
    filters_paths: Sequence[Path]
    filter_groups: Sequence[tuple[str, bool]]
    use_filters: bool
    sources: Sequence[tuple[str, str]]
    debug: bool
    quiet: bool
    # The program to start and trace, with its arguments; empty: a running one is traced.
    command: tuple[str, ...] = ()
    mode: Mode = Mode.HEADLESS
    group: MemoryGroup | None = None  # The named control group: all its processes are traced
    trace: TraceConfig  # Settings of the trace, without the allocators of `allocators_paths`
    outputs: tuple[OutputFile, ...]
    pushes_to: PushConfig | None
    wanted: SnapshotRequest  # The content that snapshots need for the reports and files

    @property
    def names_target(self) -> bool:
        """Whether the line has a command or names a process or group; else the user chooses."""
        return bool(self.command) or (self.pid, self.name, self.group_name) != (None, None, None)

    def but(self, **changes: object) -> Options:
        return Options(**(vars(self) | changes))


def parse_command_line(arguments: Sequence[str], *, terminal: bool) -> Options:
    """Parses arguments. ``terminal``: whether a screen can be drawn. Raises UsageError."""
    words, command = split_command(arguments)
    given = Options(**vars(parse_trace(words)), command=command)
    _check(given)
    _check_overhead(given)
    given.mode = _mode(given, terminal and not (given.fail_if or given.on_leak))
    _check_mode(given)
    return given


def recorded_command_line(given: argparse.Namespace, command: tuple[str, ...]) -> Options:
    """Makes the command line of a recorded trace, with defaults elsewhere. Raises UsageError."""
    whole = Options(**(vars(parse_trace([])) | vars(given) | {"command": command}))
    _check(whole)
    _check_mode(whole)
    return whole


def what_begins(given: Options) -> str:
    """Describes the command's first step, for the status line."""
    if given.command:
        return f"starting {printable(given.command[0])}"
    for name in (given.name, given.group_name):
        if name is not None:
            return f"looking for {printable(name)}"
    return "looking for processes" if given.pid is None else f"attaching to {given.pid}"


def _check_target(given: Options) -> None:
    targets = {"-p": given.pid, "-n": given.name, "--group": given.group_name}
    named = [option for option, value in targets.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} both name a process", hint="leave out one")
    for option in named:
        if targets[option] == "":
            name = "-n nginx" if option == "-n" else "--group nginx.service"
            raise UsageError(f"{option} '' names no process", hint=f"write a name, such as {name}")
    if given.command and named:
        hint = "leave out one of them"
        raise UsageError(f"{named[0]} traces a running process, -- CMD starts one", hint=hint)


def _check(given: Options) -> None:
    _check_target(given)
    _check_watch(given)
    _check_preload(given)
    _check_source(given)
    age_s = (given.min_age_ns or 0) / NS_PER_S
    longest_s = max(given.interval_s or 0, given.duration_s or 0, age_s)
    interval_s, push = given.interval_s, given.push
    least, most, sample = given.min_block_bytes, given.max_block_bytes, given.sample_bytes
    wrong = (
        (interval_s is not None and interval_s < 0.01, "--interval must be at least 10ms"),
        (longest_s > _LONGEST_S, "times must be below a hundred years"),
        (given.duration_s == 0, "--duration must be more than 0"),
        (most is not None and most < least,
         "--max-size is below --min-size: everything would be ignored"),
        (sample is not None and not 0 < sample <= _SPARSEST, "--sample must be between 1 and 1TiB"),
        (given.most_processes > _MOST_PROCESSES,
         f"--follow-limit must be at most {_MOST_PROCESSES}"),
        (not 0 < given.events_size_bytes <= _LARGEST_RING,
         "--events-size must be between 1 and 1GiB"),
        (given.waits and given.name is given.group_name, "--wait needs -n NAME or --group NAME"),
        (push is None and (given.push_name or given.push_label or given.push_interval),
         "--push-interval, --push-label and --push-name need --push URL"),
        (given.push_interval is not None and not 1 <= given.push_interval <= 86400,
         "--push-interval must be between 1s and a day"),
        (given.max_memory is not None and given.max_memory < _LEAST_MEMORY,
         "--max-memory must be at least 128MiB"),
        (given.push_password_file and (push is None or ":" in (push[1] or "")),
         "--push-password-file needs --push with a URL that has no password"),
        (given.listen_token_file and given.listen is None, "--listen-token-file needs --listen"),
    )  # fmt: skip
    if message := next((text for is_wrong, text in wrong if is_wrong), ""):
        raise UsageError(message)
    for path in given.output:
        exporter_for(path)


def _check_overhead(given: Options) -> None:
    if given.max_overhead is None:
        return
    if not _LEAST_OVERHEAD <= given.max_overhead <= _MOST_OVERHEAD:
        raise UsageError("--max-overhead must be between 0.1% and 1000%")
    if given.follow is not None or given.group_name is not None or given.waits:
        raise UsageError("--max-overhead excludes --follow, which stops processes at forks")


def _check_source(given: Options) -> None:
    """Raises UsageError for options that a reporting program does not support."""
    asked = {
        "--sample": given.sample_bytes is not None,
        "--mmap": given.trace_mappings,
        "--malloc": given.malloc is not None,
        f"--preload={given.preload}": given.preload in ("on", "inject"),
        "--max-overhead": given.max_overhead is not None,
    }
    excluded = next((name for name, is_asked in asked.items() if is_asked), None)
    if given.source != "auto" and excluded is not None:
        raise UsageError(f"--source excludes {excluded}: the program decides what it reports")
    if given.source == "usdt" and (given.command or given.waits or given.group_name is not None):
        hint = "--source=usdt:NAME names the provider of one that is not known yet"
        raise UsageError("--source=usdt takes what a running process reports", hint=hint)


def _check_preload(given: Options) -> None:
    excluded = needs_probes(given)
    if given.preload in ("on", "inject") and excluded is not None:
        raise UsageError(
            f"--preload={given.preload} excludes {excluded}, which needs probes",
            hint="--preload=auto uses probes then",
        )


def needs_probes(given: Options) -> str | None:
    """Returns a given option that the preloaded library does not support, or None."""
    asked = {
        "--follow": given.follow is not None, "--group": given.group_name is not None,
        "--wait": given.waits, "--malloc": given.malloc is not None,
        "--max-overhead": given.max_overhead is not None, "--mmap": given.trace_mappings,
        "--stacks=fp": given.stacks == "fp",
    }  # fmt: skip
    return next((name for name, is_asked in asked.items() if is_asked), None)


def _check_watch(given: Options) -> None:
    if given.on_leak and shutil.which(given.on_leak[0]) is None:
        raise UsageError(f"--on-leak: there is no command {given.on_leak[0]!r}")
    if given.as_root and not (given.command or given.on_leak):
        raise UsageError("--as-root is for CMD and --on-leak")
    if given.tui and (given.fail_if or given.on_leak):
        hint = "leave out --tui"
        raise UsageError("--fail-if and --on-leak check reports, and --tui writes none", hint=hint)


def _check_mode(given: Options) -> None:
    if not given.names_target and given.mode is not Mode.TUI:
        hint = "-p PID or -n NAME trace a running one, -- CMD starts one"
        raise UsageError("a process is required", hint=hint)
    if given.program_output is not None and not (given.command and given.mode is Mode.TUI):
        hint = "without a screen, redirect the program's own output"
        raise UsageError("--program-output needs the screen and -- CMD", hint=hint)


def split_command(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Returns (tracelloc's options, the command after ``--``)."""
    arguments = list(arguments)
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    if at + 1 == len(arguments):
        raise UsageError("no command follows --", hint="write tracelloc -- CMD [ARG...]")
    return arguments[:at], tuple(arguments[at + 1 :])


def _mode(given: Options, terminal: bool) -> Mode:
    if given.json:
        return Mode.JSON
    # A number of reports implies that reports are wanted.
    if given.tui or (terminal and not given.text and given.count is None):
        if given.tui and not terminal:
            raise UsageError(
                "--tui needs a terminal as standard input, output and error",
                hint="run it in a terminal, or write reports by --text or --json",
            )
        return Mode.TUI
    files = given.output or given.flamegraph or given.pprof
    if given.text or given.count is not None or not (files or given.listen or given.push):
        return Mode.TEXT
    return Mode.HEADLESS
