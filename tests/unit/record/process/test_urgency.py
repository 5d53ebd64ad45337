"""Real-time priority for the threads of tracelloc while a thread of the target waits for them."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.commands import run
from tracelloc.record.process import urgency
from tracelloc.record.process.urgency import Urgency

USUAL = (os.SCHED_OTHER, 0)
HELPING = (os.SCHED_RR, 1)
CLAIMED = (os.SCHED_RR, 2)

OWN = 0x20000000  # Waits for children of the calling thread alone (__WNOTHREAD, waitpid(2))

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["chrt", "--rr", "1", "true"]).returncode != 0,
    reason="real-time priority is refused",
)


def policy_of(thread: int) -> tuple[int, int]:
    policy = os.sched_getscheduler(thread)
    return policy & ~os.SCHED_RESET_ON_FORK, os.sched_getparam(thread).sched_priority


class Idle:
    """A thread that waits, and runs what it is given."""

    def __init__(self, first: Callable[[], None] = lambda: None) -> None:
        self._first, self._end, self._begun = first, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._begun.wait()
        self.id = self._thread.native_id or 0

    def _run(self) -> None:
        self._first()
        self._begun.set()
        self._end.wait()

    def close(self) -> None:
        self._end.set()
        self._thread.join()


def test_all_threads_while_somebody_waits() -> None:
    """In a process of its own, whose threads are all known."""
    program = """
import os, threading
from tracelloc.record.process.urgency import Urgency
def show():
    tasks = [int(task) for task in os.listdir("/proc/self/task")]
    print([os.sched_getparam(task).sched_priority for task in tasks])
end = threading.Event()
threads = [threading.Thread(target=end.wait) for _ in range(2)]
for each in threads:
    each.start()
show()
with Urgency():
    show()
    with Urgency():
        pass
    show()
show()
end.set()
"""
    idle, urgent = "[0, 0, 0]", "[1, 1, 1]"
    assert run(sys.executable, "-c", program).splitlines() == [idle, urgent, urgent, idle]


def test_what_is_created_meanwhile_does_not_get_it() -> None:
    with Urgency():
        thread = Idle()
        child = subprocess.Popen(["sleep", "60"])
        try:
            assert (policy_of(thread.id), policy_of(child.pid)) == (USUAL, USUAL)
        finally:
            child.kill()
            child.wait()
            thread.close()


@pytest.mark.parametrize(
    ("policy", "priority"), [(os.SCHED_BATCH, 0), (os.SCHED_RR, 1), (os.SCHED_FIFO, 3)]
)
def test_what_others_have_set_stays(policy: int, priority: int) -> None:
    with closing(
        Idle(lambda: os.sched_setscheduler(0, policy, os.sched_param(priority)))
    ) as thread:
        with Urgency():
            assert policy_of(thread.id) == (policy, priority)
        assert policy_of(thread.id) == (policy, priority)


def test_a_wait_is_urgent_until_the_next_one() -> None:
    """Or until it ends early. A thread that has claimed priority keeps it."""
    found: list[object] = []

    def wait_for_child() -> None:
        with Urgency():
            urgency.claim()
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
            found.append(urgency.wait(OWN | os.WNOHANG))
            threading.Timer(0.1, child.stdin.close).start()
            found.append(urgency.wait(OWN) == (child.pid, 0))
            child.returncode = 0
            found.append((policy_of(idle.id), policy_of(0)))
            with Urgency():
                pass
            found.append((policy_of(idle.id), policy_of(0)))
            with pytest.raises(ChildProcessError):
                urgency.wait(OWN)
            found.append((policy_of(idle.id), policy_of(0)))
        with subprocess.Popen(["true"]) as child:
            found.append(urgency.wait(OWN) == (child.pid, 0))
            child.returncode = 0
            found.append(policy_of(idle.id))
            urgency.relax()
            urgency.relax()
            found.append(policy_of(idle.id))

    with closing(Idle()) as idle:
        thread = threading.Thread(target=wait_for_child)
        thread.start()
        thread.join()
    urgent = (HELPING, CLAIMED)
    ends_early = [True, HELPING, USUAL]
    assert found == [(0, 0), True, urgent, urgent, (USUAL, CLAIMED), *ends_early]


def test_signals_and_missing_rights() -> None:
    """Another thread sends a signal that has a handler, which is how the follower is woken."""
    program = """
import os, signal, threading
from tracelloc.record.process import urgency
signal.signal(signal.SIGUSR1, lambda *_: None)
child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
def nudge():
    while not done.wait(.02):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
done = threading.Event()
threading.Thread(target=nudge).start()
try:
    urgency.wait(0)
except InterruptedError:
    print("interrupted")
done.set()
os.kill(child, signal.SIGKILL)
"""
    assert run(sys.executable, "-c", program) == "interrupted\n"
    program = """
import os
from tracelloc.record.process.urgency import Urgency
os.setgid(65534); os.setuid(65534)
with Urgency():
    print(os.sched_getscheduler(0), os.sched_getparam(0).sched_priority)
"""
    assert run(sys.executable, "-c", program).split() == [str(os.SCHED_OTHER), "0"]
