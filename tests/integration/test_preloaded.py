"""What a program reports by itself, through the library that it has preloaded, is exact; and it
takes no harm."""

import json
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import outcome, run
from tests.harness import (
    PATIENCE_S,
    PRELOADED,
    Builder,
    Target,
    Targets,
    Tracelloc,
    run_tracelloc,
    wait_until,
)
from tests.integration.test_exact import OPERATIONS, assert_equal
from tests.integration.test_launch import PROGRAM, QUIET, by_function, last_report
from tracelloc import probes
from tracelloc.model.codefiles import Mapping
from tracelloc.record.process.procfs import Process, parse_maps
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.sessionstart import attach_to
from tracelloc.record.sources.preloaded import ringmerge, sharedarea
from tracelloc.record.sources.preloaded.sharedarea import LIBRARY

pytestmark = [pytest.mark.bpf, pytest.mark.long]

BY_ITSELF = "events come by the preloaded library, not by probes"
BY_PROBES = "events come by probes, not by the preloaded library: "


def armed(targets: Targets, name: str, *arguments: Any, **options: Any) -> Target:
    """A target with the library, which nobody has asked for anything."""
    return targets.c(name, *arguments, env=with_library(), **options)


def with_library() -> dict[str, str]:
    return os.environ | {"LD_PRELOAD": str(PRELOADED)}


def traced(target: Target, *options: str | int) -> Tracelloc:
    return Tracelloc("-p", target.pid, "--json", "--top", 1000, "--preload", "on", *options)


def said(tracer: Tracelloc, words: str) -> bool:
    return any(words in message for message in tracer.messages)


def books_traced(tracer: Tracelloc, target: Target, words: str) -> tuple[dict[str, Any], Any]:
    """Returns the last report on a program that keeps books, and the books; ``words``: messages."""
    books = json.loads(target.ask("run"))
    assert tracer.stop() == 0
    assert said(tracer, words), tracer.messages
    return tracer.last(), books


@pytest.mark.parametrize("clock", [ringmerge.CLOCK_TSC, ringmerge.CLOCK_COUNTER])
def test_clocks(targets: Targets, monkeypatch: pytest.MonkeyPatch, clock: int) -> None:
    """Exact by either, over and over in one process."""
    monkeypatch.setattr(sharedarea, "usable_clock", lambda: clock)
    target = armed(targets, "books", 4, OPERATIONS, 8, 64)
    for _ in range(2):
        old = sum(count for count, _ in json.loads(target.ask("run")).values())
        with closing(attach_to(Process(target.pid), TraceConfig(use_library=True))) as session:
            assert session.root.probes.is_replaced
            now = sum(count for count, _ in json.loads(target.ask("run")).values())
            session.stop()
            table = session.root.heap.table
            # All blocks at the end = those traced + those from before that were not freed.
            kept = old - table.oddities.unmatched_frees
            assert int(table.totals.live_count.sum()) == now - kept
            assert table.oddities.address_reuses == 0


def test_stacks_that_come_and_go(targets: Targets) -> None:
    """Fibers', signal handlers', and frame pointers to what is just being unmapped."""
    rounds = 500
    target = armed(targets, "fibers", rounds)
    tracer = traced(target)
    assert said(tracer, BY_ITSELF)
    assert target.ask("go") == "done"
    report = tracer.final_report()
    found: dict[int, int] = {}
    callers: dict[int, set[str]] = {}
    for each in report["top_allocators"]:
        size = each["bytes"] // each["allocations"]
        found[size] = found.get(size, 0) + each["allocations"]
        callers.setdefault(size, set()).update(frame["symbol"] for frame in each["stack"])
    assert {size: found[size] for size in (48, 80, 112, 144)} == dict.fromkeys(
        (48, 80, 112, 144), 2 * rounds
    )
    assert {"in_fiber", "fiber_main"} <= callers[48]
    assert {"in_handler", "interrupted", "work", "main"} <= callers[80]
    assert {"in_alloca", "work", "main", "start_thread"} <= callers[112]
    assert report["lost_events"] == report["unmatched_frees"] == 0


# Launched programs.


@pytest.mark.parametrize("kind", ["dynamic", "musl"])
def test_launched(builder: Builder, kind: str) -> None:
    """From the first allocation on, constructors included."""
    program = builder.c("early", compiler="gcc" if kind == "dynamic" else "musl-gcc")
    done = run_tracelloc(*QUIET, "--preload", "on", "--", program, 7, status=7)
    assert BY_ITSELF in done.stderr
    assert by_function(last_report(done.stderr)) == PROGRAM


@pytest.mark.parametrize(
    "way", ["vfork", "execl", "execlp", "execle", "execv", "execvp", "execve", "execvpe", "fexecve"]
)
def test_executed_by(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    """All of the environment is as it was, the program's own library is kept, and ours comes first.

    Children have nothing of ours.
    """
    if way != "execv":
        monkeypatch.setenv("LD_PRELOAD", "libm.so.6")
    for name in ("PYTEST_CURRENT_TEST", "LINES", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "script"
    script.write_text(
        "tr '\\0' '\\n' < /proc/$$/environ | grep .; "
        "cat /proc/self/maps | grep -c libtracelloc; true"
    )
    command = [builder.c("executor"), way, "/bin/sh", script]
    alone = run(*command)
    done = run_tracelloc("--text", "--report", tmp_path / "r", "--", *command, status=0)
    assert done.stderr.count(BY_ITSELF) == 2, done.stderr
    assert done.stdout == alone


def setuid(program: Path, directory: Path) -> Path:
    """A copy of a program into which the loader preloads nothing."""
    copy = Path(shutil.copy(program, directory / "mighty"))
    os.chown(copy, 65534, 65534)
    copy.chmod(0o4755)
    directory.chmod(0o755)
    return copy


def test_setuid_programs_are_executed_as_they_are(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody would take anything of ours out of their environment again."""
    monkeypatch.setenv("LD_PRELOAD", "libm.so.6")
    command = builder.c("executor"), "execve", setuid(Path("/usr/bin/env"), tmp_path)
    done = run_tracelloc("--text", "--report", tmp_path / "r", "--", *command, status=0)
    assert BY_ITSELF in done.stderr
    assert done.stdout == run(*command)
    assert "TRACELLOC" not in done.stdout


def test_setuid_programs_have_probes(builder: Builder, tmp_path: Path) -> None:
    program = setuid(builder.c("early"), tmp_path)
    done = run_tracelloc(*QUIET, "--preload", "on", "--", program, 7, status=7)
    assert f"{BY_PROBES}the program has not preloaded it (setuid)\n" in done.stderr
    assert by_function(last_report(done.stderr)) == PROGRAM


def test_executed_without_the_library(builder: Builder) -> None:
    """While programs begin, they are stopped until there are probes."""
    command = (builder.c("executor"), "syscall", builder.c("early"), 7)
    done = run_tracelloc(*QUIET, "--preload", "on", "--", *command, status=7)
    assert f"{BY_PROBES}the program has not preloaded it\n" in done.stderr
    assert by_function(last_report(done.stderr, execs=1)) == PROGRAM


def executor(targets: Targets) -> Target:
    """A shell that becomes another program."""
    script = 'echo ready; read line; exec "$0" 7 begun'
    return targets.start("sh", "-c", script, targets.builder.c("early"), env=with_library())


def test_executed_later(targets: Targets) -> None:
    """A process that nobody stops waits for the profiler by itself."""
    target = executor(targets)
    tracer = traced(target)
    assert target.ask("go") == "begun"
    tracer.wait_for(BY_ITSELF)
    assert target.ask("end") == "end"
    assert tracer.finish() == 0
    assert by_function(tracer.last()) == PROGRAM
    assert "missing" not in " ".join(tracer.messages)


def test_executed_while_the_profiler_dies(targets: Targets) -> None:
    """The process waits for one that is alive only."""
    target = executor(targets)
    tracer = traced(target)
    tracer.process.send_signal(signal.SIGSTOP)
    target.say("go")
    awaited = Process(target.pid)
    wait_until(lambda: any(is_area(m) for m in maps_of(awaited)))
    begun_s = time.monotonic()
    tracer.kill()
    assert target.hear() == "begun"
    assert time.monotonic() - begun_s < 5
    assert target.ask("end") == "end"


@pytest.mark.parametrize("preload", ["on", "off"])
def test_threads_that_end(builder: Builder, preload: str) -> None:
    """What glibc frees once more of what they had cached is in no figure."""
    done = run_tracelloc(*QUIET, "--preload", preload, "--", builder.c("shortlived"), status=0)
    report = last_report(done.stderr)
    assert report["frees"] == 80 * 50
    assert report["unmatched_frees"] == report["lost_events"] == 0


@pytest.mark.parametrize("way", ["deep", "namespace"])
@pytest.mark.parametrize("when", ["during", "before"])
def test_libraries_that_call_past_it(
    builder: Builder, targets: Targets, tmp_path: Path, way: str, when: str
) -> None:
    """Probes take its place before such a library is there, and nothing is missed.

    Libraries are looked for as the program that opens them says.
    """
    name = f"libbeside{os.getpid()}.so"
    (tmp_path / name).write_bytes(builder.c("plugin", "-shared", "-fPIC").read_bytes())
    flags = "-ldl", f"-Wl,--enable-new-dtags,-rpath,{tmp_path}"
    target = armed(targets, "beside", way, name, flags=flags)
    said_so = BY_PROBES + f"process {target.pid} has a library "
    if when == "before":
        target.ask("go")
        tracer = traced(target)
        assert said(tracer, said_so)
        assert tracer.stop() == 0
        return
    tracer = traced(target)
    assert said(tracer, BY_ITSELF)
    blocks, size_bytes = map(int, target.ask("go").split())
    assert tracer.stop() == 0
    assert said(tracer, BY_PROBES + "the program has a library ")
    report = tracer.last()
    assert report["lost_events"] == 0
    # The loader has blocks of its own.
    kept = [
        (entry["allocations"], entry["bytes"])
        for entry in report["top_allocators"]
        if entry["stack"][0]["symbol"] in ("main", "work", "plugin_allocate")
    ]
    assert tuple(map(sum, zip(*kept, strict=True))) == (blocks, size_bytes)


# No harm.


SAMPLED = ["--sample", "1"]
GIVEN_UP = ["strict", "prctl", "seccomp", "threads", "inline", "inline-strict"]


@pytest.mark.parametrize(
    ("way", "sample"),
    [*((way, []) for way in GIVEN_UP), ("threads", SAMPLED), ("inline-strict", SAMPLED)],
)
def test_system_calls_are_given_up(targets: Targets, way: str, sample: list[str]) -> None:
    """From then on the library makes none, which could end the program: probes take over.

    Where the library could not know, they are there from the start.
    """
    flags = ["-DINLINE"] if "inline" in way else []
    target = armed(targets, "sandbox", way, flags=flags)
    tracer = traced(target, *sample)
    assert said(tracer, BY_PROBES if flags else BY_ITSELF)
    assert target.ask("go") == "done"
    assert tracer.stop() == 0
    assert target.process.poll() is None
    assert flags or said(tracer, BY_PROBES)
    elsewhere = 0 if "strict" in way else 10
    report = tracer.last()
    kept = [
        each
        for each in report["top_allocators"]
        if each["stack"][0]["symbol"] in ("main", "deep", "elsewhere")
    ]
    assert sum(each["allocations"] for each in kept) == 11 + elsewhere
    assert sum(each["bytes"] for each in kept) == 1100 + 1000 * elsewhere
    assert report["completeness"] == {"state": "complete", "gaps": []}
    assert report["frees"] >= 100_000
    # Nor is anything reported to somebody who comes later.
    tracer = traced(target)
    assert said(tracer, BY_PROBES)
    target.say("end")
    assert tracer.finish() == 0
    assert target.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("way", ["preloaded", "launched"])
def test_system_calls_were_given_up_before(builder: Builder, way: str) -> None:
    """A filter that was there before the program began: the library makes none of its calls."""
    program = builder.c("early")
    command = [builder.c("sandbox"), "exec", program, 7]
    if way == "preloaded":
        assert outcome(*command, env=with_library()).returncode == 7
        return
    done = run_tracelloc(*QUIET, "--preload", "on", "--", *command, status=7)
    assert by_function(last_report(done.stderr, execs=1)) == PROGRAM


def pairs_ns(target: Target) -> float:
    count, nanoseconds = map(int, target.ask("100").split())
    return nanoseconds / max(1, count)


def test_a_killed_profiler_leaves_it_idle(targets: Targets) -> None:
    target = armed(targets, "storm", 2, 4, 100)
    tracer = traced(target)
    assert said(tracer, BY_ITSELF)
    target.say("300")
    tracer.process.kill()
    tracer.finish()
    target.hear()
    word = holder_of(target)
    assert word[0] & 0x3FFFFFFF == 0
    # The next one finds everything as it should be.
    tracer = traced(target)
    assert said(tracer, BY_ITSELF)
    pairs_ns(target)
    report = tracer.final_report()
    assert report["allocations"] > 0
    assert report["lost_events"] == 0
    assert holder_of(target)[0] == 0


def holder_of(target: Target) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The word of the shared memory that says who wants events."""
    process = Process(target.pid)
    mapping = next(filter(is_area, maps_of(process)))
    address = mapping.start + ringmerge.FIELDS["holder"]
    return np.frombuffer(process.read_memory(address, 4), np.uint32)


def maps_of(process: Process) -> list[Mapping]:
    return list(parse_maps(process.maps_text()).values())


def is_area(mapping: Mapping) -> bool:
    return bool(sharedarea.area_mappings([mapping]))


@pytest.mark.parametrize("is_over", [False, True], ids=["goes on", "ends"])
def test_a_stopped_profiler_is_waited_for_once(targets: Targets, *, is_over: bool) -> None:
    """The program goes on after --max-stall, and reports say what is missing."""
    target = armed(targets, "storm", 2, 4, 100)
    tracer = traced(target, "--max-stall", "300ms")
    tracer.process.send_signal(signal.SIGSTOP)
    begun_s = time.monotonic()
    pairs = [int(target.ask("300").split()[0]) for _ in range(2)]
    assert time.monotonic() - begun_s < 5
    if is_over:
        assert target.end() == 0
    tracer.process.send_signal(signal.SIGCONT)
    if not is_over:
        report = tracer.await_report(lambda report: report["lost_events"] > 0)
        assert report["completeness"]["state"] == "at_least"
        pairs.append(int(target.ask("300").split()[0]))
    assert (tracer.finish() if is_over else tracer.stop()) == 0
    report = tracer.last()
    assert report["completeness"]["state"] == "at_least"
    assert report["completeness"]["gaps"][0]["lost_events"] == report["lost_events"]
    assert_told_or_counted(report, pairs)


def assert_told_or_counted(report: dict[str, Any], pairs: list[int]) -> None:
    """Each pair is an allocation and a free, reported or counted, but for the first frees: of NULL.

    Where a free was lost, the block's address is found again.
    """
    known = report["allocations"] + report["frees"] + report["unmatched_frees"]
    implied = report["lost"]["address_reuses"]
    assert known - implied + report["lost_events"] == 2 * sum(pairs) - 2 * 100
    is_whole = report["lost_events"] == 0
    assert report["completeness"]["state"] == ("complete" if is_whole else "at_least")
    assert sum(g["lost_events"] for g in report["completeness"]["gaps"]) == report["lost_events"]


def test_a_profiler_that_is_stopped_at_any_moment(targets: Targets) -> None:
    dice = random.Random(20)
    target = armed(targets, "storm", 2, 4, 100)
    tracer = traced(target, "--max-stall", "50ms")
    pairs = []
    for _ in range(20):
        target.say("40")
        wait_until(lambda: dice.random() < 0.3)  # some hundredths of a second
        tracer.process.send_signal(signal.SIGSTOP)
        pairs.append(int(target.hear().split()[0]))
        tracer.process.send_signal(signal.SIGCONT)
    # It ends while some of what it has reported is still to be taken.
    assert target.end() == 0
    assert tracer.finish() == 0
    assert_told_or_counted(tracer.last(), pairs)


def test_two_profilers(targets: Targets) -> None:
    """The second one has probes, and both are exact."""
    target = armed(targets, "books", 4, OPERATIONS, 13, 300)
    tracers = [traced(target) for _ in range(2)]
    books = json.loads(target.ask("run"))
    assert [tracer.stop() for tracer in tracers] == [0, 0]
    assert said(tracers[0], BY_ITSELF)
    assert said(tracers[1], BY_PROBES)
    own = [m for m in maps_of(Process(target.pid)) if m.path == str(LIBRARY)]
    assert own
    for tracer in tracers:
        assert_equal(tracer.last(), books)
        # Neither shows that the other one is there.
        addresses = {f["address"] for s in tracer.last()["top_allocators"] for f in s["stack"]}
        assert not any(m.start <= a < m.end for a in addresses for m in own)


def test_trees_of_processes_without_a_profiler() -> None:
    """Whatever a shell does with processes goes on as it would without the library."""
    script = "for n in 1 2 3 4 5; do (ls / | sort | tail -1; true) & done; wait; echo $(echo x)"
    done = outcome("sh", "-c", script, env=with_library())
    assert (done.returncode, done.stdout, done.stderr) == (0, run("sh", "-c", script), "")


def limit(which: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(which, (value, value))


def test_small_files(targets: Targets) -> None:
    """Where the memory can't be shared, there are probes."""
    limited = limit(resource.RLIMIT_FSIZE, 1 << 20)
    target = armed(targets, "books", 2, 2000, 14, 300, preexec_fn=limited)
    why = BY_PROBES + "the process could not make the memory for it"
    assert_equal(*books_traced(traced(target), target, why))


@pytest.mark.parametrize(("when", "sample"), [("before", []), ("after", []), ("after", SAMPLED)])
def test_little_address_space(targets: Targets, when: str, sample: list[str]) -> None:
    """Where address space is limited, none of it is taken, and there are probes."""
    # What it needs itself finds room, and the library's 220 MiB don't.
    limited = limit(resource.RLIMIT_AS, 180 << 20)
    first = limited if when == "before" else None
    target = armed(targets, "books", 1, 2000, 15, 300, preexec_fn=first)
    if when == "after":
        resource.prlimit(target.pid, resource.RLIMIT_AS, (180 << 20, 180 << 20))
    why = {"before": "the process's address space is limited", "after": "the program has no room"}
    report, books = books_traced(traced(target, *sample), target, BY_PROBES + why[when])
    if not sample:
        assert_equal(report, books)
    # Blocks of a few bytes may be left out of the sample.
    count = sum(count for count, _ in books.values())
    assert report["live_allocations"] == pytest.approx(count, abs=5 if sample else 0)


def test_locked_memory(builder: Builder, targets: Targets) -> None:
    """A program that locks its memory does not lock what it shares with tracelloc."""
    target = armed(targets, "harm", "locker")
    untraced = targets.start(builder.c("harm"), "locker")
    tracer = traced(target)
    assert said(tracer, BY_ITSELF)
    locked, expected = (int(each.ask("go")) for each in (target, untraced))
    assert locked < expected + 1024
    assert tracer.stop() == 0
    assert said(tracer, BY_PROBES + "the program locks its memory")
    report = tracer.last()
    assert report["completeness"]["state"] == "complete"
    assert report["live_allocations"] >= 200


def test_the_library_needs_nothing() -> None:
    """But what every C library has; and it is small."""
    assert LIBRARY.stat().st_size <= 64 << 10
    listed = run("nm", "-D", LIBRARY).splitlines()
    undefined = [line.split() for line in listed if " T " not in line]
    assert [words for words in undefined if words[-2] in "Uw"] == [
        ["w", "dl_iterate_phdr"], ["w", "environ"],
    ]  # fmt: skip
    assert "NEEDED" not in run("readelf", "-d", LIBRARY)


TAKEN = BY_PROBES + "the program has written to tracelloc's part of its memory"


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("sealed", "shared memory can't be mapped: Operation not permitted"),
        ("leased", "can't be opened: Resource temporarily unavailable"),
        ("zero", TAKEN),
        ("deep", TAKEN),
        ("noise", TAKEN),
        ("leaving", BY_PROBES + "the program reports what it should not"),
        ("huge", BY_ITSELF),
        ("misses", BY_ITSELF),
        ("unwritten", BY_ITSELF),
        ("endless", BY_ITSELF),
    ],
)
def test_programs_that_lie(targets: Targets, way: str, why: str) -> None:
    """What a program writes into the shared memory does no harm but to its own figures."""
    target = armed(targets, "liar", way, flags=[f"-I{probes.directory()}"])
    begun_s = time.monotonic()
    tracer = traced(target)
    if not said(tracer, why):
        tracer.wait_for(why)
    tracer.await_report(lambda report: report["elapsed_s"] > 1)
    assert tracer.stop() == 0
    assert time.monotonic() - begun_s < PATIENCE_S / 2
    assert not said(tracer, "bug")
    assert target.process.poll() is None
    if why == TAKEN:
        assert tracer.last()["completeness"]["state"] == "at_least"
