"""Lists the suspects among judged sites, and settles verdicts by earlier ones.

A leak has to hold for a while, and may be retracted. Verdicts are some seconds old when they are
shown: a heap may lose most of its blocks meanwhile (``without_falling``).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass, replace
from tracelloc.heap.cohorts import Census
from tracelloc.model.figures import F64, I64, Mask, Rows, resized
from tracelloc.model.verdicts import (
    CODE_OF,
    Findings,
    JudgingBasis,
    Member,
    Sites,
    Suspect,
    Verdict,
    rank,
)
from tracelloc.verdict.evidence import judgement_of
from tracelloc.verdict.loss import Circumstances
from tracelloc.verdict.parameters import P

_LEAKING: Final = CODE_OF[Verdict.LEAKING]
_GROWING: Final = CODE_OF[Verdict.GROWING]


@dataclass(frozen=True, slots=True)
class Group:
    """A group of stacks that are judged as one site."""

    sites: Sites  # The judgement of the group, as one row
    stacks: Rows
    bytes_kept: F64  # Bytes kept by each stack since the group began to grow
    frame: int | None  # Return address that the stacks share
    retracted: int
    sharing: int  # Stacks that share the frame, including those without a part in the leak

    @property
    def rate_bytes_per_min(self) -> float:
        return float(self.sites.rate_bytes_per_min[0])

    @property
    def is_leaking(self) -> bool:
        return bool(self.sites.code[0] == _LEAKING)

    @classmethod
    def from_stacks(  # noqa: PLR0917
        cls, census: Census, stacks: Rows, sites: Sites, frame: int | None, retracted: int,
        circumstances: Circumstances,
    ) -> Group:  # fmt: skip
        """Makes a group of stacks, given their judgement as one site.

        A stack with too few survivors to grow alone counts as if its blocks had the group's usual
        size: one large block is not a leak of its size, unless it is lost. If a collector frees
        blocks late, a stack counts by its lost blocks.
        """
        # All blocks of the slice in which it began are later than that.
        since = (census.edges_s[1:] > sites.since_s[0]).astype(np.float64)
        whole = since @ census.alive_bytes[:, stacks]
        count = since @ census.alive[:, stacks]
        size = whole / np.maximum(count, 1e-9)
        order = np.argsort(size)
        middle = np.searchsorted(np.cumsum(count[order]), count.sum() / 2)
        usual = count * size[order[min(int(middle), len(order) - 1)]]
        lost, lost_bytes, asked = census.unreachable.lost_blocks_of(stacks, len(since))
        few = (count < P.least_survivors) & (lost.sum(axis=1) == 0)
        kept = np.where(few, np.minimum(whole, usual), whole)
        if circumstances.collects and sites.unreachable[0] > 0:
            mostly = lost.sum(axis=1) >= P.unreachable_mostly * asked
            kept = np.where(mostly, whole, lost_bytes @ since)
        most = kept.sum() / np.maximum(census.now_s - sites.since_s, 1e-3) * 60
        sites = replace(sites, rate_bytes_per_min=np.minimum(sites.rate_bytes_per_min, most))
        return cls(sites, stacks, kept, frame, retracted, len(stacks))


def are_suspects(sites: Sites) -> Mask:
    """Returns a mask of leaking sites, and of growing sites that are likely enough to leak."""
    grows = (sites.code == _GROWING) & (sites.confidence >= P.suspect_least_confidence)
    suspects: Mask = grows | (sites.code == _LEAKING)
    return suspects


def list_suspects(
    sites: Sites, groups: list[Group], retracted: I64, moment: JudgingBasis, most: int
) -> tuple[tuple[Suspect, ...], int]:
    """Returns the ``most`` urgent suspects: leaking sites first, by rate; and how many more."""
    suspects = [_of_group(group, moment) for group in groups]
    grouped = np.concatenate([np.empty(0, np.intp), *(group.stacks for group in groups)])
    rows = np.setdiff1d(np.flatnonzero(are_suspects(sites)), grouped)
    weight = sites.rate_bytes_per_min[rows] * sites.confidence[rows]
    order = np.lexsort((rows, -weight, sites.code[rows] != CODE_OF[Verdict.LEAKING]))
    # There may be thousands: only those that can be among the first are described.
    for row in rows[order[:most]].tolist():
        judgement = judgement_of(sites, row, moment, int(retracted[row]))
        suspects.append(Suspect(judgement, (Member(row, judgement.rate_bytes_per_min, 1.0),), None))
    return tuple(sorted(suspects, key=rank)[:most]), max(0, len(groups) + len(rows) - most)


def _of_group(group: Group, moment: JudgingBasis) -> Suspect:
    judgement = judgement_of(group.sites, 0, moment, group.retracted)
    shares = group.bytes_kept / max(float(group.bytes_kept.sum()), 1.0)
    members = tuple(
        Member(
            int(group.stacks[at]),
            float(shares[at]) * judgement.rate_bytes_per_min,
            float(shares[at]),
        )
        for at in np.argsort(-shares, kind="stable").tolist()
        if shares[at] > 0
    )
    return Suspect(judgement, members, group.frame)


class VerdictHistory:
    """Earlier verdicts of sites, by number, which decide whether a new leak verdict holds."""

    def __init__(self) -> None:
        # Since when a site looks like a leak (0: it does not), when it last did, whether it was
        # reported as one, and its onset then.
        self._looks_since_ns = np.zeros(64, np.int64)
        self._looked_ns = np.zeros(64, np.int64)
        self._called = np.zeros(64, np.bool_)
        self._onset_s = np.full(64, np.nan)
        self.retracted = np.zeros(64, np.int64)
        """How often each site's verdict "leaking" was retracted."""

    def grow(self, count: int) -> None:
        room = len(self._called)
        if count <= room:
            return
        more = max(count, 2 * room) - room
        for name in ("_looks_since_ns", "_looked_ns", "_called", "_onset_s", "retracted"):
            column = getattr(self, name)
            empty = np.full(more, np.nan if name == "_onset_s" else 0, column.dtype)
            setattr(self, name, np.append(column, empty))

    def settle(self, sites: Sites, numbers: I64, now_ns: int) -> Sites:
        """Turns new leaks into "growing"; keeps reported ones over a lapse while they grow."""
        looks = sites.code == _LEAKING
        since = self._looks_since_ns[numbers]
        since[~looks] = 0
        since[looks & (since == 0)] = now_ns
        self._looked_ns[numbers[looks]] = now_ns
        grows = (sites.code == _GROWING) & (sites.confidence > 0) & ~sites.replaces_old
        lapse = self._called[numbers] & grows & (now_ns - self._looked_ns[numbers] <= P.lapse_ns)
        called = lapse | (looks & (now_ns - since >= P.hold_ns))
        self.retracted[numbers] += self._called[numbers] & ~called
        self._onset_s[numbers] = np.where(called, sites.since_s, np.nan)
        self._looks_since_ns[numbers], self._called[numbers] = since, called
        code = np.where(called, _LEAKING, np.where(looks, _GROWING, sites.code))
        verdict_in_s = np.where(called, 0.0, sites.verdict_in_s)
        return replace(sites, code=code.astype(np.uint8), verdict_in_s=verdict_in_s)

    def onsets(self, numbers: I64) -> F64:
        """Returns onsets of reported leaks, in seconds since tracing began; NaN of other sites."""
        return self._onset_s[numbers]


def without_falling(findings: Findings, growth_per_min: I64, live_bytes: I64) -> Findings:
    """Returns findings in which growing stacks that have just freed many bytes are *deciding*.

    ``growth_per_min``, ``live_bytes``: bytes of each stack now; stacks at the end that only other
    processes have used may be missing.
    """
    sites, count = findings.sites, len(findings.codes)
    growth, live = resized(growth_per_min, count), resized(live_bytes, count)
    is_growing = sites.code == CODE_OF[Verdict.GROWING]
    falls = is_growing & (_falls(growth, live) | _fell_since(sites.alive_bytes[:count], live))
    kept: list[Suspect] = []
    for suspect in findings.suspects:
        members = [member.stack for member in suspect.members]
        is_leak = suspect.judgement.verdict is Verdict.LEAKING
        now, then = live[members].sum(), sites.alive_bytes[members].sum()
        if is_leak or not (_falls(growth[members].sum(), now) or _fell_since(then, now)):
            kept.append(suspect)
            falls[members] = False
        else:
            falls[members] = is_growing[members]
    if len(kept) == len(findings.suspects) and not falls.any():
        return findings
    return replace(
        findings,
        suspects=tuple(kept),
        suspect_of={member.stack: one for one in kept for member in one.members},
        sites=replace(
            sites.withheld(falls, Verdict.DECIDING),
            rising_only=sites.rising_only | falls,
            verdict_in_s=np.where(falls, 0.0, sites.verdict_in_s),
        ),
    )


def _fell_since(judged: F64, live: I64) -> Mask:
    """Whether a large share of the bytes that were live at the judgement has been freed."""
    return live < (1 - P.fall_least_share) * judged


def _falls(growth: I64, live: I64) -> Mask:
    return -growth > P.fall_least_share * (live - growth)
