"""What tracelloc asks about one file of code: ELF data, functions, probe offsets, unwind entries.

tracelloc's own process imports this module for the types of the questions alone. So modules that
read machine code, which take long to import, are imported where they are needed; ``service`` has
imported them by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tracelloc.architecture import elf_architecture, native
from tracelloc.dataclass import dataclass
from tracelloc.errors import UnsupportedError
from tracelloc.files.cfi.core import RuleSet
from tracelloc.files.cfi.module import Cfi, function_parts
from tracelloc.files.cfi.unwindsections import unwind_sections
from tracelloc.files.elf import ElfFile, Segment
from tracelloc.files.elf.file import DynamicNames
from tracelloc.files.elf.usdt import UsdtArgument, usdt_probes, usdt_providers
from tracelloc.files.machinecode.threadcache import makes_filters, thread_cache_drain
from tracelloc.model.figures import U64
from tracelloc.record import abi
from tracelloc.record.worker.questions import question

if TYPE_CHECKING:
    from tracelloc.files.machinecode.codepaths import CodeReader, CodeRules

_MOST_RULES: Final = 1 << 14  # Most addresses whose rules are cached: megabytes
_MOST_NAMES: Final = 1 << 16  # Most names that a glob may match in one file
_ENTRY_BYTES: Final = 16
_END: Final = 1 << 64

# Offset of a probe from the function's entry, and whether the instruction is single-stepped.
Offsets = tuple[int, bool]
# Addresses and sizes of functions by name; by tail the names that end with it; by name whether the
# file exports a function, or else imports it.
FoundFunctions = tuple[dict[str, list[tuple[int, int]]], dict[str, list[str]], dict[str, bool]]


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """Basic data of an ELF file, requested at once."""

    segments: list[Segment]
    has_frames: bool  # Whether call-frame information for the machine is supported
    build_id: str | None
    is_go: bool  # Whether the file has code from the Go compiler
    has_tables: bool  # Whether the file has symbol tables
    unwind_sections: list[str]  # The names of the unwind tables' sections
    dynamic_names: DynamicNames
    troubles: list[str]  # Messages about parts that are too large or unreadable


@dataclass(frozen=True, slots=True)
class FunctionExits:
    """The exits of a function: its ret instructions, as far as known."""

    rets: list[int]  # Addresses of ret instructions
    trouble: str  # Why there may be more ret instructions; empty if these are all


@dataclass(frozen=True, slots=True)
class UsdtPlace:
    """A place of a USDT probe in a file. Offsets are file offsets in bytes."""

    name: str  # Name of the probe
    offset: int
    semaphore: int  # Offset of the counter of attached probes; 0 if there is none
    arguments: tuple[UsdtArgument | None, ...]  # None: where probes can't read one
    nop_bytes: int  # Length of the nop at the place; 0 if there is none
    is_harmful: bool  # Whether a uprobe on that nop is harmful


def _end_within_64_bits(found: ElfFacts) -> bool:
    return all(max(each.offset, each.address) + each.file_size < _END for each in found.segments)


def _have_all_tails(found: FoundFunctions, _: Sequence[str], tails: Sequence[str]) -> bool:
    return found[1].keys() >= set(tails)


def _are_within(
    found: Sequence[Offsets | None], functions: Sequence[tuple[int, int, object]]
) -> bool:
    return len(found) == len(functions) and all(
        place is None or registers is None or place[0] < max(size, 1)
        for place, (_, size, registers) in zip(found, functions, strict=True)
    )


def _have_registers(found: Sequence[UsdtPlace], _: str) -> bool:
    words = {word for word, *_ in native().usdt_registers.values()} | {abi.USDT_NO_REGISTER}
    used = (argument for place in found for argument in place.arguments if argument is not None)
    return all(
        {each.base, each.index} <= words
        and max(each.shift, each.skip_bits) < 64
        and 1 <= each.bytes <= 8
        for each in used
    )


class CodeFileReader:
    """Answers questions about a file of code, in a worker. Addresses are the file's own."""

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self._rules: dict[int, RuleSet] = {}

    @question(_end_within_64_bits)
    def facts(self) -> ElfFacts:
        return ElfFacts(
            self.elf.segments,
            self.cfi is not None,
            self.elf.build_id,
            self.elf.is_go,
            bool(self.elf.tables()),
            unwind_sections(self.elf),
            self.elf.dynamic_names,
            self.elf.troubles,
        )

    @question(_have_all_tails)
    def functions(self, names: Sequence[str], tails: Sequence[str]) -> FoundFunctions:
        """Returns the functions with some names, and the names that end with some tails."""
        found = self.elf.find_functions(names)
        return (
            {name: list(places.items()) for name, places in found.items()},
            {tail: sorted(self.elf.names_ending(tail)) for tail in tails},
            self.elf.linkage(names),
        )

    @question()
    def names_like(self, pattern: str) -> Sequence[str]:
        """Returns the names in the symbol tables that equal the pattern, or match it as a glob."""
        found = self.elf.names_like(pattern)
        if len(found) > _MOST_NAMES:
            raise ValueError(f"{pattern} means more than {_MOST_NAMES:,} functions")
        return sorted(found)

    @question()
    def find_object(self, name: str) -> int | None:
        return self.elf.find_object(name)

    @question()
    def function_at(self, address: int) -> str | None:
        """Returns the name of the function that contains an address, by the symbol tables."""
        symbol = self.elf.symbols.find(address)
        return None if symbol is None else symbol.name

    @question(_are_within)
    def offsets(
        self, functions: Sequence[tuple[int, int, tuple[str, ...] | None]]
    ) -> Sequence[Offsets | None]:
        """Returns the offset of a probe on each function.

        ``functions``: (file offset, size, registers that must be intact). Without registers,
        the probe is on the entry. None: no instruction can have a probe.
        """
        found: list[Offsets | None] = []
        rules, read = self._code_rules, self.elf.read
        for offset, size, registers in functions:
            if registers is None:
                place = rules.at_entry(read(offset, _ENTRY_BYTES))
            else:
                place = rules.find_probe_offset(read(offset, size), registers)
            found.append(None if place is None else (place.offset, place.is_single_stepped))
        return found

    @question()
    def usdt_providers(self) -> Sequence[str]:
        return usdt_providers(self.elf)

    @question(_have_registers)
    def usdt(self, provider: str) -> Sequence[UsdtPlace]:
        """Returns a provider's USDT probes in the file. Raises ValueError if there are too many."""
        found = []
        for probe in usdt_probes(self.elf, provider):
            offset = self.elf.offset_of(probe.address)
            semaphore = self.elf.offset_of(probe.semaphore) if probe.semaphore else 0
            if offset is None or semaphore is None:
                continue
            nop = self._code_rules.nop_at(self.elf.read(offset, _ENTRY_BYTES))
            found.append(UsdtPlace(probe.name, offset, semaphore, probe.arguments, *nop))
        return found

    @cached_property
    def _code_rules(self) -> CodeRules:
        from tracelloc.files.machinecode.codepaths import rules_for

        return rules_for(elf_architecture(self.elf.machine, self.elf.bits))

    @cached_property
    def _reader(self) -> CodeReader:
        from tracelloc.files.machinecode.codepaths import CodeReader

        return CodeReader(self.elf)

    @question()
    def exits(self, entry: int) -> FunctionExits:
        """Returns all ret instructions of a function, or why they are unknown."""
        walk = self._reader.exits(entry)
        return FunctionExits(sorted(walk.rets), walk.trouble)

    @question()
    def return_slot(self, entry: int, addresses: Sequence[int]) -> int:
        """Returns where a function stores its return address: ``CodeReader.return_slot``."""
        return self._reader.return_slot(entry, addresses)

    @question()
    def always_calls(self, entry: int, addresses: Sequence[int], names: Sequence[str]) -> bool:
        """Returns whether a function always calls one of these before it returns."""
        return self._reader.always_calls(entry, addresses, names)

    @question()
    def makes_filters(self) -> bool:
        """Returns whether the code seems to install seccomp filters without the C library."""
        return makes_filters(self.elf)

    @question()
    def thread_cache_drain(self, frees: Sequence[int]) -> int | None:
        """Returns where glibc frees an ended thread's cache. ``frees``: addresses of free."""

        def start_of(address: int) -> int | None:
            part = None if self.cfi is None else self.cfi.part_at(address)
            return None if part is None else part.start

        return thread_cache_drain(self.elf, frees, start_of)

    @question()
    def parts(self, name: str) -> Sequence[tuple[int, int]]:
        """Returns the parts into which a compiler split a function; none without a symbol."""
        return [(part.start, part.stop) for part in function_parts(self.elf, self.cfi, name)]

    @cached_property
    def cfi(self) -> Cfi | None:
        """The file's call-frame information; None if it is for another machine."""
        is_for_this = elf_architecture(self.elf.machine, self.elf.bits) is native()
        return Cfi(self.elf) if is_for_this else None

    def _known_cfi(self) -> Cfi:
        if self.cfi is None:
            raise UnsupportedError("it is of another machine")
        return self.cfi

    def rules(self, address: int) -> RuleSet:
        """Returns the full unwind rules at an address. Raises CfiError."""
        if address not in self._rules:
            if len(self._rules) >= _MOST_RULES:
                self._rules.clear()
            self._rules[address] = self._known_cfi().rules(address)
        return self._rules[address]

    @question()
    def at(self, address: int) -> tuple[int, bool, str | None]:
        """Returns (unwind row of an address, whether a function begins there, trouble)."""
        cfi = self._known_cfi()
        return cfi.row(address), cfi.is_start(address), cfi.trouble

    @question(lambda found, sites: len(found[0]) == len(sites))
    def rows(self, sites: U64) -> tuple[U64, str | None]:
        """Returns (unwind rows of some addresses, trouble with the file's tables or None)."""
        cfi = self._known_cfi()
        return cfi.rows(sites), cfi.trouble

    @question(lambda found, _: len(found[0]) == len(found[1]))
    def all_rows(self, most: int) -> tuple[U64, U64, float | None, str | None]:
        """Returns (at most ``most`` call sites or none, rows, share of code with any, trouble)."""
        cfi = self._known_cfi()
        return *cfi.all_rows(most), cfi.covered_share, cfi.trouble
