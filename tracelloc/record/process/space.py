"""The target's address space: its mappings, and the mapped files.

Files are opened when their mapping is first seen and stay open, so that names can
still be looked up after the target has unmapped or replaced them, or has ended.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracelloc.errors import TargetError, scarcity
from tracelloc.files.elf import NotElfError
from tracelloc.model.codefiles import (
    CodePlace,
    FileId,
    Mapping,
    Unresolved,
    base_name,
    is_c_library,
    is_loader,
)
from tracelloc.model.frames import RuntimeFrames
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process import procfs
from tracelloc.record.process.codehistory import CodeHistory, Shift
from tracelloc.record.worker.client import FileReadError
from tracelloc.record.worker.targetfile import TargetFile
from tracelloc.record.worker.unwindtables import UnwindTables
from tracelloc.system.syscalls import open_inside

_R_MAP: Final = 8  # Offset of the list in `struct r_debug` (link.h), in bytes
_LINK: Final = struct.Struct("<4Q")  # Of `struct link_map`: l_addr, l_name, l_ld, l_next
_MOST_LIBRARIES: Final = 4096  # Most that are followed
_PAGE: Final = mmap.PAGESIZE

# The library's name if it was injected into a running process (`record/sources/injected`).
INJECTED_NAME: Final = "libtracelloc-injected.so"
INJECTED_FILE: Final = (
    Path(__file__).parents[1] / "sources" / "injected" / "libtracelloc_injected.abi3.so"
)


def is_injected(path: str) -> bool:
    """Returns whether a mapping's path is that of the injected library."""
    return path.startswith(f"/memfd:{INJECTED_NAME}")


class MappedFiles:
    """All files that any traced process has mapped, each opened once."""

    def __init__(self) -> None:
        self._modules: dict[tuple[int, ...], Module] = {}
        self._images: dict[bytes, Module] = {}
        self._tables: dict[int, UnwindTables] = {}
        self._lock = threading.Lock()
        self.runtime_frames = RuntimeFrames()  # Frames of interpreted functions, of all processes

    def open(self, process: procfs.Process, mapping: Mapping) -> Module:
        """Returns a mapped file's module, once open. Raises OSError, NotElfError, FileReadError."""
        try:
            descriptor = process.open_mapping(mapping)
        except OSError:
            if is_injected(mapping.path):
                # Only root may open it by its mapping.
                return self.open_image(INJECTED_FILE.read_bytes(), mapping)
            raise
        return self._module(descriptor, mapping.path, mapping.file_id)

    def open_named(self, process: procfs.Process, path: str) -> Module:
        """Returns the module of a file that a process names. Raises as ``open``."""
        directory = process.memory_directory
        path_there = (directory / "cwd").readlink() / path
        descriptor = open_inside(directory / "root", str(path_there))
        status = os.fstat(descriptor)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        return self._module(descriptor, path, (device, status.st_ino))

    def _module(self, descriptor: int, path: str, file_id: FileId) -> Module:
        status = os.fstat(descriptor)
        # While the file is open here, its inode can't be reused; but the file may be written to.
        key = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        if key in self._modules:
            os.close(descriptor)
        else:
            elf = TargetFile(descriptor, path)
            self._modules[key] = Module(file_id, path, elf.open_path, elf)
        return self._modules[key]

    def open_image(self, image: bytes, mapping: Mapping) -> Module:
        """Returns the module of a file in memory. Raises OSError, NotElfError, FileReadError."""
        if image not in self._images:
            elf = TargetFile.from_bytes(image, mapping.path)
            self._images[image] = Module(mapping.file_id, mapping.path, elf.open_path, elf)
        return self._images[image]

    def tables(self, module: Module) -> UnwindTables | None:
        """Returns a file's call-frame information; None if not supported. Thread safe."""
        if not module.elf.has_frames:
            return None
        with self._lock:
            if id(module) not in self._tables:
                self._tables[id(module)] = UnwindTables(module.elf)
            return self._tables[id(module)]

    def close(self) -> None:
        for tables in self._tables.values():
            tables.close()
        for module in [*self._modules.values(), *self._images.values()]:
            module.elf.close()


class AddressSpace:
    """The mappings of a process, current and earlier ones, with the mapped files."""

    def __init__(self, process: procfs.Process, files: MappedFiles | None = None) -> None:
        """``files``: shared with other processes, and closed by their owner; None: own files."""
        self.process = process
        self.files = files or MappedFiles()
        self._owns_files = files is None
        self.generation = 0  # Number that grows with each change of the mappings
        self.image = 0  # Number that grows with each exec: addresses then have another meaning
        # The resource whose shortage kept a file from being opened
        self.shortage: str | None = None
        self._text = ""  # The text of the maps at the last refresh
        self._lines: dict[str, Mapping] = {}
        self._maps = procfs.AddressMap([])
        self._has_c_library = False
        # Paths of the program (`program_paths`); kept after its end
        self._program: tuple[str, str] | None = None
        # Base names of preloaded libraries. A program may remove them from its environment.
        self._preloaded: frozenset[str] = frozenset()
        self._history = CodeHistory()
        # What turns current addresses of code into those that stored stacks have
        self.shifts: Sequence[Shift] = ()
        self._modules: dict[FileId, Module | Unresolved] = {}
        self._named: dict[str, Module] = {}  # Libraries that were opened by the loader's names

    def refresh(self) -> list[Module]:
        """Reads the mappings again. Returns new modules; none if the process has ended."""
        if self._program is None:
            self._program = self.process.program_paths()
            self._preloaded = frozenset(map(base_name, self.process.preloaded()))
        try:
            text = self.process.maps_text(self._program)
        except TargetError:
            return []
        if text == self._text:
            return []
        self._text = text
        self._lines = procfs.parse_maps(text, self._lines)
        maps = procfs.AddressMap(self._lines.values())
        if not maps.mappings or maps.mappings == self._maps.mappings:
            return []
        self._maps = maps
        self._has_c_library = any(is_c_library(m.path) for m in maps.mappings if m.executable)
        self.generation += 1
        opened = [(m, module) for m in maps.mappings if (module := self._open(m)) is not None]
        confirmed = self._confirmed(opened)
        self.shifts = self.shifts_of(maps.mappings)
        return confirmed

    def fork(self, process: procfs.Process) -> AddressSpace:
        """Returns the address space of a forked child process, a copy of this one."""
        child = AddressSpace(process, self.files)
        child.generation, child.image = self.generation, self.image
        child._text, child._lines, child._maps = self._text, self._lines, self._maps
        child._history, child.shifts = CodeHistory(self._history), self.shifts
        child._has_c_library = self._has_c_library
        child._program, child._preloaded = self._program, self._preloaded
        child._modules, child._named = dict(self._modules), dict(self._named)
        return child

    def begin_image(self, *, keep_modules: bool) -> None:
        """Resets the mappings after an exec. Files count as new then, unless modules are kept."""
        if not keep_modules:
            self._modules = {}
        self.image += 1
        self._program = None
        self._text, self._lines = "", {}
        self._maps = procfs.AddressMap([])
        self._history, self.shifts = CodeHistory(), ()

    def _confirmed(self, opened: list[tuple[Mapping, Module]]) -> list[Module]:
        """Returns opened files still mapped afterwards: others may have taken their addresses."""
        still = set[Mapping]()
        with suppress(TargetError):
            text = self.process.maps_text(self._program) if opened else ""
            still = set(procfs.parse_maps(text, self._lines).values())
        if not still:
            # The process has ended: its mappings can't change any more.
            return [module for _, module in opened]
        for mapping, _ in opened:
            if mapping not in still:
                del self._modules[mapping.file_id]
        return [module for mapping, module in opened if mapping in still]

    def _open(self, mapping: Mapping) -> Module | None:
        """Opens a file of code, and the kernel's own, unless it is known. Returns the file's."""
        is_vdso = mapping.path == procfs.VDSO
        is_code = is_vdso or (mapping.executable and mapping.is_file)
        if not is_code or mapping.file_id in self._modules:
            return None
        scarce = None
        try:
            if is_vdso:
                image = self.process.read_memory(mapping.start, mapping.end - mapping.start)
                self._modules[mapping.file_id] = self.files.open_image(image, mapping)
                return None
            module = self._modules[mapping.file_id] = self.files.open(self.process, mapping)
            return module
        except FileNotFoundError:
            # Unmapped since the maps were read. It may be mapped again.
            return None
        except OSError as error:
            why, scarce = Unresolved.UNREADABLE, scarcity(error)
        except NotElfError:
            why = Unresolved.NOT_ELF
        except FileReadError as error:
            why, scarce = Unresolved.UNREAD, error.scarce
        if scarce is None:
            self._modules[mapping.file_id] = Unresolved.KERNEL_PAGE if is_vdso else why
        else:
            self.shortage = scarce  # It is tried again later
        return None

    @property
    def modules(self) -> list[Module]:
        """All readable modules that were ever mapped, in order of discovery."""
        return [m for m in list(self._modules.values()) if isinstance(m, Module)]

    @property
    def mapped_modules(self) -> list[Module]:
        """Modules that are mapped now, in address order."""
        ids = dict.fromkeys(m.file_id for m in self._maps.mappings if m.executable)
        found = (self._modules.get(file_id) for file_id in ids)
        return [module for module in found if isinstance(module, Module)]

    def module_of(self, mapping: Mapping) -> Module | None:
        """Returns the file of a mapping; None if there is none or it can't be read."""
        module = self._modules.get(mapping.file_id)
        return module if isinstance(module, Module) else None

    def variable(self, name: str) -> int | None:
        """Returns the address of a variable of the process's dynamic linker; None if unknown."""
        loader = next((each for each in self.mapped_modules if is_loader(each.path)), None)
        return None if loader is None else self.object(loader, name)

    def object(self, module: Module, name: str) -> int | None:
        """Returns the process address of a file's variable; None if the file has no such one."""
        inside = module.elf.find_object(name)
        for mapping in self._maps.mappings if inside is not None else ():
            if self._modules.get(mapping.file_id) is module:
                start = module.elf.address_of(mapping.offset)
                if start is not None and inside is not None:
                    return mapping.start + inside - start
        return None

    def last_kept_library(self, debug: int) -> int:
        """Returns the loader's record of the last library that stays mapped; 0 if unknown.

        ``debug``: the address of the loader's list (``struct r_debug``), which begins with these.
        """
        kept, found = self.permanent_files(), 0
        at = int.from_bytes(self.process.read_memory(debug + _R_MAP, 8), "little")
        for _ in range(_MOST_LIBRARIES):
            link = self.process.read_memory(at, _LINK.size) if at else b""
            if len(link) < _LINK.size:
                break
            _, _, dynamic, following = _LINK.unpack(link)
            mapping = self._maps.find(dynamic)
            if mapping is None or (mapping.path != procfs.VDSO and mapping.file_id not in kept):
                break
            found, at = at, following
        return found

    def open_library(self, path: str) -> Module | None:
        """Opens a library that the loader has mapped by its name; None if there is no such file.

        Once the file or the process is gone, that is the file that had the name before.
        """
        try:
            module = self._named[path] = self.files.open_named(self.process, path)
            self._modules.setdefault(module.file_id, module)
        except (OSError, NotElfError, FileReadError):
            return self._named.get(path)
        return module

    def code_of(self, base: int, path: str) -> list[Mapping]:
        """Returns the code of a library that the loader has mapped, whatever is there now.

        ``base``: what the loader has added to its addresses.
        """
        module, found = self.open_library(path), list[Mapping]()
        if module is None:
            return found
        for one in (segment for segment in module.elf.segments if segment.executable):
            end = -(-(one.address + one.file_size) // _PAGE) * _PAGE
            bounds = base + (one.address & -_PAGE), base + end, one.offset & -_PAGE
            found.append(Mapping(*bounds, True, *module.file_id, module.path, False))
        return found

    def shifts_of(self, mappings: Iterable[Mapping]) -> Sequence[Shift]:
        """Returns ``shifts`` of mappings that need not be there any more."""
        return self._history.shifts_of(
            mappings, lambda m: getattr(self.module_of(m), "build_id", None)
        )

    def permanent_files(self) -> set[FileId]:
        """Returns the files that stay mapped as long as the program runs: not those opened later.

        The program, what was loaded with it or before it, their dependencies, and the loader.
        """
        by_name: dict[str, Module] = {}
        wanted = []
        for module in self.mapped_modules:
            name = module.elf.dynamic_names.shared_name or base_name(module.path)
            by_name[name] = module
            if module.path in (self.executable, procfs.VDSO) or is_loader(module.path):
                wanted.append(name)
        base_names = ((name, base_name(module.path)) for name, module in by_name.items())
        wanted += [names[0] for names in base_names if not self._preloaded.isdisjoint(names)]
        kept: set[FileId] = set()
        while wanted:
            found = by_name.pop(wanted.pop(), None)
            if found is not None:
                kept.add(found.file_id)
                wanted.extend(found.elf.dynamic_names.needed)
        return kept

    @property
    def executable(self) -> str | None:
        """Path of the program, as in the mappings; None if unknown."""
        return None if self._program is None else self._program[1]

    @property
    def mappings(self) -> Sequence[Mapping]:
        return self._maps.mappings

    def reason(self, mapping: Mapping) -> Unresolved | None:
        """Returns why a mapping's code file can't be read; None if it can, or there is no file."""
        if not (mapping.executable and mapping.is_file):
            return None
        module = self._modules.get(mapping.file_id, Unresolved.UNREADABLE)
        return module if isinstance(module, Unresolved) else None

    @property
    def is_static(self) -> bool:
        """Whether the program is statically linked with its C library."""
        return not self._has_c_library

    def find(self, address: int) -> Mapping | None:
        """Returns the mapping that contains an address, or else one that did earlier, or None."""
        return self._maps.find(address) or self._history.find(address)

    def find_stored(self, address: int) -> Mapping | None:
        """Returns the mapping to which an address in a stored stack belongs, or None."""
        return self._history.find(address) or self._maps.find(address)

    def place(self, address: int, *, stored: bool = False) -> CodePlace[Module] | Unresolved:
        """Returns where a (``stored``) code address lies, or why that is unknown."""
        mapping = self.find_stored(address) if stored else self.find(address)
        if mapping is None:
            return Unresolved.UNMAPPED
        offset = address - mapping.start + (mapping.offset if mapping.is_file else 0)
        if not mapping.executable:
            return CodePlace(mapping, None, Unresolved.NOT_CODE, offset)
        if not mapping.is_file and mapping.path != procfs.VDSO:
            special = mapping.path.startswith("[") and mapping.path.endswith("]")
            reason = Unresolved.KERNEL_PAGE if special else Unresolved.ANONYMOUS
            return CodePlace(mapping, None, reason, offset)
        module = self._modules.get(mapping.file_id, Unresolved.UNREADABLE)
        if isinstance(module, Unresolved):
            return CodePlace(mapping, None, module, offset)
        return CodePlace(mapping, module, None, offset)

    def trampoline(self) -> int | None:
        """Returns the address to which the kernel sends hijacked returns; None before the first."""
        places = (m.start for m in self._maps.mappings if m.path == procfs.TRAMPOLINE_MAPPING)
        return next(places, None)

    def close(self) -> None:
        """Closes all files, unless they are shared with other processes."""
        if self._owns_files:
            self.files.close()
