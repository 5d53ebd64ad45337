"""A command of the user's that is run once for each leak, aside.

It is run directly, not by a shell, so that nothing in it is expanded; names from the target
only come in the JSON on its standard input. Whatever it does, tracing goes on: it has a
thread of its own, a session of its own, and a bounded time.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import printable
from tracelloc.verdict.judgement import Suspect, Verdict
from tracelloc.views.facts import stack_facts, summary, suspect_facts
from tracelloc.views.naming import NamedSuspect, Namer, name_suspects, suspects_of

PATIENCE_S: Final = 30.0
"""How long the command may take for one leak; at the end, for all that are left."""
_MOST_WAITING: Final = 64


class LeakCommand:
    """See the module."""

    def __init__(
        self,
        command: Sequence[str],
        say: Callable[[str], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._command = list(command)
        self._name = printable(command[0])
        self._say = say
        self._patience_s = patience_s
        self._told: set[tuple[int, int]] = set()
        """(process, stack) of leaks that the command was run for."""
        self._waiting: queue.Queue[str | None] = queue.Queue()
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name="on-leak", daemon=True)
        self._thread.start()

    def look(self, snapshot: Snapshot, namer: Namer) -> None:
        """Runs the command soon for what is called leaking and was not before."""
        number = snapshot.target.number
        fresh = [suspect for suspect in suspects_of(snapshot) if self._is_new(number, suspect)]
        for named in name_suspects(snapshot, namer, fresh):
            if self._waiting.qsize() >= _MOST_WAITING:
                # They are not told yet: the next look finds them again.
                return
            self._told.update((number, member.stack) for member in named.suspect.members)
            self._waiting.put(json.dumps(_leak_facts(snapshot, named)))

    def _is_new(self, number: int, suspect: Suspect) -> bool:
        stacks = {(number, member.stack) for member in suspect.members}
        return suspect.judgement.verdict is Verdict.LEAKING and not stacks & self._told

    def close(self) -> None:
        """Lets it finish what is waiting, for as long as it may take for one leak."""
        self._waiting.put(None)
        self._thread.join(self._patience_s)
        self._closing.set()
        self._kill()
        self._thread.join()

    def _work(self) -> None:
        while not self._closing.is_set():
            report = self._waiting.get()
            if report is None:
                return
            self._run(report)

    def _run(self, report: str) -> None:
        # Standard output carries the reports: what the command prints goes beside it.
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": sys.stderr.fileno()}
        try:
            process = subprocess.Popen(self._command, start_new_session=True, **streams)
        except OSError as error:
            self._say(f"error: {self._name} could not be run for a leak: {error.strerror}")
            return
        self._process = process
        try:
            process.communicate(report.encode() + b"\n", self._patience_s)
        except subprocess.TimeoutExpired:
            self._kill()
            process.wait()
            seconds = f"{self._patience_s:g} s"
            self._say(f"error: {self._name} took more than {seconds}: ended")
        else:
            if process.returncode and not self._closing.is_set():
                self._say(f"error: {self._name} ended with status {process.returncode}")
        finally:
            self._process = None

    def _kill(self) -> None:
        process = self._process
        # Its children too: they are in its session. Until it is waited for, its id is its own.
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _leak_facts(snapshot: Snapshot, named: NamedSuspect) -> dict[str, Any]:
    """A suspect with its stack, and the figures of its process."""
    suspect = suspect_facts(named) | {"stack": stack_facts(named.stack)}
    return summary(snapshot) | {"suspect": suspect}
