"""Source lines and inlined functions of one file, from wherever they can be had."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from tracelloc.dwarf.decoder import DwarfDecoder
from tracelloc.dwarf.frames import Chain, ChainProvider, SourceFrame
from tracelloc.dwarf.info import DebugInfo
from tracelloc.dwarf.pipe import SymbolizerPipe, reachable_path
from tracelloc.elf import ElfFile
from tracelloc.elf.sections import SectionError

__all__ = ["SourceFrame", "SourceLines"]


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
        self._split: ChainProvider | None = None
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
