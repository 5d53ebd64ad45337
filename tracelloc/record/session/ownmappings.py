"""Separates what a program itself maps from what its allocators map for blocks."""

from __future__ import annotations

from collections.abc import Iterable

from tracelloc.heap.ranges import RangeTable
from tracelloc.model.codefiles import base_name, is_c_library
from tracelloc.model.process import FoundLibrary
from tracelloc.record.mallocs.families import MAPPINGS
from tracelloc.record.process.space import AddressSpace


def allocators_stacks(
    ranges: RangeTable, found: Iterable[FoundLibrary], space: AddressSpace
) -> set[int]:
    """Returns the stacks by which allocator libraries map memory, such as in their own threads.

    What they map during a call of their functions is not reported at all. The C library is
    excluded: outside these calls, it maps memory for thread stacks.
    """
    libraries = {
        allocator.file
        for allocator in found
        if allocator.family != MAPPINGS.name and ".so" in base_name(allocator.file)
    }

    def file_of(stack: int) -> str | None:
        frames = ranges.stacks.frames(stack)
        mapping = space.find(frames[0] - 1) if frames else None
        return None if mapping is None or is_c_library(mapping.path) else mapping.path

    stacks = {each.stack for each in ranges.ranges()}
    return {stack for stack in stacks if file_of(stack) in libraries}
