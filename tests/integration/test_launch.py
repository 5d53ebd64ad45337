"""``tracelloc -- CMD``: traced from the first allocation, otherwise as if not traced."""

import json
import os
import pwd
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.commands import outcome, run
from tests.harness import (
    PATIENCE_S,
    TARGETS,
    Builder,
    Tracelloc,
    reports_among,
    run_tracelloc,
    tracelloc_command,
    wait_until,
)

pytestmark = pytest.mark.bpf

PROGRAM = {"in_constructor": [5, 15_000], "in_main": [3, 12_000]}
NEEDED = {"in_needed": [7, 14_000]}
PRELOADED = {"in_preloaded": [7, 7_000]}
QUIET = ("--json", "--top", 1000, "--interval", 60)


def by_function(report: dict[str, Any], prefix: str = "in_") -> dict[str, list[int]]:
    """[blocks, bytes] by the function of the program, ``early.c``, that allocated them."""
    found: dict[str, list[int]] = {}
    for entry in report.get("top_allocators", ()):
        for frame in entry["stack"]:
            if (frame["symbol"] or "").startswith(prefix):
                figures = found.setdefault(frame["symbol"], [0, 0])
                figures[0] += entry["allocations"]
                figures[1] += entry["bytes"]
    return found


def last_report(text: str, *, execs: int = 0) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(reports_among(text).splitlines()[-1])
    assert {cause: n for cause, n in report["lost"].items() if n} == {}
    assert (report["unmatched_frees"], report["exec_count"]) == (0, execs)
    return report


@pytest.fixture(scope="module")
def libraries(builder: Builder) -> tuple[Path, Path]:
    """(needed, preloaded)"""
    shared = ("-shared", "-fPIC", "-DLIBRARY=")
    needed, preloaded = (
        builder.c("early", *shared[:2], shared[2] + name) for name in ("needed", "preloaded")
    )
    return needed, preloaded


@pytest.mark.parametrize("options", [(), ("--attach", "perf")], ids=str)
def test_constructors(
    builder: Builder,
    libraries: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    """Of the program, of a library that it needs, and of one that is preloaded."""
    needed, preloaded = libraries
    program = builder.c("early", "-DNEEDED", str(needed), f"-Wl,-rpath,{needed.parent}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(needed.parent))
    monkeypatch.setenv("LD_PRELOAD", str(preloaded))
    done = run_tracelloc(*QUIET, *options, "--", program, 7, status=7)
    assert by_function(last_report(done.stderr)) == PROGRAM | NEEDED | PRELOADED


def test_stacks_are_whole_from_the_first_event(builder: Builder, tmp_path: Path) -> None:
    """A library allocates a thousand times as soon as it is there; the program waits for it."""
    plugin = builder.c("plugin", "-shared", "-fPIC", "-fomit-frame-pointer")
    libraries = [tmp_path / f"plugin{n}.so" for n in range(8)]
    for library in libraries:
        library.write_bytes(plugin.read_bytes())
    program = builder.c("libraries", "-fomit-frame-pointer")
    done = run_tracelloc(*QUIET, "--", program, "burst", 10_000, *libraries, status=0)
    report = last_report(done.stderr)
    bursts = [each for each in report["top_allocators"] if each["allocations"] == 10_000]
    assert len(bursts) == len(libraries)
    assert report["partial_allocations"] == 0


@pytest.mark.parametrize("kind", ["static", "musl", "static musl"])
def test_c_libraries(builder: Builder, tmp_path: Path, kind: str) -> None:
    if "musl" not in kind:
        program = builder.c("early", *(["-static"] if "static" in kind else []))
    else:
        program = tmp_path / "early"
        static = ["-static"] if "static" in kind else []
        run("musl-gcc", "-O1", "-g", "-fno-builtin", *static, TARGETS / "early.c", "-o", program)
    report = last_report(run_tracelloc(*QUIET, "--", program, 0, status=0).stderr)
    assert by_function(report) == PROGRAM
    assert report["command"] == program.name[:15]


def test_streams_and_status(builder: Builder) -> None:
    command = tracelloc_command(
        "--flamegraph", "/dev/null", "--", builder.c("early"), "-15", "word"
    )
    done = outcome(*command, input="line\n")
    assert done.stdout == "word\nline\n"
    assert done.returncode == 128 + signal.SIGTERM, done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_pass(tmp_path: Path, number: signal.Signals) -> None:
    """The program decides what they mean; tracing goes on until it has ended."""
    script = (
        f"trap 'echo got; got=1' {int(number)}; echo $$ > {tmp_path}/pid; "
        "while [ -z \"$got\" ]; do sleep 0.05; done; exit 9"
    )  # fmt: skip
    tracer = Tracelloc("--text", "--interval", 60, "--", "sh", "-c", script)
    pid = tmp_path / "pid"
    wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    assert tracer.stop(number) == 9
    assert tracer.out.read_text() == "got\n"
    assert "==> " in tracer.text()


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("/nonexistent/program", 127, "cannot execute /nonexistent/program: No such file"),
        ("/etc/passwd", 126, "cannot execute /etc/passwd: Permission denied"),
    ],
)
def test_what_cannot_be_executed(command: str, status: int, words: str) -> None:
    done = run_tracelloc("--text", "--", command)
    assert done.returncode == status
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_program_without_an_allocator(tmp_path: Path) -> None:
    source = 'void _start(void) { __asm__ volatile("mov $60, %eax; xor %edi, %edi; syscall"); }'
    program = tmp_path / "bare"
    run("gcc", "-x", "c", "-", "-nostdlib", "-static", "-o", program, input=source)
    assert "has no malloc library" in run_tracelloc("--text", "--", program, status=1).stderr


def test_nothing_of_ours_is_inherited(tmp_path: Path) -> None:
    """Neither what we do with signals, nor open files."""
    options = "--flamegraph", tmp_path / "out.fg", "--"
    command = "grep", "^Sig[BI]", "/proc/self/status"
    assert run_tracelloc(*options, *command).stdout == run(*command)
    # Standard streams, and the directory that is listed.
    assert run_tracelloc(*options, "ls", "/proc/self/fd").stdout.split() == ["0", "1", "2", "3"]


def test_a_debugger_can_be_used_afterwards(tmp_path: Path) -> None:
    """Nobody traces it any more soon after it has loaded its libraries."""
    script = "until grep 'TracerPid:.0$' /proc/$$/status; do sleep 0.1; done"
    done = run_tracelloc("--flamegraph", tmp_path / "out.fg", "--", "sh", "-c", script)
    assert done.stdout.split() == ["TracerPid:", "0"]


SUDO = {"SUDO_UID": "65534", "SUDO_GID": "65534", "SUDO_USER": "nobody", "SUDO_COMMAND": "x"}
IDENTITY = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; env | grep ^SUDO_; ulimit -n; exit 0"


@pytest.mark.skipif("TEST_CAPABILITIES" in os.environ, reason="needs CAP_SETUID and CAP_SETGID")
@pytest.mark.parametrize("options", [(), ("--as-root",)], ids=["the caller", "root"])
def test_under_sudo_the_command_is_the_callers(tmp_path: Path, options: tuple[str, ...]) -> None:
    """And has the limits that it would have without us."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, limits[1]))
    try:
        done = run_tracelloc(
            "--flamegraph", tmp_path / "out.fg", *options, "--", "sh", "-c", IDENTITY,
            env=os.environ | SUDO,
        )  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "1000"
    if options:
        assert lines[:2] == ["0", "0"]
        assert {line.split("=")[0] for line in lines if "=" in line} == set(SUDO)
    else:
        home = pwd.getpwuid(65534).pw_dir
        assert lines == ["65534", "65534", "65534", f"{home} nobody nobody", "1000"]


@pytest.mark.parametrize("options", [("--preload=auto",), ("--preload=off",), ("--as-root",)])
def test_no_variable_of_tracellocs_reaches_the_program(options: tuple[str, ...]) -> None:
    """Nor what it executes, whoever runs it."""
    done = run_tracelloc(
        *options, "--text", "--", "sh", "-c", "tr '\\0' '\\n' < /proc/self/environ; env; exit 0",
        env=os.environ | SUDO | {
            "TRACELLOC_PUSH_PASSWORD": "one", "TRACELLOC_LISTEN_TOKEN": "two", "TRACELLOC_X": "3",
            "KEPT": "4",
        }, status=0
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert "KEPT=4" in lines
    assert [line for line in lines if line.startswith("TRACELLOC_")] == []


def test_what_can_not_be_traced_is_not_run(tmp_path: Path) -> None:
    source = f"""
#include <fcntl.h>
#include <unistd.h>
int main(void) {{ open("{tmp_path}/mark", O_CREAT, 0600); pause(); }}
"""
    program = tmp_path / "without"
    run("gcc", "-x", "c", "-", "-o", program, input=source)
    options = "--text", "--allocator", "nothing-like-it"
    # Whoever follows it sees it being killed while the trace ends.
    for more in ((), ("--follow",)):
        done = run_tracelloc(*options, *more, "--", program, status=1)
        assert "no malloc library 'nothing-like-it'" in done.stderr
        assert not (tmp_path / "mark").exists()


def test_after_the_trace_the_command_runs_on_and_it_is_said(tmp_path: Path) -> None:
    tracer = Tracelloc(
        "--text", "--duration", "0.2", "--", "sh", "-c", f"cat {fifo(tmp_path)}; exit 4"
    )
    tracer.wait_for("no longer tracing; waiting for sh (process")
    (tmp_path / "fifo").write_text("end")
    assert tracer.finish() == 4


def test_an_interrupt_ends_a_command_that_is_waited_for() -> None:
    tracer = Tracelloc("--text", "--duration", "0.2", "--", "sleep", "1h")
    tracer.wait_for("to end, Ctrl-C ends it")
    assert tracer.stop() == 128 + signal.SIGINT


def fifo(directory: Path) -> Path:
    """What is read there comes when somebody writes it."""
    os.mkfifo(directory / "fifo")
    return directory / "fifo"


@pytest.mark.parametrize(
    ("number", "delay_s"), [(signal.SIGTERM, 0.1), (signal.SIGINT, 0.5), (signal.SIGTERM, 0.9)]
)
def test_ended_while_it_starts(tmp_path: Path, number: signal.Signals, delay_s: float) -> None:
    """Whenever that is, it is said in words or not at all, and nobody is left."""
    mark = tmp_path / "pid"
    with subprocess.Popen(
        tracelloc_command("--text", "--", "sh", "-c", f"echo $$ >{mark}; exec sleep 60"),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as running:  # fmt: skip
        time.sleep(delay_s)
        # A terminal's ^C is for all that belongs to the command.
        (os.killpg if number == signal.SIGINT else os.kill)(running.pid, number)
        _, said = running.communicate(timeout=PATIENCE_S)
    is_early = "Traceback" in said and "/tracelloc/__main__.py" not in said
    if said.startswith("Fatal Python error: init") or is_early:
        # The interpreter itself was still starting.
        return
    assert "Traceback" not in said
    assert "this is a bug" not in said
    if mark.exists() and mark.read_text():
        assert not Path(f"/proc/{mark.read_text().strip()}").exists()


def test_a_stopped_tracer_stops_nobody_else(builder: Builder, tmp_path: Path) -> None:
    """^Z: what forks would wait for us, so that it isn't not_ignored."""
    script = f"read line <{fifo(tmp_path)}; /bin/true; exit 5"
    tracer = Tracelloc("--text", "--follow", "--", "sh", "-c", script)
    tracer.process.send_signal(signal.SIGTSTP)
    tracer.wait_for("can't be suspended while processes are followed")
    (tmp_path / "fifo").write_text("go on\n")
    assert tracer.finish() == 5


def test_after_a_broken_rule_the_command_is_waited_for(tmp_path: Path) -> None:
    """Its own status gives way to ours, which says so."""
    script = f"read line <{fifo(tmp_path)}; echo end >{tmp_path}/end; exit 5"
    tracer = Tracelloc(
        "--text", "--interval", "100ms", "--fail-if", "live > 1", "--", "sh", "-c", script
    )
    tracer.wait_for("no longer tracing; waiting for sh (process")
    (tmp_path / "fifo").write_text("go on\n")
    assert tracer.finish() == 3
    assert (tmp_path / "end").read_text() == "end\n"
