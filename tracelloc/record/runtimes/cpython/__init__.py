"""CPython: its frames, its objects by type, and the holders of objects."""

from collections.abc import Iterable, Sequence
from typing import Final

from tracelloc.errors import TargetError
from tracelloc.model.codefiles import base_name
from tracelloc.model.objects import Holders, ObjectCensus
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.cpython.census import CensusTaker, FoundObjects
from tracelloc.record.runtimes.cpython.holders import HolderSearch, ObjectAddresses
from tracelloc.record.runtimes.cpython.interpreter import CPython, find_cpython
from tracelloc.record.runtimes.cpython.watch import POOL_MEMORY, PythonObjectWatch
from tracelloc.record.runtimes.known import is_python_name
from tracelloc.system.memorylimits import default_budget


class PythonObjectCounter:
    """Counts the objects of one Python program on demand."""

    def __init__(self, process: Process) -> None:
        self._censuses = CensusTaker(process)
        self._search = HolderSearch(process)
        self._found: FoundObjects | None = None
        self._first: ObjectAddresses | None = None

    def has_runtime(self) -> bool:
        """Whether the process has CPython; True even if ``count`` can't count its version."""
        try:
            return self._search.has_python()
        except TargetError:
            return True

    def count(self) -> ObjectCensus:
        """Takes a census. Raises TargetError, PrivilegeError."""
        # Without Python, the census says so.
        self._search.has_python()
        now = self._censuses.take_census(most_bytes=default_budget() // POOL_MEMORY)
        self._found = self._censuses.take_found()
        return now

    def find_holders(self, types: Sequence[str], *, new_only: bool) -> dict[str, Holders]:
        """Finds holders of objects of some types, once after each census.

        ``new_only``: objects that existed at the first census are left out, as long as there are
        others. Frees the data of the census.
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
        self._search.close()


class CPythonSupport:
    """What ``supported.py`` needs of a runtime."""

    name = "Python"

    def is_in(self, modules: Iterable[Module]) -> bool:
        """Whether a process with these code files has CPython, by their names or symbols."""
        return any(
            is_python_name(base_name(module.path))
            or module.elf.find_object("_PyRuntime") is not None
            for module in modules
            if is_python_name(base_name(module.path)) or ".so" not in base_name(module.path)
        )

    def find(self, space: AddressSpace) -> CPython | None:
        return find_cpython(space)

    def watch(self, process: Process, space: AddressSpace) -> PythonObjectWatch:
        return PythonObjectWatch(process, space)

    def counter(self, process: Process) -> PythonObjectCounter:
        return PythonObjectCounter(process)


CPYTHON: Final = CPythonSupport()
