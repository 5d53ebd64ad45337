"""Leaks by proof: blocks that nothing in the process points to any more, again and again.

Whether blocks pile up can be counted; whether the program still needs them can't. But what it has
no pointer to it can neither use nor free. A program that loses a block now and then, in generation
after generation, leaks, however few they are and however regular other blocks of the site are
freed; where old blocks are still pointed to, they may be a cache or a table that grows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracelloc.heap.cohorts import F64, Population
from tracelloc.verdict.growth import CumulativeCurve
from tracelloc.verdict.judgement import CODE_OF, Sites, Verdict
from tracelloc.verdict.parameters import P
from tracelloc.verdict.survivaltail import Mask


@dataclass(frozen=True, slots=True)
class Proof:
    """What searches for pointers say of each site: a row each."""

    lost: F64
    """Blocks that nothing points to."""
    listed: Mask
    """Some, and again: worth a look."""
    proven: Mask
    """Enough of them, from enough generations, to call it a leak."""
    since_s: F64
    """When the first of them was born, seconds since tracing began; one-off losses left out."""
    rate_bytes_per_min: F64
    """Rate of what is old and was allocated since, if enough of it is lost; else of what is."""
    blocks_per_min: F64


def find_proof(population: Population, loss_share: F64, clean_from_s: float) -> Proof:
    """Looks at the lost blocks of all sites.

    What was freed unseen is lost to us alone: ``loss_share`` of a site's blocks may be so, and
    all that were born before ``clean_from_s``.
    """
    asked, unseen = population.asked, P.loss_margin * loss_share * population.born.sum(axis=1)
    lost = np.where(population.edges_s[:-1] >= clean_from_s, population.unreachable, 0.0)
    count = lost.sum(axis=1)
    sites = len(count)
    since_s, rate, pace = np.zeros((3, sites))
    listed, proven = np.zeros((2, sites), np.bool_)
    rows = np.flatnonzero(count >= np.maximum(P.unreachable_least, unseen))
    if len(rows):
        edges = population.edges_s
        tables = lost, population.unreachable_bytes, population.alive, population.alive_bytes
        curve = CumulativeCurve(edges, np.stack([table[rows] for table in tables]))
        end_s = edges[-1] - P.unreachable_unseen_s
        # From the first lost block on; then the later ones alone.
        for share in P.unreachable_fractions:
            reached = np.cumsum(lost[rows], axis=1) > share * count[rows, None]
            start_s = edges[:-1][reached.argmax(axis=1)]
            length_s = np.maximum(end_s - start_s, 1e-3)
            steps = np.arange(P.unreachable_parts + 1) / P.unreachable_parts
            parts = curve.between(start_s[:, None] + length_s[:, None] * steps)
            blocks, size, kept_blocks, kept_size = parts.sum(axis=2)
            generations = np.count_nonzero(parts[0] >= 0.5, axis=1)
            recent = parts[0, :, P.unreachable_parts // 2 :].sum(axis=1)
            spread_s = _last_edge(edges, lost[rows]) - start_s
            again = (
                (blocks >= P.unreachable_least)
                & (generations >= 2)
                & (recent >= 0.5)
                & (spread_s >= P.unreachable_spread_s)
            )
            enough = (
                again
                & (blocks >= np.maximum(P.unreachable_called, P.unreachable_share * asked[rows]))
                & (generations >= P.unreachable_least_parts)
                & (spread_s >= P.unreachable_watch_s)
            )
            better = (again & ~listed[rows]) | (enough & ~proven[rows])
            mostly = blocks >= P.unreachable_mostly * kept_blocks
            since_s[rows] = np.where(better, start_s, since_s[rows])
            per_min = np.where(better, 60 / length_s, 0.0)
            rate[rows] = np.where(better, np.where(mostly, kept_size, size) * per_min, rate[rows])
            pace[rows] = np.where(
                better, np.where(mostly, kept_blocks, blocks) * per_min, pace[rows]
            )
            listed[rows] |= again
            proven[rows] |= enough
    return Proof(count, listed, proven, since_s, rate, pace)


def heed_pointers(sites: Sites, proof: Proof, watched_s: F64, resident_bytes: int) -> Sites:
    """Calls a leak what is lost, and what is still pointed to only if it goes on for long.

    ``watched_s``: for how long each site has been growing. ``resident_bytes``: of the process.
    """
    rate = sites.rate_bytes_per_min
    has_doubled = rate * watched_s / 60 >= P.referenced_share * max(resident_bytes, 1)
    called_s = np.where(has_doubled, P.referenced_doubled_s, P.referenced_watch_s)
    leaks = sites.code == CODE_OF[Verdict.LEAKING]
    grew = sites.confidence > 0
    waits = leaks & ~proof.proven & (watched_s < called_s)
    code = np.select(
        [proof.proven, waits | (proof.listed & ~leaks)],
        [CODE_OF[Verdict.LEAKING], CODE_OF[Verdict.GROWING]],
        sites.code,
    ).astype(np.uint8)
    listed_s = np.where(
        rate < max(P.material_least_bytes, P.material_per_min * resident_bytes),
        P.referenced_listed_s,
        P.material_listed_s,
    )
    minor = watched_s < listed_s
    referenced = np.where(minor, P.minor_confidence, P.referenced_confidence)
    unproven = np.where(code == CODE_OF[Verdict.LEAKING], 1.0, referenced) * sites.confidence
    by_proof = P.most_confidence * (1 - np.exp(-proof.lost / 2))
    only_lost = proof.listed & ~grew
    return replace(
        sites,
        code=code,
        confidence=np.where(proof.listed, np.maximum(by_proof, sites.confidence), unproven),
        rate_bytes_per_min=np.where(only_lost, proof.rate_bytes_per_min, rate),
        blocks_per_min=np.where(only_lost, proof.blocks_per_min, sites.blocks_per_min),
        since_s=np.where(only_lost, proof.since_s, sites.since_s),
        survivors=np.where(only_lost, proof.lost, sites.survivors),
        born_in_window=np.where(only_lost, sites.born, sites.born_in_window),
        verdict_in_s=np.where(waits & (sites.asked == 0), P.unreachable_first_s, 0.0),
        rising_only=sites.rising_only & ~proof.listed,
        replaces_old=sites.replaces_old & ~proof.listed,
    )


def _last_edge(edges_s: F64, lost: F64) -> F64:
    """When the slice begins from which each site's last lost block is."""
    last = lost.shape[1] - 1 - (lost[:, ::-1] > 0).argmax(axis=1)
    began: F64 = edges_s[last]
    return began
