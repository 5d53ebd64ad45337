"""Tells return addresses from junk in stacks that were walked by frame pointers.

Code compiled without frame pointers uses the register for something else. The walk then picks up
words of the stack that merely look like frames. A true return address follows a call instruction
in executable memory. The first address that does not ends the stack: later frames are not shown,
and the stack is marked.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from tracelloc.architecture import native
from tracelloc.model.codefiles import CodePlace, Unresolved, is_c_library
from tracelloc.model.events import SentStacks
from tracelloc.model.figures import U64, Mask
from tracelloc.model.stacks import StackFlag
from tracelloc.record.mallocs.discovery import Allocator, Module, is_preloaded_library
from tracelloc.record.process.space import AddressSpace

_MOST: Final = 16  # Most leading frames that are stripped


class LeadingFrames:
    """Address ranges of allocators' code, for stripping stacks that begin there."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """``ranges``: start and end addresses, which do not overlap."""
        ordered = sorted(set(ranges))
        self._starts = np.array([start for start, _ in ordered], np.uint64)
        self._ends = np.array([0, *(end for _, end in ordered)], np.uint64)  # From before the first

    def _holds(self, addresses: U64) -> Mask:
        held: Mask = addresses < self._ends[self._starts.searchsorted(addresses, side="right")]
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
    """Returns where stacks may begin: allocators' functions, and the preloaded library's code."""
    ranges = []
    for mapping in space.mappings:
        module = space.module_of(mapping) if mapping.executable else None
        if module is None:
            continue
        if is_preloaded_library(module):
            ranges.append((mapping.start, mapping.end))
        for allocator in allocators:
            for f in allocator.functions if allocator.module is module else ():
                start = mapping.start - mapping.offset + f.offset
                ranges.append((start, start + f.size + 1))
    return ranges


# Outermost functions of static programs.
_START_FUNCTIONS: Final = ("_start", "__libc_start_main", "__libc_start_call_main", "start_thread")
_ENTRY_AT: Final = 24  # Offset of `e_entry` in an ELF header
# Most bytes from a program's entry point on that call the C library's start function.
_START_BYTES: Final = 128
# Junk differs from stack to stack: at this size, the cache is cleared so that it stays bounded.
_MOST_VERDICTS: Final = 1 << 20
_LOWEST_CODE: Final = 0x1000
_HIGHEST_CODE: Final = 1 << 56


class FrameChecker:
    """Cuts stacks at their first frame that is not a return address. Caches results."""

    def __init__(self, space: AddressSpace) -> None:
        self._space = space
        self._verdicts: dict[int, bool] = {}

    def has_unknown(self, frames: U64) -> bool:
        """Whether one of sorted frames lies where nothing was mapped when the maps were read."""
        mappings = self._space.mappings
        starts = np.array([mapping.start for mapping in mappings], np.uint64)
        ends = np.array([mapping.end for mapping in mappings], np.uint64)
        called = frames - np.uint64(1)
        inside = np.searchsorted(called, ends) - np.searchsorted(called, starts)
        # Nearly always, all frames lie in mappings.
        return int(inside.sum()) < len(frames) and any(
            _LOWEST_CODE <= frame < _HIGHEST_CODE and self._space.find(frame - 1) is None
            for frame in frames.tolist()
        )

    def trim(self, frames: tuple[int, ...], flags: StackFlag) -> tuple[tuple[int, ...], StackFlag]:
        """Returns the frames up to the first implausible one, and flags that fit these frames.

        How the walk ended says little: the register may hold anything where code without frame
        pointers begins. A stack is whole if it reaches the code that starts programs and threads;
        otherwise it is broken, unless it is only too deep.
        """
        kept = self.credible(frames)
        if len(kept) == len(frames) and flags & StackFlag.TRUNCATED:
            return kept, StackFlag.TRUNCATED
        return kept, StackFlag(0) if self._is_whole(kept) else StackFlag.BROKEN

    def credible(self, frames: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the frames up to the first implausible one."""
        for n, frame in enumerate(frames):
            if (verdict := self._verdicts.get(frame)) is None:
                if len(self._verdicts) >= _MOST_VERDICTS:
                    self._verdicts.clear()
                verdict = self._verdicts[frame] = self._look(frame)
            if not verdict:
                # The probed call itself pushed the innermost one.
                return frames[: max(n, 1)]
        return frames

    def _is_whole(self, frames: tuple[int, ...]) -> bool:
        """Whether the outermost frame belongs to the caller of main or of a thread's function.

        In a dynamic program, that caller is in the C library, and the next inner frame is not: a
        stack that ends in another function of the C library ends early, as these have no frame
        pointers. If they have, the stack goes on to the program's entry point.
        """
        place = self._space.place(frames[-1] - 1)
        if isinstance(place, Unresolved) or place.module is None:
            return False
        if is_c_library(place.module.path):
            inner = self._space.place(frames[-2] - 1) if len(frames) > 1 else None
            return isinstance(inner, CodePlace) and inner.module is not place.module
        elf = place.module.elf
        inside = elf.address_of(place.file_offset)
        if inside is None:
            return False
        entry = int.from_bytes(elf.read(_ENTRY_AT, 8), "little")
        if 0 < entry <= inside < entry + _START_BYTES:
            return True
        return self._space.is_static and elf.function_at(inside) in _START_FUNCTIONS

    def _look(self, address: int) -> bool:
        if not _LOWEST_CODE <= address < _HIGHEST_CODE:
            return False
        place = self._space.place(address - 1)
        if isinstance(place, Unresolved) or place.reason is Unresolved.NOT_CODE:
            return False
        # Generated code and the kernel's pages have no file to check.
        return place.module is None or _follows_call(place.module, place.file_offset)


def _follows_call(module: Module, offset: int) -> bool:
    """Whether a byte of a file is the last of a call, or comes before a place to return to."""
    machine, elf = native(), module.elf
    handler_return = machine.signal_frame.return_code
    length = min(offset + 1, machine.longest_call_bytes)
    code = elf.read(offset + 1 - length, length + len(handler_return))
    is_call = machine.ends_in_call(code[:length]) or code[length:] == handler_return
    return is_call or offset in elf.usdt_offsets
