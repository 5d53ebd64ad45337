"""The figures of one part of a program's run, such as one test."""

from __future__ import annotations

from dataclasses import dataclass

from tracelloc.model.figures import I64


@dataclass(frozen=True, slots=True)
class PartFigures:
    """Blocks that were allocated in a part; blocks from before it do not count."""

    peak_bytes: int  # Most bytes that were live at a time
    allocated_bytes: int
    allocated_count: int
    live_bytes: int  # Bytes that are live at its end
    live_count: int
    at_peak: I64  # Bytes that were live at the peak, by stack
    at_peak_count: I64
    problem: str = ""  # Why events are missing; empty if none are
