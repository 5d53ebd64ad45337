"""The runtimes whose functions and objects are shown: one line for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.cpython import CPYTHON
from tracelloc.record.runtimes.seam import (
    MergedRuntime,
    ObjectCounter,
    ObjectWatch,
    RuntimeSupport,
    UnsupportedRuntime,
)

SUPPORTED: Final[tuple[RuntimeSupport, ...]] = (CPYTHON,)


def has_supported(modules: Iterable[Module]) -> bool:
    """Whether one of these runtimes is among files of code."""
    modules = tuple(modules)
    return any(runtime.is_in(modules) for runtime in SUPPORTED)


def find_runtime(space: AddressSpace) -> MergedRuntime | None:
    """The runtime in what a process has mapped now. Raises UnsupportedRuntime, with a sentence."""
    for runtime in SUPPORTED:
        try:
            found = runtime.find(space)
        except UnsupportedRuntime as what:
            why = f"stacks have no frames of {what} ({runtime.versions} are supported)"
            raise UnsupportedRuntime(why) from what
        if found is not None:
            return found
    return None


def watch_objects(process: Process, space: AddressSpace) -> ObjectWatch:
    """Counts a traced program's objects: those of the first runtime, the only one that can."""
    return SUPPORTED[0].watch(process, space)


def object_counter(process: Process) -> ObjectCounter:
    """Counts the objects of any process. Raises TargetError, PrivilegeError."""
    return SUPPORTED[0].counter(process)
