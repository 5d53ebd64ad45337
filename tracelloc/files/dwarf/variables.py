"""Where a file's variables with a fixed address are declared.

DWARF 5, 2.6.1.1.3 (``DW_OP_addr``), 4.1 (variables) and 2.14 (declaration coordinates).
"""

from collections.abc import Callable, Sequence
from typing import Final

from tracelloc.files.dwarf import abbrev, forms
from tracelloc.files.dwarf.abbrev import attributes_of
from tracelloc.files.dwarf.forms import DAMAGE, U64, Value, reason_of, uleb
from tracelloc.files.dwarf.info import DebugInfo, DebugUnit
from tracelloc.files.dwarf.inlines import Attributes, EntryWalker, number_of

_OP_ADDR: Final = 0x03
_OP_ADDRX: Final = 0xA1
_LARGEST_INFO_BYTES: Final = 64 << 20  # Reading more would take more than some seconds
_MOST_VARIABLES: Final = 1 << 18
_LONGEST_CHAIN: Final = 4  # Most references followed from a definition to its declaration

SourcePlace = tuple[str | None, int | None]  # Source file and line; None if unknown
FileNameOf = Callable[[DebugUnit, int], str | None]  # Path by number in a unit


class VariableReader:
    """Looks up variables by address. Not thread-safe; the first lookup reads all units."""

    def __init__(self, info: DebugInfo, file_name: FileNameOf) -> None:
        self._info = info
        self._file_name = file_name
        # The unit, file number and line of each variable, by its address
        self._found: dict[int, tuple[DebugUnit, int, int]] | None = None

    def places(self, addresses: Sequence[int]) -> list[SourcePlace]:
        if self._found is None:
            self._found = {}
            if self._info.info is not None and self._info.info.size <= _LARGEST_INFO_BYTES:
                self._read_all(self._found)
        return [self._place(self._found.get(address)) for address in addresses]

    def _place(self, found: tuple[DebugUnit, int, int] | None) -> SourcePlace:
        if found is None:
            return None, None
        unit, file, line = found
        path = self._file_name(unit, file)
        return path, (line or None) if path else None

    def _read_all(self, found: dict[int, tuple[DebugUnit, int, int]]) -> None:
        for unit in self._info.units:
            if not unit.may_hold_code:
                continue
            self._info.budget.grant(unit.size)
            try:
                for attributes in EntryWalker(unit).variables():
                    address = self._address(unit, attributes[abbrev.AT_LOCATION])
                    if address is not None and len(found) < _MOST_VARIABLES:
                        found.setdefault(address, self._declared(unit, attributes))
            except DAMAGE as error:
                self._info.blame(reason_of(error))

    def _address(self, unit: DebugUnit, location: tuple[int, Value]) -> int | None:
        """Returns the fixed address that a location stands for; None if it is computed."""
        content = location[1]
        if not isinstance(content, bytes) or not content:
            return None
        if content[0] == _OP_ADDR and len(content) == 9:
            address: int = U64.unpack_from(content, 1)[0]
            return address
        if content[0] == _OP_ADDRX:
            index, end = uleb(content, 1)
            if end == len(content):
                return self._info.indexed_address(index, unit.root.address_base)
        return None

    def _declared(self, unit: DebugUnit, attributes: Attributes) -> tuple[DebugUnit, int, int]:
        """Returns unit, file number and line of a variable: the definition's, or declaration's."""
        file = line = 0
        for _ in range(_LONGEST_CHAIN):
            file = file or number_of(attributes.get(abbrev.AT_DECL_FILE)) or 0
            line = line or number_of(attributes.get(abbrev.AT_DECL_LINE)) or 0
            names = abbrev.AT_SPECIFICATION, abbrev.AT_ABSTRACT_ORIGIN
            reference = next((attributes[name] for name in names if name in attributes), None)
            if (file and line) or reference is None:
                break
            offset, is_far = number_of(reference) or 0, reference[0] == forms.REF_ADDR
            origin = self._info.unit_at(offset) if is_far else unit
            at = offset - (origin.offset if is_far and origin is not None else 0)
            if origin is None or not origin.first_entry <= at < origin.size:
                break
            unit, data = origin, origin.data()
            code, at = uleb(data, at)
            kind = unit.abbreviations.get(code)
            self._info.budget.spend(8 + len(kind.attributes))
            attributes = attributes_of(data, at, kind, unit.encoding)
        return unit, file, line
