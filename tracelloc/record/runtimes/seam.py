"""Interface of language runtimes: their functions in call stacks, and their objects by type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tracelloc.model.frames import RuntimeFrame
from tracelloc.model.objects import Holders, ObjectCensus, ObjectFindings
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace


class UnsupportedRuntime(Exception):  # noqa: N818 - nothing fails for it
    """A process has the runtime in an unsupported version, which the message names."""


class MergedRuntime(Protocol):
    """A runtime in one process. Created again for each program that the process executes."""

    @property
    def title(self) -> str:
        """Name and version for display."""
        ...

    def publish(self, words: SpaceControl) -> None:
        """Tells the probes where its frames are."""

    def groups(self, words: Sequence[int]) -> list[list[RuntimeFrame]]:
        """Names the frames that the probes have read, innermost first.

        One frame of the interpreter's loop stands for each group. Reads the process's memory for
        functions that were not noted before.
        """
        ...

    def note_names(self, words: Sequence[int]) -> None:
        """Stores a record of names from the probes; it precedes the frames."""

    def share_names(self, parent: MergedRuntime) -> None:
        """Shares the names of the process from which this one was forked."""

    def is_loop(self, address: int) -> bool:
        """Whether a return address is in the interpreter's loop; such a frame is replaced."""
        ...

    @property
    def inner_frames(self) -> int:
        """Number of inner frames directly within a loop frame that belong to it, to be dropped."""
        ...

    def trouble(self) -> str | None:
        """The part of its stacks that can't be followed now, for display."""
        ...


class ObjectWatch(Protocol):
    """Counts the objects of one program periodically. Thread safe."""

    def __hash__(self) -> int:
        """Hashable: a watch identifies its program."""

    # The findings so far; None: the program was not examined, or lacks the runtime.
    findings: ObjectFindings | None
    most_bytes: int | None  # Memory that a census may use; None: unlimited
    # Called after each census, in the thread that has taken it.
    on_census: Callable[[ObjectCensus], None]

    @property
    def is_growing(self) -> bool:
        """Whether to count again soon."""

    def update_findings(self) -> None:
        """Takes a census, and finds the holders of growing types."""

    def refresh(self) -> None:
        """Takes a census unless there is a fresh one."""


class ObjectCounter(Protocol):
    """Counts the objects of one program on demand. Raises TargetError, PrivilegeError."""

    def has_runtime(self) -> bool:
        """Whether the program has the runtime."""

    def count(self) -> ObjectCensus:
        """Takes a census."""

    def find_holders(self, types: Sequence[str], *, new_only: bool) -> dict[str, Holders]:
        """Finds holders of objects of these types; call it once after each census, which it frees.

        ``new_only``: objects that existed at the first census are left out, as long as there are
        others.
        """

    def close(self) -> None:
        """Closes the process's files."""


class RuntimeSupport(Protocol):
    """Support for one runtime. A new one is a folder that provides this (``supported.py``)."""

    name: str  # For display: stacks have its functions, and these are its objects
    versions: str  # The supported versions, for display

    def is_in(self, modules: Iterable[Module]) -> bool:
        """Whether the runtime is among code files."""

    def find(self, space: AddressSpace) -> MergedRuntime | None:
        """The runtime in a process's mapped files. Raises UnsupportedRuntime."""

    def watch(self, process: Process, space: AddressSpace) -> ObjectWatch:
        """Returns a watch of a traced program's objects; it does nothing without the runtime."""

    def own_heap(self, memory: RemoteMemory) -> tuple[str, list[tuple[int, int]]]:
        """What it keeps in memory of its own, in words, and (start, end) of all of it.

        Nothing without the runtime. Raises TargetError, PrivilegeError.
        """

    def counter(self, process: Process) -> ObjectCounter:
        """Returns a counter of the objects of any process."""
