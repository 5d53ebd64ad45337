"""Following real processes: whatever becomes of a parent, no child stays stopped."""

import os
import signal
import subprocess
import threading
import time

import pytest

from tests.harness import PATIENCE_S, wait_until
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.follower import Follower

SLEEPS = """
import os, sys
sys.stdin.readline()
if os.fork():
    os.wait()
else:
    os.write(1, b"runs %d\\n" % os.getpid())
    sys.stdin.read()
"""


class Told:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.forks: list[tuple[int, int]] = []
        self.ends: list[int] = []
        self.failures: list[BaseException] = []

    def forked(self, pid: int, thread_id: int, child_pid: int, *, shares: bool) -> None:
        self.forks.append((pid, child_pid))

    def executed(self, pid: int, *, same_thread: bool) -> None:
        """Nobody does."""

    def loaded(self, pid: int) -> None:
        """Nobody does."""

    def ended(self, pid: int, status: int) -> None:
        self.ends.append(pid)

    def failed(self, failure: BaseException) -> None:
        self.failures.append(failure)


class Bereaving(Follower):
    """Fault injection: parents are killed as if their stops after a fork had not been reached."""

    is_late = False  # Whether children stop after their parents' ends have been handled

    def _handle_birth(self, watcher: object, thread_id: int, child_id: int, event: int) -> None:
        os.kill(thread_id, signal.SIGKILL)

    def _handle_first_stop(self, thread_id: int) -> None:
        if self.is_late and Process(thread_id).group_id() == thread_id:
            parent_id = Process(thread_id).parent_pid()
            deadline = time.monotonic() + PATIENCE_S
            while parent_id in self._known and time.monotonic() < deadline:
                found, status = ptrace.wait()
                if status >> 16 in (ptrace.Event.FORK, ptrace.Event.VFORK):
                    os.kill(found, signal.SIGKILL)
                elif not os.WIFSTOPPED(status):
                    self._known.discard(found)
        super()._handle_first_stop(thread_id)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_parent_that_is_killed_before_its_fork_is_seen(is_late: bool) -> None:
    parent = subprocess.Popen(
        ["/usr/bin/python3", "-c", SLEEPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    follower, told = Bereaving(), Told()
    follower.is_late = is_late
    follower.attach(parent.pid)
    follower.follow(told)
    try:
        parent.stdin.write(b"go\n")
        # Without help it stays stopped: this test's patience is at an end then.
        timer = threading.Timer(PATIENCE_S, parent.stdout.close)
        timer.start()
        line = parent.stdout.readline().split()
        timer.cancel()
        assert line[0] == b"runs"
        child = int(line[1])
        ((parent_id, child_id),) = told.forks
        assert child_id == child
        # Whether the parent's end or the child's stop is seen first is the kernel's choice.
        is_late |= parent_id != parent.pid
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: is_late or set(told.ends) == {parent.pid, child})
        assert told.failures == []
    finally:
        parent.kill()
        follower.stop()
