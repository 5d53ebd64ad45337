"""What fails fails alone: it is counted and reported, and snapshots can still be taken."""

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.harness import PATIENCE_S
from tests.unit.events import A
from tests.unit.stage import Stages
from tracelloc.errors import TargetError, UnsupportedError
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.runtimes.cpython.types import are_mapped
from tracelloc.record.session import processfacts
from tracelloc.record.session.session import Session
from tracelloc.record.tasks.supervision import BoundedWork, Supervisor
from tracelloc.show.presentation.processfacts import losses_line


def fail(error: Exception) -> Callable[..., Any]:
    def work(*_arguments: object, **_more: object) -> None:
        raise error

    return work


def some_ended() -> int:
    """The PID of a process that has ended and is not waited for."""
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child


def test_tasks_that_fail() -> None:
    said: list[str] = []
    now_s = [0.0]
    supervisor = Supervisor(said.append, clock_s=lambda: now_s[0])
    tries: list[float] = []

    def work() -> None:
        tries.append(now_s[0])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    while now_s[0] < 100:
        assert supervisor.run("reading", 1, work) is None
        now_s[0] += 0.5
    assert tries == [0, 1, 11]
    assert supervisor.has_given_up("reading", 1)
    assert supervisor.failures == {"reading": 3}
    (line,) = said
    assert line.endswith("process 1 failed: Input/output error; tracing goes on without")
    # Another process, and the next program of this one, are not concerned.
    assert supervisor.run("reading", 2, lambda: 5) == 5
    supervisor.forget(1)
    assert supervisor.run("reading", 1, lambda: 6) == 6
    pid = some_ended()
    supervisor = Supervisor()
    assert supervisor.run("reading", pid, fail(TargetError("it has ended"))) is None
    assert not supervisor.failures
    supervisor.run("reading", pid, fail(IndexError()))
    assert supervisor.failures == {"reading": 1}
    os.waitpid(pid, 0)
    # A zombie has none: an index out of range, once.
    pid = some_ended()
    memory = RemoteMemory(Process(pid))
    assert are_mapped(memory, np.array([0, 1 << 40], np.uint64)).tolist() == [False, False]
    os.waitpid(pid, 0)


def test_failures_in_a_row_count_and_are_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = [0.0]
    supervisor = Supervisor(clock_s=lambda: now_s[0])
    for n in range(20):
        now_s[0] = 100.0 * n
        supervisor.run("often", 1, fail(ValueError()) if n % 3 else lambda: None)
    assert not supervisor.has_given_up("often", 1)
    said: list[str] = []
    supervisor = Supervisor(said.append, debug=True)
    for pid in range(1, 100):
        supervisor.run("reading", -pid, fail(ValueError("no")))
        supervisor.forget(-pid)
    assert supervisor.failures == {"reading": 99}
    assert len(said) == 4
    assert said[-1].endswith("; more are counted, not reported")
    assert capsys.readouterr().err.count("ValueError: no\n") == 99


def test_a_library_mapped_later_that_cannot_be_probed(stage: Stages) -> None:
    play, error = stage(), UnsupportedError("too many open files")
    root = play.session.root
    root.check_for_changes = lambda *_: None  # type: ignore[method-assign] - it is due at any time
    root.probes.points.append(None)  # type: ignore[arg-type] - what is probed by now
    root.probes.attach = fail(error)  # type: ignore[method-assign]
    play.play(play.image(play.root), (A, 16, 100, 1, 7))
    root._see(["libx.so"])  # type: ignore[list-item]
    root.probes.points.clear()
    now = play.now()[play.root]
    assert (now.live_bytes, now.losses.failed_tasks) == (100, {"probing of libraries": 1})
    assert "probing of libraries failed" in losses_line(now)
    (said,) = play.said
    assert f"probing of libraries of process {play.root} failed: {error}" in said


def test_upkeep_and_a_pump_that_fail(stage: Stages) -> None:
    """By a bug, say: of two processes only the one concerned has no samples and no verdicts."""
    play = stage()
    child = play.child()
    one, two = play.session.processes.every
    for part, name in ((one, "check_for_changes"), (one, "take_samples"), (one.judging, "go_on")):
        setattr(part, name, fail(KeyError("a bug")))
    for pid in (play.root, child):
        play.play(play.image(pid), (A, 16, 100, 1, 7))
    assert play.figures() == {play.root: (100, 1), child: (100, 1)}
    play.run_upkeep(after_s=10)
    assert two.judging.judged_ns
    failed = play.now()[child].losses.failed_tasks
    assert set(failed) == {"care of probes", "taking samples", "judging"}
    assert len(play.said) == 3
    assert play.session._failure is None
    play = stage()
    play.play(play.image(play.root), (A, 16, 100, 1, 7))
    assert play.figures() == {play.root: (100, 1)}
    play.capture.drain.take_batch = fail(ValueError("a bug"))  # type: ignore[method-assign]
    os.eventfd_write(play.capture.wakeup_fds[0], 1)
    assert wait_for_failure(play.session) == "tracing failed: ValueError: a bug"
    play.session._pump_thread.join(PATIENCE_S)
    assert play.figures() == {play.root: (100, 1)}
    play.session.stop()
    now = play.now()[play.root]
    assert (now.live_bytes, now.losses.failed_tasks) == (100, {"tracing": 1})


def test_a_census_that_never_ends(stage: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may be such that reading it waits for the process: snapshots don't."""
    monkeypatch.setattr(processfacts, "_FACET_PATIENCE_S", 0.2)
    play = stage()
    root = play.session.root
    began, may_end = threading.Event(), threading.Event()

    def hang() -> bool:
        began.set()
        return may_end.wait(PATIENCE_S) and False

    monkeypatch.setattr(root.facets["objects"]._watches[0]._search, "has_python", hang)
    try:
        first = play.now(SnapshotRequest(objects=True))[play.root]
        assert began.is_set()
        assert first.rss_bytes
        # Nobody waits for it again, however long one would wait.
        monkeypatch.setattr(processfacts, "_FACET_PATIENCE_S", 1e6)
        again = play.now(SnapshotRequest(objects=True))[play.root]
        assert again.losses.failed_tasks == {"object census": 1}
        assert "object census of process" in play.said[0]
    finally:
        may_end.set()


def test_bounded_work() -> None:
    may_end, bounded = threading.Event(), BoundedWork("test")
    assert bounded.run(lambda: 5, PATIENCE_S) == 5
    with pytest.raises(KeyError):
        bounded.run(lambda: {}[1], PATIENCE_S)
    with pytest.raises(TimeoutError, match="it takes more than 0"):
        bounded.run(lambda: may_end.wait(PATIENCE_S), 0.01)
    assert bounded.is_overdue
    with pytest.raises(TimeoutError, match="still"):
        bounded.run(lambda: 5, PATIENCE_S)
    may_end.set()
    bounded._overdue.result(PATIENCE_S)
    assert bounded.run(lambda: 6, PATIENCE_S) == 6


def wait_for_failure(session: Session) -> str:
    """Why tracing has failed."""
    told: list[str] = []
    has_failed = threading.Event()
    session.when_failed(lambda error: (told.append(str(error)), has_failed.set())[1])
    assert has_failed.wait(PATIENCE_S)
    return told[0]


def test_a_limit_that_is_broken_ends_it(stage: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target must not pay more than it may: that is no task to go on without."""
    play = stage()

    class Unmeasured:
        probe_share = None
        check = staticmethod(fail(UnsupportedError("--max-overhead can't measure it here")))

        def cancel(self) -> None:
            """There is nothing to end."""

        join = cancel

    play.session._upkeep._overhead = Unmeasured()  # type: ignore[assignment]
    assert "--max-overhead can't measure it here" in wait_for_failure(play.session)
