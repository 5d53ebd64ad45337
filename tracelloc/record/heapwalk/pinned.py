"""Finds pages of the heap that few blocks keep from being returned to the kernel."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.model.heapusage import BlockSum, PinnedPages, PinningStack
from tracelloc.record.heapwalk.classes import StacksAt
from tracelloc.record.heapwalk.pieces import AddressRuns
from tracelloc.record.heapwalk.walked import (
    ADDRESS_BITS,
    STATE_BITS,
    Arena,
    BlockState,
    overhead_bytes,
    user_offset,
)
from tracelloc.record.process.memory import PAGE_BYTES, U64

_MOST_USED_BYTES: Final = PAGE_BYTES // 4  # Bytes in use of a page up to which it counts as pinned
_SLICE: Final = 1 << 18
_MOST_SIZES: Final = 8
_NO_BLOCKS: Final = BlockSum()


class PinningBlocks(NamedTuple):
    """Blocks in use in such pages."""

    addresses: U64
    sizes: U64
    # Free bytes that each keeps, those of a page divided among its blocks.
    kept_bytes: npt.NDArray[np.float64]


def find_pinned(
    arenas: Iterable[Arena], resident: AddressRuns, stacks_at: StacksAt | None = None
) -> PinnedPages:
    """Sums up the pinned pages of a heap.

    ``resident``: its resident pages. ``stacks_at``: None if the process is not traced.
    """
    by_stack: dict[int, _PinSum] = defaultdict(_PinSum)
    kept, count, size_bytes = 0.0, 0, 0
    by_size: Counter[int] = Counter()
    blocks: dict[int, BlockSum] = {}
    for arena in arenas:
        offset = user_offset(arena)
        for some in pinning_blocks(arena, resident):
            kept += float(some.kept_bytes.sum())
            count, size_bytes = count + len(some.sizes), size_bytes + int(some.sizes.sum())
            sizes, rows, counts = np.unique(some.sizes, return_inverse=True, return_counts=True)
            sums = np.bincount(rows, some.kept_bytes, len(sizes))
            for size, number, held in zip(
                sizes.tolist(), counts.tolist(), sums.tolist(), strict=True
            ):
                usable = size - overhead_bytes(arena)
                by_size[usable] += held
                blocks[usable] = blocks.get(usable, BlockSum()) + BlockSum(number, number * size)
            if stacks_at is not None:
                _add_by_stack(by_stack, some, stacks_at(some.addresses + np.uint64(offset)))
    largest = sorted(by_size, key=lambda size: (-by_size[size], size))[:_MOST_SIZES]
    stacks = sorted(by_stack, key=lambda stack: (-by_stack[stack].kept_bytes, stack))
    return PinnedPages(
        round(kept),
        BlockSum(count, size_bytes),
        tuple((size, blocks[size]) for size in largest),
        tuple(
            PinningStack(stack, round(by_stack[stack].kept_bytes), by_stack[stack].blocks)
            for stack in stacks[:_MOST_SIZES]
        ),
    )


@dataclass(slots=True)
class _PinSum:
    kept_bytes: float = 0.0
    blocks: BlockSum = _NO_BLOCKS


def _add_by_stack(
    sums: dict[int, _PinSum], some: PinningBlocks, stacks: npt.NDArray[np.int64]
) -> None:
    known = stacks >= 0
    unique, rows, counts = np.unique(stacks[known], return_inverse=True, return_counts=True)
    kept = np.bincount(rows, some.kept_bytes[known], len(unique))
    sizes = np.bincount(rows, some.sizes[known].astype(np.float64), len(unique))
    for stack, count, size, held in zip(
        unique.tolist(), counts.tolist(), sizes.tolist(), kept.tolist(), strict=True
    ):
        sums[stack].kept_bytes += held
        sums[stack].blocks += BlockSum(count, int(size))


def pinning_blocks(arena: Arena, resident: AddressRuns) -> Iterator[PinningBlocks]:
    """Yields the blocks that pin pages of an arena, some at a time."""
    entries, page = arena.entries, np.uint64(PAGE_BYTES)
    at, shift = 0, np.uint64(PAGE_BYTES.bit_length() - 1)
    while at + 1 < len(entries):
        part = entries[at : at + _SLICE]
        addresses, states = part & ADDRESS_BITS, part & STATE_BITS
        # The last page goes on in the next part, but for the last part.
        is_last = at + len(part) == len(entries)
        end = int(addresses[-1]) // PAGE_BYTES * PAGE_BYTES + is_last * PAGE_BYTES
        used = np.flatnonzero(states[:-1] == BlockState.IN_USE)
        starts, ends = addresses[used], addresses[used + 1]
        first, last = starts >> shift, (ends - np.uint64(1)) >> shift
        pages = np.unique(np.concatenate([first, last]))
        pages = pages[(pages << shift) + page <= np.uint64(end)]
        low = pages << shift
        runs = AddressRuns.from_columns(starts, ends)
        used_bytes = runs.bytes_of(low, low + page)
        is_pinned = (used_bytes <= _MOST_USED_BYTES) & (resident.bytes_of(low, low + page) == page)
        pages, free = pages[is_pinned], (page - used_bytes[is_pinned]).astype(np.float64)
        # A block counts for the page in which it begins, or if that is not pinned, ends.
        row = np.searchsorted(pages, first)
        row = np.where(_is_at(pages, row, first), row, np.searchsorted(pages, last))
        is_pinning = _is_at(pages, row, first) | _is_at(pages, row, last)
        row = row[is_pinning]
        if len(row):
            share = free / np.maximum(np.bincount(row, minlength=len(pages)), 1)
            yield PinningBlocks(starts[is_pinning], (ends - starts)[is_pinning], share[row])
        following = int(np.searchsorted(entries, np.uint64(end), side="right")) - 1
        at = len(entries) if is_last else max(at + 1, following)


def _is_at(pages: U64, rows: npt.NDArray[np.intp], wanted: U64) -> npt.NDArray[np.bool_]:
    if not len(pages):
        return np.zeros(len(wanted), np.bool_)
    found: npt.NDArray[np.bool_] = pages[np.minimum(rows, len(pages) - 1)] == wanted
    return found
