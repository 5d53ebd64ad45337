"""Merges a language runtime's functions into call stacks, in place of its interpreter's frames.

The probes send two stacks: that of the code, and the runtime's frames with the id of the code's
stack. Each frame of the interpreter's loop stands for a group of the runtime's frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.heap.stacks import Stacks
from tracelloc.model.events import SentStacks
from tracelloc.model.frames import RuntimeFrame
from tracelloc.model.stacks import Frames, StackFlag
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.cpython.interpreter import CPython, UnsupportedRuntime
from tracelloc.record.runtimes.supported import find_runtime

_MOST_WAITING: Final = 1 << 14
_PLACED: Final = int(StackFlag.PLACED)
# How often a stack's code is looked up while it may still be being finished: for some seconds.
_MOST_LOOKS: Final = 100


@dataclass(slots=True)
class _Waiting:
    stack_id: int
    code_id: int
    groups: list[Frames]
    outer: bytes  # Artificial frames, outermost
    flags: int
    looks: int = 0


class StackMerger:
    """Merges runtime frames into the stacks of one process, for the pump thread."""

    def __init__(
        self,
        space: AddressSpace,
        stacks: Stacks,
        words: SpaceControl,
        parent: StackMerger | None = None,
    ) -> None:
        """``parent``: the merger of the process from which this one was forked."""
        self._space = space
        self._stacks = stacks
        self._words = words
        self.runtime: CPython | None = None
        self._parent = None if parent is None else parent.runtime
        self._waiting: deque[_Waiting] = deque()
        self._places: dict[Frames, bytes] = {}  # Lines of tests, by words of the library
        self._said: set[str] = set()
        self._unsupported: str | None = None
        self._generation = -1
        if parent is not None and parent.runtime is None:
            # The same files are mapped.
            self._unsupported, self._generation = parent._unsupported, parent._generation

    def look_for_runtime(self) -> None:
        if self.runtime is not None or self._generation == self._space.generation:
            return
        self._generation = self._space.generation
        try:
            self.runtime = find_runtime(self._space)
        except UnsupportedRuntime as why:
            self._unsupported = str(why)
        if self.runtime is not None:
            if self._parent is not None:
                self.runtime.share_names(self._parent)
            self.runtime.publish(self._words)

    def begin_image(self, stacks: Stacks) -> None:
        """Resets after an exec; ``stacks``: where the new program's stacks are stored."""
        self._stacks = stacks
        self.runtime = self._parent = self._unsupported = None
        self._generation = -1
        self._waiting.clear()
        self._places.clear()

    def troubles(self) -> list[str]:
        """Returns why stacks can't be merged, for display; each trouble is returned once."""
        found = [self._unsupported, self.runtime.trouble() if self.runtime else None]
        new = [text for text in found if text is not None and text not in self._said]
        self._said.update(new)
        return new

    def note_code(self, stack_id: int, frames: Frames, flags: StackFlag) -> None:
        """Stores a stack of code frames that stacks of runtime frames refer to."""
        self._stacks.code[stack_id] = _packed(frames), int(flags & ~StackFlag.CODE)

    def note_names(self, sent: SentStacks) -> None:
        """Stores names of a runtime's functions: ``struct python_code``."""
        if self.runtime is not None:
            for _, _, words in sent.rows():
                self.runtime.note_names(words)

    def merge_sent(self, sent: SentStacks) -> None:
        """Merges stacks with a runtime's frames: ``struct python_stack``, or ``PLACED``."""
        if len(self._places) > _MOST_WAITING:
            self._places.clear()
        for stack_id, flags, words in sent.rows():
            if flags == _PLACED:
                outer = self._places.get(words[1:])
                if outer is None:
                    outer = self._places[words[1:]] = _packed(sum(self._groups(words[1:]), ()))
                if (code := self._code(words[0])) is not None:
                    self._stacks.add_packed(stack_id, code[0] + outer, code[1])
                else:
                    self._waiting.append(_Waiting(stack_id, words[0], [], outer, 0))
                continue
            groups = self._groups(words[2:])
            device = _packed(self._device(words[1] - 1) if words[1] else ())
            how = flags & ~StackFlag.PYTHON.value
            self._waiting.append(_Waiting(stack_id, words[0], groups, device, how))
        self.settle()

    def settle(self) -> None:
        for _ in range(len(self._waiting)):
            one = self._waiting.popleft()
            code = self._code(one.code_id)
            one.looks += 1
            if code is None and one.looks < _MOST_LOOKS and len(self._waiting) < _MOST_WAITING:
                self._waiting.append(one)
                continue
            if code is None:
                code = b"", StackFlag.LOST_MISS.value  # The runtime's frames are something
            frames = self._merged(*code, one.groups) + one.outer
            self._stacks.add_packed(one.stack_id, frames, code[1] | one.flags)

    def _device(self, number: int) -> Frames:
        frame = RuntimeFrame(f"[GPU {number}]", runtime="device")
        return (self._space.files.runtime_frames.address(frame),)

    def _groups(self, words: Sequence[int]) -> list[Frames]:
        if self.runtime is None:
            return []
        address = self._space.files.runtime_frames.address
        return [tuple(map(address, group)) for group in self.runtime.groups(words)]

    def _code(self, code_id: int) -> tuple[bytes, int] | None:
        found = self._stacks.code.get(code_id)
        if found is not None:
            return found
        # It may have been finished in user space, or have come before the runtime was found.
        index = self._stacks.ids.get(code_id)
        return self._stacks.packed(index) if index > 0 else None

    def _merged(self, code: bytes, flags: int, groups: list[Frames]) -> bytes:
        if self.runtime is None or not groups:
            return code
        is_loop, inner = self.runtime.is_loop, self.runtime.inner_frames
        frames: list[int] = []
        rest = iter(groups)
        used = end = 0
        for address in np.frombuffer(code, np.uint64).tolist():
            if is_loop(address):
                # The loop calls nothing else: frames directly within it are part of it.
                del frames[max(end, len(frames) - inner) :]
                frames.extend(next(rest, (address,)))
                used += 1
                end = len(frames)
            else:
                frames.append(address)
        if used < len(groups):
            # If the code's stack ends early, the remaining groups lie beyond its end. Otherwise
            # they belong further out than the last one found, at an unknown place.
            end = end if used and not flags else len(frames)
            frames[end:end] = [frame for group in rest for frame in group]
        return _packed(frames)


def _packed(frames: Sequence[int]) -> bytes:
    return np.array(frames, np.uint64).tobytes()
