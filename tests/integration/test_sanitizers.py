"""Programs with sanitizers: traced, they do what they do untraced."""

import subprocess
from pathlib import Path

import pytest

from tests.commands import background, outcome, run
from tests.harness import PATIENCE_S, TARGETS, run_tracelloc, wait_until
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.sanitizers import has_leak_sanitizer
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.sources.preloaded.launching import preloads

pytestmark = [pytest.mark.bpf, pytest.mark.long]

KINDS = {
    "address": ("-fsanitize=address",),
    "address, static and stripped": ("-fsanitize=address", "-static-libasan", "-s"),
    "leak": ("-fsanitize=leak",),
}


def build(directory: Path, *flags: str) -> Path:
    program = directory / "sanitized"
    run("gcc", "-g", *flags, "-o", program, TARGETS / "sanitized.c")
    return program


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_ends_soon(tmp_path: Path, kind: str) -> None:
    """LeakSanitizer looks for leaks at the end, by ptrace(2): nobody else may use that then."""
    program = build(tmp_path, *KINDS[kind])
    assert not preloads(bytes(program))
    for arguments in ((), ("leak",)):
        alone = outcome(program, *arguments)
        assert (alone.returncode != 0) is bool(arguments), alone.stderr
        for options in ((), ("--follow",)):
            done = run_tracelloc(
                "--text", "--report", tmp_path / "report", *options, "--", program, *arguments
            )
            assert done.returncode == alone.returncode, done.stderr
            assert "fatal error" not in done.stderr
            assert ("LeakSanitizer fails under ptrace: its children" in done.stderr) is bool(
                options
            )
            assert "3.91 KiB in 1 allocation" in (tmp_path / "report").read_text()


def test_a_shell_that_runs_it_is_followed(tmp_path: Path) -> None:
    """The program is left alone, the others are not; all ends are noticed."""
    program = build(tmp_path, *KINDS["address"])
    run_tracelloc(
        "--json", "--report", tmp_path / "report", "--follow", "--",
        "sh", "-c", f"{program}; true; cat /dev/null; exit 3", status=3
    )  # fmt: skip
    report = (tmp_path / "report").read_text()
    assert '"command":"sanitized"' in report
    assert '"command":"cat"' in report


def test_one_that_runs_cannot_be_followed(tmp_path: Path) -> None:
    program = build(tmp_path, *KINDS["address"])
    with subprocess.Popen(
        [program, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as target:
        assert target.stdout.readline() == b"ready\n"
        done = run_tracelloc("-p", target.pid, "--follow", "--text", status=1)
        (line,) = [line for line in done.stderr.splitlines() if "error" in line]
        assert "LeakSanitizer fails under ptrace; leave --follow out" in line
        _, _ = target.communicate(b"end\n", PATIENCE_S)
        assert target.returncode == 0


def test_others_have_none() -> None:
    with background("sleep", "600") as target:
        space = AddressSpace(Process(target.pid))
        wait_until(lambda: any("libc" in module.path for module in space.refresh()))
        assert not has_leak_sanitizer(space)
        space.close()
