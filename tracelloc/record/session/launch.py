"""Starts a program so that it is traced from its first allocation.

The follower stops the process until its libraries are mapped and probed, when only the dynamic
linker's code has run. It does so again whenever more libraries are loaded, until these are probed
and have unwind entries. After a while, the follower detaches and only the probes stay, unless
children are followed, too.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from tracelloc.errors import TracellocError
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.follower import Follower
from tracelloc.record.session.program import CaughtProgram, TracedProgram
from tracelloc.record.session.sessionstart import await_program
from tracelloc.startup import STARTUP

# Longest time during which the program stops whenever it loads a library. The program's signals
# take a detour meanwhile, and no debugger can attach.
_ATTENDED_S: Final = 10.0
_SIGNALS_S: Final = 0.2  # How often signals are checked for while the program starts
_QUIET_S: Final = 2.0  # The follower detaches when the program has loaded nothing for this long


class Launch:
    """The start of a program under tracing, up to its end; a ``follower.Watcher``."""

    def __init__(
        self,
        program: TracedProgram | CaughtProgram,
        config: TraceConfig,
        say: Callable[[str], None],
    ) -> None:
        """Creates the program's process, which waits, and a session. Raises TracellocError."""
        self.program, self._say, self._was_refused = program, say, False
        self._follows = config.follow
        # Whether only the follower notices that the program executes another one
        self._stays = config.without_probes
        self._is_there = threading.Event()
        self._trouble: BaseException | None = None
        self._loads = 0
        self._is_over = threading.Event()
        self._follower = Follower()
        self._follower.launch(
            program, children=config.follow, exits=config.checks_exit or config.in_parts
        )
        try:
            self.session = session = await_program(Process(program.pid), config, say)
            session.hold = self._follower.hold
            # What the session alone handles; see ``follower.Watcher``.
            self.forked, self.trapped = session.forked, session.trapped
            self.exiting = session.exiting
            self._follower.follow(self)
        except BaseException:
            self.finish()
            raise

    def begin(self) -> None:
        """Lets the program run, and waits until it is traced. Raises TracellocError."""
        STARTUP.end()  # the terminal is the program's from here on
        self.program.go()
        # A signal delivered to another thread does not end the wait, so this polls.
        while not self._is_there.wait(_SIGNALS_S):
            pass
        if self._trouble is not None:
            raise self._trouble
        self.session.begin_upkeep()
        if not (self._follows or self._stays):
            threading.Thread(target=self._attend, name="launch", daemon=True).start()

    def _attend(self) -> None:
        end_s = time.monotonic() + _ATTENDED_S
        seen = -1
        probes = self.session.root.probes
        # Before the preloaded library reports its first event, the follower must not detach.
        while probes.awaits_source or (self._loads != seen and time.monotonic() < end_s):
            seen = self._loads
            if self._is_over.wait(_QUIET_S):
                return
        self.session.stop_at_loads(stop=False)
        self._follower.stop()

    def executed(self, pid: int, *, same_thread: bool) -> None:
        if self._follows and self._stays and isinstance(self.program, TracedProgram):
            self.program.preload_into(pid)
        try:
            self.session.executed(pid, same_thread=same_thread)
        except TracellocError as error:
            self._fail(error)
            return
        if pid == self.program.pid and not self.session.root.probes.has_loader:
            # A static program has all its files mapped.
            self.loaded(pid)

    def loaded(self, pid: int) -> bool:
        self._loads += 1
        try:
            is_followed = self.session.loaded(pid)
            if pid == self.program.pid and not self._is_there.is_set():
                self.session.root.probes.check()
        except TracellocError as error:
            self._fail(error)
            return True
        if not (is_followed or self._follows):
            # Nobody would see it stop.
            self.session.stop_at_loads(stop=False)
        if pid == self.program.pid:
            self._is_there.set()
        return is_followed

    @property
    def has_run(self) -> bool:
        """Whether any of the program's own code has run."""
        return self.program.has_begun and not self._was_refused

    def _fail(self, error: TracellocError) -> None:
        """Kills the program if none of its own code has run; otherwise only warns."""
        if self._is_there.is_set():
            self._say(f"warning: {error}")
        else:
            self._trouble, self._was_refused = error, True
            self.program.refuse()
            self._is_there.set()

    def ended(self, pid: int, status: int) -> None:
        if pid == self.program.pid:
            # First: the session may be closed already, and only the follower has the status.
            self.program.note_end(status)
        self.session.ended(pid, status)
        if pid == self.program.pid:
            self._is_there.set()

    def failed(self, failure: BaseException) -> None:
        self.session.failed(failure)
        # The first failure is the cause: the program is killed because of it.
        self._trouble = self._trouble or failure
        self._is_there.set()

    def stop_following(self) -> None:
        self._is_over.set()
        self._follower.stop()

    def finish(self) -> int:
        """Waits until the program has ended. Returns the exit status."""
        self.stop_following()
        self.program.abandon()
        return self.program.wait()


class CaughtLaunch(Launch):
    """Follows a caught program as one that tracelloc starts; a ``follower.Watcher``."""

    def begin(self) -> None:
        # The kernel has reported the exec before anyone followed the process.
        self.executed(self.program.pid, same_thread=True)
        super().begin()
