"""Figures of a stack and metrics: all that is to be said of each, in one record.

Snapshots have a column per figure, profiles a figure per stack. A metric is a figure that
users choose by name to draw, compare and export stacks by. Figures of several stacks are
added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from tracelloc.heap.totals import I64
from tracelloc.snapshots.snapshot import Snapshot, StackStat
from tracelloc.text import format_size


class Unit(Enum):
    """What a figure counts. The value is for people."""

    BYTES = "bytes"
    BLOCKS = "blocks"
    RATE = "bytes/min"

    def format(self, value: int) -> str:
        """A figure in words; without its time if it is a rate."""
        return f"{value:,}" if self is Unit.BLOCKS else format_size(value)


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A figure that every stack has."""

    name: str
    """In JSON and CSV files."""
    attribute: str
    """Of ``StackStat``."""
    unit: Unit = Unit.BYTES
    sample_type: str | None = None
    """In pprof files; None: they don't have it."""
    of_freed: bool = True
    """Whether stacks that hold nothing any more may have some."""
    optional: bool = True
    """Whether there are files without it. It is shown if there is any or if it is asked for."""

    def of(self, stat: StackStat) -> int:
        """The figure of one stack."""
        value: int = getattr(stat, self.attribute)
        return value


# fmt: off
FIGURES: Final = (
    Figure("bytes", "live_bytes", Unit.BYTES, "inuse_space", of_freed=False, optional=False),
    Figure("allocations", "live_count", Unit.BLOCKS, "inuse_objects",
           of_freed=False, optional=False),
    Figure("allocated_bytes", "allocated_bytes", Unit.BYTES, "alloc_space", optional=False),
    Figure("allocated", "allocated_count", Unit.BLOCKS, "alloc_objects", optional=False),
    Figure("growth_bytes_per_min", "growth_bytes_per_min", Unit.RATE,
           of_freed=False, optional=False),
    Figure("peak_bytes", "peak_bytes", Unit.BYTES, "peak_space"),
    Figure("peak_allocations", "peak_count", Unit.BLOCKS),
    Figure("temporary_bytes", "temporary_bytes"),
    Figure("temporary_allocations", "temporary_count", Unit.BLOCKS, "temporary_objects"),
    Figure("remote_freed_bytes", "remote_bytes"),
    Figure("remote_frees", "remote_count", Unit.BLOCKS),
)
"""In the order in which files have them."""
(
    LIVE_BYTES, LIVE_COUNT, ALLOCATED_BYTES, ALLOCATED_COUNT, GROWTH_PER_MIN, PEAK_BYTES,
    PEAK_COUNT, TEMPORARY_BYTES, TEMPORARY_COUNT, REMOTE_BYTES, REMOTE_COUNT,
) = FIGURES
# fmt: on


class Metric(Enum):
    """What a stack weighs. The value is the name for users; ``noun`` goes after a figure."""

    BYTES = "bytes", LIVE_BYTES, "outstanding"
    BLOCKS = "blocks", LIVE_COUNT, "outstanding blocks"
    ALLOCATED = "allocated", ALLOCATED_BYTES, "allocated"
    GROWTH = "growth", GROWTH_PER_MIN, "growth"
    PEAK = "peak", PEAK_BYTES, "outstanding at the peak"
    TEMPORARY = "temporary", TEMPORARY_COUNT, "temporary allocations"

    figure: Figure
    noun: str

    def __new__(cls, name: str, figure: Figure, noun: str) -> Metric:
        """A member of this name."""
        metric = object.__new__(cls)
        metric._value_ = name
        metric.figure = figure
        metric.noun = noun
        return metric

    @property
    def unit(self) -> Unit:
        """What its figures count."""
        return self.figure.unit

    @property
    def heading(self) -> str:
        """Above a narrow column."""
        if self is Metric.BYTES:
            return self.noun
        return f"{self.value}/min" if self.unit is Unit.RATE else str(self.value)

    @property
    def title(self) -> str:
        """Standing alone: the noun with its unit."""
        return self.noun if self.unit is Unit.BLOCKS else f"{self.unit.value} {self.noun}"

    def of(self, stat: StackStat) -> int:
        """The weight of one stack."""
        return self.figure.of(stat)

    def column(self, snapshot: Snapshot) -> I64:
        """The weight of each stack."""
        return snapshot.column(self.figure.attribute)


METRICS: Final = {metric.value: metric for metric in Metric}
"""By name."""
