"""Kinds of blocks: groups by C++ class and size."""

from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.record.heapwalk.classes import ClassNames, ClassTally
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.process.memory import U64

_LARGEST_EXACT: Final = 1032  # Usable bytes: each size up to that of glibc's caches is a group
_FIRST_EXPONENT: Final = 10  # Of the largest power of two below the sizes that are not exact
_GROUPS: Final = _LARGEST_EXACT + 1 + 4 * (48 - _FIRST_EXPONENT)
_ENDS: Final = np.array([0, 1], np.uint64)  # From the first block to behind the last one
_MOST_CLASSES: Final = 1000  # Classes that are told apart: those with the most bytes


@dataclass(frozen=True, slots=True)
class BlockKind:
    """A group of blocks with one C++ class and similar sizes, in usable bytes."""

    class_name: str  # Empty if unknown
    least_bytes: int  # Usable bytes of the group's smallest size
    most_bytes: int  # Usable bytes of the group's largest size


class BlockKinds:
    """Assigns a kind's number to each block of a heap; new kinds get new numbers."""

    def __init__(self, tally: ClassTally, names: ClassNames) -> None:
        self.kinds: list[BlockKind] = []
        self._starts, tables = tally.blocks_by_address()
        unique, which = np.unique(tables, return_inverse=True)
        numbers = {"": 0}  # A class may have several tables: one in each library
        number_of = {
            table: numbers.setdefault(names.name(table), len(numbers))
            for table in tally.largest(_MOST_CLASSES)
        }
        self._classes = list(numbers)
        known = [number_of.get(table, 0) for table in unique.tolist()]
        self._class_of = np.array(known, np.uint32)[which]
        self._number_of = np.full(_GROUPS * len(numbers), -1, np.int32)

    def numbers(self, blocks: BlockRanges) -> npt.NDArray[np.int32]:
        """Returns each block's kind, as an index of ``kinds``. Blocks must come by address."""
        groups = size_groups(blocks.usable_bytes())
        if len(self._classes) > 1 and len(groups):
            some = slice(*np.searchsorted(self._starts, blocks.starts[[0, -1]] + _ENDS))
            rows = np.searchsorted(blocks.starts, self._starts[some])
            is_there = blocks.starts[np.minimum(rows, len(groups) - 1)] == self._starts[some]
            groups[rows[is_there]] += self._class_of[some][is_there] * np.uint32(_GROUPS)
        for group in np.unique(groups[self._number_of[groups] < 0]).tolist():
            self._number_of[group] = len(self.kinds)
            number, size = divmod(group, _GROUPS)
            self.kinds.append(BlockKind(self._classes[number], *bounds_of(size)))
        return self._number_of[groups]


def size_groups(usable_bytes: U64) -> npt.NDArray[np.uint32]:
    """Returns each size's group number: one per small size, then four for each doubling."""
    groups = usable_bytes.astype(np.uint32)
    large = np.flatnonzero(usable_bytes > np.uint64(_LARGEST_EXACT))
    below = usable_bytes[large] - np.uint64(1)
    exponent = np.frexp(below.astype(np.float64))[1].astype(np.uint32) - np.uint32(1)
    quarter = (below >> (exponent - np.uint32(2)).astype(np.uint64)).astype(np.uint32) & 3
    groups[large] = _LARGEST_EXACT + 1 + 4 * (exponent - _FIRST_EXPONENT) + quarter
    return groups


def bounds_of(group: int) -> tuple[int, int]:
    """Returns the smallest and the largest size of a group, in bytes."""
    if group <= _LARGEST_EXACT:
        return group, group
    exponent, quarter = divmod(group - _LARGEST_EXACT - 1, 4)
    step = 1 << exponent + _FIRST_EXPONENT - 2
    return max((4 + quarter) * step, _LARGEST_EXACT) + 1, (5 + quarter) * step
