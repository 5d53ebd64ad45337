"""What the allocator gives beyond what was asked for: summed by size, by stack, and in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelloc.heap.blocks import Blocks
from tracelloc.snapshots.analysis import amounts, held_by
from tracelloc.snapshots.usable import Usable


@dataclass(frozen=True, slots=True)
class Waste:
    """Of some blocks. Where blocks were sampled, estimates."""

    usable_bytes: int
    """What the program could use, of the blocks of which that is known."""
    waste_bytes: int
    """The part of it that was not asked for."""
    unknown_count: int
    """Blocks of which it is not known."""

    @property
    def share(self) -> float:
        """Of the usable bytes; 0 to 1."""
        return self.waste_bytes / max(self.usable_bytes, 1)


@dataclass(frozen=True, slots=True)
class StackWaste:
    """What the blocks of one call stack waste."""

    index: int
    """Of the stack."""
    count: int
    waste: Waste


@dataclass(frozen=True, slots=True)
class TotalWaste:
    """Of some blocks, and how their sizes became known."""

    waste: Waste
    read_count: int
    """Blocks whose size was read from the process."""
    computed_count: int
    """Blocks whose size follows from the request."""
    header_bytes: int
    """What blocks of known size take beside their usable bytes."""


def waste_by(
    keys: npt.NDArray[np.integer],
    length: int,
    blocks: Blocks,
    sample_bytes: int | None,
    usable: Usable | None,
) -> Sequence[Waste | None]:
    """Per key, all of which are below ``length``; None where nothing was measured."""
    if usable is None:
        return [None] * length
    known = usable.known
    waste = np.where(known, usable.size_bytes - blocks.size, np.uint64(0))
    wasted = held_by(keys, length, amounts(blocks, sample_bytes, waste)).size_bytes
    asked = held_by(keys[known], length, amounts(blocks.select(known), sample_bytes)).size_bytes
    unknown = held_by(keys[~known], length, amounts(blocks.select(~known), sample_bytes)).count
    return [
        Waste(asked_bytes + waste_bytes, waste_bytes, count)
        for asked_bytes, waste_bytes, count in zip(
            asked.tolist(), wasted.tolist(), unknown.tolist(), strict=True
        )
    ]


def total_waste(
    blocks: Blocks, sample_bytes: int | None, usable: Usable, header_bytes: int
) -> TotalWaste:
    """Of all these blocks. ``header_bytes``: what each takes beside its usable bytes."""
    alike = np.zeros(len(blocks), np.intp)
    (waste,) = waste_by(alike, 1, blocks, sample_bytes, usable)
    assert waste is not None
    read, computed = (
        held_by(alike[chosen], 1, amounts(blocks.select(chosen), sample_bytes)).total_count
        for chosen in (usable.read, usable.known & ~usable.read)
    )
    return TotalWaste(waste, read, computed, (read + computed) * header_bytes)


def wasteful_stacks(
    blocks: Blocks, sample_bytes: int | None, usable: Usable, n: int
) -> list[StackWaste]:
    """The ``n`` stacks that waste most bytes, most first; only those that waste any."""
    length = int(blocks.stack.max(initial=0)) + 1
    counts = held_by(blocks.stack, length, amounts(blocks, sample_bytes)).count
    wasting = [
        StackWaste(index, int(counts[index]), waste)
        for index, waste in enumerate(waste_by(blocks.stack, length, blocks, sample_bytes, usable))
        if waste is not None and waste.waste_bytes
    ]
    wasting.sort(key=lambda found: (-found.waste.waste_bytes, found.index))
    return wasting[:n]
