"""The seam of language runtimes: their functions in call stacks, and their objects by type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tracelloc.model.runtimeframes import RuntimeFrame
from tracelloc.record.kernel.spacewords import SpaceWords
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.snapshots.objects import Holders, ObjectCensus, ObjectFindings


class UnsupportedRuntime(Exception):  # noqa: N818 - nothing fails for it
    """A process has the runtime, in a version whose frames can't be read: which, for people."""


class MergedRuntime(Protocol):
    """A runtime in one process. Made anew for each program that the process begins."""

    @property
    def title(self) -> str:
        """Name and version, for people."""
        ...

    def publish(self, words: SpaceWords) -> None:
        """Tells the probes where its frames are."""

    def groups(self, words: Sequence[int]) -> list[list[RuntimeFrame]]:
        """Names the frames that the probes have read, innermost first.

        Each group is what one frame of the interpreter's loop stands for. Reads the process's
        memory for what was not noted before.
        """
        ...

    def note_names(self, words: Sequence[int]) -> None:
        """Takes over a record of names from the probes, which comes before the frames."""

    def share_names(self, parent: MergedRuntime) -> None:
        """Names of the process that this one was forked off are its own as well."""

    def is_loop(self, address: int) -> bool:
        """Whether a return address is in the interpreter's loop: such a frame is replaced."""
        ...

    @property
    def inner_frames(self) -> int:
        """How many frames lie directly within the loop's that belong to it: to be dropped."""
        ...

    def trouble(self) -> str | None:
        """What of it can't be followed now, for people."""
        ...


class ObjectWatch(Protocol):
    """Counts the objects of one program now and then. From any thread."""

    def __hash__(self) -> int:
        """A hash: a watch stands for its program."""

    findings: ObjectFindings | None
    """What is known by now; None: the program was not looked at, or has no such runtime."""
    most_bytes: int | None
    """Memory that a census may take; None: any."""

    @property
    def is_growing(self) -> bool:
        """Whether it is worth counting again soon."""

    def look(self) -> None:
        """Takes a census, and looks for the holders of what grows."""

    def refresh(self) -> None:
        """Takes a census unless there is a fresh one."""


class ObjectCounter(Protocol):
    """Counts the objects of one program when asked to. Raises TargetError, PrivilegeError."""

    def count(self) -> ObjectCensus:
        """Takes a census."""

    def find_holders(self, types: Sequence[str], *, new_only: bool) -> dict[str, Holders]:
        """Who holds objects of these types; to be asked once after each census, which it frees.

        ``new_only``: objects that were there at the first census are left out, as long as there
        are others.
        """

    def close(self) -> None:
        """Closes the process's files."""


class RuntimeSupport(Protocol):
    """What is known of one runtime. A new one is a folder with one of these (``supported.py``)."""

    versions: str
    """Which versions are supported, for people."""

    def is_in(self, modules: Iterable[Module]) -> bool:
        """Whether the runtime is among files of code."""

    def find(self, space: AddressSpace) -> MergedRuntime | None:
        """The runtime in what a process has mapped now. Raises UnsupportedRuntime."""

    def watch(self, process: Process, space: AddressSpace) -> ObjectWatch:
        """Counts a traced program's objects; does nothing where the runtime is not."""

    def counter(self, process: Process) -> ObjectCounter:
        """Counts the objects of any process."""
