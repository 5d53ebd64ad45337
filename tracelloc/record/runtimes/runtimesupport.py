"""Interface of language runtimes: their functions in call stacks, and their objects by type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tracelloc.model.frames import RuntimeFrame
from tracelloc.model.objects import Holders, ObjectCensus, ObjectFindings
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace


class UnsupportedRuntime(Exception):  # noqa: N818 - nothing fails for it
    """Raised if a process has an unsupported version of a runtime, which the message names."""


class MergedRuntime(Protocol):
    """A runtime in one process, for one executed program: finds and names its frames."""

    def publish(self, words: SpaceControl) -> None:
        """Tells the probes where the runtime's frames are, by the process's control words."""

    def groups(self, words: Sequence[int]) -> list[list[RuntimeFrame]]:
        """Names the frames that the probes have read, innermost first.

        One frame of the interpreter's loop stands for each group. Reads the process's memory for
        functions that were not noted before.
        """
        ...

    def note_names(self, words: Sequence[int]) -> None:
        """Stores a record of names from the probes, which precedes the frames."""

    def share_names(self, parent: MergedRuntime) -> None:
        """Shares the names of the process from which this one was forked."""

    def is_loop(self, address: int) -> bool:
        """Whether a return address is in the interpreter's loop, whose frames are replaced."""
        ...

    @property
    def inner_frames(self) -> int:
        """Number of frames directly inside a frame of the loop to drop with it."""
        ...

    def trouble(self) -> str | None:
        """Returns why some of the runtime's frames can't be followed now; None if all can."""
        ...


class ObjectWatch(Protocol):
    """Counts the objects of one program periodically. Thread safe."""

    def __hash__(self) -> int:
        """Returns a hash of this object's identity: a watch belongs to one program."""

    # The findings so far; None: the program was not examined, or lacks the runtime.
    findings: ObjectFindings | None
    most_bytes: int | None  # Bytes of memory that a census may use; None: unlimited
    # Called after each census, in the thread that has taken it.
    on_census: Callable[[ObjectCensus], None]

    @property
    def is_growing(self) -> bool:
        """Whether to count again soon: some type grows, or it is too early to tell."""

    def update_findings(self) -> None:
        """Takes a census, and finds the holders of growing types."""

    def refresh(self) -> None:
        """Takes a census unless the last one is only seconds old."""


class ObjectCounter(Protocol):
    """Counts the objects of one program on demand. Raises TargetError, PrivilegeError."""

    def has_runtime(self) -> bool:
        """Whether the program has the runtime."""

    def count(self) -> ObjectCensus:
        """Takes a census of the program's objects."""

    def find_holders(self, types: Sequence[str], *, new_only: bool) -> dict[str, Holders]:
        """Finds holders of objects of some types, once after each ``count``, whose data it frees.

        ``new_only``: objects that existed at the first census are left out, as long as there are
        others.
        """

    def close(self) -> None:
        """Closes the process's files."""


class RuntimeSupport(Protocol):
    """Support for one runtime: a folder that provides this is listed in ``supported.py``."""

    name: str  # The runtime's name, for display
    versions: str  # The supported versions, for display

    def is_in(self, modules: Iterable[Module]) -> bool:
        """Whether a process with these code files has the runtime."""

    def find(self, space: AddressSpace) -> MergedRuntime | None:
        """Finds the runtime in a process's mapped files, if any. Raises UnsupportedRuntime."""

    def watch(self, process: Process, space: AddressSpace) -> ObjectWatch:
        """Returns a watch of a traced program's objects, which does nothing without the runtime."""

    def counter(self, process: Process) -> ObjectCounter:
        """Returns a counter of the objects of any process."""
