"""Call stacks by number: 64-bit ids from the probes to small indices for arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.abi import StackFlag
from tracelloc.capture.ring import SentStacks

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NO_STACK: Final = 0
"""The index of blocks whose stack could not be taken."""

_FEWEST: Final = 1 << 6
"""Elements of a column that grows."""
_MOST_SLOTS: Final = 1 << 16
_SLOTS_PER_ID: Final = 8
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
        self._ids = np.zeros(1, np.uint64)
        self._indices = np.full(1, NO_STACK, np.uint32)
        # A direct-mapped cache of these: one look instead of a search.
        self._slot_ids = np.zeros(_FEWEST, np.uint64)
        self._slot_indices = np.zeros(_FEWEST, np.uint32)
        self._new: dict[int, int] = {}
        """Those that are not in the arrays yet."""

    def __len__(self) -> int:
        """How many indices there are; index 0 is ``NO_STACK``."""
        return self._count

    def add_sent(self, sent: SentStacks) -> None:
        """Notes the frames behind ids: stacks that are whole as they are."""
        self._file_new()
        ids, first = np.unique(sent.ids, return_index=True)
        at = self._find(ids)
        is_known = self._ids[at] == ids
        if is_known.any():
            for row, index in zip(first[is_known], self._indices[at[is_known]], strict=True):
                if self._starts[index] == _UNKNOWN:
                    # Events came first: the stack's own record was lost the first time.
                    start = int(sent.depths[:row].sum())
                    frames = sent.frames[start : start + int(sent.depths[row])]
                    self._note(int(index), frames, int(sent.flags[row]))
            first = first[~is_known]
        if not len(first):
            return
        is_new = np.zeros(len(sent), np.bool_)
        is_new[first] = True
        new = sent.select(is_new)
        starts = np.cumsum(new.depths) - new.depths + self._used
        self._append(starts, new.depths, new.flags, new.frames)
        fresh = np.arange(self._count - len(new), self._count, dtype=np.uint32)
        self._file_ids(new.ids, fresh)

    def add(self, stack_id: int, frames: Frames, flags: StackFlag) -> int:
        """Notes the frames behind an id; there may be other ids of them. Returns the index."""
        known = self._index_of(stack_id)
        if known is not None:
            if self._starts[known] == _UNKNOWN:
                self._note(known, np.array(frames, np.uint64), int(flags))
            return known
        self._file_frames()
        words = np.array(frames, np.uint64)
        key = words.tobytes(), int(flags)
        index = self._index_of_frames.get(key)
        if index is None:
            index = self._append_one(self._used, len(words), int(flags), words)
        self._new[stack_id] = index
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
    def are_unknown(self) -> Mask:
        """Which stacks are known by their id alone, by index."""
        unknown: Mask = self._starts[: self._count] == _UNKNOWN
        return unknown

    def indices(self, ids: U64) -> U32:
        """The index of each id; ids not seen before get one without frames."""
        self._file_new()
        slots = (ids & np.uint64(len(self._slot_ids) - 1)).view(np.int64)
        indices: U32 = self._slot_indices.take(slots)
        if np.array_equal(self._slot_ids.take(slots), ids):
            return indices
        return self._search(ids)

    def _search(self, ids: U64) -> U32:
        """For ids that are new, or share their slot with another."""
        at = self._find(ids)
        missing = self._ids[at] != ids
        if missing.any():
            for stack_id in np.unique(ids[missing]).tolist():
                self._new[stack_id] = self._append_one(_UNKNOWN, 0, 0, np.empty(0, np.uint64))
            self._file_new()
            at = self._find(ids)
        return self._indices[at]

    def _find(self, ids: U64) -> I64:
        """Where in the arrays they are, if they are there."""
        return np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)

    def _index_of(self, stack_id: int) -> int | None:
        if stack_id in self._new:
            return self._new[stack_id]
        at = int(np.searchsorted(self._ids, np.uint64(stack_id)))
        is_known = at < len(self._ids) and int(self._ids[at]) == stack_id
        return int(self._indices[at]) if is_known else None

    def _note(self, index: int, frames: U64, flags: int) -> None:
        """The frames of a stack of which only the id was known."""
        self._flags[index], self._depths[index] = flags, len(frames)
        start, self._used = self._used, self._used + len(frames)
        self._frames = _with_room(self._frames, start, len(frames))
        self._frames[start : self._used] = frames
        self._starts[index] = start

    def _append_one(self, start: int, depth: int, flags: int, frames: U64) -> int:
        self._append(np.array([start]), np.array([depth]), np.array([flags], np.uint16), frames)
        return self._count - 1

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

    def _file_new(self) -> None:
        if self._new:
            ids = np.fromiter(self._new, np.uint64, len(self._new))
            indices = np.fromiter(self._new.values(), np.uint32, len(self._new))
            self._new.clear()
            self._file_ids(ids, indices)

    def _file_ids(self, ids: U64, indices: U32) -> None:
        by_id = np.argsort(ids)
        all_ids = np.concatenate([self._ids, ids[by_id]])
        all_indices = np.concatenate([self._indices, indices[by_id]])
        # Two sorted runs, which a stable sort merges.
        order = np.argsort(all_ids, kind="stable")
        self._ids, self._indices = all_ids[order], all_indices[order]
        if len(self._slot_ids) < min(_SLOTS_PER_ID * len(self._ids), _MOST_SLOTS):
            slots = len(self._slot_ids)
            while slots < min(2 * _SLOTS_PER_ID * len(self._ids), _MOST_SLOTS):
                slots *= 2
            self._slot_ids = np.zeros(slots, np.uint64)
            self._slot_indices = np.zeros(slots, np.uint32)
            ids, indices = self._ids, self._indices
        at = ids & np.uint64(len(self._slot_ids) - 1)
        self._slot_ids[at], self._slot_indices[at] = ids, indices


def _with_room(column: npt.NDArray[Any], used: int, more: int) -> npt.NDArray[Any]:
    """The column, or a larger copy of what is used of it."""
    if used + more <= len(column):
        return column
    larger = np.empty(max(_FEWEST, 2 * (used + more)), column.dtype)
    larger[:used] = column[:used]
    return larger
