"""Finds the blocks that a program has leaked, while the program is stopped at its end.

All threads are stopped, so one search is enough. Roots are those of every search: memory outside
the heap, registers, live parts of stacks. The C library keeps the stacks of ended threads for new
ones: such a stack is no root, except for the thread's record at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import native
from tracelloc.architecture.description import ThreadLayout
from tracelloc.model.blocks import Blocks, BlockSum
from tracelloc.model.lostmemory import ExitLeaks, LeakedStack
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.process.memory import U64, Mask
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.regions import Region, read_regions
from tracelloc.record.reachability.lostgroups import BlockLinks
from tracelloc.record.reachability.roots import dead_stacks, kernel_words
from tracelloc.record.reachability.search import PointerSearch

# Bytes that are read from a thread pointer on: `tcbhead_t` of glibc, or its beginning.
_HEAD_BYTES: Final = 24
_VECTOR_ENTRY_BYTES: Final = 16  # Size of an entry of a thread's vector of modules (`dtv_t`)
# Most bytes of a thread's variables that the loader keeps beside the thread pointer.
_VARIABLE_BYTES: Final = 1 << 16


def find_leaks(
    process: Process, blocks: Blocks, threads: Sequence[ThreadRegisters], ended: Sequence[int]
) -> ExitLeaks:
    """Searches for pointers to all blocks of a program whose threads are stopped.

    ``ended``: the thread pointers of threads that have already ended. Raises TargetError,
    PrivilegeError, OSError and MemoryError.
    """
    # A main thread that has ended has no memory.
    process = Process(threads[0].thread_id, process.root)
    blocks = blocks.select(np.argsort(blocks.address, kind="stable"))
    regions = read_regions(process.maps_text())
    dead = [*dead_stacks(process, regions), *_abandoned_stacks(process, regions, threads, ended)]
    words = np.concatenate([kernel_words(process), *(one.words for one in threads)])
    search = PointerSearch(process, lambda: [blocks], root_words=lambda: words, dead=dead)
    lost = blocks.select(~search.are_reachable(blocks.address))
    # A structure's first block was leaked directly.
    first_blocks, _ = BlockLinks.among(search.bits, lost.address).first_blocks()
    is_direct = np.isin(np.arange(len(lost)), first_blocks)
    return ExitLeaks(
        tuple(_by_stack(lost, is_direct)),
        BlockSum(len(blocks), int(blocks.size.sum())),
        search.swapped_bytes,
        search.edges_left_out,
    )


def _abandoned_stacks(
    process: Process,
    regions: list[Region],
    threads: Sequence[ThreadRegisters],
    ended: Sequence[int],
) -> Iterator[tuple[int, int]]:
    """Yields the stacks that the C library keeps of ended threads, without the thread's record."""
    starts = np.array([region.start for region in regions], np.uint64)
    in_use = {one.thread_pointer for one in threads}
    for pointer in set(ended) - in_use:
        at = int(np.searchsorted(starts, np.uint64(pointer), side="right")) - 1
        if at < 1 or pointer >= regions[at].end:
            continue
        region, before = regions[at], regions[at - 1]
        is_guarded = before.end == region.start and before.rights.startswith("---")
        holds_others = any(
            region.start <= address < region.end
            for one in threads
            for address in (one.stack_pointer, one.thread_pointer)
        )
        # The memory may be another mapping by now.
        is_usable = is_guarded and not region.inode and not holds_others
        if is_usable and is_thread_data(process.read_memory, pointer, native().threads):
            yield region.start, native().threads.record(pointer)[0]


def is_thread_data(read: Callable[[int, int], bytes], pointer: int, layout: ThreadLayout) -> bool:
    """Whether a thread pointer leads to a thread's data. ``read`` may return fewer bytes."""
    words = np.frombuffer(read(pointer, _HEAD_BYTES), np.uint64).tolist()
    if len(words) < _HEAD_BYTES // 8:
        return False
    if layout.self_words:
        return all(words[n] == pointer for n in layout.self_words)
    # The vector has two words for each module, of which the first are its own: where the module's
    # variables of this thread are.
    raw = read(words[0] + _VECTOR_ENTRY_BYTES, 8)
    start, end = layout.variables(pointer, _VARIABLE_BYTES)
    return len(raw) == 8 and start <= int.from_bytes(raw, "little") < end


def _by_stack(blocks: Blocks, is_direct: Mask) -> list[LeakedStack]:
    def sums(of: Mask) -> dict[int, BlockSum]:
        stacks, which = np.unique(blocks.stack[of], return_inverse=True)
        counts, sizes = np.bincount(which), _sums(which, blocks.size[of])
        rows = zip(stacks.tolist(), counts.tolist(), sizes, strict=True)
        return {stack: BlockSum(count, size) for stack, count, size in rows}

    direct, indirect = sums(is_direct), sums(~is_direct)
    # Later ones replace earlier ones: of a stack's blocks, a direct one.
    order = np.argsort(is_direct, kind="stable")
    pairs = blocks.stack[order].tolist(), blocks.address[order].tolist()
    example = dict(zip(*pairs, strict=True))
    none = BlockSum()
    found = [
        LeakedStack(stack, direct.get(stack, none), indirect.get(stack, none), example[stack])
        for stack in {**direct, **indirect}
    ]
    return sorted(found, key=lambda one: (not one.direct.count, -one.blocks.size_bytes, one.stack))


def _sums(which: npt.NDArray[np.int64], sizes: U64) -> list[int]:
    return [int(size) for size in np.bincount(which, sizes.astype(np.float64))]
