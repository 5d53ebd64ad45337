"""What a terminal shows before anything is traced, and what no longer stands there later."""

import os
import pty
import select
import time
from pathlib import Path

import pytest

from tests.harness import PATIENCE_S, Target, Targets, Tracelloc, tracelloc_command

pytestmark = pytest.mark.bpf


def shown(command: list[str], cache: Path, status: int = 0) -> str:
    """All that a command writes to its terminal, until it has ended with this status."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, {**os.environ, "XDG_CACHE_HOME": str(cache)})
    seen, end_s = b"", time.monotonic() + PATIENCE_S
    try:
        while select.select([terminal], [], [], max(0.0, end_s - time.monotonic()))[0]:
            seen += os.read(terminal, 4096)
    except OSError:  # EIO: the other end is closed
        pass
    finally:
        os.close(terminal)
        _, ended = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(ended) == status, seen
    return seen.decode()


@pytest.fixture
def target(targets: Targets) -> Target:
    return targets.c("plain")


def test_a_running_process(target: Target, tmp_path: Path) -> None:
    command = tracelloc_command("-p", target.pid, "--text", "--count", 1, "--interval", "10ms")
    first = shown(command, tmp_path)
    assert first.startswith(f"\rtracelloc: attaching to {target.pid}…\x1b[K")
    for said in ("reading the symbol tables", "compiling the probes", "loading the probes"):
        assert f"\rtracelloc: {said}" in first
    before, _, after = first.partition(f"\r\x1b[Ktracelloc: tracing {target.pid} ")
    assert "==> no allocations seen yet" in after
    assert "\n" not in before
    assert "\x1b" not in after
    again = shown(command, tmp_path)
    assert again.startswith(f"\rtracelloc: attaching to {target.pid}…")
    assert "compiling" not in again


def test_a_program_has_the_terminal_for_itself(tmp_path: Path) -> None:
    script = "echo begins; sleep 0.1; echo ends"
    options = ("--text", "--report", tmp_path / "report", "--interval", 60)
    text = shown(tracelloc_command(*options, "--", "sh", "-c", script), tmp_path)
    assert text.startswith("\rtracelloc: starting sh…\x1b[K")
    status, _, after = text.partition("\r\x1b[K")
    assert "\n" not in status
    assert "begins" in after
    assert "\x1b" not in after.partition("ends")[0]


def test_errors_stand_alone(tmp_path: Path) -> None:
    text = shown(tracelloc_command("-p", 1 << 30, "--text"), tmp_path, status=1)
    assert "\r\x1b[Ktracelloc: error: " in text
    assert text.count("\n") == 1


def test_logs_are_without_it(target: Target) -> None:
    tracer = Tracelloc("-p", target.pid, "--text", "--count", 1)
    assert tracer.finish() == 0
    assert tracer.messages[0].startswith(f"tracelloc: tracing {target.pid} ")


def test_memory(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the compiler nor the disassembler, which workers have, are in it."""
    monkeypatch.setenv("LANG", "C.UTF-8" if os.environ.get("LANG") == "C" else "C")  # executes it
    options = ("--text", "--interval", "100ms")
    with Tracelloc("-p", target.pid, *options) as tracer:
        tracer.await_text("==> lost")
        process = Path(f"/proc/{tracer.process.pid}")
        most_kib = int((process / "status").read_text().partition("VmHWM:")[2].split()[0])
        assert most_kib < 120_000_000 / 1024
        maps = (process / "maps").read_text()
        assert "libc.so" in maps
        assert "libcapstone" not in maps
        assert "libbcc" not in maps
