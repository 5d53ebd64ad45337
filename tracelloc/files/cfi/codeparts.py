"""The parts into which a compiler has split a function.

Rarely executed code lies elsewhere (``.cold``), and stripped files have no symbol for it. But the
function jumps there (on x86-64, conditionally), and the call-frame information identifies the
part: it has a frame at its first byte, as no function has.
"""

from __future__ import annotations

from tracelloc.files.cfi.module import Cfi
from tracelloc.files.cfi.reasons import CfiError
from tracelloc.files.elf import ElfFile


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
        targets = cfi.architecture.jump_targets(code, parts[0].start)
        outside = (target for target in targets if target not in parts[0])
        found = {part for target in outside if (part := _part(cfi, target))}
        parts += sorted(found, key=lambda part: part.start)
    return parts


def _part(cfi: Cfi, target: int) -> range | None:
    """The part that contains an address, unless it is a function itself."""
    part = cfi.part_at(target)
    if part is None:
        return None
    try:
        rules = cfi.rules(part.start)
    except CfiError:
        return None
    machine = cfi.architecture
    without_frame = machine.dwarf.stack_pointer, machine.return_address_bytes
    is_function = (rules.cfa_register, rules.cfa_offset) == without_frame
    return None if is_function else part
