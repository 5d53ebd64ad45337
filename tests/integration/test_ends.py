"""Every way in which tracing ends writes everything, and the target goes on."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.commands import run
from tests.harness import (
    CHAIN_BYTES,
    PATIENCE_S,
    USES_LIBRARY,
    Target,
    Targets,
    Tracelloc,
    await_line,
    folded_sum,
    read_line,
    tracelloc_command,
    wait_until,
)

pytestmark = [pytest.mark.bpf, pytest.mark.long]


@pytest.fixture
def target(targets: Targets) -> Target:
    return targets.c("chain")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals(target: Target, tmp_path: Path, number: signal.Signals) -> None:
    flames = tmp_path / "app.fg"
    tracer = Tracelloc("-p", target.pid, "--json", "--flamegraph", flames)
    assert target.ask("go") == "done"
    assert tracer.stop(number) == 0
    assert tracer.last()["live_bytes"] == CHAIN_BYTES
    assert folded_sum(flames) == CHAIN_BYTES
    assert target.end() == 0


def has_handled(tracer: Tracelloc, number: signal.Signals) -> bool:
    """Whether it has been given the signal: another one of its kind would be lost until then."""
    lines = Path(f"/proc/{tracer.process.pid}/status").read_text().splitlines()
    pending = [int(line.split()[1], 16) for line in lines if "Pnd:" in line]
    return not any(mask >> (number - 1) & 1 for mask in pending)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_signals_are_one(target: Target, tmp_path: Path, number: signal.Signals) -> None:
    """As timeout(1) and supervisors send them: to the process, and to its group."""
    flames = tmp_path / "app.fg"
    tracer = Tracelloc("-p", target.pid, "--json", "--flamegraph", flames)
    assert target.ask("go") == "done"
    tracer.process.send_signal(number)
    wait_until(lambda: has_handled(tracer, number), 0)
    assert tracer.stop(number) == 0
    assert tracer.last()["live_bytes"] == folded_sum(flames) == CHAIN_BYTES


def await_three_more(reports: Path, process: subprocess.Popen[bytes]) -> None:
    """Waits for three lines more than there are, and that what writes them goes on."""
    seen = len(reports.read_text().splitlines())
    wait_until(lambda: len(reports.read_text().splitlines()) >= seen + 3)
    assert process.poll() is None


def test_under_nohup_a_hangup_is_ignored(target: Target, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    command = tracelloc_command("-p", target.pid, "--json-full", "--interval", "0.1")
    with subprocess.Popen(
        ["nohup", *command], stdin=subprocess.DEVNULL, stdout=reports.open("wb"),
        stderr=subprocess.PIPE, bufsize=0,
    ) as tracer:  # fmt: skip
        try:
            await_line(tracer.stderr, "tracing")
            tracer.send_signal(signal.SIGHUP)
            await_three_more(reports, tracer)
            tracer.send_signal(signal.SIGINT)
            assert tracer.wait(PATIENCE_S) == 0
        finally:
            tracer.kill()


@pytest.mark.parametrize("is_launched", [False, True])
def test_in_the_background_of_a_script(is_launched: bool, target: Target, tmp_path: Path) -> None:
    """A shell without job control has SIGINT ignored. It ends a trace, but is for no program."""
    reports = tmp_path / "reports"
    options = ["--json-full", "--interval", "0.1", "--report", reports]
    traced = ["--", "sleep", "1h"] if is_launched else ["-p", target.pid]
    command = tracelloc_command(*options, *traced)
    script = '"$@" & echo $!; wait $!'
    with subprocess.Popen(
        ["sh", "-c", script, "sh", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, bufsize=0,
    ) as shell:  # fmt: skip
        pid = int(read_line(shell.stdout, "sh"))
        try:
            await_line(shell.stderr, "tracing")
            os.kill(pid, signal.SIGINT)
            if is_launched:
                await_three_more(reports, shell)
                os.kill(pid, signal.SIGTERM)
            assert shell.wait(PATIENCE_S) == (128 + signal.SIGTERM if is_launched else 0)
        finally:
            if shell.poll() is None:
                os.kill(pid, signal.SIGKILL)


def test_usr1_writes_and_goes_on(target: Target, tmp_path: Path) -> None:
    flames = tmp_path / "app.fg"
    tracer = Tracelloc("-p", target.pid, "--json", "--flamegraph", flames)
    tracer.process.send_signal(signal.SIGUSR1)
    tracer.wait_for("wrote")
    assert folded_sum(flames) == 0
    assert target.ask("go") == "done"
    tracer.process.send_signal(signal.SIGUSR1)
    tracer.wait_for("wrote")
    assert folded_sum(flames) == CHAIN_BYTES
    assert tracer.process.poll() is None
    assert tracer.stop() == 0
    assert folded_sum(flames) == CHAIN_BYTES


def test_duration(target: Target, tmp_path: Path) -> None:
    flames = tmp_path / "app.fg"
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--duration", "3s", "--interval", "1s",
        "--flamegraph", flames,
    )  # fmt: skip
    assert target.ask("go") == "done"
    assert tracer.finish() == 0
    reports = tracer.reports()
    assert reports[-1]["live_bytes"] == folded_sum(flames) == CHAIN_BYTES
    # One per interval, unless the machine is busy, and the last one when the probes are gone.
    assert 2 <= len(reports) <= 4
    assert 3 <= reports[-1]["elapsed_s"] < 20


def test_count(target: Target) -> None:
    tracer = Tracelloc("-p", target.pid, "--json", "--count", 3, "--interval", "200ms")
    assert tracer.finish() == 0
    assert len(tracer.reports()) == 3


@pytest.mark.parametrize("is_killed", [False, True])
def test_target_exit(target: Target, tmp_path: Path, *, is_killed: bool) -> None:
    """Names are still there although the process is gone."""
    flames = tmp_path / "app.fg"
    tracer = Tracelloc("-p", target.pid, "--json", "--flamegraph", flames)
    assert target.ask("go") == "done"
    if is_killed:
        target.kill()
    else:
        assert target.end() == 0
    assert tracer.finish() == 0
    assert any("has ended" in line for line in tracer.messages)
    report = tracer.last()
    assert report["live_bytes"] == CHAIN_BYTES
    assert report["rss_bytes"] is None
    symbols = [frame["symbol"] for frame in report["top_allocators"][0]["stack"]]
    assert symbols[:6] == ["recurse"] * 5 + ["main"]
    assert folded_sum(flames) == CHAIN_BYTES


@pytest.mark.skipif(USES_LIBRARY, reason="there is one message more")
def test_closed_stdout(target: Target, tmp_path: Path) -> None:
    """``tracelloc … | head -1`` ends quietly, its files written."""
    flames = tmp_path / "app.fg"
    command = tracelloc_command(
        "-p", target.pid, "--text", "--interval", "100ms", "--flamegraph", flames
    )
    tracer = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with tracer:
        read_line(tracer.stderr, "tracelloc")
        assert target.ask("go") == "done"
        assert f" pid={target.pid} ".encode() in tracer.stdout.readline()
        tracer.stdout.close()
        messages = tracer.stderr.read().decode()
    assert tracer.returncode == 141
    allocators, *others = messages.splitlines()
    assert allocators.startswith("tracelloc: malloc libraries: malloc in ")
    assert others == [f"tracelloc: wrote {flames}"]
    assert folded_sum(flames) == CHAIN_BYTES


def test_full_disk(target: Target, tmp_path: Path) -> None:
    """What can't be written is said, the rest is written, the old file stays whole."""
    small = tmp_path / "small"
    small.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=4k", "none", small)
    try:
        full, fine = small / "a.fg", tmp_path / "b.fg"
        full.write_bytes(b"old 1\n")
        tracer = Tracelloc("-p", target.pid, "--json", "--flamegraph", full, "-o", fine)
        assert target.ask("go") == "done"
        tracer.process.send_signal(signal.SIGUSR1)
        tracer.wait_for("a.fg could not be written: No space left on device")
        tracer.wait_for("wrote")
        assert tracer.stop() == 1
        assert "a.fg could not be written" in tracer.messages[-1]
        assert full.read_bytes() == b"old 1\n"
        assert [path.name for path in small.iterdir()] == ["a.fg"]
        assert folded_sum(fine) == CHAIN_BYTES
        assert tracer.last()["live_bytes"] == CHAIN_BYTES
    finally:
        run("umount", small)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_stdout_that_cannot_be_written(target: Target, tmp_path: Path) -> None:
    flames = tmp_path / "app.fg"
    with open("/dev/full", "wb") as full:
        tracer = subprocess.Popen(
            tracelloc_command("-p", target.pid, "--text", "--flamegraph", flames),
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    messages = tracer.communicate(timeout=60)[1].splitlines()
    assert tracer.returncode == 1
    line = "tracelloc: error: standard output cannot be written: No space left on device"
    assert [each for each in messages if "error" in each] == [line], "once"
    assert flames.exists()


def test_stopped_target(target: Target) -> None:
    """A target that is stopped can be attached to, and is exact once it goes on."""
    os.kill(target.pid, signal.SIGSTOP)
    tracer = Tracelloc("-p", target.pid, "--json")
    os.kill(target.pid, signal.SIGCONT)
    assert target.ask("go") == "done"
    assert tracer.final_report()["live_bytes"] == CHAIN_BYTES


def test_two_at_once(target: Target) -> None:
    tracers = [Tracelloc("-p", target.pid, "--json", "--top", 9) for _ in range(2)]
    assert target.ask("go") == "done"
    reports = [tracer.final_report() for tracer in reversed(tracers)]
    for report in reports:
        assert report["live_bytes"] == CHAIN_BYTES
        assert report["lost_events"] == report["broken_stacks"] == 0
    first, second = (
        [
            (site["bytes"], site["allocations"], [frame["address"] for frame in site["stack"]])
            for site in report["top_allocators"]
        ]
        for report in reports
    )
    assert first == second


def test_many_stacks_are_written_at_the_end(targets: Targets, tmp_path: Path) -> None:
    """16,384 of them, one block on each: all are in the file."""
    target = targets.c("thicket", "14", "1", flags=("-O1", "-fno-optimize-sibling-calls"))
    out = tmp_path / "out.folded"
    tracer = Tracelloc("-p", target.pid, "--json", "-o", out)
    done = 0
    while done < 1 << 14:
        done += int(target.ask("100"))
    assert tracer.final_report()["live_stacks"] == 1 << 14
    lines = out.read_text().splitlines()
    assert len(lines) == 1 << 14
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == tracer.last()["live_bytes"]
