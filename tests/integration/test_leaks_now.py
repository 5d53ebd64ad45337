"""Lost blocks of real programs, found without tracing them."""

import json
import mmap
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.commands import outcome
from tests.harness import (
    LIBRARIES,
    PATIENCE_S,
    Builder,
    Target,
    Targets,
    run_tracelloc,
    tracelloc_command,
)
from tests.integration.test_heapwalk import await_pauses, page_faults, resident_bytes

pytestmark = pytest.mark.bpf

# Bytes of the mapping that is a block of 1 MiB.
MAPPED = -(-((1 << 20) + 16) // mmap.PAGESIZE) * mmap.PAGESIZE

WORKING = "tracelloc: searching for lost blocks…"

# Structures that `lostheap.cpp` loses with glibc.
LOST = {
    # (shape, class, usable bytes): structures, least and most nodes, blocks
    ("list", "", 56): (20, 50, 50, 2000),
    ("ring", "", 200): (10, 2, 2, 20),
    ("doubly linked list", "", 104): (5, 40, 40, 200),
    ("tree", "", 152): (4, 63, 63, 252),
    ("tree", "", 136): (4, 31, 31, 124),
    ("block", "app::Circle", 104): (300, 1, 1, 600),
    ("block", "", 712): (64, 1, 1, 64),
    ("block", "", MAPPED - 16): (1, 1, 1, 1),
}


def search(pid: int, *options: object) -> dict[str, Any]:
    done = run_tracelloc("leaks", "-p", pid, "--json", *options)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (3 if found["groups"] else 0), done.stderr
    return found


def groups_of(found: dict[str, Any]) -> dict[tuple[str, str, int], tuple[int, int, int, int]]:
    names = "structures", "least_nodes", "most_nodes", "blocks"
    return {
        (group["shape"], group["class"], group["usable_bytes"]): tuple(group[n] for n in names)
        for group in found["groups"]
    }


def check_lost(target: Target) -> None:
    """``lostheap.cpp`` with glibc: each structure that it loses, and nothing else."""
    await_pauses(target.pid, 1)
    before = resident_bytes(target.pid), page_faults(target.pid)
    found = search(target.pid)
    assert (resident_bytes(target.pid), page_faults(target.pid)) == before
    assert found["notes"] == []
    assert found["coverage"] == 1.0
    groups = groups_of(found)
    # A word that still looks like a pointer may keep one block.
    for kind, wanted in LOST.items():
        got = groups.pop(kind)
        assert got[1:3] == wanted[1:3]
        assert wanted[0] - 1 <= got[0] <= wanted[0], kind
    assert groups == {}
    assert found["lost_blocks"] == sum(group["blocks"] for group in found["groups"])


@pytest.fixture(scope="module")
def program(builder: Builder) -> str:
    return str(builder.cpp("lostheap", "-pthread"))


def test_each_lost_structure_and_nothing_else(program: str, targets: Targets) -> None:
    """Blocks that only a register, epoll, a timer, or a signal stack leads to are not lost."""
    check_lost(targets.start(program))


def test_suppressions(program: str, targets: Targets, tmp_path: Path) -> None:
    target = targets.start(program)
    await_pauses(target.pid, 1)
    rules = tmp_path / "known.supp"
    rules.write_text("leak:^app::*\nleak:ring of\n")
    found = search(target.pid, "--suppressions", rules)
    hidden = {kind for kind in LOST if kind[0] == "ring" or kind[1]}
    assert 0 <= sum(LOST[kind][3] for kind in hidden) - found["suppressed_blocks"] <= 2
    assert groups_of(found).keys() == LOST.keys() - hidden
    rules.write_text("leak:bytes\n")
    assert search(target.pid, "--suppressions", rules)["groups"] == []


def test_only_what_is_new(program: str, targets: Targets) -> None:
    target = targets.start(program)
    await_pauses(target.pid, 1)
    command = tracelloc_command(
        "leaks", "-p", target.pid, "--json", "--every", "1s", "--count", "3"
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        first = json.loads(process.stdout.readline())
        assert groups_of(first).keys() == LOST.keys()
        assert target.ask("lose") == "done"
        later = [json.loads(line) for line in process.stdout]
        assert process.wait(PATIENCE_S) == 3
    # The second search may have begun before.
    fresh = [group for found in later for group in found["groups"]]
    assert {(group["shape"], group["usable_bytes"]) for group in fresh} == {("block", 2008)}
    assert 6 <= sum(group["blocks"] for group in fresh) <= 7
    assert later[-1]["known_blocks"] >= first["lost_blocks"]


def test_without_the_right_to_use_bpf(program: str, targets: Targets) -> None:
    """It says what is missing; the list that a register leads to is lost, then."""
    target = targets.start(program)
    await_pauses(target.pid, 1)
    dropped = "-bpf,-perfmon,-sys_admin"
    command = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"]
    done = outcome(*command, *tracelloc_command("leaks", "-p", target.pid, "--json"))
    found = json.loads(done.stdout)
    assert any("registers were not searched" in note for note in found["notes"])
    lists = [group for group in found["groups"] if group["shape"] == "list"]
    assert sum(group["structures"] for group in lists) == 21
    assert done.returncode == 3


@pytest.mark.parametrize("name", ["jemalloc", "mimalloc", "tcmalloc_minimal"])
def test_other_malloc_libraries(program: str, targets: Targets, name: str) -> None:
    library = next(LIBRARIES.glob(f"lib{name}.so.[24]"))
    target = targets.start(program, env=os.environ | {"LD_PRELOAD": str(library)})
    await_pauses(target.pid, 1)
    # tcmalloc has one itself.
    groups = [each for each in search(target.pid)["groups"] if each["class"] != "MallocExtension"]
    # Its size classes are others, so some groups are one here.
    shapes = {(group["shape"], group["class"]) for group in groups}
    assert shapes == {kind[:2] for kind in LOST}
    total = sum(wanted[3] for wanted in LOST.values())
    assert 0.98 * total <= sum(group["blocks"] for group in groups) <= total


@pytest.mark.parametrize("where", ["stack", "unjoined", "pool", "table", "buffer"])
def test_pointers_in_dead_memory(targets: Targets, where: str) -> None:
    """Stacks of ended threads and unused parts of C libraries' blocks keep nothing."""
    target = targets.c("deadwords", where)
    await_pauses(target.pid, 1)
    before = resident_bytes(target.pid), page_faults(target.pid)
    assert groups_of(search(target.pid)) == {("block", "", 1000): (100, 1, 1, 100)}
    assert (resident_bytes(target.pid), page_faults(target.pid)) == before


@pytest.mark.parametrize(
    ("where", "threads"), [("live", 2), ("own", 1), ("context", 1), ("stream", 1)]
)
def test_memory_that_seems_dead(targets: Targets, where: str, threads: int) -> None:
    """A stack in use again, a program's own memory, a coroutine's stack, bytes to be written."""
    target = targets.c("deadwords", where)
    await_pauses(target.pid, threads)
    found = search(target.pid)
    assert (found["lost_blocks"], found["probably_lost_blocks"]) == (0, 0)
    assert found["in_use_blocks"] > 100


def test_pointers_in_unwritten_memory(targets: Targets) -> None:
    """They decide no exit status, and are listed apart."""
    target = targets.c("deadwords", "unwritten")
    await_pauses(target.pid, 1)
    found = search(target.pid)
    assert (found["lost_blocks"], found["probably_lost_blocks"]) == (0, 100)
    assert [(group["usable_bytes"], group["blocks"]) for group in found["probable"]] == [
        (1000, 100)
    ]
    text = run_tracelloc("leaks", "-p", target.pid).stdout
    assert ": nothing lost of " in text
    assert "98.4 KiB in 100 blocks more probably lost\n" in text
    assert "probably lost: only unwritten memory points to it\n" in text
    text = run_tracelloc("holders", "-p", target.pid).stdout
    assert re.search(r"98\.4 KiB +100  no root leads to them: ", text)


def test_a_clean_program(targets: Targets) -> None:
    code = "kept = {n: bytes(600) for n in range(3000)}; print('ready', flush=True); input()"
    done = run_tracelloc("leaks", "-p", targets.start("/usr/bin/python3", "-c", code).pid)
    # Beside a load, it may say before that it is at work.
    assert (done.returncode, {*done.stderr.splitlines()} - {WORKING}) == (0, set())
    found = re.fullmatch(r"==> .*: nothing lost of .* in ([\d,]+) blocks in use\n\n", done.stdout)
    assert int(found[1].replace(",", "")) >= 3000


THREADS, SLOTS = 4, 10_000
JUGGLED, JUGGLED_LATER, JUGGLED_BYTES = 300, 50, 5000
SLACK_BYTES = 32  # A rest too small for a block is left with the one before it


def test_a_program_at_full_speed(targets: Targets) -> None:
    """No block that threads move about meanwhile, and nearly each that is lost."""
    target = targets.c("juggler", THREADS, SLOTS)
    target.say("go")
    operations = int(target.ask("lose"))
    found = search(target.pid)
    assert int(target.ask("lose")) - operations > 10_000
    blocks = Counter[bool]()
    for group in found["groups"]:
        is_lost = 0 <= group["usable_bytes"] - JUGGLED_BYTES < SLACK_BYTES
        blocks[is_lost] += group["blocks"]
    assert blocks[False] == 0
    # Stale pointers in live memory keep a few; a part of the heap may not be seen at this speed.
    assert 0.95 * (JUGGLED + JUGGLED_LATER) <= blocks[True] <= JUGGLED + JUGGLED_LATER
