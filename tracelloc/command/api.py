"""The functions of ``import tracelloc``, and the trace that they return.

A trace runs in a process of its own, which records it: signals, memory limits and the rights that
probes need are not the caller's affair. The caller reads the recording while it grows.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final, Self

from tracelloc.command.processargument import reading_heap
from tracelloc.dataclass import dataclass
from tracelloc.errors import TracellocError
from tracelloc.model.blocks import BlockHolders, TopHolders
from tracelloc.model.heapusage import HeapUsage
from tracelloc.model.losses import LossCounts
from tracelloc.model.lostmemory import LostMemory
from tracelloc.model.process import MemoryUsage
from tracelloc.record.heapwalk.measuring import measure_heap
from tracelloc.record.process.identity import open_target
from tracelloc.record.reachability.blockholders import HolderFinder, selection
from tracelloc.record.reachability.lostblocks import LostBlockSearch
from tracelloc.show.filters import NamedStack
from tracelloc.show.filters.files import load_filters
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.presentation.suspects import NamedSuspect, name_suspects, suspects_of
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.snapshots.snapshot import Snapshot

_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class TracedStack:
    """The figures of one call stack, named as in ``top_allocators`` of JSON reports."""

    stack_id: int
    bytes: int  # Live
    allocations: int  # Live blocks
    growth_bytes_per_min: int
    verdict: str | None
    stack: NamedStack  # `frames`, innermost first: `symbol`, `file`, `line`, `module`, …


class Trace:
    """A trace or a recording. Each property shows its last snapshot, at most a second old.

    It is a context manager: at the end, tracelloc detaches, and a launched program is terminated.
    """

    def __init__(self, path: str | Path, recorder: subprocess.Popen[str] | None = None) -> None:
        """Opens a recording, also one that is still being written. Raises TracellocError."""
        self._recorder, self._ending = recorder, ExitStack()
        self._recording = RecordedTrace(Path(path))
        self._namers = Namers(self._recording, load_filters()[0])

    @property
    def snapshot(self) -> Snapshot:
        """All figures of the process. Raises TracellocError."""
        self._recording.reload()
        return self._recording.trace_at(len(self._recording.moments) - 1).root

    @property
    def stacks(self) -> list[TracedStack]:
        """All call stacks with live blocks, most bytes first."""
        snapshot = self.snapshot
        namer, findings = self._namers.namer_of(snapshot.target), snapshot.findings
        found = []
        for stat in snapshot.top_stacks(with_earlier=False):
            verdict = None if findings is None else findings.verdict(stat.index)
            figures = stat.live_bytes, stat.live_count, stat.growth_bytes_per_min
            stack = namer.stack(snapshot, stat.index)
            found.append(TracedStack(stat.index, *figures, verdict and verdict.value, stack))
        return found

    @property
    def suspects(self) -> list[NamedSuspect]:
        """What grows, by strength: ``judgement`` has the verdict and its evidence."""
        snapshot = self.snapshot
        namer = self._namers.namer_of(snapshot.target)
        return name_suspects(snapshot, namer, suspects_of(snapshot))

    @property
    def losses(self) -> LossCounts:
        """Events that were missed: ``events`` is 0 if all figures are exact."""
        return self.snapshot.losses

    @property
    def memory(self) -> MemoryUsage | None:
        """The process's memory by kind; None if it was not read yet."""
        return self.snapshot.memory

    def wait(self) -> int:
        """Waits for the end of the process. Returns the exit status of a launched program."""
        return 0 if self._recorder is None else self._recorder.wait()

    def close(self) -> None:
        """Ends the trace. Nothing can be read afterwards. May be called twice."""
        self._recording.close()
        self._ending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _record(words: Sequence[str], ending: signal.Signals, errors: int | None) -> Trace:
    """Returns a trace that a process records, once it has a snapshot. Raises TracellocError."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tracelloc-"))
        path = Path(folder) / "trace.rec"
        line = [sys.executable, "-P", "-m", "tracelloc", "record", "--quiet", "-o", str(path)]
        recorder = stack.enter_context(subprocess.Popen([*line, *words], stderr=errors, text=True))
        stack.callback(recorder.send_signal, ending)  # Nothing happens if it has ended
        has_ended = False
        while not has_ended:
            has_ended = recorder.poll() is not None
            with suppress(TracellocError):
                trace = Trace(path, recorder)
                trace._ending = stack.pop_all()
                return trace
            time.sleep(_LOOK_S)
        said = recorder.stderr.read() if recorder.stderr else "standard error has the reason"
        raise TracellocError(said.rpartition("tracelloc: error: ")[2].strip())


def attach(pid: int, *options: str) -> Trace:
    """Traces a running process until ``close``, which detaches. Raises TracellocError.

    ``options`` are those of ``tracelloc record``, such as ``"--sample=64k"``.
    """
    return _record(["-p", str(pid), *options], signal.SIGINT, subprocess.PIPE)


def launch(command: Sequence[str], *options: str) -> Trace:
    """Starts a program and traces it from its first allocation. Raises TracellocError.

    ``wait`` waits for its end, ``close`` terminates it. ``options``: see ``attach``.
    """
    return _record([*options, "--", *command], signal.SIGTERM, None)


def open(file: str | Path) -> Trace:  # noqa: A001 - as gzip.open
    """Opens a recording of ``tracelloc record``. Raises TracellocError."""
    return Trace(file)


def heap_usage(pid: int) -> HeapUsage:
    """Walks the heap of a process: what is in use, and what is free. Raises TracellocError."""
    with reading_heap():
        return measure_heap(open_target(pid))


def leaks(pid: int) -> LostMemory:
    """Finds the blocks of a running process that nothing points to. Raises TracellocError."""
    with closing(LostBlockSearch(open_target(pid), lambda _: False)) as search, reading_heap():
        return search.find()


def holders(pid: int, what: str | None = None, top: int = 10) -> BlockHolders | TopHolders:
    """Finds what keeps the memory of a process. Raises TracellocError.

    ``what``: a C++ class, a size in bytes or an address, whose holders to find.
    """
    with closing(HolderFinder(open_target(pid))) as finder, reading_heap():
        return finder.top(top) if what is None else finder.holders(selection(what), top)
