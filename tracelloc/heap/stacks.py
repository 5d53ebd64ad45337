"""Call stacks by number: 64-bit ids from the probes to small indices for arrays."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.abi import StackFlag

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]

NO_STACK: Final = 0
"""The index of blocks whose stack could not be taken."""

_FEWEST_SLOTS: Final = 1 << 6
_MOST_SLOTS: Final = 1 << 16
_SLOTS_PER_ID: Final = 8

Frames = tuple[int, ...]
"""Return addresses, innermost first."""


class Stacks:
    """All stacks seen, each with an index that never changes.

    Several ids may share an index: stacks that differ only in what follows the point
    where they stopped being stacks.
    """

    def __init__(self) -> None:
        self._frames: list[Frames | None] = [()]
        self._flags: list[StackFlag] = [StackFlag(0)]
        self._index_of_frames: dict[tuple[Frames, int], int] = {}
        self._ids = np.zeros(1, np.uint64)
        self._indices = np.full(1, NO_STACK, np.uint32)
        # A direct-mapped cache of these: one look instead of a search.
        self._slot_ids = np.zeros(_FEWEST_SLOTS, np.uint64)
        self._slot_indices = np.zeros(_FEWEST_SLOTS, np.uint32)
        # Whether a fork has the lists and the dictionary of frames as well.
        self._is_shared = False
        self._index_of_id: dict[int, int] = {}
        self._new: dict[int, int] = {}
        """Those that are not in the arrays yet."""
        self._counts: dict[StackFlag, int] = {}
        self.unknown_count = 0
        """Stacks of which only the id is known."""

    def __len__(self) -> int:
        """How many indices there are; index 0 is ``NO_STACK``."""
        return len(self._frames)

    def add(self, stack_id: int, frames: Frames, flags: StackFlag) -> int:
        """Notes the frames behind an id. Returns its index."""
        known = self._index_of_id.get(stack_id)
        if known is not None:
            if self._frames[known] is None:
                # Events came first: the stack's own record was lost the first time.
                self._own()
                self._frames[known], self._flags[known] = frames, flags
                self._counts[flags] = self._counts.get(flags, 0) + 1
                self.unknown_count -= 1
            return known
        key = (frames, int(flags))
        index = self._index_of_frames.get(key)
        if index is None:
            index = self._append(frames, flags)
            self._index_of_frames[key] = index
            self._counts[flags] = self._counts.get(flags, 0) + 1
        self._new[stack_id] = self._index_of_id[stack_id] = index
        return index

    def fork(self) -> Stacks:
        """The same stacks under the same indices, for a copy of the address space.

        Whichever of the two first adds another one copies them.
        """
        child = Stacks()
        child._frames, child._flags = self._frames, self._flags
        child._index_of_frames = self._index_of_frames
        child._counts = self._counts.copy()
        self._is_shared = child._is_shared = True
        return child

    def _own(self) -> None:
        """To be called before anything is noted of a stack."""
        if self._is_shared:
            self._frames, self._flags = self._frames.copy(), self._flags.copy()
            self._index_of_frames = self._index_of_frames.copy()
            self._is_shared = False

    def begin_image(self) -> None:
        """Addresses mean others from here on: what is added next equals nothing before."""
        self._index_of_frames = {}

    def frames(self, index: int) -> Frames | None:
        """Return addresses of a stack, or None while only its id is known."""
        return self._frames[index]

    def flags(self, index: int) -> StackFlag:
        """How the walk ended."""
        return self._flags[index]

    def count(self, flag: StackFlag) -> int:
        """How many stacks ended this way."""
        return sum(count for flags, count in self._counts.items() if flags & flag)

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
        at = np.searchsorted(self._ids, ids)
        np.minimum(at, len(self._ids) - 1, out=at)
        missing = self._ids[at] != ids
        if missing.any():
            for stack_id in np.unique(ids[missing]).tolist():
                index = self._append(None, StackFlag(0))
                self._new[stack_id] = self._index_of_id[stack_id] = index
                self.unknown_count += 1
            self._file_new()
            at = np.searchsorted(self._ids, ids)
        return self._indices[at]

    def _append(self, frames: Frames | None, flags: StackFlag) -> int:
        self._own()
        self._frames.append(frames)
        self._flags.append(flags)
        return len(self._frames) - 1

    def _file_new(self) -> None:
        if not self._new:
            return
        ids = np.concatenate([self._ids, np.fromiter(self._new, np.uint64, len(self._new))])
        indices = np.concatenate(
            [self._indices, np.fromiter(self._new.values(), np.uint32, len(self._new))]
        )
        order = np.argsort(ids)
        self._ids, self._indices = ids[order], indices[order]
        ids, indices = ids[-len(self._new) :], indices[-len(self._new) :]
        self._new.clear()
        if len(self._slot_ids) < min(_SLOTS_PER_ID * len(self._ids), _MOST_SLOTS):
            slots = len(self._slot_ids)
            while slots < min(2 * _SLOTS_PER_ID * len(self._ids), _MOST_SLOTS):
                slots *= 2
            self._slot_ids = np.zeros(slots, np.uint64)
            self._slot_indices = np.zeros(slots, np.uint32)
            ids, indices = self._ids, self._indices
        at = ids & np.uint64(len(self._slot_ids) - 1)
        self._slot_ids[at], self._slot_indices[at] = ids, indices
