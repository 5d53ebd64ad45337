"""What a view of the screen is, and what views are made of.

A view makes its content of a ``ViewSelection``: a snapshot of the ``Source`` and what the
user's ``Settings`` leave of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import I64
from tracelloc.model.process import Target
from tracelloc.model.processlist import ProcessInfo
from tracelloc.model.verdicts import Codes, Verdict
from tracelloc.model.wanted import Wanted
from tracelloc.show.analysis import differences as analysis
from tracelloc.show.analysis.differences import ALL, Limits, Mark, StackFigures
from tracelloc.show.filters import Filters, NamedStack
from tracelloc.show.presentation.alerts import alert_of
from tracelloc.show.presentation.calltree import Step
from tracelloc.show.presentation.naming import Namer
from tracelloc.show.presentation.profile import Metric
from tracelloc.show.presentation.sourcelisting import ListedFunction
from tracelloc.show.presentation.suspects import NOTHING_YET
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.system.invoker import Invoker
from tracelloc.text import format_size
from tracelloc.ui.lineview import LineView
from tracelloc.ui.stacknames import Names
from tracelloc.ui.timeline import TimeLine


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts known once tracing has started, for the header and the log."""

    allocators: tuple[str, ...]
    """Files whose functions are traced, by their base names."""
    functions: tuple[str, ...]
    """The functions themselves, with their files."""
    method: str
    """How probes are attached."""
    ring_slots: int
    """Events that the ring has room for."""


class RecordedMoments(Protocol):
    """The moments of a recording. All but ``go_to`` are for the refresher's thread."""

    @property
    def line(self) -> TimeLine:
        """All moments, as of the one that was taken last; any thread may ask."""
        ...

    @property
    def before(self) -> TraceSnapshot | None:
        """The moment before the one that was taken last, for rates."""
        ...

    @property
    def has_blocks(self) -> bool:
        """Whether single blocks are known, at least of the last moments."""
        ...

    def go_to(self, uptime_s: float) -> None:
        """Which moment is taken from now on: the last one that is not later."""
        ...

    def trace_as_of(self, uptime_s: float) -> TraceSnapshot:
        """Any moment. Raises TracellocError."""
        ...


class Terminal(Protocol):
    """The terminal of a program that was started. Thread safe."""

    def resize(self, rows: int, columns: int) -> None:
        """Tells the program how large it is."""

    def type(self, data: bytes) -> None:
        """Keys for the program."""

    def written_since(self, position: int) -> tuple[int, bytes]:
        """Returns the program's output from a position on, and the next position."""


class Source(Protocol):
    """One trace. Only the refresher's thread calls ``take`` and uses namers and filters."""

    has_many: bool
    """Whether there may be several processes."""
    writes_files: bool
    """Whether files are written at the end."""
    has_python: bool
    """Whether Python programs are among what may be traced."""
    filters: Filters
    """Filters of all namers."""
    facts: Facts
    """Facts that do not change."""
    invoker: Invoker
    """The user whose filters are written."""

    @property
    def recorded(self) -> RecordedMoments | None:
        """Moments to go to; None: it is traced now."""
        ...

    @property
    def terminal(self) -> Terminal | None:
        """Terminal of a program that was started; None for a running process."""
        ...

    def list_processes(self) -> list[ProcessInfo]:
        """Lists the processes to choose another one from. Takes some time."""
        ...

    def take(self, wanted: Wanted) -> TraceSnapshot:
        """A new snapshot of all processes. Takes milliseconds. Raises TracellocError."""
        ...

    def namer(self, target: Target) -> Namer:
        """Names the stacks of a process."""
        ...

    def measured(self, snapshot: Snapshot) -> Snapshot:
        """Finds the usable sizes of a process's blocks. Takes up to a quarter of a second."""
        ...

    def ring_share(self) -> float:
        """How full the ring was at most since this was last asked, 0 to 1."""
        ...

    def symbol_advice(self, target: Target, stack: NamedStack) -> str | None:
        """Returns advice on a stack's missing names and lines; None if there is none yet."""
        ...

    def read_source(self, target: Target, path: str) -> list[str]:
        """The lines of a source file. Raises OSError."""
        ...


C = TypeVar("C")

BASIC: Final = Wanted(blocks=True)
"""The snapshot content that a stack's details need, whichever view is on top."""


@dataclass(frozen=True, slots=True)
class Sorting:
    """The column that rows are sorted by; an empty key for none."""

    column: str
    descending: bool = True


@dataclass(frozen=True, eq=False)
class View(Generic[C]):
    """One tab: how it is reached, made and drawn, and what choosing a row of it does.

    ``C`` is its content: made in the refresher's thread, never changed, shown in the other.
    """

    name: str
    """Unique; also the id of its widget."""
    title: str
    key: str
    """Key that shows the view."""
    maker: Callable[[Source], Callable[[ViewSelection], C]]
    """Called once per run; what it returns makes the content and may remember things. Views
    with the same maker share what it returns."""
    widget: Callable[[], LineView[C]]
    choose: Callable[[Any, Settings], int | Settings | None] = lambda _key, _settings: None
    """What Enter on the row of a key does: opens a stack, or goes to the first view with
    other settings."""
    wanted: Wanted = BASIC
    """The content that snapshots need while the view is on top."""
    keeps: bool = False
    """What its maker remembers is kept while other views are on top."""
    sorting: Sorting = Sorting("")
    """The default sorting."""
    shows_stack: bool = False
    """Rows stand for stacks, and the one under the cursor is shown below."""
    by_metric: bool = False
    """Drawn by a metric."""
    exists: Callable[[Source], bool] = lambda _source: True
    """Whether a run has it."""


VERDICT_CHOICES: Final[tuple[tuple[Verdict, ...], ...]] = (
    (),
    (Verdict.LEAKING, Verdict.GROWING),
    (Verdict.CACHE_OR_POOL,),
    (Verdict.BUSY,),
    (Verdict.START_UP,),
    (Verdict.DECIDING, Verdict.UNKNOWN),
)
"""The successive restrictions of the shown stacks; the first one shows all."""


@dataclass(frozen=True, slots=True)
class Difference:
    """From one mark to another, or to now."""

    before: Mark
    after: Mark | None = None

    def title(self, now: str = "now") -> str:
        """Title of the difference: ``m1 → m2``, ``m1 → now``."""
        return f"{self.before.name} → {self.after.name if self.after else now}"


class Span(NamedTuple):
    """A span of the traced time, CLOCK_MONOTONIC."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings that determine what the views show."""

    view: View[Any]
    process: int = 0
    """Number of the shown process in the trace; negative for several (``ALL_PROCESSES``)."""
    shows_ended: bool = False
    """Whether processes that have ended have a line each in the list of processes."""
    expanded: frozenset[int] = frozenset()
    """Groups of stacks whose rows are shown, as ``GroupKey.lead`` has them."""
    function: Step | None = None
    """The function whose callers and callees are shown."""
    sortings: Mapping[str, Sorting] = field(default_factory=dict)
    """Sorting by name of view, where it is not the default."""
    search: str = ""
    limits: Limits = ALL
    """Limits by size, age and thread."""
    verdicts: tuple[Verdict, ...] = ()
    """Only stacks with these verdicts; empty: all."""
    baseline: Mark | None = None
    """Show only blocks that were allocated since this mark and are still live."""
    span: Span | None = None
    """Show only blocks that were allocated within the span and are still live."""
    difference: Difference | None = None
    inverted: bool = False
    metric: Metric = Metric.BYTES
    """The metric of flame graph and tree."""
    filters_on: bool = True
    selected: int | None = None
    """The stack whose details are wanted."""
    charts_stacks: bool = False
    """Whether the chart is of call stacks, not of functions."""
    listed: ListedFunction | None = None
    """The function whose source is wanted."""
    marks: tuple[Mark, ...] = field(default=())

    @property
    def sorting(self) -> Sorting:
        """Sorting of the view on top; empty for views without columns."""
        return self.sortings.get(self.view.name, self.view.sorting)

    @property
    def all_limits(self) -> Limits:
        """All limits, those of the baseline and the span included."""
        begin_ns, end_ns = self.span or (None, None)
        begins = [begin_ns, None if self.baseline is None else self.baseline.now_ns]
        return replace(
            self.limits,
            born_after_ns=max((each for each in begins if each is not None), default=None),
            born_before_ns=end_ns,
        )

    @property
    def shows_freed(self) -> bool:
        """Whether stacks that hold nothing any more are shown: no block of theirs has limits."""
        return self.view.by_metric and self.metric.figure.of_freed and self.all_limits.is_open

    @property
    def narrows_stacks(self) -> bool:
        """Whether some stacks are left out as a whole."""
        return bool(self.search or self.verdicts) or self.difference is not None


_COSTS: Final = 32


class Journal:
    """Messages and costs of drawing: written by the drawing thread, copied by the refresher's."""

    def __init__(self, warnings: Iterable[str] = ()) -> None:
        self.messages = [f"warning: {warning}" for warning in warnings]
        self.costs: dict[str, deque[tuple[float, float]]] = {}
        """Seconds that the latest pictures of each view took to compute, and to draw."""

    def say(self, text: str) -> None:
        """Notes a message and when it came."""
        self.messages.append(f"{time.strftime('%H:%M:%S')} {text}")

    def note_cost(self, view: View[Any], work_s: float, drawing_s: float) -> None:
        """Notes what a picture took."""
        self.costs.setdefault(view.name, deque(maxlen=_COSTS)).append((work_s, drawing_s))


@dataclass(frozen=True, slots=True)
class ViewSelection:
    """A view's part of one snapshot: the stacks and limits that the user has chosen."""

    trace: TraceSnapshot
    snapshot: Snapshot
    """Snapshot of the shown process."""
    settings: Settings
    namer: Namer
    figures: StackFigures
    """Per stack, within the limits."""
    change: I64 | None
    """Per stack how many bytes have come between the marks, if a difference is asked for."""
    verdicts: Codes | None
    """Per stack an index of ``verdicts.VERDICTS``; None before there was time to look."""
    unsearched: I64
    """Stacks within the limits, the heaviest first."""
    stacks: I64
    """Stacks that the search finds."""
    names: Names
    """Names of stacks."""
    ring_share: float
    journal: Journal

    def blocks(self, limits: Limits) -> Blocks:
        """The blocks of the stacks, within limits."""
        return analysis.choose(self.unlimited_blocks(), self.snapshot.now_ns, limits)

    def unlimited_blocks(self) -> Blocks:
        """The blocks of the stacks that a search, a verdict or a difference leaves."""
        assert self.snapshot.blocks is not None
        every = self.snapshot.blocks
        if not self.settings.narrows_stacks:
            return every
        chosen = np.zeros(len(self.snapshot.totals), np.bool_)
        chosen[self.stacks] = True
        return every.select(chosen[every.stack])

    @property
    def why_empty(self) -> str:
        """Why a table has no rows."""
        settings = self.settings
        if settings.search or settings.verdicts:
            what = f"match /{settings.search}" if settings.search else "have this verdict"
            return f"no stacks {what} (Esc shows all)"
        if settings.difference is not None:
            return f"no change from {settings.difference.title()} (Esc goes back)"
        if settings.span is not None:
            return "no block allocated in the span is live any more (Esc shows all)"
        if settings.baseline is not None:
            return "no live blocks allocated since the baseline (b switches it off)"
        if not settings.limits.is_open:
            return "no blocks within the limits (L changes them, Esc removes them)"
        return self._why_all_empty

    @property
    def _why_all_empty(self) -> str:
        """Why there are no rows where nothing was narrowed down."""
        blocks = self.snapshot.blocks
        if blocks is not None and not len(blocks) and self.snapshot.totals.live_count.any():
            return "single blocks of this moment are not known: events do not reach back so far"
        alert = alert_of(self.snapshot)
        if alert is not None:
            return f"no traced block is live: {alert.sentence}"
        if not self.snapshot.events:
            return NOTHING_YET
        rss_bytes = self.snapshot.rss_bytes
        rss = "" if rss_bytes is None else f"; RSS {format_size(rss_bytes)} is older or elsewhere"
        return f"no block allocated since tracing began is live any more{rss}"


def is_live(source: Source) -> bool:
    """Whether there are threads to look at: they are not recorded."""
    return source.recorded is None


def has_blocks(source: Source) -> bool:
    """Whether there are single blocks to look at: not in every recording."""
    return source.recorded is None or source.recorded.has_blocks


def difference(snapshot: Snapshot, settings: Settings) -> I64 | None:
    """Bytes per stack that have come between the two moments; None if none are compared."""
    if settings.difference is None:
        return None
    before, after = settings.difference.before, settings.difference.after
    grown = analysis.change(before, snapshot if after is None else after).live_bytes
    whole: I64 = np.zeros(len(snapshot.totals), np.int64)
    whole[: len(grown)] = grown
    return whole


def listed_stacks(
    snapshot: Snapshot, settings: Settings, figures: StackFigures, change: I64 | None
) -> I64:
    """Stacks with blocks within the limits, before any search, the heaviest first.

    Those that have changed, if moments are compared (``change``), or, for flame graph and
    tree, those that weigh anything though they may hold nothing any more.
    """
    listed, weight = figures.live_count, figures.live_bytes
    if change is not None:
        listed, weight = change, np.abs(change)
    elif settings.shows_freed:
        listed = weight = settings.metric.column(snapshot)
    rows = np.flatnonzero(listed)
    return rows[np.argsort(-weight[rows], kind="stable")]
