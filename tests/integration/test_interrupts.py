"""^C and SIGTERM at any time: the first ends in good order, the second at once."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import background
from tests.harness import PATIENCE_S, await_line, wait_until
from tracelloc.record.process.procfs import Process

pytestmark = pytest.mark.bpf

SLOW = """
import signal, sys, time
from tracelloc.command import cli
{patch}
def slowly(*arguments, **more):
    print("at it", file=sys.stderr, flush=True)
    while True:
        time.sleep(0.01)
sys.exit(cli.main(sys.argv[1:]))
"""
IN_DISCOVERY = """
from tracelloc.record.session import sessionstart
sessionstart.find_allocators = lambda *a, **m: slowly()
"""
IN_UNWIND_TABLES = """
from tracelloc.record.unwinding.rowsahead import RowsAhead
RowsAhead.supply_passed = lambda *a, **m: slowly()
"""
IN_ROWS = """
from tracelloc.record.unwinding.stacksource import StackSource
StackSource.await_rows = lambda *a, **m: slowly()
"""
IN_ENDING = """
from tracelloc.record.session.session import Session
Session.stop = lambda *a, **m: slowly()
"""
IN_FILES = """
from tracelloc.command import run
run.write_files = lambda *a, **m: slowly()
"""


class SlowTracelloc:
    """A tracelloc that takes for ever at one step."""

    def __init__(self, patch: str, *arguments: str | int | Path) -> None:
        script = SLOW.format(patch=patch)
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip

    def wait_for(self, words: str) -> None:
        await_line(self.process.stderr, words)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()


@pytest.mark.parametrize(
    ("patch", "number"),
    [
        (IN_DISCOVERY, signal.SIGINT),
        (IN_UNWIND_TABLES, signal.SIGTERM),
        (IN_ROWS, signal.SIGINT),
        (IN_ROWS, signal.SIGTERM),
    ],
)
def test_start_up_can_be_interrupted(patch: str, number: signal.Signals) -> None:
    with background("sleep", "600") as target:
        slow = SlowTracelloc(patch, "-p", target.pid, "--text")
        slow.wait_for("at it")
        before = time.monotonic()
        assert slow.end(number) == 0
        assert time.monotonic() - before < PATIENCE_S / 2
        assert target.poll() is None


@pytest.mark.parametrize("patch", [IN_ENDING, IN_FILES])
def test_a_second_signal_ends_at_once(patch: str, tmp_path: Path) -> None:
    with background("sleep", "600") as target:
        slow = SlowTracelloc(patch, "-p", target.pid, "--text", "-o", tmp_path / "x.json")
        slow.wait_for("tracing")
        slow.process.send_signal(signal.SIGINT)
        slow.wait_for("at it")
        assert slow.end(signal.SIGTERM) == 1  # another one: two of a kind at a time are one
        slow.wait_for("ended at once")
        assert list(tmp_path.iterdir()) == []
        assert target.poll() is None


def test_a_launched_program_that_is_not_traced_yet() -> None:
    """A second signal ends it with us: none of its own code has run."""
    slow = SlowTracelloc(IN_ROWS, "--text", "--", "sleep", "600")
    slow.wait_for("at it")
    (pid,) = (p for p in Process(slow.process.pid).child_ids() if Process(p).command() == "sleep")
    slow.process.send_signal(signal.SIGTERM)
    assert slow.end(signal.SIGINT) == 1  # another one: two of a kind may become one
    wait_until(lambda: not Process(pid).exists())
