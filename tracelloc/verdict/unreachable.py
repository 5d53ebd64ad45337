"""Leaks by proof: sites that repeatedly lose blocks: nothing points to these any more.

Accumulation can be counted; whether the program still needs the blocks can't. But the program can
neither use nor free a block without a pointer to it. A program that loses blocks in generation
after generation leaks, however few they are and however regularly other blocks of the site are
freed. If old blocks are still pointed to, they may be a cache or a table that grows.
"""

from __future__ import annotations

from typing import overload

import numpy as np

from tracelloc.dataclass import dataclass, replace
from tracelloc.heap.cohorts import Population
from tracelloc.model.figures import F64, Mask
from tracelloc.model.verdicts import CODE_OF, Sites, Verdict
from tracelloc.verdict.growth import CumulativeCurve, beginning_within, slice_starts
from tracelloc.verdict.loss import Circumstances
from tracelloc.verdict.parameters import P


@dataclass(frozen=True, slots=True)
class PointerProof:
    """Results of the pointer searches: a row per site."""

    lost: F64  # Blocks without any pointer to them
    listed: Mask  # Sites that repeatedly lost some blocks: suspects
    proven: Mask  # Sites that lost enough blocks, over enough time, for a leak verdict
    since_s: F64  # Of the first lost block, but for one-off losses; seconds since the start

    def withheld(self) -> PointerProof:
        """Returns the proof without results: unread memory may have pointers to the blocks."""
        none = np.zeros_like(self.proven)
        return replace(self, proven=none, listed=none)


def prove_unreachable(population: Population, loss_share: F64, clean_from_s: float) -> PointerProof:
    """Decides which sites leak by their lost blocks. A block freed unseen only looks lost: this may
    concern ``loss_share`` of a site's blocks, and all that were born before ``clean_from_s``.
    """
    asked, unseen = population.asked, P.loss_margin * loss_share * population.born.sum(axis=1)
    lost = np.where(population.edges_s[:-1] >= clean_from_s, population.unreachable, 0.0)
    count, lost_bytes = lost.sum(axis=1), population.unreachable_bytes.sum(axis=1)
    sites = len(count)
    since_s = np.zeros(sites)
    listed, proven = np.zeros((2, sites), np.bool_)
    rows = np.flatnonzero(count >= np.maximum(P.unreachable_least, unseen))
    if len(rows):
        edges = population.edges_s
        curve = CumulativeCurve(edges, lost[rows])
        end_s = edges[-1] - P.unreachable_unseen_s
        closed = np.tile(np.minimum(edges, end_s), (len(rows), 1))
        # From the first lost block on; then only the later ones.
        for share in P.unreachable_fractions:
            reached = np.cumsum(lost[rows], axis=1) > share * count[rows, None]
            start_s = edges[:-1][reached.argmax(axis=1)]
            length_s = np.maximum(end_s - start_s, 1e-3)
            steps = np.arange(P.unreachable_parts + 1) / P.unreachable_parts
            parts = curve.between(start_s[:, None] + length_s[:, None] * steps)
            blocks = parts.sum(axis=1)
            generations = np.count_nonzero(parts >= 0.5, axis=1)
            recent = parts[:, P.unreachable_parts // 2 :].sum(axis=1)
            last = lost.shape[1] - 1 - (lost[rows, ::-1] > 0).argmax(axis=1)
            spread_s = edges[last] - start_s  # from the first to the last slice with a lost block
            again = (
                (blocks >= P.unreachable_least)
                & (generations >= 2)
                & (recent >= 0.5)
                & (spread_s >= P.unreachable_spread_s)
            )
            is_large = lost_bytes[rows] >= P.unreachable_large_bytes
            called = np.where(is_large, P.unreachable_least_parts, P.unreachable_called)
            enough = (
                again
                & (blocks >= np.maximum(called, P.unreachable_share * asked[rows]))
                & (generations >= P.unreachable_least_parts)
                & (spread_s >= P.unreachable_watch_s)
            )
            better = (again & ~listed[rows]) | (enough & ~proven[rows])
            began_s = beginning_within(closed, curve.at(closed), reached.argmax(axis=1))
            since_s[rows] = np.where(better, began_s, since_s[rows])
            listed[rows] |= again
            proven[rows] |= enough
    return PointerProof(count, listed, proven, since_s)


def apply_pointer_proof(
    sites: Sites, population: Population, proof: PointerProof, watched_s: F64, around: Circumstances
) -> Sites:
    """Makes lost blocks leaks; growth of others must last (``watched_s``) long for that."""
    resident_bytes = around.resident_bytes
    rate = sites.rate_bytes_per_min
    # A collector may leave garbage until memory has doubled.
    doubles_s = P.referenced_watch_s if around.collects else P.referenced_doubled_s
    has_doubled = doubles_memory(rate, watched_s, resident_bytes, around.risen_bytes)
    called_s = np.where(has_doubled, doubles_s, P.referenced_watch_s)
    leaks, grew = sites.code == CODE_OF[Verdict.LEAKING], sites.confidence > 0
    # Requests in the kernel that point to the blocks may be under way for as long as they want.
    may_be_in_kernel = (proof.lost >= P.unreachable_least) & around.in_kernel
    waits = leaks & ~proof.proven & ((watched_s < called_s) | may_be_in_kernel)
    code = np.select(
        [proof.proven, waits | (proof.listed & ~leaks)],
        [CODE_OF[Verdict.LEAKING], CODE_OF[Verdict.GROWING]],
        sites.code,
    ).astype(np.uint8)
    is_material = rate >= max(P.material_least_bytes, P.material_per_min * resident_bytes)
    is_large, steady = _steady(sites, watched_s, around)
    called_in_s = called_s - watched_s if around.refused else P.unreachable_first_s
    # A site that grows at whatever pace is searched once its blocks are old enough.
    first_in_s = np.where(grew & (not around.refused), P.unreachable_first_s - watched_s, 0.0)
    verdict_in_s = np.where(waits, called_in_s, np.maximum(0.0, first_in_s))
    listed_s = np.select(
        [steady, is_material],
        [P.steady_collected_s if around.collects else P.steady_listed_s, P.material_listed_s],
        P.referenced_listed_s,
    )
    minor = (watched_s < listed_s) & (not around.refused)  # Else windows are all there is
    referenced = np.where(minor, P.minor_confidence, P.referenced_confidence)
    unproven = np.where(code == CODE_OF[Verdict.LEAKING], 1.0, referenced) * sites.confidence
    unproven = np.where(steady & ~minor, np.maximum(unproven, P.steady_confidence), unproven)
    unproven = np.where(sites.rising_only & is_large, sites.confidence, unproven)
    by_proof = P.most_confidence * (1 - np.exp(-proof.lost / 2))
    only_lost = proof.listed & ~grew
    by_loss = proof.proven | only_lost
    first_lost_s = np.maximum(sites.since_s, proof.since_s) if around.collects else sites.since_s
    since_s = np.where(grew, first_lost_s, proof.since_s)
    lost_rate, lost_pace = _rates(population, since_s, by_loss, around)
    return replace(
        sites,
        code=code,
        confidence=np.where(proof.listed, np.maximum(by_proof, sites.confidence), unproven),
        rate_bytes_per_min=np.where(by_loss, lost_rate, rate),
        blocks_per_min=np.where(by_loss, lost_pace, sites.blocks_per_min),
        since_s=np.where(by_loss, since_s, sites.since_s),
        survivors=np.where(only_lost, proof.lost, sites.survivors),
        born_in_window=np.where(only_lost, sites.born, sites.born_in_window),
        verdict_in_s=np.where(sites.asked == 0, verdict_in_s, 0.0),
        rising_only=sites.rising_only & ~proof.listed,
        replaces_old=sites.replaces_old & ~proof.listed,
    )


def _steady(sites: Sites, watched_s: F64, around: Circumstances) -> tuple[Mask, Mask]:
    """Returns masks of sites that grow fast, and of those where hardly anything is freed as well. A
    collector frees some, sooner or later: what it leaves must be a part of the memory.
    """
    rate = sites.rate_bytes_per_min
    is_large = rate >= max(P.steady_least_bytes, P.steady_per_min * around.resident_bytes)
    steady = is_large & (sites.survivors >= P.never_freed * sites.born_in_window)
    steady &= sites.survivors >= P.steady_least_blocks
    if around.collects:
        least_bytes = max(P.referenced_least_bytes, P.steady_collected * around.resident_bytes)
        steady &= rate * watched_s / 60 >= least_bytes
    return is_large, steady


@overload
def doubles_memory(
    rate_bytes_per_min: float, watched_s: float, resident_bytes: int, risen_bytes: int
) -> bool: ...
@overload
def doubles_memory(
    rate_bytes_per_min: F64, watched_s: F64, resident_bytes: int, risen_bytes: int
) -> Mask: ...
def doubles_memory(
    rate_bytes_per_min: float | F64, watched_s: float | F64, resident_bytes: int, risen_bytes: int
) -> bool | Mask:
    """Whether growth at this rate has doubled the process's memory, by no small amount.
    ``risen_bytes``: how far its resident memory has risen: it may have had room for the blocks.
    """
    least_bytes = max(P.referenced_share * resident_bytes, P.referenced_least_bytes)
    return (rate_bytes_per_min * watched_s / 60 >= least_bytes) & (risen_bytes >= least_bytes)


def _rates(
    population: Population, since_s: F64, by_loss: Mask, around: Circumstances
) -> tuple[F64, F64]:
    """Returns bytes and blocks per minute that sites have lost since ``since_s``; 0 of others.

    If many of the kept blocks are lost, all of them count, unless a root is known to keep the rest:
    the pointers to the rest may be stale memory contents. Blocks that a collector has not freed yet
    are also kept. With a collector, therefore, most of the old bytes must be lost as well.
    """
    rate, pace = np.zeros((2, len(since_s)))
    rows = np.flatnonzero(by_loss)
    tables = (
        population.unreachable, population.unreachable_bytes,
        population.alive, population.alive_bytes,
    )  # fmt: skip
    curve = CumulativeCurve(population.edges_s, np.stack([table[rows] for table in tables]))
    length_s = np.maximum(population.edges_s[-1] - P.unreachable_unseen_s - since_s[rows], 1e-3)
    moments = since_s[rows, None] + length_s[:, None] * np.array([0, 0.5, 1])
    # All blocks of the slice in which it began are later than that.
    moments[:, 0] = slice_starts(population.edges_s, since_s[rows])
    lost, lost_bytes, kept, kept_bytes = curve.between(moments)
    mostly = lost.sum(axis=1) >= P.unreachable_mostly * kept.sum(axis=1)
    mostly &= ~around.keeps[rows]
    all_blocks, all_bytes = kept.sum(axis=1), kept_bytes.sum(axis=1)
    if around.collects:
        mostly &= lost_bytes[:, 0] >= P.unreachable_collected * kept_bytes[:, 0]
        # For the newer half, it is unknown what the collector will still free.
        all_blocks = kept[:, 0] * lost.sum(axis=1) / np.maximum(lost[:, 0], 1.0)
        all_bytes = kept_bytes[:, 0] * lost_bytes.sum(axis=1) / np.maximum(lost_bytes[:, 0], 1.0)
    rate[rows] = np.where(mostly, all_bytes, lost_bytes.sum(axis=1)) / length_s * 60
    pace[rows] = np.where(mostly, all_blocks, lost.sum(axis=1)) / length_s * 60
    return rate, pace
