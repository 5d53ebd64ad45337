"""Parses and checks the command line, before any slow import."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tracelloc.command.parser import parse_trace
from tracelloc.errors import UsageError
from tracelloc.show.export import exporter_for
from tracelloc.text import printable

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
    HEADLESS = "headless"
    """Nothing; progress goes to standard error."""
    TUI = "tui"
    """A screen that takes keys; nothing else is written there."""

    @property
    def reports(self) -> bool:
        """Whether reports are written."""
        return self in (Mode.TEXT, Mode.JSON)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A parsed and checked command line."""

    given: argparse.Namespace
    """The options, by their long names."""
    command: tuple[str, ...]
    """The program to start and trace, with its arguments; empty to trace a running one."""
    mode: Mode


def parse_command_line(arguments: Sequence[str], *, terminal: bool) -> CommandLine:
    """Parses the arguments after the program's name. Raises UsageError.

    ``terminal``: whether the standard streams are a terminal that the screen can use.
    """
    options, command = split_command(arguments)
    given = parse_trace(options)
    _check(given, command)
    _check_watch(given)
    _check_overhead(given)
    _check_preload(given)
    _check_source(given)
    mode = _mode(given, terminal and not (given.fail_if or given.on_leak))
    _check_mode(given, command, mode)
    return CommandLine(given, command, mode)


def recorded_command_line(given: argparse.Namespace, command: tuple[str, ...]) -> CommandLine:
    """Makes the command line of a recorded trace, with defaults elsewhere. Raises UsageError."""
    whole = argparse.Namespace(**(vars(parse_trace([])) | vars(given)))
    _check(whole, command)
    _check_watch(whole)
    _check_preload(whole)
    _check_source(whole)
    _check_mode(whole, command, Mode.HEADLESS)
    return CommandLine(whole, command, Mode.HEADLESS)


def what_begins(line: CommandLine) -> str:
    """Describes the first step, for the status line."""
    if line.command:
        return f"starting {printable(line.command[0])}"
    for name in (line.given.name, line.given.group):
        if name is not None:
            return f"looking for {printable(name)}"
    return "looking for processes" if line.given.pid is None else f"attaching to {line.given.pid}"


def _check_target(given: argparse.Namespace, command: tuple[str, ...]) -> None:
    """Raises UsageError unless at most one target is named."""
    targets = {"-p": given.pid, "-n": given.name, "--group": given.group}
    named = [option for option, value in targets.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} both name a process", hint="leave out one")
    for option in named:
        if targets[option] == "":
            example = "-n nginx" if option == "-n" else "--group nginx.service"
            raise UsageError(
                f"{option} '' names no process", hint=f"write a name, such as {example}"
            )
    if command and named:
        raise UsageError(
            f"{named[0]} traces a running process, -- CMD starts one", hint="leave out one of them"
        )


def _check(given: argparse.Namespace, command: tuple[str, ...]) -> None:
    """Raises UsageError for options that make no sense together."""
    _check_target(given, command)
    longest_s = max(given.interval or 0, given.duration or 0, given.age or 0)
    least, most, sample = given.min_size, given.max_size, given.sample
    for wrong, message in (
        (given.interval is not None and given.interval < 0.01, "--interval must be at least 10ms"),
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
        (
            not 0 < given.events_size <= _LARGEST_RING,
            "--events-size must be between 1 and 1GiB",
        ),
        (given.wait and given.name is given.group, "--wait needs -n NAME or --group NAME"),
        (
            given.push is None and (given.push_name or given.push_label or given.push_interval),
            "--push-interval, --push-label and --push-name need --push URL",
        ),
        (
            given.push_interval is not None and not 1 <= given.push_interval <= 86400,
            "--push-interval must be between 1s and a day",
        ),
        (
            given.max_memory is not None and given.max_memory < _LEAST_MEMORY,
            "--max-memory must be at least 128MiB",
        ),
        (
            given.short_names and given.long_names,
            "--short-names and --long-names exclude each other",
        ),
        (given.as_root and not (command or given.on_leak), "--as-root is for CMD and --on-leak"),
        (
            given.push_password_file and (given.push is None or ":" in (given.push[1] or "")),
            "--push-password-file needs --push with a URL that has no password",
        ),
        (
            given.listen_token_file and given.listen is None,
            "--listen-token-file needs --listen",
        ),
    ):
        if wrong:
            raise UsageError(message)
    for path in given.output:
        exporter_for(path)


def _check_overhead(given: argparse.Namespace) -> None:
    if given.max_overhead is None:
        return
    if not _LEAST_OVERHEAD <= given.max_overhead <= _MOST_OVERHEAD:
        raise UsageError("--max-overhead must be between 0.1% and 1000%")
    if given.follow is not None or given.group is not None or given.wait:
        raise UsageError("--max-overhead excludes --follow, which stops processes at forks")


def _check_source(given: argparse.Namespace) -> None:
    """Raises UsageError for options that a reporting program does not support."""
    asked = {
        "--sample": given.sample is not None,
        "--mmap": given.mmap,
        "--malloc": given.malloc is not None,
        "--allocators": bool(given.allocators),
        f"--preload={given.preload}": given.preload in ("on", "inject"),
        "--max-overhead": given.max_overhead is not None,
    }
    excluded = next((name for name, is_asked in asked.items() if is_asked), None)
    if given.source == "otel" and excluded is not None:
        raise UsageError(f"--source=otel excludes {excluded}: the program decides what it reports")


def _check_preload(given: argparse.Namespace) -> None:
    """Raises UsageError for options that the preloaded library does not support."""
    excluded = needs_probes(given)
    if given.preload in ("on", "inject") and excluded is not None:
        raise UsageError(
            f"--preload={given.preload} excludes {excluded}, which needs probes",
            hint="--preload=auto uses probes then",
        )


def needs_probes(given: argparse.Namespace) -> str | None:
    """Returns a given option that the preloaded library does not support, or None."""
    asked = {
        "--follow": given.follow is not None,
        "--group": given.group is not None,
        "--wait": given.wait,
        "--malloc": given.malloc is not None,
        "--max-overhead": given.max_overhead is not None,
        "--mmap": given.mmap,
        "--stacks=fp": given.stacks == "fp",
    }
    return next((name for name, is_asked in asked.items() if is_asked), None)


def _check_watch(given: argparse.Namespace) -> None:
    if given.on_leak and shutil.which(given.on_leak[0]) is None:
        raise UsageError(f"--on-leak: there is no command {given.on_leak[0]!r}")
    if given.tui and (given.fail_if or given.on_leak):
        raise UsageError(
            "--fail-if and --on-leak check reports, and --tui writes none", hint="leave out --tui"
        )


def _check_mode(given: argparse.Namespace, command: tuple[str, ...], mode: Mode) -> None:
    """Raises UsageError for options that do not suit the mode."""
    has_target = command or not given.pid is given.name is given.group is None
    if not has_target and mode is not Mode.TUI:
        raise UsageError(
            "a process is required",
            hint="-p PID or -n NAME trace a running one, -- CMD starts one",
        )
    if given.program_output is not None and not (command and mode is Mode.TUI):
        raise UsageError(
            "--program-output needs the screen and -- CMD",
            hint="without a screen, redirect the program's own output",
        )


def split_command(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Returns (tracelloc's options, the command after ``--``)."""
    arguments = list(arguments)
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    if at + 1 == len(arguments):
        raise UsageError("no command follows --", hint="write tracelloc -- CMD [ARG...]")
    return arguments[:at], tuple(arguments[at + 1 :])


def _mode(given: argparse.Namespace, terminal: bool) -> Mode:
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
