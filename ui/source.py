"""Where the screen gets its snapshots and names from: a live session, or a test's own."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from tracelloc.caller import Caller
from tracelloc.command.run import Run
from tracelloc.snapshots.snapshot import Snapshot, Target, Wanted
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
    """One target. Only the refresher's thread calls ``take`` and uses ``namer``."""

    @property
    def target(self) -> Target:
        """Who is traced."""
        ...

    @property
    def namer(self) -> Namer:
        """Names stacks."""
        ...

    @property
    def facts(self) -> Facts:
        """What does not change."""
        ...

    @property
    def caller(self) -> Caller:
        """Whose filters are written."""
        ...

    def take(self, wanted: Wanted) -> Snapshot:
        """What is outstanding now. Takes milliseconds. Raises TracellocError."""
        ...

    def measured(self, snapshot: Snapshot) -> Snapshot:
        """The same with usable sizes of its blocks. Takes up to a quarter of a second."""
        ...

    def ring_share(self) -> float:
        """How full the ring was at most since this was last asked, 0 to 1."""
        ...

    def thread_names(self) -> Mapping[int, str]:
        """Threads of the target by id."""
        ...

    def export_namer(self) -> Namer:
        """Another namer with the same rules, for an export in a thread of its own."""
        ...

    def read_source(self, path: str) -> list[str]:
        """The lines of a source file. Raises OSError."""
        ...


class LiveSource:
    """A session that runs."""

    def __init__(self, run: Run, facts: Facts, caller: Caller) -> None:
        self._run = run
        self._facts = facts
        self._caller = caller

    @property
    def target(self) -> Target:
        """Who is traced."""
        return self._run.session.root.target

    @property
    def namer(self) -> Namer:
        """Names stacks."""
        return self._run.namers.of(self.target)

    @property
    def facts(self) -> Facts:
        """What does not change."""
        return self._facts

    @property
    def caller(self) -> Caller:
        """Whose filters are written."""
        return self._caller

    def take(self, wanted: Wanted) -> Snapshot:
        """What is outstanding now."""
        return self._run.snapshots.take(0.0, wanted).root

    def measured(self, snapshot: Snapshot) -> Snapshot:
        """The same with usable sizes of its blocks."""
        return self._run.session.root.measuring.measured(snapshot)

    def ring_share(self) -> float:
        """How full the ring was at most since this was last asked."""
        return self._run.session.take_ring_share()

    def thread_names(self) -> Mapping[int, str]:
        """Threads of the target by id."""
        return self._run.session.root.thread_names.all()

    def export_namer(self) -> Namer:
        """Another namer with the same rules."""
        return self._run.namers.copy().of(self.target)

    def read_source(self, path: str) -> list[str]:
        """The lines of a source file, as the target sees it or as it lies here."""
        last: OSError = FileNotFoundError(2, "No such file or directory")
        for root in (f"/proc/{self.target.pid}/root", ""):
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
