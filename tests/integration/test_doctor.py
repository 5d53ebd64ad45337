"""``tracelloc doctor``: what it says of the machine, of processes, and without rights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import Builder, Target, Tracelloc, run_tracelloc, run_without_privileges
from tracelloc.command.doctor import _confinement, _rights, diagnosis_lines, failures
from tracelloc.command.finding import Finding, FindingState


@pytest.mark.bpf
def test_a_process_that_can_be_traced(builder: Builder, targets: list[Target]) -> None:
    target = Target([builder.c("manystacks")])
    targets.append(target)
    done = run_tracelloc("doctor", "-p", target.pid)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert lines[-1] == "tracing will work"
    assert any(line.startswith("ok       malloc      glibc in /") for line in lines)
    assert not any(line.startswith("fails") for line in lines)


@pytest.mark.bpf
def test_probes_of_another_tool_are_found(
    builder: Builder, targets: list[Target], tmp_path: Path
) -> None:
    target = Target([builder.c("hoard"), 1])
    targets.append(target)
    words = "another tool has probes or breakpoints there: calloc in libc.so.6"
    assert words not in run_tracelloc("doctor", "-p", target.pid).stdout
    other = Tracelloc("-p", target.pid, "--text", directory=tmp_path)
    try:
        assert words in run_tracelloc("doctor", "-p", target.pid).stdout
    finally:
        other.stop()


@pytest.mark.bpf
def test_a_process_that_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    done = run_tracelloc("doctor", "-p", process.pid)
    assert done.returncode == 1
    assert f"there is no process {process.pid}" in done.stdout
    assert done.stdout.splitlines()[-1] == "tracing will not work: fix 1 problem first"


def test_without_privileges() -> None:
    done = run_without_privileges("doctor")
    assert done.returncode == 1, done
    assert "fails    rights      CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE missing" in done.stdout
    assert "to fix it: run it with sudo" in done.stdout


def test_rights() -> None:
    def found(mask: int) -> list[str]:
        return [f"{f.state.value}: {f.text}" for f in _rights(f"CapEff:\t{mask:016x}\n")]

    three = 1 << 39 | 1 << 38 | 1 << 19
    assert found(1 << 21) == ["ok: all capabilities, as root has them"]
    assert found(three | 1 << 40) == ["ok: CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE"]
    assert found(three)[1].startswith("missing: without CAP_CHECKPOINT_RESTORE")
    assert found(three & ~(1 << 38))[0] == "fails: CAP_PERFMON missing"
    assert all(finding.state is not FindingState.FAILS for finding in _confinement())


def test_what_is_hostile_is_printable() -> None:
    findings = [Finding(FindingState.FAILS, "process", "\x1b]0;x\x07", "\x1b[2J")]
    assert failures(findings) == 1
    assert all(line.isprintable() for line in diagnosis_lines(findings))
