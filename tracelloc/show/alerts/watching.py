"""Watching a trace: rules that end it, and a command that is run for leaks.

The command is run once for each leak, in the background, as the user who called tracelloc. No shell
runs it, so nothing in it is expanded; names from the target only come in the JSON on its standard
input. It can't stop tracing: it has a thread of its own, a session of its own, and a bounded time.
"""

import json
import os
import pwd
import queue
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tracelloc.model.verdicts import Suspect, Verdict
from tracelloc.show.alerts.rules import ON_LEAK_PATIENCE_S, PER_MINUTE, WatchRule
from tracelloc.show.alerts.suppressions import Suppressions
from tracelloc.show.presentation.facts import stack_facts, summary, suspect_facts
from tracelloc.show.presentation.naming import Namer
from tracelloc.show.presentation.suspects import lost_bytes, name_suspects, suspects_of
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.system.invoker import Invoker, environment_of, invoker
from tracelloc.text import NS_PER_S, format_duration, format_size, printable

_FIRST_GROWTH_NS: Final = 60 * NS_PER_S
_MUCH_LOST_BYTES: Final = 64 << 10


def _rate(snapshot: Snapshot, *verdicts: Verdict) -> float | None:
    judgements = [suspect.judgement for suspect in suspects_of(snapshot)]
    rates = [j.rate_bytes_per_min for j in judgements if j.verdict in verdicts]
    return sum(rates) if rates else None


def _leak(snapshot: Snapshot) -> float | None:
    """Returns bytes per minute that leak, or are lost: but not the few lost at the start."""
    rate, findings = _rate(snapshot, Verdict.LEAKING), snapshot.findings
    if rate is None and findings is not None:
        lost, _before = lost_bytes(snapshot)
        was_leak = findings.sites.have([Verdict.LOST]) & (findings.retracted > 0)
        if was_leak.any() or lost >= _MUCH_LOST_BYTES:
            return lost / findings.moment.watched_s * 60
    return rate


def _growth(snapshot: Snapshot) -> float | None:
    if snapshot.elapsed_ns < _FIRST_GROWTH_NS:
        return None
    return float(snapshot.growth_per_min.sum())


# The quantities that rules can test; None if there is no value yet.
_VALUES: Final[dict[str, Callable[[Snapshot], float | None]]] = {
    "leak": _leak, "suspects": lambda snapshot: _rate(snapshot, Verdict.LEAKING, Verdict.GROWING),
    "growth": _growth, "live": lambda snapshot: snapshot.live_bytes,
    "peak": lambda snapshot: None if snapshot.peak is None else snapshot.peak.size_bytes,
    "rss": lambda snapshot: snapshot.rss_bytes, "lost": lambda snapshot: sum(lost_bytes(snapshot)),
}  # fmt: skip


def breach(rule: WatchRule, snapshot: Snapshot) -> str | None:
    """Returns the rule with the figure that broke it; None while it is not broken."""
    value = _VALUES[rule.quantity](snapshot)
    if value is None or value <= rule.limit_bytes:
        return None
    unit = "/min" if PER_MINUTE[rule.quantity] else ""
    limit = f" > {format_size(rule.limit_bytes)}{unit}" if rule.limit_bytes else ""
    return f"{rule.quantity}{limit} ({format_size(round(value))}{unit})"


_MOST_WAITING: Final = 64


class LeakCommand:
    """Runs a command once for each leak, in the background, with a bounded time."""

    def __init__(
        self, command: Sequence[str], say: Callable[[str], None],
        patience_s: float = ON_LEAK_PATIENCE_S, who: Invoker | None = None,
    ) -> None:  # fmt: skip
        """``who`` runs the command; None: the user who called tracelloc, also through sudo."""
        self._command = list(command)
        self._name = printable(command[0])
        self._say = say
        self._patience_s = patience_s
        self._who = who or invoker()
        # Ours come later, as the bound on our own memory does.
        self._data_limit = resource.getrlimit(resource.RLIMIT_DATA)
        # (process, stack) of the leaks for which the command was run
        self.told: set[tuple[int, int]] = set()
        self._waiting: queue.Queue[str | None] = queue.Queue()
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name="on-leak", daemon=True)
        self._thread.start()

    def queue_new_leaks(self, snapshot: Snapshot, namer: Namer) -> None:
        number = snapshot.target.number
        fresh = [suspect for suspect in suspects_of(snapshot) if self._is_new(number, suspect)]
        for named in name_suspects(snapshot, namer, fresh):
            if self._waiting.qsize() >= _MOST_WAITING:
                # They are not told yet: the next look finds them again.
                return
            self.told.update((number, member.stack) for member in named.suspect.members)
            suspect = suspect_facts(named) | {"stack": stack_facts(named.stack)}
            self._waiting.put(json.dumps(summary(snapshot) | {"suspect": suspect}))

    def _is_new(self, number: int, suspect: Suspect) -> bool:
        stacks = {(number, member.stack) for member in suspect.members}
        return suspect.judgement.verdict is Verdict.LEAKING and not stacks & self.told

    def close(self) -> None:
        """Waits for queued commands, for as long as one leak may take."""
        self._waiting.put(None)
        self._thread.join(self._patience_s)
        self._closing.set()
        self._kill()
        self._thread.join()

    def _work(self) -> None:
        while not self._closing.is_set() and (report := self._waiting.get()) is not None:
            self._run(report)

    def _run(self, report: str) -> None:
        # Standard output carries the reports, so the command's output goes to standard error.
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": sys.stderr.fileno()}
        try:
            streams |= self._rights()
            process = subprocess.Popen(self._command, start_new_session=True, **streams)
        except OSError as error:
            self._say(f"error: cannot run {self._name}: {error.strerror}")
            return
        self._process = process
        with suppress(OSError):  # it may have ended, or have other rights
            resource.prlimit(process.pid, resource.RLIMIT_DATA, self._data_limit)
        try:
            process.communicate(report.encode() + b"\n", self._patience_s)
        except subprocess.TimeoutExpired:
            self._kill()
            process.wait()
            limit = format_duration(self._patience_s)
            self._say(f"error: {self._name} took more than {limit} and was killed")
        else:
            if process.returncode and not self._closing.is_set():
                self._say(f"error: {self._name} ended with status {process.returncode}")
        finally:
            self._process = None

    def _rights(self) -> dict[str, Any]:
        """Returns the user, the groups and the environment as arguments of ``Popen``."""
        own = (name + b"=" + value for name, value in os.environb.items())
        entries = (entry.partition(b"=") for entry in environment_of(self._who, own))
        environment = {name: value for name, _, value in entries}
        if self._who.uid == os.geteuid():
            return {"env": environment}
        groups = os.getgrouplist(pwd.getpwuid(self._who.uid).pw_name, self._who.gid)
        user = {"user": self._who.uid, "group": self._who.gid, "extra_groups": groups}
        return {"env": environment, **user}

    def _kill(self) -> None:
        process = self._process
        # The session includes the command's children. Its id can't be reused before the wait.
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Watch:
    """Rules, leak command and suppressions of one run."""

    def __init__(
        self, rules: Sequence[WatchRule], on_leak: Sequence[str] | None,
        suppressions: Iterable[Path], say: Callable[[str], None], who: Invoker | None = None,
    ) -> None:  # fmt: skip
        """``who`` runs commands, see ``LeakCommand``. Raises UsageError for bad suppressions."""
        self._rules = rules
        self.suppressions = Suppressions(suppressions)
        self._command = LeakCommand(on_leak, say, who=who) if on_leak else None
        # The broken rule, with its figure, that ends tracing with `FAILED_STATUS`; else None
        self.broken: str | None = None

    @property
    def has_rules(self) -> bool:
        return bool(self._rules) or self._command is not None

    def check(self, snapshot: Snapshot, namer: Namer) -> bool:
        """Checks one snapshot. Returns whether a rule is, or was, broken."""
        if self._command is not None:
            self._command.queue_new_leaks(snapshot, namer)
        for rule in self._rules:
            reason = breach(rule, snapshot)
            if reason is not None and self.broken is None:
                self.broken = f"{reason} in process {snapshot.target.pid}"
        return self.broken is not None

    @property
    def leak_count(self) -> int:
        return 0 if self._command is None else len(self._command.told)

    def close(self) -> None:
        """Waits for running commands, up to a time limit. May be called twice."""
        if self._command is not None:
            self._command.close()
            self._command = None
