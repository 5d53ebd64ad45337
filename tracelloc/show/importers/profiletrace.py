"""Converts a single profile, of another tool or tracelloc, to a recording of one snapshot.

Figures that the profile lacks are as small as they can be: blocks count one per call stack, and
what was freed is 0. Verdicts, growth and single blocks need more than one profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from tracelloc.errors import MalformedError
from tracelloc.model.blocks import BlockSelection
from tracelloc.model.codefiles import CodeModule, Place, Unresolved
from tracelloc.model.figures import I64, History, Peak, Points, Totals
from tracelloc.model.frames import Frame, unnamed
from tracelloc.model.losses import Counter, Oddities
from tracelloc.model.process import Overhead
from tracelloc.model.stacks import CallStacks, StackFlag
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.presentation.profile import Metric, Profile, Sample
from tracelloc.show.recording.writer import RecordingWriter
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.snapshots.taking import take_losses

_DEEPEST: Final = 512
# Stands for the address of frames that have none; beyond all addresses of programs.
_FIRST_ADDRESS: Final = 1 << 52
_MAX_BYTES: Final = 1 << 40
_MAX_S: Final = 1e9
_START_NS: Final = 1 << 40


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


class _FrameAddresses:
    """Addresses of frames: their own, if no other frames have it."""

    def __init__(self) -> None:
        self.names = FileNames()
        self._known: dict[tuple[Frame, ...], int] = {}

    def addresses(self, frames: Sequence[Frame]) -> list[int]:
        """Returns one address for each frame that is not inlined."""
        found, group = [], []
        for at, frame in enumerate(frames):
            group.append(frame)
            if not frame.inlined or at == len(frames) - 1:
                found.append(self._address(tuple(group)))
                group = []
        return found

    def _address(self, group: tuple[Frame, ...]) -> int:
        address = self._known.get(group)
        if address is None:
            address = group[-1].address
            if not 0 < address < _FIRST_ADDRESS or address in self.names.frames:
                address = _FIRST_ADDRESS + len(self._known)
            self._known[group] = address
            self.names.frames[address] = [replace(frame, address=address) for frame in group]
        return address


def convert_profile(profile: Profile, tool: str, into: Path) -> None:
    """Writes a profile as a recording. Raises MalformedError and TracellocError."""
    if profile.is_difference or not profile.samples:
        what = "it is a difference of two profiles" if profile.samples else "it has no call stacks"
        raise MalformedError(what)
    places = _FrameAddresses()
    namers = Namers(places.names, Filters())
    writer = RecordingWriter(into, max_bytes=_MAX_BYTES, max_s=_MAX_S)
    try:
        writer.add(TraceSnapshot((_snapshot(profile, places),)), namers)
        writer.describe({
            "pid": str(profile.target.pid), "command": profile.target.command,
            "tool": tool, "single": _notes(profile),
        })  # fmt: skip
    finally:
        writer.close()


def _notes(profile: Profile) -> str:
    """Returns which figures are made up, if any."""
    if Metric.BLOCKS in profile.metrics:
        return ""
    return "the profile has no counts of blocks: each call stack is shown as one block"


def _snapshot(profile: Profile, places: _FrameAddresses) -> Snapshot:
    samples = profile.samples
    totals = _totals(profile)
    now_ns = _START_NS + profile.elapsed_ns
    stacks = _stacks(samples, places)
    live_bytes, live_count = totals.live_bytes, totals.live_count
    size_bytes = int(live_bytes.sum())
    peak = None
    if Metric.PEAK in profile.metrics:
        counts = _column(samples, "peak_count")
        peak = Peak(now_ns, int(totals.peak_bytes.sum()), totals.peak_bytes, counts)
    series = [(now_ns, size_bytes)]
    series[:0] = [(_START_NS + at_ns, held) for at_ns, held in profile.series[:-1]]
    times, held = (np.array(column, np.int64) for column in zip(*series, strict=True))
    unknown = np.full(len(times), -1, np.int64)
    losses = take_losses(np.zeros(len(Counter), np.uint64), Oddities(), 0, shared=False)
    truncated = int(np.count_nonzero(stacks.have(StackFlag.TRUNCATED)))
    return Snapshot(
        target=profile.target,
        started_ns=_START_NS,
        overhead=Overhead(0.0, None, ()),
        series=Points(times, held, unknown, np.zeros_like(unknown)),
        time_s=profile.time_s,
        now_ns=now_ns,
        totals=totals,
        growth_per_min=np.zeros(len(totals), np.int64),
        stacks=stacks,
        events=int(totals.allocated_count.sum() + totals.freed_count.sum()),
        losses=losses,
        truncated_stacks=truncated,
        broken_stacks=0,
        partial_allocations=0,
        unknown_stacks=0,
        top_blocks=BlockSelection(int(live_count.sum()), size_bytes, ()),
        old_blocks=None,
        history=History(_START_NS, live_bytes),
        peak=peak,
    )


def _column(samples: Sequence[Sample], name: str) -> I64:
    """Returns a figure of all samples, by stack: index 0 is for none."""
    return np.array([0, *(getattr(sample.stat, name) for sample in samples)], np.int64)


def _totals(profile: Profile) -> Totals:
    """Returns totals per stack; figures that are not known are as small as they can be."""
    samples = profile.samples
    totals = Totals.empty(len(samples) + 1, profile.sample_bytes)
    live_bytes = np.maximum(_column(samples, "live_bytes"), 0)
    live_count = np.maximum(_column(samples, "live_count"), live_bytes > 0)
    totals.allocated_bytes = np.maximum(_column(samples, "allocated_bytes"), live_bytes)
    totals.allocated_count = np.maximum(_column(samples, "allocated_count"), live_count)
    totals.freed_bytes = totals.allocated_bytes - live_bytes
    totals.freed_count = totals.allocated_count - live_count
    for name in ("temporary_bytes", "temporary_count", "remote_bytes", "remote_count"):
        setattr(totals, name, np.maximum(_column(samples, name), 0))
    totals.peak_bytes = np.maximum(_column(samples, "peak_bytes"), 0)
    return totals


def _stacks(samples: Sequence[Sample], places: _FrameAddresses) -> CallStacks:
    depths, flags, frames = [0], [0], []
    for sample in samples:
        addresses = places.addresses(sample.stack.frames)
        flags.append(int(StackFlag.TRUNCATED if len(addresses) > _DEEPEST else StackFlag(0)))
        depths.append(min(len(addresses), _DEEPEST))
        frames += addresses[:_DEEPEST]
    lengths = np.array(depths, np.int64)
    starts = np.cumsum(lengths) - lengths
    return CallStacks.from_columns(
        starts, lengths, np.array(flags, np.uint16), np.array(frames, np.uint64)
    )
