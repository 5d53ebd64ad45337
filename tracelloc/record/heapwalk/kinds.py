"""Groups the blocks of a heap by class and size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.record.heapwalk.classes import ClassNames, ClassTally
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.process.memory import U64

_LARGEST_EXACT: Final = 1032
"""Usable bytes up to which each size is a group: the sizes of glibc's thread caches."""
_MOST_CLASSES: Final = 1000
"""Classes that are told apart: those with the most bytes."""


@dataclass(frozen=True, slots=True)
class BlockKind:
    """A group of blocks; sizes are usable bytes."""

    class_name: str
    """Empty if unknown."""
    least_bytes: int
    most_bytes: int


def group_blocks(
    blocks: BlockRanges, tally: ClassTally, names: ClassNames
) -> tuple[list[BlockKind], npt.NDArray[np.uint32]]:
    """The kinds of blocks, and the number of each block's kind. ``tally`` must keep blocks."""
    classes, class_names = _classes(blocks, tally, names)
    upper = size_class(blocks.usable_bytes())
    keys, kinds = np.unique(classes.astype(np.uint64) << np.uint64(48) | upper, return_inverse=True)
    uppers = keys & np.uint64((1 << 48) - 1)
    return [
        BlockKind(class_names[number], least, most)
        for number, least, most in zip(
            (keys >> np.uint64(48)).tolist(), least_of(uppers).tolist(), uppers.tolist(),
            strict=True,
        )
    ], kinds.reshape(-1).astype(np.uint32)  # fmt: skip


def size_class(usable_bytes: U64) -> U64:
    """The upper bound of each size's group: four for each doubling beyond the exact ones."""
    exact = usable_bytes <= np.uint64(_LARGEST_EXACT)
    large = np.maximum(usable_bytes, np.uint64(_LARGEST_EXACT))
    step = _step(large)
    rounded: U64 = np.where(exact, usable_bytes, (large + step - np.uint64(1)) // step * step)
    return rounded


def least_of(upper: U64) -> U64:
    """The smallest size of a group, given its upper bound."""
    exact = upper <= np.uint64(_LARGEST_EXACT)
    least = np.maximum(upper, np.uint64(_LARGEST_EXACT + 1))
    least = least - _step(least) + np.uint64(1)
    return np.where(exact, upper, np.maximum(least, np.uint64(_LARGEST_EXACT + 1)))


def _step(size_bytes: U64) -> U64:
    """A quarter of the greatest power of two below each size."""
    exponent = np.frexp((size_bytes - np.uint64(1)).astype(np.float64))[1] - 1
    step: U64 = np.uint64(1) << (exponent - 2).astype(np.uint64)
    return step


def _classes(
    blocks: BlockRanges, tally: ClassTally, names: ClassNames
) -> tuple[npt.NDArray[np.uint16], list[str]]:
    """The number of each block's class, 0 if unknown, and the names of the classes."""
    found = np.zeros(len(blocks.starts), np.uint16)
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
    number_of = np.zeros(len(unique), np.uint16)
    for at in np.argsort(-sizes, kind="stable")[:_MOST_CLASSES].tolist():
        # A class may have several tables: one in each library that uses it.
        name = names.name(int(unique[at]))
        number_of[at] = numbers.setdefault(name, len(numbers))
    found[rows] = number_of[which]
    return found, list(numbers)
