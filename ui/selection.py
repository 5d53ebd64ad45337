"""What views make their content of: what the settings leave of a snapshot, and the journal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tracelloc.heap.blocks import Blocks
from tracelloc.heap.totals import I64
from tracelloc.snapshots import analysis
from tracelloc.snapshots.analysis import Limits, StackFigures
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.ui.settings import Settings
from tracelloc.ui.view import View
from tracelloc.verdict.judgement import Codes
from tracelloc.views.naming import Namer

_COSTS: Final = 32


class Journal:
    """Written by the thread that draws; the refresher's reads copies of it."""

    def __init__(self, warnings: Iterable[str] = ()) -> None:
        self.messages = [f"warning: {warning}" for warning in warnings]
        self.costs: dict[str, deque[tuple[float, float]]] = {}
        """Seconds that the latest pictures of each view took to be worked out, and drawn."""

    def say(self, text: str) -> None:
        """Notes a message and when it came."""
        self.messages.append(f"{time.strftime('%H:%M:%S')} {text}")

    def note_cost(self, view: View[Any], work_s: float, drawing_s: float) -> None:
        """Notes what a picture took."""
        self.costs.setdefault(view.name, deque(maxlen=_COSTS)).append((work_s, drawing_s))


@dataclass(frozen=True, slots=True)
class Selection:
    """Belongs to one picture."""

    trace: TraceSnapshot
    snapshot: Snapshot
    """Of the process that is shown."""
    settings: Settings
    namer: Namer
    figures: StackFigures
    """Per stack, within the limits."""
    change: I64 | None
    """Per stack how many bytes have come between the marks, if a difference is asked for."""
    verdicts: Codes | None
    """Per stack an index of ``judgement.VERDICTS``; None before there was time to look."""
    unsearched: I64
    """Stacks within the limits, the heaviest first."""
    stacks: I64
    """Those of them that the search finds."""
    labels: Mapping[int, str]
    """What stacks are called in one line."""
    ring_share: float
    journal: Journal

    def blocks(self, limits: Limits) -> Blocks:
        """The blocks of the stacks, within limits."""
        return analysis.choose(self.unlimited_blocks(), self.snapshot.now_ns, limits)

    def unlimited_blocks(self) -> Blocks:
        """The blocks of the stacks that a search, a verdict or a difference leaves."""
        assert self.snapshot.blocks is not None
        every = self.snapshot.blocks.blocks()
        if not self.settings.narrows_stacks:
            return every
        chosen = np.zeros(len(self.snapshot.totals), np.bool_)
        chosen[self.stacks] = True
        return every.select(chosen[every.stack])

    @property
    def why_empty(self) -> str:
        """Why a table has no row."""
        settings = self.settings
        if settings.search or settings.verdicts:
            what = f"matches /{settings.search}" if settings.search else "is judged so"
            return f"nothing {what} (Esc shows all)"
        if settings.difference is not None:
            return f"nothing has changed from {settings.difference.title} (Esc goes back)"
        if settings.baseline is not None:
            return "nothing has come since the baseline and stayed (b switches it off)"
        if not settings.limits.is_open:
            return "no block within the limits (L changes them, Esc lifts them)"
        if self.snapshot.events:
            return "everything that was allocated has been freed"
        return "no allocations seen yet: is the target idle?"


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
    """Before any search, the heaviest first: what holds blocks within the limits.

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
