"""``--follow``: children and what they execute, each with books of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.commands import outcome
from tests.harness import (
    PATIENCE_S,
    TARGETS,
    Builder,
    Targets,
    Tracelloc,
    reports_among,
    run_tracelloc,
    tracelloc_command,
    wait_until,
)
from tests.integration.test_attach import NEEDS_MULTI
from tests.integration.test_launch import by_function
from tests.unit.show.export.test_export_formats import decoded
from tracelloc.record.process.procfs import Process

pytestmark = pytest.mark.bpf

QUIET = ("--json", "--top", 1000, "--interval", 60)


def kept(report: dict[str, Any]) -> list[int]:
    """[blocks, bytes] of what ``keep`` has allocated."""
    return by_function(report, "keep").get("keep", [0, 0])


def by_process(text: str) -> dict[int, dict[str, Any]]:
    """The last report of each process; their total must be the sum."""
    lines = [json.loads(line) for line in text.splitlines()]
    found = {line["pid"]: line for line in lines if line["pid"] is not None}
    total = lines[-1]
    assert total["pid"] is None
    assert total["processes"] == len(found)
    for key in ("live_bytes", "live_allocations", "allocated_bytes", "allocations"):
        assert total[key] == sum(report[key] for report in found.values())
    for report in found.values():
        assert {cause: n for cause, n in report["lost"].items() if n} == {}
    return found


def assert_family(reports: dict[int, dict[str, Any]], family: list[list[int]]) -> None:
    """``family``: what ``lineage.c`` says of its tree."""
    for pid, parent, blocks, size_bytes in family:
        assert kept(reports[pid]) == [blocks, size_bytes]
        assert reports[pid]["ppid"] == parent
    assert len(reports) == len(family)


@pytest.mark.parametrize(
    ("descendants", "threads", "options"),
    [
        (20, 0, ()),
        (8, 4, ()),
        (4, 4, ("--attach", "perf")),
        pytest.param(4, 4, ("--attach", "multi"), marks=[NEEDS_MULTI, pytest.mark.long]),
    ],
)
def test_a_tree(targets: Targets, descendants: int, threads: int, options: tuple[str, ...]) -> None:
    """What each has inherited, allocated and freed."""
    target = targets.c("lineage")
    tracer = Tracelloc("-p", target.pid, *QUIET, "--follow", *options)
    family = json.loads(target.ask(f"tree {descendants} {threads}"))
    assert len(family) == 1 + descendants
    assert tracer.stop() == 0, tracer.messages
    reports = by_process(tracer.text())
    assert_family(reports, family)
    # glibc frees what its threads have cached in a block that malloc never returned.
    assert threads or not any(report["unmatched_frees"] for report in reports.values())
    ended = {pid for pid, report in reports.items() if report["ended"]}
    assert ended == {pid for pid, *_ in family} - {target.pid}


def test_children_that_run_already(targets: Targets) -> None:
    """The workers of a server that has forked them long before."""
    workers, size = 3, 50_001
    server = targets.start(sys.executable, TARGETS / "prefork.py", workers)
    port = int(server.ask("go"))
    tracer = Tracelloc("-p", server.pid, *QUIET, "--follow", "--earlier", "off")
    blocks: Counter[int] = Counter()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(f"keep {size}\n".encode())
            blocks[int(connection.makefile().read())] += 1
    assert tracer.stop() == 0, tracer.messages
    reports = by_process(tracer.text())
    assert reports.keys() == {server.pid, *Process(server.pid).child_ids()}
    for pid, report in reports.items():
        found = [each for each in report["top_allocators"] if each["bytes"] >= size]
        assert sum(each["bytes"] for each in found) == blocks[pid] * size


def test_who_has_priority(targets: Targets) -> None:
    """Threads that work only while a process waits; the others only at such times."""
    target = targets.c("lineage")
    tracer = Tracelloc("-p", target.pid, *QUIET, "--follow")
    target.ask("tree 4 0")

    def priorities() -> list[int]:
        """The real-time priorities of threads of tracelloc and its workers."""
        found = []
        for pid in [tracer.process.pid, *Process(tracer.process.pid).child_ids()]:
            for thread in Process(pid).thread_ids():
                with suppress(ProcessLookupError):
                    found.append(os.sched_getparam(thread).sched_priority)
        return [priority for priority in found if priority]

    wait_until(lambda: set(priorities()) == {2})
    assert tracer.stop() == 0, tracer.messages


def test_a_full_ring(targets: Targets) -> None:
    """Forks keep their place when events go another way."""
    target = targets.c("lineage")
    tracer = Tracelloc("-p", target.pid, *QUIET, "--follow", "--events-size", "4k")
    family = json.loads(target.ask("tree 5 4"))
    assert tracer.stop() == 0, tracer.messages
    assert_family(by_process(tracer.text()), family)


@pytest.mark.parametrize("way", ["exec", "texec"])
def test_programs(targets: Targets, way: str) -> None:
    """Exact from the first instruction of each."""
    target = targets.c("lineage")
    tracer = Tracelloc("-p", target.pid, *QUIET, "--follow")
    for number in range(1, 4):
        target.ask("alloc 5 50")
        assert target.ask(way) == "ready"
        target.ask(f"alloc {number * 100} {number}")
    books = json.loads(target.ask("free 7"))
    assert tracer.stop() == 0, tracer.messages
    (report,) = by_process(tracer.text()).values()
    assert kept(report) == books == [293, 3 * 293]
    assert report["exec_count"] == 3


def test_what_is_spawned(targets: Targets) -> None:
    """By fork, vfork and posix_spawn; memory that is shared stays the parent's."""
    target = targets.c("lineage")
    tracer = Tracelloc(
        "-p", target.pid, *QUIET, "--follow", "--show", "temporary", "--temporary", 5
    )
    target.ask("alloc 9 1000")
    books = json.loads(target.ask("spawn"))
    assert tracer.stop() == 0, tracer.messages
    reports = by_process(tracer.text())
    assert kept(reports[target.pid]) == books == [9, 9000]
    assert [r["command"] for r in reports.values()][1:] == ["true", "true", "true"]
    assert [r["exec_count"] for r in reports.values()] == [0, 1, 1, 1]
    assert {r["temporary"]["most_between"] for r in reports.values()} == {5}


def test_a_command_and_its_children(builder: Builder, tmp_path: Path) -> None:
    """A script that runs programs with constructors, and at last becomes one."""
    program, static = builder.c("early"), builder.c("early", "-static")
    flames, profile = tmp_path / "out.folded", tmp_path / "out.pb.gz"
    done = run_tracelloc(
        *QUIET, "-o", flames, "-o", profile, "--follow", "--", "sh", "-c",
        f"{program} 0; {static} 0; exec {program} 5", status=5
    )  # fmt: skip
    reports = by_process(reports_among(done.stderr))
    assert len([r for r in reports.values() if r["command"] == program.name[:15]]) == 2
    assert len(reports) == 3
    for report in reports.values():
        assert by_function(report) == {"in_constructor": [5, 15_000], "in_main": [3, 12_000]}
    folded = [line.rpartition(" ") for line in flames.read_text().splitlines()]
    for pid, report in reports.items():
        roots = [(stack.split(";")[0], int(size)) for stack, _, size in folded]
        mine = sum(size for root, size in roots if root.endswith(f"-{pid}"))
        assert mine == report["live_bytes"]
    live_bytes = dict.fromkeys(reports, 0)
    message = decoded(profile.read_bytes())
    for sample in message.sample:
        (pid,) = [x.num for x in sample.label if message.string_table[x.key] == "pid"]
        live_bytes[pid] += sample.value[1]
    assert live_bytes == {pid: report["live_bytes"] for pid, report in reports.items()}


def test_in_a_pid_namespace(builder: Builder) -> None:
    """Where processes have other numbers than the kernel's own."""
    program = builder.c("early")
    script = f"{program} 0; exec {program} 6"
    command = tracelloc_command(*QUIET, "--follow", "--", "sh", "-c", script)
    done = outcome("unshare", "--pid", "--fork", "--mount-proc", *command)
    assert done.returncode == 6, done.stderr
    reports = by_process(reports_among(done.stderr))
    assert len(reports) == 2
    for report in reports.values():
        assert by_function(report) == {"in_constructor": [5, 15_000], "in_main": [3, 12_000]}


def test_libraries_that_are_opened(builder: Builder, targets: Targets) -> None:
    """dlopen stops until the library is probed: its constructor's blocks have their stacks."""
    library = builder.c("early", "-shared", "-fPIC", "-DLIBRARY=needed")
    script = (
        "import ctypes, sys; print('ready', flush=True); sys.stdin.readline(); "
        f"ctypes.CDLL('{library}'); print('done', flush=True); sys.stdin.readline()"
    )
    python = targets.start(
        sys.executable, "-c", script, env=os.environ | {"PYTHONMALLOC": "malloc"}
    )
    tracer = Tracelloc("-p", python.pid, *QUIET, "--follow")
    assert python.ask("go") == "done"
    assert tracer.stop() == 0, tracer.messages
    (report,) = by_process(tracer.text()).values()
    assert by_function(report)["in_needed"][1] == 14_000


def test_the_endpoint_serves_every_process(targets: Targets) -> None:
    target = targets.c("lineage")
    tracer = Tracelloc("-p", target.pid, *QUIET, "--follow", "--listen", 0)
    url = tracer.wait_for("listening on").split()[-1]
    family = json.loads(target.ask("tree 3 0"))
    with urllib.request.urlopen(f"{url}metrics", timeout=PATIENCE_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = {f.name: f.samples for f in families}
    with urllib.request.urlopen(f"{url}debug/pprof/heap", timeout=PATIENCE_S) as answer:
        message = decoded(answer.read())
    assert tracer.stop() == 0, tracer.messages
    reports = by_process(tracer.text())
    assert set(reports) == {pid for pid, *_ in family}
    figures = {int(s.labels["pid"]): int(s.value) for s in samples["tracelloc_live_bytes"]}
    assert figures == {pid: report["live_bytes"] for pid, report in reports.items()}
    total = sum(report["live_bytes"] for report in reports.values())
    assert sum(sample.value[1] for sample in message.sample) == total


def test_what_has_come_since_a_mark(targets: Targets, tmp_path: Path) -> None:
    """Of each process by itself; all of one that was not there then."""
    target = targets.c("lineage")
    out = tmp_path / "since.folded"
    tracer = Tracelloc("-p", target.pid, *QUIET, "--follow", "--since-mark", "-o", out)
    target.ask("alloc 10 1000")
    tracer.process.send_signal(signal.SIGUSR2)
    tracer.wait_for("mark set")
    target.ask("alloc 3 70")
    family = json.loads(target.ask("tree 1 0"))
    assert tracer.stop() == 0, tracer.messages
    grown: dict[int, int] = {}
    for line in out.read_text().splitlines():
        stack, before, after = line.rsplit(" ", 2)
        pid = int(stack.split(";")[0].rpartition("-")[2])
        grown[pid] = grown.get(pid, 0) + int(after) - int(before)
    reports = by_process(tracer.text())
    (child,) = (pid for pid, *_ in family if pid != target.pid)
    assert grown[target.pid] == reports[target.pid]["live_bytes"] - 10_000
    assert grown[child] == reports[child]["live_bytes"]


def test_commands_by_name(builder: Builder) -> None:
    """Others run at their own speed, and are in no report."""
    program = builder.c("early")
    script = f"ls / >/dev/null; {program} 0; cat /dev/null; exec {program} 4"
    done = run_tracelloc(
        *QUIET, f"--follow={program.name[:15]}", "--", "sh", "-c", script, status=4
    )
    reports = by_process(reports_among(done.stderr))
    assert [report["command"] for report in reports.values()] == [program.name[:15]] * 2


def test_more_processes_than_are_wanted(targets: Targets) -> None:
    target = targets.c("lineage")
    tracer = Tracelloc("-p", target.pid, *QUIET, "--follow-limit", 1, "--follow")
    family = json.loads(target.ask("tree 4 0"))
    tracer.wait_for("more than 1 processes at a time")
    assert tracer.stop() == 0, tracer.messages
    (report,) = by_process(tracer.text()).values()
    own = next([blocks, size] for pid, _, blocks, size in family if pid == target.pid)
    assert kept(report) == own
    assert tracer.last()["untraced_processes"] == 4


def test_a_stopped_target_stays_stopped(targets: Targets) -> None:
    target = targets.c("lineage")
    os.kill(target.pid, signal.SIGSTOP)
    wait_until(lambda: Process(target.pid).state() == "T")
    tracer = Tracelloc("-p", target.pid, *QUIET, "--follow")
    assert Process(target.pid).state() in "Tt"
    os.kill(target.pid, signal.SIGCONT)
    assert json.loads(target.ask("alloc 3 100")) == [3, 300]
    # It stops itself, and is stopped for its parent, too.
    target.say("stop")
    assert os.waitpid(target.pid, os.WUNTRACED)[1] & 0xFF == 0x7F
    os.kill(target.pid, signal.SIGCONT)
    assert target.hear() == "[3, 300]"
    target.ask("alloc 2 10")
    os.kill(target.pid, signal.SIGSTOP)
    assert os.waitpid(target.pid, os.WUNTRACED)[1] & 0xFF == 0x7F
    assert tracer.stop() == 0, tracer.messages
    wait_until(lambda: Process(target.pid).tracer_id() == 0)
    assert Process(target.pid).state() == "T"
    os.kill(target.pid, signal.SIGCONT)
    assert json.loads(target.ask("alloc 1 1")) == [6, 321]
    assert kept(tracer.last_of(target.pid)) == [5, 320]


def test_killed_while_following(targets: Targets) -> None:
    """kill -9, in the middle of forks: everything runs on."""
    target = targets.c("lineage")
    tracer = Tracelloc("-p", target.pid, *QUIET, "--follow")
    target.say("tree 15 0")
    children = Path(f"/proc/{target.pid}/task/{target.pid}/children")
    wait_until(children.read_text)
    tracer.process.kill()
    tracer.finish()
    assert len(json.loads(target.hear())) == 16
    assert Process(target.pid).tracer_id() == 0
    assert json.loads(target.ask("exec") and target.ask("alloc 2 5")) == [2, 10]


def test_somebody_else_traces_it(targets: Targets) -> None:
    target = targets.c("lineage")
    with subprocess.Popen(
        ["strace", "-f", "-o", "/dev/null", "-p", str(target.pid)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as other:  # fmt: skip
        wait_until(lambda: Process(target.pid).tracer_id() != 0)
        done = run_tracelloc("-p", target.pid, "--follow", "--text", "--count", 1)
        other.terminate()
    assert done.returncode == 1
    assert "can't be followed: Operation not permitted; is a debugger" in done.stderr
    assert json.loads(target.ask("alloc 1 1")) == [1, 1]
