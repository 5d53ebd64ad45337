"""Traces a program that others start, from its first allocation."""

from __future__ import annotations

from tracelloc.record.session.launch import Launch


class CaughtLaunch(Launch):
    """Follows a caught program as one that tracelloc starts; a ``follower.Watcher``."""

    def begin(self) -> None:
        """Lets the program run, and waits until it is traced. Raises TracellocError."""
        # The kernel has reported the exec before anyone followed the process.
        self.executed(self.program.pid, same_thread=True)
        super().begin()
