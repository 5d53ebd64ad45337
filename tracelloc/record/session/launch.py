"""Starting a program so that it is traced from its first allocation.

Its process is followed until its libraries are mapped and probed, before any of its code
has run but the loader's, and as long as it goes on loading libraries: it waits for those to be
probed and to have their unwind entries. From then on nothing but the probes is left, unless its
children are followed, too.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tracelloc.errors import TracellocError
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.begin import await_program
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.follower import Follower
from tracelloc.record.session.program import TracedProgram
from tracelloc.record.session.session import Session
from tracelloc.startup import STARTUP

_ATTENDED_S: Final = 10.0
"""How long a program waits whenever it loads a library, at most. Its signals take a detour
meanwhile, and no debugger can be attached."""
_SIGNALS_S: Final = 0.2
"""How often signals are looked for while the program begins."""
_QUIET_S: Final = 2.0
"""Once it has loaded nothing for so long, it is left alone."""


class Launch:
    """A program on its way to where it is traced; a ``follower.Watcher``."""

    def __init__(
        self, program: TracedProgram, config: TraceConfig, say: Callable[[str], None]
    ) -> None:
        """Makes the process, which waits, and its session. Raises TracellocError."""
        self.program = program
        self._say = say
        self._was_refused = False
        self._follows = config.follow
        self._is_there = threading.Event()
        self._trouble: BaseException | None = None
        self._loads = 0
        self._is_over = threading.Event()
        self._follower = Follower()
        self._follower.launch(program, children=config.follow)
        try:
            self.session: Session = await_program(Process(program.pid), config, say)
            self._follower.follow(self)
        except BaseException:
            self.finish()
            raise

    def begin(self) -> None:
        """Lets the program begin, and waits until it is traced. Raises TracellocError."""
        STARTUP.end()  # the terminal is the program's from here on
        self.program.go()
        # A signal that another thread is given does not end the wait: it is seen now and then.
        while not self._is_there.wait(_SIGNALS_S):
            pass
        if self._trouble is not None:
            raise self._trouble
        self.session.begin_upkeep()
        if not self._follows:
            threading.Thread(target=self._attend, name="launch", daemon=True).start()

    def _attend(self) -> None:
        """Lets go of the program when it seems to have loaded everything."""
        end_s = time.monotonic() + _ATTENDED_S
        seen = -1
        probes = self.session.root.probes
        # What its library reports must be wanted before the first of it.
        while probes.awaits_source or (self._loads != seen and time.monotonic() < end_s):
            seen = self._loads
            if self._is_over.wait(_QUIET_S):
                return
        self.session.stop_at_loads(stop=False)
        self._follower.stop()

    def forked(self, pid: int, thread_id: int, child_pid: int, *, shares: bool) -> None:
        """See ``follower.Watcher``."""
        self.session.forked(pid, thread_id, child_pid, shares=shares)

    def executed(self, pid: int, *, same_thread: bool) -> None:
        """See ``follower.Watcher``."""
        try:
            self.session.executed(pid, same_thread=same_thread)
        except TracellocError as error:
            self._fail(error)
            return
        if pid == self.program.pid and not self.session.root.probes.has_loader:
            # All that it consists of is mapped.
            self.loaded(pid)

    def loaded(self, pid: int) -> bool:
        """See ``follower.Watcher``."""
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
        """None of the program's own code has run, and none will; if it has, it goes on."""
        if self._is_there.is_set():
            self._say(f"warning: {error}")
            return
        self._trouble, self._was_refused = error, True
        with suppress(ProcessLookupError):
            os.kill(self.program.pid, signal.SIGKILL)
        self._is_there.set()

    def ended(self, pid: int, status: int) -> None:
        """See ``follower.Watcher``."""
        if pid == self.program.pid:
            # First: the session may be closed already, and nobody else can ask for the status.
            self.program.note_end(status)
        self.session.ended(pid, status)
        if pid == self.program.pid:
            self._is_there.set()

    def failed(self, failure: BaseException) -> None:
        """See ``follower.Watcher``."""
        self.session.failed(failure)
        # What came first is the cause: the program is killed for it.
        self._trouble = self._trouble or failure
        self._is_there.set()

    def stop_following(self) -> None:
        """The kernel lets go of the processes, which run on."""
        self._is_over.set()
        self._follower.stop()

    def finish(self) -> int:
        """Waits until the program has ended. Returns its exit status."""
        self.stop_following()
        self.program.abandon()
        return self.program.wait()
