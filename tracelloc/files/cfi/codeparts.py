"""The parts into which a compiler has split a function.

Rarely executed code lies elsewhere (``.cold``), and stripped files have no symbol for it. But the
function jumps there conditionally, and the call-frame information identifies the part: it has a
frame at its first byte, as no function has.
"""

from __future__ import annotations

import re
from typing import Final

from tracelloc.architecture.x86_64 import X86_64
from tracelloc.files.cfi.module import Cfi
from tracelloc.files.cfi.reasons import CfiError
from tracelloc.files.cfi.rules import RSP
from tracelloc.files.elf import ElfFile

_JUMP: Final = re.compile(rb"\x0f(?=[\x80-\x8f])", re.DOTALL)
"""jcc with 4 bytes of distance: 0F 8x."""
_JUMP_BYTES: Final = 6
_RETURN_ADDRESS_BYTES: Final = X86_64.return_address_bytes


def function_parts(elf: ElfFile, cfi: Cfi | None, name: str) -> list[range]:
    """The parts of a function, by the file's own addresses; none if it has no symbol.

    No part is larger than the file, whatever its symbol says.
    """
    parts = [
        range(start, start + min(size, elf.size_bytes))
        for each in (name, f"{name}.cold")
        for start, size in elf.find_functions([each]).get(each, {}).items()
    ]
    if len(parts) == 1 and cfi is not None:
        offset = elf.offset_of(parts[0].start)
        code = elf.read(offset, len(parts[0])) if offset is not None else b""
        found = {part for target in _targets(code, parts[0]) if (part := _part(cfi, target))}
        parts += sorted(found, key=lambda part: part.start)
    return parts


def _targets(code: bytes, function: range) -> set[int]:
    """Targets of conditional jumps out of a function; some may not be real."""
    found = set()
    for match in _JUMP.finditer(code):
        at = match.start()
        distance = code[at + 2 : at + _JUMP_BYTES]
        target = function.start + at + _JUMP_BYTES + int.from_bytes(distance, "little", signed=True)
        if target not in function:
            found.add(target)
    return found


def _part(cfi: Cfi, target: int) -> range | None:
    """The part that contains an address, unless it is a function itself."""
    part = cfi.part_at(target)
    if part is None:
        return None
    try:
        rules = cfi.rules(part.start)
    except CfiError:
        return None
    is_function = (rules.cfa_register, rules.cfa_offset) == (RSP, _RETURN_ADDRESS_BYTES)
    return None if is_function else part
