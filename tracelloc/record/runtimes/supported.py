"""The list of supported runtimes, and lookups among them."""

from collections.abc import Iterable
from typing import Final

from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.cpython import CPYTHON, PythonObjectCounter
from tracelloc.record.runtimes.cpython.interpreter import CPython, UnsupportedRuntime
from tracelloc.record.runtimes.cpython.watch import PythonObjectWatch

SUPPORTED: Final = (CPYTHON,)


def has_supported(modules: Iterable[Module]) -> bool:
    """Whether a process with these code files has a supported runtime."""
    modules = tuple(modules)
    return any(runtime.is_in(modules) for runtime in SUPPORTED)


def supported_names() -> str:
    """Returns the names of the supported runtimes, for display."""
    return ", ".join(runtime.name for runtime in SUPPORTED)


def find_runtime(space: AddressSpace) -> CPython | None:
    """Finds a supported runtime in a process's mapped files. Raises UnsupportedRuntime."""
    for runtime in SUPPORTED:
        try:
            found = runtime.find(space)
        except UnsupportedRuntime as what:
            raise UnsupportedRuntime(f"{what}: C frames only") from what
        if found is not None:
            return found
    return None


def watch_objects(process: Process, space: AddressSpace) -> list[PythonObjectWatch]:
    """Returns watches of a traced program's objects, one for each supported runtime."""
    return [runtime.watch(process, space) for runtime in SUPPORTED]


def object_counter(process: Process) -> PythonObjectCounter:
    """Returns a counter of the objects of its runtime. Raises TargetError, PrivilegeError."""
    counters = [runtime.counter(process) for runtime in SUPPORTED]
    chosen = next((each for each in counters if each.has_runtime()), counters[0])
    for each in counters:
        if each is not chosen:
            each.close()
    return chosen
