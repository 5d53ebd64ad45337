"""The picture of one moment, and the thread that computes it.

``Pictures`` and ``Refresher`` make one at a time, none before the last one is shown; a
``Picture`` never changes and goes to the thread that draws, which it costs no time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tracelloc.snapshots import analysis
from tracelloc.snapshots.analysis import Mark
from tracelloc.snapshots.histograms import StackDetails, stack_details
from tracelloc.snapshots.merge import TraceMerger
from tracelloc.snapshots.snapshot import RUNNING_PROCESSES, Snapshot, Target, TraceSnapshot
from tracelloc.snapshots.wanted import NOTHING_ELSE
from tracelloc.text import NS_PER_S
from tracelloc.ui.stacknames import Names, Search
from tracelloc.ui.view import (
    Journal,
    Settings,
    Source,
    View,
    ViewSelection,
    difference,
    listed_stacks,
)
from tracelloc.verdict.judgement import CODE_OF, Judgement
from tracelloc.views.naming import MergedSymbols, NamedStack, Namer
from tracelloc.views.processfacts import Account, Forecast, account, forecast
from tracelloc.views.suspects import NamedSuspect, name_suspects, verdict_codes
from tracelloc.views.untraced import UntracedGrowth, untraced_growth

_RATE_NS: Final = 2 * NS_PER_S
"""Rates are those of the last seconds, this many at least once there are."""


@dataclass(frozen=True, slots=True)
class Header:
    """Figures above everything that the snapshot does not hold."""

    count_growth: int
    """Blocks that have become more within the last seconds."""
    allocations_per_s: float
    frees_per_s: float
    account: Account | None
    """Where resident memory comes from."""
    untraced: UntracedGrowth | None
    """What most of its growth is, if that is not traced."""
    forecast: Forecast | None
    ring_share: float


@dataclass(frozen=True, slots=True)
class Details:
    """Details of one stack."""

    figures: StackDetails
    stack: NamedStack
    judgement: Judgement | None
    """What kind of memory it is; None before there was time to look."""
    suspect: NamedSuspect | None
    """What it is part of."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that the screen shows at one moment."""

    snapshot: Snapshot
    """Snapshot of the shown process, or of all merged."""
    process_count: int
    settings: Settings
    header: Header
    content: Any
    """Content of the view on top, from its maker."""
    labels: Mapping[int, str]
    namer: Namer
    """For the refresher's thread; others take a copy."""
    details: Details | None
    found: int
    """Stacks that the search and the limits leave."""
    names_pending: int
    is_naming: bool
    """Whether names may come that the next picture would have."""
    took_s: float
    """What working it out took, the snapshot included if it is a new one."""


@dataclass(slots=True)
class _Process:
    """State of a process that is kept between pictures."""

    namer: Namer
    names: Names
    moments: deque[Mark] = field(default_factory=deque)
    makers: dict[object, Callable[[ViewSelection], Any]] = field(default_factory=dict)
    """By what has made them."""
    view: View[Any] | None = None


class Pictures:
    """Makes pictures of one source."""

    def __init__(
        self, source: Source, journal: Journal, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._journal = journal
        self._now_s = now_s
        self._processes: dict[int, _Process] = {}
        """By number."""
        self._merger = TraceMerger(lambda target, at: source.namer(target).place(at))
        self._merged: tuple[int, TraceSnapshot, Snapshot] | None = None
        self._ring_share = 0.0
        self._taking_s = 0.0

    def take(self, settings: Settings) -> TraceSnapshot:
        """Asks for a new snapshot that has what these need, and notes it for rates."""
        began_s = self._now_s()
        trace = self._source.take(settings.view.wanted)
        self._ring_share = self._source.ring_share()
        snapshot = self._shown(trace, settings)
        moments = self._process_of(snapshot).moments
        moments.append(analysis.mark(snapshot, ""))
        while len(moments) > 2 and snapshot.now_ns - moments[1].now_ns >= _RATE_NS:
            moments.popleft()
        self._taking_s = self._now_s() - began_s
        return trace

    def _shown(self, trace: TraceSnapshot, settings: Settings) -> Snapshot:
        """The snapshot of the process that is asked for, or of all merged."""
        number = settings.process
        if number >= 0:
            return trace.of(number)
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
                root = self._source.namer(Target(0, ""))
                namer = root.with_symbols(MergedSymbols(self._merger.locations, self._source.namer))
            self._processes[number] = _Process(namer, Names(namer, self._now_s))
        return self._processes[number]

    def make(self, trace: TraceSnapshot, settings: Settings) -> Picture:
        """The picture of a snapshot under these settings."""
        began_s = self._now_s() - self._taking_s
        self._taking_s = 0.0
        snapshot = self._shown(trace, settings)
        process = self._process_of(snapshot)
        selection = self._select(trace, snapshot, process, settings)
        return Picture(
            snapshot=snapshot,
            process_count=len(trace.processes),
            settings=settings,
            header=self._header(snapshot, process.moments),
            content=self._maker(process, settings.view)(selection),
            labels=process.names.labels,
            namer=process.namer,
            details=self._details(snapshot, process.namer, settings),
            found=len(selection.stacks),
            names_pending=process.names.pending,
            is_naming=process.names.pending > 0 or process.namer.waiting > 0,
            took_s=self._now_s() - began_s,
        )

    def _maker(self, process: _Process, view: View[Any]) -> Callable[[ViewSelection], Any]:
        last, process.view = process.view, view
        if last is not None and last is not view and not last.keeps:
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
        verdicts = verdict_codes(snapshot)
        if settings.verdicts and verdicts is not None:
            wanted = [CODE_OF[verdict] for verdict in settings.verdicts]
            stacks = stacks[np.isin(verdicts[stacks], wanted)]
        indices = stacks.tolist()
        process.names.update(snapshot, indices)
        found = stacks
        if settings.search:
            found = stacks[process.names.found(Search(settings.search), indices)]
        return ViewSelection(
            trace=trace,
            snapshot=snapshot,
            settings=settings,
            namer=process.namer,
            figures=figures,
            change=change,
            verdicts=verdicts,
            unsearched=stacks,
            stacks=found,
            labels=process.names.labels,
            ring_share=self._ring_share,
            journal=self._journal,
        )

    def _header(self, snapshot: Snapshot, moments: Sequence[Mark]) -> Header:
        first = moments[0] if moments else analysis.mark(snapshot, "")
        moved = analysis.change(first, snapshot)
        if moved.elapsed_ns <= 0:
            moved = analysis.change(None, snapshot)
        found = account(snapshot)
        return Header(
            count_growth=int(moved.live_count.sum()),
            allocations_per_s=float(moved.per_second(moved.allocated_count).sum()),
            frees_per_s=float(moved.per_second(moved.freed_count).sum()),
            account=found,
            untraced=untraced_growth(snapshot, found),
            forecast=forecast(snapshot),
            ring_share=self._ring_share,
        )

    def _details(self, snapshot: Snapshot, namer: Namer, settings: Settings) -> Details | None:
        index = settings.selected
        if index is None or index >= len(snapshot.totals):
            return None
        namer.prepare(snapshot, [index], 0)
        details = stack_details(snapshot, index, snapshot.thread_names, settings.all_limits)
        findings = snapshot.findings
        suspect = None if findings is None else findings.suspect_of.get(index)
        return Details(
            figures=details,
            stack=namer.stack(snapshot, index),
            judgement=None if findings is None else findings.judgement(index),
            suspect=None if suspect is None else name_suspects(snapshot, namer, [suspect])[0],
        )


class Refresher:
    """Takes snapshots on time and makes pictures of them, and of the last one on demand.

    ``publish`` is called from the thread with each picture; the next one is not begun
    before ``shown`` says that the last one is on the screen. Whatever goes wrong is handed
    to ``fail`` instead, and ends the thread.
    """

    def __init__(
        self,
        source: Source,
        journal: Journal,
        publish: Callable[[Picture], None],
        fail: Callable[[BaseException], None],
        interval_s: float | None,
    ) -> None:
        """``interval_s`` None: only on demand, for tests."""
        self._pictures = Pictures(source, journal)
        self._publish = publish
        self._fail = fail
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._settings: Settings | None = None
        self._tick = False
        self._frozen = False
        self._final = False
        self._closed = False
        self._in_flight = False
        self._busy = False
        """Working, with nothing to show yet."""
        self._naming = False
        """The last picture lacks names that may come."""
        self._done: Settings | None = None
        """What the last picture was made for; None: it is out of date."""
        self._jobs: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._work, name="refresher", daemon=True)

    def start(self, settings: Settings) -> None:
        """Makes the first picture at once."""
        self._settings = settings
        self._tick = True
        self._thread.start()

    def ask(self, settings: Settings, *, tick: bool = False) -> None:
        """Wants a picture of these settings soon: of the last snapshot, or a new one."""
        with self._changed:
            self._settings = settings
            self._tick |= tick
            self._changed.notify_all()

    def do(self, job: Callable[[], None]) -> None:
        """Has something done by the thread, for what only it may touch."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def freeze(self, frozen: bool) -> None:
        """Whether new snapshots are taken. Capture goes on."""
        with self._changed:
            self._frozen = frozen
            self._changed.notify_all()

    def stand(self) -> None:
        """Nothing changes any more: snapshots are taken for what the last one lacks only."""
        self._final = True
        self.freeze(True)

    def shown(self) -> None:
        """The last picture is on the screen."""
        with self._changed:
            self._in_flight = False
            self._changed.notify_all()

    @property
    def is_settled(self) -> bool:
        """Whether all that was asked for is on the screen."""
        with self._changed:
            asked = self._jobs or self._tick or self._settings != self._done
            return not asked and not self._in_flight and not self._busy

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        try:
            self._work_until_closed()
        except BaseException as failure:  # noqa: BLE001 - shown by the thread that draws
            if not self._closed:
                self._fail(failure)

    def _work_until_closed(self) -> None:
        trace: TraceSnapshot | None = None
        taken = NOTHING_ELSE
        next_s = time.monotonic()
        while True:
            with self._changed:
                self._busy = False
                while not self._closed and not self._jobs and not self._is_due(next_s):
                    self._changed.wait(self._left_s(next_s))
                if self._closed:
                    return
                self._busy = True
                jobs, self._jobs = self._jobs, []
            for job in jobs:
                job()
            with self._changed:
                if jobs:
                    # What a job changed has to be drawn, as soon as there is room for it.
                    self._done = None
                if not self._is_due(next_s):
                    continue
                settings, tick, self._tick = self._settings, self._tick, False
                assert settings is not None
            now_s = time.monotonic()
            left_s = self._left_s(next_s)
            wanted = settings.view.wanted
            stands = self._frozen and not self._final
            lacks = taken | wanted != taken and not stands
            is_time = left_s is not None and left_s <= 0
            if trace is None or tick or lacks or (is_time and not self._frozen):
                trace, taken = self._pictures.take(settings), wanted
            # Ticks that were missed are not made up for.
            if is_time:
                next_s = now_s + (self._interval_s or 0.0)
            picture = self._pictures.make(trace, settings)
            self._naming = picture.is_naming
            with self._changed:
                self._done = settings
                self._in_flight = True
            self._publish(picture)

    def _left_s(self, next_s: float) -> float | None:
        """Until the next snapshot; None: none is to come by itself."""
        if self._interval_s is None or (self._frozen and not self._naming):
            return None
        # While the last picture waits to be drawn, only that can be waited for.
        return None if self._in_flight else max(0.0, next_s - time.monotonic())

    def _is_due(self, next_s: float) -> bool:
        if self._in_flight:
            return False
        return self._tick or self._settings != self._done or self._left_s(next_s) == 0.0
