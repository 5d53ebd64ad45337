"""Code locations that several processes share, as addresses in one synthetic address space.

A place is a file and an offset in it; any number of processes may map the file, at any
address. Code outside of files belongs to one process alone.
"""

from collections.abc import Callable
from typing import Final

from tracelloc.dataclass import dataclass, field
from tracelloc.model.codefiles import CodeModule, CodePlace, Unresolved
from tracelloc.model.frames import is_runtime_frame
from tracelloc.model.process import Target
from tracelloc.model.stacks import Frames

# Returns the place of a code address in a process.
PlaceOf = Callable[[Target, int], CodePlace[CodeModule] | Unresolved]

_PAGE_BITS: Final = 12
# First synthetic address, beyond all programs: for places whose own address is taken.
_FIRST_MADE_UP: Final = 1 << 63

# The file of lines that a runtime has named; all processes share them.
_INTERPRETED: Final = "interpreted"

# A file, or a program of a process, and the offset in it of the byte before the address.
_Key = tuple[object, int]


@dataclass(slots=True)
class _Code:
    """The mappings of one program that a process has executed, and translated addresses."""

    target: Target
    # File, and the difference from address to file offset, by page of memory.
    pages: dict[int, tuple[CodeModule, int]] = field(default_factory=dict)
    # Difference from file offset to address, by file id and page of the file.
    starts: dict[tuple[int, int], int] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)  # Cache of translated addresses


class Locations:
    """Gives places synthetic addresses, which never change; any thread may ask for owners."""

    def __init__(self, place_of: PlaceOf) -> None:
        self._place_of = place_of
        self._codes: dict[int, _Code] = {}  # Programs by process number
        self._address_of: dict[_Key, int] = {}
        # (place, a program that contains it, its address there), by address
        self._owners: dict[int, tuple[_Key, _Code, int]] = {}

    def begin(self, target: Target) -> None:
        """Prepares for ``translate``, as the process may have executed another program."""
        code = self._codes.get(target.number)
        if code is None or code.target.exec_count != target.exec_count:
            self._codes[target.number] = _Code(target)

    def end(self, target: Target) -> None:
        self._codes[target.number].known = {}

    def translate(self, target: Target, frames: Frames) -> Frames:
        """Returns a process's return addresses as synthetic addresses of their places."""
        code = self._codes[target.number]
        known = code.known
        for frame in frames:
            if frame not in known:
                known[frame] = self._address(code, frame)
        return tuple(map(known.__getitem__, frames))

    def _address(self, code: _Code, own: int) -> int:
        key = self._key(code, own)
        address = self._address_of.get(key)
        if address is None:
            # If no other place has the address, it stays as users know it.
            address = own if own not in self._owners else _FIRST_MADE_UP + len(self._owners)
            self._owners[address] = key, code, own
            self._address_of[key] = address
        return address

    def _key(self, code: _Code, own: int) -> _Key:
        if is_runtime_frame(own):
            return _INTERPRETED, own
        # The return address itself may lie just past the end of the mapping.
        before = own - 1
        found = code.pages.get(before >> _PAGE_BITS)
        if found is None:
            place = self._place_of(code.target, before)
            if not isinstance(place, CodePlace) or place.module is None:
                return (code.target.number, code.target.exec_count), own
            found = place.module, place.file_offset - before
            code.pages[before >> _PAGE_BITS] = found
            page = id(place.module), place.file_offset >> _PAGE_BITS
            code.starts[page] = before - place.file_offset
        module, shift = found
        return id(module), before + shift

    def owner(self, address: int) -> tuple[Target, int] | None:
        """Returns a process that still maps a place, and the place's address there."""
        key, code, own = self._owners[address]
        if key[0] is _INTERPRETED:
            return code.target, own
        if self._codes.get(code.target.number) is not code:
            # The owner has executed another program since; another process may map the same file.
            file, offset = key
            for other in list(self._codes.values()):
                start = other.starts.get((file, offset >> _PAGE_BITS))  # type: ignore[arg-type]
                if start is not None:
                    code, own = other, offset + start + 1
                    self._owners[address] = key, code, own
                    break
            else:
                return None
        return code.target, own
