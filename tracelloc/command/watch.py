"""The part of the command line that watches: rules, a command for leaks, suppressions."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelloc.errors import UsageError
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.views.naming import Namer
from tracelloc.watching import LeakCommand, Suppressions, WatchRule, read_suppressions

FAILED_STATUS: Final = 3
"""Exit status when a rule was broken."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What is watched for."""

    rules: tuple[WatchRule, ...] = ()
    on_leak: tuple[str, ...] = ()
    """A command and its arguments; empty: none."""
    suppressions: tuple[Path, ...] = ()


def watch_of(given: argparse.Namespace) -> WatchOptions:
    """What was asked for. Raises UsageError."""
    command = tuple(given.on_leak or ())
    if command and shutil.which(command[0]) is None:
        raise UsageError(f"--on-leak: there is no command {command[0]!r}")
    if given.tui and (given.fail_if or command):
        raise UsageError("--fail-if and --on-leak watch reports", hint="leave out --tui")
    return WatchOptions(tuple(given.fail_if), command, tuple(given.suppressions))


class Watch:
    """What one run watches for."""

    def __init__(self, options: WatchOptions, say: Callable[[str], None]) -> None:
        """Raises UsageError for bad suppressions."""
        self._rules = options.rules
        self.suppressions: Suppressions = read_suppressions(options.suppressions)
        self._command = LeakCommand(options.on_leak, say) if options.on_leak else None
        self.broken: str | None = None
        """Why tracing ends with ``FAILED_STATUS``; None unless a rule was broken."""

    def look(self, snapshot: Snapshot, namer: Namer) -> bool:
        """Does what this moment asks for. Whether a rule is broken, by now or before."""
        if self._command is not None:
            self._command.look(snapshot, namer)
        for rule in self._rules:
            reason = rule.broken_by(snapshot)
            if reason is not None and self.broken is None:
                self.broken = f"{reason} (process {snapshot.target.pid})"
        return self.broken is not None

    def close(self) -> None:
        """Waits for commands that run, within bounds. May be called twice."""
        if self._command is not None:
            self._command.close()
            self._command = None
