"""What goes wrong around us, and our own death at any step: said in a line, and no harm done."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands import outcome
from tests.faultyworker import CRASH, add_fault
from tests.harness import PATIENCE_S, ROOT, Builder, Target, Tracelloc, run_tracelloc, wait_until
from tests.integration.test_interrupts import IN_DISCOVERY, IN_ENDING, IN_ROWS, SlowTracelloc
from tracelloc.errors import TargetError
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.sessionstart import attach_to

pytestmark = [pytest.mark.bpf, pytest.mark.long]

BUSY = """
import ctypes, os, subprocess, sys, time
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
print("ready", flush=True)
for line in sys.stdin:
    started = time.process_time_ns()
    for number in range(20000):
        libc.free(libc.malloc(number))
    took = time.process_time_ns() - started
    child = os.fork()
    if not child:
        libc.free(libc.malloc(5))
        os._exit(3)
    forked = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    executed = subprocess.run(["/bin/sh", "-c", "exit 4"]).returncode
    print(forked, executed, took, flush=True)
"""


@pytest.fixture
def busy() -> Iterator[Target]:
    target = Target(["/usr/bin/python3", "-c", BUSY])
    yield target
    target.kill()


def code_of(pid: int) -> dict[str, bytes]:
    """The code of the C library as it is in memory."""
    process = Process(pid)
    return {
        mapping.path: process.read_memory(mapping.start, mapping.end - mapping.start)
        for mapping in process.maps().mappings
        if mapping.executable and "libc.so" in mapping.path
    }


def await_clean(pid: int, code: dict[str, bytes]) -> None:
    """Waits until no breakpoint is left."""
    wait_until(lambda: code_of(pid) == code)


IN_ATTACH = """
from tracelloc.record.kernel.bpf import Capture
attach = Capture.attach
def attach_half(self, pid, points):
    kept.append(attach(self, pid, points[: len(points) // 2]))
    slowly()
kept = []
Capture.attach = attach_half
"""
IN_DETACH = """
from tracelloc.record.session.processes import Processes
Processes.detach = lambda *a, **m: slowly()
"""
IN_FORK = """
from tracelloc.record.session.session import Session
Session.forked = lambda *a, **m: slowly()
"""
IN_EXEC = """
from tracelloc.record.session.session import Session
Session.executed = lambda *a, **m: slowly()
"""
STEPS = {
    "discovery": IN_DISCOVERY, "attach": IN_ATTACH, "rows": IN_ROWS, "stop": IN_ENDING,
    "detach": IN_DETACH, "fork": IN_FORK, "exec": IN_EXEC,
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step(busy: Target, step: str) -> None:
    """The target goes on, with the code and the speed that it had, and so do its children."""
    code, (*statuses, before_ns) = code_of(busy.pid), busy.ask("go").split()
    assert statuses == ["3", "4"]
    options = ["--follow"] if step in ("fork", "exec") else []
    slow = SlowTracelloc(STEPS[step], "-p", busy.pid, "--text", *options)
    if step in ("fork", "exec"):
        slow.wait_for("tracing")
        busy.say("go")
    elif step in ("stop", "detach"):
        slow.wait_for("tracing")
        slow.process.send_signal(signal.SIGINT)
    slow.wait_for("at it")
    assert slow.end(signal.SIGKILL) == -signal.SIGKILL
    if step in ("fork", "exec"):
        assert busy.hear().split()[:2] == ["3", "4"]
    await_clean(busy.pid, code)
    assert Process(busy.pid).tracer_id() == 0
    # Traps cost a hundred times as much as the calls: a factor of ten is no matter of load.
    answers = [busy.ask("go").split() for _ in range(3)]
    assert all(answer[:2] == ["3", "4"] for answer in answers)
    assert min(int(answer[2]) for answer in answers) < 3 * int(before_ns)


def limited(kind: int, bound: int) -> Any:
    def prepare() -> None:
        resource.setrlimit(kind, (bound, bound))

    return prepare


@pytest.mark.parametrize("files", [12, 20, 32, 48, 64, 96])
def test_too_few_descriptors(busy: Target, files: int) -> None:
    code = code_of(busy.pid)
    done = run_tracelloc(
        "-p", busy.pid, "--text", "--count", "1", preexec_fn=limited(resource.RLIMIT_NOFILE, files)
    )
    assert "this is a bug" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert "error: " in done.stderr.splitlines()[-1]
        assert "too many open files" in done.stderr.splitlines()[-1].lower()
    await_clean(busy.pid, code)
    assert busy.ask("go").split()[:2] == ["3", "4"]


@pytest.mark.parametrize("files", [44, 48, 52, 53, 54, 55, 56, 60])
def test_too_few_descriptors_for_a_launch(files: int) -> None:
    done = run_tracelloc(
        "--text", "--", "/bin/true", preexec_fn=limited(resource.RLIMIT_NOFILE, files)
    )
    if done.returncode:
        assert "too many open files" in done.stderr.splitlines()[-1].lower()


@pytest.mark.parametrize("mebibytes", [*range(146, 155), 300, 500])
def test_too_little_memory(busy: Target, mebibytes: int) -> None:
    code = code_of(busy.pid)
    done = run_tracelloc(
        "-p", busy.pid, "--text", "--count", "1",
        preexec_fn=limited(resource.RLIMIT_AS, mebibytes << 20),
    )  # fmt: skip
    assert "this is a bug" not in done.stderr, done.stderr
    await_clean(busy.pid, code)
    assert busy.ask("go").split()[:2] == ["3", "4"]


def test_another_process_with_the_same_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found out before anything is reported; what was attached is gone."""
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"begun\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"begun\n"
    code = code_of(process.pid)
    ticks = iter([1, 2])
    monkeypatch.setattr(Process, "start_ticks", lambda _: next(ticks))
    with pytest.raises(TargetError, match="another one has its PID now"):
        attach_to(Process(process.pid), TraceConfig())
    await_clean(process.pid, code)
    process.communicate()
    assert AddressSpace(Process(os.getpid())).refresh()


@pytest.mark.parametrize(
    ("sections", "missing", "is_whole"),
    [
        ([], "names in {path}", False),
        ([".fault.code"], "functions and unwind entries in {path}", True),
        ([".fault.rows"], "unwind entries in {path}", True),
        ([".fault.rows", ".fault.stacks"],
         "call stacks of process {pid} that the probes can't follow", False),
    ],
    ids=["names", "discovery", "rows", "stacks"],
)  # fmt: skip
def test_a_file_that_ends_what_reads_it(
    builder: Builder, tmp_path: Path, sections: list[str], missing: str, is_whole: bool
) -> None:
    """One message reports what is missing. Figures are exact, and other files have names."""
    path = add_fault(builder.c("books"), CRASH, tmp_path / "books", *sections)
    with Target([path, 4, 20_000, 11, 300]) as target:
        tracer = Tracelloc("-p", target.pid, "--json", module="tests.faultyworker")
        target.ask("run")
        what = f"tracelloc: warning: {missing.format(path=path, pid=target.pid)} are missing"
        before = [line for line in tracer.messages if line.startswith(what)]
        said = before[0] if before else tracer.wait_for(what)
        books = json.loads(target.ask("run"))
        assert tracer.stop() == 0, tracer.messages
    assert said == f"{what}: the process that reads them was killed by signal 11"
    assert tracer.messages.count(said) == 1
    report = tracer.last()
    assert not any(report["lost"].values())
    figures = report["live_allocations"], report["live_bytes"]
    assert figures == tuple(map(sum, zip(*books.values(), strict=True)))
    frames = [frame for top in report["top_allocators"] for frame in top["stack"]]
    assert ("work" in {frame["symbol"] for frame in frames}) == is_whole
    if not sections:
        assert any(frame["symbol"] and "libc" in frame["module"] for frame in frames)
        unread = {(f["symbol"], f["reason"]) for f in frames if f["module"] == str(path)}
        assert unread == {(None, "its symbols can't be read")}


# Every how many steps, by the way of attaching: of all cases, some in the long run.
SOME = {"probes": 20, "follow": 30, "inject": 30, "preloaded": 20}
ALL = {"probes": 3, "follow": 4, "inject": 9, "preloaded": 4, "perf": 12}


@pytest.mark.parametrize(
    ("way", "every"),
    [*SOME.items(), *(pytest.param(*each, marks=pytest.mark.nightly) for each in ALL.items())],
)
def test_disturbances(builder: Builder, way: str, every: int) -> None:
    """tracelloc or the program is stopped or killed at any step of a trace's beginning and end.

    The program's books and the figures are equal, then or in the next trace.
    """
    command = sys.executable, "-m", "tests.disturbed", way, every, builder.c("books")
    run = outcome(*command, 2, 2000, 1, 300, cwd=ROOT, timeout=20 * PATIENCE_S)
    *wrong, last = run.stdout.splitlines() or [""]
    assert (run.returncode, wrong) == (0, []), run.stdout + run.stderr
    cases, steps = int(last.split()[0]), int(last.split()[3])
    assert cases == steps // every * 4 > 0
