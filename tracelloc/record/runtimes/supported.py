"""What the rest of tracelloc asks of the supported runtime, which is CPython."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tracelloc.model.codefiles import base_name
from tracelloc.model.objects import Holders, ObjectCensus
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process, parse_maps
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.cpython.census import Censuses, FoundObjects
from tracelloc.record.runtimes.cpython.holders import HolderSearch, ObjectAddresses
from tracelloc.record.runtimes.cpython.interpreter import CPython, UnsupportedRuntime, find_cpython
from tracelloc.record.runtimes.cpython.pools import pool_ranges
from tracelloc.record.runtimes.known import is_python_name

SUPPORTED_NAME: Final = "Python"  # For display: stacks have its functions
_VERSIONS: Final = "3.11 to 3.14"


def has_supported(modules: Iterable[Module]) -> bool:
    """Whether a supported runtime is among code files, whatever their names."""
    return any(
        is_python_name(base_name(module.path)) or module.elf.find_object("_PyRuntime") is not None
        for module in modules
        if is_python_name(base_name(module.path)) or ".so" not in base_name(module.path)
    )


def find_runtime(space: AddressSpace) -> CPython | None:
    """The runtime in a process's mapped files. Raises UnsupportedRuntime, with a sentence."""
    try:
        return find_cpython(space)
    except UnsupportedRuntime as what:
        why = f"stacks have no frames of {what} ({_VERSIONS} are supported)"
        raise UnsupportedRuntime(why) from what


def runtime_heap(memory: RemoteMemory) -> tuple[str, list[tuple[int, int]]]:
    """What a runtime keeps in memory of its own, in words, and (start, end) of all of it.

    Nothing without a runtime. Raises TargetError, PrivilegeError.
    """
    mappings = parse_maps(memory.process.maps_text()).values()
    has_python = any(is_python_name(base_name(mapping.path)) for mapping in mappings)
    ranges = pool_ranges(memory) if has_python else []
    return ("Python's small objects", ranges) if ranges else ("", [])


class ObjectCounter:
    """Counts the objects of one program on demand. Raises TargetError, PrivilegeError."""

    def __init__(self, process: Process) -> None:
        self._censuses = Censuses(process)
        self._search = HolderSearch(process)
        self._found: FoundObjects | None = None
        self._first: ObjectAddresses | None = None

    def count(self) -> ObjectCensus:
        """Takes a census."""
        # Without Python, the census says so.
        self._search.has_python()
        now = self._censuses.take_census(keep=True)
        self._found = self._censuses.take_found()
        return now

    def find_holders(self, types: Sequence[str], *, new_only: bool) -> dict[str, Holders]:
        """Finds holders of objects of these types; call it once after each census, which it frees.

        ``new_only``: objects that existed at the first census are left out, as long as there are
        others.
        """
        found, self._found = self._found, None
        if found is None:
            return {}
        holders = {}
        if types:
            holders = self._search.find(found, types, self._first if new_only else None)
        if self._first is None:
            self._first = ObjectAddresses(found)
        return holders

    def close(self) -> None:
        """Closes the process's files."""
        self._search.close()
