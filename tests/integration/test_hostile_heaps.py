"""Searches for lost blocks in processes that make it hard: they end soon and stay small."""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from tests.harness import (
    LIBRARIES,
    PATIENCE_S,
    Builder,
    Target,
    Targets,
    run_measured,
    run_tracelloc,
)
from tests.integration.test_heapwalk import INTERESTING, damage
from tests.integration.test_leaks_now import await_pauses
from tracelloc.errors import TargetError
from tracelloc.model.blocks import BlockSum
from tracelloc.record.heapwalk import mappedblocks
from tracelloc.record.heapwalk.arenas import BlockState, NotWalkableError
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.measuring import measure_heap
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.heapwalk.walk import walk_heap
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability import lostblocks, wordlog
from tracelloc.record.reachability.lostblocks import LostBlockSearch

pytestmark = [pytest.mark.bpf, pytest.mark.long]

MOST_BYTES = 300 << 20
MOST_CPU_S = 20
JEMALLOC = str(LIBRARIES / "libjemalloc.so.2")


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LostBlockSearch]]:
    """Searches to close, which don't wait for each other."""
    monkeypatch.setattr(lostblocks, "_APART_S", 0.0)
    opened: list[LostBlockSearch] = []
    yield opened
    for search in opened:
        search.close()


def search_of(process: Process, searches: list[LostBlockSearch]) -> LostBlockSearch:
    searches.append(LostBlockSearch(process, lambda _: False, contents_bytes=64))
    return searches[-1]


def test_a_heap_that_lies(targets: Targets, searches: list[LostBlockSearch]) -> None:
    """Sizes, links and pointers are damaged at random, a little more each time."""
    target = targets.cpp("lostheap", flags=("-pthread",))
    await_pauses(target.pid, 1)
    process = Process(target.pid)
    search = search_of(process, searches)
    random = np.random.default_rng(11)
    found = 0
    for turn in range(30):
        damage(process, random, everywhere=turn >= 20)
        began_s = time.process_time()
        with suppress(NotWalkableError):
            found += search.find().searches > 0
        assert time.process_time() - began_s < MOST_CPU_S
    assert found >= 20


def places_of(process: Process) -> np.ndarray:
    """Addresses of words that a heap's figures hang on: descriptions, and links of free blocks."""
    reader = PieceReader(RemoteMemory(process))
    heap = walk_heap(reader, ClassTally([]))
    found = [
        np.uint64(start) + np.uint64(8) * np.flatnonzero(words).astype(np.uint64)
        for start, end in heap.metadata
        if (words := reader.words(start, end - start & ~7)).any()
    ]
    free = BlockState.FREE, BlockState.CACHED
    slices = [some for arena in heap.arenas for some in arena.slices()]
    return np.concatenate(
        [*found, *(each.addresses[np.isin(each.states, free)] for each in slices)]
    )


def figures(process: Process, library: str) -> tuple[list[BlockSum], bool]:
    """Returns the blocks in use, and whether a note says that some are missing."""
    found = measure_heap(process)
    arenas = [arena for arena in found.arenas if arena.library.value == library]
    is_marked = bool(found.notes) or any(arena.unseen for arena in arenas)
    return [arena.in_use for arena in arenas], is_marked or found.coverage < 1


@pytest.mark.parametrize(
    ("library", "pattern"),
    [
        ("jemalloc", "libjemalloc.so.2"),
        ("mimalloc", "libmimalloc.so.2"),
        ("tcmalloc", "libtcmalloc_minimal.so.4"),
    ],
)
def test_damaged_heaps_have_no_figure_without_a_mark(
    builder: Builder, targets: Targets, library: str, pattern: str
) -> None:
    is_mimalloc = library == "mimalloc"
    program = builder.c("visited") if is_mimalloc else builder.cpp("heapusage", "-pthread")
    target = targets.start(program, env=os.environ | {"LD_PRELOAD": str(LIBRARIES / pattern)})
    target.ask("info")
    process, random = Process(target.pid), np.random.default_rng(1)
    places, (truth, is_marked) = places_of(process), figures(process, library)
    assert not is_marked
    changed = 0
    with open(f"/proc/{target.pid}/mem", "r+b", buffering=0) as memory:
        for turn in range(100):
            place = int(random.choice(places))
            words = [*INTERESTING, place, place + 16, place - 32, place + 4080]
            new = words[random.integers(len(words))]
            before = os.pread(memory.fileno(), 8, place)
            os.pwrite(memory.fileno(), new.to_bytes(8, "little"), place)
            with suppress(NotWalkableError):
                found, is_marked = figures(process, library)
                assert is_marked or found == truth, f"turn {turn}: {new:#x} at {place:#x}"
                changed += found != truth
            os.pwrite(memory.fileno(), before, place)
    assert changed > 5
    assert figures(process, library) == (truth, False)


@pytest.mark.parametrize("kind", ["mappings", "reserved", "restless", "copies", "tangle"])
def test_memory_that_sprawls(targets: Targets, kind: str) -> None:
    """What is lost is found, and nothing else, in bounded time and memory."""
    target = targets.c("sprawl", kind)
    status, found, rss_bytes, cpu_s = run_measured("leaks", "-p", target.pid, "--json")
    assert status == 3
    assert rss_bytes < MOST_BYTES
    assert cpu_s < MOST_CPU_S
    blocks = Counter[int]()
    for group in found["groups"]:
        blocks[group["usable_bytes"]] += group["blocks"]
    assert 99 <= blocks.pop(1000) <= 100
    assert 99_990 <= blocks.pop(56, 0) <= 100_000 or kind != "tangle"
    assert blocks.pop(303_088, 0) == (3 if kind == "copies" else 0)
    assert not blocks


def test_what_only_looks_like_blocks(targets: Targets) -> None:
    """Headers in memory that is not glibc's, as of a virtual machine's programs."""
    target = targets.c("sprawl", "copies")
    found = json.loads(run_tracelloc("heap", "-p", target.pid, "--json").stdout)
    assert found["coverage"] == 1
    (own,) = (arena for arena in found["arenas"] if arena["name"] == "mappings")
    assert (own["in_use_blocks"], own["system_bytes"]) == (3, 3 * 303_104)
    assert found["notes"] == []


def test_what_only_looks_like_blocks_where_all_of_it_is_searched(
    targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for mapped blocks of glibc that do not begin lines of maps."""
    monkeypatch.setattr(mappedblocks, "_at_starts", lambda *_: [])
    found = measure_heap(Process(targets.c("sprawl", "copies").pid))
    (own,) = (arena for arena in found.arenas if arena.name == "mappings")
    assert (own.in_use.count, own.system_bytes) == (3, 3 * 303_104)
    (note,) = found.notes
    assert note.startswith("20.0 MiB that looks like 1,024 blocks of glibc is not counted: ")


class SteppedSearch(LostBlockSearch):
    """Has the target go on after the first search for lost blocks."""

    def __init__(self, target: Target) -> None:
        super().__init__(Process(target.pid), lambda _: False)
        self.target = target
        self.lost: list[int] = []
        """Blocks that each search did not reach."""

    def _search(self, candidates: BlockRanges | None) -> lostblocks._Search:
        found = super()._search(candidates)
        self.lost.append(len(found.lost.starts))
        if len(self.lost) == 1:
            assert self.target.ask("go on") == "done"
        return found


@pytest.mark.parametrize("kind", ["glibc", "no room", "jemalloc"])
def test_what_happens_between_searches(
    targets: Targets, searches: list[LostBlockSearch], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Blocks are not lost if they are freed then, or if a pointer to them appears in another."""
    if kind == "no room":
        monkeypatch.setattr(wordlog, "_MOST_WORDS", 0)
    library = {"LD_PRELOAD": JEMALLOC} if kind == "jemalloc" else {}
    target = targets.c("reveal", env=os.environ | library)
    for _ in ("freed", "pointed to"):
        search = SteppedSearch(target)
        searches.append(search)
        assert search.find().lost.count == 0
        # A word that still looks like a pointer may keep one block, and what it leads to.
        assert 98 <= search.lost.pop(0) <= 100
        assert search.lost == [0]
        target.ask("go on")


def test_searches_that_do_not_agree(
    targets: Targets, searches: list[LostBlockSearch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note reports that the last two searches differ."""
    target = targets.c("reveal")
    for most, expected in ((1, 1), (2, 0)):
        monkeypatch.setattr(lostblocks, "_MOST_SEARCHES", most)
        found = search_of(Process(target.pid), searches).find()
        assert found.lost.count >= 98
        assert len([note for note in found.notes if "search again" in note]) == expected


def test_killed_ones(builder: Builder, targets: Targets, searches: list[LostBlockSearch]) -> None:
    """At any point of a search: it fails with one line, or was finished before."""
    program = builder.c("sprawl")
    said: list[str] = []
    for turn in range(12):
        target = targets.start(program, "tangle")
        search = search_of(Process(target.pid), searches)
        killer = threading.Timer(0.01 * turn, target.process.kill)
        killer.start()
        try:
            found = search.find()
        except TargetError as error:
            said.append(error.message)
        else:
            assert 100_000 <= found.lost.count <= 100_100
        killer.join()
        target.process.wait(PATIENCE_S)
        searches.pop().close()
    assert set(said) <= {f"process {target.pid} has ended" for target in targets}
    assert said


def test_a_zombie(targets: Targets) -> None:
    target = targets.c("sprawl")
    target.process.kill()
    os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
    done = run_tracelloc("leaks", "-p", target.pid, status=1)
    assert "has already ended" in done.stderr
    assert len(done.stderr.splitlines()) == 1
