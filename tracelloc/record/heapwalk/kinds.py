"""Groups the blocks of a heap by class and size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.record.heapwalk.classes import ClassNames, ClassTally
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.process.memory import U64

# Usable bytes up to which each size is a group: the sizes of glibc's thread caches.
_LARGEST_EXACT: Final = 1032
# Exponent of the largest power of two below the sizes that are not exact.
_FIRST_EXPONENT: Final = 10
_GROUPS: Final = _LARGEST_EXACT + 1 + 4 * (48 - _FIRST_EXPONENT)
_MOST_CLASSES: Final = 1000  # Classes that are told apart: those with the most bytes


@dataclass(frozen=True, slots=True)
class BlockKind:
    """A group of blocks; sizes are usable bytes."""

    class_name: str  # Empty if unknown
    least_bytes: int
    most_bytes: int


def group_blocks(
    blocks: BlockRanges, tally: ClassTally, names: ClassNames
) -> tuple[list[BlockKind], npt.NDArray[np.uint32]]:
    """The kinds of blocks, and the number of each block's kind. ``tally`` must keep blocks."""
    numbers, class_names = _classes(blocks, tally, names)
    groups = size_groups(blocks.usable_bytes())
    if len(class_names) > 1:
        groups += numbers * np.uint32(_GROUPS)
    is_used = np.zeros(_GROUPS * len(class_names), np.bool_)
    is_used[groups] = True
    used = np.flatnonzero(is_used)
    new_number = np.zeros(len(is_used), np.uint32)
    new_number[used] = np.arange(len(used), dtype=np.uint32)
    return [
        BlockKind(class_names[group // _GROUPS], *bounds_of(group % _GROUPS))
        for group in used.tolist()
    ], new_number[groups]


def size_groups(usable_bytes: U64) -> npt.NDArray[np.uint32]:
    """The number of each size's group: beyond the exact ones, four for each doubling."""
    groups = usable_bytes.astype(np.uint32)
    large = np.flatnonzero(usable_bytes > np.uint64(_LARGEST_EXACT))
    below = usable_bytes[large] - np.uint64(1)
    exponent = np.frexp(below.astype(np.float64))[1].astype(np.uint32) - np.uint32(1)
    quarter = (below >> (exponent - np.uint32(2)).astype(np.uint64)).astype(np.uint32) & 3
    groups[large] = _LARGEST_EXACT + 1 + 4 * (exponent - _FIRST_EXPONENT) + quarter
    return groups


def bounds_of(group: int) -> tuple[int, int]:
    """The smallest and the largest size of a group, in bytes."""
    if group <= _LARGEST_EXACT:
        return group, group
    exponent, quarter = divmod(group - _LARGEST_EXACT - 1, 4)
    step = 1 << exponent + _FIRST_EXPONENT - 2
    return max((4 + quarter) * step, _LARGEST_EXACT) + 1, (5 + quarter) * step


def _classes(
    blocks: BlockRanges, tally: ClassTally, names: ClassNames
) -> tuple[npt.NDArray[np.uint32], list[str]]:
    """The number of each block's class, 0 if unknown, and the names of the classes."""
    found = np.zeros(len(blocks.starts), np.uint32)
    parts = tally.blocks or []
    if not parts or not len(found):
        return found, [""]
    starts, tables = (np.concatenate(column) for column in zip(*parts, strict=True))
    rows = np.searchsorted(blocks.starts, starts)
    rows = np.minimum(rows, len(found) - 1)
    is_there = blocks.starts[rows] == starts
    rows, tables = rows[is_there], tables[is_there]
    unique, which = np.unique(tables, return_inverse=True)
    sizes = np.bincount(which, blocks.usable_bytes()[rows].astype(np.float64), len(unique))
    numbers = {"": 0}
    number_of = np.zeros(len(unique), np.uint32)
    for at in np.argsort(-sizes, kind="stable")[:_MOST_CLASSES].tolist():
        # A class may have several tables: one in each library that uses it.
        name = names.name(int(unique[at]))
        number_of[at] = numbers.setdefault(name, len(numbers))
    found[rows] = number_of[which]
    return found, list(numbers)
