"""Recorded streams of events of real programs, compact on disk, replayed on their own clock.

The 21 programs, ten minutes each of a clock that ran 40 times faster, and what recorded them are
in the history: ``git log --diff-filter=D -- tests/corpus/record.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.corpus.replay import START_NS
from tracelloc.heap.stacks import Stacks
from tracelloc.model.events import EVENT_DTYPE, EVENT_SIZE_BITS, Events
from tracelloc.model.stacks import StackFlag

FOLDER = Path(__file__).parents[1] / "data" / "streams"
_NS_PER_MS = 1_000_000
_ALIGNMENT = 16


@dataclass
class Recording:
    """Columns of equal length, an event per row; and the call stacks by name."""

    time_ms: npt.NDArray[np.uint32]  # On the program's own clock, since tracing began
    address: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint32]
    kind: npt.NDArray[np.uint8]
    stack: npt.NDArray[np.uint16]  # Index of `stacks`, from 1; 0: none
    tid: npt.NDArray[np.uint16]
    stacks: list[str]  # `innermost/…/outermost`: the functions, as far as they have names
    # By function, what the program says it has leaked: blocks, bytes, and since when (s).
    leaks: dict[str, tuple[int, int, float]]

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Addresses are others than the program's, but equal where those were equal."""
        with np.load(path) as columns:
            leaks = [str(line).split() for line in columns["leaks"]]
            return cls(
                time_ms=np.cumsum(columns["step_ms"].astype(np.int64)).astype(np.uint32),
                address=0x7F00_0000_0000 + _ALIGNMENT * columns["block"].astype(np.uint64),
                size=columns["size"],
                kind=columns["kind"],
                stack=columns["stack"].astype(np.uint16),
                tid=columns["tid"].astype(np.uint16),
                stacks=[str(name) for name in columns["stacks"]],
                leaks={n: (int(b), int(s), float(o)) for n, b, s, o in leaks},
            )

    def events(self) -> Events:
        events = np.zeros(len(self.kind), EVENT_DTYPE)
        events["time_ns"] = self.time_ms.astype(np.uint64) * _NS_PER_MS + START_NS
        events["address"] = self.address
        events["size_tag"] = self.size.astype(np.uint64) | (
            self.kind.astype(np.uint64) << np.uint64(EVENT_SIZE_BITS)
        )
        events["stack_id"] = self.stack
        events["tid"] = self.tid
        return events

    def known_stacks(self) -> Stacks:
        """The stacks, with made-up addresses, equal where names and offsets are."""
        stacks = Stacks()
        addresses: dict[str, int] = {}
        for stack_id, name in enumerate(self.stacks, start=1):
            frames = (
                addresses.setdefault(f, 0x400000 + 16 * len(addresses)) for f in name.split("/")
            )
            stacks.add(stack_id, tuple(frames), StackFlag(0))
        return stacks

    def leaking(self, stack: int) -> str | None:
        """The leaking function that a stack allocates in, if it does."""
        if not 1 <= stack <= len(self.stacks):
            return None
        name = self.stacks[stack - 1]
        return next((leak for leak in self.leaks if leak in name), None)
