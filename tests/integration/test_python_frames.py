"""Frames of Python in call stacks, against what Python says at that moment."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import distributions
from tests.commands import run
from tests.harness import PATIENCE_S, TARGETS, Target, Targets
from tests.integration.test_record import Recorder, reports
from tests.sessions import tracing
from tracelloc.model.frames import RuntimeFrame
from tracelloc.model.losses import Counter
from tracelloc.model.stacks import StackFlag
from tracelloc.record.kernel.captureconfig import CaptureConfig, Method
from tracelloc.record.kernel.trials import usable_methods
from tracelloc.record.session.session import Session
from tracelloc.record.session.tracee import Tracee
from tracelloc.record.unwinding import stacksource

pytestmark = pytest.mark.bpf

PYTHON = "/usr/bin/python3"
FIRST_SIZE = 1 << 24
KINDS = (
    "nested", "generators", "comprehensions", "callbacks", "properties", "coroutines", "threads",
    "exceptions", "odd", "recursion",
)  # fmt: skip
Lines = list[tuple[str, str, int]]
GONE = "gone"


@pytest.fixture(autouse=True)
def _all_rows_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacksource, "_PATIENCE_S", PATIENCE_S)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the C module, which any CPython from 3.11 on can load."""
    directory = tmp_path_factory.mktemp("pyframes")
    include = run(PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('include'))").strip()
    flags = "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", f"-I{include}"
    run("gcc", *flags, TARGETS / "pyframes.c", "-o", directory / "pyframes.abi3.so")
    return directory


def open_program(targets: Targets, module: Path, python: str = PYTHON) -> Target:
    return targets.start(python, TARGETS / "pyframes.py", module, str(FIRST_SIZE))


@pytest.fixture
def program(targets: Targets, module: Path) -> Target:
    return open_program(targets, module)


@pytest.fixture
def session(program: Target) -> Iterator[Session]:
    yield from traced(program)


def traced(program: Target, method: Method | None = None, **config: object) -> Iterator[Session]:
    capture = CaptureConfig(min_block_bytes=FIRST_SIZE, **config)  # type: ignore[arg-type]
    with tracing(program, capture, method=method) as session:
        yield session


def seen(
    session: Session, tracee: Tracee | None = None
) -> dict[int, tuple[Lines, StackFlag, list[int]]]:
    """By size: the frames of Python, how the stack ended, and all of its addresses."""
    session.snapshot()
    tracee = tracee or session.root
    blocks = tracee.heap.table.blocks()
    found = {}
    for size, index in zip(blocks.size.tolist(), blocks.stack.tolist(), strict=True):
        frames = tracee.heap.stacks.frames(index)
        named = [tracee.space.files.runtime_frames.find(address) for address in frames]
        lines = [line(frame) for frame in named if frame is not None]
        found[size] = lines, tracee.heap.stacks.flags(index), list(frames)
    return found


def line(frame: RuntimeFrame) -> tuple[str, str, int]:
    return frame.function or GONE, frame.file or GONE, frame.line or 0


def expected(answer: str) -> dict[int, Lines]:
    """By size: the frames as Python says."""
    return {size: [tuple(each) for each in frames] for size, frames in json.loads(answer)}


def test_frames_are_pythons_own(session: Session, program: Target) -> None:
    check_frames(session, program)


@pytest.mark.nightly
@pytest.mark.parametrize("minor", [14, 15])
def test_frames_of_newer_pythons(targets: Targets, module: Path, minor: int) -> None:
    target = targets.start(
        *distributions.python(minor), TARGETS / "pyframes.py", module, str(FIRST_SIZE)
    )
    for session in traced(target):
        check_frames(session, target)


def check_frames(session: Session, program: Target) -> None:
    known: set[int] = set()
    merger = session.root.source.merger
    for kind in KINDS:
        truth = expected(program.ask(kind))
        found = {size: each for size, each in seen(session).items() if size not in known}
        known |= set(found)
        assert {size: lines for size, (lines, *_) in found.items()} == truth != {}, kind
        # Only C is too deep there: 50 calls are 200 frames.
        cut = StackFlag.TRUNCATED if kind == "recursion" else StackFlag(0)
        assert not any(flags & ~cut for _, flags, _ in found.values()), kind
        # None of the interpreter's loop is left.
        loop = merger.runtime.is_loop
        assert not any(loop(at) for *_, frames in found.values() for at in frames), kind
    assert session.snapshot().root.losses.counters[Counter.LOST_PYTHON_FRAMES] == 0


def test_no_function_is_taken_for_another(session: Session, program: Target) -> None:
    """Code that is gone when its stacks are looked at has the names that it had."""
    truth = expected(program.ask("reuse"))
    assert {size: lines for size, (lines, *_) in seen(session).items()} == truth


def test_names_of_a_program_that_has_ended(session: Session, program: Target) -> None:
    truth = expected(program.ask("nested")) | expected(program.ask("comprehensions"))
    program.kill()
    assert {size: lines for size, (lines, *_) in seen(session).items()} == truth


@pytest.mark.parametrize("method", Method)
def test_all_ways_of_attaching(program: Target, method: Method) -> None:
    if method not in usable_methods():
        pytest.skip("this kernel lacks it")
    for session in traced(program, method, trace_mappings=True, follow=True):
        truth = expected(program.ask("nested")) | expected(program.ask("recursion"))
        assert {size: lines for size, (lines, *_) in seen(session).items()} == truth


def recorded(report: dict[str, Any]) -> set[tuple[tuple[str, str, int], ...]]:
    """Frames of Python of each stack in a report."""
    return {
        tuple(
            (frame["symbol"], frame["file"], frame["line"])
            for frame in entry["stack"]
            if frame["module"] == "[Python]"
        )
        for entry in report["top_allocators"]
    }


def test_recordings_have_names(program: Target, tmp_path: Path) -> None:
    """Children too, which run code that nobody has seen before and end at once."""
    # The same probes as in the test above.
    options = "--follow", "--mmap", "--min-size", FIRST_SIZE
    recorder = Recorder(tmp_path / "a.rec", "-p", program.pid, *options)
    recorder.await_moment(1).close()
    truths = {program.pid: expected(program.ask("nested"))}
    for _ in range(3):
        pid, frames = json.loads(program.ask("short"))
        truths[pid] = expected(json.dumps([frames]))
    program.kill()
    recorder.process.wait(timeout=PATIENCE_S)
    found = {report["pid"]: report for report in reports(tmp_path / "a.rec")}
    for pid, truth in truths.items():
        # Of a child only what is its own: it has its parent's blocks as well.
        lines = recorded(found[pid]) - (
            recorded(found[program.pid]) if pid != program.pid else set()
        )
        assert lines == set(map(tuple, truth.values()))
