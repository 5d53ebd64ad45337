"""Where the screen gets its snapshots and names from: a live session, or a test's own."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Final, Protocol

from tracelloc.caller import Caller
from tracelloc.command.run import Run
from tracelloc.filters import Filters
from tracelloc.snapshots.snapshot import Snapshot, Target, TraceSnapshot, Wanted
from tracelloc.tracing.terminal import ProgramTerminal
from tracelloc.views.naming import Namer

_LARGEST_SOURCE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known once tracing has begun, for the header and the log."""

    allocators: tuple[str, ...]
    """Files whose functions are traced, by their base names."""
    functions: tuple[str, ...]
    """The functions themselves, with their files."""
    method: str
    """How probes are attached."""
    buffer_bytes: int
    """Size of the ring of events."""


class Source(Protocol):
    """One trace. Only the refresher's thread calls ``take`` and uses namers and filters."""

    has_many: bool
    """Whether there may be several processes."""
    terminal: ProgramTerminal | None
    """That of a program which was started; None: it runs elsewhere."""
    filters: Filters
    """Of all namers."""
    facts: Facts
    """What does not change."""
    caller: Caller
    """Whose filters are written."""

    def take(self, wanted: Wanted) -> TraceSnapshot:
        """What is outstanding now. Takes milliseconds. Raises TracellocError."""
        ...

    def namer(self, target: Target) -> Namer:
        """Names the stacks of a process."""
        ...

    def measured(self, snapshot: Snapshot) -> Snapshot:
        """Finds the usable sizes of a process's blocks. Takes up to a quarter of a second."""
        ...

    def ring_share(self) -> float:
        """How full the ring was at most since this was last asked, 0 to 1."""
        ...

    def read_source(self, target: Target, path: str) -> list[str]:
        """The lines of a source file. Raises OSError."""
        ...


class LiveSource:
    """A session that runs."""

    def __init__(
        self, run: Run, facts: Facts, caller: Caller, terminal: ProgramTerminal | None = None
    ) -> None:
        self._run = run
        self.facts = facts
        self.filters = run.namers.filters
        self.caller = caller
        self.terminal = terminal
        self.has_many = run.options.follow

    def take(self, wanted: Wanted) -> TraceSnapshot:
        """What is outstanding now."""
        return self._run.snapshots.take(0.0, wanted)

    def namer(self, target: Target) -> Namer:
        """Names the stacks of a process."""
        return self._run.namers.of(target)

    def measured(self, snapshot: Snapshot) -> Snapshot:
        """Finds the usable sizes of a snapshot's blocks."""
        return self._run.session.processes.of(snapshot.target.number).measuring.measured(snapshot)

    def ring_share(self) -> float:
        """How full the ring was at most since this was last asked."""
        return self._run.session.take_ring_share()

    def read_source(self, target: Target, path: str) -> list[str]:
        """The lines of a source file, as the process sees it or as it lies here."""
        last: OSError = FileNotFoundError(2, "No such file or directory")
        for root in (f"/proc/{target.pid}/root", ""):
            try:
                return _lines(root + path)
            except OSError as error:
                last = error
        raise last


def _lines(path: str) -> list[str]:
    """Raises OSError for what is no regular file: a pipe would never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is no regular file")
        return stream.read(_LARGEST_SOURCE_BYTES).decode(errors="replace").splitlines()
