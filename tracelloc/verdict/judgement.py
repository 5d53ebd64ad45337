"""What kind of memory a site's blocks are, judged by its figures alone, and how sure one can be.

A *site* is a call stack, or several that share frames and are looked at as one. Sites that
pile up survivors leak or grow (``growth``), and so do those that lose blocks which nothing points
to any more (``unreachable``). Others are rising, start-up memory, busy, caches, or unclear
(``nonleaks``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.heap.cohorts import F64
from tracelloc.verdict.growth import (
    Rows,
)
from tracelloc.verdict.survivaltail import Mask


class Verdict(Enum):
    """What kind of memory a site's blocks are. The values are what users read."""

    LEAKING = "leaking"
    """Blocks of nearly every generation survive, have stopped dying, at a pace that does
    not slow down, for long enough."""
    GROWING = "growing"
    """Growing, but it is too early or there is too little to call it a leak."""
    CACHE_OR_POOL = "cache-or-pool"
    """Blocks are kept and replaced; their minimum has stopped rising."""
    BUSY = "busy"
    """Blocks are short-lived; none accumulate."""
    START_UP = "start-up"
    """Nearly all of it was allocated at the start and stays."""
    DECIDING = "deciding"
    """Too little has been seen to say anything."""
    UNKNOWN = "unknown"
    """Too much is missing to say anything: lost events, or where the stacks go on."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one site at one moment, and its figures."""

    verdict: Verdict
    rate_bytes_per_min: float
    """At which bytes pile up that are not freed; 0 unless leaking or growing."""
    since_ns: int
    """Since when, CLOCK_MONOTONIC; for other verdicts, since tracing began."""
    confidence: float
    """Chance that it really is a leak, 0 to 1; 0 unless leaking or growing."""
    evidence: str
    """One plain sentence, without the verdict's name."""
    verdict_in_s: float
    """Seconds until it can be called leaking; 0 unless only time is missing."""
    never_freed: bool
    """Nothing allocated here has been freed: a container that only grows would look the same."""
    survivors: int
    """Blocks (sampled ones, where blocks are sampled) that the rate is made of."""
    retracted: int
    """How often the verdict leaking was retracted."""
    searched: int
    """Old blocks that pointers were searched for; 0: it isn't known whether any point to them."""
    unreachable: int
    """Blocks among them that nothing in the process points to."""


@dataclass(frozen=True, slots=True)
class Member:
    """A stack's part in a suspect."""

    stack: int
    """Index of ``stacks.Stacks``."""
    rate_bytes_per_min: float
    share: float
    """Share of the suspect's rate, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A site that is leaking or growing: one stack, or several that share a frame."""

    judgement: Judgement
    members: tuple[Member, ...]
    """The largest share first; at least one."""
    frame: int | None
    """Return address in a frame that all members share; None for a single stack. Where a leak
    is split over its callers, the outermost one from the allocation on; where stacks leak
    together, their innermost common caller."""

    @property
    def stack(self) -> int:
        """The stack with the largest share."""
        return self.members[0].stack


Codes = npt.NDArray[np.uint8]

VERDICTS: Final = tuple(Verdict)
"""The verdict of each code."""
CODE_OF: Final = {verdict: np.uint8(code) for code, verdict in enumerate(VERDICTS)}


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Circumstances of a look: what is known of losses and sampling."""

    loss_share: float
    """Share of frees that are known to be lost."""
    loss_floor: F64
    """Per site, the share of blocks that other sites seem to lose (``loss``)."""
    clean_from_s: float
    """Events are complete from here on, seconds since tracing began."""
    onset_s: F64
    """Per site that was called leaking, since when it leaks, seconds since tracing began; NaN of
    others."""
    sampled: bool = False
    """Blocks are samples: counts are of samples, bytes are scaled."""
    searched: bool = False
    """The process's memory is searched for pointers to its blocks."""
    resident_bytes: int = 0
    """Memory of the process."""
    collects: bool = False
    """A garbage collector frees blocks of the process, some of them late."""

    def select(self, rows: Rows) -> Circumstances:
        """The circumstances of some sites."""
        return replace(self, loss_floor=self.loss_floor[rows], onset_s=self.onset_s[rows])


@dataclass(frozen=True, slots=True)
class Sites:
    """Judged sites: a column per figure, a row per site."""

    code: Codes
    """Index of ``VERDICTS``. What may be called leaking is: the judge waits a little."""
    rate_bytes_per_min: F64
    blocks_per_min: F64
    """Rate in blocks, of what may be a leak; 0 of others."""
    since_s: F64
    confidence: F64
    verdict_in_s: F64
    never_freed: Mask
    rising_only: Mask
    """Growing by its floor: old blocks still get freed."""
    replaces_old: Mask
    """Would be leaking, but may be a cache that was full at the start."""
    survivors: F64
    born_in_window: F64
    alive: F64
    alive_bytes: F64
    born: F64
    most_live_s: F64
    """Nearly all blocks that died had lived no longer than this."""
    loss_share: F64
    unreachable: F64
    """Old blocks that nothing points to."""
    asked: F64
    """Old blocks that were looked for; 0: it is not known whether anything points to them."""

    def __len__(self) -> int:
        return len(self.code)

    def select(self, rows: Rows) -> Sites:
        """Some of the sites."""
        return Sites(*(getattr(self, field.name)[rows] for field in fields(self)))

    def withheld(self, rows: Mask) -> Sites:
        """Without a verdict on some of them: stacks that may stand for many call sites."""
        unknown = np.uint8(CODE_OF[Verdict.UNKNOWN])
        return replace(
            self,
            code=np.where(rows, unknown, self.code),
            rate_bytes_per_min=np.where(rows, 0.0, self.rate_bytes_per_min),
            blocks_per_min=np.where(rows, 0.0, self.blocks_per_min),
            confidence=np.where(rows, 0.0, self.confidence),
            # What is lost is not the reason.
            loss_share=np.where(rows, 0.0, self.loss_share),
        )

    @classmethod
    def concatenate(cls, parts: list[Sites]) -> Sites:
        """All sites of some parts, at least one."""
        return cls(
            *(
                np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields(cls)
            )
        )
