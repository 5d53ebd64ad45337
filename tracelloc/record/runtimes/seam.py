"""What a runtime has to say of a process, for its functions to appear in call stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tracelloc.model.runtimeframes import RuntimeFrame
from tracelloc.record.kernel.spacewords import SpaceWords


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
