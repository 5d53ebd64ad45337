"""Where stacks come from: the probes' rings, made whole, checked, and noted by id."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from tracelloc.abi import StackFlag
from tracelloc.allocators import Module
from tracelloc.caller import caller
from tracelloc.capture import Capture
from tracelloc.ring import Miss
from tracelloc.rowtable import RowTable
from tracelloc.sitememory import SiteMemory
from tracelloc.space import AddressSpace
from tracelloc.stacks import Frames, Stacks
from tracelloc.units import NS_PER_S
from tracelloc.unwind import FrameChecker
from tracelloc.unwinding import Unwinder

_R_STATE: Final = 24
"""Where in ``struct r_debug`` (link.h) the state is, in bytes."""
_MOST_LOOKS: Final = 8
"""How often the maps are read again because they changed while they were read."""
_MISSES_AT_ONCE: Final = 64
"""Stacks that are finished before the ring is looked at again."""
_MOST_WAITING: Final = 4096
"""Misses that are held here at once: 80 MiB of stack memory if all are small."""
NO_INFORMATION: Final = "frame pointers, for want of call-frame information"
"""How stacks are followed through a file; where it has none, they may break there."""
_ALL: Final = 0.8
"""The share that counts as all: there is padding, and some functions are written by hand."""
_LARGE_NS: Final = 5 * NS_PER_S
"""How long misses bring larger copies after one was too short."""


class StackSource:
    """Takes stacks out of their rings, for the thread that pumps.

    Keeps the address space up to date: whoever finds an address that nothing is known of
    asks for the maps to be read again.
    """

    def __init__(
        self,
        space: AddressSpace,
        stacks: Stacks,
        capture: Capture,
        max_frames: int,
        on_modules: Callable[[Sequence[Module]], None],
    ) -> None:
        """``on_modules`` hears of files that are mapped for the first time."""
        self._space = space
        self._stacks = stacks
        self._capture = capture
        self._on_modules = on_modules
        self._checker = FrameChecker(space)
        self._unwinder: Unwinder | None = None
        self._prewarming: threading.Thread | None = None
        self._large_until_ns = 0
        if capture.rows is not None:
            table = RowTable(capture.rows)
            memory = SiteMemory(caller())
            self._unwinder = Unwinder(space, table, max_frames, memory, self.refresh)
            self._renew(capture.generation)

    def await_rows(self, timeout_s: float) -> None:
        """Waits until what was mapped at the beginning has its rows, but not too long."""
        if self._prewarming is not None:
            self._prewarming.join(timeout_s)

    def close(self) -> None:
        """Ends what is done aside."""
        if self._unwinder is not None:
            self._unwinder.stop()
        if self._prewarming is not None:
            self._prewarming.join()
        if self._unwinder is not None:
            self._unwinder.remember()

    def methods(self) -> dict[str, str]:
        """By file of code, in words: by what stacks are followed through it."""
        if self._unwinder is None:
            return dict.fromkeys((m.path for m in self._space.modules), "frame pointers")
        covered = self._unwinder.covered
        return {m.path: _in_words(covered.get(id(m))) for m in self._space.modules}

    def refresh(self) -> None:
        """Reads again what is mapped, and passes on what is new."""
        for _ in range(_MOST_LOOKS):
            generation = self._capture.generation
            before = self._space.generation
            self._on_modules(self._space.refresh())
            if self._unwinder is None:
                return
            known = self._unwinder.table.generation
            if generation == known and self._unwinder.lost_code():
                self._capture.note_change()
                generation = self._capture.generation
            if generation == known and self._space.generation == before:
                return
            if self._renew(generation):
                return

    def _renew(self, generation: int) -> bool:
        """Takes over what is mapped now; ``generation`` was read before the maps were.

        False if that was outdated before it was done.
        """
        assert self._unwinder is not None
        address = self._space.variable("_r_debug")
        self._capture.set_loader_state(0 if address is None else address + _R_STATE)
        if not self._unwinder.renew(generation, lambda: self._capture.generation):
            return False
        # One thread at a time; it finds what is there when it looks.
        if self._prewarming is None or not self._prewarming.is_alive():
            self._prewarming = threading.Thread(
                target=self._unwinder.prewarm, name="rows", daemon=True
            )
            self._prewarming.start()
        return True

    def take(self, now_ns: int) -> None:
        """Notes all stacks that the rings hold. To be called after events were taken."""
        self._take_misses(now_ns)
        new = [
            (stack_id, tuple(frames.tolist()), StackFlag(flags))
            for stack_id, flags, frames in self._capture.stacks.take()
        ]
        if not new:
            return
        if any(self._checker.unknown(frames) for _, frames, _ in new):
            self.refresh()
        settle = self._checker.trim if self._unwinder is None else self._settle
        for stack_id, frames, flags in new:
            self._stacks.add(stack_id, *settle(frames, flags))

    def _take_misses(self, now_ns: int) -> None:
        """Finishes stacks that the probes could not follow, and supplies the rows."""
        if self._unwinder is None or self._capture.misses is None:
            return
        waiting: deque[Miss] = deque()
        while True:
            if len(waiting) < _MOST_WAITING:
                misses = self._capture.misses.take(_MOST_WAITING)
                # Only now: none of them is from a later generation than what is read here.
                if self._capture.generation != self._unwinder.table.generation:
                    self.refresh()
                self._unwinder.hasten(misses)
                waiting.extend(misses)
            if not waiting:
                break
            some = [waiting.popleft() for _ in range(min(len(waiting), _MISSES_AT_ONCE))]
            for stack in self._unwinder.finish(some):
                if stack.flags & StackFlag.SHORT_COPY:
                    self._large_until_ns = now_ns + _LARGE_NS
                self._stacks.add(stack.stack_id, *self._settle(stack.frames, stack.flags))
        self._capture.set_large_misses(now_ns < self._large_until_ns)

    def _settle(self, frames: Frames, flags: StackFlag) -> tuple[Frames, StackFlag]:
        """What is to be believed of a stack that was walked by rows."""
        if not flags & StackFlag.GUESSED:
            return frames, flags
        kept = self._checker.credible(frames)
        if len(kept) == len(frames):
            return frames, flags & ~StackFlag.GUESSED
        bottom = frames[len(kept)]
        if self._unwinder is not None and self._unwinder.is_bottom(bottom):
            return (*kept, bottom), StackFlag(0)
        return kept, StackFlag.BROKEN


def _in_words(covered: float | None) -> str:
    """``covered``: the share of call sites with call-frame information; None: not known."""
    if covered is None:
        return "call-frame information, rows made when needed"
    if covered > _ALL:
        return "call-frame information"
    if covered < 1 - _ALL:
        return NO_INFORMATION
    return f"call-frame information for {covered:.0%} of its calls, frame pointers elsewhere"
