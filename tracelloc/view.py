"""What every view needs of a stack: its frames by name, and which of them are hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelloc.filters import Filters
from tracelloc.snapshot import Snapshot
from tracelloc.symbols import Frame, Symbolizer


@dataclass(frozen=True, slots=True)
class NamedStack:
    """A symbolized call stack, innermost frame first."""

    frames: Sequence[Frame]
    hidden: Sequence[bool]

    @property
    def shown(self) -> list[Frame]:
        """The frames that no filter hides."""
        return [f for f, hidden in zip(self.frames, self.hidden, strict=True) if not hidden]


class Namer:
    """Names the stacks of snapshots."""

    def __init__(self, symbolizer: Symbolizer, filters: Filters) -> None:
        self._symbolizer = symbolizer
        self._filters = filters

    def stack(self, snapshot: Snapshot, index: int) -> NamedStack:
        """The stack with this index."""
        frames = self._symbolizer.frames(snapshot.frames(index))
        return NamedStack(frames, self._filters.hidden(frames))
