"""``tracelloc doctor``: what it says of the machine, of processes, and without rights."""

import re
import subprocess
import sys

import pytest

from tests.harness import Targets, Tracelloc, run_tracelloc
from tracelloc.command.ways import Finding, FindingState, _rights, diagnosis_lines, why_not_traced


@pytest.mark.bpf
def test_a_process_that_can_be_traced(targets: Targets) -> None:
    done = run_tracelloc("doctor", "-p", targets.c("thicket").pid, status=0)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("tracelloc -p PID traces by probes, tracelloc -- CMD by the ")
    assert any(line.split()[:4] == ["ok", "malloc", "glibc", "in"] for line in lines)
    assert not any(line.startswith(("fails", "no ")) for line in lines)


@pytest.mark.bpf
def test_probes_of_another_tool_are_found(targets: Targets) -> None:
    target = targets.c("lineage")
    words = "another tool has probes or breakpoints there: "
    assert words not in run_tracelloc("doctor", "-p", target.pid).stdout
    other = Tracelloc("-p", target.pid, "--text")
    try:
        said = run_tracelloc("doctor", "-p", target.pid).stdout
        assert re.search(f"{words}.*calloc in libc.so.6, free in libc.so.6", said)
    finally:
        other.stop()


@pytest.mark.bpf
def test_a_process_that_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    done = run_tracelloc("doctor", "-p", process.pid, status=1)
    assert f"there is no process {process.pid}" in done.stdout
    assert "error: the process can't be traced" in done.stderr


def test_missing_rights() -> None:
    def found(mask: int) -> list[str]:
        return [f"{f.state.value}: {f.text}" for f in _rights(f"CapEff:\t{mask:016x}\n")]

    three = 1 << 39 | 1 << 38 | 1 << 19
    assert found(1 << 21) == found(three | 1 << 40) == found(three & ~(1 << 38)) == []
    assert found(three)[0].startswith("missing: without CAP_CHECKPOINT_RESTORE")


def test_what_is_hostile_is_printable() -> None:
    findings = [Finding(FindingState.FAILS, "process", "\x1b]0;x\x07", "\x1b[2J")]
    assert why_not_traced(findings) == "the process can't be traced"
    assert all(line.isprintable() for line in diagnosis_lines(findings))
