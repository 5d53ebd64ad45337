"""Programs that are traced from their beginning: the process waits until tracing is ready."""

import ctypes
import errno
import os
import pwd
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NoReturn

from tracelloc.errors import NOT_EXECUTABLE_STATUS, ProgramError
from tracelloc.record.kernel.capabilities import FileLimit
from tracelloc.record.kernel.execcatcher import ExecCatcher
from tracelloc.record.session.terminal import ProgramTerminal
from tracelloc.record.sources.preloaded import launching
from tracelloc.system.invoker import Invoker, environment_of, with_variables

# Exit status that shells use for programs that a signal ended, less its number.
_SIGNAL_STATUS: Final = 128


class TracedProgram:
    """A command line that tracelloc starts, and its process, which waits for ``go``."""

    def __init__(
        self,
        command: Sequence[str],
        who: Invoker,
        file_limit: FileLimit,
        terminal: ProgramTerminal | None = None,
        preloaded: Path | None = None,
        *,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """``who``: the user who runs the command. ``file_limit``: limit of the process's files.

        The streams are those of ``terminal``, or tracelloc's. ``preloaded``: a library to preload.
        ``variables``: of the environment, in addition to tracelloc's own.
        """
        self._variables = dict(variables or {})
        self._preloaded = None if preloaded is None else launching.path_for_loaders(preloaded)
        self._command, self.name, self.terminal = list(command), command[0], terminal
        self._who, self._file_limit = who, file_limit
        # Tracelloc changes its own limit only later (``limit_own_memory``).
        self._data_limit = resource.getrlimit(resource.RLIMIT_DATA)
        self._ignored = {n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN}
        self.pid = 0
        self.has_begun = False  # Whether the command was executed
        self._go_fd = -1
        self._failure_fd = -1
        self._status: int | None = None

    def start(self) -> None:
        """Creates the process, which waits for ``go``. The parent is the calling thread."""
        read_fd, self._go_fd = os.pipe2(os.O_CLOEXEC)
        self._failure_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        # The child inherits tracelloc's handlers: no signal may reach them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.pid = os.fork()
        if not self.pid:
            for number in signal.valid_signals():
                if callable(signal.getsignal(number)):
                    is_ignored = number in self._ignored
                    signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._become(read_fd, write_fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(read_fd)
        os.close(write_fd)
        if self.terminal is not None:
            self.terminal.release()

    def _become(self, go_fd: int, failure_fd: int) -> NoReturn:
        """Waits for ``go``, then executes the command. Runs in the new process."""
        try:
            os.close(self._go_fd)
            if os.read(go_fd, 1):
                if self.terminal is not None:
                    self.terminal.adopt()
                # Python ignores these, and exec keeps ignored signals ignored.
                for number in (signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_NOFILE, self._file_limit)
                resource.setrlimit(resource.RLIMIT_DATA, self._data_limit)
                entries = with_variables(_become_user(self._who), self._variables)
                _execute(self._command, entries, self._preloaded)
        except OSError as error:
            os.write(failure_fd, str(error.errno).encode())
        finally:
            os._exit(NOT_EXECUTABLE_STATUS)

    def go(self) -> None:
        """Makes the process execute the command. Raises ProgramError if that fails."""
        # A signal may have ended the process already; whoever waits for its end sees that.
        with suppress(BrokenPipeError):
            os.write(self._go_fd, b"g")
        os.close(self._go_fd)
        self._go_fd = -1
        with os.fdopen(self._failure_fd, "rb") as failure:
            self._failure_fd = -1
            # Exec closes the other end.
            text = failure.read()
        if text:
            raise ProgramError(self._command[0], int(text))
        self.has_begun = True

    def refuse(self) -> None:
        """Kills the process, because it can't be traced."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def preload_into(self, pid: int) -> None:
        """Has a program preload the library, too, before the first instruction of its process."""
        if self._preloaded is not None:
            # The process may have ended, or have a stack that is not understood.
            with suppress(OSError, ValueError, StopIteration):
                launching.preload_into(pid, os.fsencode(self._preloaded))

    def note_end(self, status: int) -> None:
        self._status = status

    def is_running(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:  # Else the follower's thread may have noted the status meanwhile
                self._status = status
        return self._status is None

    def wait(self) -> int:
        """Waits until the process has ended. Returns the exit status; 128 + n after signal n."""
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else _SIGNAL_STATUS - code

    def abandon(self) -> None:
        """Ends the process if it still waits for ``go``."""
        for descriptor in (self._go_fd, self._failure_fd):
            if descriptor >= 0:
                os.close(descriptor)
        if self._go_fd >= 0:
            self.wait()
        self._go_fd = self._failure_fd = -1


class CaughtProgram:
    """A program that another process starts, stopped at its first instruction."""

    terminal = None

    def __init__(self, name: str) -> None:
        """``name``: the program's short name (comm). Raises TracellocError."""
        self.name = name
        self.pid = 0
        self.has_begun = False
        self._catcher = ExecCatcher(name)

    def catch(self, note_waiting: Callable[[], None]) -> None:
        """Waits until a process executes the program and is stopped; ``note_waiting``: before."""
        with closing(self._catcher):
            try:
                note_waiting()
                self._catcher.wait()
            finally:
                self.pid = self._catcher.caught() or 0

    def start(self) -> None:
        """Does nothing, as the process already exists."""

    def go(self) -> None:
        """Lets the process run. May be called twice."""
        self.has_begun = True
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
        self._catcher.release()

    refuse = go
    abandon = go

    def note_end(self, _status: int) -> None:
        """Does nothing, as the process's own parent waits for it."""

    def wait(self) -> int:
        """Returns 0, as only the process's own parent gets its exit status."""
        return 0


def _become_user(who: Invoker) -> list[bytes]:
    """Switches to a user's rights for good. Returns that user's environment. Raises OSError.

    That is tracelloc's initial one, byte for byte, since Python adds to its own (PEP 538).
    """
    try:
        environment = [e for e in Path("/proc/self/environ").read_bytes().split(b"\0") if e]
    except PermissionError:  # a program with capabilities may not look at itself
        environment = [name + b"=" + value for name, value in os.environb.items()]
    environment = environment_of(who, environment)
    if who.uid != os.geteuid():
        os.initgroups(pwd.getpwuid(who.uid).pw_name, who.gid)
        os.setgid(who.gid)
        os.setuid(who.uid)
    return environment


def _execute(command: Sequence[str], environment: Sequence[bytes], preloaded: Path | None) -> None:
    """Executes like execvpe(3), with unchanged environment entries, and a preloaded library."""
    library = None if preloaded is None else os.fsencode(preloaded)
    if library is not None and not launching.can_be_read(library):
        library = None
    libc = ctypes.CDLL(None, use_errno=True)
    words = [os.fsencode(word) for word in command]
    paths = next((e[5:] for e in environment if e.startswith(b"PATH=")), os.defpath.encode())
    places = [b""] if b"/" in words[0] else paths.split(b":")
    refusal = errno.ENOENT
    for place in places:
        program = os.path.join(place, words[0])  # noqa: PTH118 - bytes
        entries = environment
        if library is not None and launching.preloads(program):
            entries = launching.with_preloaded(environment, library)
        libc.execve(program, _pointers(words), _pointers(entries))
        code = ctypes.get_errno()
        if code not in (errno.ENOENT, errno.ENOTDIR):
            refusal = code
            if code != errno.EACCES:
                break
    raise OSError(refusal, os.strerror(refusal))


def _pointers(words: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)
