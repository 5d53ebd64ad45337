"""A session whose capture replays records: who gets which events, and what each one holds.

No probes and no privileges: the capture is a fake, processes are children of this one.
"""

import select
import subprocess
from typing import Any

import pytest

from tests.unit.events import A, F
from tests.unit.stage import Stages
from tracelloc.heap.table import LiveTable
from tracelloc.model.losses import Counter
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.record.abi import ForkFlag
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.eventcosts import FollowCosts
from tracelloc.record.session.tracee import ProcessFacts, Tracee


def test_events_of_images_and_one_moment(stage: Stages) -> None:
    play = stage()
    play.play(play.image(play.root), (A, 16, 100, 1, 7), (A, 32, 50, 1, 7), (F, 16, 0, 0, 7))
    play.play(99, (A, 48, 1000, 1, 7))
    assert play.figures() == {play.root: (50, 1)}
    snapshot = play.now()[play.root]
    assert (snapshot.target.number, snapshot.target.has_ended) == (0, False)
    play = stage()
    play.child()
    every = play.now(SnapshotRequest(threads=True)).values()
    assert len({one.now_ns for one in every}) == len({one.time_s for one in every}) == 1
    # A stale block at an address that is allocated and freed in one batch is then found.
    play = stage()
    image = play.image(play.root)
    play.play(image, (A, 16, 100, 1, 7))
    assert play.figures() == {play.root: (100, 1)}
    play.capture.counts[Counter.LOST_FREES] = 1
    play.play(image, (A, 16, 7, 1, 7), (F, 16, 0, 0, 7))
    assert play.figures() == {play.root: (0, 0)}
    losses = play.now()[play.root].losses
    assert (losses.events, losses.oddities.address_reuses) == (1, 1)


def test_forks(stage: Stages) -> None:
    """Not what it holds when the fork is handled."""
    play = stage()
    parent = play.image(play.root)
    play.play(parent, (A, 16, 100, 1, 7), (A, 32, 50, 1, 7))
    play.fork(parent, 7)
    play.play(parent, (F, 16, 0, 0, 8), (A, 64, 7, 1, 8))
    child = play.child()
    assert play.figures() == {play.root: (57, 2), child: (150, 2)}
    play.play(play.image(child), (F, 32, 0, 0, child), (A, 16, 1, 1, child))
    assert play.now()[child].losses.oddities.address_reuses == 1
    assert play.figures()[play.root] == (57, 2)
    assert child in play.capture.attached
    # It has not grown by what it was born with.
    assert int(play.now()[child].growth_per_min.sum()) <= 0
    play = stage()
    play.play(play.image(play.root), (A, 16, 100, 1, 7))
    child = play.child()
    assert play.figures()[child] == (100, 1)
    # A process has ended; another one is about to finish a record before its last ones.
    play = stage()
    child = play.child()
    play.play(play.image(child), (A, 16, 100, 1, child))
    play.capture.drain.blocked_looks = 3
    play.session.ended(child, 0)
    assert play.figures()[child] == (100, 1)


def test_forks_are_handled_at_once_and_share_stacks(stage: Stages) -> None:
    """Nobody waits for the pump; one of the children is not traced."""
    play = stage(most_processes=3)
    parent = play.image(play.root)
    play.capture.drain.blocked_looks = 1000
    play.play(parent, (A, 16, 100, 1, 7))
    play.fork(parent, 7)
    first = play.child()
    play.play(parent, (F, 16, 0, 0, 7), (A, 32, 50, 1, 7))
    play.play(play.image(first), (F, 16, 0, 0, first), (A, 16, 7, 1, first))
    play.fork(parent, 7)
    second = play.child()
    play.fork(parent, 7)
    play.child()
    play.play(parent, (A, 64, 1000, 1, 7))
    play.play(play.image(second), (A, 16, 3, 1, second))
    play.capture.drain.blocked_looks = 0
    assert play.figures() == {play.root: (1050, 2), first: (7, 1), second: (53, 2)}
    assert not any(play.now()[pid].losses.oddities.address_reuses for pid in (first, second))
    # A fork by that thread is still told from the one that was left out.
    play.session.ended(first, 0)
    play.fork(parent, 7)
    play.now()
    fourth = play.child()
    assert play.figures()[fourth] == (1050, 2)
    # The probes send a stack once for both, whoever comes by it first, also after its end.
    play = stage()
    child = play.child()
    play.play(play.image(child), (A, 16, 100, 5, child), stacks=(5,))
    play.session.ended(child, 0)
    play.play(play.image(play.root), (A, 16, 7, 5, 7), stacks=())
    root = play.now()[play.root]
    (stat,) = root.top_stacks()
    assert (root.frames(stat.index), root.unknown_stacks, stat.live_bytes) == ((5,), 0, 7)
    lineage = play.capture.spaces["lineage"][play.capture.slot_of[play.root]]
    assert lineage == play.image(play.root)
    play.session.executed(play.root, same_thread=True)
    assert play.now()[play.root].unknown_stacks == 0
    play.play(play.image(play.root), (A, 16, 7, 5, 7), stacks=())
    assert play.now()[play.root].unknown_stacks == 1


def test_what_an_exec_or_shared_memory_changes(stage: Stages) -> None:
    play = stage()
    before = play.image(play.root)
    play.play(before, (A, 16, 100, 1, 7))
    play.session.executed(play.root, same_thread=True)
    assert play.image(play.root) != before
    # What is late is of a memory that is no more.
    play.play(before, (A, 32, 1000, 1, 7))
    play.play(play.image(play.root), (A, 16, 5, 2, 7), stacks=(2,))
    assert play.figures() == {play.root: (5, 1)}
    assert play.now()[play.root].target.exec_count == 1
    play = stage()
    parent = play.image(play.root)
    play.capture.forks[7] = ForkFlag.SHARES
    child = play.child()
    assert play.image(child) == parent
    play.play(parent, (A, 16, 100, 1, child))
    assert play.figures() == {play.root: (100, 1)}
    play.session.executed(child, same_thread=True)
    play.play(play.image(child), (A, 16, 3, 1, child))
    assert play.figures() == {play.root: (100, 1), child: (3, 1)}
    # Its probes have gone on; nothing was attached twice or taken out.
    assert play.capture.closed == []


def test_what_is_kept_after_ends(stage: Stages) -> None:
    play = stage()
    play.play(play.image(play.root), (A, 16, 100, 1, 7))
    child = play.child()
    play.play(play.image(child), (A, 32, 10, 1, child))
    play.session.ended(child, 0)
    ended = play.now()[child]
    assert (ended.live_bytes, ended.target.has_ended, ended.rss_bytes) == (110, True, None)
    assert not select.select([play.session.end_fd], [], [], 0)[0]
    play.session.ended(play.root, 0)
    assert select.select([play.session.end_fd], [], [], 0)[0]
    # Its place in the probes' memory is another one's.
    assert len(play.capture.free_slots) == 8


def test_processes_that_are_left_out(stage: Stages) -> None:
    play = stage(followed_names=frozenset({"cat"}))
    cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE).pid
    other = play.start()
    play.pids.append(cat)
    for child in (cat, other):
        play.session.forked(play.root, 7, child, shares=False)
        play.session.executed(child, same_thread=True)
    trace = play.session.snapshot()
    assert [one.target.pid for one in trace.processes] == [play.root, cat]
    play.session.processes.detach()
    # Nobody misses what was not asked for.
    assert (trace.untraced_count, other in play.capture.closed) == (0, True)
    play = stage()
    child = play.start()
    play.capture.refused.add(child)
    play.session.forked(play.root, 7, child, shares=False)
    trace = play.session.snapshot()
    assert [one.target.pid for one in trace.processes] == [play.root]
    assert (trace.untraced_count, play.said) == (1, ["warning: could not probe it"])
    play = stage(most_processes=2)
    first, second, _ = (play.child() for _ in range(3))
    # That of one which is not traced is not traced either.
    play.session.forked(second, 8, play.start(), shares=False)
    trace = play.session.snapshot()
    assert [one.target.pid for one in trace.processes] == [play.root, first]
    assert trace.untraced_count == 3
    assert len(play.said) == 1
    assert "more than 2 processes" in play.said[0]
    # One has ended: a program that begins is traced again.
    play.session.ended(first, 0)
    play.session.executed(second, same_thread=True)
    trace = play.session.snapshot()
    assert [one.target.pid for one in trace.processes] == [play.root, first, second]
    assert [one.target.number for one in trace.processes] == [0, 1, 2]
    assert trace.untraced_count == 3


def test_an_error_in_one_process_is_its_own(stage: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails, the others' figures go on, and a line says of which process it was."""
    play = stage()
    children = [play.child() for _ in range(3)]

    def figures() -> dict[int, int]:
        for pid in {play.root, *children} & play.capture.slot_of.keys():
            play.play(play.image(pid), (A, 16 * play.time, 100, 1, pid))
        return {pid: size_bytes for pid, (size_bytes, _) in play.figures().items()}

    def break_(kind: type, name: str, pid: int) -> None:
        whole = getattr(kind, name)

        def broken(one: Any, *arguments: Any, **options: Any) -> Any:
            tables = [t.heap.table for t in play.session.processes.every if t.process.pid == pid]
            if one in tables or getattr(one, "process", None) == Process(pid):
                raise ValueError("operands could not be broadcast")
            return whole(one, *arguments, **options)

        monkeypatch.setattr(kind, name, broken)

    assert figures() == dict.fromkeys((play.root, *children), 100)
    break_(Tracee, "read_facts", children[0])
    assert figures() == dict.fromkeys((play.root, *children), 200)
    break_(Tracee, "status", children[1])
    assert figures() == dict.fromkeys((play.root, children[0], children[2]), 300)
    break_(LiveTable, "apply", children[2])
    assert figures() == dict.fromkeys((play.root, children[0]), 400)
    snapshot = play.session.snapshot()
    assert snapshot.untraced_count == 1
    assert snapshot.root.losses.failed_tasks["taking a snapshot"] >= 3
    assert snapshot.root.losses.failed_tasks["applying events"] == 1
    reason = "ValueError: operands could not be broadcast"
    assert [line for line in play.said if reason in line] == [
        *(f"warning: taking a snapshot of process {pid} failed: {reason}; tracing goes on without"
          for pid in children[:2]),
        f"warning: process {children[2]} is no longer traced: {reason}",
    ]  # fmt: skip


def test_nobody_waits(stage: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are applied, and children let go, while /proc is read for a snapshot."""
    play = stage()
    look, held = Tracee.read_facts, []

    def read_facts(tracee: Tracee, wanted: SnapshotRequest, mapped: Any) -> ProcessFacts:
        held.append(play.session._lock._is_owned())  # type: ignore[attr-defined]
        return look(tracee, wanted, mapped)

    monkeypatch.setattr(Tracee, "read_facts", read_facts)
    assert play.now()[play.root].rss_bytes
    assert held == [False]
    # The probes don't report them.
    play = stage(most_processes=1)
    child, grandchild = play.start(), play.start()
    play.fork(play.image(play.root), 7)
    play.session.forked(play.root, 7, child, shares=False)

    def sleep(_seconds: float) -> None:
        raise AssertionError("it was waited for")

    monkeypatch.setattr("tracelloc.record.session.session.time.sleep", sleep)
    play.session.forked(child, 8, grandchild, shares=False)
    assert play.session.snapshot().untraced_count == 2


def test_too_much_following_is_said_once() -> None:
    said: list[str] = []
    load = FollowCosts(said.append)
    second = 1_000_000_000
    for n in range(1, 100):
        load.add_stop(n * second // 10, n * second // 10 + second // 50, forks=1)
    assert said == []
    for n in range(100, 300):
        load.add_stop(n * second // 10, n * second // 10 + second // 11, forks=2, execs=1)
    (line,) = said
    assert "20 forks and 10 programs per second" in line
    counts = load.counts
    assert (counts.forks, counts.execs) == (99 + 400, 200)
    assert counts.stopped_ns == 99 * (second // 50) + 200 * (second // 11)


def test_what_ends_while_it_begins_is_not_looked_after(stage: Stages) -> None:
    """The program's libraries are mapped just as the session ends."""
    play = stage()
    # Of this capture no program could be found.
    play.session.begin_upkeep()
    play.session.stop()
    play.session.root.probes.points = [ProbePoint("/bin/sleep", 0, "alloc_1", False, "malloc")]
    play.session.begin_upkeep()
    assert play.session.snapshot().root.overhead.probe_share is None
