"""Source lines and inlined functions of one file, from wherever they can be had."""

from __future__ import annotations

import os.path
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tracelloc.dwarf.forms import DAMAGE, reason_of
from tracelloc.dwarf.info import DebugInfo, Unit
from tracelloc.dwarf.inlines import InlineReader
from tracelloc.dwarf.lines import Chain, LineIndex, SourceFrame
from tracelloc.dwarf.pipe import SymbolizerPipe, reachable_path
from tracelloc.elf import ElfFile
from tracelloc.elf.sections import SectionError

_STEPS_PER_ADDRESS: Final = 1 << 12
"""What was forgotten in the meantime may be decoded again."""


class DwarfDecoder:
    """Chains by our own decoding of one file's own debug information. Not thread safe."""

    def __init__(self, info: DebugInfo) -> None:
        self._info = info
        self._lines = LineIndex(info)
        self._inlines = InlineReader(info)
        self.split_paths: list[str | None] = []
        """For each address last asked for: the .dwo that knows its functions, if one does."""

    @property
    def reason(self) -> str | None:
        """Why less than everything is known."""
        return self._info.damaged or self._info.elsewhere

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """One chain per address. Never raises."""
        found: list[Chain] = [()] * len(addresses)
        self._info.budget.grant(_STEPS_PER_ADDRESS * len(addresses))
        self.split_paths = [None] * len(addresses)
        # Unit by unit: less is forgotten and decoded again.
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

    def _chain(self, unit: Unit, address: int) -> Chain:
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

    def _file_name(self, unit: Unit, number: int) -> str | None:
        try:
            return self._lines.file_name(unit, number)
        except DAMAGE as error:
            self._info.blame(reason_of(error))
            return None


def _split_path(unit: Unit) -> str | None:
    """The .dwo that describes a unit's functions, if this file does not. Never raises."""
    try:
        root = unit.root
    except DAMAGE:
        return None
    if root.split_name is None or root.has_children:
        return None
    return os.path.join(root.comp_dir, root.split_name)  # noqa: PTH118 - a name, as it is


def open_decoder(elf: ElfFile) -> DwarfDecoder | str:
    """A decoder for a file's debug information, or why there is none."""
    if elf.bits != 64:
        return "debug information of 32-bit files is not read"
    try:
        info = DebugInfo(elf)
    except SectionError as error:
        return str(error)
    if info.line is None or info.info is None:
        return "the file has no debug information"
    return DwarfDecoder(info)


class SourceLines:
    """Source frames by address. Thread safe; what takes time is done when first asked.

    Cheap for files without debug information: their sections are looked up once.
    """

    def __init__(self, elf: ElfFile, debug: ElfFile | None = None) -> None:
        """``debug``: a separate file whose debug information describes ``elf``.

        Both stay their owner's, and open as long as this is used.
        """
        self._lock = threading.Lock()
        self._elf = elf
        self._decoder: DwarfDecoder | None = None
        self._why_none: str | None = None
        self._split: SymbolizerPipe | None = None
        self._split_missing: str | None = None
        self._is_there: dict[str, bool] = {}
        for file in (elf, debug):
            if file is None or self._decoder is not None:
                continue
            decoder = open_decoder(file)
            if isinstance(decoder, str):
                self._why_none = self._why_none if self._why_none and file is debug else decoder
            else:
                self._elf, self._decoder = file, decoder

    @property
    def reason(self) -> str | None:
        """Why there are no lines or no inlined functions; None if all is well so far."""
        if self._decoder is None:
            return self._why_none
        split = self._split.reason if self._split is not None else None
        return self._decoder.reason or split or self._split_missing

    def close(self) -> None:
        """Ends what runs for this file. May be asked again: it is started anew."""
        with self._lock:
            if self._split is not None:
                self._split.close()

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """Per address the frames it belongs to, the innermost first; () if unknown.

        Addresses are the file's own virtual ones, of the byte before a return address. The
        last frame is the real function. Never raises because of what the file holds.
        """
        if self._decoder is None:
            return [()] * len(addresses)
        with self._lock:
            found = self._decoder.chains(addresses)
            split = [n for n, path in enumerate(self._decoder.split_paths) if self._find(path)]
            if split:
                if self._split is None:
                    self._split = SymbolizerPipe(self._elf)
                answers = self._split.chains([addresses[n] for n in split])
                for n, answer in zip(split, answers, strict=True):
                    if answer and (answer[0].file is not None or not found[n]):
                        found[n] = answer
            return found

    def _find(self, path: str | None) -> bool:
        """Whether the file that describes a unit's functions is there, or the .dwp for all."""
        if path is None:
            return False
        if path not in self._is_there:
            package = f"{reachable_path(self._elf)}.dwp"
            self._is_there[path] = Path(path).exists() or Path(package).exists()
        if not self._is_there[path]:
            name = path[:200]
            self._split_missing = f"inlined functions are described in {name}, which is missing"
        return self._is_there[path]
