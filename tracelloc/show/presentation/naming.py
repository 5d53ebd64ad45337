"""Names the stacks of snapshots: frames with names, hidden frames, and short titles."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Final, Protocol

from tracelloc.model.codefiles import CodeModule, CodePlace, Unresolved, base_name
from tracelloc.model.frames import Frame, unnamed
from tracelloc.model.process import Target
from tracelloc.model.stacks import NO_STACK
from tracelloc.show.analysis.locations import Locations
from tracelloc.show.filters import Filters, NamedStack
from tracelloc.show.presentation.shortnames import shorten
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import printable

# How long a report waits for names and lines; later reports have those that take longer.
REPORT_PATIENCE_S: Final = 2.0
_GENERATED: Final = f"[{Unresolved.ANONYMOUS.value}]"


def frame_name(frame: Frame) -> str:
    """Returns the symbol, or ``module+0xoffset``, or the bare address."""
    if frame.symbol is not None:
        return frame.symbol
    if frame.module is not None and frame.module_offset is not None:
        return f"{base_name(frame.module)}+0x{frame.module_offset:x}"
    return f"0x{frame.address:x}"


def stack_title(stack: NamedStack, index: int, *, with_line: bool = False) -> str:
    """Formats ``innermost ← next``, with ``with_line`` ``innermost (file:line) ← next``; unsafe."""
    if not stack.frames:
        return "[no call stack]" if index == NO_STACK else "[call stack lost]"
    own: list[str] = []
    runs: list[str] = []
    called: list[str] = []
    caller = ""
    first: tuple[Frame, Frame] | None = None
    for name, frame, inner in _functions(stack):
        if frame is None:
            runs.append(name)
            if own:
                caller = caller or name
            else:
                symbol = (inner.symbol or name).replace("(anonymous namespace)::", "")
                called.append(shorten(symbol))
            continue
        first = first or (frame, inner)
        if caller and frame.module != "[Python]":
            break
        # What Python has called says less than the function of Python.
        caller = ""
        if not own or own[-1] != name:
            own.append(name)
        if len(own) == 2:
            break
    if caller:
        own.append(caller)
    names = own or runs[:2]
    if called and own and own[0] == _GENERATED:
        # What it calls says more: behind the runtime's entry, the last run before it.
        names = [called[-2] if len(called) > 1 else runs[0], own[0]]
    line = "" if first is None or not with_line else _place(*first)
    if line:
        names = [f"{names[0]} ({line})", *names[1:]]
    return " ← ".join(names)


def _functions(stack: NamedStack) -> Iterator[tuple[str, Frame | None, Frame]]:
    """Yields (name, frame, innermost frame that it stands for); collapsed runs have no frame.

    A function stands for the unnamed functions of the same file that it calls.
    """
    nameless: Frame | None = None
    for part in stack.parts():
        frame = part.frame
        if frame is None:
            continue
        if nameless is not None and (part.label or frame.module != nameless.module):
            yield _name_of(nameless), nameless, nameless
            nameless = None
        if part.label is not None:
            yield f"[{part.label}]", None, frame
        elif frame.symbol is None:
            nameless = nameless or frame
        else:
            yield shorten(frame.symbol), frame, nameless or frame
            nameless = None
    if nameless is not None:
        yield _name_of(nameless), nameless, nameless


def _name_of(nameless: Frame) -> str:
    # Addresses of generated code tell nothing, and change.
    return _GENERATED if nameless.reason is Unresolved.ANONYMOUS else frame_name(nameless)


def _place(frame: Frame, inner: Frame) -> str:
    """Formats the source line; ``via +0xoffset`` if an unnamed callee allocates."""
    if frame is not inner and inner.module_offset is not None:
        return f"via +0x{inner.module_offset:x}"
    return source_place(frame)


def where(frame: Frame) -> str:
    """Formats the known part of a frame's place: `` in FILE (file:line)``."""
    text = f" in {printable(frame.module)}" if frame.module else ""
    if frame.file:
        text += f" ({printable(frame.file)}{'' if frame.line is None else f':{frame.line}'})"
    return text


def source_place(frame: Frame) -> str:
    """Formats ``file:line`` without directories; empty if unknown."""
    if frame.file is None or frame.line is None:
        return ""
    return f"{base_name(frame.file)}:{frame.line}"


class Symbols(Protocol):
    """Names of addresses: a ``Symbolizer``, or several merged."""

    @property
    def version(self) -> int:
        """A number that grows with every frame that becomes known or is improved."""

    @property
    def waiting(self) -> int:
        """Number of addresses being looked up."""

    def prepare(self, addresses: Iterable[int], timeout_s: float | None = None) -> bool:
        """Looks up return addresses and waits. Returns whether all are known."""

    def peek(self, addresses: Iterable[int]) -> list[Frame]:
        """Returns the frames of return addresses, in order; placeholders of unknown ones."""

    def place(self, address: int) -> CodePlace[CodeModule] | Unresolved:
        """Returns the place of a code address, or why it is unknown."""


class SymbolSource(Protocol):
    """The names of all processes of a trace."""

    def symbols_of(self, number: int) -> Symbols:
        """Returns the names of a process, by its number in the trace."""


class Namer:
    """Names the stacks of snapshots. For one thread at a time."""

    def __init__(self, symbols: Symbols, filters: Filters) -> None:
        self.symbols = symbols
        # The filters; the thread that uses the namer may change them at any time
        self.filters = filters
        self.patience_s = REPORT_PATIENCE_S  # How long reports wait for names
        self._stacks: dict[int, tuple[tuple[int, ...], tuple[int, int], NamedStack]] = {}

    def copy(self) -> Namer:
        """Returns a copy with its own filters, for another thread."""
        return Namer(self.symbols, self.filters.copy())

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes whenever a stack may look different."""
        return self.symbols.version, self.filters.version

    def prepare(
        self, snapshot: Snapshot, indices: Iterable[int], timeout_s: float | None = None
    ) -> bool:
        """Looks up several stacks' names, for ``timeout_s``. Returns whether that is complete."""
        addresses = {address for index in indices for address in snapshot.frames(index)}
        return self.symbols.prepare(addresses, timeout_s)

    def stack(self, snapshot: Snapshot, index: int) -> NamedStack:
        """Returns the stack with an index, with the names known now and its frames filtered."""
        addresses = snapshot.frames(index)
        version = self.version
        known = self._stacks.get(index)
        if known is not None and known[0] == addresses and known[1] == version:
            return known[2]
        frames = self.symbols.peek(addresses)
        if addresses and (why := snapshot.why_partial(index)) is not None:
            frames.append(Frame(0, f"[partial: {why}]", None, None, None, None, None))
        stack = self.filters.apply(frames, index)
        self._stacks[index] = addresses, version, stack
        return stack


class Namers:
    """One namer per process. For one thread at a time; each thread has its own copy."""

    def __init__(self, symbolizers: SymbolSource, filters: Filters) -> None:
        # Filters of all namers; the thread that uses the namers may change them
        self.filters = filters
        self._end_s = 0.0
        self.patience_s = REPORT_PATIENCE_S
        self._symbolizers = symbolizers
        self._namers: dict[int, Namer] = {}

    @property
    def patience_s(self) -> float:
        """Remaining seconds to wait for names of all processes, counted from when it is set."""
        return max(0.0, self._end_s - time.monotonic())

    @patience_s.setter
    def patience_s(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds

    def namer_of(self, target: Target) -> Namer:
        """Returns the namer of a process, which waits at most the current ``patience_s``."""
        number = target.number
        if number not in self._namers:
            self._namers[number] = Namer(self._symbolizers.symbols_of(number), self.filters)
        namer = self._namers[number]
        namer.patience_s = self.patience_s
        return namer

    def copy(self) -> Namers:
        """Returns a copy with copied filters, for another thread."""
        return self.with_filters(self.filters.copy())

    def with_filters(self, filters: Filters) -> Namers:
        return Namers(self._symbolizers, filters)


class MergedSymbols:
    """The ``Symbols`` of addresses of ``Locations``, from processes that map the places."""

    def __init__(self, locations: Locations, namer_of: Callable[[Target], Namer]) -> None:
        self._locations = locations
        self._namer_of = namer_of
        self._asked: dict[int, Symbols] = {}  # Symbols by process

    @property
    def version(self) -> int:
        return sum(symbols.version for symbols in list(self._asked.values()))

    @property
    def waiting(self) -> int:
        return sum(symbols.waiting for symbols in list(self._asked.values()))

    def place(self, _address: int) -> Unresolved:
        """Returns no place: processes map different files at the same address."""
        return Unresolved.UNMAPPED

    def _owned(self, address: int) -> tuple[Symbols | None, int, int]:
        """Returns (symbols of a process that maps an address, or None; the address there)."""
        found = self._locations.owner(address)
        if found is None:
            return None, address, address
        target, own = found
        symbols = self._asked.get(target.number)
        if symbols is None:
            symbols = self._asked[target.number] = self._namer_of(target).symbols
        return symbols, own, address

    def prepare(self, addresses: Iterable[int], timeout_s: float | None = None) -> bool:
        wanted: dict[Symbols, list[int]] = {}
        for symbols, own, _ in map(self._owned, addresses):
            if symbols is not None:
                wanted.setdefault(symbols, []).append(own)
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        is_known = True
        for symbols, owns in wanted.items():
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            is_known &= symbols.prepare(owns, left_s)
        return is_known

    def peek(self, addresses: Iterable[int]) -> list[Frame]:
        frames: list[Frame] = []
        for symbols, group in itertools.groupby(map(self._owned, addresses), itemgetter(0)):
            places = list(group)
            if symbols is None:
                frames += (unnamed(at, None, None, Unresolved.UNMAPPED) for _, _, at in places)
                continue
            shown = {own: address for _, own, address in places if own != address}
            for frame in symbols.peek(own for _, own, _ in places):
                at = shown.get(frame.address)
                frames.append(frame if at is None else replace(frame, address=at))
        return frames
