"""What can't be done is said in one line, with a status that isn't 0, before anything is done."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import outcome
from tests.harness import PATIENCE_S, Builder, Targets, as_nobody, refused, run_tracelloc
from tracelloc import probes
from tracelloc.command.cli import main
from tracelloc.errors import TracellocError
from tracelloc.record.kernel import bpf as capture
from tracelloc.record.kernel import capabilities as system
from tracelloc.record.kernel.captureconfig import CaptureConfig

ROOT = Path(__file__).parents[2]


def said(result: subprocess.CompletedProcess[str], status: int) -> str:
    """The one line; nothing else may have been printed."""
    assert result.returncode == status, result
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("tracelloc: error: ")
    return lines[0].removeprefix("tracelloc: error: ")


def free_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(PATIENCE_S)
    return process.pid


@pytest.mark.bpf
def test_a_file_that_is_not_there_is_no_wrong_usage() -> None:
    line = said(run_tracelloc("-p", os.getpid(), "--filters", "/nonexistent.toml"), 1)
    assert "cannot be read: No such file" in line


def test_a_name_of_many_processes(tmp_path: Path) -> None:
    name = "of-a-dozen-processes"
    (tmp_path / name).symlink_to("/bin/sleep")
    started = [subprocess.Popen([tmp_path / name, "600", *["0"] * 99]) for _ in range(12)]
    try:
        done = run_tracelloc("-n", name, "--text")
    finally:
        for process in started:
            process.kill()
            process.wait(PATIENCE_S)
    assert done.returncode == 1
    head, *lines, last = done.stderr.splitlines()
    assert head.startswith(f"tracelloc: error: 12 processes are called {name}")
    assert last == "    and 2 more; pgrep -af lists all"
    pids = sorted(process.pid for process in started)
    assert [int(line.split()[0]) for line in lines] == pids[-10:]
    command = f"{name} 600" + " 0" * 99
    assert all(line.endswith(f"  {command[:59]}…") for line in lines)


@pytest.mark.bpf
def test_a_pid_of_another_namespace() -> None:
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "tracelloc"]
    line = said(outcome(*inside, "-p", str(os.getpid()), "--text", cwd=ROOT), 1)
    assert f"there is no process {os.getpid()}" in line
    assert "in a container's PID namespace" in line


def test_kernel_thread() -> None:
    name = Path("/proc/2/comm")
    if not name.exists() or name.read_text() != "kthreadd\n":
        refused("kernel threads belong to another PID namespace")
    assert "is a kernel thread" in said(run_tracelloc("-p", 2), 1)


def test_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-p", str(os.getpid())]) == 1
    assert "cannot trace itself" in capsys.readouterr().err


@pytest.mark.bpf
@pytest.mark.long
@pytest.mark.skipif(platform.machine() != "x86_64", reason="32-bit programs of x86")
def test_32_bit_target(builder: Builder, targets: Targets) -> None:
    program = builder.c("plain", "-m32")
    assert "is a 32-bit program" in said(run_tracelloc("-p", targets.start(program).pid), 1)
    assert "is a 32-bit program" in said(run_tracelloc("--", program), 1)


@pytest.mark.bpf
def test_targets_without_the_allocator(targets: Targets) -> None:
    target = targets.c("plain", flags=("-static", "-s"))
    line = said(run_tracelloc("-p", target.pid), 1)
    assert "has no malloc library that tracelloc knows" in line
    assert "it is a static program without symbols" in line
    assert "strip --strip-debug" in line
    target = targets.c("plain")
    line = said(run_tracelloc("-p", target.pid, "--allocator", "jemalloc"), 1)
    assert "no malloc library 'jemalloc'" in line


@pytest.mark.parametrize(
    ("option", "name", "why"),
    [
        ("--flamegraph", "missing/app.fg", "No such file"), ("-o", "missing/a-%p.json", "No such"),
        ("--flamegraph", "/proc/app.fg", ""), ("--pprof", ".", "it is a directory"),
    ],
)  # fmt: skip
def test_unwritable_output(tmp_path: Path, option: str, name: str, why: str) -> None:
    line = said(run_tracelloc("-p", 1, option, tmp_path / name), 1)
    assert f" cannot be written: {why}" in line
    assert list(tmp_path.iterdir()) == []


def test_names_in_errors_are_printable() -> None:
    """A zombie may be called whatever steers a terminal."""
    code = r"open('/proc/self/comm', 'wb').write(b'\x1b]0;x\x07\xc2\x85\n\r')"
    process = subprocess.Popen([sys.executable, "-c", code])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    line = said(run_tracelloc("-p", process.pid), 1)
    process.wait(PATIENCE_S)
    assert "has already ended" in line
    assert line.isprintable()
    assert r"\x1b]0;x\x07" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give root up")
def test_without_privileges() -> None:
    """A user without capabilities is told what is missing, be the process theirs or not."""
    own = subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=65534, group=65534)
    for pid in (own.pid, os.getpid()):
        line = said(outcome(*as_nobody("-p", pid)), 1)
        assert "root" in line
        assert "sudo" in line
    own.communicate(timeout=PATIENCE_S)


def raised(call: object, *arguments: object) -> str:
    with pytest.raises(TracellocError) as caught:
        call(*arguments)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_the_machine_lacks() -> None:
    assert "needs 6.1 or newer" in raised(system.check_kernel, "5.15.0-150-generic")
    assert "needs 6.1 or newer" in raised(system.check_kernel, "6.0.19")
    for release in ("6.1.0-28-amd64", "6.6.0", "6.18.44", "10.0"):
        system.check_kernel(release)
    bpf, perfmon, ptrace, admin = 1 << 39, 1 << 38, 1 << 19, 1 << 21
    for held in (0, bpf, bpf | perfmon):
        assert "probes need" in raised(system.check_capabilities, f"CapEff:\t{held:016x}\n")
    for held in (admin, bpf | perfmon | ptrace, (1 << 41) - 1):
        system.check_capabilities(f"Name:\tx\nCapEff:\t{held:016x}\n")
    assert "CONFIG_BPF_SYSCALL" in raised(system.explain_bpf_refusal, 38)
    assert "the kernel refuses BPF" in raised(system.explain_bpf_refusal, 1)
    assert "cannot create BPF maps" in raised(system.explain_bpf_refusal, 22)


# What can't be had on this machine: bcc missing, and the other package of that name.
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("raise ModuleNotFoundError(\"No module named 'bcc'\", name='bcc')", "is not installed"),
        ("BCC = 'body-centered cubic'", "crystal-lattice"),
        ("raise OSError('libbcc.so.0: cannot open shared object file')", "cannot be loaded"),
    ],
)
def test_wrong_bcc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, words: str
) -> None:
    (tmp_path / "bcc.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    line = raised(capture.Capture, CaptureConfig())
    assert words in line
    assert "python3-bpfcc" in line


@pytest.mark.bpf
def test_compile_failure_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "source_text", lambda **_: "int broken(struct nothing *x) {")
    line = raised(capture.Capture, CaptureConfig())
    assert line.startswith("bcc could not compile the probes:")


def test_debug_shows_the_traceback() -> None:
    result = run_tracelloc("-p", free_pid(), "--debug", status=1)
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("tracelloc: error: ")


def test_the_version_needs_nothing() -> None:
    assert run_tracelloc("--version").stdout.startswith("tracelloc 0.")
