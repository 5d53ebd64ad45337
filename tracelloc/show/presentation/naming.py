"""Stacks by name: their frames, and which of them are hidden."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Final, Protocol

from tracelloc.files.demangle.short import shorten
from tracelloc.model.codefiles import CodeModule, Place, Unresolved, base_name
from tracelloc.model.frames import Frame, unnamed
from tracelloc.model.process import Target
from tracelloc.show.analysis.locations import Locations
from tracelloc.show.filters import Filters, NamedStack
from tracelloc.snapshots.snapshot import Snapshot

__all__ = ["NamedStack", "Namer", "Namers"]

REPORT_PATIENCE_S: Final = 2.0
"""How long a report waits for names and lines; those that take longer are in later ones."""


def frame_name(frame: Frame) -> str:
    """The symbol, or ``module+0xoffset``, or the bare address."""
    if frame.symbol is not None:
        return frame.symbol
    if frame.module is not None and frame.module_offset is not None:
        return f"{base_name(frame.module)}+0x{frame.module_offset:x}"
    return f"0x{frame.address:x}"


class Symbols(Protocol):
    """Names of addresses: a ``Symbolizer``, or several as one."""

    @property
    def version(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def prepare(self, addresses: Iterable[int], timeout_s: float | None = None) -> bool: ...
    def peek(self, addresses: Iterable[int]) -> list[Frame]: ...
    def place(self, address: int) -> Place[CodeModule] | Unresolved: ...


class SymbolSource(Protocol):
    """Names of each process of a trace."""

    def of(self, number: int) -> Symbols:
        """Names in a process, by its number in the trace."""


class Namer:
    """Names the stacks of snapshots. For one thread at a time."""

    def __init__(self, symbols: Symbols, filters: Filters, *, short_names: bool = False) -> None:
        """``short_names`` leaves template arguments out of symbols, not of raw symbols."""
        self.symbols = symbols
        self.filters = filters
        """May be changed at any time, from the thread that asks for stacks."""
        self.patience_s = REPORT_PATIENCE_S
        """How long reports wait for names."""
        self._short_names = short_names
        self._stacks: dict[int, tuple[tuple[int, ...], tuple[int, int], NamedStack]] = {}

    def copy(self) -> Namer:
        """A copy with its own filters, for another thread."""
        return Namer(self.symbols, self.filters.copy(), short_names=self._short_names)

    def with_symbols(self, symbols: Symbols) -> Namer:
        """Names from elsewhere under the same rules, for the same thread."""
        return Namer(symbols, self.filters, short_names=self._short_names)

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever a stack may look different from before."""
        return self.symbols.version, self.filters.version

    @property
    def waiting(self) -> int:
        """How many addresses are still to be looked up."""
        return self.symbols.waiting

    def place(self, address: int) -> Place[CodeModule] | Unresolved:
        """Where an address of code lies, or why that can't be said."""
        return self.symbols.place(address)

    def prepare(
        self, snapshot: Snapshot, indices: Iterable[int], timeout_s: float | None = None
    ) -> bool:
        """Has all these stacks looked up together, which is quicker than one by one.

        Waits for it, at most ``timeout_s``. Whether all is known that can be.
        """
        addresses = {address for index in indices for address in snapshot.frames(index)}
        return self.symbols.prepare(addresses, timeout_s)

    def stack(self, snapshot: Snapshot, index: int) -> NamedStack:
        """The stack with this index, as far as it is known by now."""
        addresses = snapshot.frames(index)
        version = self.version
        known = self._stacks.get(index)
        if known is not None and known[0] == addresses and known[1] == version:
            return known[2]
        frames = self.symbols.peek(addresses)
        why = snapshot.why_partial(index) if addresses else None
        if why is not None:
            frames.append(_end_of_partial(why))
        stack = self.filters.apply(frames, index)
        if self._short_names:
            stack = replace(stack, frames=[_shortened(frame) for frame in stack.frames])
        self._stacks[index] = addresses, version, stack
        return stack


def _end_of_partial(why: str) -> Frame:
    """A frame that stands for those missing at the outer end."""
    name = f"[partial: {why}]"
    return Frame(0, name, None, None, None, None, None)


@functools.lru_cache(maxsize=1 << 16)
def _shortened(frame: Frame) -> Frame:
    return frame if frame.symbol is None else replace(frame, symbol=shorten(frame.symbol))


class MergedSymbols:
    """Names of the addresses of ``Locations``: whichever process has the place is asked."""

    def __init__(self, locations: Locations, namer_of: Callable[[Target], Namer]) -> None:
        self._locations = locations
        self._namer_of = namer_of
        self._asked: dict[int, Symbols] = {}
        """By process."""

    @property
    def version(self) -> int:
        """Changes whenever a frame may look different from before."""
        return sum(symbols.version for symbols in list(self._asked.values()))

    @property
    def waiting(self) -> int:
        """How many addresses are still to be looked up."""
        return sum(symbols.waiting for symbols in list(self._asked.values()))

    def place(self, _address: int) -> Unresolved:
        """No place: different processes have different files at an address."""
        return Unresolved.UNMAPPED

    def _owned(self, address: int) -> tuple[Symbols | None, int, int]:
        """The symbolizer of an address, and the address there; None: no process has it any more."""
        found = self._locations.owner(address)
        if found is None:
            return None, address, address
        target, own = found
        symbols = self._asked.get(target.number)
        if symbols is None:
            symbols = self._asked[target.number] = self._namer_of(target).symbols
        return symbols, own, address

    def prepare(self, addresses: Iterable[int], timeout_s: float | None = None) -> bool:
        """Has these looked up, and waits for it. Whether all are."""
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
        """The frames of these addresses, as far as they are known by now."""
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


class Namers:
    """One per process. For one thread at a time; each thread has its own copy."""

    def __init__(self, symbolizers: SymbolSource, filters: Filters, *, short_names: bool) -> None:
        """See ``Namer``."""
        self.filters = filters
        """Filters of all namers; may be changed from the thread that uses the namers."""
        self._end_s = 0.0
        self.patience_s = REPORT_PATIENCE_S
        self._symbolizers = symbolizers
        self._short_names = short_names
        self._namers: dict[int, Namer] = {}

    @property
    def patience_s(self) -> float:
        """How long it may still be waited for names, of all processes together.

        From its being set on, it grows less.
        """
        return max(0.0, self._end_s - time.monotonic())

    @patience_s.setter
    def patience_s(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds

    def of(self, target: Target) -> Namer:
        """The namer of a process, which waits no longer than ``patience_s`` is now."""
        number = target.number
        namer = self._namers.get(number)
        if namer is None:
            symbolizer = self._symbolizers.of(number)
            namer = Namer(symbolizer, self.filters, short_names=self._short_names)
            self._namers[number] = namer
        namer.patience_s = self.patience_s
        return namer

    def copy(self) -> Namers:
        """Others under the same rules, for another thread."""
        return Namers(self._symbolizers, self.filters.copy(), short_names=self._short_names)
