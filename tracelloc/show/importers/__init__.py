"""Reads profiles of other tools and of tracelloc: pprof, folded stacks, JSON, recordings.

Snapshots in JSON are as tracelloc.show.export.listings writes them. Folded stacks may have two
figures per line, as a difference has them.
"""

import math
import re
import zlib
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from tracelloc.errors import MalformedError, TracellocError, UsageError
from tracelloc.model.codefiles import Unresolved
from tracelloc.model.frames import Frame
from tracelloc.model.process import Space, Target
from tracelloc.show.export.listings import FORMAT, VERSION
from tracelloc.show.filters import NamedStack
from tracelloc.show.filters.files import load_filters
from tracelloc.show.importers import pprof
from tracelloc.show.presentation.combined import joined_profile, trace_profiles
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.presentation.profile import FIGURES, MappedFile, Metric, Profile, Sample
from tracelloc.show.recording.container import is_recording
from tracelloc.show.recording.joined import find_moment
from tracelloc.show.recording.parts import from_plain
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.snapshots.snapshot import StackStat
from tracelloc.system.bounded import parse_json
from tracelloc.text import NS_PER_S

# Largest file that is read, unpacked; dozens of times the size of 10,000 stacks.
LARGEST_BYTES: Final = 1 << 28
_MOST_JSON_BYTES: Final = 1 << 30  # Memory limit for the values of a snapshot in JSON
_LARGEST_SUM: Final = 1 << 60  # Largest sum of a figure over all stacks
GZIP: Final = b"\x1f\x8b"
_LEGACY: Final = b"heap_v2/", b"heap profile:"
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def read_profile(path: Path, time_text: str | None = None) -> Profile:
    """Reads a profile by its content. ``time_text``: of a recording. Raises TracellocError."""
    try:
        if is_recording(path):
            return _recorded(path, time_text)
        if time_text is not None:
            raise UsageError(f"{path} is a single profile, not a recording")
        content = content_of(path)
        if content.startswith(_LEGACY):
            raise MalformedError(
                "it is in the text format of jemalloc, gperftools and Go's debug=1, which "
                "go tool pprof -proto converts"
            )
        if content.lstrip()[:1] == b"{":
            profile = read_json(content)
        elif _CONTROL.search(content, 0, 4096):  # no text
            profile = pprof.read(content, path.stat().st_mtime)
        else:
            profile = read_folded(content, path.stat().st_mtime)
        _check(profile)
    except OSError as error:
        raise TracellocError(f"{path} cannot be read: {error.strerror}") from error
    except MalformedError as error:
        hint = "known are recordings, pprof files, JSON snapshots and folded stacks"
        raise TracellocError(f"{path} cannot be read: {error}", hint=hint) from error
    return profile


def check_metrics(profile: Profile, path: Path | str, metrics: Iterable[Metric]) -> None:
    """Raises UsageError for a metric that a profile has no figures of."""
    for metric in metrics:
        if metric not in profile.metrics:
            hint = "JSON snapshots have them all"
            raise UsageError(f"{path} has no figures for --metric {metric.value}", hint=hint)


def _recorded(path: Path, time_text: str | None) -> Profile:
    with closing(RecordedTrace(path)) as recording:
        namers = Namers(recording, load_filters()[0])
        trace = recording.trace_at(find_moment(recording, time_text))
        return joined_profile(trace_profiles(trace, namers, freed=True))


def _check(profile: Profile) -> None:
    stats = [stat for s in profile.samples for stat in (s.stat, s.before) if stat is not None]
    for figure in FIGURES:
        if sum(abs(figure.value_of(stat)) for stat in stats) > _LARGEST_SUM:
            raise MalformedError(f"its {figure.name} are implausibly large")


def content_of(path: Path) -> bytes:
    """Returns the content of a file, unpacked. Raises OSError and MalformedError."""
    with path.open("rb") as stream:
        packed = stream.read(LARGEST_BYTES + 1)
    if packed[:2] != GZIP:
        if len(packed) > LARGEST_BYTES:
            raise MalformedError("it is larger than 256 MiB")
        return packed
    unpacker = zlib.decompressobj(31)
    try:
        content = unpacker.decompress(packed, LARGEST_BYTES + 1)
    except zlib.error as error:
        raise MalformedError(f"its compression is damaged ({error})") from error
    if len(content) > LARGEST_BYTES:
        raise MalformedError("it is larger than 256 MiB, unpacked")
    if not unpacker.eof:
        raise MalformedError("it ends too early")
    return content


_LINE: Final = re.compile(r"(?P<stack>.*?)(?: (?P<before>\d+))? (?P<after>\d+)")


def read_folded(content: bytes, time_s: float) -> Profile:
    """Reads folded stacks, whose figure is live bytes; the root becomes all frames' module."""
    samples = []
    root = ""
    for number, line in enumerate(content.decode(errors="backslashreplace").splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None or len(match["after"]) > 18 or len(match["before"] or "") > 18:
            raise MalformedError(f"line {number} is not a folded stack and a figure")
        before = match["before"]
        root, *names = match["stack"].split(";")
        frames = [Frame(0, name, name, None, None, root, None) for name in reversed(names)]
        stack = NamedStack(frames, [False] * len(frames))
        was, now = int(before or 0), int(match["after"])
        stat = StackStat(number, now - was, 0, 0, 0, 0)
        earlier = StackStat(number, was, 0, 0, 0, 0) if before is not None else None
        samples.append(Sample(stat, stack, earlier))
    samples.sort(key=lambda sample: (-sample.stat.live_bytes, sample.stat.index))
    return Profile(
        target=Target(0, root if samples else "unknown"), time_s=time_s, elapsed_ns=0,
        sample_bytes=None, samples=samples,
        facts={"difference": True} if any(s.before is not None for s in samples) else {},
        has_modules=False, metrics=frozenset({Metric.BYTES}),
    )  # fmt: skip


def read_json(content: bytes) -> Profile:
    """Reads a JSON snapshot. Raises MalformedError."""
    try:
        entry = parse_json(content, _MOST_JSON_BYTES)
    except ValueError as error:
        raise MalformedError(f"it is damaged JSON ({error})") from error
    if not isinstance(entry, dict) or entry.get("format") != FORMAT:
        raise MalformedError("it is JSON, but not a snapshot of tracelloc's")
    if entry.get("version") != VERSION:
        raise MalformedError(f"it has version {entry.get('version')}, tracelloc reads {VERSION}")
    try:
        return _profile(entry)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise MalformedError(f"something in it is missing or wrong ({error!r})") from error


def _profile(entry: dict[str, Any]) -> Profile:
    frames = [_frame(each) for each in entry["frames"]]
    history = entry["history"]
    facts: dict[str, Any] = {**entry["figures"], "space": Space(entry.get("space", "host")).value}
    if entry["difference"]:
        facts["difference"] = True
    sample_bytes = entry["sample_bytes"]
    return Profile(
        target=Target(int(entry["pid"]), _text(entry["command"])),
        time_s=_seconds(entry["time"]),
        elapsed_ns=round(_seconds(entry["elapsed_s"]) * NS_PER_S),
        sample_bytes=None if sample_bytes is None else int(sample_bytes),
        samples=[_sample(each, frames) for each in entry["stacks"]],
        files=[from_plain(MappedFile, each) for each in entry["modules"]],
        notes=[_text(note) for note in entry["notes"]],
        series=[
            (round(_seconds(time_s) * NS_PER_S), int(held))
            for time_s, held in zip(history["elapsed_s"], history["bytes"], strict=True)
        ],
        facts=facts,
        metrics=frozenset(
            m for m in Metric if all(m.figure.name in each for each in entry["stacks"])
        ),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} is not a time")
    return seconds


def _frame(entry: dict[str, Any]) -> Frame:
    reason = entry["reason"]
    frame: Frame = from_plain(Frame, entry | {"reason": reason and Unresolved(reason).name})
    return frame


def _stat(index: int, entry: dict[str, Any]) -> StackStat:
    values = (int(entry.get(f.name, 0) if f.optional else entry[f.name]) for f in FIGURES)
    return StackStat(index, *values)


def _sample(entry: dict[str, Any], frames: list[Frame]) -> Sample:
    index = int(entry["stack_id"])
    chosen = [frames[at] for at in entry["frames"] if at >= 0]
    hidden = [False] * len(chosen)
    for at in entry.get("hidden", ()):
        hidden[at] = True
    given = entry.get("labels") or {}
    labels: list[str | None] = [None] * (len(chosen) if given else 0)
    for at, label in given.items():
        labels[int(at)] = _text(label)
    before = entry.get("before")
    earlier = None if before is None else _stat(index, before)
    named = NamedStack(chosen, hidden, labels)
    return Sample(stat=_stat(index, entry), stack=named, before=earlier)
