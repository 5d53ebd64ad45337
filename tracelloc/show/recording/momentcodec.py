"""Encodes one snapshot as bytes: whole, or as the difference from an earlier snapshot.

A snapshot has facts (plain values by name) and, per process, tables: a row per figure, a column
per stack, 64 bits each. Only changed columns of a table are kept, as differences modulo 2**64,
with bytes of equal weight side by side, which compresses well. Differences of floats are
differences of their bits, so decoding is exact.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, field
from tracelloc.errors import MalformedError
from tracelloc.system.bounded import Inflater, UnpackBudget, parse_json

I64 = npt.NDArray[np.int64]
Facts = dict[str, Any]  # Plain values by name
# Number of the process in the trace, and how many programs it has executed.
ProcessKey = tuple[int, int]

LARGEST_BYTES: Final = 1 << 28  # Largest snapshot, unpacked: a million stacks take less
_LARGEST_HEAD: Final = 64 << 20
_MOST_COLUMNS: Final = 1 << 24
_LEVEL: Final = 1  # zlib level; higher ones save little for their time, see docs/internals.md
_HEAD: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """The recorded parts of one process in one snapshot."""

    facts: Facts  # Plain values by name
    tables: dict[str, I64]  # Tables by name, of shape (figures, stacks)


@dataclass(frozen=True, slots=True)
class MomentParts:
    """The recorded parts of all processes in one snapshot; immutable."""

    facts: Facts = field(default_factory=dict)
    processes: dict[ProcessKey, ProcessParts] = field(default_factory=dict)


_NO_PROCESS: Final = ProcessParts({}, {})
NOTHING: Final = MomentParts()  # The base of the first moment of a group
ANCHORS: Final = 8  # Number of moments from one anchor to the next, see `MomentChain`


class MomentChain:
    """Tracks which snapshot of a group is the base of the next difference.

    The first snapshot is whole. Each ``ANCHORS``-th is an anchor, stored as the difference from the
    previous anchor, so that few differences lead to any snapshot. All others are differences from
    the snapshot before.
    """

    def __init__(self) -> None:
        self._count = 0
        self._anchor = self._last = NOTHING

    @property
    def base(self) -> MomentParts:
        """The snapshot from which the next one is the difference."""
        return self._last if self._count % ANCHORS else self._anchor

    def add(self, now: MomentParts) -> None:
        if self._count % ANCHORS == 0:
            self._anchor = now
        self._last = now
        self._count += 1

    @staticmethod
    def path(rank: int) -> list[int]:
        """Returns the ranks of the snapshots to apply in order, to restore that of ``rank``."""
        anchor = rank - rank % ANCHORS
        return [*range(0, anchor, ANCHORS), *range(anchor, rank + 1)]


def packed(payload: bytes) -> bytes:
    """Returns compressed bytes."""
    return zlib.compress(payload, _LEVEL)


def encode(now: MomentParts, before: MomentParts) -> bytes:
    """Encodes a snapshot as the difference from ``before``, which may be empty."""
    arrays: list[bytes] = []
    processes = []
    for key, parts in now.processes.items():
        was = before.processes.get(key, _NO_PROCESS)
        tables = {}
        for name, table in parts.tables.items():
            columns, differences = _difference(table, was.tables.get(name))
            tables[name] = [*table.shape, len(columns)]
            arrays.append(_shuffled(np.diff(columns, prepend=0).astype(np.uint32)))
            arrays.append(_shuffled(differences))
        processes.append([*key, _changed(parts.facts, was.facts), tables])
    head = {"facts": _changed(now.facts, before.facts), "processes": processes}
    text = json.dumps(head, separators=(",", ":")).encode()
    return packed(b"".join([_HEAD.pack(len(text)), text, *arrays]))


def decode(data: bytes, before: MomentParts) -> MomentParts:
    """Decodes a snapshot from its difference from ``before``. Raises MalformedError."""
    payload = Inflater(data)
    try:
        (size,) = _HEAD.unpack(payload.read(_HEAD.size))
        if size > _LARGEST_HEAD:
            raise ValueError("a snapshot's head is too large")
        head = parse_json(payload.read(size), LARGEST_BYTES)
        pieces = _Pieces(payload, UnpackBudget(LARGEST_BYTES))
        processes = {}
        for number, programs, facts, shapes in head["processes"]:
            key = int(number), int(programs)
            was = before.processes.get(key, _NO_PROCESS)
            tables = {str(n): _table(pieces, s, was.tables.get(n)) for n, s in shapes.items()}
            processes[key] = ProcessParts(_applied(facts, was.facts), tables)
        payload.finish()
        return MomentParts(_applied(head["facts"], before.facts), processes)
    except (
        ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError,
        RecursionError, struct.error,
    ) as error:  # fmt: skip
        raise MalformedError(f"a snapshot is damaged ({type(error).__name__})") from error


def _changed(now: Facts, before: Facts) -> dict[str, Any]:
    """Returns facts that are new or differ, and the names of removed ones."""
    gone = [name for name in before if name not in now]
    news = {n: fact for n, fact in now.items() if n not in before or before[n] != fact}
    return {"set": news, "gone": gone} if gone else {"set": news}


def _applied(change: dict[str, Any], before: Facts) -> Facts:
    facts: Facts = before | change["set"]
    for name in change.get("gone", ()):
        facts.pop(name, None)
    return facts


def _difference(now: I64, before: I64 | None) -> tuple[I64, I64]:
    """Returns the columns that differ, and the differences; missing columns count as 0."""
    change = now
    if before is not None and len(before) == len(now):
        both = min(now.shape[1], before.shape[1])
        change = now.copy()
        change[:, :both] -= before[:, :both]
    columns = np.flatnonzero(change.any(axis=0))
    return columns, change[:, columns]


def _table(pieces: _Pieces, shape: list[int], before: I64 | None) -> I64:
    figures, width, count = map(int, shape)
    if not (0 <= figures < 100 and 0 <= count <= width <= _MOST_COLUMNS):
        raise ValueError("a table's shape")
    pieces.budget.spend(figures * width * 8)
    columns = np.cumsum(pieces.read_array(np.uint32, count), dtype=np.int64)
    if count and columns[-1] >= width:
        raise ValueError("a column's number")
    change = pieces.read_array(np.int64, figures * count).reshape(figures, count)
    if before is not None and before.shape == (figures, width) == change.shape:
        # The common case: as many stacks as before.
        change += before
        return change
    table = np.zeros((figures, width), np.int64)
    if before is not None and len(before) == figures:
        both = min(width, before.shape[1])
        table[:, :both] = before[:, :both]
    table[:, columns] += change
    return table


def _shuffled(array: npt.NDArray[Any]) -> bytes:
    """Returns the bytes of an array, with bytes of equal weight side by side."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(len(flat), flat.itemsize).T.tobytes()


class _Pieces:
    def __init__(self, payload: Inflater, budget: UnpackBudget) -> None:
        """``budget``: memory for everything made of the arrays, which callers subtract."""
        self._payload = payload
        self.budget = budget

    def read_array(self, dtype: type[np.generic], count: int) -> npt.NDArray[Any]:
        """Returns the next ``count`` values. Raises MalformedError if there are fewer."""
        size = np.dtype(dtype).itemsize
        flat = np.frombuffer(self._payload.read(count * size), np.uint8)
        return np.array(flat.reshape(size, count).T, order="C").view(dtype).reshape(count)


def arrays_packed(*arrays: npt.NDArray[Any]) -> bytes:
    """Returns several arrays of known types in compressed form, with their lengths."""
    lengths = struct.pack(f"<{len(arrays)}I", *map(len, arrays))
    return packed(b"".join([lengths, *map(_shuffled, arrays)]))


def arrays_unpacked(
    data: bytes, *dtypes: type[np.generic], budget: UnpackBudget
) -> list[npt.NDArray[Any]]:
    """Restores arrays from ``arrays_packed``, within the budget. Raises MalformedError."""
    payload = Inflater(data)
    lengths = struct.unpack(f"<{len(dtypes)}I", payload.read(4 * len(dtypes)))
    sizes = [np.dtype(dtype).itemsize for dtype in dtypes]
    budget.spend(sum(size * length for size, length in zip(sizes, lengths, strict=True)))
    pieces = _Pieces(payload, budget)
    found = [pieces.read_array(*each) for each in zip(dtypes, lengths, strict=True)]
    payload.finish()
    return found
