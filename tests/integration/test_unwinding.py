"""Stacks of code without frame pointers, against libgcc's unwinder in the same process at
the same moment (``tests/targets/truth.c``)."""

import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.commands import run
from tests.harness import PATIENCE_S, PRELOADED, TARGETS, Targets, frames_of
from tracelloc.model import losses as counted
from tracelloc.model.events import EVENT_SIZE_BITS, EVENT_SIZE_MASK, EventKind
from tracelloc.model.stacks import StackFlag
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.mallocs.discovery import MallocChoice
from tracelloc.record.process.procfs import Process
from tracelloc.record.session import sessionstart
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.session import Session
from tracelloc.record.session.sessionstart import attach_to
from tracelloc.record.sources.preloaded import link as link
from tracelloc.record.symbolization.symbolizer import Symbolizer
from tracelloc.record.unwinding import rowsahead, stacksource

pytestmark = [pytest.mark.bpf, pytest.mark.long]


@pytest.fixture(autouse=True)
def _is_let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most calls of the library of truth pass by the preloaded one, which is as it should be."""
    monkeypatch.setattr(link.interposed, "direct_caller", lambda *_: None)


FIRST_SIZE = 1 << 27
MOST = 20_000
ADDRESS = (1 << 48) - 1
SOURCES = ["probes", "library"]
WORDS = 256
# Records after which the program waits: all of their stacks find room in the ring.
PAUSE_AFTER = 256
SWAPPED_CALLS = 1500  # How often swapped.c calls each library's function


@pytest.fixture(autouse=True)
def _code_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks of what CPython is made of, as backtrace() has them."""
    monkeypatch.setattr(sessionstart, "has_supported", lambda _: False)


@pytest.fixture(autouse=True)
def _all_rows_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, programs begin when the rows are there."""
    monkeypatch.setattr(stacksource, "_PATIENCE_S", PATIENCE_S)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("truth") / "truth.so"
    compile_c(path, "truth", "-shared", "-fPIC", "-O2")
    return path


def compile_c(out: Path, name: str, *flags: str) -> None:
    run("gcc", "-g", "-pthread", *flags, TARGETS / f"{name}.c", "-o", out)


@dataclass
class Comparison:
    """Stacks of the two unwinders, by number."""

    compared: int
    equal: int
    partial: int
    different: list[tuple[tuple[int, ...], tuple[int, ...]]]
    flags: Counter[StackFlag]
    misses: int


def compare(
    command: Sequence[str | Path],
    truth: Path,
    tmp_path: Path,
    every: int = 1,
    *,
    waits: bool = False,
    by: str = "probes",
    **config: int,
) -> Comparison:
    """Runs a program to its end and compares every stack that was written down.

    ``waits``: it sends a line now and then, and waits for one until all that it has done
    until then has been looked at; others wait after ``PAUSE_AFTER`` records. ``by``: what walks
    stacks, in ``SOURCES``.
    """
    file = tmp_path / "truth.bin"
    with file.open("wb") as out:
        out.truncate(8 * WORDS * MOST)
    ours, its = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    environment = os.environ | {
        "LD_PRELOAD": f"{truth}:{PRELOADED}" if by == "library" else str(truth),
        "TRUTH_FILE": str(file), "TRUTH_EVERY": str(every),
        "TRUTH_PAUSE": "0" if waits else str(PAUSE_AFTER), "TRUTH_SOCKET": str(its.fileno()),
        "PYTHONMALLOC": "malloc", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    process = subprocess.Popen(
        [str(word) for word in command],
        env=environment, cwd=tmp_path, bufsize=0, pass_fds=[its.fileno()],
        stderr=subprocess.DEVNULL,
        stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
        stdout=subprocess.PIPE if waits else subprocess.DEVNULL,
    )  # fmt: skip
    its.close()
    try:
        assert os.waitpid(process.pid, os.WUNTRACED)[1] & 0xFF == 0x7F
        # Its own malloc is one, too, inside of which others would not count.
        capture = CaptureConfig(min_block_bytes=FIRST_SIZE, **config)
        trace = TraceConfig(capture, MallocChoice("libc.so"), use_library=by == "library")
        session = attach_to(Process(process.pid), trace)
        assert session.root.probes.is_replaced == (by == "library")
        table = session.root.heap.table
        stack_ids: dict[int, int] = {}
        apply = table.apply

        def note(events: np.ndarray, **more: bool) -> None:  # type: ignore[type-arg]
            kinds = events["size_tag"] >> np.uint64(EVENT_SIZE_BITS) & np.uint64(15)
            made = events[kinds == EventKind.ALLOC]
            sizes = made["size_tag"] & np.uint64(EVENT_SIZE_MASK)
            stack_ids.update(
                zip(
                    (sizes - np.uint64(FIRST_SIZE)).tolist(), made["stack_id"].tolist(), strict=True
                )
            )
            apply(events, **more)

        table.apply = note  # type: ignore[method-assign]
        os.kill(process.pid, signal.SIGCONT)
        if waits:
            answer(process.stdout.readline, process.stdin.write, session)
        else:
            answer(lambda: ours.recv(1), ours.send, session)
        process.wait(PATIENCE_S)
        session.stop()
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        for stream in (process.stdin, process.stdout, ours):
            if stream is not None:
                stream.close()
    records = np.fromfile(file, np.uint64).reshape(MOST, WORDS)
    misses = session.snapshot().root.losses.counters[counted.Counter.MISSES]
    result = Comparison(0, 0, 0, [], Counter(), misses)
    for number, stack_id in stack_ids.items():
        count = int(records[number][0])
        if not count:
            continue
        # Innermost is the place of the call itself: of backtrace here, of malloc there.
        expected = tuple(records[number][2 : 1 + count].tolist())
        index = session.root.heap.stacks.ids.get(stack_id)
        assert index >= 0
        frames, flags = (
            session.root.heap.stacks.frames(index),
            session.root.heap.stacks.flags(index),
        )
        assert frames is not None
        # Those of a library in another one's place have a number above them.
        frames = tuple(frame & ADDRESS for frame in frames)
        result.flags[flags] += 1
        if flags & ~StackFlag.TRUNCATED:
            result.partial += 1
            assert frames[1:] == expected[: len(frames) - 1]
            continue
        result.compared += 1
        limit = len(frames) - 1 if flags & StackFlag.TRUNCATED else None
        if frames[1:] == expected[:limit]:
            result.equal += 1
        else:
            result.different.append((frames[1:], expected))
    session.close()
    return result


def answer(receive: Callable[[], bytes], send: Callable[[bytes], object], session: Session) -> None:
    """Answers each of the program's messages when all before it is processed, until it ends."""
    while receive():
        with session._lock:
            session._drain()
            session._upkeep.run_due(time.monotonic_ns())
        send(b"\n")


@pytest.mark.parametrize("by", SOURCES)
@pytest.mark.parametrize("flags", [["-O2"], ["-O0"], ["-O3", "-mavx2"]], ids=["O2", "O0", "O3"])
def test_shapes(truth: Path, tmp_path: Path, flags: list[str], by: str) -> None:
    program = tmp_path / "shapes"
    compile_c(program, "shapes", "-fomit-frame-pointer", *flags)
    found = compare([program], truth, tmp_path, by=by)
    print(describe(found))
    assert found.compared >= 170
    assert found.different == []
    # Those of on_signal on a stack of its own, until there is a row of where it interrupts.
    assert found.partial <= 3


def test_no_rows(truth: Path, tmp_path: Path) -> None:
    """All stacks are finished, frames of 20 KiB and pages never touched included.

    But not those of a signal handler on a stack of its own: the interrupted one is not copied.
    """
    program = tmp_path / "shapes"
    compile_c(program, "shapes", "-fomit-frame-pointer", "-O2")
    found = compare([program], truth, tmp_path, row_sets=2)
    assert found.flags == {StackFlag(0): 180, StackFlag.SHORT_COPY: 3}
    assert found.different == []
    # Eight rows find room: hardly any stack needs those alone.
    assert found.misses >= 150


def describe(found: Comparison) -> str:
    return f"{found.compared} compared, {found.equal} equal, {found.partial} partial, {found.flags}"


PYTHON = """
import json, re
kept = []
for turn in range(300):
    kept.append(json.loads('{"a": [1, 2, {"b": %d}]}' % turn))
    kept.append(sorted(str(n) for n in range(50)))
    re.compile("a(b|c)*%d" % turn).match("abcbc")
"""
PERL = 'my %h; for my $n (1 .. 3000) { $h{$n} = [sort map { "x$_" } 1 .. 5]; s/x/y/ for @{$h{$n}} }'
SQL = """
CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT);
WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 3000)
INSERT INTO t SELECT x, 'row ' || x FROM n;
SELECT count(*) FROM t JOIN t AS u ON t.b = u.b WHERE t.a % 7 < 3 GROUP BY t.a % 11 ORDER BY 1;
"""


def cc1plus(tmp_path: Path) -> list[str | Path]:
    source = tmp_path / "big.cpp"
    source.write_text("#include <map>\n#include <regex>\nstd::map<int, std::regex> all;\n")
    done = subprocess.run(
        ["g++", "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True
    )
    return [done.stdout.strip(), "-quiet", "-O1", source, "-o", tmp_path / "big.s"]


def llc(tmp_path: Path) -> list[str | Path]:
    """LLVM's code generator: a library of 100 MiB, whose rows are all made on demand."""
    body = "".join(
        f"  %a{n + 1} = xor i64 %a{n}, {n * 7919 + 1}\n  %b{n} = lshr i64 %a{n + 1}, {n % 17 + 1}\n"
        for n in range(40)
    )
    source = tmp_path / "many.ll"
    source.write_text(
        "".join(
            f"define i64 @f{n}(i64 %a0) {{\n{body}  %r = call i64 @f{max(0, n - 1)}(i64 %a40)\n"
            "  ret i64 %r\n}\n"
            for n in range(60)
        )
    )
    return ["/usr/bin/llc", "-O2", "-o", tmp_path / "many.s", source]


PROGRAMS = {
    "python": (lambda path: ["/usr/bin/python3", "-c", PYTHON], 5),
    "perl": (lambda path: ["/usr/bin/perl", "-e", PERL], 3),
    "sqlite": (lambda path: ["/usr/bin/sqlite3", ":memory:", SQL], 1),
    "cc1plus": (cc1plus, 40),
    "llc": (llc, 3),
}


@pytest.mark.parametrize(
    ("name", "by"),
    [*((name, "probes") for name in PROGRAMS), ("perl", "library"), ("llc", "library")],
)
def test_programs(truth: Path, tmp_path: Path, name: str, by: str) -> None:
    """Debian's own programs, which have no frame pointers."""
    command, every = PROGRAMS[name]
    found = compare(command(tmp_path), truth, tmp_path, every, by=by)
    print(describe(found))
    assert found.compared > 500
    assert found.partial == 0
    assert len(found.different) <= found.compared // 10_000


@pytest.mark.parametrize(
    ("compiler", "source"),
    [("g++ -O2 -fomit-frame-pointer", "shelves.cpp"), ("rustc --edition=2021 -O", "boxes.rs")],
    ids=["cpp", "rust"],
)
def test_compilers(truth: Path, tmp_path: Path, compiler: str, source: str) -> None:
    run(*compiler.split(), TARGETS / source, "-o", tmp_path / "program")
    found = compare([tmp_path / "program"], truth, tmp_path)
    assert found.compared > 1000
    assert (found.different, found.partial) == ([], 0)


@pytest.mark.parametrize("by", SOURCES)
def test_other_library_at_the_same_address(truth: Path, tmp_path: Path, by: str) -> None:
    """Rows of what was unloaded are never used for what is there now."""
    libraries = [tmp_path / f"lib{room}.so" for room in (40, 400, 4000)]
    for room, library in zip((40, 400, 4000), libraries, strict=True):
        compile_c(library, "swapped", "-shared", "-fPIC", "-O2", f"-DROOM={room}")
    program = tmp_path / "swapped"
    compile_c(program, "swapped", "-O2", "-fomit-frame-pointer")
    found = compare([program, "3", *libraries], truth, tmp_path, 2, waits=True, by=by)
    # All but those of the first calls after each change.
    assert found.compared > 3 * len(libraries) * SWAPPED_CALLS / 2 - 500
    assert found.different == []


def test_generated_code(targets: Targets) -> None:
    """All of it has rows as soon as it is mapped, and its stacks are whole."""
    target = targets.c("jit", "stub", "4000")
    session = attach_to(Process(target.pid), TraceConfig())
    try:
        assert target.ask("go") == "done"
        snapshot = session.snapshot().root
    finally:
        session.close()
        Path(f"/tmp/perf-{target.pid}.map").unlink(missing_ok=True)
    losses = snapshot.losses.counters
    assert (snapshot.live_count, losses[counted.Counter.LOST_MISSES]) == (4000, 0)
    # At the mapping's ends, in regions that it fills in part only.
    assert losses[counted.Counter.MISSES] <= 512
    assert snapshot.partial_allocations == snapshot.broken_stacks == 0
    assert {len(snapshot.frames(stat.index)) for stat in snapshot.top_stacks()} == {6}


def test_go_library(targets: Targets, tmp_path: Path, go_cache: Path) -> None:
    """C called from Go runs on another stack: its own part is whole, and nothing else."""
    library = tmp_path / "libpump.so"
    subprocess.run(
        ["go", "build", "-buildmode=c-shared", "-o", library, TARGETS / "pump.go"],
        env=os.environ | {"GOCACHE": str(go_cache), "GOFLAGS": "", "CGO_ENABLED": "1"},
        check=True, timeout=2 * PATIENCE_S, cwd=tmp_path,
    )  # fmt: skip
    target = targets.c("pumphost", str(library))
    session = attach_to(Process(target.pid), TraceConfig())
    symbolizer = Symbolizer(session.root.space)
    try:
        assert target.ask("go") == "done"
        snapshot = session.snapshot().root
        (site,) = (stat for stat in snapshot.top_stacks() if stat.live_bytes == 20 * 5000)
        names = [str(f.symbol) for f in frames_of(symbolizer, snapshot.frames(site.index))]
    finally:
        session.close()
        symbolizer.close()
    assert len(names) == 2
    assert "Cfunc__Cmalloc" in names[0]
    assert names[1].startswith("runtime.asmcgocall")
    assert snapshot.partial_allocations == snapshot.broken_stacks == 0


def test_files_are_remembered(truth: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one run had to ask for, the next one has from the start."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(rowsahead, "_MOST_SITES", 100)
    misses = []
    for _ in range(2):
        found = compare(PROGRAMS["python"][0](tmp_path), truth, tmp_path, 5)
        assert found.different == []
        misses.append(found.misses)
    assert misses[0] > 100
    assert misses[1] < misses[0] / 3


def test_lost_misses_are_said(truth: Path, tmp_path: Path) -> None:
    """Too small a ring: those stacks end where the row was missing, and are counted."""
    # It is there until the rest is finished: of libraries opened meanwhile nothing is known yet.
    program = f"{PYTHON}print(flush=True)\ninput()\n"
    found = compare(
        ["/usr/bin/python3", "-c", program], truth, tmp_path, 5,
        waits=True, misses_size_bytes=1 << 17, row_sets=64,
    )  # fmt: skip
    assert found.partial > 0
    assert found.different == []
    assert set(found.flags) == {StackFlag(0), StackFlag.LOST_MISS}
