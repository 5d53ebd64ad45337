"""Several recordings as one, with all their processes at the time that the user asks for.

Recordings of another boot or machine have another CLOCK_MONOTONIC: their times are converted to
the clock of the first recording, by the time of day.
"""

import bisect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from tracelloc.errors import UsageError
from tracelloc.model.figures import History
from tracelloc.model.process import FollowCounts
from tracelloc.show.recording.container import RecordedMoment
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.show.recording.recordednames import RecordedSymbols
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import NS_PER_S, format_time, parse_duration, plural

T = TypeVar("T")
_NUMBERS: Final = 1 << 20  # Process numbers reserved for each recording
# Clocks that differ by less are the same; only the time of day was adjusted.
_SAME_CLOCK_S: Final = 60.0
# How long, beyond the usual distance, a recording extends after its last snapshot.
_PATIENCE_S: Final = 2.0
_FOLLOWED: Final = "forks", "execs", "stopped_ns"


class JoinedTraces:
    """Several recordings with the interface of ``RecordedTrace``. For one thread at a time."""

    def __init__(self, recordings: Sequence[RecordedTrace]) -> None:
        """``recordings``: the root process of the first is the root of all."""
        self._recordings = sorted(recordings, key=lambda each: each.moments[0].time_s)
        first = self._recordings[0]
        self.path = first.path
        missed = sum(missed_count(each.about) for each in recordings)
        self.about = first.about | ({"missed": str(missed)} if missed else {})
        self._shifts_s = [_shift_s(first, each) for each in self._recordings]
        self.moments: list[RecordedMoment] = []
        self._join()

    @property
    def is_growing(self) -> bool:
        return any(each.is_growing for each in self._recordings)

    def close(self) -> None:
        for each in self._recordings:
            each.close()

    def reload(self) -> None:
        before = [len(each.moments) for each in self._recordings]
        for each in self._recordings:
            each.reload()
        if before != [len(each.moments) for each in self._recordings]:
            self._join()

    def _join(self) -> None:
        pairs = zip(self._recordings, self._shifts_s, strict=True)
        moments = [m._replace(uptime_s=m.uptime_s + s) for one, s in pairs for m in one.moments]
        moments.sort(key=attrgetter("uptime_s"))
        self.moments = [each._replace(number=n, whole=0) for n, each in enumerate(moments)]

    def symbols_of(self, number: int) -> RecordedSymbols:
        which, own = divmod(number, _NUMBERS)
        return self._recordings[which].symbols_of(own)

    def find(self, time_s: float) -> int:
        later = (n for n, moment in enumerate(self.moments) if moment.time_s > time_s)
        return max(0, next(later, len(self.moments)) - 1)

    def find_uptime(self, uptime_s: float) -> int:
        return max(0, bisect.bisect_right(self.moments, uptime_s, key=attrgetter("uptime_s")) - 1)

    def trace_at(self, index: int) -> TraceSnapshot:
        return self.trace_as_of(self.moments[index].uptime_s)

    def trace_as_of(self, uptime_s: float) -> TraceSnapshot:
        uptime_s = self.moments[self.find_uptime(uptime_s)].uptime_s
        traces = [
            _moved(each.trace_as_of(own_s), number * _NUMBERS, shift_s, ended=_is_over(each, own_s))
            for number, (each, shift_s) in enumerate(
                zip(self._recordings, self._shifts_s, strict=True)
            )
            if (own_s := uptime_s - shift_s) >= each.moments[0].uptime_s
        ]
        follows = [trace.follow for trace in traces if trace.follow is not None]
        newest_ns, time_s = max((t.root.now_ns, t.root.time_s) for t in traces)
        processes = [one for trace in traces for one in trace.processes]
        if len({each.space for one in processes for each in one.allocators}) > 1:
            raise UsageError("memory of GPUs and that of processes can't be one sum")
        # The time of all is the newest one's.
        root = processes[0]
        growth = root.history.growth_per_min(newest_ns, root.totals.live_bytes)
        processes[0] = replace(root, now_ns=newest_ns, time_s=time_s, growth_per_min=growth)
        return TraceSnapshot(
            tuple(processes),
            sum(trace.untraced_count for trace in traces),
            FollowCounts(*(sum(getattr(each, name) for each in follows) for name in _FOLLOWED)),
        )


AnyRecording = RecordedTrace | JoinedTraces


def open_recordings(paths: Sequence[Path]) -> AnyRecording:
    """Opens one recording, or several as one. Raises TracellocError."""
    recordings = [RecordedTrace(path) for path in paths]
    return recordings[0] if len(recordings) == 1 else JoinedTraces(recordings)


def missed_count(about: Mapping[str, str]) -> int:
    """Returns how many snapshots the recorder has missed; ``about``: a description."""
    count = about.get("missed", "")
    return int(count) if count.isascii() and count.isdigit() and len(count) < 16 else 0


def _shift_s(first: RecordedTrace, other: RecordedTrace) -> float:
    clocks = [each.moments[0].time_s - each.moments[0].uptime_s for each in (first, other)]
    shift_s = clocks[1] - clocks[0]
    is_same = first.about.get("host") == other.about.get("host") and abs(shift_s) < _SAME_CLOCK_S
    return 0.0 if is_same else shift_s


def _is_over(recording: RecordedTrace, uptime_s: float) -> bool:
    last = recording.moments[-1]
    return uptime_s > last.uptime_s + last.step_s + _PATIENCE_S


def _moved(trace: TraceSnapshot, base: int, shift_s: float, *, ended: bool) -> TraceSnapshot:
    processes = []
    for one in trace.processes:
        target = one.target
        target = replace(target, number=base + target.number, has_ended=target.has_ended or ended)
        moved = _by_clock(one, round(shift_s * NS_PER_S))
        processes.append(replace(moved, target=target))
    return replace(trace, processes=tuple(processes))


def _by_clock(one: Snapshot, shift_ns: int) -> Snapshot:
    def later(value: T, *names: str) -> T:
        changes: dict[str, Any] = {name: getattr(value, name) + shift_ns for name in names}
        return replace(value, **changes)  # type: ignore[type-var]

    if not shift_ns:
        return one
    memory, mappings, times = one.memory, one.mappings, one.history.times_ns
    columns = {name: getattr(one.totals, name) for name in ("first_ns", "last_ns")}
    # 0 stands for never.
    moved: Any = {n: np.where(each == 0, 0, each + shift_ns) for n, each in columns.items()}
    findings = one.findings
    if findings is not None:
        suspects = tuple(
            replace(each, judgement=later(each.judgement, "since_ns")) for each in findings.suspects
        )
        findings = replace(
            findings, moment=later(findings.moment, "start_ns", "now_ns"), suspects=suspects,
            suspect_of={member.stack: each for each in suspects for member in each.members},
        )  # fmt: skip
    return replace(
        one, started_ns=one.started_ns + shift_ns, now_ns=one.now_ns + shift_ns,
        totals=replace(one.totals, **moved), series=one.series and later(one.series, "time_ns"),
        history=History.from_samples(
            [at + shift_ns for at in times], [one.history.at(at) for at in times]
        ),
        peak=one.peak and later(one.peak, "time_ns"), findings=findings,
        memory=memory
        and replace(memory, history=tuple((at + shift_ns, size) for at, size in memory.history)),
        mappings=mappings
        and replace(mappings, stacks=tuple(later(each, "oldest_ns") for each in mappings.stacks)),
    )  # fmt: skip


_CLOCK: Final = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_DAY_S: Final = 86_400
_TOLERANCE_S: Final = 1.0
_FORMS: Final = "times are 03:15, 03:15:30, 2026-11-22T03:15, +90m from the start, -5m from the end"


def find_moment(recording: AnyRecording, text: str | None) -> int:
    """Returns the last snapshot not after a time; None: the last of all. Raises UsageError."""
    moments = recording.moments
    if text is None:
        return len(moments) - 1
    return recording.find(parse_time(text, moments[0].time_s, moments[-1].time_s))


def count_words(recording: AnyRecording) -> str:
    """Returns, in words, how many snapshots a recording has, and how many it has missed."""
    words = plural(len(recording.moments), "snapshot")
    missed = missed_count(recording.about)
    return f"{words}, {missed:,} missed" if missed else words


def parse_time(text: str, first_s: float, last_s: float) -> float:
    """Parses a time typed by the user; returns seconds since 1970. Raises UsageError."""
    try:
        time_s = _seconds(text, first_s, last_s)
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is not a time", hint=_FORMS) from None
    if not first_s - _TOLERANCE_S <= time_s <= last_s + _TOLERANCE_S:
        hint = f"recorded is from {format_time(first_s)} to {format_time(last_s)}"
        raise UsageError(f"{text} is not recorded", hint=hint)
    return time_s


def _seconds(text: str, first_s: float, last_s: float) -> float:
    if text.startswith("+"):
        return first_s + parse_duration(text[1:])
    if text.startswith("-"):
        return last_s - parse_duration(text[1:])
    if (clock := _CLOCK.fullmatch(text)) is not None:
        hour, minute, second = (int(part or 0) for part in clock.groups())
        day = datetime.fromtimestamp(last_s)
        at_s = day.replace(hour=hour, minute=minute, second=second, microsecond=0).timestamp()
        # The latest time that the clock showed this.
        return at_s if at_s <= last_s + _TOLERANCE_S else at_s - _DAY_S
    return datetime.fromisoformat(text).timestamp()


def split_time(text: str) -> tuple[Path, str | None]:
    """Splits ``FILE@03:15`` into the path and the time; None if there is no time."""
    path = Path(text)
    name, at, time_text = text.rpartition("@")
    if not at or path.exists():
        return path, None
    return Path(name), time_text
