"""Probes come and go without a trace, by both ways of attaching."""

import ctypes
import errno
import os
import platform
import signal
import sys
from pathlib import Path

import pytest

from tests.harness import Target, Targets, Tracelloc, own_libc, wait_until
from tests.integration.test_allocators import preloaded
from tests.sessions import tracing
from tracelloc.errors import TracellocError
from tracelloc.record.kernel import attach
from tracelloc.record.kernel import capabilities as system
from tracelloc.record.kernel.captureconfig import Method
from tracelloc.record.mallocs.families import ALLOCATOR_PROGRAM
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.sessionstart import attach_to

HAS_MULTI = system.kernel_is_at_least(platform.release(), system.UPROBE_MULTI_KERNEL)
HAS_SESSIONS = system.kernel_is_at_least(platform.release(), system.UPROBE_SESSION_KERNEL)
METHODS = [
    pytest.param(
        Method.SESSION,
        marks=pytest.mark.skipif(not HAS_SESSIONS, reason="sessions came with Linux 6.13"),
    ),
    pytest.param(
        Method.MULTI,
        marks=pytest.mark.skipif(not HAS_MULTI, reason="uprobe_multi came with Linux 6.6"),
    ),
    Method.PERF,
]

NEEDS_MULTI = pytest.mark.skipif(not HAS_MULTI, reason="uprobe_multi came with Linux 6.6")
# For `--attach`. The first is a session where the kernel has them, else the second.
WAYS = ["auto", pytest.param("multi", marks=[NEEDS_MULTI, pytest.mark.long]), "perf"]
PERF_EVENT = 41  # BPF_PERF_EVENT, include/uapi/linux/bpf.h

pytestmark = pytest.mark.bpf


@pytest.fixture
def target(targets: Targets, tmp_path: Path) -> Target:
    return targets.c("storm", 2, 12, 100, flags=("-O2",), env=own_libc(tmp_path))


def code(pid: int) -> dict[int, bytes]:
    """What a process would execute in libc, by address."""
    ranges = [
        (mapping.start, mapping.end)
        for mapping in Process(pid).maps().mappings
        if mapping.executable and "libc.so" in mapping.path
    ]
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return {start: os.pread(memory.fileno(), end - start, start) for start, end in ranges}


def pairs(target: Target, milliseconds: int) -> float:
    """Nanoseconds per malloc/free pair and thread."""
    done, took_ns = target.ask(str(milliseconds)).split()
    return 2 * int(took_ns) / int(done)


@pytest.mark.parametrize("method", METHODS)
def test_code_is_as_before(target: Target, method: Method) -> None:
    before = code(target.pid)
    session = attach_to(Process(target.pid), TraceConfig(method=method))
    pairs(target, 50)
    assert code(target.pid) != before
    session.stop()
    # A stopped thread may have armed a probe that is only removed when it goes on; here
    # all threads wait at a barrier outside of the allocator.
    assert code(target.pid) == before
    session.close()


def test_refused_links_give_way_to_perf(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel without uprobe_multi says, which this one isn't."""

    bpf, refused = attach.syscalls.bpf, []

    def refuse_links(command: int, attributes: ctypes.Structure) -> int:
        # Sessions are tried first, then other links.
        if command == attach.syscalls.BPF_LINK_CREATE and attributes.attach_type != PERF_EVENT:
            refused.append(attributes.attach_type)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return bpf(command, attributes)

    monkeypatch.setattr(attach.syscalls, "bpf", refuse_links)
    with tracing(target) as session:
        assert session.method is Method.PERF
        assert len(refused) == HAS_SESSIONS + HAS_MULTI
        target.ask("20")
        session.stop()
        assert session.snapshot().root.live_count > 0


@pytest.mark.skipif(not HAS_SESSIONS, reason="sessions came with Linux 6.13")
def test_operators_are_in_no_session(targets: Targets) -> None:
    """Their program is the same one, and all else stays in sessions."""
    target = targets.cpp("operators", 0, flags=("-pthread",), env=preloaded("tcmalloc"))
    with tracing(target) as session:
        assert session.method is Method.SESSION
        programs = session._probes.programs
    plain = ALLOCATOR_PROGRAM + attach.PLAIN
    assert {plain, ALLOCATOR_PROGRAM} < programs.keys()


def test_refusal_leaves_nothing(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last probe can't be attached, the others are taken away again."""
    before = code(target.pid)
    real, calls = attach.syscalls.perf_event_open, []

    def refuse_the_tenth(*arguments: object) -> int:
        calls.append(arguments)
        if len(calls) == 10:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(attach.syscalls, "perf_event_open", refuse_the_tenth)
    with pytest.raises(TracellocError, match=r"could not probe \w+ in libc.*ulimit -n"):
        attach_to(Process(target.pid), TraceConfig(method=Method.PERF))
    assert len(calls) == 10
    assert code(target.pid) == before


FORKING = """
import os, sys, time
print('ready', flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        for _ in range(600):
            time.sleep(0.1)
        os._exit(0)
    print(child, flush=True)
"""


@pytest.mark.skipif(not HAS_MULTI, reason="uprobe_multi came with Linux 6.6")
@pytest.mark.parametrize("method", METHODS[:-1])
def test_children_get_their_code_back(targets: Targets, tmp_path: Path, method: Method) -> None:
    """Whom nobody follows pays for probes for some seconds only."""
    target = targets.start(sys.executable, "-c", FORKING, env=own_libc(tmp_path))
    before = code(target.pid)
    session = attach_to(Process(target.pid), TraceConfig(method=method))
    children = []
    try:
        for _ in range(2):
            children.append(int(target.ask("fork")))
            assert code(children[-1]) != before
            wait_until(lambda: code(children[-1]) == before)
        assert code(target.pid) != before
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        session.close()
    assert code(target.pid) == before


@pytest.mark.parametrize(
    ("options", "allocations", "unmatched"),
    [
        pytest.param((), 0, 90, marks=NEEDS_MULTI),
        (("--attach", "perf"), 100, 0),
        (("--follow",), 100, 0),
    ],
)
def test_processes_that_share_the_memory(
    targets: Targets, options: tuple[str, ...], allocations: int, unmatched: int
) -> None:
    """Where their allocations are not seen, a warning says what to do."""
    target = targets.c("forker", "share")
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--earlier", "on", "--interval", "0.1s", *options
    )
    earlier = tracer.await_report(lambda report: report.get("earlier"))["earlier"]
    assert target.ask("go") == "done"
    warns = "--follow traces, too"
    if unmatched:
        tracer.wait_for(warns)
    assert tracer.stop() == 0
    report = tracer.last_of(target.pid)
    seen = report["allocations"] - earlier["allocations"]
    assert (seen, report["unmatched_frees"]) == (allocations, unmatched)
    assert any(warns in line for line in tracer.messages) == bool(unmatched)
