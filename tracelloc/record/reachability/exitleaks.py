"""Finds the blocks that a program has leaked, while the program is stopped at its end.

All threads are stopped, so one search is enough. Roots are those of every search: memory outside
the heap, registers, live parts of stacks.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracelloc.model.blocks import Blocks, BlockSum
from tracelloc.model.lostmemory import ExitLeaks, LeakedStack
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.process.memory import U64, Mask
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability.lostgroups import BlockLinks
from tracelloc.record.reachability.roots import kernel_words
from tracelloc.record.reachability.search import PointerSearch


def find_leaks(process: Process, blocks: Blocks, threads: Sequence[ThreadRegisters]) -> ExitLeaks:
    """Searches for pointers to all blocks of a program whose threads are stopped.

    Raises TargetError, PrivilegeError, OSError and MemoryError.
    """
    # A main thread that has ended has no memory.
    process = Process(threads[0].thread_id, process.root)
    blocks = blocks.select(np.argsort(blocks.address, kind="stable"))
    words = np.concatenate([kernel_words(process), *(one.words for one in threads)])
    search = PointerSearch(process, lambda: [blocks], root_words=lambda: words)
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
