"""Programs whose main thread ends while others go on are traced to the last block."""

import os
import re
import shutil
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness import Builder, Target, Targets, Tracelloc, own_libc, run_tracelloc
from tests.integration.test_allocators import preloaded
from tests.integration.test_attach import HAS_MULTI, WAYS
from tests.integration.test_follow import kept
from tests.integration.test_trials import cache, claim  # noqa: F401 - a fixture
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.process.identity import find_target, open_target
from tracelloc.record.process.processlist import ProcessScan
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.sessionstart import attach_to

pytestmark = [pytest.mark.bpf, pytest.mark.long]

OPTIONS = ("--json", "--top", 100, "--interval", "100ms")


def own_program(builder: Builder, directory: Path, *flags: str) -> Path:
    """Returns a copy of the program whose file and name no other test uses."""
    own = directory / f"leaderless-{os.getpid()}"
    if not own.exists():
        shutil.copy(builder.c("leaderless", *flags), own)
    return own


@pytest.fixture
def present(builder: Builder, targets: Targets, tmp_path: Path) -> Target:
    """Its main thread is there, and ends when it is told to."""
    return targets.start(own_program(builder, tmp_path), env=own_libc(tmp_path))


@pytest.fixture
def gone(builder: Builder, targets: Targets, tmp_path: Path) -> Target:
    """Its main thread has ended."""
    targets.start(own_program(builder, tmp_path), "gone", env=own_libc(tmp_path))
    assert "Z (zombie)" in Path(f"/proc/{targets[-1].pid}/status").read_text()
    return targets[-1]


@pytest.mark.parametrize("more", [(), ("--follow",)], ids=["alone", "with-descendants"])
@pytest.mark.parametrize("way", WAYS)
def test_ended_before(gone: Target, way: str, more: tuple[str, ...]) -> None:
    tracer = Tracelloc("-p", gone.pid, *OPTIONS, "--attach", way, *more)
    gone.ask("keep 700")
    gone.ask("drop")
    gone.ask("keep 1000")
    report = tracer.await_report(lambda report: kept(report) == [1000, 48000])
    assert report["rss_bytes"] > 100_000
    gone.process.kill()
    assert tracer.finish() == 0
    report = tracer.last_of(gone.pid)
    assert kept(report) == [1000, 48000]
    assert report["frees"] >= 700
    assert report["lost_events"] == report["unmatched_frees"] == 0


@pytest.mark.skipif(not HAS_MULTI, reason="uprobe_multi came with Linux 6.6")
def test_ends_meanwhile(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    """Nothing is lost, whatever ends later: other traces, and any number of threads.

    Of a program with a malloc of its own, which nobody else traces until then.
    """
    program = own_program(builder, tmp_path, "-static")
    target, other = Target([program]), Target([program])
    targets += [target, other]
    tracer = Tracelloc("-p", target.pid, *OPTIONS)
    target.ask("keep 100")
    target.ask("leave")
    target.ask("keep 100")
    tracer.wait_for(f"process {target.pid} goes on without its main thread")
    assert Tracelloc("-p", other.pid, "--json").stop() == 0
    target.ask("keep 100")
    for _ in range(3):
        assert target.ask("pass") == "ready"
        target.ask("keep 100")
    report = tracer.final_report()
    assert kept(report) == [600, 28800]
    assert report["lost_events"] == 0
    said = [message for message in tracer.messages if "goes on" in message]
    assert said == [f"tracelloc: process {target.pid} goes on without its main thread"]


@pytest.mark.skipif(not HAS_MULTI, reason="uprobe_multi came with Linux 6.6")
def test_what_others_take_away_is_said(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    """Its end has breakpoints taken out before the main thread is missed."""
    program = own_program(builder, tmp_path, "-static")
    target, other = Target([program]), Target([program])
    targets += [target, other]
    said: list[str] = []
    with closing(
        attach_to(Process(target.pid), TraceConfig(CaptureConfig()), said.append)
    ) as session:
        another = attach_to(Process(other.pid), TraceConfig(CaptureConfig()))
        with session._lock:
            target.ask("leave")
            target.ask("keep 10")
            another.close()
            target.ask("keep 20")
        while not said:
            time.sleep(0.01)
        target.ask("keep 40")
        session.stop()
        assert 10 + 40 in session.root.heap.table.totals.live_count
        assert re.fullmatch(
            f"process {target.pid} goes on without its main thread: what it allocated and freed "
            r"until this was noticed, for at most \d+ ms, is missing",
            said[0],
        )


def test_perf_events_say_what_they_miss(present: Target) -> None:
    """And see everything from then on."""
    tracer = Tracelloc("-p", present.pid, *OPTIONS, "--attach", "perf")
    present.ask("keep 100")
    present.ask("leave")
    said = tracer.wait_for(f"process {present.pid} goes on without its main thread: what it")
    assert said.endswith(" ms, is missing")
    present.ask("keep 100")
    thread_id = Process(present.pid).thread_id
    assert present.ask("pass") == "ready"
    tracer.wait_for(f"process {present.pid} goes on without thread {thread_id}: what it")
    present.ask("keep 100")
    assert kept(tracer.final_report()) == [300, 14400]


def test_another_allocator_is_loaded(gone: Target, tmp_path: Path) -> None:
    # A copy, as of libc: other tests trace mimalloc as well.
    library = str(shutil.copy(Path(preloaded("mimalloc")["LD_PRELOAD"]).resolve(), tmp_path))
    tracer = Tracelloc("-p", gone.pid, *OPTIONS)
    gone.ask(f"load {library}")
    tracer.await_report(
        lambda report: library in {each["file"] for each in report["malloc_libraries"]}
    )
    gone.ask("keep 300")
    assert kept(tracer.final_report()) == [300, 14400]


@pytest.mark.parametrize("more", [(), ("--follow",)], ids=["alone", "with-descendants"])
def test_another_program_has_a_main_thread(
    builder: Builder, gone: Target, more: tuple[str, ...]
) -> None:
    tracer = Tracelloc("-p", gone.pid, *OPTIONS, *more)
    gone.ask("keep 100")
    tracer.await_report(lambda report: kept(report)[0] == 100)
    assert gone.ask(f"exec {builder.c('leaderless')}") == "ready"
    tracer.await_report(lambda report: report.get("exec_count") == 1)
    gone.ask("keep 50")
    gone.ask("leave")
    # Perf events miss what comes before it is noticed.
    unnoticed = 20 if HAS_MULTI else 0
    gone.ask(f"keep {unnoticed}")
    tracer.wait_for("goes on without its main thread")
    gone.ask(f"keep {50 - unnoticed}")
    assert tracer.stop() == 0
    assert kept(tracer.last_of(gone.pid)) == [100, 4800]


def test_usable_sizes_are_read(gone: Target) -> None:
    tracer = Tracelloc("-p", gone.pid, "--json", "--show", "sizes")
    gone.ask("keep 1000")
    sizes = tracer.final_report()["sizes"]
    assert sizes["read_allocations"] == tracer.last()["live_allocations"] >= 1000
    assert sizes["unknown_allocations"] == 0


@pytest.mark.skipif(not HAS_MULTI, reason="uprobe_multi came with Linux 6.6")
def test_links_that_see_nothing_of_it_are_not_used(
    cache: Path,  # noqa: F811
    present: Target,
    gone: Target,
) -> None:
    """As on kernels before 6.12: what else there is serves, or it is said."""
    claim(cache, threads=True, main_thread=False)
    tracer = Tracelloc("-p", gone.pid, *OPTIONS)
    thread_id = Process(gone.pid).thread_id
    assert gone.ask("pass") == "ready"
    tracer.wait_for(f"process {gone.pid} goes on without thread {thread_id}: what it")
    assert tracer.stop() == 0
    tracer = Tracelloc("-p", present.pid, *OPTIONS)
    present.ask("leave")
    tracer.wait_for("goes on without its main thread, after which this kernel reports nothing")
    assert tracer.stop() == 0


def test_it_is_found_among_all(gone: Target) -> None:
    """By its name, and with its size, in the list of processes."""
    assert open_target(gone.pid).pid == gone.pid
    executable = Process(gone.pid).executable()
    assert find_target(Path(executable).name) == gone.pid
    (info,) = [each for each in ProcessScan().refresh(budget_s=10) if each.pid == gone.pid]
    assert (info.trouble, info.known) == (None, True)
    assert info.allocator == "malloc in libc.so.6"
    assert info.rss_bytes > 100_000
    assert info.arguments.endswith("gone")


def test_one_that_has_ended_altogether_is_refused(gone: Target) -> None:
    """A zombie that nobody has waited for yet."""
    gone.process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
    done = run_tracelloc("-p", gone.pid, "--text", status=1)
    assert f"process {gone.pid} (leaderless" in done.stderr
    assert "has already ended" in done.stderr
