"""Events of one heap as they were applied, kept until somebody writes them down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelloc.heap.blocks import Blocks
from tracelloc.heap.stacks import Stacks
from tracelloc.model.events import EVENT_DTYPE, Events

_LEAST: Final = 1 << 20
"""Events from one copy of all blocks to the next, at least: so many are applied in 0.1 s."""
_PER_BLOCK: Final = 8
"""Events for each block that is copied."""


@dataclass(frozen=True, slots=True)
class LoggedEvents:
    """What has happened to a heap from one snapshot to the next."""

    events: Events
    """In the order in which they were applied; ``stack_id`` is the index of the stack."""
    blocks: Blocks | None
    """All that is outstanding after them; None if it follows from what was logged before."""


class EventLog:
    """Not thread safe: the session's lock guards it."""

    def __init__(self) -> None:
        self._parts: list[Events] = []
        self._since_blocks: int | None = None
        """Events since all blocks were copied; None: they never were."""
        self.last_blocks: Blocks | None = None
        """What was outstanding when the process ended."""

    def add(self, events: Events) -> None:
        """Keeps a copy of what is applied."""
        self._parts.append(events.copy())

    def take(self, stacks: Stacks, count: int, blocks: Callable[[], Blocks]) -> LoggedEvents:
        """What was added since the last time, now and then with all blocks.

        ``count``: of the outstanding ones; ``blocks`` copies them.
        """
        events: Events = np.concatenate([np.empty(0, EVENT_DTYPE), *self._parts])
        self._parts.clear()
        events["stack_id"] = stacks.indices(np.ascontiguousarray(events["stack_id"]))
        known = self._since_blocks
        if known is not None:
            self._since_blocks = known + len(events)
            if known + len(events) < max(_LEAST, _PER_BLOCK * count):
                return LoggedEvents(events, None)
        self._since_blocks = 0
        return LoggedEvents(events, blocks() if self.last_blocks is None else self.last_blocks)
