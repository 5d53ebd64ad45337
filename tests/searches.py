"""Whole searches for pointers to blocks, made up."""

from tracelloc.heap.unreachable import UnreachableBlocks
from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import Mask


def add_search(unreachable: UnreachableBlocks, blocks: Blocks, reachable: Mask) -> None:
    """Adds a whole search: its blocks, and a mask of those that can be reached."""
    comparison = unreachable.comparison()
    comparison.add(blocks, reachable)
    unreachable.accept(comparison.result())
