"""Profiles: what each call stack weighs, by name. Files are written from them and read into them.

A profile comes from a snapshot, from a file, or is the difference of two others: then the
figures are what the later one has more, and may be negative. A metric is a figure that users
choose by name to draw, compare and export stacks by. Figures of several stacks are added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from tracelloc.text import format_size

if TYPE_CHECKING:
    from tracelloc.heap.totals import I64
    from tracelloc.model.process import Target
    from tracelloc.show.filters import NamedStack
    from tracelloc.show.presentation.suspects import NamedSuspect
    from tracelloc.snapshots.snapshot import Snapshot, StackStat


class FigureUnit(Enum):
    """Unit of a figure. The value is for people."""

    BYTES = "bytes"
    BLOCKS = "blocks"
    RATE = "bytes/min"

    def format(self, value: int) -> str:
        """A figure in words; without its time if it is a rate."""
        return f"{value:,}" if self is FigureUnit.BLOCKS else format_size(value)


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A figure that every stack has."""

    name: str
    """In JSON and CSV files."""
    attribute: str
    """Attribute of ``StackStat``."""
    unit: FigureUnit = FigureUnit.BYTES
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
    Figure("bytes", "live_bytes", FigureUnit.BYTES, "inuse_space", of_freed=False, optional=False),
    Figure("allocations", "live_count", FigureUnit.BLOCKS, "inuse_objects",
           of_freed=False, optional=False),
    Figure("allocated_bytes", "allocated_bytes", FigureUnit.BYTES, "alloc_space", optional=False),
    Figure("allocated", "allocated_count", FigureUnit.BLOCKS, "alloc_objects", optional=False),
    Figure("growth_bytes_per_min", "growth_bytes_per_min", FigureUnit.RATE,
           of_freed=False, optional=False),
    Figure("peak_bytes", "peak_bytes", FigureUnit.BYTES, "peak_space"),
    Figure("peak_allocations", "peak_count", FigureUnit.BLOCKS),
    Figure("temporary_bytes", "temporary_bytes"),
    Figure("temporary_allocations", "temporary_count", FigureUnit.BLOCKS, "temporary_objects"),
    Figure("remote_freed_bytes", "remote_bytes"),
    Figure("remote_frees", "remote_count", FigureUnit.BLOCKS),
)
"""In the order in which files have them."""
(
    LIVE_BYTES, LIVE_COUNT, ALLOCATED_BYTES, ALLOCATED_COUNT, GROWTH_PER_MIN, PEAK_BYTES,
    PEAK_COUNT, TEMPORARY_BYTES, TEMPORARY_COUNT, REMOTE_BYTES, REMOTE_COUNT,
) = FIGURES
# fmt: on


class Metric(Enum):
    """What a stack weighs. The value is the name for users; ``noun`` goes after a figure."""

    BYTES = "bytes", LIVE_BYTES, "live", "live bytes"
    BLOCKS = "blocks", LIVE_COUNT, "live blocks", "live blocks"
    ALLOCATED = "allocated", ALLOCATED_BYTES, "allocated", "allocated bytes"
    GROWTH = "growth", GROWTH_PER_MIN, "growth", "bytes/min of growth"
    PEAK = "peak", PEAK_BYTES, "live at the peak", "live bytes at the peak"
    TEMPORARY = "temporary", TEMPORARY_COUNT, "temporary allocations", "temporary allocations"

    figure: Figure
    noun: str
    title: str
    """Name that stands alone: ``live bytes``."""

    def __new__(cls, name: str, figure: Figure, noun: str, title: str) -> Metric:
        """A member of this name."""
        metric = object.__new__(cls)
        metric._value_ = name
        metric.figure = figure
        metric.noun = noun
        metric.title = title
        return metric

    @property
    def unit(self) -> FigureUnit:
        """Unit of the figures."""
        return self.figure.unit

    @property
    def heading(self) -> str:
        """Title of a narrow column."""
        if self is Metric.BYTES:
            return self.noun
        return f"{self.value}/min" if self.unit is FigureUnit.RATE else str(self.value)

    def of(self, stat: StackStat) -> int:
        """The weight of one stack."""
        return self.figure.of(stat)

    def column(self, snapshot: Snapshot) -> I64:
        """The weight of each stack."""
        return snapshot.column(self.figure.attribute)


METRICS: Final = {metric.value: metric for metric in Metric}
"""By name."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call stack and its figures."""

    stat: StackStat
    stack: NamedStack
    before: StackStat | None = None
    """Figures of the earlier profile, in a difference."""
    verdict: str | None = None
    """What kind of memory it is; None if nobody looked."""
    pid: int | None = None
    """Process of the sample, where there are several; None: the profile's target."""

    def weight(self, metric: Metric) -> int:
        """Weight of the sample; negative only in differences and for growth."""
        return metric.of(self.stat)

    def after(self, metric: Metric) -> int:
        """Weight in the end: in a difference, that in the later profile."""
        return self.weight(metric) + (0 if self.before is None else metric.of(self.before))


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file of code in the target's memory. Addresses are the target's."""

    path: str
    start: int
    end: int
    offset: int
    """In the file, of ``start``."""
    build_id: str | None


@dataclass(frozen=True, slots=True)
class Profile:
    """Stacks with their figures, and where they come from."""

    target: Target
    time_s: float
    """Wall clock, seconds since 1970."""
    elapsed_ns: int
    """How long it was traced; of a difference, the time between the two."""
    sample_bytes: int | None
    samples: Sequence[Sample]
    """By live bytes, largest first."""
    files: Sequence[MappedFile] = ()
    """By address."""
    notes: Sequence[str] = ()
    """What was missed, in words."""
    suspects: Sequence[NamedSuspect] = ()
    """What leaks or may leak, the best first; none in differences and in profiles from files."""
    series: Sequence[tuple[int, int]] = ()
    """(time since tracing began in ns, live bytes then), oldest first."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The figures of the whole target, as JSON reports have them; empty if unknown."""
    has_modules: bool = True
    """Whether frames say in which file they are: folded stacks do not."""
    metrics: frozenset[Metric] = frozenset(Metric)
    """What it has figures of; those of others are 0."""
    table_number: tuple[int, int] = (0, 1)
    """Which of the process's tables it is of; totals of another one have begun at zero."""
    parts: Sequence[Profile] = ()
    """The profiles of each process, where it is several in one."""

    @property
    def is_difference(self) -> bool:
        """Whether figures are differences."""
        return bool(self.facts.get("difference"))

    def shows(self, metric: Metric) -> bool:
        """Whether the metric is of use: there is some of it, or all profiles have it."""
        return not metric.figure.optional or any(s.after(metric) for s in self.samples)

    def total(self, metric: Metric) -> int:
        """The sum over all stacks."""
        return sum(sample.weight(metric) for sample in self.samples)


def figures_of(stat: StackStat) -> dict[str, int]:
    """Figures by the names that files use."""
    return {figure.name: figure.of(stat) for figure in FIGURES}
