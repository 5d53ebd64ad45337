"""Finds stacks that allocate the parts of one object: blocks of one point to those of the next."""

from collections.abc import Callable
from typing import Final

import numpy as np

from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import I64, U64
from tracelloc.record.process.memory import RemoteMemory

_SAMPLES: Final = 64  # Blocks of each stack whose contents are read
_READ_BYTES: Final = 512  # Of each block
_AT_ONCE: Final = 1 << 14  # Addresses that are looked up at a time
# Share of a stack's blocks that those of another one must point to, and those of all others.
_LEAST_SHARE: Final = 0.1
_LEAST_SUM: Final = 0.5


class ObjectParts:
    """Samples of some stacks' blocks."""

    def __init__(self, stacks: I64) -> None:
        self._stacks = np.sort(stacks)
        self._counts = np.zeros(len(self._stacks), np.int64)
        self._taken = np.zeros(len(self._stacks), np.int64)
        self._parts = [Blocks.empty()]

    def add(self, blocks: Blocks) -> None:
        """Adds some blocks. They have random addresses, so that the first ones are a sample."""
        some = np.flatnonzero(np.isin(blocks.stack, self._stacks))
        order = some[np.argsort(blocks.stack[some], kind="stable")]
        starts, ends = (
            np.searchsorted(blocks.stack[order], self._stacks, side) for side in ("left", "right")
        )
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            taken = order[start : min(end, start + _SAMPLES - int(self._taken[row]))]
            self._taken[row] += len(taken)
            self._parts.append(blocks.select(taken))
        self._counts += ends - starts

    def find(self, memory: RemoteMemory, stacks_at: Callable[[U64], I64]) -> dict[int, int]:
        """Returns, by stack, the lowest stack of its object; stacks without others are left out.

        ``stacks_at`` returns the stack of the live block at each address, -1 if there is none.
        Raises TargetError, PrivilegeError.
        """
        blocks, count = Blocks.concatenate(self._parts), len(self._stacks)
        if count < 2:
            return {}
        words, was_read = memory.read(blocks.address, _READ_BYTES)
        ends = np.arange(8, _READ_BYTES + 1, 8, dtype=np.uint64)
        is_inside = was_read[:, None] & (ends <= blocks.size[:, None])
        rows, columns = np.nonzero(is_inside & (words > 0))
        source = np.searchsorted(self._stacks, blocks.stack[rows])
        targets, target = np.unique(words[rows, columns], return_inverse=True)
        stacks = [stacks_at(targets[at : at + _AT_ONCE]) for at in range(0, len(targets), _AT_ONCE)]
        stack = np.concatenate([np.empty(0, np.int64), *stacks])
        led_to = np.minimum(np.searchsorted(self._stacks, stack), count - 1)
        # Each block that samples of a stack point to counts once.
        links = np.unique(source * len(targets) + target)
        source, target = np.divmod(links, max(1, len(targets)))
        known = self._stacks[led_to[target]] == stack[target]
        pairs = (source * count + led_to[target])[known]
        pointed_to = np.bincount(pairs, minlength=count * count).reshape(count, count)
        np.fill_diagonal(pointed_to, 0)
        shares = pointed_to * (self._counts / np.maximum(self._taken, 1))[:, None]
        shares /= np.maximum(self._counts, 1)
        is_part = (shares >= _LEAST_SHARE) & (shares.sum(axis=0) >= _LEAST_SUM)
        lowest = np.arange(count)
        for one, two in zip(*np.nonzero(is_part), strict=True):
            lowest[lowest == max(lowest[one], lowest[two])] = min(lowest[one], lowest[two])
        sizes = np.bincount(lowest, minlength=count)
        several = np.flatnonzero(sizes[lowest] > 1)
        found = zip(self._stacks[several].tolist(), lowest[several].tolist(), strict=True)
        return {stack: int(self._stacks[first]) for stack, first in found}
