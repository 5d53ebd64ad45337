"""Converts heaptrack's files to recordings by replaying their allocations and frees.

heaptrack records the size and call stack of a freed block, not its address: the newest such
block counts as freed. Figures per call stack are exact; ages and verdicts are approximate.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import numpy as np

from tracelloc.errors import MalformedError
from tracelloc.heap.heap import Heap
from tracelloc.heap.series import Series
from tracelloc.model.codefiles import CodeModule, Place, Unresolved, base_name
from tracelloc.model.events import EVENT_DTYPE, EVENT_SIZE_BITS, EVENT_SIZE_MASK, EventKind
from tracelloc.model.frames import Frame, unnamed
from tracelloc.model.losses import Counter
from tracelloc.model.process import Overhead, Target
from tracelloc.model.stacks import StackFlag
from tracelloc.model.verdicts import Findings
from tracelloc.model.wanted import Wanted
from tracelloc.show.filters import Filters
from tracelloc.show.importers.heaptrack import Log, lines_of, numbers_in
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.recording.writer import RecordingWriter
from tracelloc.snapshots.snapshot import CaptureStatus, ProcessStatus, TraceSnapshot
from tracelloc.snapshots.taking import take_snapshot
from tracelloc.text import NS_PER_S
from tracelloc.verdict.judge import Judge

_START_NS: Final = NS_PER_S
_MOMENTS: Final = 2000
"""Limit of snapshots, unless the program ran for hours."""
_LEAST_STEP_NS: Final = NS_PER_S // 10
_DEEPEST: Final = 512
_FIRST_ADDRESS: Final = 1 << 40
_TOP: Final = 10
_MAX_BYTES: Final = 1 << 40
_MAX_S: Final = 1e9
_NS_PER_MS: Final = 1_000_000


class FileNames:
    """Names that a file has: a ``show.presentation.naming.Symbols``."""

    version = waiting = 0

    def __init__(self) -> None:
        self.frames: dict[int, list[Frame]] = {}

    def symbols_of(self, _number: int) -> FileNames:
        """Returns the names of the only process."""
        return self

    def prepare(self, addresses: Iterable[int], timeout_s: float | None = None) -> bool:  # noqa: ARG002 - nothing takes time
        """Returns True: no more names will become known."""
        return True

    def peek(self, addresses: Iterable[int]) -> list[Frame]:
        """Returns the frames of these addresses."""
        found: list[Frame] = []
        for address in addresses:
            found += self.frames.get(address) or [unnamed(address, None, None, Unresolved.UNMAPPED)]
        return found

    def place(self, _address: int) -> Place[CodeModule] | Unresolved:
        """Returns no place: frames have all that is known."""
        return Unresolved.UNMAPPED


class _Playback:
    """Applies events and writes snapshots at intervals."""

    def __init__(self, log: Log, writer: RecordingWriter, start_s: float, pid: int) -> None:
        """``start_s``: when the program began, seconds since 1970."""
        self._log, self._writer = log, writer
        self._start_s, self._pid = start_s, pid
        self._names = FileNames()
        self._namers = Namers(self._names, Filters(), short_names=False)
        self._heap = Heap(_START_NS)
        self._series = Series(_START_NS)
        self._judge = Judge()
        self._findings: Findings | None = None
        self._live: dict[int, list[int]] = defaultdict(list)
        """Addresses of blocks by the number of their allocation."""
        self._events: list[tuple[int, int, int, int]] = []
        """(address, tagged size, stack, time) of events not applied yet."""
        self._known_stacks = 0
        self._made = 0
        self.now_ns = _START_NS

    def note(self, number: int, *, made: bool) -> None:
        """Adds or frees one block of an allocation. Raises IndexError."""
        size, stack = self._log.allocations[number]
        if size > EVENT_SIZE_MASK:
            raise ValueError("a size")
        live = self._live[number]
        if made:
            address = _FIRST_ADDRESS + 16 * self._made
            self._made += 1
            live.append(address)
            kind = EventKind.ALLOC
        else:
            address = live.pop() if live else 16
            kind, size = EventKind.FREE, 0
        self._events.append((address, size | kind << EVENT_SIZE_BITS, stack, self.now_ns))

    def write(self) -> None:
        """Writes a snapshot."""
        self._apply()
        heap, now_ns = self._heap, self.now_ns
        table, totals = heap.table, heap.table.totals
        if self._judge.is_due(now_ns):
            looks = self._judge.judge_stacks(table.cohorts, totals, heap.stacks, now_ns)
            self._findings = [*looks][-1] or self._findings
        if heap.history.is_due(now_ns):
            heap.history.sample(now_ns, totals.live_bytes.copy())
        self._series.add(now_ns, table.live_bytes, self._log.rss_bytes)
        elapsed_s = (now_ns - _START_NS) / NS_PER_S
        command = base_name(self._log.command.split(" ")[0])
        process = ProcessStatus(
            Target(self._pid, command),
            _START_NS,
            Overhead(table.events / max(elapsed_s, 1e-3), None, ()),
            rss_bytes=self._log.rss_bytes,
            series=self._series.points(),
            findings=self._findings,
        )
        capture = CaptureStatus(
            self._start_s + elapsed_s, now_ns, np.zeros(len(Counter), np.uint64)
        )
        one = take_snapshot(heap, process, capture, Wanted(top=_TOP))
        self._writer.add(TraceSnapshot((one,), 0, None), self._namers)

    def _apply(self) -> None:
        stacks = self._log.stacks
        for number in range(self._known_stacks, len(stacks)):
            frames = self._log.addresses(number)
            flags = StackFlag.TRUNCATED if len(frames) > _DEEPEST else StackFlag(0)
            # Number 0 is unused; ids begin at 1.
            self._heap.stacks.add(number + 1, tuple(frames[:_DEEPEST]), flags)
        self._known_stacks = len(stacks)
        self._names.frames = self._log.by_address
        events = np.zeros(len(self._events), EVENT_DTYPE)
        if self._events:
            address, tag, stack, time_ns = np.array(self._events, np.uint64).T
            events["address"], events["size_tag"] = address, tag
            events["stack_id"], events["time_ns"] = stack + np.uint64(1), time_ns
        self._events.clear()
        self._heap.table.apply(events)


def convert(
    content: bytes, path: Path, into: Path, note: Callable[[float], None] = lambda _: None
) -> None:
    """Writes the events of a heaptrack file as a recording.

    ``path``: the heaptrack file; ``note`` is called with the share of it that has been read.
    Raises MalformedError and TracellocError.
    """
    try:
        _play(content, path, into, note)
    except (ValueError, IndexError, OverflowError) as error:
        raise MalformedError("it is damaged") from error


def _play(content: bytes, path: Path, into: Path, note: Callable[[float], None]) -> None:
    count = content.count(b"\n") + 1
    length_ns = _length_ms(content) * _NS_PER_MS
    step_ns = max(_LEAST_STEP_NS, length_ns // _MOMENTS)
    named = re.search(r"\.(\d+)\.(?:zst|gz)$", path.name)
    pid = int(named[1]) if named else 0
    log = Log()
    writer = RecordingWriter(into, max_bytes=_MAX_BYTES, max_s=_MAX_S)
    try:
        playback = _Playback(log, writer, path.stat().st_mtime - length_ns / NS_PER_S, pid)
        due_ns = _START_NS + step_ns
        for number, line in lines_of(content):
            kind = line[:1]
            if playback.now_ns >= due_ns and kind != b"R":
                # The time and the memory at that time have been read.
                playback.write()
                note(number / count)
                due_ns = playback.now_ns + step_ns
            if kind in (b"+", b"-"):
                (number_of,) = numbers_in(line)
                playback.note(number_of, made=kind == b"+")
                continue
            log.read_line(line)
            playback.now_ns = max(playback.now_ns, _START_NS + log.elapsed_ms * _NS_PER_MS)
        playback.write()
        writer.describe({
            "pid": str(pid), "command": log.command, "host": "another tool",
            "tool": "heaptrack", "version": log.version,
        })  # fmt: skip
    finally:
        writer.close()


def _length_ms(content: bytes) -> int:
    """Returns how long the program ran, by the last timestamp in the file."""
    last = content.rfind(b"\nc ")
    return 0 if last < 0 else numbers_in(content[last + 1 :].splitlines()[0])[0]
