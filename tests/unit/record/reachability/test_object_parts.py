"""Which stacks allocate parts of one object, in this process's own memory."""

import os

import numpy as np

from tracelloc.model.blocks import Blocks
from tracelloc.record.facets.pointers import ObjectParts
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process

BLOCK_BYTES, COUNT = 64, 200


def objects(stacks: list[int], pointers: list[tuple[int, int]]) -> dict[int, int]:
    """``stacks``: of the blocks, by number; ``pointers``: from block to block, in its last word."""
    heap = np.zeros((len(stacks), BLOCK_BYTES // 8), np.uint64)
    address = heap.ctypes.data + BLOCK_BYTES * np.arange(len(stacks), dtype=np.uint64)
    blocks = Blocks.empty(len(stacks))
    blocks.address[:], blocks.size[:], blocks.stack[:] = address, BLOCK_BYTES, stacks
    for number, (source, target) in enumerate(pointers):
        heap[source, 7 - number % 3] = address[target]
    at = dict(zip(address.tolist(), stacks, strict=True))
    parts = ObjectParts(np.unique(stacks))
    for start in range(0, len(stacks), 150):
        parts.add(blocks.select(slice(start, start + 150)))

    def stacks_at(addresses: np.ndarray) -> np.ndarray:
        return np.array([at.get(each, -1) for each in addresses.tolist()], np.int64)

    return parts.find(RemoteMemory(Process(os.getpid())), stacks_at)


def test_objects_with_parts() -> None:
    stacks = [5, 7, 9, 4] * COUNT
    pointers = [
        (n + source, n + target)
        for n in range(0, 4 * COUNT, 4)
        for source, target in ((0, 1), (1, 2), (0, 0))
    ]
    assert objects(stacks, pointers) == {5: 5, 7: 5, 9: 5}
    # Half of the blocks of stack 3 belong to blocks of stack 1, half to those of stack 2.
    stacks = [1, 3, 2, 3] * COUNT
    pointers = [(n, n + 1) for n in range(0, 4 * COUNT, 2)]
    assert objects(stacks, pointers) == {1: 1, 2: 1, 3: 1}
    # A third of the blocks of stack 2 belong to blocks of stack 1.
    stacks = [1, 2, 2, 2] * COUNT
    pointers = [(n, n + 1) for n in range(0, 4 * COUNT, 4)]
    assert objects(stacks, pointers) == {}
