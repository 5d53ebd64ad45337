"""Call stacks by number: 64-bit ids from the probes to small indices for arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.heap.stackids import StackIds
from tracelloc.model.events import SentStacks
from tracelloc.model.stackflags import CUT, PARTIAL, StackFlag

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NO_STACK: Final = 0
"""The index of blocks whose stack could not be taken."""

_FEWEST: Final = 1 << 6
"""Elements of a column that grows."""
_FOLDED_FRAMES: Final = 4
"""Frames that are left of a stack where memory is short."""
_UNKNOWN: Final = -1
"""Where the frames begin of a stack of which nothing but the id is known."""

Frames = tuple[int, ...]
"""Return addresses, innermost first."""


class Stacks:
    """All stacks seen, each with an index that never changes.

    Several ids may share an index: stacks that differ only in what follows the point
    where they stopped being stacks. Processes that were forked off one another have the
    same ids, and have this in common.

    The session's lock guards it, but for ``frames`` and ``flags`` of an index that was handed
    out before: columns are replaced when they grow, and only their free ends are written to.
    """

    def __init__(self, like: Stacks | None = None) -> None:
        """``like``: those of an earlier program, whose indices stay; what is added equals none."""
        if like is None:
            # NO_STACK has no frames.
            self._starts = np.zeros(1, np.int64)
            self._depths = np.zeros(1, np.int64)
            self._flags = np.zeros(1, np.uint16)
            self._frames = np.empty(0, np.uint64)
        else:
            self._starts = like._starts[: len(like)].copy()
            self._depths = like._depths[: len(like)].copy()
            self._flags = like._flags[: len(like)].copy()
            # Only ever added to, and without a free end: who adds something gets its own.
            self._frames = like._frames[: like._used]
        self._count: int = len(self._starts)
        self._used: int = len(self._frames)
        self._index_of_frames: dict[tuple[bytes, int], int] = {}
        self._filed = self._count
        """Stacks from this index on are not in the dictionary yet."""
        self.code: dict[int, tuple[bytes, int]] = {}
        """By id: frames and flags of what only other stacks name (``record/runtimes/merge.py``)."""
        self.ids = StackIds()
        """For the table, which asks for one id after the other."""
        self._folded = False
        """Whether new stacks are cut."""

    @classmethod
    def of(cls, starts: I64, depths: I64, flags: npt.NDArray[np.uint16], frames: U64) -> Stacks:
        """Stacks that were written down elsewhere, ``NO_STACK`` among them.

        ``starts``: where in ``frames`` each begins; -1 if it is not known.
        """
        stacks = cls()
        stacks.replace(starts, depths, flags, frames)
        return stacks

    def replace(self, starts: I64, depths: I64, flags: npt.NDArray[np.uint16], frames: U64) -> None:
        """More stacks that were written down elsewhere, or frames of some; see ``of``."""
        self._starts, self._depths, self._flags = starts, depths, flags
        self._frames, self._count, self._used = frames, len(starts), len(frames)
        self._filed = self._count

    def columns(self, first: int, end: int) -> tuple[I64, npt.NDArray[np.uint16], U64]:
        """Stacks by index, to be written down: (depths, flags, frames one after the other).

        Depths are -1 of those that are not known. From any thread, up to a count that was handed
        out before.
        """
        starts, flags = self._starts[first:end].copy(), self._flags[first:end].copy()
        depths = np.where(starts == _UNKNOWN, _UNKNOWN, self._depths[first:end])
        # What starts are known by now is in the frames as they are now, not before.
        frames = self._frames
        pieces = [
            frames[start : start + depth]
            for start, depth in zip(starts.tolist(), depths.tolist(), strict=True)
            if depth > 0
        ]
        return depths, flags, np.concatenate([np.empty(0, np.uint64), *pieces])

    def __len__(self) -> int:
        """How many indices there are; index 0 is ``NO_STACK``."""
        return self._count

    def fold(self) -> None:
        """From here on new stacks are cut to their innermost frames, and those alike are one.

        That saves memory: each distinct stack has its figures.
        """
        self._folded = True
        self._filed = self._count

    def _add_folded(self, sent: SentStacks) -> None:
        ends = np.cumsum(sent.depths)
        for row, end in enumerate(ends.tolist()):
            start = end - int(sent.depths[row])
            frames = tuple(sent.frames[start:end].tolist())
            self.add(int(sent.ids[row]), frames, StackFlag(int(sent.flags[row])))

    def add_sent(self, sent: SentStacks) -> None:
        """Notes the frames behind ids: stacks that are whole as they are."""
        if self._folded:
            self._add_folded(sent)
            return
        indices, is_new = self._number(sent.ids)
        new = sent.select(is_new)
        starts = np.cumsum(new.depths) - new.depths + self._used
        self._append(starts, new.depths, new.flags, new.frames)
        # Of some, events came first: the stack's own record was lost the first time.
        for row in np.flatnonzero(self._starts[indices] == _UNKNOWN).tolist():
            index = int(indices[row])
            if self._starts[index] == _UNKNOWN:
                start = int(sent.depths[:row].sum())
                frames = sent.frames[start : start + int(sent.depths[row])]
                self._note(index, frames, int(sent.flags[row]))

    def add(self, stack_id: int, frames: Frames, flags: StackFlag) -> int:
        """Notes the frames behind an id; there may be other ids of them. Returns the index."""
        known = self.ids.get(stack_id)
        words = np.array(frames, np.uint64)
        if known >= 0:
            if self._starts[known] == _UNKNOWN:
                self._note(known, words, int(flags))
            return known
        if self._folded and len(words) > _FOLDED_FRAMES:
            words, flags = words[:_FOLDED_FRAMES], flags | StackFlag.TRUNCATED
        self._file_frames()
        key = words.tobytes(), int(flags)
        index = self._index_of_frames.get(key)
        if index is None:
            index = self._count
            one = np.array([self._used]), np.array([len(words)]), np.array([flags], np.uint16)
            self._append(*one, words)
        self.ids.set(stack_id, index)
        return index

    def frames(self, index: int) -> Frames | None:
        """Return addresses of a stack, or None while only its id is known."""
        start = int(self._starts[index])
        if start == _UNKNOWN:
            return None
        return tuple(self._frames[start : start + int(self._depths[index])].tolist())

    def flags(self, index: int) -> StackFlag:
        """How the walk ended."""
        return StackFlag(int(self._flags[index]))

    def have(self, flag: StackFlag) -> Mask:
        """Which stacks ended this way, by index."""
        ended: Mask = self._flags[: self._count] & np.uint16(flag) != 0
        return ended

    @property
    def are_cut(self) -> Mask:
        """Which stacks may stand for many call sites, by index: ended anywhere, or not taken."""
        cut = self.have(CUT)
        cut[NO_STACK] = True
        return cut

    @property
    def are_partial(self) -> Mask:
        """Which stacks end for want of memory or unwind information, or are not known, by index."""
        partial = self.have(PARTIAL) | self.are_unknown
        partial[NO_STACK] = True
        return partial

    @property
    def are_unknown(self) -> Mask:
        """Which stacks are known by their id alone, by index."""
        unknown: Mask = self._starts[: self._count] == _UNKNOWN
        return unknown

    def indices(self, ids: U64) -> I64:
        """The index of each id; ids not seen before get one without frames."""
        if self._folded:
            # What they are is not known yet: their first blocks count as without a stack.
            found = (max(NO_STACK, self.ids.get(each)) for each in ids.tolist())
            indices = np.fromiter(found, np.int64, len(ids))
            for each in set(ids[indices == NO_STACK].tolist()) - {0}:
                self.ids.set(each, NO_STACK)
            return indices
        indices, is_new = self._number(ids)
        count = int(np.count_nonzero(is_new))
        nothing = np.zeros(count, np.int64)
        flags = np.zeros(count, np.uint16)
        self._append(nothing + _UNKNOWN, nothing, flags, np.empty(0, np.uint64))
        return indices

    def _number(self, ids: U64) -> tuple[I64, Mask]:
        """The index of each id, and which are new: what they are is to be appended."""
        indices, is_new = np.empty(len(ids), np.int64), np.empty(len(ids), np.bool_)
        self.ids.add(np.ascontiguousarray(ids), indices, is_new.view(np.uint8), self._count)
        return indices, is_new

    def _note(self, index: int, frames: U64, flags: int) -> None:
        """The frames of a stack of which only the id was known."""
        self._flags[index], self._depths[index] = flags, len(frames)
        start, self._used = self._used, self._used + len(frames)
        self._frames = _with_room(self._frames, start, len(frames))
        self._frames[start : self._used] = frames
        self._starts[index] = start

    def _append(self, starts: I64, depths: I64, flags: npt.NDArray[np.uint16], frames: U64) -> None:
        count, used = self._count, self._used
        for name, values, length in (
            ("_frames", frames, used),
            ("_starts", starts, count),
            ("_depths", depths, count),
            ("_flags", flags, count),
        ):
            column = _with_room(getattr(self, name), length, len(values))
            column[length : length + len(values)] = values
            setattr(self, name, column)
        self._count, self._used = count + len(starts), used + len(frames)

    def _file_frames(self) -> None:
        """Enters what was added since into the dictionary of frames."""
        for index in range(self._filed, self._count):
            start = int(self._starts[index])
            if start != _UNKNOWN:
                frames = self._frames[start : start + int(self._depths[index])]
                key = frames.tobytes(), int(self._flags[index])
                self._index_of_frames.setdefault(key, index)
        self._filed = self._count


def _with_room(column: npt.NDArray[Any], used: int, more: int) -> npt.NDArray[Any]:
    """The column, or a larger copy of what is used of it."""
    if used + more <= len(column):
        return column
    larger = np.empty(max(_FEWEST, 2 * (used + more)), column.dtype)
    larger[:used] = column[:used]
    return larger
