"""Call stacks by number: maps the probes' 64-bit ids to small indices for arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.heap.stackids import StackIds
from tracelloc.model.events import SentStacks
from tracelloc.model.figures import I64, U64, Mask
from tracelloc.model.stacks import NO_STACK, UNKNOWN, CallStacks, Frames, StackFlag

_FEWEST: Final = 1 << 6  # Initial room of a growing column
_FOLDED_FRAMES: Final = 4  # Frames that are kept of a stack when memory is short


class Stacks(CallStacks):
    """All call stacks seen so far, to which new stacks are added.

    Several ids may share an index: stacks that differ only beyond the point where they stopped
    being valid. Forked processes have the same ids, and share this object.

    The session's lock guards this object, except what ``CallStacks`` allows.
    """

    def __init__(self, like: Stacks | None = None) -> None:
        """``like``: stacks of an earlier program: they keep their indices, new ones share none."""
        super().__init__()
        if like is not None:
            self._starts = like._starts[: len(like)].copy()
            self._depths = like._depths[: len(like)].copy()
            self._flags = like._flags[: len(like)].copy()
            # Shared, without a free end: the first addition replaces it by a larger copy.
            self._frames = like._frames[: like._used]
            self._count, self._used = len(self._starts), len(self._frames)
        self._index_of_frames: dict[tuple[bytes, int], int] = {}
        self._indexed = self._count  # Stacks from this index on are not in `_index_of_frames` yet
        self.code: dict[int, tuple[bytes, int]] = {}  # By id: what only others refer to
        self.ids = StackIds()  # For the table, which looks up one id after the other
        self._folded = False  # Whether new stacks are cut

    def fold(self) -> None:
        """Cuts new stacks to their innermost frames from now on, to save memory."""
        self._folded = True
        self._indexed = self._count

    def add_sent(self, sent: SentStacks) -> None:
        """Stores stacks that the probes sent, and that need no further processing."""
        if self._folded:
            for stack_id, flags, words in sent.rows():
                self.add(stack_id, words, StackFlag(flags))
            return
        indices, is_new = _numbered(self.ids, sent.ids, self._count)
        new = sent.select(is_new)
        starts = np.cumsum(new.depths) - new.depths + self._used
        self._append(starts, new.depths, new.flags, new.frames)
        # For some, events came first: the first record of the stack was lost.
        for row in np.flatnonzero(self._starts[indices] == UNKNOWN).tolist():
            index = int(indices[row])
            if self._starts[index] == UNKNOWN:
                start = int(sent.depths[:row].sum())
                frames = sent.frames[start : start + int(sent.depths[row])]
                self._note(index, frames, int(sent.flags[row]))

    def add(self, stack_id: int, frames: Frames, flags: StackFlag) -> int:
        """Stores the frames of a stack id; other ids may have equal frames. Returns the index."""
        return self.add_packed(stack_id, np.array(frames, np.uint64).tobytes(), int(flags))

    def add_packed(self, stack_id: int, packed: bytes, flags: int) -> int:
        """Does as ``add``, with frames as 64-bit words and flags as a number."""
        known = self.ids.get(stack_id)
        if known >= 0:
            if self._starts[known] == UNKNOWN:
                self._note(known, np.frombuffer(packed, np.uint64), flags)
            return known
        if self._folded and len(packed) > 8 * _FOLDED_FRAMES:
            packed, flags = packed[: 8 * _FOLDED_FRAMES], flags | StackFlag.TRUNCATED.value
        self._file_frames()
        index = self._index_of_frames.setdefault((packed, flags), self._count)
        if index == self._count:
            self._append_unknown(1)
            self._note(index, np.frombuffer(packed, np.uint64), flags)
            self._indexed = self._count
        self.ids.set(stack_id, index)
        return index

    def indices(self, ids: U64) -> I64:
        """Returns the index of each stack id; unknown ids get an index without frames."""
        if self._folded:
            # Their frames are not known yet: their first blocks count as without a stack.
            found = (max(NO_STACK, self.ids.get(each)) for each in ids.tolist())
            indices = np.fromiter(found, np.int64, len(ids))
            for each in set(ids[indices == NO_STACK].tolist()) - {0}:
                self.ids.set(each, NO_STACK)
            return indices
        indices, is_new = _numbered(self.ids, ids, self._count)
        self._append_unknown(int(np.count_nonzero(is_new)))
        return indices

    def _append_unknown(self, count: int) -> None:
        first, end = self._count, self._count + count
        if end <= len(self._starts):
            self._starts[first:end] = UNKNOWN
            self._depths[first:end] = self._flags[first:end] = 0
            self._count = end
        else:
            nothing, flags = np.zeros(count, np.int64), np.zeros(count, np.uint16)
            self._append(nothing + UNKNOWN, nothing, flags, np.empty(0, np.uint64))

    def _note(self, index: int, frames: U64, flags: int) -> None:
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
        for index in range(self._indexed, self._count):
            start = int(self._starts[index])
            if start != UNKNOWN:
                frames = self._frames[start : start + int(self._depths[index])]
                self._index_of_frames.setdefault((frames.tobytes(), int(self._flags[index])), index)
        self._indexed = self._count


class StackNumbers:
    """Numbers the call stacks of a part of a run, whose frames are in ``Stacks``, from 1."""

    def __init__(self) -> None:
        """Starts without stacks, except number 0: none."""
        self.ids = StackIds()
        self._known, self._count = [np.zeros(1, np.uint64)], 1

    def __len__(self) -> int:
        return self._count

    def indices(self, ids: U64) -> I64:
        """Returns the number of each stack id."""
        indices, is_new = _numbered(self.ids, ids, self._count)
        self._known.append(ids[is_new])
        self._count += len(self._known[-1])
        return indices

    def known(self) -> U64:
        """Returns the stack ids by their numbers."""
        return np.concatenate(self._known)


def _numbered(known: StackIds, ids: U64, first: int) -> tuple[I64, Mask]:
    """Returns the numbers of ids, and which are new: these get numbers from ``first`` on."""
    indices, is_new = np.empty(len(ids), np.int64), np.empty(len(ids), np.bool_)
    known.add(np.ascontiguousarray(ids), indices, is_new.view(np.uint8), first)
    return indices, is_new


def _with_room(column: npt.NDArray[Any], used: int, more: int) -> npt.NDArray[Any]:
    if used + more <= len(column):
        return column
    larger = np.empty(max(_FEWEST, 2 * (used + more)), column.dtype)
    larger[:used] = column[:used]
    return larger
