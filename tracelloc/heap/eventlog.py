"""Events of one heap as they were applied, kept until they are written to a recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tracelloc.heap.stacks import Stacks
from tracelloc.model.blocks import Blocks, LoggedEvents
from tracelloc.model.events import EVENT_DTYPE, Events

_LEAST: Final = 1 << 20  # Least number of events between two copies of all blocks: applied in 0.1 s
_PER_BLOCK: Final = 8  # Least number of events for each block that is copied


class EventLog:
    """Not thread safe: the session's lock guards it."""

    def __init__(self) -> None:
        self._parts: list[Events] = []
        self._since_blocks: int | None = None
        """Events since all blocks were copied; None if they never were."""
        self.last_blocks: Blocks | None = None
        """The outstanding blocks when the process ended."""

    def add(self, events: Events) -> None:
        """Keeps a copy of applied events."""
        self._parts.append(events.copy())

    def forget_blocks(self) -> None:
        """Has all blocks copied the next time: some were added without events."""
        self._since_blocks = None

    def take_events(self, stacks: Stacks, count: int, blocks: Callable[[], Blocks]) -> LoggedEvents:
        """Events added since the last call, periodically with all blocks.

        ``count``: number of outstanding blocks; ``blocks`` copies them.
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
