"""The section of the peak: what was outstanding when most was."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from tracelloc.report.part import StackFrames, StackLines, amount, entry_lines, largest
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.units import NS_PER_S, about_of, format_age, format_size


@dataclass(frozen=True, slots=True)
class PeakEntry:
    """A stack at the peak."""

    index: int
    size_bytes: int
    count: int
    share: float
    """Of the peak."""
    live_bytes: int
    """What it holds now."""


@dataclass(frozen=True, slots=True)
class PeakPart:
    """The high-water mark and its largest stacks."""

    size_bytes: int
    count: int
    age_ns: int
    live_bytes: int
    holding: int
    """Stacks that held anything then."""
    entries: tuple[PeakEntry, ...]
    about: str

    @classmethod
    def of(cls, snapshot: Snapshot, top: int) -> PeakPart:
        """The ``top`` stacks of it."""
        peak, about = snapshot.peak, about_of(snapshot.sample_bytes)
        if peak is None:
            return cls(0, 0, 0, snapshot.live_bytes, 0, (), about)
        holding, order = largest(peak.live_bytes, top)
        live = snapshot.totals.live_bytes
        return cls(
            size_bytes=peak.size_bytes,
            count=int(peak.live_count.sum()),
            age_ns=max(0, snapshot.now_ns - peak.time_ns),
            live_bytes=snapshot.live_bytes,
            holding=holding,
            entries=tuple(
                PeakEntry(
                    stack,
                    int(peak.live_bytes[stack]),
                    int(peak.live_count[stack]),
                    int(peak.live_bytes[stack]) / max(peak.size_bytes, 1),
                    int(live[stack]),
                )
                for stack in order
            ),
            about=about,
        )

    @property
    def stacks(self) -> Set[int]:
        """Of all entries."""
        return {entry.index for entry in self.entries}

    def lines(self, stack: StackLines) -> Iterator[str]:
        """The peak, and its stacks by what they held."""
        yield (
            f"==> peak {format_age(self.age_ns)} ago: "
            f"{amount(self.size_bytes, self.count, self.about)}, "
            f"now {self.about}{format_size(self.live_bytes)}, "
            f"{len(self.entries)} top allocators out of {self.holding} then:"
        )
        yield from entry_lines(self.entries, self._line, stack)

    def _line(self, entry: PeakEntry) -> str:
        held = amount(entry.size_bytes, entry.count, self.about)
        return f"{held} ({entry.share:.1%}), now {self.about}{format_size(entry.live_bytes)}"

    def facts(self, stack: StackFrames) -> dict[str, Any]:
        """``top_allocators`` by what they held then."""
        return {
            "bytes": self.size_bytes,
            "allocations": self.count,
            "ago_s": self.age_ns / NS_PER_S,
            "stacks": self.holding,
            "top_allocators": [
                {
                    "bytes": entry.size_bytes,
                    "allocations": entry.count,
                    "live_bytes": entry.live_bytes,
                    "stack_id": entry.index,
                    "stack": stack(entry.index),
                }
                for entry in self.entries
            ],
        }
