"""System calls that wait return what they would untraced, whatever stops their threads.

Where a tracer stops a thread, or the thread gets a signal that the program ignores, some calls fail
with EINTR although no handler runs (signal(7)). ``blocked.c`` has a thread in each of these calls.
"""

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path

import pytest

from tests.harness import PATIENCE_S, Builder, Tracelloc, started, wait_until
from tests.unit.record.session.test_follower import Told
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.follower import Follower
from tracelloc.record.sources.injected.remotecalls import StoppedProcess

pytestmark = [pytest.mark.bpf, pytest.mark.long]

# What the program is told, one after the other. In between, "paused" stops it and lets it go on.
SEQUENCES = ("state", "ignored", "release"), ("restart", "handle"), ("state", "paused", "ignored")
Start = Callable[[Sequence[str]], AbstractContextManager[None]]
Attach = Callable[[int], AbstractContextManager[object]]
Answers = Callable[[Sequence[str]], list[set[str]]]


@contextmanager
def alone(command: Sequence[str]) -> Iterator[None]:
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def launched(*options: str, command: Sequence[str]) -> Iterator[None]:
    streams = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.DEVNULL)
    with started(*options, "--", *command, module="tracelloc", **streams) as process:
        yield
        process.wait(PATIENCE_S)


@contextmanager
def traced(pid: int, *options: str) -> Iterator[None]:
    tracer = Tracelloc("-p", pid, "--json", *options)
    yield
    assert tracer.stop() == 0


@contextmanager
def held(pid: int) -> Iterator[None]:
    follower = Follower()
    follower.attach(pid)
    follower.follow(Told())
    follower.hold(pid, lambda _threads: None)
    yield
    follower.hold(pid, lambda _threads: None)
    follower.stop()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    for _ in range(3):
        with StoppedProcess(Process(pid)):
            pass
    yield


def pause(process: Process) -> None:
    def states() -> set[str]:
        tasks = (Path(f"/proc/{process.pid}/task/{each}/stat") for each in process.thread_ids())
        return {each.read_text().rpartition(")")[2].split()[0] for each in tasks}

    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: states() <= {"t", "T"})
    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: not states() & {"t", "T"})


def answers(
    builder: Builder, folder: Path, told: Sequence[str], start: Start, attach: Attach
) -> list[set[str]]:
    """Returns the calls that have ended after each command, and after the trace."""
    path = folder / "socket"
    found = []

    def ask(line: str) -> set[str]:
        if line == "paused":
            pause(Process(int(pid)))
        stream.write(line + "\n")
        stream.flush()
        return set(stream.readline().split())

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(PATIENCE_S)
        with start([str(builder.c("blocked")), str(path), str(folder)]):
            connection, _ = listener.accept()
            connection.settimeout(PATIENCE_S)
            with connection, connection.makefile("rw") as stream:
                ready, pid = stream.readline().split()
                assert ready == "ready"
                with attach(int(pid)):
                    found += [ask(line) for line in told]
                found.append(ask("state"))
                connection.shutdown(socket.SHUT_RDWR)
    return found


STARTS = {
    "follow": ("--follow",),
    "preload": ("--preload", "on"),
    "leaks": ("run", "--leaks"),
}
ATTACHES: dict[str, Attach] = {
    "injected": lambda pid: traced(pid, "--preload", "inject"),
    "followed": lambda pid: traced(pid, "--follow"),
    "held": held,
    "stopped": stopped,
}


@pytest.fixture(scope="module")
def untraced(tmp_path_factory: pytest.TempPathFactory, builder: Builder) -> Answers:
    @cache
    def found(told: Sequence[str]) -> list[set[str]]:
        folder = tmp_path_factory.mktemp("untraced")
        return answers(builder, folder, told, alone, lambda _: nullcontext())

    return found


@pytest.mark.parametrize("told", SEQUENCES, ids="-".join)
@pytest.mark.parametrize("way", [*STARTS, *ATTACHES])
def test_calls(
    builder: Builder, tmp_path: Path, untraced: Answers, way: str,
    told: Sequence[str],
) -> None:  # fmt: skip
    start: Start = alone
    if way in STARTS:
        start = lambda command: launched(*STARTS[way], command=command)  # noqa: E731
    attach = ATTACHES.get(way, lambda _: nullcontext())
    expected = untraced(told)
    assert len(expected[-1]) >= 13
    for found, right in zip(answers(builder, tmp_path, told, start, attach), expected, strict=True):
        assert found ^ right == set()


@pytest.mark.parametrize(
    ("number", "word"),
    [(signal.SIGURG, "ignored"), (signal.SIGUSR2, "restart"), (signal.SIGUSR1, "handle")],
)
def test_signals_that_come_while_stopped(
    builder: Builder, tmp_path: Path, untraced: Answers,
    number: signal.Signals, word: str,
) -> None:  # fmt: skip
    @contextmanager
    def sends(pid: int) -> Iterator[None]:
        with StoppedProcess(Process(pid)) as process:
            for thread_id in set(process.thread_ids) - {pid}:
                ctypes.CDLL(None).tgkill(pid, thread_id, number)
        yield

    found = answers(builder, tmp_path, ["state"], alone, sends)
    assert found[-1] ^ untraced((word,))[-1] == set()
