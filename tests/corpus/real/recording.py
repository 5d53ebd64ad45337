"""Events of a real program as they came from the probes, compact on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.corpus.replay import START_NS
from tests.searches import add_search
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.heap.unreachable import UnreachableBlocks, keys_of
from tracelloc.model.events import (
    EVENT_DTYPE,
    EVENT_KIND_MASK,
    EVENT_SIZE_BITS,
    EVENT_SIZE_MASK,
    Events,
)
from tracelloc.model.stacks import StackFlag
from tracelloc.record.runtimes.known import garbage_collection
from tracelloc.text import NS_PER_S

Column = npt.NDArray[Any]
_NS_PER_MS = 1_000_000
ASKED_AGE_S = 10
_ALIGNMENT = 16


@dataclass(frozen=True)
class RealRecording:
    """Events, a row each; call stacks, a row each; and distinct frames.

    Stack ``n`` of the session is row ``n - 1``: frames ``frames[start:start + depth]``, which
    number the distinct return addresses, from the innermost.
    """

    time_ms: Column  # Since tracing began
    block: Column  # Equal where addresses are
    size: Column
    kind: Column
    stack: Column  # Index in the session; 0: none
    depths: Column
    flags: Column
    frames: Column
    address: Column  # Return address of each distinct frame
    name: Column  # Function and module of each distinct frame
    in_runtime: Column  # Whether allocations only pass through that frame
    anonymous_ms: Column  # When the process's anonymous memory was looked at, since tracing began
    anonymous_bytes: Column
    lost: Column  # One number: events lost
    # Rows of allocations that the program was made to leak (`tests/targets/skipfree.c`).
    leaked: Column
    skipped_ms: Column  # When the free of each was left out
    # When its memory was searched for pointers to blocks that were `ASKED_AGE_S` old.
    searched_ms: Column
    # Which of these searches found no pointer to a block: a row per block and search.
    lost_search: Column
    lost_row: Column  # Row of that block's allocation

    @classmethod
    def events_of(cls, events: Events, started_ns: int) -> dict[str, Column]:
        """The columns that are of events."""
        blocks = np.unique(events["address"], return_inverse=True)[1]
        size_tag = events["size_tag"]
        return {
            "time_ms": ((events["time_ns"].astype(np.int64) - started_ns).clip(0) // _NS_PER_MS),
            "block": blocks.astype(np.uint32),
            "size": (size_tag & np.uint64(EVENT_SIZE_MASK)).astype(np.uint64),
            "kind": (size_tag >> np.uint64(EVENT_SIZE_BITS)).astype(np.uint8) & EVENT_KIND_MASK,
        }

    def save(self, path: Path) -> None:
        """Writes an ``.npz`` file; times as differences."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        columns["time_ms"] = np.diff(self.time_ms, prepend=0).astype(np.int32)
        part = path.with_suffix(".part.npz")
        np.savez_compressed(part, **columns)
        part.rename(path)

    @classmethod
    def load(cls, path: Path) -> RealRecording:
        with np.load(path) as columns:
            read = {
                field.name: columns[field.name] for field in fields(cls) if field.name in columns
            }
        for name in ("leaked", "skipped_ms", "searched_ms", "lost_search", "lost_row"):
            read.setdefault(name, np.empty(0, np.int64))
        read["time_ms"] = np.cumsum(read["time_ms"], dtype=np.int64)
        return cls(**read)

    @property
    def seconds(self) -> float:
        return float(self.anonymous_ms[-1]) / 1000

    def until(self, end_s: float) -> RealRecording:
        cut = int(np.searchsorted(self.time_ms, end_s * 1000))
        columns = {n: getattr(self, n)[:cut] for n in ("time_ms", "block", "size", "kind", "stack")}
        return replace(self, **columns)

    def events(self) -> Events:
        events = np.zeros(len(self.kind), EVENT_DTYPE)
        events["time_ns"] = self.time_ms * _NS_PER_MS + START_NS
        events["address"] = 0x7F00_0000_0000 + _ALIGNMENT * self.block.astype(np.uint64)
        events["size_tag"] = self.size | (self.kind.astype(np.uint64) << np.uint64(EVENT_SIZE_BITS))
        events["stack_id"] = self.stack
        events["tid"] = events["image"] = 1
        return events

    def searches(self, events: Events) -> Callable[[float, LiveTable], UnreachableBlocks | None]:
        """What had been found of pointers to blocks at some second, from then on."""
        lost = UnreachableBlocks()
        rows = [self.lost_row[self.lost_search == n] for n in range(len(self.searched_ms))]

        def search(time_s: float, table: LiveTable) -> UnreachableBlocks | None:
            if lost.searches < len(rows) and self.searched_ms[lost.searches] <= time_s * 1000:
                asked_ns = int(self.searched_ms[lost.searches]) * _NS_PER_MS + START_NS
                blocks = table.blocks()
                old = blocks.birth_ns <= np.uint64(asked_ns - ASKED_AGE_S * NS_PER_S)
                blocks = blocks.select(old)
                unreachable = events[rows[lost.searches]]
                keys = keys_of(unreachable["address"], unreachable["time_ns"])
                add_search(lost, blocks, ~np.isin(keys_of(blocks.address, blocks.birth_ns), keys))
            return lost if len(rows) else None

        return search

    def resident_bytes(self, time_s: float) -> int:
        """Anonymous memory at some second."""
        at = int(np.searchsorted(self.anonymous_ms, time_s * 1000, side="right")) - 1
        return int(self.anonymous_bytes[max(at, 0)])

    @property
    def leaks_from_s(self) -> float:
        """When the first of what leaked did so: when its free was left out, as far as known."""
        times = self.skipped_ms if len(self.skipped_ms) else self.time_ms[self.leaked]
        return float(times.min()) / 1000

    @property
    def collection(self) -> tuple[bool, bool]:
        """Whether a garbage collector is among the files that frames are in."""
        return garbage_collection({str(name).rpartition(" ")[2] for name in self.name})

    def known_stacks(self) -> Stacks:
        """The stacks of the session under their old indices; ids are the indices."""
        stacks = Stacks()
        start = 0
        for row, depth in enumerate(self.depths.tolist()):
            frames = tuple(self.address[self.frames[start : start + depth]].tolist())
            # What ended alike may be equal by now: indices must not move.
            stacks.indices(np.array([row + 1], np.uint64))
            if depth:
                stacks.add(row + 1, frames, StackFlag(int(self.flags[row])))
            start += depth
        return stacks

    def names_of(self, stack: int) -> list[str]:
        """Functions of a stack, the innermost first."""
        if not 1 <= stack <= len(self.depths):
            return []
        start = int(self.depths[: stack - 1].sum())
        frames = self.frames[start : start + int(self.depths[stack - 1])]
        return [str(name) for name in self.name[frames]]

    def wrappers(self) -> set[int]:
        """Return addresses where allocations only pass."""
        return set(self.address[self.in_runtime].tolist())
