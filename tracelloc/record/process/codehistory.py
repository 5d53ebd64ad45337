"""Where code was mapped: stacks keep their meaning after libraries are closed.

Addresses in stored stacks belong to the file that was mapped there first. Of a file that is mapped
again elsewhere, stored stacks have the first addresses; of a file that takes the place of another
one, they have artificial ones. So stored stacks are equal wherever a library was loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final

from tracelloc.model.codefiles import FileId, Mapping
from tracelloc.model.stacks import Frames
from tracelloc.record.process.procfs import AddressMap

# Artificial addresses: above all addresses of programs, whose bits they have below a number.
_FIRST_ARTIFICIAL: Final = 1 << 61
_NUMBER_SHIFT: Final = 48
_MOST_NUMBERS: Final = 1 << 13
# Start and end of code, and the difference between its addresses in stored stacks and these
Shift = tuple[int, int, int]


class CodeHistory:
    """The places of all code files that a process has mapped."""

    def __init__(self, like: CodeHistory | None = None) -> None:
        """``like``: that of the process from which this one was forked."""
        # The first mapping of each part of a file, by what identifies it
        self._places: dict[tuple[FileId, int, int], Mapping] = dict(like._places if like else {})
        self._map = AddressMap(self._places.values())
        self._count: int = 0 if like is None else like._count  # Of artificial places

    def shifts_of(
        self, mappings: Iterable[Mapping], build_id: Callable[[Mapping], str | None]
    ) -> list[Shift]:
        """Returns where addresses of code differ in stored stacks, for mappings at one time."""
        shifts, code = [], [m for m in mappings if m.executable and m.is_file]
        now = {mapping.file_id for mapping in code}
        for mapping in code:
            place = self._place_of(mapping, now, build_id)
            if place.start != mapping.start:
                shifts.append((mapping.start, mapping.end, place.start - mapping.start))
        return shifts

    def find(self, address: int) -> Mapping | None:
        """Returns the mapping to which an address in a stored stack belongs; None if unknown."""
        return self._map.find(address)

    def _place_of(
        self, mapping: Mapping, now: Container[FileId], build_id: Callable[[Mapping], str | None]
    ) -> Mapping:
        part = mapping.offset, mapping.end - mapping.start
        place = self._places.get((mapping.file_id, *part))
        if place is not None:
            return place
        # A copy of a file that is mapped as well is another one.
        places = self._places.items()
        alike = [m for (known, *other), m in places if (*other,) == part and known not in now]
        own_id = build_id(mapping) if alike else None
        place = next((m for m in alike if own_id is not None and build_id(m) == own_id), None)
        if place is None:
            place = mapping
            others = self._places.values()
            if any(m.start < mapping.end and mapping.start < m.end for m in others):
                by = _FIRST_ARTIFICIAL + (self._count % _MOST_NUMBERS << _NUMBER_SHIFT)
                place = mapping._replace(start=mapping.start + by, end=mapping.end + by)
                self._count += 1
            self._map = AddressMap([*others, place])
        self._places[mapping.file_id, *part] = place
        return place


def as_stored(frames: Frames, shifts: Sequence[Shift]) -> Frames:
    """Returns return addresses as stored stacks have them."""
    if not shifts:
        return frames
    return tuple(f + next((by for start, end, by in shifts if start < f <= end), 0) for f in frames)
