"""What fails in the middle of a trace: all that was seen is written, and programs go on."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import outcome, run
from tests.harness import (
    CHAIN_BYTES,
    PATIENCE_S,
    Builder,
    Target,
    Targets,
    Tracelloc,
    await_line,
    run_tracelloc,
    wait_until,
)

pytestmark = [pytest.mark.bpf, pytest.mark.long]

FAILED = "tracelloc: error: tracing failed: ValueError: made up"

Sabotaged = Callable[..., Tracelloc]


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    return tmp_path / "flag"


@pytest.fixture
def sabotaged(flag: Path) -> Sabotaged:
    """tracelloc with a part that fails once the flag is there."""

    def start(part: str, *arguments: str | Path | int) -> Tracelloc:
        return Tracelloc(part, flag, *arguments, module="tests.sabotage")

    return start


@pytest.fixture
def target(targets: Targets) -> Target:
    return targets.c("chain")


def live_bytes_in(path: Path) -> int:
    found: int = json.loads(path.read_text())["figures"]["live_bytes"]
    return found


def recorded_bytes(path: Path) -> int:
    done = run_tracelloc("report", path, "--format", "json", status=0)
    found: int = json.loads(done.stdout.splitlines()[-1])["live_bytes"]
    return found


@pytest.mark.parametrize("part", ["pump", "reports"])
def test_reports_and_files_hold_what_was_seen(
    sabotaged: Sabotaged, target: Target, flag: Path, tmp_path: Path, part: str
) -> None:
    tracer = sabotaged(
        part, "-p", target.pid, "--json", "--interval", "0.1", "-o", tmp_path / "x.json"
    )
    assert target.ask("go") == "done"
    tracer.await_report(lambda report: report["live_bytes"] == CHAIN_BYTES)
    flag.touch()
    assert tracer.finish() == 1
    errors = [line for line in tracer.messages if "made up" in line]
    if part == "pump":
        assert errors == [FAILED]
        assert tracer.last()["failed_tasks"] == [{"task": "tracing", "count": 1}]
    else:
        assert errors == [
            "tracelloc: error: ValueError: made up; this is a bug, --debug shows more"
        ]
    assert tracer.last()["live_bytes"] == CHAIN_BYTES
    assert live_bytes_in(tmp_path / "x.json") == CHAIN_BYTES
    assert target.end() == 0


def test_files_are_written_without_a_last_report(
    sabotaged: Sabotaged, target: Target, flag: Path, tmp_path: Path
) -> None:
    tracer = sabotaged("last report", "-p", target.pid, "--json", "-o", tmp_path / "x.json")
    assert target.ask("go") == "done"
    tracer.await_report(lambda report: report["live_bytes"] == CHAIN_BYTES)
    flag.touch()
    assert tracer.stop() == 1
    assert live_bytes_in(tmp_path / "x.json") == CHAIN_BYTES


def test_a_recording_holds_what_was_seen(target: Target, flag: Path, tmp_path: Path) -> None:
    recording = tmp_path / "x.tlrec"
    command = ["-m", "tests.sabotage", "pump", flag, "record", "--earlier", "off",
               "-p", target.pid, "-o", recording]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0,
    ) as tracer:  # fmt: skip
        try:
            await_line(tracer.stderr, "lost")
            assert target.ask("go") == "done"
            wait_until(lambda: recorded_bytes(recording) == CHAIN_BYTES)
            flag.touch()
            messages = tracer.stderr.read().decode().splitlines()
            assert tracer.wait(PATIENCE_S) == 1
        finally:
            tracer.kill()
    assert FAILED in messages
    assert recorded_bytes(recording) == CHAIN_BYTES


def test_upkeep_that_fails_is_counted(sabotaged: Sabotaged, target: Target, flag: Path) -> None:
    flag.touch()
    tracer = sabotaged("upkeep", "-p", target.pid, "--json", "--interval", "0.1", "--debug")
    assert target.ask("go") == "done"
    report = tracer.await_report(lambda report: report["live_bytes"] == CHAIN_BYTES)
    assert {"taking samples", "judging"} == {each["task"] for each in report["failed_tasks"]}
    assert tracer.stop() == 0
    assert any("taking samples of process" in line for line in tracer.messages)
    assert "ValueError: made up" in tracer.messages  # of a traceback


def test_a_program_goes_on_with_its_own_exit_status(
    sabotaged: Sabotaged, builder: Builder, flag: Path, tmp_path: Path
) -> None:
    """Whatever becomes of tracing."""
    fifo = tmp_path / "fifo"
    run("mkfifo", fifo)
    for part, options in (("pump", ()), ("reports", ()), ("follower", ("--follow",))):
        flag.unlink(missing_ok=True)
        tracer = sabotaged(
            part, "--json", "--interval", "0.1", "-o", tmp_path / f"{part}.json", *options,
            "--", "sh", "-c", f"cat {fifo}; exit 7",
        )  # fmt: skip
        tracer.await_report(lambda report: True)
        flag.touch()
        if part == "follower":
            fifo.write_text("end")
        else:
            tracer.wait_for("no longer tracing; waiting for sh (process")
            fifo.write_text("end")
        assert tracer.finish() == 7, tracer.messages
        assert sum("made up" in line for line in tracer.messages) == 1, tracer.messages
        assert (tmp_path / f"{part}.json").exists()


def test_a_program_goes_on_if_tracing_does_not_begin(flag: Path) -> None:
    flag.touch()
    command = ["-m", "tests.sabotage", "beginning", flag, "--text", "--", "sh", "-c", "exit 7"]
    done = outcome(sys.executable, *command)
    assert done.returncode == 7, done.stderr
    assert "made up" in done.stderr
