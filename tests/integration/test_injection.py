"""The library in programs that run already: exact, however they call malloc, and no harm done."""

import ctypes
import json
import os
import re
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import outcome
from tests.harness import PRELOADED, TARGETS, Builder, Target, Targets, Tracelloc, run_tracelloc
from tests.integration.test_exact import OPERATIONS, assert_equal, by_site
from tests.integration.test_preloaded import books_traced, said
from tests.integration.test_preloaded_mallocs import assert_totals, linked
from tracelloc.errors import TargetError
from tracelloc.files.elf.file import ElfFile
from tracelloc.record.mallocs.discovery import EVERYTHING, allocators_in
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.regions import Region, read_mapping_usages, read_regions
from tracelloc.record.process.space import AddressSpace, is_injected
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.session import Session
from tracelloc.record.session.sessionstart import attach_to
from tracelloc.record.sources.injected import injector, redirection
from tracelloc.record.sources.injected.functions import ReplacedFunctions
from tracelloc.record.sources.injected.mapping import library_file
from tracelloc.record.sources.injected.remotecalls import StoppedProcess
from tracelloc.record.sources.preloaded.sharedarea import STATE_VARIABLE, area_mappings

pytestmark = [pytest.mark.bpf, pytest.mark.long]

INJECTED = "events come by the injected library, not by probes"


def traced(target: Target, *options: str | int) -> Tracelloc:
    options = ("--json", "--top", 1000, "--preload", "inject", *options)
    return Tracelloc("-p", target.pid, *options)


def live_count(session: Session) -> int:
    return int(session.snapshot().root.totals.live_count.sum())


def run_traced(target: Target) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The last report on a program that keeps books, and these."""
    return books_traced(traced(target), target, INJECTED)


def test_a_thread_has_one_record(builder: Builder) -> None:
    """Its signal handlers take it in the middle of what the thread does to take one."""
    preloaded = TARGETS.parents[1] / "probes" / "preloaded"
    program = builder.c("threadtable", "-I", str(preloaded), "-Wno-unused-function")
    assert outcome(program).stdout == "one record\n"


@pytest.mark.parametrize("malloc", ["jemalloc", "mimalloc", "musl"])
def test_other_malloc_libraries(builder: Builder, targets: Targets, malloc: str) -> None:
    if malloc == "musl":
        program = builder.c("books", "-DNO_PVALLOC", compiler="musl-gcc")
    else:
        program = builder.c("books", "-DNO_PVALLOC", *linked(malloc))
    target = targets.start(program, 4, OPERATIONS, 12, 300)
    assert_totals(*run_traced(target))


def plugin(builder: Builder) -> Path:
    return builder.c("plugin", "-shared", "-fPIC")


def test_all_ways_to_malloc(builder: Builder, targets: Targets) -> None:
    """By variables, structures, a register, dlsym(3), and libraries opened later; and a fork."""
    target = targets.start(builder.c("pointers"), plugin(builder))
    assert target.ask("3") == "done"
    tracer = traced(target)
    assert target.ask("1000") == "done"
    assert target.ask("1000") == "done"
    assert tracer.stop() == 0
    assert said(tracer, INJECTED)
    report = tracer.last()
    stacks = [e for e in report["top_allocators"] if e["bytes"] % 100 == 0]
    assert by_site({"top_allocators": stacks}) == {
        "by_call": [2000, 200_000], "by_table": [2000, 400_000], "by_heap": [2000, 600_000],
        "by_lookup": [2000, 800_000], "by_plugin": [2000, 1_000_000],
        "by_register": [2000, 1_200_000],
    }  # fmt: skip
    assert report["lost_events"] == 0
    assert target.ask("10") == "done"


def test_symbols_beside_code(builder: Builder) -> None:
    """As the C library of 64-bit Arm has them."""
    library = builder.c("plugin", "-shared", "-fPIC", "-Wl,-z,noseparate-code")
    loaded = ctypes.CDLL(str(library))
    assert loaded.plugin_allocate
    process = Process(os.getpid())
    regions = read_regions(process.maps_text())
    code = next(each for each in regions if each.path == str(library))
    assert code.rights == "r-xp"
    functions = ElfFile(library.read_bytes()).find_functions(["plugin_allocate"])
    ((value, size_bytes),) = functions["plugin_allocate"].items()
    symbols = [redirection.FunctionSymbol(value, size_bytes)]
    found = redirection.find_symbols(process, (code.start, code.end), symbols)
    assert set(found.values()) == {value}


def leading_to(process: Process, places: list[int]) -> set[int]:
    """Returns the places that words of the process contain, also beside code (64-bit Arm)."""
    regions = redirection.private_regions(process, ("-p", "xp"))
    found = redirection.WordFinder(process, places).find((r.start, r.end) for r in regions)
    return set(found.values())


def test_nothing_leads_to_a_withdrawn_library(builder: Builder, targets: Targets) -> None:
    """Neither addresses of its functions nor symbols are left, and probes count all calls."""
    target = targets.start(builder.c("pointers"), plugin(builder))
    process = Process(target.pid)
    session = attach_to(process, TraceConfig(use_library=True, injects=True))
    space = AddressSpace(process)
    try:
        assert target.ask("10") == "done"
        space.refresh()
        library = next(m for m in space.mappings if is_injected(m.path) and not m.offset)
        symbols = library_file().symbols
        places = [library.start + symbols[name] for name in ("malloc", "free")]
        functions = ReplacedFunctions(space, allocators_in(space.modules, EVERYTHING))
        ((c_library, _),) = functions.providers()
        places += [(place - c_library.bias) % (1 << 64) for place in places]
        assert leading_to(process, places) == set(places)
    finally:
        session.close()
    try:
        assert not leading_to(process, places)
        state = process.read_memory(library.start + symbols[STATE_VARIABLE[0]], 4)
        assert int.from_bytes(state, "little") == 6
    finally:
        space.close()
    with closing(attach_to(process, TraceConfig())) as session:
        assert target.ask("100") == "done"
        session.stop()
        assert live_count(session) >= 600


def test_a_killed_tracelloc(targets: Targets) -> None:
    """The program goes on, and the next tracelloc uses the library that it finds."""
    target = targets.c("books", 4, OPERATIONS, 1, 3000)
    tracer = traced(target)
    tracer.kill()
    tracer = Tracelloc("-p", target.pid, "--json", "--top", 1000)
    assert_equal(*books_traced(tracer, target, INJECTED))


KILLED = """
import os, signal, sys
from tracelloc.record.mallocs.discovery import EVERYTHING, allocators_in
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.sources.injected.injector import Injection
Injection._set_state = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
space = AddressSpace(Process(int(sys.argv[1])))
space.refresh()
Injection(space, allocators_in(space.modules, EVERYTHING)).begin()
"""


def test_probes_after_a_killed_injection(targets: Targets) -> None:
    """The library is mapped, and nothing leads to it."""
    target = targets.c("books", 4, OPERATIONS, 1, 3000)
    outcome(sys.executable, "-c", KILLED, target.pid, cwd=TARGETS.parents[1])
    tracer = Tracelloc("-p", target.pid, "--json", "--top", 1000)
    assert_equal(*books_traced(tracer, target, "a tracelloc was killed while injecting it"))


@pytest.mark.parametrize("way", ["preloaded", "injected"])
def test_stack(targets: Targets, way: str) -> None:
    """Threads at their first allocations need no more stack than the documentation says."""
    text = (TARGETS.parents[1] / "tracelloc/docs/rootless.md").read_text()
    found = re.search(r"takes\s+up\s+to\s+(\d+)\s+bytes\s+of\s+the\s+stack", text)
    assert found
    variables = {**os.environ, "LD_PRELOAD": str(PRELOADED)} if way == "preloaded" else None
    target = targets.c("stackneed", flags=["-Wl,-z,now"], env=variables)
    untraced = int(target.ask("idle"))
    tracer = Tracelloc("-p", target.pid, "--preload", "on" if variables else "inject")
    depths = [int(target.ask("traced")) for _ in range(20)]
    assert tracer.stop() == 0
    assert said(tracer, f"events come by the {way} library")
    assert untraced < max(depths) <= int(found[1])


def footprint(target: Target) -> tuple[int, int]:
    """Address space and memory, in bytes, of what injecting changes: the rest does as it likes."""
    space = memory = 0
    before = ""
    for each in read_mapping_usages(Process(target.pid)):
        is_own = each.path.startswith("/memfd:") or (is_injected(before) and not each.path)
        if is_own or each.path == "[stack]" or each.path.endswith("/libc.so.6"):
            space += each.end - each.start
            memory += each.rss_bytes if is_own else each.anonymous_bytes
        before = each.path
    (area, *_) = area_mappings(Process(target.pid).maps().mappings) or [None]
    if area is not None:
        path = Process(target.pid).mapping_path(area)
        memory += os.stat(path).st_blocks * 512
    return space, memory


def test_what_stays(targets: Targets) -> None:
    """After several traces of many threads, no more stays than the documentation says."""
    text = (TARGETS.parents[1] / "tracelloc/docs/rootless.md").read_text()
    found = re.search(
        r"(\d+)\s+MiB\s+of\s+address\s+space\s+and,\s+with\s+200\s+threads,\s+(\d+)\s+KiB", text
    )
    assert found
    target = targets.c("books", 200, OPERATIONS, 1, 3000)
    target.ask("run")
    before = footprint(target)
    for _ in range(2):
        run_traced(target)
        space, memory = np.subtract(footprint(target), before) / 1024
        assert (round(space / 1024), memory <= int(found[2])) == (int(found[1]), True)


def test_a_second_tracelloc(targets: Targets) -> None:
    """It may not inject the library, and uses probes unasked; both are exact."""
    target = targets.c("books", 4, OPERATIONS, 13, 300)
    first = traced(target)
    run = run_tracelloc("-p", target.pid, "--text", "--preload", "inject", status=1)
    assert "another tracelloc uses the library in it" in run.stderr
    second = Tracelloc("-p", target.pid, "--json", "--top", 1000)
    books = json.loads(target.ask("run"))
    assert [first.stop(), second.stop()] == [0, 0]
    assert_equal(first.last(), books)
    assert_equal(second.last(), books)


def test_a_second_c_library_is_refused(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    """That of a library that dlmopen(3) has opened."""
    library = tmp_path / "libbeside.so"
    library.write_bytes(builder.c("plugin", "-shared", "-fPIC").read_bytes())
    target = targets.start(builder.c("beside", "-ldl"), "namespace", library)
    target.ask("go")
    run = run_tracelloc("-p", target.pid, "--text", "--preload", "inject", status=1)
    assert "libc.so.6 twice" in run.stderr


def test_threads_wait_only_briefly(targets: Targets) -> None:
    """All threads of a program with many of them go on, and none is left stopped."""
    target = targets.c("crowd", 48, 600)
    process = Process(target.pid)
    with closing(attach_to(process, TraceConfig(use_library=True, injects=True))) as session:
        assert target.ask("go") == "done"
        session.stop()
        snapshot = session.snapshot().root
        assert snapshot.totals.allocated_count.sum() == 48 * 600
        assert snapshot.losses.events == 0
    tasks = (Path(f"/proc/{target.pid}/task/{each}/stat") for each in process.thread_ids())
    assert not {each.read_text().rpartition(")")[2].split()[0] for each in tasks} & {"t", "T"}


def test_filters_of_system_calls(targets: Targets) -> None:
    """Probes take over before the program has one."""
    target = targets.c("sandbox", "prctl")
    tracer = traced(target)
    assert said(tracer, INJECTED)
    target.ask("go")
    assert tracer.stop() == 0
    assert any("events come by probes" in message for message in tracer.messages)
    assert tracer.last()["lost_events"] == 0


@pytest.mark.parametrize(
    ("name", "flags", "arguments", "why"),
    [
        ("sandbox", (), ("exec", "{plain}"), "it filters its system calls (seccomp)"),
        ("books", ("-static",), (4, 10, 1, 10), "has allocators of its own"),
        ("prefixed", (), (), "has allocators of its own"),
        ("leaderless", (), ("gone",), "its main thread has ended"),
        ("cramped", (), ("crowded",), "its main thread's stack can't grow by 80 KiB"),
    ],
)
def test_what_is_refused(
    builder: Builder, targets: Targets, name: str, flags: tuple[str, ...],
    arguments: tuple[str | int, ...], why: str,
) -> None:  # fmt: skip
    plain = builder.c("plain")
    words = [str(each).format(plain=plain) for each in arguments]
    target = targets.start(builder.c(name, *flags), *words)
    run = run_tracelloc("-p", target.pid, "--text", "--preload", "inject", status=1)
    assert why in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_restartable_sequences(targets: Targets) -> None:
    """A thread in one makes no system calls, as the kernel could not restart the sequence then."""
    target = targets.c("sequence")
    process = Process(target.pid)
    sleeper = targets.c("plain")
    for _ in range(1000):  # the kernel may have restarted it just now
        with StoppedProcess(process):
            area = ptrace.restartable_area(target.pid)
            if any(process.read_memory(area + 8, 8)):
                with pytest.raises(TargetError, match="restartable sequences"):
                    injector.caller_of(process, [target.pid])
                break
    else:
        raise AssertionError("it was never in its sequence")
    with StoppedProcess(Process(sleeper.pid)):
        assert injector.caller_of(Process(sleeper.pid), [sleeper.pid]) == sleeper.pid


def test_traced_and_stopped_programs_are_refused(builder: Builder, targets: Targets) -> None:
    target = targets.start("strace", "-qq", "-o", "/dev/null", builder.c("books"), 4, 10, 1, 10)
    (pid,) = Process(target.pid).child_ids()
    run = run_tracelloc("-p", pid, "--text", "--preload", "inject", status=1)
    assert "another debugger traces it" in run.stderr
    target = targets.c("books", 4, 10, 1, 10)
    os.kill(target.pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(target.pid, os.WUNTRACED)[1])
    run = run_tracelloc("-p", target.pid, "--text", "--preload", "inject", status=1)
    assert "it is stopped (SIGSTOP)" in run.stderr
    os.kill(target.pid, signal.SIGCONT)
    assert json.loads(target.ask("run"))


@pytest.mark.parametrize("place", ["malloc", "static", "stack", "mapped"])
def test_nothing_is_written_below_a_small_stack(targets: Targets, place: str) -> None:
    """Nor does anything stay in the memory that is written instead, below the main stack."""
    target = targets.c("cramped", place, flags=["-Wl,-z,now"])
    before = main_stack(target)
    tracer = traced(target)
    assert said(tracer, INJECTED)
    assert tracer.stop() == 0
    assert int(target.ask("check")) == 0
    start = main_stack(target).start
    size_bytes = before.start - start
    assert 64 << 10 < size_bytes <= 80 << 10  # by the size of the processor's registers
    assert Process(target.pid).read_memory(start, size_bytes) == bytes(size_bytes)


def main_stack(target: Target) -> Region:
    regions = read_regions(Process(target.pid).maps_text())
    return next(region for region in regions if region.path == "[stack]")
