"""Estimates how many blocks may look alive only because their frees were lost.

One lost free in 10,000 is enough to make a busy site look like a slow leak. The probes count
known losses. If something proves that there are losses, the share that sites have in common gives
their size: lost frees hit all busy sites alike, a leak does not.
"""

from __future__ import annotations

import numpy as np

from tracelloc.dataclass import dataclass, replace
from tracelloc.model.figures import F64, Mask, Rows
from tracelloc.verdict.parameters import P


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a judgement must allow for: losses, sampling, and facts about the process."""

    loss_share: float  # Share of frees known to be lost
    loss_floor: F64  # Per site, the share of frees that other sites seem to lose
    clean_from_s: float  # Time from which events are complete, in seconds since tracing began
    onset_s: F64  # Of sites reported as leaking, seconds since tracing began; else NaN
    keeps: Mask  # Whether a root keeps a site's blocks that are not lost: no part of its leak
    sampled: bool = False  # Whether blocks are samples: counts are of samples, bytes are scaled
    searched: bool = False  # Whether searches have results, or it is known that there are none
    refused: bool = False  # Whether the process's memory is not searched for pointers to its blocks
    resident_bytes: int = 0  # Resident memory of the process
    risen_bytes: int = 0  # How far that has risen since tracing began
    collects: bool = False  # Whether a garbage collector frees blocks, some of them late
    in_kernel: bool = False  # Whether requests in the kernel may have the only pointers

    def select(self, rows: Rows) -> Circumstances:
        return replace(
            self, loss_floor=self.loss_floor[rows], onset_s=self.onset_s[rows],
            keeps=self.keeps[rows],
        )  # fmt: skip


class Gaps:
    """Gaps in the events of a process: counts from before a gap are not relied upon.

    After a gap, counting restarts: only blocks born since can be survivors. If losses never
    cease, that would go on for ever, so the share of lost frees is allowed for instead.
    """

    def __init__(self) -> None:
        self._lost = 0
        self._from_ns = 0
        self._until_ns: int | None = None

    def record_losses(self, lost: int, now_ns: int) -> None:
        """Records the number of events lost since tracing began; call it at each judgement."""
        if lost <= self._lost:
            return
        self._lost = lost
        if self._until_ns is None or now_ns - self._until_ns > P.gap_ns:
            self._from_ns = now_ns
        self._until_ns = now_ns

    @property
    def are_lasting(self) -> bool:
        """Whether losses go on and on, so that waiting for the end of the gap is useless."""
        return self._until_ns is not None and self._until_ns - self._from_ns > P.lasting_gap_ns

    def clean_from_ns(self) -> int | None:
        """Time since which no event is missing; None: since the start, or losses never cease."""
        return None if self.are_lasting else self._until_ns


def common_share(alive: F64, born: F64) -> F64:
    """Returns the lower quartile (by births) of the shares that others keep; 0 if none is busy."""
    share_of = np.zeros(len(born))
    busy = np.flatnonzero(born >= P.loss_least_births)
    if len(busy) == 0:
        return share_of
    share = alive[busy] / born[busy]
    order = np.argsort(share)
    share, weight = share[order], born[busy[order]]
    until = np.cumsum(weight)
    total = until[-1]

    def quantile(own_weight: F64, own_until: F64) -> F64:
        """Returns the quantile without one site: its weight, and the sum of weights up to it."""
        goal = P.loss_quantile * (total - own_weight)
        before = np.searchsorted(until, goal)
        after = np.searchsorted(until, goal + own_weight)
        at = np.where(goal <= own_until - own_weight, before, after)
        found: F64 = np.append(share, 0.0)[np.minimum(at, len(share))]
        return found

    share_of[:] = quantile(np.zeros(1), np.full(1, total))
    share_of[busy[order]] = quantile(weight, until) if len(busy) > 1 else 0.0
    share_of[share_of > P.loss_most_share] = 0.0
    return share_of
