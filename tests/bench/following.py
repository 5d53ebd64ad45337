"""What does ``--follow`` cost programs that start many others?

Programs that live by making others are measured, each beside itself untraced.
tracelloc is attached as a user would, with text reports to a file. In between they are measured
with three empty probes in all processes, the least that any tracer of malloc and free costs.
"""

import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.bench.allocator import find_allocator
from tests.bench.empty import empty_probes
from tests.bench.processes import PATIENCE_S, SkippedError, cpu_seconds, end
from tests.harness import read_line, tracelloc_command
from tracelloc.record.process.procfs import Process

FORK: Final = "fork"
EXEC: Final = "fork and exec"
LIMIT_S: Final = 60.0  # After this the units that are done are counted
# Of the program that forks: its children begin with a copy of what is known of them.
LIVE_BLOCKS: Final = 1000
BUSY: Final = 12  # Programs that never wait, beside the one measured
FILES: Final = 50
COMMANDS: Final = 500
_TRUE: Final = "/bin/true"
_SOURCE: Final = """#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int f{n}(const char *text) {{ return printf("%s %d\\n", strdup(text), abs({n})); }}
"""
_MAKEFILE: Final = f"""OBJECTS = $(patsubst %,f%.o,$(shell seq {FILES}))
all: $(OBJECTS)
%.o: %.c
\t$(CC) -O1 -c -o $@ $<
"""
_SHELL: Final = f"i=0; while [ $i -lt {COMMANDS} ]; do {_TRUE}; i=$((i+1)); echo $i; done"
_TICK_S: Final = 0.02
_IDLE_S: Final = 0.3
_POSTGRES_USER: Final = "postgres"
_SHORTEST_S: Final = 4  # Of pgbench, which counts in whole seconds


@dataclass(frozen=True)
class Done:
    """Work, of which not all may have been done when its time was up."""

    units: int
    seconds: float
    in_fork_ns: int | None = None  # Median time of a call of fork


@dataclass
class Running:
    """A program that waits for work."""

    pid: int
    # Works for about so many seconds, or until all is done that there is, at most `LIMIT_S`.
    work: Callable[[float], Done]


Start = Callable[[Path], AbstractContextManager[Running]]


@dataclass(frozen=True)
class Row:
    """A program."""

    name: str
    unit: str
    start: Start
    commands: tuple[str, ...] = ()  # What must be installed
    # Whether a second time under one tracelloc is measured as well: files are known by then.
    again: bool = False
    warms_up: bool = False  # Whether not even the first time of that kind is to be measured


@contextmanager
def _started(command: Sequence[str], directory: Path, **named: Any) -> Iterator[Any]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        bufsize=0, cwd=directory, start_new_session=True, **named,
    )  # fmt: skip
    try:
        yield process
    finally:
        end(process, whole_group=True)
        for stream in (process.stdin, process.stdout):
            stream.close()


def _tell(process: subprocess.Popen[bytes], word: object) -> None:
    process.stdin.write(f"{word}\n".encode())


@contextmanager
def _forks(scratch: Path, *, program: Path, arguments: Sequence[str] = ()) -> Iterator[Running]:
    """Answers as ``tests/targets/forks.c`` does."""

    def work(seconds: float) -> Done:
        _tell(process, round(seconds * 1000))
        made, took_ns, in_fork_ns = read_line(process.stdout, "forks").split()
        return Done(int(made), int(took_ns) / 1e9, int(in_fork_ns))

    with _started([str(program), str(LIVE_BLOCKS), *arguments], scratch) as process:
        read_line(process.stdout, "forks")
        yield Running(process.pid, work)


@contextmanager
def _beside_busy(start: Start, scratch: Path) -> Iterator[Running]:
    with ExitStack() as busy:
        for _ in range(BUSY):
            busy.enter_context(_started(["sh", "-c", "while :; do :; done"], scratch))
        yield busy.enter_context(start(scratch))


def _shell_work(process: subprocess.Popen[bytes], count: Callable[[], int]) -> Done:
    """Lets a shell go on until it says so; ``count`` gives the units done by then.

    When its time is up, its only child is ended, which does the work.
    """
    began_s = time.monotonic()
    _tell(process, "go")
    ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
    done = Done(count(), time.monotonic() - began_s)
    if not ready:
        for pid in Process(process.pid).child_ids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    read_line(process.stdout, "the shell")
    return done


@contextmanager
def _make(scratch: Path) -> Iterator[Running]:
    """``make -j2``; all is made anew each time."""
    with TemporaryDirectory(dir=scratch) as name:
        directory = Path(name)
        for number in range(1, FILES + 1):
            (directory / f"f{number}.c").write_text(_SOURCE.format(n=number))
        (directory / "Makefile").write_text(_MAKEFILE)
        script = "while read go; do make -j2 >make.log; echo done; done"

        def work(_seconds: float) -> Done:
            for file in directory.glob("*.o"):
                file.unlink()
            return _shell_work(process, lambda: len(list(directory.glob("*.o"))))

        with _started(["/bin/sh", "-c", script], directory) as process:
            yield Running(process.pid, work)


@contextmanager
def _shell(scratch: Path) -> Iterator[Running]:
    """A loop of a command that does nothing."""
    with TemporaryDirectory(dir=scratch) as name:
        log = Path(name) / "log"
        script = f"while read go; do ( {_SHELL} ) >log; echo done; done"

        def work(_seconds: float) -> Done:
            log.write_text("")
            return _shell_work(process, lambda: log.read_text().count("\n"))

        with _started(["/bin/sh", "-c", script], Path(name)) as process:
            yield Running(process.pid, work)


def _postgres_directory() -> str:
    """Where the server's programs are. Raises SkippedError."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        raise SkippedError("postgres is not installed (Debian package postgresql)")
    return str(found[-1].parent)


@contextmanager
def _postgres(_scratch: Path) -> Iterator[Running]:
    """A server of its own, and ``pgbench -C``: a connection, and so a process, for each query."""
    programs = _postgres_directory()
    with TemporaryDirectory(prefix="bench-pg-") as name:
        shutil.chown(name, _POSTGRES_USER, _POSTGRES_USER)
        own = {"user": _POSTGRES_USER, "group": _POSTGRES_USER, "extra_groups": ()}
        call = partial(
            subprocess.run, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
            timeout=LIMIT_S + PATIENCE_S, cwd=name, **own,
        )  # fmt: skip
        data = f"{name}/data"
        call([f"{programs}/initdb", "-A", "trust", "--no-sync", "-D", data])
        server = [f"{programs}/postgres", "-D", data, "-k", name, "-h", "", "-F"]
        client = ["-h", name]

        def work(seconds: float) -> Done:
            words = ["-C", "-S", "-n", "-c", "2", "-T", str(max(_SHORTEST_S, round(seconds)))]
            said = call(["pgbench", *client, *words, "postgres"]).stdout
            done = re.search(r"transactions actually processed: (\d+)", said)
            rate = re.search(r"^tps = ([\d.]+)", said, re.MULTILINE)
            if done is None or rate is None or not float(rate[1]):
                raise SkippedError(f"pgbench said {said!r}")
            return Done(int(done[1]), int(done[1]) / float(rate[1]))

        with _started(server, Path(name), **own) as process:
            _await(lambda: (Path(name) / ".s.PGSQL.5432").exists(), "postgres did not start")
            call(["pgbench", *client, "-i", "-q", "postgres"])
            try:
                yield Running(process.pid, work)
            finally:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE_S)


def _await(is_so: Callable[[], bool], otherwise: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > end_s:
            raise SkippedError(otherwise)
        time.sleep(_TICK_S)


class Profiler:
    """tracelloc at work."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def cpu_s(self) -> float:
        """CPU time of all its threads, once it has nothing left to do."""
        now_s = cpu_seconds(self._process.pid)
        for _ in range(round(PATIENCE_S / _IDLE_S)):
            time.sleep(_IDLE_S)
            before_s, now_s = now_s, cpu_seconds(self._process.pid)
            if now_s - before_s < _IDLE_S / 20:
                break
        return now_s


@contextmanager
def _followed(pid: int, scratch: Path) -> Iterator[Profiler]:
    said = scratch / "follow.err"
    command = tracelloc_command("-p", pid, "--follow", "--text")
    with (scratch / "follow.out").open("wb") as out, said.open("wb") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        _await(lambda: "tracing" in said.read_text() or process.poll() is not None, "no tracelloc")
        if process.poll() is not None:
            raise SkippedError(f"tracelloc: {said.read_text().strip()}")
        yield Profiler(process)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    finally:
        end(process)


@dataclass
class Figures:
    """Of one row, by round."""

    unit: str
    untraced: list[float] = field(default_factory=list)  # Units per second
    empty: list[float] = field(default_factory=list)  # Likewise, with empty probes in all processes
    followed: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)  # tracelloc's own, per unit
    untraced_fork_ns: list[int] = field(default_factory=list)
    followed_fork_ns: list[int] = field(default_factory=list)

    def note(self, alone: Done, empty: Done, done: Done, cpu_s: float) -> None:
        if not alone.units or not empty.units or not done.units:
            raise SkippedError(f"nothing was done in {LIMIT_S:.0f} s")
        self.untraced.append(alone.units / alone.seconds)
        self.empty.append(empty.units / empty.seconds)
        self.followed.append(done.units / done.seconds)
        self.cpu_s.append(cpu_s / done.units)
        if alone.in_fork_ns is not None and done.in_fork_ns is not None:
            self.untraced_fork_ns.append(alone.in_fork_ns)
            self.followed_fork_ns.append(done.in_fork_ns)

    def as_row(self) -> dict[str, Any]:
        """Medians of the rounds."""
        forks = zip(self.untraced_fork_ns, self.followed_fork_ns, strict=True)
        stops = [followed - untraced for untraced, followed in forks]
        rates = zip(self.untraced, self.followed, strict=True)
        return {
            "unit": self.unit,
            "untraced_rate": statistics.median(self.untraced),
            "empty_rate": statistics.median(self.empty),
            "followed_rate": statistics.median(self.followed),
            "slowdown_ratio": statistics.median(alone / done for alone, done in rates),
            "profiler_cpu_s": statistics.median(self.cpu_s),
            "stop_per_fork_ns": statistics.median(stops) if stops else None,
            "untraced_rates": self.untraced,
            "empty_rates": self.empty,
            "followed_rates": self.followed,
        }


def rows(program: Path) -> list[Row]:
    """``program``: that of ``tests/targets/forks.c``."""
    forks = partial(_forks, program=program)
    return [
        Row(FORK, "forks/s", forks, warms_up=True),
        Row(EXEC, "forks/s", partial(forks, arguments=[_TRUE]), warms_up=True),
        Row(f"make -j2, {FILES} files", "files/s", _make, ("make", "cc"), again=True),
        Row("pgbench -C", "connections/s", _postgres, ("pgbench",), warms_up=True),
        Row(f"shell, {COMMANDS} commands", "commands/s", _shell),
        Row(f"{FORK}, load {BUSY}", "forks/s", partial(_beside_busy, forks), warms_up=True),
        Row(
            f"pgbench -C, load {BUSY}",
            "connections/s",
            partial(_beside_busy, _postgres),
            ("pgbench",),
            warms_up=True,
        ),
    ]


def measure(row: Row, seconds: float, scratch: Path, figures: dict[str, Figures]) -> None:
    """One round of a row. Raises SkippedError."""
    missing = [command for command in row.commands if shutil.which(command) is None]
    if missing:
        raise SkippedError(f"{', '.join(missing)} not installed")
    names = [row.name, f"{row.name}, again"][: 2 if row.again else 1]
    with row.start(scratch) as running:
        running.work(seconds / 10)
        alone = running.work(seconds)
        with empty_probes(find_allocator(running.pid), shifted=True, everywhere=True):
            empty = running.work(seconds)
        with _followed(running.pid, scratch) as profiler:
            if row.warms_up:
                running.work(seconds / 10)
            before_s = profiler.cpu_s()
            for name in names:
                done = running.work(seconds)
                after_s = profiler.cpu_s()
                mine = figures.setdefault(name, Figures(row.unit))
                mine.note(alone, empty, done, after_s - before_s)
                before_s = after_s
