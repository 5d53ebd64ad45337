"""One file in a worker: its ELF data, functions, probe offsets and unwind entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import native, of_elf
from tracelloc.errors import UnsupportedError
from tracelloc.files.cfi.codeparts import function_parts
from tracelloc.files.cfi.core import RuleSet
from tracelloc.files.cfi.module import Cfi
from tracelloc.files.cfi.unwindsections import unwind_sections
from tracelloc.files.elf import ElfFile
from tracelloc.files.elf.usdt import usdt_probes
from tracelloc.files.machinecode.codepaths import CodeReader, Stops
from tracelloc.files.machinecode.coderules import CodeRules, rules_for
from tracelloc.files.machinecode.filtercode import makes_filters
from tracelloc.files.machinecode.threadcache import thread_cache_drain

U64 = npt.NDArray[np.uint64]

_MOST_RULES: Final = 1 << 14
"""Most addresses whose rules are cached: megabytes."""
_MOST_NAMES: Final = 1 << 16
"""Most names that a glob may match in one file."""
_ENTRY_BYTES: Final = 16


class ReadCode:
    """A file of code in a worker. Addresses are the file's own."""

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self._rules: dict[int, RuleSet] = {}

    def facts(self) -> list[Any]:
        """Returns the fields of ``targetfile.ElfFacts``."""
        names = self.elf.dynamic_names
        return [
            [astuple(segment) for segment in self.elf.segments],
            self.cfi is not None,
            self.elf.build_id,
            self.elf.is_go,
            bool(self.elf.tables()),
            unwind_sections(self.elf),
            list(names.needed),
            names.shared_name,
            self.elf.troubles,
        ]

    def functions(self, names: Sequence[str], tails: Sequence[str]) -> list[Any]:
        """Returns functions' (address, size) by name, and by tail the names that end with it.

        Also returns by name whether the file exports or imports the function.
        """
        found = self.elf.find_functions(names)
        return [
            {name: list(places.items()) for name, places in found.items()},
            {tail: sorted(self.elf.names_ending(tail)) for tail in tails},
            self.elf.linkage(names),
        ]

    def names_like(self, pattern: str) -> list[str]:
        """Returns the names that a name or a glob matches."""
        found = self.elf.names_like(pattern)
        if len(found) > _MOST_NAMES:
            raise ValueError(f"{pattern} means more than {_MOST_NAMES:,} functions")
        return sorted(found)

    def name_at(self, address: int) -> str | None:
        """Returns the name of the function that contains an address, by the symbol tables."""
        symbol = self.elf.symbols.find(address)
        return None if symbol is None else symbol.name

    def offsets(self, functions: Sequence[tuple[int, int, Sequence[str] | None]]) -> list[Any]:
        """Returns (offset in the function, whether it is single-stepped) of each probe, or None.

        ``functions`` are file offset, size, registers that must be intact. Without registers,
        the probe is on the entry. None: no instruction there can have a probe.
        """
        found: list[Any] = []
        rules = self._code_rules
        for offset, size, registers in functions:
            code = self.elf.read(offset, _ENTRY_BYTES if registers is None else size)
            if registers is None:
                place = rules.at_entry(code)
            else:
                place = rules.find_probe_offset(code, registers)
            found.append(None if place is None else astuple(place))
        return found

    def usdt(self, provider: str) -> list[Any]:
        """Returns a provider's USDT probes, see ``targetfile.UsdtPlace``. Raises ValueError."""
        found = []
        for probe in usdt_probes(self.elf, provider):
            offset = self.elf.offset_of(probe.address)
            semaphore = self.elf.offset_of(probe.semaphore) if probe.semaphore else 0
            if offset is None or semaphore is None:
                continue
            nop_bytes, is_harmful = self._code_rules.nop_at(self.elf.read(offset, _ENTRY_BYTES))
            arguments = None if probe.arguments is None else [list(a) for a in probe.arguments]
            found.append([probe.name, offset, semaphore, arguments, nop_bytes, is_harmful])
        return found

    @cached_property
    def _code_rules(self) -> CodeRules:
        return rules_for(of_elf(self.elf.machine, self.elf.bits))

    @cached_property
    def _reader(self) -> CodeReader:
        return CodeReader(self.elf)

    def exits(self, entry: int) -> list[Any]:
        """Returns the addresses of a function's ret instructions, and why there may be more."""
        walk = self._reader.exits(entry)
        return [sorted(walk.rets), walk.trouble]

    def return_slot(self, entry: int, addresses: Sequence[int]) -> int:
        """Returns ``CodeReader.return_slot``."""
        return self._reader.return_slot(entry, Stops(frozenset(addresses)))

    def leaves_it_to(self, entry: int, addresses: Sequence[int], names: Sequence[str]) -> bool:
        """Returns whether a function always calls one of these before it returns."""
        return self._reader.leaves_it_to(entry, Stops(frozenset(addresses), frozenset(names)))

    def thread_cache_drain(self, frees: Sequence[int]) -> int | None:
        """Returns the address of the function with which glibc frees an ended thread's cache."""

        def start_of(address: int) -> int | None:
            part = None if self.cfi is None else self.cfi.part_at(address)
            return None if part is None else part.start

        return thread_cache_drain(self.elf, frees, start_of)

    def parts(self, name: str) -> list[Any]:
        """Returns (start, end) of the parts of a function."""
        return [(part.start, part.stop) for part in function_parts(self.elf, self.cfi, name)]

    @cached_property
    def cfi(self) -> Cfi | None:
        """The file's call-frame information; None if it is for another machine."""
        is_for_this = of_elf(self.elf.machine, self.elf.bits) is native()
        return Cfi(self.elf) if is_for_this else None

    def _known_cfi(self) -> Cfi:
        if self.cfi is None:
            raise UnsupportedError("it is of another machine")
        return self.cfi

    def rules(self, address: int) -> RuleSet:
        """Returns the rules at an address. Raises CfiError."""
        found = self._rules.get(address)
        if found is None:
            if len(self._rules) >= _MOST_RULES:
                self._rules.clear()
            found = self._rules[address] = self._known_cfi().rules(address)
        return found

    def at(self, address: int) -> list[Any]:
        """Returns (unwind row of an address, whether a function begins there, trouble)."""
        cfi = self._known_cfi()
        return [cfi.row(address), cfi.is_start(address), cfi.trouble]

    def rows(self, sites: bytes) -> tuple[Any, bytes]:
        """Returns the unwind rows of some addresses."""
        cfi = self._known_cfi()
        rows = cfi.rows(np.frombuffer(sites, np.uint64))
        return cfi.trouble, rows.tobytes()

    def all_rows(self, most: int) -> tuple[Any, bytes]:
        """Returns all call sites, then their rows; also the covered share of code, and trouble."""
        cfi = self._known_cfi()
        sites, rows = cfi.all_rows(most)
        return [cfi.covered_share, cfi.trouble], sites.tobytes() + rows.tobytes()


CODE_ANSWERS: Final[dict[str, Callable[..., tuple[Any, bytes]]]] = {
    "facts": lambda file, _: (file.facts(), b""),
    "functions": lambda file, _, names, tails: (file.functions(names, tails), b""),
    "names like": lambda file, _, pattern: (file.names_like(pattern), b""),
    "object": lambda file, _, name: (file.elf.find_object(name), b""),
    "function at": lambda file, _, address: (file.name_at(address), b""),
    "offsets": lambda file, _, functions: (file.offsets(functions), b""),
    "exits": lambda file, _, entry: (file.exits(entry), b""),
    "return slot": lambda file, _, *more: (file.return_slot(*more), b""),
    "leaves it": lambda file, _, *more: (file.leaves_it_to(*more), b""),
    "makes filters": lambda file, _: (makes_filters(file.elf), b""),
    "thread cache drain": lambda file, _, *frees: (file.thread_cache_drain(frees), b""),
    "parts": lambda file, _, name: (file.parts(name), b""),
    "usdt": lambda file, _, provider: (file.usdt(provider), b""),
    "at": lambda file, _, address: (file.at(address), b""),
    "rows": lambda file, sites: file.rows(sites),
    "all rows": lambda file, _, most: file.all_rows(most),
}
"""Answers about a file, given the file and the bytes of the question."""
