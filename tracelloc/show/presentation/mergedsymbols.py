"""Names of code in a merged snapshot, each from a process that maps the place."""

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import itemgetter

from tracelloc.model.codefiles import Unresolved
from tracelloc.model.frames import Frame, unnamed
from tracelloc.model.process import Target
from tracelloc.show.analysis.locations import Locations
from tracelloc.show.presentation.naming import Namer, Symbols


class MergedSymbols:
    """The ``Symbols`` of addresses of ``Locations``, from processes that map the places."""

    def __init__(self, locations: Locations, namer_of: Callable[[Target], Namer]) -> None:
        self._locations = locations
        self._namer_of = namer_of
        self._asked: dict[int, Symbols] = {}  # Symbols by process

    @property
    def version(self) -> int:
        """A number that changes whenever a frame may look different."""
        return sum(symbols.version for symbols in list(self._asked.values()))

    @property
    def waiting(self) -> int:
        """Number of addresses that are still to be looked up."""
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
        """Looks up addresses and waits. Returns whether the lookup is complete."""
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
        """Returns the frames of addresses, with the names known now."""
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
