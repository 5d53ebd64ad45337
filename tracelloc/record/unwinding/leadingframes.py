"""Strips allocator frames from stacks whose walk began inside an allocator."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.events import SentStacks
from tracelloc.record.mallocs.discovery import Allocator, is_preloaded_library
from tracelloc.record.process.space import AddressSpace

_MOST: Final = 16  # Most leading frames that are stripped


class LeadingFrames:
    """Address ranges of allocators' code, for stripping stacks that begin there."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """``ranges``: start and end addresses, which do not overlap."""
        ordered = sorted(set(ranges))
        self._starts = np.array([start for start, _ in ordered], np.uint64)
        self._ends = np.array([end for _, end in ordered], np.uint64)

    def _holds(self, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        if not len(self._starts):
            return np.zeros(len(addresses), np.bool_)
        at = np.searchsorted(self._starts, addresses, side="right") - 1
        held: npt.NDArray[np.bool_] = (at >= 0) & (addresses < self._ends[np.maximum(at, 0)])
        return held

    def without(self, frames: tuple[int, ...]) -> tuple[int, ...]:
        """Returns a stack without its leading allocator frames; its outermost frame stays."""
        held = self._holds(np.array(frames[:_MOST], np.uint64)).tolist()
        count = held.index(False) if False in held else len(held)
        return frames[min(count, max(0, len(frames) - 1)) :]

    def without_all(self, stacks: SentStacks) -> SentStacks:
        """Returns stacks without their leading allocator frames; outermost frames stay."""
        for _ in range(_MOST):
            starts = np.cumsum(stacks.depths) - stacks.depths
            some = stacks.depths > 1
            led = np.zeros(len(stacks), np.bool_)
            led[some] = self._holds(stacks.frames[starts[some]])
            if not led.any():
                break
            kept = np.ones(len(stacks.frames), np.bool_)
            kept[starts[led]] = False
            stacks = replace(stacks, depths=stacks.depths - led, frames=stacks.frames[kept])
        return stacks


def code_ranges(space: AddressSpace, allocators: Iterable[Allocator]) -> list[tuple[int, int]]:
    """Returns (start, end) of allocators' functions, and of the preloaded library's code.

    Stacks may begin at these process addresses, before they reach the caller.
    """
    ranges = []
    for mapping in space.mappings:
        module = space.module_of(mapping) if mapping.executable else None
        if module is None:
            continue
        if is_preloaded_library(module):
            ranges.append((mapping.start, mapping.end))
        for allocator in allocators:
            if allocator.module is module:
                first = mapping.start - mapping.offset
                ranges += [(first + f.offset, first + f.offset + f.size + 1)
                           for f in allocator.functions]  # fmt: skip
    return ranges
