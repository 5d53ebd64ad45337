"""``--group``: all processes of a control group, those that come later and their children too."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness import (
    Builder,
    Target,
    Tracelloc,
    await_line,
    read_line,
    run_tracelloc,
    started,
    wait_until,
)
from tests.integration.test_follow import assert_family, by_process, kept
from tracelloc.machine.machinememory import MemoryKind, MemoryTrend
from tracelloc.machine.processes import ProcessReader, find_group, members_of

pytestmark = pytest.mark.bpf

SIZE, MIB = 200, 1 << 20


class ControlGroup:
    """A control group as a container has one, of the hierarchy by which memory is counted here."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(32)
        root = Path("/sys/fs/cgroup")
        root = root if (root / "cgroup.controllers").exists() else root / "memory"
        self.path = root / f"docker-{self.id}.scope"
        self.path.mkdir()

    def limit(self, size_bytes: int) -> None:
        """Limits its memory."""
        name = "memory.max" if (self.path / "memory.max").exists() else "memory.limit_in_bytes"
        (self.path / name).write_text(str(size_bytes))

    def take(self, pid: int, below: str = "") -> None:
        """Moves a process into it."""
        (self.path / below).mkdir(exist_ok=True)
        (self.path / below / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        for directory in sorted(self.path.rglob("*/"), reverse=True):
            directory.rmdir()
        self.path.rmdir()


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    made = ControlGroup()
    yield made
    made.remove()


@pytest.fixture
def lineages(builder: Builder, group: ControlGroup) -> Iterator[list[Target]]:
    """Three processes in the group, one of them below it."""
    program = builder.c("lineage")
    made = [Target([program]) for _ in range(3)]
    for target, below in zip(made, ("", "", "payload"), strict=True):
        group.take(target.pid, below)
    yield made
    for target in made:
        target.kill()


def test_all_its_processes(builder: Builder, group: ControlGroup, lineages: list[Target]) -> None:
    """Each has its own exact figures; one comes later, and one has children."""
    assert members_of(find_group(group.id[:12])) == [target.pid for target in lineages]
    lineages[0].ask(f"alloc 10 {SIZE}")
    tracer = Tracelloc(
        "--group", group.id[:12], "--json", "--top", 1000, "--interval", "0.3s", "--earlier", "off",
    )  # fmt: skip
    try:
        late = Target([builder.c("lineage")])
        lineages.append(late)
        late.ask(f"alloc 20 {SIZE}")
        group.take(late.pid)
        tracer.await_report(lambda report: report["pid"] == late.pid)
        for number, target in enumerate(lineages):
            target.ask(f"alloc {100 * number} {SIZE}")
        # What they free are blocks from before they were traced, but for the third one.
        for target in (lineages[0], lineages[2], late):
            target.ask("free 3")
        family = json.loads(lineages[1].ask("tree 4 2"))
    finally:
        tracer.stop()
    found = by_process(last_reports(tracer))
    assert kept(found[lineages[0].pid]) == [0, 0]
    assert kept(found[lineages[2].pid]) == [197, 197 * SIZE]
    assert kept(found[late.pid]) == [300, 300 * SIZE]
    unmatched = {target.pid: found[target.pid]["unmatched_frees"] for target in lineages}
    assert list(unmatched.values()) == [3, 0, 0, 3]
    assert_family({pid: found[pid] for pid, *_ in family}, family)
    assert len(found) == 3 + len(family)
    # Beside a load, processes may wait for tracelloc.
    warnings = [message for message in tracer.messages if "warning" in message]
    assert [message for message in warnings if "--follow=NAME" not in message] == []


def test_those_that_allocate_meanwhile(builder: Builder, group: ControlGroup) -> None:
    """Probes are attached one by one, but no free of a counted block is missed."""
    busy = [
        subprocess.Popen([builder.c("leaky"), "1000"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(3)
    ]  # fmt: skip
    try:
        for process in busy[:2]:
            group.take(process.pid)
        tracer = Tracelloc("--group", group.id, "--json", "--interval", "0.5s")
        group.take(busy[2].pid)
        for process in busy:
            tracer.await_report(
                lambda report, pid=process.pid: (
                    report["pid"] == pid and report["allocations"] > 5000
                )
            )
        tracer.stop()
    finally:
        for process in busy:
            process.kill()
            process.wait()
    found = by_process(last_reports(tracer))
    assert found.keys() == {process.pid for process in busy}
    assert [report["unmatched_frees"] for report in found.values()] == [0, 0, 0]


def test_untraceable_ones(builder: Builder, group: ControlGroup, lineages: list[Target]) -> None:
    """A program without a malloc library: the others are traced."""
    bare = Target([builder.c("plain", "-static", "-Wl,--strip-all")])
    group.take(bare.pid)
    try:
        tracer = Tracelloc(
            "--group", f"/{group.path.name}", "--json", "--interval", 60, "--earlier", "off",
        )  # fmt: skip
        lineages[0].ask(f"alloc 7 {SIZE}")
        tracer.stop()
    finally:
        bare.kill()
    found = by_process(last_reports(tracer))
    assert kept(found[lineages[0].pid])[0] >= 7
    assert found.keys() == {target.pid for target in lineages}
    (warning,) = [message for message in tracer.messages if "warning" in message]
    assert str(bare.pid) in warning


def test_groups_that_are_not_there(group: ControlGroup) -> None:
    for name in ("none.service", group.id[:12], "/"):
        done = run_tracelloc("--group", name, "--text", status=1)
        assert "no control group with processes is called" in done.stderr
        assert len(done.stderr.splitlines()) == 1


class WaitingTracelloc(Tracelloc):
    """One that is told to wait; what it waits for is begun when it does."""

    def __init__(self, begin: Callable[[], object], *arguments: str | int) -> None:
        self._begin = begin
        more = ("--json", "--top", 1000, "--interval", "0.3s", "--earlier", "off")
        super().__init__(*arguments, "--wait", *more)

    def wait_for(self, words: str) -> str:
        if words == "tracing":
            super().wait_for("waiting for")
            self._begin()
        return super().wait_for(words)


def test_a_program_that_is_waited_for(builder: Builder, tmp_path: Path) -> None:
    """It is traced from its first allocation; others of its name are not touched."""
    name = f"late{os.getpid()}"
    program = shutil.copy(builder.c("lineage"), tmp_path / name)
    others = [Target([program])]
    targets: list[Target] = []
    threads = [
        threading.Thread(target=lambda: targets.append(Target([program]))),
        threading.Thread(target=lambda: others.append(Target([builder.c("lineage")]))),
    ]

    def begin() -> None:
        for thread in threads:
            thread.start()

    tracer = WaitingTracelloc(begin, "-n", name)
    try:
        for thread in threads:
            thread.join()
        others.append(Target([program]))
        (target,) = targets
        target.ask(f"alloc 100 {SIZE}")
        target.ask("free 40")
        family = json.loads(target.ask("tree 4 2"))
        assert target.end() == 0
        assert tracer.finish() == 0
    finally:
        tracer.kill()
        for each in [*others, *targets]:
            each.kill()
    found = by_process(last_reports(tracer))
    assert found[target.pid]["unmatched_frees"] == 0
    # All blocks of the C library, too: it was traced before its first instruction.
    assert not found[target.pid].get("earlier")
    assert_family({pid: found[pid] for pid, *_ in family}, family)
    assert found.keys() == {pid for pid, *_ in family}
    assert kept(found[target.pid])[0] > 60


def test_a_group_that_is_waited_for(builder: Builder, group: ControlGroup) -> None:
    targets: list[Target] = []

    def begin() -> None:
        targets.append(Target([builder.c("lineage")]))
        group.take(targets[0].pid)

    tracer = WaitingTracelloc(begin, "--group", group.id[:12])
    try:
        targets[0].ask(f"alloc 10 {SIZE}")
        targets[0].end()
        assert tracer.finish() == 0, tracer.messages
    finally:
        tracer.kill()
        targets[0].kill()
    assert kept(by_process(last_reports(tracer))[targets[0].pid]) == [10, 10 * SIZE]


def last_reports(tracer: Tracelloc) -> str:
    """The last report of all processes."""
    lines = tracer.text().splitlines()
    begins = [n for n, line in enumerate(lines) if '"pid": null' in line]
    first = begins[-2] + 1 if len(begins) > 1 else 0
    return "\n".join(lines[first:])


def test_a_caught_program_runs_if_the_tracer_is_killed(builder: Builder, tmp_path: Path) -> None:
    """Killed at its worst moment: the program is stopped, and nothing has been done for it."""
    name = f"late{os.getpid()}"
    program = shutil.copy(builder.c("lineage"), tmp_path / name)
    process = started(
        "-n", name, "--wait", "--text", module="tracelloc",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    try:
        await_line(process.stderr, "waiting for")
        process.send_signal(signal.SIGSTOP)
        target = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        await_state(target.pid, "T")
    finally:
        process.kill()
        process.communicate()
    try:
        assert read_line(target.stdout, "the program") == "ready"
    finally:
        target.kill()
        target.communicate()


def await_state(pid: int, state: str) -> None:
    """Waits until a process is in a state, as /proc/PID/stat names it."""
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == state)


def test_a_log_is_no_growth(builder: Builder, group: ControlGroup, tmp_path: Path) -> None:
    """Page cache fills a group; its limit is not forecast by that. Other memory counts at once."""
    program = (
        "import sys\nprint('ready', flush=True)\nfor line in sys.stdin:\n"
        "  size = int(line) << 20\n"
        "  if size: open(sys.argv[1], 'wb').write(bytes(size))\n"
        "  else: kept = b'x' * (8 << 20)\n"
        "  print('done', flush=True)\n"
    )
    if os.statvfs(tmp_path).f_fsid == os.statvfs("/dev/shm").f_fsid:
        pytest.skip("temporary files are in memory")
    now_s = 0.0
    with (
        Target([sys.executable, "-uc", program, tmp_path / "log"]) as target,
        closing(ProcessReader(clock_s=lambda: now_s)) as reader,
    ):
        group.take(target.pid)

        def trend(*orders: str) -> MemoryTrend:
            nonlocal now_s
            for order in orders:
                target.ask(order)
            now_s += 60
            found = reader.read_memory().groups
            return next(each.trend for each in found if each.path.endswith(group.path.name))

        trend()
        full = trend("64")
        assert full.kinds[MemoryKind.PAGE_CACHE] >= 64 * MIB
        assert abs(full.rate) < 2 * MIB
        grown = trend("0")
        assert 7 * MIB <= grown.rate < 9 * MIB
        assert grown.kind is MemoryKind.ANONYMOUS
    wait_until(lambda: not (group.path / "cgroup.procs").read_text())
