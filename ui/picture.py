"""What is to be seen at one moment, worked out aside so that drawing it takes no time.

``Pictures`` belongs to the refresher's thread; a ``Picture`` never changes and goes to the
thread that draws.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tracelloc.heap.blocks import BlockCopy, Blocks
from tracelloc.heap.totals import I64
from tracelloc.snapshots import analysis
from tracelloc.snapshots.analysis import BlockOrder, Mark, StackFigures
from tracelloc.snapshots.blocks import BlockSelection, BlockStat
from tracelloc.snapshots.snapshot import Snapshot, Wanted
from tracelloc.snapshots.spread import (
    Bin,
    SizeCount,
    StackDetails,
    ThreadsBefore,
    age_bins,
    frequent_sizes,
    size_bins,
    stack_details,
    threads_of,
    threads_then,
)
from tracelloc.snapshots.waste import total_waste
from tracelloc.ui.choice import blocks_of_stacks, chosen_blocks, difference, listed_stacks
from tracelloc.ui.naming import Names, Search
from tracelloc.ui.nodes import Nodes
from tracelloc.ui.settings import TREES, Settings, Sorting, View
from tracelloc.ui.source import Source
from tracelloc.units import NS_PER_S, about_of
from tracelloc.verdict.judgement import Judgement
from tracelloc.verdict.sites import CODE_OF, Codes
from tracelloc.views.calltree import Metric
from tracelloc.views.livetree import LiveTree, weight_of
from tracelloc.views.memory import Account, Forecast, account, forecast
from tracelloc.views.naming import NamedStack
from tracelloc.views.suspects import NamedSuspect, name_suspects, suspect_ranks, verdict_codes
from tracelloc.views.threads import ThreadRow, thread_rows
from tracelloc.views.waste import waste_line

MOST_ROWS: Final = 10_000
"""Rows of a table. Nobody scrolls further; searching looks at everything."""
MOST_BLOCKS: Final = 2_000
MOST_SIZES: Final = 32
_RATE_NS: Final = 2 * NS_PER_S
"""Rates are those of the last seconds, this many at least once there are."""
_BLOCK_ORDERS: Final = {
    ("size", True): BlockOrder.SIZE,
    ("age", True): BlockOrder.AGE,
    ("age", False): BlockOrder.YOUTH,
}


@dataclass(frozen=True, slots=True)
class Header:
    """The figures above everything."""

    live_bytes: int
    live_count: int
    live_stacks: int
    growth_bytes_per_min: int
    count_growth: int
    """Blocks that have become more within the last seconds."""
    allocations_per_s: float
    frees_per_s: float
    account: Account | None
    """Where resident memory comes from."""
    forecast: Forecast | None
    ring_share: float


@dataclass(frozen=True, slots=True)
class Details:
    """One stack."""

    figures: StackDetails
    stack: NamedStack
    names_pending: bool
    judgement: Judgement | None
    """What kind of memory it is; None before there was time to look."""
    suspect: NamedSuspect | None
    """What it is part of."""

    @property
    def index(self) -> int:
        """Of the stack."""
        return self.figures.index


@dataclass(frozen=True, slots=True)
class Sizes:
    """Blocks by size."""

    bins: Sequence[Bin] = ()
    frequent: Sequence[SizeCount] = ()
    waste: str | None = None
    """What the allocator gives beyond what was asked for, in words."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that the screen shows."""

    snapshot: Snapshot
    settings: Settings
    header: Header
    figures: StackFigures
    """Per stack, within the limits."""
    change: I64 | None
    """Per stack how many bytes have come between the marks, if a difference is asked for."""
    verdicts: Codes | None
    """Per stack an index of ``sites.VERDICTS``; None before there was time to look."""
    order: I64
    """Stacks in the order of the table."""
    labels: Mapping[int, str]
    blocks: BlockSelection | None
    blocks_by_address: Mapping[int, BlockStat]
    nodes: Nodes | None
    """The call tree, not narrowed by the search: that is marked in it."""
    sizes: Sizes
    ages: list[Bin]
    threads: list[ThreadRow]
    details: Details | None
    thread_names: Mapping[int, str]
    found: int
    """Stacks that the search and the limits leave."""
    names_pending: int
    took_s: float
    """What working it out took, the snapshot included if it is a new one."""


class Pictures:
    """Makes pictures of one source."""

    def __init__(self, source: Source, now_s: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._now_s = now_s
        self.names = Names(source.namer, now_s)
        self._moments: deque[Mark] = deque()
        self._ring_share = 0.0
        self._taking_s = 0.0
        self._snapshot: Snapshot | None = None
        self._measured: tuple[Snapshot, Snapshot] | None = None
        """The last one that was shown by size, and the same with usable sizes."""
        self._tree: LiveTree | None = None
        self._tree_of = (0, False)
        """Programs executed before the one that the tree is of, and whether it is inverted."""
        self._threads_before: tuple[object, ThreadsBefore] | None = None

    def take(self, settings: Settings) -> Snapshot:
        """Asks for a new snapshot that has what these need, and notes it for rates."""
        began_s = self._now_s()
        threads = settings.view is View.THREADS
        wanted = Wanted(blocks=True, threads=threads)
        snapshot = self._source.take(wanted)
        self._ring_share = self._source.ring_share()
        self._snapshot = snapshot
        self._moments.append(analysis.mark(snapshot, ""))
        while len(self._moments) > 2 and snapshot.now_ns - self._moments[1].now_ns >= _RATE_NS:
            self._moments.popleft()
        self._taking_s = self._now_s() - began_s
        return snapshot

    def make(self, snapshot: Snapshot, settings: Settings) -> Picture:
        """The picture of a snapshot under these settings."""
        began_s = self._now_s() - self._taking_s
        self._taking_s = 0.0
        before = self._moments[0] if len(self._moments) > 1 else None
        figures = analysis.stack_figures(snapshot, before, settings.all_limits)
        change = difference(snapshot, settings)
        by_size = listed_stacks(snapshot, settings, figures, change)
        verdicts = verdict_codes(snapshot)
        if settings.verdicts and verdicts is not None:
            wanted = [CODE_OF[verdict] for verdict in settings.verdicts]
            by_size = by_size[np.isin(verdicts[by_size], wanted)]
        self.names.update(snapshot, by_size.tolist())
        unsearched = by_size
        if settings.search:
            by_size = by_size[self.names.found(Search(settings.search), by_size.tolist())]
        order = self._sorted(by_size, snapshot, figures, change, settings.stacks)
        blocks = self._blocks(snapshot, settings, by_size)
        chosen = chosen_blocks(snapshot, settings, by_size)
        sampled = snapshot.sample_bytes
        is_ages = settings.view is View.AGES
        return Picture(
            snapshot=snapshot,
            settings=settings,
            header=self._header(snapshot),
            figures=figures,
            change=change,
            verdicts=verdicts,
            order=order[:MOST_ROWS],
            labels=self.names.labels,
            blocks=blocks,
            blocks_by_address={} if blocks is None else {b.address: b for b in blocks.largest},
            nodes=self._nodes(snapshot, settings, figures, unsearched),
            sizes=self._sizes(snapshot, settings, chosen),
            ages=age_bins(chosen, snapshot.now_ns, sampled) if is_ages else [],
            threads=self._threads(snapshot, settings, chosen),
            details=self._details(snapshot, settings),
            thread_names=self._source.thread_names(),
            found=len(by_size),
            names_pending=self.names.pending,
            took_s=self._now_s() - began_s,
        )

    def _header(self, snapshot: Snapshot) -> Header:
        first = self._moments[0] if self._moments else analysis.mark(snapshot, "")
        moved = analysis.change(first, snapshot)
        if moved.elapsed_ns <= 0:
            moved = analysis.change(None, snapshot)
        seconds = max(moved.elapsed_ns, 1) / NS_PER_S
        return Header(
            live_bytes=snapshot.live_bytes,
            live_count=snapshot.live_count,
            live_stacks=snapshot.live_stacks,
            growth_bytes_per_min=int(snapshot.growth_per_min.sum()),
            count_growth=int(moved.live_count.sum()),
            allocations_per_s=float(moved.allocated_count.sum()) / seconds,
            frees_per_s=float(moved.freed_count.sum()) / seconds,
            account=account(snapshot),
            forecast=forecast(snapshot),
            ring_share=self._ring_share,
        )

    def _sorted(
        self,
        rows: I64,
        snapshot: Snapshot,
        figures: StackFigures,
        change: I64 | None,
        sorting: Sorting,
    ) -> I64:
        if sorting.column == "name":
            labels = self.names.labels
            ordered = sorted(rows.tolist(), key=lambda index: labels.get(index, ""))
            by_name: I64 = np.array(ordered, np.int64)
            return by_name[::-1] if sorting.descending else by_name
        if sorting.column == "verdict" and change is None:
            ranks = suspect_ranks(snapshot)[rows]
            return rows[np.argsort(ranks if sorting.descending else -ranks, kind="stable")]
        column = {
            "verdict": change,
            "bytes": figures.live_bytes if change is None else change,
            "share": figures.live_bytes,
            "count": figures.live_count,
            "growth": snapshot.growth_per_min,
            "rate": figures.allocations_per_s,
            "age": figures.mean_age_ns,
            "temporary": snapshot.totals.temporary_share,
        }[sorting.column]
        assert column is not None
        column = column[rows]
        # Equal ones stay in the order of their size.
        order = np.argsort(-column if sorting.descending else column, kind="stable")
        return rows[order]

    def _blocks(self, snapshot: Snapshot, settings: Settings, stacks: I64) -> BlockSelection | None:
        if settings.view is not View.BLOCKS:
            return None
        left = BlockCopy([blocks_of_stacks(snapshot, settings, stacks)])
        snapshot = replace(snapshot, blocks=left)
        sorting = settings.blocks
        order = _BLOCK_ORDERS.get((sorting.column, sorting.descending), BlockOrder.SIZE)
        found = analysis.list_blocks(snapshot, MOST_BLOCKS, order, settings.all_limits)
        labels = self.names.labels
        keys: dict[str, Callable[[BlockStat], object]] = {
            "thread": lambda block: block.tid,
            "name": lambda block: labels.get(block.stack, ""),
            "address": lambda block: block.address,
        }
        if (sorting.column, sorting.descending) == ("size", False):
            return replace(found, largest=tuple(reversed(found.largest)))
        if sorting.column in keys:
            ordered = sorted(
                found.largest,
                key=keys[sorting.column],  # type: ignore[arg-type]
                reverse=sorting.descending,
            )
            return replace(found, largest=tuple(ordered))
        return found

    def _sizes(self, snapshot: Snapshot, settings: Settings, blocks: Blocks) -> Sizes:
        if settings.view is not View.SIZES:
            self._measured = None
            return Sizes()
        if self._measured is None or self._measured[0] is not snapshot:
            self._measured = snapshot, self._source.measured(snapshot)
        sampled, sizes = snapshot.sample_bytes, self._measured[1].usable
        usable = None if sizes is None else sizes.of(blocks)
        waste = None
        if sizes is not None and usable is not None:
            total = total_waste(blocks, sampled, usable, sizes.header_bytes)
            waste = waste_line(sizes, total, about_of(sampled))
        return Sizes(
            size_bins(blocks, sampled, usable),
            frequent_sizes(blocks, MOST_SIZES, sampled, usable),
            waste,
        )

    def _threads(self, snapshot: Snapshot, settings: Settings, blocks: Blocks) -> list[ThreadRow]:
        if settings.view is not View.THREADS:
            self._threads_before = None
            return []
        key = settings.search, settings.all_limits, settings.difference, settings.verdicts
        before = self._threads_before
        if before is not None and before[0] != key:
            before = None
        found = threads_of(
            blocks,
            self._source.thread_names(),
            snapshot.now_ns,
            before[1] if before else None,
            snapshot.sample_bytes,
        )
        if before is None:
            self._threads_before = key, threads_then(found, snapshot.now_ns)
        return thread_rows(found, snapshot.threads, narrowed=settings.narrows)

    def _nodes(
        self, snapshot: Snapshot, settings: Settings, figures: StackFigures, stacks: I64
    ) -> Nodes | None:
        if settings.view not in TREES:
            return None
        program = snapshot.target.exec_count
        if self._tree is None or self._tree_of != (program, settings.inverted):
            self._tree = LiveTree(snapshot.target.command, inverted=settings.inverted)
            self._tree_of = program, settings.inverted
        chosen = np.zeros(len(snapshot.totals), np.bool_)
        chosen[stacks] = True
        columns = {Metric.BYTES: figures.live_bytes, Metric.BLOCKS: figures.live_count}
        for metric in (Metric.GROWTH, settings.metric):
            columns.setdefault(metric, weight_of(snapshot, metric))
        weights = {metric: np.where(chosen, column, 0) for metric, column in columns.items()}
        tree = self._tree.update(snapshot, self._source.namer, weights)
        return Nodes(tree, settings.metric, sampled=snapshot.sample_bytes is not None)

    def _details(self, snapshot: Snapshot, settings: Settings) -> Details | None:
        index = settings.selected
        if index is None or index >= len(snapshot.totals):
            return None
        namer = self._source.namer
        known = namer.prepare(snapshot, [index], 0)
        details = stack_details(snapshot, index, self._source.thread_names(), settings.all_limits)
        findings = snapshot.findings
        suspect = None if findings is None else findings.suspect_of.get(index)
        return Details(
            figures=details,
            stack=namer.stack(snapshot, index),
            names_pending=not known,
            judgement=None if findings is None else findings.judgement(index),
            suspect=None if suspect is None else name_suspects(snapshot, namer, [suspect])[0],
        )
