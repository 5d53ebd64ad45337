"""Start and end of a trace, and the handling of signals.

While a trace starts, a terminating signal raises an exception. Afterwards signals only write a
byte to a socket. A second signal ends tracelloc at once, unless it follows the first one
immediately; the kernel then removes the probes and releases followed processes.
"""

import os
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NoReturn

from tracelloc.command.commandline import Options
from tracelloc.command.ways import refusal_of_probes
from tracelloc.errors import PrivilegeError, TargetError
from tracelloc.machine.processes import members_of
from tracelloc.record.kernel import capabilities as system
from tracelloc.record.process.identity import open_target
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.sanitizers import UNFOLLOWED, has_leak_sanitizer
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.follower import Follower
from tracelloc.record.session.launch import CaughtLaunch, Launch
from tracelloc.record.session.program import CaughtProgram, TracedProgram
from tracelloc.record.session.session import Session
from tracelloc.record.session.sessionstart import ProcessJoiner, attach_to
from tracelloc.record.session.terminal import ProgramTerminal
from tracelloc.record.sources.preloaded.sharedarea import LIBRARY, area_mappings, preloaded_library
from tracelloc.startup import STARTUP, not_ignored
from tracelloc.system.invoker import effective_user, invoker
from tracelloc.system.memorylimits import MemoryGroup
from tracelloc.system.safefiles.writing import discard_unfinished
from tracelloc.text import printable

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ALONE: Final = "leave --follow out to trace it without its children"
# Equal signals within this time count as one: timeout(1), supervisors and terminals send them to
# the process and to its group.
_ONE_S: Final = 0.5


class Signals:
    """The requests of all signals received so far."""

    def __init__(
        self,
        take: Callable[[int], bool],
        wishes: Iterable[int] = (),
        *,
        stops: bool,
        starts: bool = False,
    ) -> None:
        """Catches signals from here on.

        ``take`` gets each terminating signal; it returns whether tracing ends. ``wishes``: signals
        that are kept until they are answered, as SIGUSR1 and SIGUSR2 are. ``stops``: whether ^Z
        suspends tracelloc. ``starts``: a program is started, and inherits ignored signals.
        """
        self._last: tuple[int, float] | None = None  # The last terminating signal, and its time
        self._has_come = False  # Whether a signal has requested the end
        self.is_beginning = False  # Whether terminating signals raise an exception
        self.is_ending = False
        self.wishes: set[int] = set()  # The signals that are still to be answered
        # Whether a ^Z has not suspended us. A handler can't say so: what it interrupts may be
        # writing a message.
        self.has_refused_stop = False
        self._take = take
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in not_ignored(_ENDING, interrupts=not starts):
            signal.signal(number, self._note_end)
        if not stops:
            signal.signal(signal.SIGTSTP, self._note_stop)
        for number in (signal.SIGUSR1, signal.SIGUSR2, *wishes):
            signal.signal(number, self._note_wish)

    def fileno(self) -> int:
        """Returns a descriptor that is readable after a signal until ``clear``."""
        return self._receiver.fileno()

    def clear(self) -> None:
        self._receiver.recv(4096)

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Makes terminating signals raise KeyboardInterrupt while a trace starts."""
        self.is_beginning = True
        try:
            if self.is_ending:
                raise KeyboardInterrupt
            yield
        finally:
            self.is_beginning = False

    def end(self) -> None:
        """Ends tracing as a signal does. From any thread."""
        self.is_ending = True
        with suppress(OSError):
            self._sender.send(b"\0")

    def _note_end(self, number: int, _frame: object) -> None:
        now_s = time.monotonic()
        if self._last is not None and number == self._last[0] and now_s - self._last[1] < _ONE_S:
            return
        self._last = number, now_s
        if not self._take(number):
            return
        if self._has_come:
            end_at_once()
        self._has_come = self.is_ending = True
        if self.is_beginning:
            raise KeyboardInterrupt

    def _note_stop(self, _number: int, _frame: object) -> None:
        self.has_refused_stop = True

    def _note_wish(self, number: int, _frame: object) -> None:
        self.wishes.add(number)


def end_at_once() -> NoReturn:
    """Ends tracelloc immediately. Unfinished files are discarded."""
    discard_unfinished()
    with suppress(OSError, ValueError):
        os.write(2, b"\r\ntracelloc: ended at once; nothing more was written\r\n")
    os._exit(1)


Say = Callable[[str], None]


class Start(ABC):
    """One way of beginning a trace. By default, tracelloc has not started the program itself."""

    _launch: Launch | None = None

    def ends_on_signal(self, _number: int) -> bool:
        """Handles a terminating signal. Returns whether tracing should end."""
        return True

    @abstractmethod
    def begin(self, config: TraceConfig, say: Say) -> Session:
        """Begins the trace. Raises TracellocError."""

    def stop_following(self) -> None:
        """Stops following processes; probes stay attached. May be called twice."""
        if self._launch is not None:
            self._launch.stop_following()

    def finish(self) -> int | None:
        """Returns the exit status of the program that was started; None if none of it has run."""
        return None


class AttachStart(Start):
    """Attaches to a running process, or to all processes of a control group."""

    def __init__(
        self, process: Process, group: MemoryGroup | None = None, *, is_unprivileged: bool = False
    ) -> None:
        """``process``: maybe the first one of a group. ``is_unprivileged``: only by the library."""
        self._process, self._group, self._is_unprivileged = process, group, is_unprivileged
        self._follower: Follower | None = None
        self._joiner: ProcessJoiner | None = None

    def begin(self, config: TraceConfig, say: Say) -> Session:
        if self._is_unprivileged:
            config = _by_library_only(config, say)
        session = self._attach(config, say)
        if config.follow:
            self._follower = Follower()
            try:
                pid = session.root.process.pid
                if has_leak_sanitizer(session.root.space):
                    raise TargetError(UNFOLLOWED.format(pid=pid), hint=_ALONE)
                self._follower.attach(pid)
            except BaseException:
                self._follower.stop()
                session.close()
                raise
            self._follower.follow(session)
            group, root = self._group, session.root.process
            find = partial(members_of, group) if group else partial(_running_children, root, config)
            is_group = group is not None
            self._joiner = ProcessJoiner(find, session, self._follower, is_group=is_group)
            self._joiner.start()
        return session

    def _attach(self, config: TraceConfig, say: Say) -> Session:
        """Attaches to the process, or to the first traceable one of the group."""
        try:
            return attach_to(self._process, config, say)
        except TargetError:
            for pid in () if self._group is None else members_of(self._group):
                with suppress(TargetError):
                    return attach_to(Process(pid), config, say)
            raise

    def stop_following(self) -> None:
        if self._joiner is not None:
            self._joiner.stop()
        if self._follower is not None:
            self._follower.stop()


def _running_children(process: Process, config: TraceConfig) -> list[int]:
    """Returns the PIDs of a process's children and of theirs, of those to be followed."""
    found, left = list[int](), [process]
    while left:
        with suppress(TargetError):  # it has ended
            children = [Process(pid, process.root) for pid in sorted(left.pop().child_ids())]
            left += children
            found += [child.pid for child in children if config.is_wanted(child)]
    return found


class CaughtStart(Start):
    """Waits for a program that somebody else starts, and catches it at its first instruction."""

    def __init__(self, name: str) -> None:
        self._name = name

    def begin(self, config: TraceConfig, say: Say) -> Session:
        """Waits for the program and traces it. If that raises TracellocError, it runs untraced."""
        STARTUP.end()
        program = CaughtProgram(self._name)
        try:
            program.catch(partial(say, f"waiting for {printable(self._name)}"))
            self._launch = CaughtLaunch(program, config, say)
            self._launch.begin()
        except BaseException:
            program.go()
            if self._launch is not None:
                self._launch.session.close()
                self._launch.stop_following()
            raise
        return self._launch.session


class LaunchStart(Start):
    """Starts a program. If it shares tracelloc's terminal, it decides what signals mean."""

    def __init__(self, program: TracedProgram, *, is_unprivileged: bool = False) -> None:
        """``is_unprivileged``: only the preloaded library can be used."""
        self._program, self._is_unprivileged = program, is_unprivileged
        self._early_signal: int | None = None  # A signal received before the process existed
        self._signals_before = 0  # Number of signals received before the process was traced
        self._is_traced = False
        self._status: int | None = None  # Exit status of a program that ran untraced

    def begin(self, config: TraceConfig, say: Say) -> Session:
        """Starts the program. If it raises TracellocError, the program has not run."""
        if self._is_unprivileged:
            config = _by_library_only(config, say)
        launch = self._launch = Launch(self._program, config, say)
        try:
            if self._early_signal is not None:
                self.ends_on_signal(self._early_signal)
            launch.begin()
        except BaseException:
            self._launch = None
            try:
                launch.session.close()
            finally:
                status = launch.finish()
                self._status = status if launch.has_run else None
            raise
        self._is_traced = True
        return launch.session

    def ends_on_signal(self, number: int) -> bool:
        """Forwards a signal, unless tracelloc's terminal also sends it to the program."""
        has_own = self._program.terminal is not None
        self._signals_before += not self._is_traced
        if not self._is_traced and self._signals_before > 1:
            # None of the program's code has run, so it can end at once.
            if self._program.pid:
                self._send(signal.SIGKILL)
            end_at_once()
        if not self._program.pid:
            self._early_signal = number
        elif has_own or number == signal.SIGTERM or not _is_from_terminal():
            self._send(number)
        return has_own

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._program.pid, number)

    def finish(self) -> int | None:
        """Waits for the program to end. Returns its exit status; None if it has not run."""
        if self._launch is None:
            return self._status
        terminal = self._program.terminal
        if self._program.is_running():
            name, pid = printable(self._program.name), self._program.pid
            waits = f"waiting for {name} (process {pid}) to end, Ctrl-C ends it"
            print(f"tracelloc: no longer tracing; {waits}", file=sys.stderr, flush=True)
            if terminal is not None:
                terminal.pass_on(sys.stdout.buffer)
        status = self._launch.finish()
        if terminal is not None:
            terminal.join()
        return status


def start_of(options: Options, terminal: ProgramTerminal | None = None) -> Start:
    """Returns the selected way to start. ``terminal``: the program's own; None: tracelloc's."""
    if options.waits and options.name is not None:
        system.check_all()
        system.raise_file_limit()
        return CaughtStart(options.name)
    if options.pid is not None:
        process = open_target(options.pid)
        why = system.why_no_probes()
        if why is not None and not _is_served_by_library(process, options):
            raise refusal_of_probes(why, process)
        system.raise_file_limit()
        return AttachStart(process, options.group, is_unprivileged=why is not None)
    why = None if options.trace.without_probes else system.why_no_probes()
    if why is not None and not options.trace.use_library:
        raise why
    file_limit = system.raise_file_limit()
    who = effective_user() if options.as_root else invoker()
    has_library = LIBRARY.exists() or not options.trace.spares_runtimes
    preloaded = preloaded_library() if options.trace.use_library and has_library else None
    program = TracedProgram(options.command, who, file_limit, terminal, preloaded)
    return LaunchStart(program, is_unprivileged=why is not None)


def _by_library_only(config: TraceConfig, say: Say) -> TraceConfig:
    say(f"without {system.missing_rights()}: only the library reports, and no child is traced")
    return config.with_library_only


def _is_served_by_library(process: Process, options: Options) -> bool:
    """Whether the library reports a running process's allocations, or is to be injected."""
    if not options.trace.use_library:
        return False
    with suppress(PrivilegeError):
        return options.trace.injects or bool(area_mappings(process.maps().mappings))
    return False


def _is_from_terminal() -> bool:
    """Whether ^C on the terminal reaches tracelloc and the program that it started."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
