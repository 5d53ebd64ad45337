"""The target's address space: what is mapped where, and the files behind it.

Files are opened when their mapping is first seen and stay open, so that names can
still be found after the target has unmapped or replaced them, or has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tracelloc.allocators import Module
from tracelloc.elf import ElfFile, NotElfError
from tracelloc.errors import TargetError
from tracelloc.procfs import (
    TRAMPOLINE_MAPPING,
    AddressMap,
    FileId,
    Mapping,
    Process,
    is_c_library,
)


class Unresolved(Enum):
    """Why an address has no name."""

    UNMAPPED = "nothing is mapped there"
    NOT_CODE = "not executable memory"
    ANONYMOUS = "code that belongs to no file (JIT)"
    UNREADABLE = "the file cannot be read"
    NOT_ELF = "the file is not ELF"
    NO_SYMBOL = "no symbol covers it"
    KERNEL_PAGE = "a page of the kernel's"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an address lies."""

    mapping: Mapping
    module: Module | None
    """The file, if there is one that could be read."""
    reason: Unresolved | None
    """Why there is no module."""
    file_offset: int
    """In the mapped file, in bytes; in the mapping, if there is no file."""


class AddressSpace:
    """Mappings of a process, now and earlier, with their files."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.generation = 0
        """Grows each time that something new was mapped."""
        self._maps = AddressMap([])
        self._has_c_library = False
        self._earlier: list[AddressMap] = []
        self._modules: dict[FileId, Module | Unresolved] = {}

    def refresh(self) -> list[Module]:
        """Reads the mappings again. Returns modules not seen before; none if it ended."""
        try:
            maps = self.process.maps()
        except TargetError:
            return []
        if not maps.mappings or maps.mappings == self._maps.mappings:
            return []
        if self._maps.mappings:
            # Only code is asked for later; one list per dlclose would grow without end.
            code = [m for m in self._maps.mappings if m.executable and maps.find(m.start) != m]
            if code:
                self._earlier = [AddressMap(code), *self._earlier][:64]
        self._maps = maps
        self._has_c_library = any(is_c_library(m.path) for m in maps.mappings if m.executable)
        self.generation += 1
        return [m for m in map(self._open, maps.mappings) if m is not None]

    def _open(self, mapping: Mapping) -> Module | None:
        """The module of a mapping if this is the first look at an executable file."""
        if not (mapping.executable and mapping.is_file) or mapping.file_id in self._modules:
            return None
        try:
            elf = ElfFile(self.process.open_mapping(mapping))
        except OSError:
            self._modules[mapping.file_id] = Unresolved.UNREADABLE
            return None
        except NotElfError:
            self._modules[mapping.file_id] = Unresolved.NOT_ELF
            return None
        opened = self.process.mapping_path(mapping)
        module = Module(mapping.file_id, mapping.path, opened, elf)
        self._modules[mapping.file_id] = module
        return module

    @property
    def is_static(self) -> bool:
        """Whether the program brought its C library along inside it."""
        return not self._has_c_library

    def find(self, address: int) -> Mapping | None:
        """The mapping that holds an address, now or, failing that, earlier."""
        mapping = self._maps.find(address)
        for maps in self._earlier:
            if mapping is not None:
                break
            mapping = maps.find(address)
        return mapping

    def place(self, address: int) -> Place | Unresolved:
        """Where an address of code lies, or why that can't be said."""
        mapping = self.find(address)
        if mapping is None:
            return Unresolved.UNMAPPED
        offset = address - mapping.start + (mapping.offset if mapping.is_file else 0)
        if not mapping.executable:
            return Place(mapping, None, Unresolved.NOT_CODE, offset)
        if not mapping.is_file:
            special = mapping.path.startswith("[") and mapping.path.endswith("]")
            reason = Unresolved.KERNEL_PAGE if special else Unresolved.ANONYMOUS
            return Place(mapping, None, reason, offset)
        module = self._modules.get(mapping.file_id, Unresolved.UNREADABLE)
        if isinstance(module, Unresolved):
            return Place(mapping, None, module, offset)
        return Place(mapping, module, None, offset)

    def trampoline(self) -> int | None:
        """Where the kernel sends hijacked returns, once there was one."""
        for mapping in self._maps.mappings:
            if mapping.path == TRAMPOLINE_MAPPING:
                return mapping.start
        return None

    def close(self) -> None:
        """Closes every file."""
        for module in self._modules.values():
            if isinstance(module, Module):
                module.elf.close()
