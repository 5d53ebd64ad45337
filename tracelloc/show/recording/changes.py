"""One moment as bytes: all of it, or how it differs from the moment before.

A moment has facts (plain values by name) and, per process, tables: a row per figure, a column
per stack, 64 bits each. Of a table, only the columns that have changed are kept, as differences
modulo 2**64, with the bytes of equal weight side by side, which is what zlib makes small. Floats
are differences of their bits, so everything comes back exactly.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.errors import MalformedError
from tracelloc.system.bounded import Inflater, UnpackBudget, parse_json

I64 = npt.NDArray[np.int64]
Facts = dict[str, Any]
"""Plain values by name."""
ProcessKey = tuple[int, int]
"""Number of the process in the trace, and how many programs it has begun."""

LARGEST_BYTES: Final = 1 << 28
"""Largest moment, unpacked: a million stacks take less."""
_LARGEST_HEAD: Final = 64 << 20
_MOST_COLUMNS: Final = 1 << 24
_LEVEL: Final = 1
"""Level of zlib: higher ones take more time to save little, see docs/recordings.md."""
_HEAD: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """One process at one moment."""

    facts: Facts
    tables: dict[str, I64]
    """By name; the shape is (figures, stacks)."""


@dataclass(frozen=True, slots=True)
class MomentParts:
    """All processes at one moment. Nothing in it is changed later."""

    facts: Facts = field(default_factory=dict)
    processes: dict[ProcessKey, ProcessParts] = field(default_factory=dict)


_NO_PROCESS: Final = ProcessParts({}, {})
NOTHING: Final = MomentParts()
"""What the first moment of a group is the difference from."""
ANCHORS: Final = 8
"""Moments of a group from one anchor to the next, see ``MomentChain``."""


class MomentChain:
    """The moments of a group one by one, and which one each is the difference from.

    The first one is whole. Each ``ANCHORS``-th is an anchor, the difference from the anchor
    before, so that the way to a moment is short; the others differ from the one before.
    """

    def __init__(self) -> None:
        self._count = 0
        self._anchor = self._last = NOTHING

    @property
    def base(self) -> MomentParts:
        """What the next moment is the difference from."""
        return self._last if self._count % ANCHORS else self._anchor

    def add(self, now: MomentParts) -> None:
        """Goes on to the next moment."""
        if self._count % ANCHORS == 0:
            self._anchor = now
        self._last = now
        self._count += 1

    @staticmethod
    def path(rank: int) -> list[int]:
        """Ranks in the group of the moments to apply to nothing, to get to one of them."""
        anchor = rank - rank % ANCHORS
        return [*range(0, anchor, ANCHORS), *range(anchor, rank + 1)]


def packed(payload: bytes) -> bytes:
    """Compressed bytes."""
    return zlib.compress(payload, _LEVEL)


def encode(now: MomentParts, before: MomentParts) -> bytes:
    """How a moment differs from the one before; from an empty one, all of it."""
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
    """The moment of which ``data`` is the difference from the one before. Raises MalformedError."""
    payload = Inflater(data)
    try:
        (size,) = _HEAD.unpack(payload.read(_HEAD.size))
        if size > _LARGEST_HEAD:
            raise ValueError("a moment's head is too large")
        head = parse_json(payload.read(size), LARGEST_BYTES)
        pieces = _Pieces(payload, UnpackBudget(LARGEST_BYTES))
        processes = {}
        for number, programs, facts, shapes in head["processes"]:
            key = int(number), int(programs)
            was = before.processes.get(key, _NO_PROCESS)
            tables = {
                str(name): _table(pieces, shape, was.tables.get(name))
                for name, shape in shapes.items()
            }
            processes[key] = ProcessParts(_applied(facts, was.facts), tables)
        payload.finish()
        return MomentParts(_applied(head["facts"], before.facts), processes)
    except (
        ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError,
        RecursionError, struct.error,
    ) as error:  # fmt: skip
        raise MalformedError(f"a moment is damaged ({type(error).__name__})") from error


def _changed(now: Facts, before: Facts) -> dict[str, Any]:
    """Facts that are new or differ, and which are there no more."""
    gone = [name for name in before if name not in now]
    news = {n: fact for n, fact in now.items() if n not in before or before[n] != fact}
    return {"set": news, "gone": gone} if gone else {"set": news}


def _applied(change: dict[str, Any], before: Facts) -> Facts:
    facts: Facts = before | change["set"]
    for name in change.get("gone", ()):
        facts.pop(name, None)
    return facts


def _difference(now: I64, before: I64 | None) -> tuple[I64, I64]:
    """The columns that differ, and by how much; what was not there before was 0."""
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
    pieces.budget.take(figures * width * 8)
    columns = np.cumsum(pieces.take(np.uint32, count), dtype=np.int64)
    if count and columns[-1] >= width:
        raise ValueError("a column's number")
    change = pieces.take(np.int64, figures * count).reshape(figures, count)
    if before is not None and before.shape == (figures, width):
        # What most moments are: as many stacks as before.
        if count == width:
            change += before
            return change
        table = before.copy()
    else:
        table = np.zeros((figures, width), np.int64)
        if before is not None and len(before) == figures:
            both = min(width, before.shape[1])
            table[:, :both] = before[:, :both]
    table[:, columns] += change
    return table


def _shuffled(array: npt.NDArray[Any]) -> bytes:
    """Bytes of an array, those of equal weight side by side."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(len(flat), flat.itemsize).T.tobytes()


class _Pieces:
    """Reads arrays that ``_shuffled`` wrote, one after the other."""

    def __init__(self, payload: Inflater, budget: UnpackBudget) -> None:
        """``budget``: for all that is made of them; taken from by whoever makes it."""
        self._payload = payload
        self.budget = budget

    def take(self, dtype: type[np.generic], count: int) -> npt.NDArray[Any]:
        """The next ``count`` values. Raises MalformedError if there are fewer."""
        size = np.dtype(dtype).itemsize
        flat = np.frombuffer(self._payload.read(count * size), np.uint8)
        return np.array(flat.reshape(size, count).T, order="C").view(dtype).reshape(count)


def arrays_packed(*arrays: npt.NDArray[Any]) -> bytes:
    """Several arrays of known types, compressed; their lengths come first."""
    lengths = struct.pack(f"<{len(arrays)}I", *map(len, arrays))
    return packed(b"".join([lengths, *map(_shuffled, arrays)]))


def arrays_unpacked(
    data: bytes, *dtypes: type[np.generic], budget: UnpackBudget
) -> list[npt.NDArray[Any]]:
    """What ``arrays_packed`` got, for memory of this budget. Raises MalformedError."""
    payload = Inflater(data)
    lengths = struct.unpack(f"<{len(dtypes)}I", payload.read(4 * len(dtypes)))
    sizes = [np.dtype(dtype).itemsize for dtype in dtypes]
    budget.take(sum(size * length for size, length in zip(sizes, lengths, strict=True)))
    pieces = _Pieces(payload, budget)
    found = [pieces.take(*each) for each in zip(dtypes, lengths, strict=True)]
    payload.finish()
    return found
