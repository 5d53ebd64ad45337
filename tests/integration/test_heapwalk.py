"""Walks of heaps that nobody traced, against what the programs say themselves."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness import LIBRARIES, Target, Targets, run_tracelloc, wait_until
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk import glibc, mallocstate
from tracelloc.record.heapwalk.arenas import Arena
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.measuring import measure_heap
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.heapwalk.walk import walk_heap
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process


def heap_of(target: Target, *options: str) -> dict[str, Any]:
    done = run_tracelloc("heap", "-p", target.pid, "--json", *options, status=0)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def resident_bytes(pid: int, kind: str = "Rss") -> int:
    """From smaps_rollup, which is exact, unlike statm."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(rf"^{kind}:\s+(\d+)", text, re.MULTILINE)[1]) << 10


def page_faults(pid: int) -> list[str]:
    """Minor and major page faults of the process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [fields[7], fields[9]]


# Numbers of system calls: that of pause(3) (pause, ppoll), read(2), epoll_wait(2) (epoll_pwait).
PAUSE, READ, EPOLL_WAIT = {"x86_64": (34, 0, 232), "aarch64": (73, 63, 22)}[os.uname().machine]


def threads_in(pid: int, call: object) -> int:
    """How many threads are in a system call: its number, and first arguments if they matter."""
    calls = [(task / "syscall").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(each.startswith(f"{call} ") for each in calls)


def await_pauses(pid: int, threads: int) -> None:
    """Waits until so many threads are in pause(2)."""
    wait_until(lambda: threads_in(pid, PAUSE) == threads)


def check_to_the_byte(target: Target) -> None:
    """The heap of ``heapusage.cpp`` with glibc, against its mallinfo2."""
    target.ask("info")
    truth = json.loads(target.ask("info"))
    await_pauses(target.pid, 3)  # until then, they may still fault code in
    before = resident_bytes(target.pid), page_faults(target.pid)
    heap = heap_of(target)
    assert (resident_bytes(target.pid), page_faults(target.pid)) == before
    assert heap["coverage"] == 1.0
    assert heap["notes"] == []
    assert all(arena["unseen"] == [] for arena in heap["arenas"])
    own = [arena for arena in heap["arenas"] if arena["name"] != "mappings"]
    assert len(own) == 4
    assert sum(arena["system_bytes"] for arena in own) == truth["arena"]
    # glibc counts what thread caches keep as in use, and its own data.
    free = sum(arena["free_bytes"] + arena["top_bytes"] for arena in own)
    assert truth["arena"] - free == truth["uordblks"]
    mapped = next(arena for arena in heap["arenas"] if arena["name"] == "mappings")
    assert mapped["in_use_blocks"] == 8
    assert mapped["system_bytes"] == truth["hblkhd"] == mapped["seen_bytes"]
    assert {row["name"]: row["blocks"] for row in heap["classes"] if "app::" in row["name"]} == {
        "app::Circle": 3000,
        "app::Square": 1000,
    }


def check_trim(target: Target) -> None:
    """What malloc_trim(0) returns in ``heapusage.cpp`` is what was said before."""
    target.ask("drop")
    said = heap_of(target)["trimmable_bytes"]
    assert said > (5 << 20)
    before = resident_bytes(target.pid, "Anonymous")
    assert target.ask("trim") == "1"
    assert before - resident_bytes(target.pid, "Anonymous") == said
    assert heap_of(target)["trimmable_bytes"] == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [((), ()), ((), ("sbrk",)), (("-static",), ())],
    ids=["shared-own", "shared-foreign-sbrk", "static-own"],
)
def test_glibc_to_the_byte(
    targets: Targets, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    target = targets.cpp("heapusage", *words, flags=("-pthread", *flags))
    check_to_the_byte(target)
    if not flags:
        check_trim(target)


def check_states(targets: Targets, seed: int, states: int) -> None:
    """Some states of ``anyheap.c``, against its mallinfo2. Half of them are at fixed addresses."""
    flags = ("-no-pie", "-pthread") if seed % 4 == 0 else ("-pthread",)
    target = targets.c("anyheap", seed, flags=flags)
    for state in range(states):
        truth = json.loads(target.ask("next"))
        found = measure_heap(Process(target.pid))
        which = f"state {state} of seed {seed}"
        assert found.coverage == 1.0, which
        own = [arena for arena in found.arenas if arena.name != "mappings"]
        mapped_bytes = sum(arena.system_bytes for arena in found.arenas if arena not in own)
        assert sum(arena.system_bytes for arena in own) == truth["arena"], which
        free = sum(arena.free.size_bytes + arena.top_bytes for arena in own)
        assert truth["arena"] - free == truth["uordblks"], which
        assert mapped_bytes == truth["hblkhd"], which
    target.end()


def test_glibc_in_any_state(targets: Targets) -> None:
    for seed in range(8):
        check_states(targets, seed, 3)


@pytest.mark.nightly
def test_glibc_in_two_thousand_states(targets: Targets) -> None:
    for seed in range(100, 500):
        check_states(targets, seed, 5)


def test_heaps_in_any_order(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel places a new heap of an arena above the others or below."""
    target = targets.cpp("heapusage", "heaps", flags=("-pthread",))
    check_to_the_byte(target)
    process, orders = Process(target.pid), []

    def turned(*given: Any) -> Any:
        stretches, *others = mallocstate.heaps_of(*given)
        orders.append(stretches)
        return stretches[::-1] if turns else stretches, *others

    monkeypatch.setattr(glibc, "heaps_of", turned)
    turns = False
    wanted = measure_heap(process)
    turns = True
    found = measure_heap(process)
    assert min(map(len, orders)) == 4
    assert replace(found, time_s=wanted.time_s) == wanted
    assert sum(arena.cached.count for arena in found.arenas) > 0


def test_a_heap_longer_than_entries(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read in runs, as of 3 GiB each, which are as one."""
    target = targets.cpp("heapusage", flags=("-pthread",))
    check_to_the_byte(target)
    process = Process(target.pid)
    wanted, added = measure_heap(process), []
    add = Arena.add
    monkeypatch.setattr(Arena, "add", lambda *given: added.append(given[1]) or add(*given))
    monkeypatch.setattr(glibc, "_LONGEST_RUN_BYTES", 1 << 16)
    monkeypatch.setattr(glibc, "_PIECE_BYTES", 1 << 16)
    found = measure_heap(process)
    assert len(added) > 20
    assert replace(found, time_s=wanted.time_s) == wanted


def test_jemalloc(targets: Targets) -> None:
    library = str(LIBRARIES / "libjemalloc.so.2")
    target = targets.cpp("heapusage", flags=("-pthread",), env=os.environ | {"LD_PRELOAD": library})
    heap = heap_of(target)
    used = next(arena for arena in heap["arenas"] if arena["library"] == "jemalloc")
    # 4,000 objects, half of 20,000 blocks, 3 times 2,000, 8 large ones, and a few of libraries.
    assert 0 <= used["in_use_blocks"] - 20_008 < 40
    assert {row["name"]: row["blocks"] for row in heap["classes"] if "app::" in row["name"]} == {
        "app::Circle": 3000,
        "app::Square": 1000,
    }


def test_jemalloc_in_a_rust_program() -> None:
    """It has a prefix there (tikv-jemallocator: `_rjem_`), and no symbols here."""
    ruff = Path(sys.executable).with_name("ruff")
    asks = b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"capabilities": {}}}'
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([ruff, "server"], **pipes) as process:
        process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(asks), asks))
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"Content-Length")
        found = measure_heap(Process(process.pid))
        process.kill()
    (arena,) = (each for each in found.arenas if each.library is MallocLibrary.JEMALLOC)
    assert arena.in_use.count + arena.cached.count > 1000
    assert (found.coverage, found.notes) == (1.0, ())


def test_jemalloc_with_slabs_of_seven_pages(targets: Targets) -> None:
    library = {"LD_PRELOAD": str(LIBRARIES / "libjemalloc.so.2")}
    target = targets.c("oneclass", 100, 224, 448, 896, env=os.environ | library)
    found = {row["usable_bytes"]: row["blocks"] for row in heap_of(target)["sizes"]}
    assert all(10_000 <= found[usable] < 10_100 for usable in (112, 224, 448, 896))


def test_mimalloc(targets: Targets) -> None:
    """Blocks that other threads have freed are free, even if the owner does not know it yet."""
    (library,) = LIBRARIES.glob("libmimalloc.so.*.*")
    target = targets.c("visited", env=os.environ | {"LD_PRELOAD": str(library)})
    for _ in range(2):
        heap = heap_of(target)
        (arena,) = (arena for arena in heap["arenas"] if arena["library"] == "mimalloc")
        assert heap["notes"] == []
        assert [arena["in_use_blocks"], arena["in_use_bytes"]] == json.loads(target.ask("info"))
        assert arena["in_use_blocks"] > 9000


TCMALLOC = next(LIBRARIES.glob("libtcmalloc_minimal.so.*"), LIBRARIES / "libtcmalloc_minimal.so")


def check_tcmalloc(target: Target) -> None:
    """The heap of ``heapusage.cpp`` with tcmalloc, against its own sum."""
    for line, lost in (("info", 0), ("drop", 7500)):
        allocated = int(target.ask(line))
        heap = heap_of(target)
        (arena,) = (arena for arena in heap["arenas"] if arena["library"] == "tcmalloc")
        assert arena["in_use_bytes"] == allocated
        assert 0 <= arena["in_use_blocks"] - (20_008 - lost) < 40
        assert (heap["coverage"], heap["notes"], arena["unseen"]) == (1.0, [], [])


def test_tcmalloc(targets: Targets) -> None:
    library = {"LD_PRELOAD": str(TCMALLOC)}
    target = targets.cpp("heapusage", flags=("-pthread",), env=os.environ | library)
    check_tcmalloc(target)
    classes = {row["name"]: row["blocks"] for row in heap_of(target)["classes"]}
    assert (classes["app::Circle"], classes["app::Square"]) == (3000, 1000)


def test_a_tcmalloc_for_debugging_is_refused_by_name(targets: Targets) -> None:
    """Its blocks have headers and guards of its own."""
    library = TCMALLOC.with_name(TCMALLOC.name.replace(".so", "_debug.so"))
    target = targets.cpp(
        "heapusage", flags=("-pthread",), env=os.environ | {"LD_PRELOAD": str(library)}
    )
    done = run_tracelloc("heap", "-p", target.pid, status=1)
    (line,) = set(done.stderr.splitlines()) - {"tracelloc: walking the heap…"}
    assert f"the heap of tcmalloc ({library.name}) can't be walked" in line


def test_text(targets: Targets) -> None:
    target = targets.cpp("heapusage", flags=("-pthread",))
    done = run_tracelloc("heap", "-p", target.pid, "--contents", "--largest", "2", status=0)
    assert re.search(r"==> .* in use in [\d,]+ blocks, .* free but resident", done.stdout)
    assert re.search(r"1,000  app::Square$", done.stdout, re.MULTILINE)
    assert done.stdout.count("\n  0x") + done.stdout.count("\n    0x") == 2


def test_a_heap_that_grows_while_it_is_walked(
    targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cache is known although it has blocks that were not there yet."""
    target, cached = targets.c("lineage"), 7
    for command in (f"alloc {cached} 300", f"free {cached}"):
        target.ask(command)

    def grow(*given: Any) -> None:
        for command in ("alloc 1000 200", f"alloc {cached} 400", "free 1000", f"free {cached}"):
            target.ask(command)
        mark_cached(*given)

    mark_cached = glibc.mark_cached
    monkeypatch.setattr(glibc, "mark_cached", grow)
    reader = PieceReader(RemoteMemory(Process(target.pid)))
    heap = walk_heap(reader, ClassTally(reader.regions()))
    sizes = BlockRanges.in_use(heap).usable_bytes().tolist()
    assert sizes.count(312) == 0
