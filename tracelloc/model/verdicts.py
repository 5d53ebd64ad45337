"""Verdicts on call stacks: kinds of memory that a stack's blocks may be, figures, and suspects.

A *site* is a call stack, or several that share frames and are judged as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, fields, replace
from tracelloc.model.figures import F64, I64, NS_PER_S, Mask, Rows


class Verdict(Enum):
    """What kind of memory a site's blocks are. The values are shown to users."""

    LEAKING = "leaking"  # Blocks of nearly all generations stay, at a steady pace, for long
    GROWING = "growing"  # It is too early for a leak verdict, or the evidence is too weak
    CACHE = "cache"  # Blocks are kept and replaced; their minimum has stopped rising
    BUSY = "busy"  # Blocks are short-lived; none accumulate
    START_UP = "start-up"  # Nearly all blocks were allocated at the start and stay
    DECIDING = "deciding"  # Too little has been observed for a verdict
    UNKNOWN = "unknown"  # Too much is missing for a verdict: lost events, or the rest of the stacks
    EARLIER = "earlier"  # Allocated before tracing: call stack and pace are unknown
    LOST = "lost"  # Nothing points to some blocks; they do not grow, or are from before tracing


VERDICTS: Final = tuple(Verdict)  # The verdict of each code
CODE_OF: Final = {verdict: np.uint8(code) for code, verdict in enumerate(VERDICTS)}

Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one site at one time, and its figures."""

    verdict: Verdict
    rate_bytes_per_min: float = 0.0  # Of unfreed bytes; 0 unless leaking or growing
    since_ns: int = 0  # The onset, CLOCK_MONOTONIC; for other verdicts, the start of tracing
    confidence: float = 0.0  # Chance that it really leaks, 0 to 1; 0 unless leaking or growing
    evidence: str = ""  # One plain sentence, without the verdict's name
    verdict_in_s: float = 0.0  # Until it can be "leaking"; 0 unless only time is missing
    never_freed: bool = False  # A container that only grows would look the same
    survivors: int = 0  # Number of blocks behind the rate (of samples, if blocks are sampled)
    retracted: int = 0  # How often the verdict "leaking" was retracted
    searched: int = 0  # Old blocks that pointer searches covered; 0: it is unknown what is lost
    unreachable: int = 0  # Number of searched blocks without any pointer to them


@dataclass(frozen=True, slots=True)
class Member:
    """A call stack that is part of a suspect, and its share of the suspect's growth."""

    stack: int  # Index of `CallStacks`
    rate_bytes_per_min: float
    share: float  # Share of the suspect's rate, 0 to 1


@dataclass(frozen=True, slots=True)
class Suspect:
    """A site that is leaking or growing: one stack, or several that share a frame."""

    judgement: Judgement
    members: tuple[Member, ...]  # The site's stacks, the largest share first; at least one
    # Return address in a frame that all members share; None for a single stack. If a leak is split
    # over its callers, the outermost shared one from the allocation on; if stacks leak together,
    # their innermost common caller.
    frame: int | None

    @property
    def stack(self) -> int:
        return self.members[0].stack


@dataclass(frozen=True, slots=True)
class Sites:
    """Judged sites: a column per figure, a row per site."""

    code: Codes  # Index of `VERDICTS`. A possible leak counts as "leaking"; the judge still waits.
    rate_bytes_per_min: F64
    blocks_per_min: F64  # Blocks per minute by which a possible leak grows; 0 for other sites
    since_s: F64
    confidence: F64
    verdict_in_s: F64
    never_freed: Mask
    rising_only: Mask  # Growing only by the minimum of live bytes: old blocks are still freed
    replaces_old: Mask  # Would be leaking, but may be a cache that was full when tracing began
    survivors: F64  # Live blocks from the window in which growth was found
    born_in_window: F64  # Blocks allocated in that window
    alive: F64  # Live blocks
    alive_bytes: F64  # Bytes of the live blocks
    born: F64  # Blocks allocated since tracing began
    most_live_s: F64  # Seconds that nearly all freed blocks lived at most
    loss_share: F64  # Share of blocks that may look live because frees were lost
    unreachable: F64  # Old blocks without any pointer to them
    asked: F64  # Old blocks that searches covered; 0: it is unknown what points to them
    unreachable_bytes: F64

    def __len__(self) -> int:
        return len(self.code)

    def select(self, rows: Rows) -> Sites:
        return Sites(*(getattr(self, field.name)[rows] for field in fields(self)))

    def growing(self) -> Rows:
        """Returns the rows of sites that leak or grow, the fastest first."""
        rows = np.flatnonzero(self.have((Verdict.LEAKING, Verdict.GROWING)))
        return rows[np.argsort(-self.rate_bytes_per_min[rows], kind="stable")]

    def have(self, verdicts: Iterable[Verdict]) -> Mask:
        return np.isin(self.code, [CODE_OF[verdict] for verdict in verdicts])

    def withheld(self, rows: Mask, verdict: Verdict = Verdict.UNKNOWN) -> Sites:
        """Returns the sites with the verdicts in some rows replaced by a less definite one."""
        return replace(
            self,
            code=np.where(rows, np.uint8(CODE_OF[verdict]), self.code),
            rate_bytes_per_min=np.where(rows, 0.0, self.rate_bytes_per_min),
            blocks_per_min=np.where(rows, 0.0, self.blocks_per_min),
            confidence=np.where(rows, 0.0, self.confidence),
            # Losses are not the reason.
            loss_share=np.where(rows, 0.0, self.loss_share),
        )

    @classmethod
    def concatenate(cls, parts: list[Sites]) -> Sites:
        return cls(
            *(
                np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields(cls)
            )
        )


@dataclass(frozen=True, slots=True)
class JudgingBasis:
    """When stacks were judged, and on what basis. Times are CLOCK_MONOTONIC."""

    start_ns: int  # When tracing began
    now_ns: int  # Time of the judgement
    sampled: bool = False  # Whether only samples of the blocks are known
    swapped_bytes: int = 0  # Memory that is swapped out, where there may be pointers to blocks
    kernel_queue: str = ""  # Kernel queue whose requests may point to blocks: "io_uring", "AIO"

    @property
    def watched_s(self) -> float:
        return (self.now_ns - self.start_ns) / NS_PER_S


@dataclass(frozen=True, slots=True)
class Suppressed:
    """Sums of suspects that match the user's suppressions."""

    stacks: int
    rate_bytes_per_min: float
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Findings:
    """Verdicts of all stacks by index, and the suspects. Immutable."""

    moment: JudgingBasis
    suspects: tuple[Suspect, ...]  # Most urgent first. Each stack is in at most one suspect.
    suspects_left_out: int  # Number of further suspects
    suspect_of: Mapping[int, Suspect]  # The suspect that a stack is part of, by stack
    sites: Sites  # One per stack
    retracted: I64  # Per stack, how often its verdict "leaking" was retracted
    suppressed: Suppressed | None = None  # By the user; None without suppressions

    @property
    def codes(self) -> Codes:
        """Verdicts on all stacks, each judged alone, as indices of ``VERDICTS``."""
        return self.sites.code

    @property
    def is_growing(self) -> bool:
        """Whether blocks of any site accumulate; True also while that is unknown (first minute)."""
        return bool(self.sites.have((Verdict.GROWING, Verdict.LEAKING, Verdict.DECIDING)).any())

    def whole_codes(self, stacks: int) -> Codes:
        """Returns the verdicts on the first ``stacks`` stacks, as indices of ``VERDICTS``."""
        codes = np.full(stacks, CODE_OF[Verdict.DECIDING])
        known = self.codes[:stacks]
        codes[: len(known)] = known
        for suspect in self.suspects:
            members = [member.stack for member in suspect.members if member.stack < stacks]
            codes[members] = CODE_OF[suspect.judgement.verdict]
        return codes

    def verdict(self, stack: int) -> Verdict:
        """Returns the verdict on a stack, or its split leak; ``DECIDING`` for newer stacks."""
        suspect = self.suspect_of.get(stack)
        if suspect is not None:
            return suspect.judgement.verdict
        return VERDICTS[self.codes[stack]] if stack < len(self.codes) else Verdict.DECIDING


def rank(suspect: Suspect) -> tuple[bool, float]:
    """Returns the sort key of a suspect: the most urgent suspects first."""
    judgement = suspect.judgement
    weight = judgement.rate_bytes_per_min * judgement.confidence
    return judgement.verdict is not Verdict.LEAKING, -weight
