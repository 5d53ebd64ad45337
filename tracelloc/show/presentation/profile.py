"""Profiles: the named call stacks of a process with their figures, the content of files.

A profile comes from a snapshot or a file, or is the difference of two profiles. Figures of a
difference are later minus earlier, and may be negative. A metric is a figure that users choose
by name to draw, compare and export stacks by. Figures of several stacks are added up.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from tracelloc.dataclass import dataclass, field
from tracelloc.model.process import Space
from tracelloc.text import format_size

if TYPE_CHECKING:
    from tracelloc.model.figures import I64
    from tracelloc.model.frames import Frame
    from tracelloc.model.process import Target
    from tracelloc.show.filters import NamedStack
    from tracelloc.show.presentation.suspects import NamedSuspect
    from tracelloc.snapshots.snapshot import Snapshot, StackStat


class FigureUnit(Enum):
    """The unit of a figure; the value is for people."""

    BYTES = "bytes"
    BLOCKS = "blocks"
    RATE = "bytes/min"

    def format(self, value: int) -> str:
        """Formats a figure; a rate is formatted without its time unit."""
        return f"{value:,}" if self is FigureUnit.BLOCKS else format_size(value)


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A figure that every stack has, and its names in file formats."""

    name: str  # Name in JSON and CSV files
    attribute: str  # Attribute of `StackStat`
    unit: FigureUnit = FigureUnit.BYTES
    sample_type: str | None = None  # Name in pprof files; None if they don't have it
    of_freed: bool = True  # Whether the figure can be nonzero for stacks without live blocks
    # Whether files may lack it; it is then shown if it is nonzero or requested.
    optional: bool = True

    def value_of(self, stat: StackStat) -> int:
        return int(getattr(stat, self.attribute))


GPU_PREFIX: Final = "gpu_"  # Of names in pprof files

# fmt: off
# All figures, in file order.
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
(
    LIVE_BYTES, LIVE_COUNT, ALLOCATED_BYTES, ALLOCATED_COUNT, GROWTH_PER_MIN, PEAK_BYTES,
    PEAK_COUNT, TEMPORARY_BYTES, TEMPORARY_COUNT, REMOTE_BYTES, REMOTE_COUNT,
) = FIGURES
# fmt: on


class Metric(Enum):
    """A weight of stacks. The value is the name for users; ``noun`` follows a figure."""

    BYTES = "bytes", LIVE_BYTES, "live", "live bytes"
    BLOCKS = "blocks", LIVE_COUNT, "live blocks", "live blocks"
    ALLOCATED = "allocated", ALLOCATED_BYTES, "allocated", "allocated bytes"
    GROWTH = "growth", GROWTH_PER_MIN, "growth", "bytes/min of growth"
    PEAK = "peak", PEAK_BYTES, "live at the peak", "live bytes at the peak"
    TEMPORARY = "temporary", TEMPORARY_COUNT, "temporary allocations", "temporary allocations"

    figure: Figure
    noun: str  # Noun behind a figure
    title: str  # Stand-alone name: `live bytes`

    def __new__(cls, name: str, figure: Figure, noun: str, title: str) -> Metric:
        metric = object.__new__(cls)
        metric._value_ = name
        metric.figure = figure
        metric.noun = noun
        metric.title = title
        return metric

    @property
    def unit(self) -> FigureUnit:
        return self.figure.unit

    @property
    def heading(self) -> str:
        if self is Metric.BYTES:
            return self.noun
        return f"{self.value}/min" if self.unit is FigureUnit.RATE else str(self.value)

    def value_of(self, stat: StackStat) -> int:
        return self.figure.value_of(stat)

    def column(self, snapshot: Snapshot) -> I64:
        return snapshot.column(self.figure.attribute)


METRICS: Final = {metric.value: metric for metric in Metric}


@dataclass(frozen=True, slots=True)
class Sample:
    """A call stack of a profile, with its figures."""

    stat: StackStat
    stack: NamedStack
    before: StackStat | None = None  # Figures of the earlier profile, in a difference
    verdict: str | None = None  # Verdict on the stack; None if it was not judged
    block_type: str | None = None  # Type of its blocks; None if unknown
    # Process of the sample if the profile has several; None: the profile's target.
    pid: int | None = None

    def weight(self, metric: Metric) -> int:
        """Returns the sample's weight; negative only in differences and for growth."""
        return metric.value_of(self.stat)

    def after(self, metric: Metric) -> int:
        """Returns the weight; of a sample of a difference, the weight in the later profile."""
        return self.weight(metric) + (0 if self.before is None else metric.value_of(self.before))


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A mapped file of code, with its addresses in the target."""

    path: str
    start: int
    end: int
    offset: int  # File offset of `start`
    build_id: str | None


@dataclass(frozen=True, slots=True)
class Profile:
    """Stacks with their figures, and the trace that they come from."""

    target: Target
    time_s: float  # Wall clock, seconds since 1970
    elapsed_ns: int  # Time traced; for a difference, the time between the two profiles
    sample_bytes: int | None
    samples: Sequence[Sample]  # By live bytes, largest first
    files: Sequence[MappedFile] = ()  # By address
    notes: Sequence[str] = ()  # Sentences on what the figures lack
    # Leak suspects, the strongest first; none in differences and in profiles from files.
    suspects: Sequence[NamedSuspect] = ()
    # (time since tracing began in ns, live bytes then), oldest first.
    series: Sequence[tuple[int, int]] = ()
    # The figures of the whole target, as JSON reports have them; empty if unknown.
    facts: Mapping[str, Any] = field(default_factory=dict)
    has_modules: bool = True  # Whether frames have their file; frames of folded stacks do not
    # Metrics that the profile has; figures of others are 0.
    metrics: frozenset[Metric] = frozenset(Metric)
    # Identifies the process's live table; totals of another table began at zero.
    table_number: int = 0
    parts: Sequence[Profile] = ()  # The profiles of each process, if several are merged

    @property
    def space(self) -> str:
        """Where the blocks are: the value of a ``Space``."""
        return str(self.facts.get("space", Space.HOST.value))

    @property
    def type_prefix(self) -> str:
        """Beginning of figures' names in pprof files: bytes of GPUs are of types of their own."""
        return "" if self.space == Space.HOST.value else GPU_PREFIX

    def type_of(self, figure: Figure) -> str:
        return f"{self.type_prefix}{figure.sample_type or ''}"

    @property
    def is_difference(self) -> bool:
        return bool(self.facts.get("difference"))

    def shows(self, metric: Metric) -> bool:
        """Whether a metric is worth showing: it is nonzero, or all profiles have it."""
        return not metric.figure.optional or any(s.after(metric) for s in self.samples)

    def total(self, metric: Metric) -> int:
        return sum(sample.weight(metric) for sample in self.samples)


class FileNumbers:
    """Finds the mapped files of a profile by address, numbered from 1."""

    def __init__(self, profile: Profile) -> None:
        self.files = sorted(profile.files, key=lambda file: (file.start, file.path))
        self._starts = [file.start for file in self.files]
        self._known: dict[tuple[int, str | None], int] = {}

    def find(self, frame: Frame) -> int:
        """Returns the number of the file that a frame's code is in; 0 if there is none."""
        address, key = frame.address, (frame.address, frame.module)
        if key not in self._known:
            self._known[key] = next(
                (
                    number
                    for number in range(bisect.bisect_right(self._starts, address - 1), 0, -1)
                    # Mappings of different times may overlap: the name tells which one is right.
                    if (file := self.files[number - 1]).path == frame.module
                    and file.start < address <= file.end
                ),
                0,
            )
        return self._known[key]


def figures_of(stat: StackStat) -> dict[str, int]:
    """Returns a stack's figures by their names in JSON and CSV files."""
    return {figure.name: figure.value_of(stat) for figure in FIGURES}
