"""Call stacks by number, how the walk of each one ended, and why it may be partial."""

from enum import IntFlag
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.figures import I64, U64, Mask


class StackFlag(IntFlag):
    """How a stack walk ended (``enum stack_flag``)."""

    TRUNCATED = 1
    UNREADABLE = 2
    BROKEN = 4
    GUESSED = 8
    LOST_MISS = 16
    SHORT_COPY = 32
    BAD_CFI = 64
    UNMAPPED = 128
    PYTHON = 256
    CODE = 512
    NAMES = 1024
    EARLIER = 2048  # An artificial stack: class and size of blocks from before tracing
    DATED = 4096  # The last word is not a frame: it is the generation of the mappings
    PLACED = 8192  # In a test: the id of the code's stack, and a frame of Python beyond its end


# Why a stack ends before its outermost frame, for display.
PARTIAL_REASONS: Final = {
    StackFlag.LOST_MISS: "its unwind entries were not ready yet",
    StackFlag.SHORT_COPY: "it continues beyond the memory that was copied",
    StackFlag.BAD_CFI: "call-frame information that can't be used",
    StackFlag.UNMAPPED: "an address where no code is mapped",
    StackFlag.UNREADABLE: "memory that can't be read",
    StackFlag.BROKEN: "code without frame pointers or call-frame information",
    StackFlag.TRUNCATED: "deeper than --max-frames",
}

# Stacks that the probes left unfinished, and that could not be finished.
PARTIAL: Final = StackFlag.LOST_MISS | StackFlag.SHORT_COPY | StackFlag.BAD_CFI | StackFlag.UNMAPPED

CUT: Final = StackFlag.LOST_MISS | StackFlag.SHORT_COPY  # Many call sites may share them


NO_STACK: Final = 0  # The index of blocks whose stack could not be captured

UNKNOWN: Final = -1  # Start of the frames of a stack of which only the id is known

Frames = tuple[int, ...]  # Return addresses, innermost first


class CallStacks:
    """Call stacks, each with an index that never changes, for readers only.

    Views read them without a lock, up to a count that was returned before: columns are replaced
    when they grow, and only their free ends are written to (``heap/stacks.py``).
    """

    def __init__(self) -> None:
        self._starts = np.zeros(1, np.int64)  # NO_STACK has no frames
        self._depths = np.zeros(1, np.int64)
        self._flags = np.zeros(1, np.uint16)
        self._frames = np.empty(0, np.uint64)
        self._count: int = 1
        self._used: int = 0

    def replace(self, starts: I64, depths: I64, flags: npt.NDArray[np.uint16], frames: U64) -> None:
        """Replaces all by saved stacks; ``starts``: -1 if the frames are unknown."""
        self._starts, self._depths, self._flags = starts, depths, flags
        self._frames, self._count, self._used = frames, len(starts), len(frames)

    def columns(self, first: int, end: int) -> tuple[I64, npt.NDArray[np.uint16], U64]:
        """Returns (depths, flags, frames one after the other) of a range of stacks, for saving.

        The depth of an unknown stack is -1. May be called from any thread, up to a count that was
        returned before.
        """
        starts, flags = self._starts[first:end].copy(), self._flags[first:end].copy()
        depths = np.where(starts == UNKNOWN, UNKNOWN, self._depths[first:end])
        frames = self._frames  # After the starts: it has the frames of all known ones
        pieces = [
            frames[start : start + depth]
            for start, depth in zip(starts.tolist(), depths.tolist(), strict=True)
            if depth > 0
        ]
        return depths, flags, np.concatenate([np.empty(0, np.uint64), *pieces])

    def __len__(self) -> int:
        return self._count

    def frames(self, index: int) -> Frames | None:
        """Returns a stack's return addresses, innermost first; None while only its id is known."""
        start = int(self._starts[index])
        if start == UNKNOWN:
            return None
        return tuple(self._frames[start : start + int(self._depths[index])].tolist())

    def packed(self, index: int) -> tuple[bytes, int] | None:
        """Returns a stack's return addresses as 64-bit words, and its flags; None as above."""
        start = int(self._starts[index])
        if start == UNKNOWN:
            return None
        words = self._frames[start : start + int(self._depths[index])]
        return words.tobytes(), int(self._flags[index])

    def flags(self, index: int) -> StackFlag:
        """Returns how the walk of a stack ended."""
        return StackFlag(int(self._flags[index]))

    def have(self, flag: StackFlag) -> Mask:
        """Returns a mask of the stacks that have any of these flags, by index."""
        ended: Mask = self._flags[: self._count] & np.uint16(flag) != 0
        return ended

    def pass_through(self, edges: U64) -> Mask:
        """Returns a mask of stacks with a frame in ranges that begin and end at ``edges``."""
        starts, depths = self._starts[: self._count], self._depths[: self._count]
        is_inside = np.searchsorted(edges, self._frames[: self._used], side="right") & 1
        before = np.concatenate([[0], np.cumsum(is_inside)])
        starts = np.maximum(starts, 0)  # `depths` is 0 where no frames are known
        found: Mask = before[starts + depths] > before[starts]
        return found

    @property
    def are_cut(self) -> Mask:
        """Returns a mask of stacks that may stand for many call sites: cut, or not captured."""
        cut = self.have(CUT)
        cut[NO_STACK] = True
        return cut

    @property
    def are_partial(self) -> Mask:
        """Returns a mask of stacks that lack memory or unwind information, or are unknown."""
        partial = self.have(PARTIAL) | self.are_unknown
        partial[NO_STACK] = True
        return partial

    @property
    def are_unknown(self) -> Mask:
        """Returns a mask of the stacks of which only the id is known."""
        unknown: Mask = self._starts[: self._count] == UNKNOWN
        return unknown
