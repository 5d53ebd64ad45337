"""A picture: everything that the screen shows of one snapshot.

The refresher's thread makes pictures, each after the previous one has been drawn. A ``Picture`` is
immutable, so the drawing thread needs no lock and computes nothing.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from tracelloc.dataclass import dataclass, field
from tracelloc.model.blocks import BlockHolders
from tracelloc.model.figures import I64
from tracelloc.model.process import RUNNING_PROCESSES
from tracelloc.model.verdicts import CODE_OF, Judgement
from tracelloc.show.analysis import differences as analysis
from tracelloc.show.analysis.differences import Mark
from tracelloc.show.analysis.histograms import StackDetails, stack_details
from tracelloc.show.analysis.merge import TraceMerger
from tracelloc.show.filters import NamedStack, measured_wrappers
from tracelloc.show.presentation.alerts import Alert, alert_of
from tracelloc.show.presentation.calltree import SourceLister, SourceListing
from tracelloc.show.presentation.naming import MergedSymbols, Namer
from tracelloc.show.presentation.processfacts import Account, Forecast, account, forecast
from tracelloc.show.presentation.suspects import NamedSuspect, growth_rates, name_suspects
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import NS_PER_S
from tracelloc.ui.stacknames import Labels, Names, Search
from tracelloc.ui.view import (
    Journal,
    Settings,
    TimeLine,
    TraceSource,
    View,
    ViewSelection,
    difference,
    listed_stacks,
)
from tracelloc.verdict.evidence import stack_judgement

_RATE_NS: Final = 2 * NS_PER_S  # Rates cover at least this much time, once it has passed
_WRAPPERS_S: Final = 5.0  # Time between searches for functions that wrap malloc
_MOST_WEIGHED: Final = 1000  # Most stacks that are searched for wrappers, the heaviest first


@dataclass(frozen=True, slots=True)
class Header:
    """Figures of the screen's header that are not part of the snapshot."""

    count_growth: int  # Growth of the number of live blocks within the last seconds
    allocations_per_s: float  # Blocks allocated per second, lately
    frees_per_s: float  # Blocks freed per second, lately
    account: Account | None  # Growth of memory and its traced part; None: unknown
    alert: Alert | None  # The alert to show; None: there is none
    forecast: Forecast | None  # When memory will run out; None: not soon
    ring_share: float  # Highest fill level of the event ring since the last picture, 0 to 1


@dataclass(frozen=True, slots=True)
class SelectedStack:
    """Figures, verdict and holders of the selected stack, and its frames."""

    time_s: float  # Time of the snapshot, seconds since 1970
    figures: StackDetails
    growth: int  # Growth in bytes per minute, as its verdict has it
    stack: NamedStack
    judgement: Judgement | None  # The verdict with its figures; None: not judged
    suspect: NamedSuspect | None  # The suspect of which the stack is a part
    # Who holds the blocks of the stack, or of the suspect; None: unknown.
    holders: BlockHolders | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that the screen shows of one snapshot."""

    snapshot: Snapshot  # Snapshot of the shown process, or of all processes merged
    process_count: int  # Number of traced processes, ended ones included
    settings: Settings  # Settings that the picture was made with
    header: Header
    content: Any  # Content of the active view, from its maker
    labels: Labels  # Names of stacks, which the drawing thread reads
    namer: Namer  # Only for the refresher's thread; other threads use a copy
    details: SelectedStack | None  # The selected stack; None: none is selected
    listing: SourceListing | None  # The requested source listing; None: none was requested
    found: int  # Number of stacks that match the search and the limits
    found_bytes: int  # Live bytes of matching stacks, within the limits
    # All snapshots of the recording and the shown one's position; None for a live trace.
    line: TimeLine | None
    names_pending: int  # Number of stacks that have no name yet
    is_partial: bool  # Whether another picture of the snapshot will have more names
    is_naming: bool  # Whether names are still being looked up
    computing_s: float  # Time to compute the picture, and to take the snapshot if it is a new one


class NotWantedError(Exception):
    """The picture being made is not wanted any more."""


@dataclass(slots=True)
class _Process:
    namer: Namer
    names: Names
    moments: deque[Mark] = field(default_factory=deque)  # The latest snapshots' totals
    # The content function that each maker returned, by maker.
    makers: dict[object, Callable[[ViewSelection], Any]] = field(default_factory=dict)
    view: View[Any] | None = None
    wrappers_due_s: float = 0.0  # Time of the next search for functions that wrap malloc
    lister: SourceLister | None = None


class Pictures:
    """Makes the pictures of one trace."""

    def __init__(
        self, source: TraceSource, journal: Journal, now_s: Callable[[], float] = time.monotonic,
        asked: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """``asked``: called when a stack is drawn that has no name yet."""
        self._asked = asked
        self._source = source
        self._journal = journal
        self._now_s = now_s
        self._processes: dict[int, _Process] = {}  # By number
        self._merger = TraceMerger(lambda target, at: source.namer(target).symbols.place(at))
        self._merged: tuple[int, TraceSnapshot, Snapshot] | None = None
        self._ring_share = 0.0
        self._taking_s = 0.0

    def take_snapshot(self, settings: Settings) -> TraceSnapshot:
        """Takes a snapshot with the content that the settings need, and keeps it for rates."""
        began_s = self._now_s()
        trace = self._source.take_snapshot(settings.view.wanted)
        self._ring_share = self._source.ring_share()
        snapshot = self._shown(trace, settings)
        moments = self._process_of(snapshot).moments
        if (recorded := self._source.recorded) is not None:
            moments.clear()
            moments.extend(self._before(recorded.before, trace, settings))
        moments.append(analysis.mark(snapshot, ""))
        while len(moments) > 2 and snapshot.now_ns - moments[1].now_ns >= _RATE_NS:
            moments.popleft()
        self._taking_s = self._now_s() - began_s
        return trace

    def _before(
        self, before: TraceSnapshot | None, trace: TraceSnapshot, settings: Settings
    ) -> Iterator[Mark]:
        if before is not None:
            one, now = self._shown(before, settings), self._shown(trace, settings)
            if one.target.number == now.target.number and one.table_number == now.table_number:
                yield analysis.mark(one, "")

    def mark(self, trace: TraceSnapshot, settings: Settings, name: str) -> Mark:
        return analysis.mark(self._shown(trace, settings), name)

    def _shown(self, trace: TraceSnapshot, settings: Settings) -> Snapshot:
        number = settings.process
        if number >= 0:
            return trace.snapshot_of(number)
        last = self._merged
        if last is None or last[0] != number or last[1] is not trace:
            merged = self._merger.merge(trace, running_only=number == RUNNING_PROCESSES)
            last = self._merged = number, trace, merged
        return last[2]

    def _process_of(self, snapshot: Snapshot) -> _Process:
        number = snapshot.target.number
        if number not in self._processes:
            if snapshot.merged is None:
                namer = self._source.namer(snapshot.target)
            else:
                symbols = MergedSymbols(self._merger.locations, self._source.namer)
                namer = Namer(symbols, self._source.filters)
            self._processes[number] = _Process(namer, Names(namer, self._now_s, self._asked))
        return self._processes[number]

    def make(
        self, trace: TraceSnapshot, settings: Settings, check: Callable[[], None] = lambda: None
    ) -> Picture:
        """Makes a picture. ``check`` raises NotWantedError if the rest is not wanted."""
        began_s = self._now_s() - self._taking_s
        self._taking_s = 0.0
        check()
        snapshot = self._shown(trace, settings)
        process = self._process_of(snapshot)
        selection = self._select(trace, snapshot, process, settings)
        check()
        content = self._maker(process, settings.view)(selection)
        check()
        namer, names, pending = process.namer, process.names, process.names.pending
        return Picture(
            snapshot, len(trace.processes), settings, self._header(snapshot, process.moments),
            content, names.labels, namer, self._chosen(snapshot, namer, settings),
            _listing(process, selection),
            found=len(selection.stacks),
            found_bytes=int(selection.figures.live_bytes[selection.stacks].sum()),
            line=self._line, names_pending=pending,
            is_partial=pending > 0 or names.asks_again,
            is_naming=pending > 0 or namer.symbols.waiting > 0,
            computing_s=self._now_s() - began_s,
        )  # fmt: skip

    def _maker(self, process: _Process, view: View[Any]) -> Callable[[ViewSelection], Any]:
        last, process.view = process.view, view
        if last is not None and last is not view and not last.keeps_state:
            del process.makers[last.maker]
        if view.maker not in process.makers:
            process.makers[view.maker] = view.maker(self._source)
        return process.makers[view.maker]

    def _select(
        self, trace: TraceSnapshot, snapshot: Snapshot, process: _Process, settings: Settings
    ) -> ViewSelection:
        before = process.moments[0] if len(process.moments) > 1 else None
        figures = analysis.stack_figures(snapshot, before, settings.all_limits)
        change = difference(snapshot, settings)
        stacks = listed_stacks(snapshot, settings, figures, change)
        findings = snapshot.findings
        verdicts = None if findings is None else findings.whole_codes(len(snapshot.totals))
        if settings.verdicts and verdicts is not None:
            wanted = [CODE_OF[verdict] for verdict in settings.verdicts]
            stacks = stacks[np.isin(verdicts[stacks], wanted)]
        by_name = settings.sorting.column == "name"
        process.names.update(snapshot, stacks, every=by_name, search=bool(settings.search))
        self._fold_wrappers(snapshot, process, stacks)
        found = stacks
        if settings.search:
            found = stacks[process.names.found(Search(settings.search), stacks.tolist())]
        return ViewSelection(
            trace, snapshot, settings, process.namer, figures, change,
            growth=growth_rates(snapshot), verdicts=verdicts, unsearched=stacks, stacks=found,
            names=process.names, ring_share=self._ring_share, journal=self._journal,
            line=self._line,
        )  # fmt: skip

    @property
    def _line(self) -> TimeLine | None:
        recorded = self._source.recorded
        return None if recorded is None else recorded.line

    def _fold_wrappers(self, snapshot: Snapshot, process: _Process, stacks: I64) -> None:
        names, now_s = process.names, self._now_s()
        if now_s < process.wrappers_due_s or process.namer.symbols.waiting:
            return
        process.wrappers_due_s = now_s + _WRAPPERS_S
        # Only stacks that have names already.
        stats = snapshot.stack_stats(stacks[names.labels.fresh[stacks]][:_MOST_WEIGHED].tolist())
        found = measured_wrappers(
            (process.namer.stack(snapshot, each.index), each.allocated_bytes, each.allocated_count)
            for each in stats
        )
        filters = process.namer.filters
        if new := sorted(found - filters.measured):
            filters.hide_measured(found)
            self._journal.say(f"hidden as wrappers of malloc: {', '.join(new)} (f: wrappers)")
            names.update(snapshot, stacks)

    def _header(self, snapshot: Snapshot, moments: Sequence[Mark]) -> Header:
        first = moments[0] if moments else analysis.mark(snapshot, "")
        moved = analysis.change(first, snapshot)
        if moved.elapsed_ns <= 0:
            moved = analysis.change(None, snapshot)
        found = account(snapshot)
        return Header(
            count_growth=int(moved.grown("live_count").sum()),
            allocations_per_s=float(moved.per_second(moved.grown("allocated_count")).sum()),
            frees_per_s=float(moved.per_second(moved.grown("freed_count")).sum()),
            account=found,
            alert=alert_of(snapshot, found),
            forecast=forecast(snapshot),
            ring_share=self._ring_share,
        )

    def _chosen(self, snapshot: Snapshot, namer: Namer, settings: Settings) -> SelectedStack | None:
        index = settings.selected
        if index is None or index >= len(snapshot.totals):
            return None
        namer.prepare(snapshot, [index], 0)
        details = stack_details(snapshot, index, settings.all_limits)
        findings = snapshot.findings
        suspect = None if findings is None else findings.suspect_of.get(index)
        key = index if suspect is None else suspect.stack
        return SelectedStack(
            time_s=snapshot.time_s, holders=snapshot.holders.get(key), figures=details,
            growth=int(growth_rates(snapshot)[index]), stack=namer.stack(snapshot, index),
            judgement=None if findings is None else stack_judgement(findings, index),
            suspect=None if suspect is None else name_suspects(snapshot, namer, [suspect])[0],
        )  # fmt: skip


def _listing(process: _Process, selection: ViewSelection) -> SourceListing | None:
    function, figures = selection.settings.listed_function, selection.figures
    if function is None:
        process.lister = None
        return None
    if process.lister is None or process.lister.function != function:
        process.lister = SourceLister(function)
    stacks, sizes, counts = selection.unsearched.tolist(), figures.live_bytes, figures.live_count
    return process.lister.listing(selection.snapshot, selection.namer, stacks, sizes, counts)
