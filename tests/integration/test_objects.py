"""A running Python program's objects, counted from outside, against its own count."""

import json
import os
import signal
import struct
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests import distributions
from tests.harness import TARGETS, Target, Targets, run_tracelloc
from tracelloc.errors import TargetError
from tracelloc.model.objects import ObjectCensus
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.cpython import holders
from tracelloc.record.runtimes.cpython.census import CensusTaker
from tracelloc.record.runtimes.cpython.interpreter import CPython, UncountedPython
from tracelloc.record.runtimes.cpython.watch import PythonObjectWatch
from tracelloc.record.runtimes.supported import object_counter

PYTHON = "/usr/bin/python3"
# Types whose objects the garbage collector tracks all the time.
TRACKED = (
    "__main__.Session", "__main__.Slotted", "list", "function", "type", "module", "cell",
    "collections.deque", "property", "member_descriptor", "abc.ABCMeta",
)  # fmt: skip


def open_program(targets: Targets, python: Sequence[str] = (PYTHON,), **variables: str) -> Target:
    return targets.start(*python, TARGETS / "objects.py", env=os.environ | variables)


def counts(census: ObjectCensus) -> dict[str, int]:
    return {found.name: found.count for found in census.types}


def sizes(census: ObjectCensus) -> dict[str, int]:
    return {found.name: found.size_bytes for found in census.types}


@pytest.mark.parametrize(
    "hooks", ["", "variable", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("14", "15"))]
)
def test_all_objects_are_counted(targets: Targets, hooks: str) -> None:
    """While nothing changes, to the last one; large tuples included, and with debug hooks.

    ``hooks``: or a minor version of Python without them.
    """
    variables = {"PYTHONMALLOC": "debug"} if hooks == "variable" else {}
    python = distributions.python(int(hooks)) if hooks.isdigit() else [PYTHON]
    target = open_program(targets, python=python, **variables)
    censuses = CensusTaker(Process(target.pid))
    blocks, truth = json.loads(target.ask("grow 3000"))
    for change in (0, 500, -700):
        if change:
            word = "grow" if change > 0 else "drop"
            blocks, truth = json.loads(target.ask(f"{word} {abs(change)}"))
        census = censuses.take_census()
        found = counts(census)
        assert {name: found.get(name) for name in TRACKED if name in truth} == {
            name: truth[name] for name in TRACKED if name in truth
        }
        assert census.changed_pools == 0
        # Larger ones are malloc's.
        assert 0.98 * blocks <= census.block_count <= blocks
        assert found["tuple"] >= 50 + found["__main__.Slotted"]
    assert found["__main__.Session"] == 2800


def test_bytes_with_tables(targets: Targets) -> None:
    """As ``sys.getsizeof`` has it, in whole blocks of 16 bytes."""
    target = open_program(targets)
    censuses = CensusTaker(Process(target.pid))
    target.ask("grow 10")
    before = censuses.take_census()
    target.ask("grow 1000")
    after = censuses.take_census()
    dicts = counts(after)["dict"] - counts(before)["dict"]
    assert dicts == 1000
    code = "import sys; n = 1; print(sys.getsizeof({'name': f'session-{n}', n: [n]}))"
    dict_bytes = int(subprocess.check_output([PYTHON, "-c", code]))
    assert sizes(after)["dict"] - sizes(before)["dict"] == 1000 * dict_bytes
    # The collector's 16 bytes, 40 of the list, and 8 for its item, elsewhere.
    assert sizes(after)["list"] - sizes(before)["list"] == 1000 * (64 + 8)


def test_frames_have_no_number_of_items(targets: Targets, tmp_path: Path) -> None:
    """A generator has its code's address where other objects have the number of their items."""
    local = "; ".join(f"a{number} = {number}" for number in range(100))
    script = tmp_path / "frames.py"
    script.write_text(
        f"def produce():\n    {local}\n    yield\n"
        "kept = [produce() for _ in range(100)]\nprint('ready', flush=True)\ninput()\n"
    )
    census = CensusTaker(Process(targets.start(PYTHON, script).pid)).take_census()
    assert counts(census)["generator"] >= 100
    assert 0 < sizes(census)["generator"] < 1 << 20


def test_while_it_runs(targets: Targets, tmp_path: Path) -> None:
    """Counted while everything changes, the numbers are nearly right."""
    script = tmp_path / "busy.py"
    script.write_text(
        "kept = [[] for _ in range(100_000)]\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for at in range(0, len(kept), 7): kept[at] = [at]\n"
    )
    censuses = CensusTaker(Process(targets.start(PYTHON, script).pid))
    for _ in range(5):
        assert abs(counts(censuses.take_census())["list"] - 100_000) < 2_000


def test_the_command(targets: Targets) -> None:
    target = open_program(targets)
    target.ask("grow 1000")
    os.kill(target.pid, signal.SIGSTOP)
    try:
        done = run_tracelloc(
            "objects", "-p", target.pid, "--json", "--every", "100ms", "--count", 2
        )
    finally:
        os.kill(target.pid, signal.SIGCONT)
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["pid"], first["command"]) == (target.pid, "python3")
    (sessions,) = [row for row in first["types"] if row["type"] == "__main__.Session"]
    assert sessions["objects"] == 1000
    assert all(row["objects_change"] == 0 for row in second["types"])
    text = run_tracelloc("objects", "-p", target.pid, "--top", 3).stdout
    assert f"python3 ({target.pid}): " in text
    assert len(text.splitlines()) == 1 + 1 + 3 + 1


@pytest.mark.parametrize(
    ("environment", "command"),
    [({"PYTHONMALLOC": "malloc"}, [PYTHON, TARGETS / "objects.py"]), ({}, ["/bin/cat"])],
)
def test_nothing_to_count(
    targets: Targets, environment: dict[str, str], command: list[str | Path]
) -> None:
    if command == ["/bin/cat"]:
        command = ["/bin/sh", "-c", "echo ready; exec cat"]
    target = targets.start(*command, env=os.environ | environment)
    done = run_tracelloc("objects", "-p", target.pid, status=1)
    assert "no Python objects were found" in done.stderr


def test_an_old_version_is_refused(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines have no Python 3.10 any more: the search for one is made to find it."""

    def find(_: object) -> None:
        raise UncountedPython("Python 3.10 or older")

    target = open_program(targets)
    monkeypatch.setattr(holders, "find_cpython", find)
    with (
        closing(object_counter(Process(target.pid))) as counter,
        pytest.raises(TargetError, match=r"Python 3\.10 or older: its objects can't be"),
    ):
        counter.count()
    watch = PythonObjectWatch(Process(target.pid), AddressSpace(Process(target.pid)))
    watch.update_findings()
    assert "can't be counted" in (watch.findings.trouble or "")


def test_a_build_without_gil_is_refused(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of offsets tells."""
    table = struct.pack("<90Q", int.from_bytes(b"xdebugpy", "little"), 0, 1, *[0] * 87)
    target = open_program(targets)
    monkeypatch.setattr(CPython, "_find_version", lambda _: (3, 13))
    monkeypatch.setattr(CPython, "read", lambda *_: table)
    with (
        closing(object_counter(Process(target.pid))) as counter,
        pytest.raises(TargetError, match=r"Python 3\.13 without the GIL: its objects can't"),
    ):
        counter.count()
