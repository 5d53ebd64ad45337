"""Load, stops, marks, exports, attaching and detaching, for long: memory flat, figures exact.

``SOAK_SECONDS``: how long; ``make soak`` says half an hour.
"""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness import Target, Targets, Tracelloc, tracelloc_command
from tests.integration.test_exact import assert_equal
from tests.terminal import Terminal
from tracelloc.record.process.procfs import Process

SECONDS = float(os.environ.get("SOAK_SECONDS", "20"))
pytestmark = [pytest.mark.bpf, pytest.mark.long, pytest.mark.timeout(3 * SECONDS + 600)]
OPERATIONS = 20_000
# Between the first third and the end: allocators keep what was once needed for an export.
MOST_GROWTH_BYTES = {
    "reports": 24 << 20, "screen": 40 << 20, "reports' workers": 24 << 20,
    "screen's workers": 24 << 20,
}  # fmt: skip
# Widths and heights that the screen's terminal has by turns.
SCREENS = (120, 40), (80, 24), (200, 60), (60, 20)


def test_soak(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("books", 4, OPERATIONS, 11, 3000)
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--top", 1000, "--interval", "2s",
        "-o", tmp_path / "a.html", "-o", tmp_path / "a.pb.gz",
    )  # fmt: skip
    screen = Terminal(tracelloc_command("-p", target.pid), tmp_path, width=120, height=40)
    with screen:
        run(target, tracer, screen)
        assert screen.quit() == 0
    assert target.process.poll() is None


def memory_of(processes: list[Process]) -> list[int]:
    """Bytes resident in each, then in the workers of each (what they share counted in parts)."""
    own = [process.rss_bytes() or 0 for process in processes]
    return own + [sum(map(proportional, process.child_ids())) for process in processes]


def proportional(pid: int) -> int:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(text.split("\nPss:")[1].split()[0]) << 10
    return 0


def run(target: Target, tracer: Tracelloc, screen: Terminal) -> None:
    screen.wait_for("1 Stacks")
    shown = Process(screen.pid).child_ids()
    assert len(shown) == 1
    watched = [Process(tracer.process.pid), Process(*shown)]
    begun = time.monotonic()
    sizes: list[list[int]] = []
    books: dict[str, list[int]] = {}
    rounds = passing = 0
    while time.monotonic() - begun < SECONDS:
        other = Tracelloc("-p", target.pid, "--text")
        screen.resize(*SCREENS[rounds % len(SCREENS)])
        # A mark is kept with all its figures for as long as the screen is there.
        screen.press("Escape", "M" if rounds < 3 else "d", str(1 + rounds % 8))
        books = json.loads(target.ask("run"))
        match rounds % 4:
            case 0:
                tracer.process.send_signal(signal.SIGUSR1)
                tracer.wait_for("wrote")
            case 1:
                tracer.process.send_signal(signal.SIGUSR2)
                tracer.wait_for("mark set")
            case 2:
                tracer.process.send_signal(signal.SIGSTOP)
                books = json.loads(target.ask("run"))
                tracer.process.send_signal(signal.SIGCONT)
            case 3:
                os.kill(target.pid, signal.SIGSTOP)
                other.process.send_signal(signal.SIGTERM)
                os.kill(target.pid, signal.SIGCONT)
        if rounds % 5 == 4:
            other.kill()
        else:
            other.stop()
            passing += 1
        # Its events have been applied when the ring is empty; memory is looked at in between.
        sizes.append(memory_of(watched))
        rounds += 1
        if rounds % 10 == 1:
            figures = ", ".join(f"{bytes_ >> 20}" for bytes_ in sizes[-1])
            print(f"{time.monotonic() - begun:.0f} s: {figures} MiB", flush=True)
    books = json.loads(target.ask("run"))
    assert tracer.stop() == 0, tracer.messages
    report = tracer.last()
    assert_equal(report, books)
    assert report["unmatched_frees"] == 0
    assert passing > 1
    for who, sized in zip(MOST_GROWTH_BYTES, zip(*sizes, strict=True), strict=True):
        third = max(1, len(sized) // 3)
        early, late = max(sized[:third]), max(sized[-third:])
        print(f"{rounds} rounds, {who}: {early >> 20} MiB in the first third, {late >> 20} later")
        assert late < early + MOST_GROWTH_BYTES[who]
