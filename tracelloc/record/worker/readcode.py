"""One file in a worker: what it is, its functions, where probes sit on them, its unwind entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.errors import UnsupportedError
from tracelloc.files.cfi.codeparts import function_parts
from tracelloc.files.cfi.core import RuleSet
from tracelloc.files.cfi.module import Cfi
from tracelloc.files.cfi.unwindsections import unwind_sections
from tracelloc.files.elf import ElfFile
from tracelloc.files.elf.usdt import usdt_probes
from tracelloc.files.machinecode.filtercode import makes_filters
from tracelloc.files.machinecode.probeoffsets import (
    CodeReader,
    Stops,
    at_entry,
    find_probe_offset,
    nop_at,
)
from tracelloc.files.machinecode.threadcache import thread_cache_drain

U64 = npt.NDArray[np.uint64]

_MOST_RULES: Final = 1 << 14
"""Addresses whose rules are at hand: megabytes."""
_MOST_NAMES: Final = 1 << 16
"""Names that a glob may match in one file."""
_ENTRY_BYTES: Final = 16


class ReadCode:
    """A file whose code is asked about. Addresses are its own."""

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self._rules: dict[int, RuleSet] = {}

    def facts(self) -> list[Any]:
        """See ``targetfile.ElfFacts``."""
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
        """By name the (address, size) of functions; by tail the names that end with it.

        And by name whether the file defines it for others, or needs it of them.
        """
        found = self.elf.find_functions(names)
        return [
            {name: list(places.items()) for name, places in found.items()},
            {tail: sorted(self.elf.names_ending(tail)) for tail in tails},
            self.elf.linkage(names),
        ]

    def names_like(self, pattern: str) -> list[str]:
        """The names that are meant by a name or a glob."""
        found = self.elf.names_like(pattern)
        if len(found) > _MOST_NAMES:
            raise ValueError(f"{pattern} means more than {_MOST_NAMES:,} functions")
        return sorted(found)

    def name_at(self, address: int) -> str | None:
        """The name of the function that holds an address, by the file's own symbol tables."""
        symbol = self.elf.symbols.find(address)
        return None if symbol is None else symbol.name

    def offsets(self, functions: Sequence[tuple[int, int, Sequence[str] | None]]) -> list[Any]:
        """(offset in the function, whether it is single-stepped) of the probe on each function.

        ``functions``: offset in the file, size, registers that must be intact. Without these it is
        on the entry.
        """
        found = []
        for offset, size, registers in functions:
            code = self.elf.read(offset, _ENTRY_BYTES if registers is None else size)
            place = at_entry(code) if registers is None else find_probe_offset(code, registers)
            found.append(astuple(place))
        return found

    def usdt(self, provider: str) -> list[Any]:
        """The USDT probes of a provider: see ``targetfile.UsdtPlace``. Raises ValueError."""
        found = []
        for probe in usdt_probes(self.elf, provider):
            offset = self.elf.offset_of(probe.address)
            semaphore = self.elf.offset_of(probe.semaphore) if probe.semaphore else 0
            if offset is None or semaphore is None:
                continue
            nop_bytes, is_harmful = nop_at(self.elf.read(offset, _ENTRY_BYTES))
            arguments = None if probe.arguments is None else [list(a) for a in probe.arguments]
            found.append([probe.name, offset, semaphore, arguments, nop_bytes, is_harmful])
        return found

    @cached_property
    def _reader(self) -> CodeReader:
        return CodeReader(self.elf)

    def exits(self, entry: int) -> list[Any]:
        """Where a function's ret instructions are, and why there may be more."""
        walk = self._reader.exits(entry)
        return [sorted(walk.rets), walk.trouble]

    def leaves_it_to(self, entry: int, addresses: Sequence[int], names: Sequence[str]) -> bool:
        """Whether a function never returns without having called one of these."""
        return self._reader.leaves_it_to(entry, Stops(frozenset(addresses), frozenset(names)))

    def thread_cache_drain(self, frees: Sequence[int]) -> int | None:
        """Where glibc frees what an ended thread had cached."""

        def start_of(address: int) -> int | None:
            part = None if self.cfi is None else self.cfi.part_at(address)
            return None if part is None else part.start

        return thread_cache_drain(self.elf, frees, start_of)

    def parts(self, name: str) -> list[Any]:
        """(start, end) of the parts of a function."""
        return [(part.start, part.stop) for part in function_parts(self.elf, self.cfi, name)]

    @cached_property
    def cfi(self) -> Cfi | None:
        """What the file says of its frames; None: it is of another machine."""
        try:
            return Cfi(self.elf)
        except UnsupportedError:
            return None

    def _known_cfi(self) -> Cfi:
        if self.cfi is None:
            raise UnsupportedError("it is of another machine")
        return self.cfi

    def rules(self, address: int) -> RuleSet:
        """The rules at an address. Raises CfiError."""
        found = self._rules.get(address)
        if found is None:
            if len(self._rules) >= _MOST_RULES:
                self._rules.clear()
            found = self._rules[address] = self._known_cfi().rules(address)
        return found

    def at(self, address: int) -> list[Any]:
        """(the row of an address, whether a function begins there)"""
        cfi = self._known_cfi()
        return [cfi.row(address), cfi.is_start(address), cfi.trouble]

    def rows(self, sites: bytes) -> tuple[Any, bytes]:
        """The rows of some addresses."""
        cfi = self._known_cfi()
        rows = cfi.rows(np.frombuffer(sites, np.uint64))
        return cfi.trouble, rows.tobytes()

    def all_rows(self, most: int) -> tuple[Any, bytes]:
        """All call sites, then their rows; what share of the code has any, and why no more."""
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
    "leaves it": lambda file, _, *more: (file.leaves_it_to(*more), b""),
    "makes filters": lambda file, _: (makes_filters(file.elf), b""),
    "thread cache drain": lambda file, _, *frees: (file.thread_cache_drain(frees), b""),
    "parts": lambda file, _, name: (file.parts(name), b""),
    "usdt": lambda file, _, provider: (file.usdt(provider), b""),
    "at": lambda file, _, address: (file.at(address), b""),
    "rows": lambda file, sites: file.rows(sites),
    "all rows": lambda file, _, most: file.all_rows(most),
}
"""Questions about a file: of it and of the bytes that were sent along."""
