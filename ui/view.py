"""The definition of a view, and the data that views are computed from; a recording's time line."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, field, fields, replace
from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import I64, HeapPoints
from tracelloc.model.process import ProcessInfo, Target
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.model.verdicts import Codes, Verdict
from tracelloc.show.analysis import differences as analysis
from tracelloc.show.analysis.differences import ALL, Limits, Mark, StackFigures
from tracelloc.show.filters import Filters, NamedStack
from tracelloc.show.presentation.alerts import alert_of
from tracelloc.show.presentation.calltree import ListedFunction, Step
from tracelloc.show.presentation.naming import Namer
from tracelloc.show.presentation.profile import Metric
from tracelloc.show.presentation.suspects import NOTHING_YET
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.system.invoker import Invoker
from tracelloc.text import NS_PER_S, format_size, format_time
from tracelloc.ui.lineview import LineView
from tracelloc.ui.stacknames import Names

if TYPE_CHECKING:
    from tracelloc.ui.player import RecordedSource


F64 = npt.NDArray[np.float64]
# Times between two snapshots, CLOCK_MONOTONIC, that are much longer than those around them.
Gaps = Sequence[tuple[int, int]]
_AROUND: Final = 4  # Distances before and after one that it is compared with
_LONGER: Final = 4  # So many times longer than usual is a gap
_LEAST_GAP_S: Final = 4.0


def find_gaps(uptimes_s: F64) -> Gaps:
    """Returns the gaps in which snapshots are missing; old snapshots are sparser anyway."""
    distances = np.diff(uptimes_s)
    if not len(distances):
        return ()
    padded = np.pad(distances, _AROUND, mode="reflect" if len(distances) > _AROUND else "edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _AROUND + 1)
    usual = np.median(windows, axis=1)
    found = np.flatnonzero(distances > np.maximum(_LONGER * usual, _LEAST_GAP_S))
    ns = np.rint(uptimes_s * NS_PER_S).astype(np.int64)
    return [(int(ns[at]), int(ns[at + 1])) for at in found.tolist()]


def are_in_gaps(gaps: Gaps, times_ns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns a mask of the times that lie in a gap."""
    inside = np.zeros(len(times_ns), np.bool_)
    for begin_ns, end_ns in gaps:
        inside |= (times_ns > begin_ns) & (times_ns < end_ns)
    return inside


def _with_gaps(points: HeapPoints, gaps: Gaps) -> HeapPoints:
    """Returns points with unknown values, which are negative, in gaps."""
    if not gaps:
        return points
    kept = ~are_in_gaps(gaps, points.time_ns)
    begins = np.array([begin_ns + 1 for begin_ns, _ in gaps], np.int64)
    times = np.append(points.time_ns[kept], begins)
    order = np.argsort(times, kind="stable")
    unknown = np.full(len(begins), -1, np.int64)
    names = [each.name for each in fields(HeapPoints) if each.name != "time_ns"]
    columns = {n: np.append(getattr(points, n)[kept], unknown)[order] for n in names}
    return HeapPoints(time_ns=times[order], **columns)


@dataclass(frozen=True, slots=True, eq=False)
class TimeLine:
    """The times of all snapshots as columns, oldest first. Immutable."""

    uptimes_s: F64  # CLOCK_MONOTONIC of the recorded machine, ascending
    times_s: F64  # Seconds since 1970; they jump if the clock was set
    index: int  # Number of the snapshot that is shown
    newest: TraceSnapshot  # The last snapshot, which has the curves of the whole time
    is_growing: bool  # Whether the recording may still grow
    gaps: Gaps = ()  # Where snapshots are missing: the recorder was starved, or did not run

    @property
    def is_at_end(self) -> bool:
        return self.index == len(self.uptimes_s) - 1

    def find(self, uptime_s: float) -> int:
        """Returns the number of the last snapshot up to an uptime; 0 if all are later."""
        return max(0, int(np.searchsorted(self.uptimes_s, uptime_s, side="right")) - 1)

    def find_time(self, time_s: float) -> int:
        """Returns the number of the last snapshot up to a time in seconds since 1970."""
        return int(max(np.flatnonzero(self.times_s <= time_s), default=0))

    def clock(self, time_ns: int) -> str:
        """Returns the time of day at a CLOCK_MONOTONIC time; with the date if on another day."""
        uptime_s = time_ns / NS_PER_S
        # Assumes that the clock was not set before the first snapshot, nor between two of them.
        at = self.find(uptime_s)
        time_s = float(self.times_s[at] + uptime_s - self.uptimes_s[at])
        date, _, clock = format_time(time_s).partition(" ")
        is_today = date == format_time(float(self.times_s[-1])).partition(" ")[0]
        return clock if is_today else f"{date[5:]} {clock}"

    def points(self, snapshot: Snapshot) -> HeapPoints | None:
        """Returns live bytes over the whole time; if merged, up to the shown snapshot."""
        series = snapshot.series
        if snapshot.merged is None:
            series = self.newest.snapshot_of(snapshot.target.number).series
        return None if series is None else _with_gaps(series, self.gaps)


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Constant facts on a trace, known once it has started, for the header and the log."""

    allocators: tuple[str, ...]  # Files whose functions are traced, by their base names
    functions: tuple[str, ...]  # The traced functions, with their files
    method: str  # How events come, in words
    ring_slots: int  # Capacity of the ring, in events


# Returns how many bytes the program has written, and the last of them. Any thread may call it.
LastOutput = Callable[[], tuple[int, bytes]]


class TraceSource(Protocol):
    """A live or recorded trace, as the screen uses it.

    Only the refresher's thread calls ``take_snapshot`` and uses namers and filters. What has a body
    is for a recording, which has nothing but snapshots.
    """

    has_many: bool  # Whether there may be several processes
    writes_files: bool  # Whether files are written at the end
    has_python: bool  # Whether a traced program may be a Python program
    filters: Filters  # The filters that all namers use
    facts: TraceFacts  # Facts that do not change
    invoker: Invoker  # The user whose filter file is written

    recorded: RecordedSource | None  # Snapshots of a recording; None if a process is traced now
    # Output of a program that tracelloc started; None for a running process.
    last_output: LastOutput | None

    def list_processes(self) -> list[ProcessInfo]:
        """Returns the processes that the user can switch to. Takes some time."""
        return []

    def take_snapshot(self, wanted: SnapshotRequest) -> TraceSnapshot:
        """Returns a new snapshot of all processes. Takes milliseconds. Raises TracellocError."""

    def namer(self, target: Target) -> Namer:
        """Returns the namer of a process's stacks."""

    def measured(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot with the blocks' usable sizes. Takes up to a tenth of a second."""
        return snapshot

    def ring_share(self) -> float:
        """Returns the ring's highest fill level since the last call, 0 to 1."""
        return 0.0

    def symbol_advice(self, target: Target, stack: NamedStack) -> str | None:
        """Returns advice on a stack's missing names and lines; None if there is none yet."""
        return None

    def read_source(self, target: Target, path: str) -> list[str]:
        """Returns the lines of a source file. Raises OSError."""


C = TypeVar("C")

# The snapshot content that a stack's details need, whichever view is shown.
BASIC: Final = SnapshotRequest(blocks=True)


@dataclass(frozen=True, slots=True)
class Sorting:
    """The column that rows are sorted by, and the order; an empty key: not sorted."""

    column: str  # Key of the column
    descending: bool = True


@dataclass(frozen=True, eq=False)
class View(Generic[C]):
    """One tab: its key, its content, its widget, and what choosing a row does.

    ``C`` is the type of its content, which the refresher's thread computes and the drawing
    thread shows. Content is immutable.
    """

    title: str  # Title of the tab
    key: str  # Key that shows the view
    # Returns the function that computes the content, which may keep state. Called once per run;
    # views with the same maker share that function.
    maker: Callable[[TraceSource], Callable[[ViewSelection], C]]
    widget: Callable[[], LineView[C]]  # Makes the widget that shows the content
    sorting: Sorting = Sorting("")  # The default sorting
    # Handles Enter on the row of a key. It returns a stack to open, settings to switch to, or None.
    choose: Callable[[Any, Settings], int | Settings | None] = lambda _key, _settings: None
    # The effect of `choose`, a word for the footer; empty if there is none, or the widget tells.
    enter_action: str = ""
    wanted: SnapshotRequest = BASIC  # The content that snapshots need while the view is shown
    keeps_state: bool = False  # Whether the maker's state is kept while other views are shown
    # Whether rows stand for stacks; the stack under the cursor is shown below the table.
    shows_stack: bool = False
    follows_metric: bool = False  # Whether figures are those of the chosen metric
    others: str = ""  # Other words that find it in the palette
    # Whether a run with this source has the view.
    exists: Callable[[TraceSource], bool] = lambda _source: True

    @property
    def name(self) -> str:
        return self.title.lower()


# The successive restrictions of the shown stacks; the first one shows all.
VERDICT_CHOICES: Final[tuple[tuple[Verdict, ...], ...]] = (
    (), (Verdict.LEAKING, Verdict.GROWING), (Verdict.CACHE,), (Verdict.BUSY,), (Verdict.START_UP,),
    (Verdict.DECIDING, Verdict.UNKNOWN), (Verdict.LOST, Verdict.EARLIER),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """A comparison of a mark with a later mark, or with now."""

    before: Mark
    after: Mark | None = None  # None: the current snapshot

    def title(self, now: str = "now") -> str:
        return f"{self.before.name} → {self.after.name if self.after else now}"


class Span(NamedTuple):
    """A span of the traced time, CLOCK_MONOTONIC."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings that determine what the views show."""

    view: View[Any]  # The shown view
    # Number of the shown process in the trace; negative for several (`ALL_PROCESSES`).
    process: int = 0
    # Whether the list of processes has a line for each process that has ended.
    shows_ended: bool = False
    # `GroupKey.lead` of the groups of stacks that are expanded.
    expanded: frozenset[int] = frozenset()
    function: Step | None = None  # The function whose callers and callees are shown
    # Sorting per view, by its name, unless it is the view's default.
    sortings: Mapping[str, Sorting] = field(default_factory=dict)
    search: str = ""  # Text that stacks' frames must match; empty: no search
    limits: Limits = ALL  # Limits of blocks that the user has typed
    verdicts: tuple[Verdict, ...] = ()  # Only stacks with these verdicts; empty: all
    # Show only blocks that were allocated since this mark and are still live.
    baseline: Mark | None = None
    # Show only blocks that were allocated within the span and are still live.
    span: Span | None = None
    difference: Difference | None = None  # The compared marks; None: no comparison
    inverted: bool = False  # Whether trees begin with the allocating functions
    metric: Metric = Metric.BYTES  # The figure that trees are weighted by
    filters_on: bool = True  # Whether filters hide frames
    selected: int | None = None  # Index of the selected stack; None: none
    charts_stacks: bool = False  # Whether the chart shows call stacks instead of functions
    listed_function: ListedFunction | None = None  # Function whose source is shown; None: none
    marks: tuple[Mark, ...] = field(default=())  # Marks that the user has set, oldest first

    @property
    def sorting(self) -> Sorting:
        return self.sortings.get(self.view.name, self.view.sorting)

    @property
    def all_limits(self) -> Limits:
        begin_ns, end_ns = self.span or (None, None)
        begins = [begin_ns, None if self.baseline is None else self.baseline.now_ns]
        after_ns = max((each for each in begins if each is not None), default=None)
        return replace(self.limits, born_after_ns=after_ns, born_before_ns=end_ns)

    @property
    def shows_peak(self) -> bool:
        """Whether the table is of the stacks that had live blocks at the heap's peak."""
        return self.sorting.column == "peak" and self.all_limits.is_open

    @property
    def narrows_stacks(self) -> bool:
        return bool(self.search or self.verdicts) or self.difference is not None


_COSTS: Final = 32


class Journal:
    """Messages and drawing costs. The drawing thread writes; the refresher's thread copies."""

    def __init__(self, warnings: Iterable[str] = ()) -> None:
        self.messages = [f"warning: {warning}" for warning in warnings]
        # Per view, for its latest pictures: seconds to compute, seconds to draw
        self.costs = defaultdict[str, deque[tuple[float, float]]](lambda: deque(maxlen=_COSTS))

    def say(self, text: str) -> None:
        self.messages.append(f"{time.strftime('%H:%M:%S')} {text}")


@dataclass(frozen=True, slots=True)
class ViewSelection:
    """The input of a view: one snapshot, restricted to the user's stacks and limits."""

    trace: TraceSnapshot  # All processes at this time
    snapshot: Snapshot  # The snapshot of the shown process
    settings: Settings
    namer: Namer  # Names the stacks of `snapshot`
    figures: StackFigures  # Figures per stack, of the blocks within the limits
    # Per stack the change in live bytes between the compared marks; None: no comparison.
    change: I64 | None
    growth: I64  # Growth per stack in bytes per minute, as verdicts have it
    # Per stack an index of `verdicts.VERDICTS`; None before the first verdicts.
    verdicts: Codes | None
    unsearched: I64  # Stacks within the limits, the heaviest first
    stacks: I64  # Stacks of `unsearched` that the search finds
    names: Names  # Labels of stacks
    ring_share: float  # Highest fill level of the event ring lately, 0 to 1
    journal: Journal  # Messages of the screen
    line: TimeLine | None = None  # All snapshots of the recording; None for a live trace

    def blocks(self, limits: Limits) -> Blocks:
        return analysis.pick_blocks(self.unlimited_blocks(), self.snapshot.now_ns, limits)

    def unlimited_blocks(self) -> Blocks:
        """Returns the blocks of the selection's stacks, whatever the limits on blocks."""
        assert self.snapshot.blocks is not None
        every = self.snapshot.blocks
        if not self.settings.narrows_stacks:
            return every
        chosen = np.zeros(len(self.snapshot.totals), np.bool_)
        chosen[self.stacks] = True
        return every.select(chosen[every.stack])

    @property
    def why_empty(self) -> str:
        settings = self.settings
        if settings.search or settings.verdicts:
            what = f"match /{settings.search}" if settings.search else "have this verdict"
            return f"no stacks {what} (Esc shows all)"
        if settings.difference is not None:
            return f"no change from {settings.difference.title()} (Esc goes back)"
        if settings.span is not None:
            return "no live blocks allocated in the span (Esc shows all)"
        if settings.baseline is not None:
            return "no live blocks allocated since the baseline (b switches it off)"
        if not settings.limits.is_open:
            return "no blocks within the limits (L changes them, Esc removes them)"
        return self._why_all_empty

    @property
    def _why_all_empty(self) -> str:
        alert = alert_of(self.snapshot)
        if alert is not None:
            return f"no traced block is live: {alert.sentence}"
        if not self.snapshot.events:
            return NOTHING_YET
        freed = "all blocks allocated since tracing began have been freed"
        if (rss_bytes := self.snapshot.rss_bytes) is None:
            return freed
        return f"{freed}; the RSS of {format_size(rss_bytes)} is older or not from malloc"


def is_live(source: TraceSource) -> bool:
    """Whether single blocks and threads are known: recordings have none."""
    return source.recorded is None


def difference(snapshot: Snapshot, settings: Settings) -> I64 | None:
    """Returns the change in live bytes per stack between the marks; None: no comparison."""
    if settings.difference is None:
        return None
    before, after = settings.difference.before, settings.difference.after
    grown = analysis.change(before, after or snapshot).grown("live_bytes")
    whole: I64 = np.zeros(len(snapshot.totals), np.int64)
    whole[: len(grown)] = grown
    return whole


def listed_stacks(
    snapshot: Snapshot, settings: Settings, figures: StackFigures, change: I64 | None
) -> I64:
    """Returns the stacks with blocks within the limits, before any search, the heaviest first.

    If marks are compared (``change``): the stacks that have changed. For flame graph and tree:
    all stacks with a weight, even without live blocks.
    """
    listed, weight, metric = figures.live_count, figures.live_bytes, settings.metric
    if change is not None:
        listed, weight = change, np.abs(change)
    elif settings.view.follows_metric and metric.figure.of_freed and settings.all_limits.is_open:
        listed = weight = metric.column(snapshot)
    elif settings.shows_peak:
        listed = weight = Metric.PEAK.column(snapshot)
    rows = np.flatnonzero(listed)
    return rows[np.argsort(-weight[rows], kind="stable")]
