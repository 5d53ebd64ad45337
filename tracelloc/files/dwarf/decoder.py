"""Chains of source frames from a file's own debug information."""

import os.path
from collections.abc import Sequence
from typing import Final

from tracelloc.files.dwarf.forms import DAMAGE, reason_of
from tracelloc.files.dwarf.info import DebugInfo, DebugUnit
from tracelloc.files.dwarf.inlines import InlineReader
from tracelloc.files.dwarf.lineprogram import Chain, LineIndex, SourceFrame
from tracelloc.files.dwarf.variables import SourcePlace, VariableReader
from tracelloc.files.elf import ElfFile
from tracelloc.files.elf.sections import SectionError

# Work granted per address: content dropped from the caches has to be decoded again.
_STEPS_PER_ADDRESS: Final = 1 << 12


class DwarfDecoder:
    """Decodes chains of source frames from a file's own debug information. Not thread-safe."""

    def __init__(self, info: DebugInfo) -> None:
        self._info = info
        self._lines = LineIndex(info)
        self._inlines = InlineReader(info)
        self._variables = VariableReader(info, self._lines.file_name)
        # Per address of the last call of `chains`: the .dwo file with its functions, or None
        self.split_paths: list[str | None] = []

    @property
    def reason(self) -> str | None:
        """Why some debug information is missing, for users; None if it is complete."""
        return self._info.damaged or self._info.elsewhere

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """Returns one chain of source frames per address, empty if unknown. Never raises."""
        found: list[Chain] = [()] * len(addresses)
        self._info.budget.grant(_STEPS_PER_ADDRESS * len(addresses))
        self.split_paths = [None] * len(addresses)
        # Sorted by unit, so that caches have to drop less.
        units = [
            (unit.offset, address, n, unit)
            for n, (address, unit) in enumerate(
                zip(addresses, self._lines.units(addresses), strict=True)
            )
            if unit is not None
        ]
        for _, address, n, unit in sorted(units, key=lambda item: item[:2]):
            self.split_paths[n] = _split_path(unit)
            found[n] = self._chain(unit, address)
        return found

    def variables(self, addresses: Sequence[int]) -> list[SourcePlace]:
        """Returns where the variables at these addresses are declared. Never raises."""
        return self._variables.places(addresses)

    def _chain(self, unit: DebugUnit, address: int) -> Chain:
        file, line = self._lines.line_in(unit, address)
        frames: list[SourceFrame] = []
        for call in self._inlines.chain(unit, address):
            frames.append(SourceFrame(call.name, file, line, inlined=True))
            file = line = None
            if call.call_file is not None:
                file, line = self._file_name(unit, call.call_file), call.call_line
        if frames:
            last = frames[-1]
            frames[-1] = SourceFrame(last.function, last.file, last.line, inlined=False)
        elif file is not None:
            frames.append(SourceFrame(None, file, line, inlined=False))
        return tuple(frames)

    def _file_name(self, unit: DebugUnit, number: int) -> str | None:
        try:
            return self._lines.file_name(unit, number)
        except DAMAGE as error:
            self._info.blame(reason_of(error))
            return None


def _split_path(unit: DebugUnit) -> str | None:
    """Returns the .dwo file with a unit's functions; None if the file has them. Never raises."""
    try:
        root = unit.root
    except DAMAGE:
        return None
    if root.split_name is None or root.has_children:
        return None
    return os.path.join(root.comp_dir, root.split_name)  # noqa: PTH118 - a name, as it is


def open_decoder(elf: ElfFile) -> DwarfDecoder | str:
    """Returns a decoder for a file's debug information, or why there is none, for users."""
    try:
        info = DebugInfo(elf)
    except SectionError as error:
        return str(error)
    if info.line is None or info.info is None:
        return "the file has no debug information"
    return DwarfDecoder(info)
