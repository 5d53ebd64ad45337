"""Real targets and a real tracelloc, spoken to by handshake instead of by waiting."""

import atexit
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn, Self

import pytest

from tests.commands import outcome
from tests.forked import FORK_OPTIONS, FORKER, ForkedPopen
from tests.forked import PATIENCE_S as PATIENCE_S
from tracelloc.model.frames import Frame
from tracelloc.record.sources.preloaded.launching import path_for_loaders
from tracelloc.record.sources.preloaded.sharedarea import LIBRARY
from tracelloc.record.symbolization.symbolizer import Symbolizer

ROOT = Path(__file__).parents[1]
TARGETS = ROOT / "tests" / "targets"
DATA = ROOT / "tests" / "data"
# Where Debian keeps this machine's libraries.
LIBRARIES = Path(f"/usr/lib/{os.uname().machine}-linux-gnu")
# Whether the machine is so slow that tracelloc's last report needs more time for names.
IS_SLOW = "TEST_PATIENCE_S" in os.environ

CHAIN_BYTES = 1111 + 2222 + 4096 + 333  # What `chain.c` allocates, in 4 blocks
FRAME_POINTERS = ("-fno-omit-frame-pointer", "-fno-optimize-sibling-calls")


def made_once(out: Path, make: Callable[[Path], None]) -> Path:
    """A file or directory that processes share; the first one makes it under another name."""
    with out.with_name(f"{out.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            part = out.with_suffix(".part")
            make(part)
            part.rename(out)
    return out


class Builder:
    """Compiles target programs into a directory, which several of them may share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _build(self, name: str, command: Sequence[str]) -> Path:
        digest = hashlib.blake2b("\0".join(command).encode(), digest_size=4).hexdigest()

        def compile_to(out: Path) -> None:
            subprocess.run([*command, "-o", str(out)], check=True, timeout=PATIENCE_S)

        return made_once(self._directory / f"{name}-{digest}", compile_to)

    def c(self, name: str, *flags: str, compiler: str = "gcc") -> Path:
        """``tests/targets/NAME.c``, with frame pointers unless flags say otherwise."""
        # On 64-bit Arm, gcc's own helpers for atomic operations need glibc.
        is_bare = (compiler, os.uname().machine) == ("musl-gcc", "aarch64")
        return self._build(
            name,
            [compiler, "-O1", "-g", "-Wall", "-Wextra", "-fno-builtin", *FRAME_POINTERS, "-pthread",
             *(["-mno-outline-atomics"] if is_bare else []), str(TARGETS / f"{name}.c"), *flags],
        )  # fmt: skip

    def cpp(self, name: str, *flags: str) -> Path:
        return self._build(
            name,
            ["g++", "-std=c++20", "-O1", "-g", "-Wall", "-Wextra", *FRAME_POINTERS,
             str(TARGETS / f"{name}.cpp"), *flags],
        )  # fmt: skip

    def rust(self, name: str, *flags: str) -> Path:
        """``tests/targets/NAME.rs``, std only."""
        return self._build(
            name,
            ["rustc", "--edition=2021", "-C", "opt-level=1", "-C", "force-frame-pointers=yes",
             str(TARGETS / f"{name}.rs"), *flags],
        )  # fmt: skip


def own_libc(directory: Path) -> dict[str, str]:
    """Returns an environment in which programs load a copy of libc from this directory.

    The kernel keeps breakpoints by file: other tests' probes in libc neither show up in the copy
    nor take its breakpoints away when they are detached.
    """
    (libc,) = {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith("/libc.so.6")
    }
    if not (directory / "libc.so.6").exists():
        shutil.copy(libc, directory)
    return {**os.environ, "LD_LIBRARY_PATH": str(directory)}


def wait_until(
    is_so: Callable[[], Any], pause_s: float = 0.02, patience_s: float = PATIENCE_S
) -> Any:
    """Waits until the function's result is true, and returns it."""
    deadline = time.monotonic() + patience_s
    while not (found := is_so()):
        assert time.monotonic() < deadline
        time.sleep(pause_s)
    return found


def read_line(stream: Any, what: str) -> str:
    """One line from an unbuffered pipe, or an error when it does not come."""
    deadline = time.monotonic() + PATIENCE_S
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError(f"{what} said nothing; so far {line!r}")
        byte = os.read(stream.fileno(), 1)
        if not byte:
            raise EOFError(f"{what} ended; last words {line!r}")
        line += byte
    return line.decode(errors="replace").rstrip("\n")


def await_line(stream: Any, words: str, what: str = "tracelloc") -> None:
    """Reads lines up to one that holds these words."""
    while words not in read_line(stream, what):
        pass


class Target:
    """A target program that answers each line it is sent with one line."""

    def __init__(self, command: Sequence[str | Path | int], **options: Any) -> None:
        if USES_LIBRARY:
            environment = options.get("env") or os.environ
            others = environment.get("LD_PRELOAD")
            preloaded = f"{PRELOADED}:{others}" if others else str(PRELOADED)
            options["env"] = {**environment, "LD_PRELOAD": preloaded}
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            **options,
        )
        self.pid = self.process.pid
        assert self.hear() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def hear(self) -> str:
        return read_line(self.process.stdout, "the target")

    def say(self, line: str) -> None:
        self.process.stdin.write(line.encode() + b"\n")

    def ask(self, line: str) -> str:
        self.say(line)
        return self.hear()

    def end(self) -> int:
        """Closes its input, upon which it ends."""
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Targets(list[Target]):
    """The targets that a test has started. ``c``, ``cpp`` and ``rust`` compile what they start."""

    def __init__(self, builder: Builder) -> None:
        super().__init__()
        self.builder = builder

    def c(
        self, name: str, *arguments: str | Path | int, flags: Sequence[str] = (),
        compiler: str = "gcc", **options: Any,
    ) -> Target:  # fmt: skip
        return self.start(self.builder.c(name, *flags, compiler=compiler), *arguments, **options)

    def cpp(
        self, name: str, *arguments: str | Path | int, flags: Sequence[str] = (), **options: Any
    ) -> Target:
        return self.start(self.builder.cpp(name, *flags), *arguments, **options)

    def rust(self, name: str, *arguments: str | Path | int, flags: Sequence[str] = ()) -> Target:
        return self.start(self.builder.rust(name, *flags), *arguments)

    def start(self, *command: str | Path | int, **options: Any) -> Target:
        """Starts one, which is killed at the end of the test."""
        target = Target(command, **options)
        self.append(target)
        return target


PRELOADED = path_for_loaders(LIBRARY)  # The library for `LD_PRELOAD`, wherever this tree is
# Whether targets have the library preloaded and report by themselves, where they can.
USES_LIBRARY = bool(os.environ.get("TEST_PRELOAD"))
_PROBED = "--preload", "--follow", "--mmap", "--max-overhead", "--stacks", "--malloc", "--allocator"

# What the README says that is enough, as setpriv(1) names it.
CAPABILITIES = "bpf", "perfmon", "sys_ptrace"


def only_with_capabilities() -> list[str]:
    """What starts a command as root in name only: with these capabilities, and no others."""
    kept = ",".join(["-all", *(f"+{name}" for name in CAPABILITIES)])
    return ["setpriv", f"--inh-caps={kept}", f"--bounding-set={kept}"]


def tracelloc_command(*arguments: str | Path | int, module: str = "tracelloc") -> list[str]:
    """The command as a user would have it, from this environment.

    With ``TEST_CAPABILITIES`` set, it has the documented capabilities instead of all.
    On slow machines, it is ``tests.patient``.
    """
    if IS_SLOW and module == "tracelloc":
        module = "tests.patient"
    arguments = _with_defaults(arguments, module)
    if USES_LIBRARY:
        arguments = _by_library(arguments)
    rights = only_with_capabilities() if os.environ.get("TEST_CAPABILITIES") else []
    if rights and "perf" in arguments:
        pytest.skip("probes by perf events need CAP_SYS_ADMIN")
    return [*rights, sys.executable, "-m", module, *map(str, arguments)]


def _with_defaults(
    arguments: tuple[str | Path | int, ...], module: str
) -> tuple[str | Path | int, ...]:
    """Adds what all traces have in tests, unless one asks for something else.

    Blocks from before tracing are left out. Programs with the preloaded library wait longer for
    tracelloc than a second, after which they lose events: beside a load it may be away for longer.
    """
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    is_trace = module == "tests.sabotage" or (
        bool(arguments) and (str(arguments[0]).startswith("-") or arguments[0] == "record")
    )
    process = [n for n, word in enumerate(options) if word in ("-p", "-n")]
    added: list[str] = []
    if process and "--earlier" not in options:
        added += ["--earlier", "off"]
    if (len(options) < len(arguments) or "--preload" in options) and "--max-stall" not in options:
        added += ["--max-stall", "1m"]
    at = process[0] if process else len(options)
    return (*arguments[:at], *added, *arguments[at:]) if is_trace else arguments


def _by_library(arguments: tuple[str | Path | int, ...]) -> tuple[str | Path | int, ...]:
    """Asks for the preloaded library where a process is traced and nothing needs probes."""
    process = [n for n, word in enumerate(arguments) if word in ("-p", "-n", "--")]
    given = arguments[: arguments.index("--") if "--" in arguments else None]
    is_trace = bool(process) and (str(arguments[0]).startswith("-") or arguments[0] == "record")
    if not is_trace or any(str(word).startswith(_PROBED) for word in given):
        return arguments
    return (*arguments[: process[0]], "--preload", "on", *arguments[process[0] :])


def started(*arguments: str | Path | int, module: str, **options: Any) -> subprocess.Popen[Any]:
    """A tracelloc: forked from a process that has its modules, where nothing else is asked for."""
    command = tracelloc_command(*arguments, module=module)
    plain = [sys.executable, "-m", "tracelloc"]
    variables = options.get("env") or os.environ
    is_plain = command[:3] == plain and options.keys() <= FORK_OPTIONS
    if is_plain and FORKER.can_fork(variables, has_command="--" in command):
        return ForkedPopen(command[3:], **options)
    return subprocess.Popen(command, **options)


class Tracelloc:
    """A running tracelloc, from the moment its probes are live."""

    def __init__(self, *arguments: str | Path | int, module: str = "tracelloc") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trace-")  # removed with this object
        self.out = Path(self._folder.name) / "out"
        self._reports = self.out
        # Where arguments of a module's own come first, options follow them.
        own = 2 if module == "tests.sabotage" else 0
        if "--" in arguments and "--report" not in arguments:
            # Else they are among the messages: standard output is the program's.
            self._reports = self.out.with_suffix(".report")
            arguments = (*arguments[:own], "--report", self._reports, *arguments[own:])
        if "--json" in arguments:
            # Tests read single reports; what these leave out has tests of its own.
            arguments = (*arguments[:own], "--json-full", *arguments[own:])
        if "--interval" not in arguments:
            arguments = (*arguments[:own], "--interval", "1s", *arguments[own:])
        with self.out.open("wb") as out:
            self.process = started(
                *arguments,
                module=module,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        self.messages: list[str] = []
        self.wait_for("tracing")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_for(self, words: str) -> str:
        """The next message on standard error that holds these words."""
        while True:
            try:
                line = read_line(self.process.stderr, "tracelloc")
            except EOFError as error:
                raise AssertionError(f"never said {words!r}: {self.messages}") from error
            self.messages.append(line)
            if words in line:
                return line

    def finish(self) -> int:
        """Waits until it has ended by itself. Returns its exit status."""
        rest = self.process.stderr.read() or b""
        self.messages.extend(rest.decode(errors="replace").splitlines())
        self.process.stderr.close()
        return self.process.wait(PATIENCE_S)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Ends it by a signal. Returns its exit status."""
        self.process.send_signal(number)
        return self.finish()

    def final_report(self) -> dict[str, Any]:
        """Ends it, which has to succeed. Returns the last JSON report."""
        assert self.stop() == 0
        return self.last()

    def kill(self) -> None:
        """Ends it, whatever it is doing, unless it has ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def text(self) -> str:
        """What it has reported."""
        return self._reports.read_text()

    def await_text(self, words: str) -> None:
        """Waits until it has reported these words."""
        wait_until(lambda: words in self.text())

    def reports(self) -> list[dict[str, Any]]:
        """The JSON reports it has written."""
        whole = self.text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def await_report(
        self, is_it: Callable[[dict[str, Any]], bool], patience_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """The first JSON report that this is true of."""
        deadline, seen = time.monotonic() + patience_s, 0
        while True:
            lines = self.text().rpartition("\n")[0].splitlines()
            for line in lines[seen:]:
                report: dict[str, Any] = json.loads(line)
                if is_it(report):
                    return report
            seen = len(lines)
            assert time.monotonic() < deadline, f"no such report; messages: {self.messages}"
            time.sleep(0.05)

    def last_of(self, pid: int) -> dict[str, Any]:
        """The last report about one process."""
        return next(report for report in reversed(self.reports()) if report["pid"] == pid)

    def last(self) -> dict[str, Any]:
        return self.reports()[-1]


def traced(target: Target, request: str, *options: str | Path | int) -> tuple[Any, dict[str, Any]]:
    """Has a target do something while it is traced. Returns its books, if any, and the report."""
    tracer = Tracelloc("-p", target.pid, "--json", *options)
    answer = target.ask(request)
    assert answer == "done" or answer[0] in "[{"
    return None if answer == "done" else json.loads(answer), tracer.final_report()


def folded_sum(path: Path) -> int:
    """The sum of a file of folded stacks."""
    return sum(int(line.rpartition(" ")[2]) for line in path.read_text().splitlines())


def reports_among(messages: str) -> str:
    """The JSON lines on a standard error that has messages, too."""
    return "".join(line for line in messages.splitlines(keepends=True) if line.startswith("{"))


def run_tracelloc(
    *arguments: str | Path | int, status: int | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs tracelloc to its end, both outputs kept. ``status``: what it has to end with."""
    with started(
        *arguments,
        module="tracelloc",
        stdin=options.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as process:
        try:
            output, errors = process.communicate(timeout=PATIENCE_S)
        except BaseException:
            process.kill()
            raise
    assert status in (None, process.returncode), errors
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


# A program's ru_maxrss begins with what the process had that executed it (getrusage(2)): not ours.
_MEASURE: Final = """
import os, sys
_, status, used = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)
print(used.ru_maxrss << 10, used.ru_utime + used.ru_stime, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def measured_command(*arguments: str | Path | int) -> list[str]:
    """Runs tracelloc; the last line of standard error is for ``split_measured``."""
    return [sys.executable, "-S", "-c", _MEASURE, *tracelloc_command(*arguments)]


def split_measured(said: str) -> tuple[str, int, float]:
    """Returns what tracelloc said, its most bytes of RSS and its seconds of CPU."""
    *lines, last = said.splitlines(keepends=True)
    rss_bytes, cpu_s = last.split()
    return "".join(lines), int(rss_bytes), float(cpu_s)


def run_measured(*arguments: str | Path | int) -> tuple[int, Any, int, float]:
    """Runs tracelloc. Returns its exit status, its JSON, bytes of RSS and seconds of CPU."""
    done = outcome(*measured_command(*arguments))
    return done.returncode, json.loads(done.stdout), *split_measured(done.stderr)[1:]


def open_files(pid: int) -> list[str]:
    """The targets of a process's descriptors; skips the test if it is another user's."""
    try:
        return [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except PermissionError:
        refused("another user's open files can't be listed")


def refused(what: str) -> NoReturn:
    """Skips a test for what the machine refuses; fails it where ``TEST_COMPLETE`` asks for all."""
    if os.environ.get("TEST_COMPLETE"):
        pytest.fail(what)
    pytest.skip(what)


@cache
def may_mount() -> bool:
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@cache
def bytecode_of_nobody() -> str:
    """A folder for bytecode, which takes nobody two seconds to make."""
    folder = Path(tempfile.mkdtemp(prefix="bytecode-"))
    os.chown(folder, 65534, 65534)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(folder)


def as_nobody(*arguments: str | Path | int, module: str = "tracelloc") -> list[str]:
    """A command line that runs tracelloc as an ordinary user would; needs root.

    Nobody may be unable to look into the directory that this checkout lies in: it is at /mnt, in a
    mount namespace of its own. ``module``: another one that is run instead.
    """
    root = str(TARGETS.parents[1])
    if not may_mount():
        refused("a mount namespace is refused")
    python = sys.executable.replace(root, "/mnt", 1)
    bind = 'mount --bind "$0" /mnt && exec env "$@"'
    variables = [
        "PYTHONPATH=/mnt", "HOME=/nonexistent", f"PYTHONPYCACHEPREFIX={bytecode_of_nobody()}",
    ]  # fmt: skip
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    words = [*variables, *user, python, "-m", module, *map(str, arguments)]
    return ["unshare", "--mount", "sh", "-c", bind, root, *words]


def frames_of(
    symbolizer: Symbolizer, addresses: Iterable[int], timeout_s: float | None = None
) -> list[Frame]:
    """The frames of return addresses, looked up, as far as they are known after the time."""
    addresses = list(addresses)
    symbolizer.prepare(addresses, timeout_s)
    return symbolizer.peek(addresses)
