"""What is said of a site, and how sure one can be: the answers, apart from how they come.

A *site* is a call stack, or several that share frames and are looked at as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What kind of memory a site's blocks are. The values are what users read."""

    LEAKING = "leaking"
    """Blocks of nearly every generation survive, have stopped dying, at a pace that does
    not slow down, for long enough."""
    GROWING = "growing"
    """It grows, but it is too early or there is too little to call it a leak."""
    CACHE_OR_POOL = "cache-or-pool"
    """Blocks are kept and replaced; the lowest level no longer rises."""
    BUSY = "busy"
    """Blocks live shortly; nothing old piles up."""
    START_UP = "start-up"
    """Nearly all of it was made in the beginning and stays."""
    WATCHING = "watching"
    """Too little has been seen to say anything."""
    UNKNOWN = "unknown"
    """Too much is missing to say anything: lost events."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known of one site at one moment."""

    verdict: Verdict
    rate_bytes_per_min: float
    """At which bytes pile up that are not freed; 0 unless leaking or growing."""
    since_ns: int
    """Since when, CLOCK_MONOTONIC; for other verdicts, since tracing began."""
    confidence: float
    """Chance that it really is a leak, 0 to 1; 0 unless leaking or growing."""
    evidence: str
    """One plain sentence, without the verdict's name."""
    watch_more_s: float
    """How much longer to watch before it can be called leaking; 0 if that is not the hindrance."""
    never_freed: bool
    """Nothing made here has been freed: a container that only grows would look the same."""
    survivors: int
    """Blocks (sampled ones, where blocks are sampled) that the rate is made of."""
    taken_back: int
    """How often it was called leaking and then no longer."""


@dataclass(frozen=True, slots=True)
class Member:
    """A stack's part in a suspect."""

    stack: int
    """Index of ``stacks.Stacks``."""
    rate_bytes_per_min: float
    share: float
    """Of the suspect's rate, 0 to 1."""


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
