"""Which stacks and which blocks a view is about, as the settings say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelloc.heap.blocks import Blocks
from tracelloc.heap.totals import I64
from tracelloc.snapshots import analysis
from tracelloc.snapshots.analysis import StackFigures
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.ui.settings import Settings, View
from tracelloc.views.livetree import weight_of


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
        listed = weight = weight_of(snapshot, settings.metric)
    rows = np.flatnonzero(listed)
    return rows[np.argsort(-weight[rows], kind="stable")]


def blocks_of_stacks(snapshot: Snapshot, settings: Settings, stacks: I64) -> Blocks:
    """The blocks of the stacks that a search, a verdict or a difference leaves."""
    assert snapshot.blocks is not None
    every = snapshot.blocks.blocks()
    if not settings.narrows_stacks:
        return every
    chosen = np.zeros(len(snapshot.totals), np.bool_)
    chosen[stacks] = True
    return every.select(chosen[every.stack])


def chosen_blocks(snapshot: Snapshot, settings: Settings, stacks: I64) -> Blocks:
    """The blocks that histograms and threads are about."""
    if settings.view not in (View.SIZES, View.AGES, View.THREADS):
        return Blocks.empty()
    limits = settings.all_limits
    if settings.view is View.THREADS:
        # Choosing one thread must not make the others vanish from their list.
        limits = replace(limits, tid=None)
    blocks = blocks_of_stacks(snapshot, settings, stacks)
    return analysis.choose(blocks, snapshot.now_ns, limits)
