"""Looking into the heaps of processes that make it hard: it ends soon and stays small."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest

from tests.harness import LIBRARIES, PATIENCE_S, Builder, Target, Targets, run_measured
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
from tracelloc.record.reachability import blockgraph, lostblocks, wordlog
from tracelloc.record.reachability.blockholders import HolderFinder, selection
from tracelloc.record.reachability.lostblocks import LostBlockSearch

pytestmark = [pytest.mark.bpf, pytest.mark.long]

JEMALLOC = str(LIBRARIES / "libjemalloc.so.2")
INTERESTING = (0, 1, 17, 33, 0x291, 0x313, (1 << 64) - 1, 1 << 47, (1 << 63) + 17, 4097)
MOST = {"leaks": (300 << 20, 20), "holders": (400 << 20, 30)}  # Bytes of RSS, seconds of CPU


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


def damage(process: Process, random: np.random.Generator, *, everywhere: bool) -> None:
    """Overwrites some words of a target's heap; ``everywhere``: of all its data and libc's."""
    lines = [line for line in process.maps_text().splitlines() if line.split()[1] == "rw-p"]
    places = [(*(int(word, 16) for word in line.split()[0].split("-")), line) for line in lines]
    areas = [
        (start, end)
        for start, end, line in places
        if (
            line.split()[4] == "0" or "libc" in line
            if everywhere
            else "[heap]" in line or end - start > 1 << 17
        )
    ]
    with open(f"/proc/{process.pid}/mem", "r+b", buffering=0) as memory:
        for start, end in areas:
            for place in random.integers(0, min(end - start, 4 << 20) // 8, 6).tolist():
                near = start + 8 * place
                words = [*INTERESTING, near, near + 16, near - 32, end - 16]
                memory.seek(near)
                word = words[random.integers(len(words))]
                memory.write(word.to_bytes(8, "little"))


def damaged(process: Process, turns: int, most_cpu_s: float) -> Iterator[None]:
    """Its heap is damaged at random, a little more each time; each look at it ends soon."""
    random = np.random.default_rng(11)
    for turn in range(turns):
        damage(process, random, everywhere=turn >= turns * 2 // 3)
        began_s = time.process_time()
        yield
        assert time.process_time() - began_s < most_cpu_s


def test_leaks_of_a_heap_that_lies(targets: Targets, searches: list[LostBlockSearch]) -> None:
    """The search for leaks, and the heap's figures with the data of its largest blocks."""
    target = targets.cpp("lostheap", flags=("-pthread",))
    await_pauses(target.pid, 1)
    process, found = Process(target.pid), 0
    search = search_of(process, searches)
    for _ in damaged(process, 30, MOST["leaks"][1]):
        with suppress(NotWalkableError):
            measure_heap(process, largest=3, contents_bytes=64)
            found += search.find().searches > 0
    assert found >= 20


def test_holders_in_a_heap_that_lies(targets: Targets) -> None:
    target = targets.cpp("holdings", flags=("-pthread",))
    await_pauses(target.pid, 3)
    found = 0
    with closing(HolderFinder(Process(target.pid))) as finder:
        for _ in damaged(Process(target.pid), 9, MOST["holders"][1]):
            with suppress(NotWalkableError):
                top = finder.top(20)
                kept = sum(keeper.retained.size_bytes for keeper in top.keepers)
                total = kept + top.others.size_bytes + top.heap.unreached.size_bytes
                assert total == top.heap.in_use.size_bytes
                with suppress(TargetError):
                    finder.holders(selection("Session"))
                found += 1
    assert found >= 6


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
        for turn in range(60):
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


def bounded(command: str, pid: int) -> tuple[int, Any]:
    """The exit status and the JSON of a command that looks into a process."""
    status, found, rss_bytes, cpu_s = run_measured(command, "-p", pid, "--json")
    assert (rss_bytes < MOST[command][0], cpu_s < MOST[command][1]) == (True, True)
    return status, found


@pytest.mark.parametrize("kind", ["mappings", "reserved", "restless", "copies", "tangle"])
def test_memory_that_sprawls(targets: Targets, kind: str) -> None:
    """Lost blocks and holders are found in bounded time and memory; no other block is lost."""
    target = targets.c("sprawl", kind)
    status, found = bounded("leaks", target.pid)
    assert status == 3
    blocks = Counter[int]()
    for group in found["groups"]:
        blocks[group["usable_bytes"]] += group["blocks"]
    assert 99 <= blocks.pop(1000) <= 100
    assert 99_990 <= blocks.pop(56, 0) <= 100_000 or kind != "tangle"
    assert blocks.pop(303_088, 0) == (3 if kind == "copies" else 0)
    assert not blocks
    status, found = bounded("holders", target.pid)
    assert (status, found["holders"] != []) == (0, True)


def test_no_memory_for_so_many_blocks(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so before it begins; then the process ends."""
    target = targets.cpp("holdings", flags=("-pthread",))
    await_pauses(target.pid, 3)
    with closing(HolderFinder(Process(target.pid))) as finder:
        words = r"finding the holders of 1\d,\d{3} blocks takes about .* PiB of memory, and"
        with monkeypatch.context() as patch:
            patch.setattr(blockgraph, "_BLOCK_BYTES", 1 << 40)
            with pytest.raises(TargetError, match=words):
                finder.top(1)
        target.kill()
        with pytest.raises(TargetError, match=r"has ended|no process"):
            finder.top(1)


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
