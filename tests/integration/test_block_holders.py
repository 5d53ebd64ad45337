"""Holders of heap blocks of real programs, with exact figures."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import outcome, run
from tests.harness import LIBRARIES, Builder, Target, Targets, run_tracelloc, tracelloc_command
from tests.integration.test_heapwalk import await_pauses, resident_bytes
from tracelloc.errors import TargetError
from tracelloc.model.blocks import BlockHolders, HolderPath, Keeper, RootKind
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability.blockholders import HolderFinder, selection
from tracelloc.show.presentation.blockholders import path_text, root_text

pytestmark = pytest.mark.bpf

TILES = "app::t_tiles (holdings, thread-local of 2 threads)"


@pytest.fixture(scope="module")
def program(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports name the file."""
    return Path(
        shutil.copy(
            builder.cpp("holdings", "-pthread"), tmp_path_factory.mktemp("program") / "holdings"
        )
    )


@pytest.fixture(scope="module")
def target(program: Path) -> Iterator[Target]:
    with Target([program]) as running:
        await_pauses(running.pid, 3)
        yield running


@pytest.fixture(scope="module")
def finder(target: Target) -> Iterator[HolderFinder]:
    with closing(HolderFinder(Process(target.pid))) as found:
        yield found


def find(finder: HolderFinder, what: str) -> BlockHolders:
    return finder.holders(selection(what))


def paths_of(found: BlockHolders) -> list[str]:
    """The paths, without numbers of threads."""
    return [re.sub(r"thread \d+", "thread N", path_text(path)) for path in found.paths]


def kept(keeper: Keeper) -> tuple[str, int, int]:
    """(root, blocks that it keeps, blocks of those asked about)."""
    return keeper.root.name, keeper.retained.count, keeper.held.count


# (what is asked about, blocks, roots with the blocks that each keeps, paths)
KEPT: tuple[tuple[str, int, list[tuple[str, int]], list[str]], ...] = (
    ("app::Session", 3000, [("app::g_sessions", 6000)],
     ["app::g_sessions (holdings.cpp:30) → 3,000 blocks of 56 B → app::Session ×3,000"]),
    ("Shape", 300, [("app::g_shapes", 301)] * 2,
     ["app::g_shapes (holdings.cpp:32) → block of 2.35 KiB → app::Shape ×300"]),
    ("*::Tile", 200, [("app::t_tiles", 202)],
     [f"{TILES} → 2 blocks of 808 B → app::Tile ×200"]),
    ("Joint", 250, [("app::g_owner", 253)] * 2,
     ["app::g_owner (holdings.cpp:35) → block of 56 B → block of 1.96 KiB → app::Joint ×250",
      "app::g_owner (holdings.cpp:35) → block of 56 B → block of 1.18 KiB → app::Joint ×150"]),
    ("208", 1000, [("nodes", 1000)], ["nodes (holdings.cpp:48) → 1,000 blocks of 216 B"]),
    ("256", 512, [("table", 1024)], ["table (holdings.cpp:49) → 512 blocks of 264 B"]),
    ("424", 512, [("table", 1024)],
     ["table (holdings.cpp:49) → 512 blocks of 264 B → 512 blocks of 424 B"]),
)  # fmt: skip


def test_who_keeps_blocks(finder: HolderFinder) -> None:
    for what, count, keepers, paths in KEPT:
        found = find(finder, what)
        assert (found.blocks.count, found.unreached.count) == (count, 0), what
        assert paths_of(found) == paths
        assert [kept(keeper) for keeper in found.keepers] == [(*each, count) for each in keepers]
        assert found.heap.coverage == 1.0
        assert found.heap.notes == ()


def test_a_hash_table_that_nobody_else_knows(finder: HolderFinder) -> None:
    """A few values may be behind the first node of all, which the table itself points to."""
    found = find(finder, "app::Value")
    assert [kept(keeper) for keeper in found.keepers] == [("app::g_cache", 1001, 500)]
    nodes = "block of 3.93 KiB → 499 blocks of 24 B"
    assert paths_of(found)[0] == f"app::g_cache (holdings.cpp:31) → {nodes} → app::Value ×499"
    assert sum(path.blocks.count for path in found.paths) == 500


def test_a_list_that_only_a_stack_holds(finder: HolderFinder) -> None:
    found = find(finder, "376")
    path = found.paths[0]
    assert path.root.kind is RootKind.STACK
    assert paths_of(found)[0] == "stack of thread N (stacker) → 700 blocks of 376 B"
    assert path.retained.count == 700
    assert found.blocks.count == 700
    (keeper,) = found.keepers
    assert keeper.root == path.root
    assert keeper.held.count == 700


def test_shared_blocks_have_no_keeper(finder: HolderFinder) -> None:
    found = find(finder, "Twin")
    assert found.keepers == ()
    assert sorted(paths_of(found)) == [
        "app::g_left (holdings.cpp:33) → block of 3.13 KiB → app::Twin ×400",
        "app::g_right (holdings.cpp:33) → block of 3.13 KiB → app::Twin ×400",
    ]
    assert [path.retained.count for path in found.paths] == [1, 1]
    assert found.retained == found.blocks


def test_one_block_by_any_address_in_it(finder: HolderFinder, target: Target) -> None:
    shapes = find(finder, "Shape")
    container = shapes.keepers[1]
    assert container.step.usable_bytes == 2408
    found = find(finder, f"{container.address + 100:#x}")
    assert found.blocks.count == 1
    assert found.retained.count == 301
    assert paths_of(found) == ["app::g_shapes (holdings.cpp:32) → block of 2.35 KiB"]
    addresses = np.array([container.address, shapes.paths[0].example, 8], np.uint64)
    (by_value,) = finder.holders_of_each([addresses], 10)
    assert by_value.blocks.count == 2
    assert by_value.retained.count == 301


def test_a_search_can_be_ended(target: Target) -> None:
    def stop() -> None:
        raise InterruptedError

    finder = HolderFinder(Process(target.pid), check=stop)
    with closing(finder), pytest.raises(InterruptedError):
        finder.top(1)


def test_what_is_not_there(finder: HolderFinder) -> None:
    for what, words in (
        ("0x10", "no block in use contains 0x10"),
        ("3333333", "no block in use is of 3,333,333 bytes"),
        ("Nothing", "no block in use is an object of a class Nothing"),
    ):
        with pytest.raises(TargetError, match=words):
            find(finder, what)


def test_roots_that_keep_most(finder: HolderFinder, target: Target) -> None:
    before = resident_bytes(target.pid)
    found = finder.top(50)
    assert resident_bytes(target.pid) == before
    assert found.other_count == 0
    by_root = {keeper.root.name: keeper for keeper in found.keepers if not keeper.is_shared}
    counts = {
        "app::g_sessions": 6000, "app::g_cache": 1001, "app::g_shapes": 301, "nodes": 1000,
        "table": 1024, "app::g_owner": 253, "app::t_tiles": 202, "app::g_left": 1,
        "app::g_right": 1, "app::g_numbers[abi:cxx11]": 1000,
    }  # fmt: skip
    assert {name: by_root[name].retained.count for name in counts} == counts
    assert found.shared.count == 400
    (shared,) = [keeper for keeper in found.keepers if keeper.is_shared]
    assert shared.retained.count == 400
    total = sum(keeper.retained.size_bytes for keeper in found.keepers)
    assert total + found.heap.unreached.size_bytes == found.heap.in_use.size_bytes
    assert found.heap.unreached.count == 0


def test_text_and_json(target: Target) -> None:
    done = run_tracelloc("holders", "-p", target.pid, "--top", 2, status=0)
    lines = done.stdout.splitlines()
    assert re.fullmatch(
        r"==> .* holdings \(\d+\): 4\.\d\d MiB in 11,\d\d\d blocks in use, .*", lines[0]
    )
    assert lines[2].split(maxsplit=3) == [
        "3.07", "MiB", "6,000",
        "app::g_sessions (holdings.cpp:30) → 3,000 blocks of 56 B → app::Session ×3,000",
    ]  # fmt: skip
    assert re.search(r" \d+ more$", lines[4])
    done = run_tracelloc("holders", "-p", target.pid, "Session", "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    (keeper,) = found["kept_by"]
    assert (keeper["root"], keeper["asked_blocks"], keeper["block"]) == (
        "app::g_sessions", 3000, None,
    )  # fmt: skip
    (path,) = found["paths"]
    assert path["steps"] == [
        {"class": "", "usable_bytes": 56, "blocks": 3000},
        {"class": "app::Session", "usable_bytes": 0, "blocks": 3000},
    ]
    done = run_tracelloc("holders", "-p", target.pid, "Nothing", status=1)
    assert "no block in use is an object of a class Nothing; tracelloc heap" in done.stderr


@pytest.mark.parametrize("name", ["jemalloc", "mimalloc", "tcmalloc_minimal"])
def test_other_malloc_libraries(program: Path, targets: Targets, name: str) -> None:
    library = next(LIBRARIES.glob(f"lib{name}.so.[24]"))
    target = targets.start(program, env=os.environ | {"LD_PRELOAD": str(library)})
    await_pauses(target.pid, 3)
    with closing(HolderFinder(Process(target.pid))) as finder:
        found = find(finder, "Session")
        assert [kept(keeper) for keeper in found.keepers] == [("app::g_sessions", 6000, 3000)]
        assert paths_of(found) == [
            "app::g_sessions (holdings.cpp:30) → 3,000 blocks of 48 B → app::Session ×3,000"
        ]
        tiles = find(finder, "Tile")
        assert [kept(keeper)[:2] for keeper in tiles.keepers] == [("app::t_tiles", 202)]


@pytest.mark.long
def test_rust(targets: Targets) -> None:
    with closing(HolderFinder(Process(targets.rust("holdings").pid))) as finder:
        found = find(finder, "300")
    assert found.blocks.count == 400
    (path,) = found.paths
    assert path.root.name == "holdings::VAULT"
    assert [step.count for step in path.steps] == [1, 400]
    assert kept(found.keepers[0]) == ("holdings::VAULT", 401, 400)


def test_without_symbols_words_are_roots(program: Path, targets: Targets, tmp_path: Path) -> None:
    """Each word by itself; what several lead to belongs to the module's data."""
    stripped = tmp_path / "stripped"
    run("strip", "-o", stripped, program)
    target = targets.start(stripped)
    await_pauses(target.pid, 3)
    with closing(HolderFinder(Process(target.pid))) as finder:
        shapes, sessions = find(finder, "Shape"), find(finder, "Session")
    assert re.fullmatch(r"stripped\+0x[0-9a-f]+", shapes.paths[0].root.name)
    assert shapes.keepers[1].retained.count == 301
    # The map's header has three pointers to its tree.
    (keeper,) = sessions.keepers
    assert root_text(keeper.root) == "data of stripped (several words)"
    assert keeper.held.count == 3000


def test_unusual_roots(targets: Targets) -> None:
    """Blocks that only a register, epoll, a timer, or a signal stack leads to."""
    target = targets.cpp("lostheap", flags=("-pthread",))
    await_pauses(target.pid, 1)

    def path_to(finder: HolderFinder, size: str) -> HolderPath:
        return max(find(finder, size).paths, key=lambda path: path.blocks.count)

    with closing(HolderFinder(Process(target.pid))) as finder:
        assert path_to(finder, "72").root.name == "epoll(7)"
        assert path_to(finder, "88").root.name == "timers"
        assert path_to(finder, "65536").root.name.startswith("signal stack of thread")
        listed = path_to(finder, "56")
        assert re.fullmatch(r"registers of thread \d+ \(.*\)", listed.root.name)
        assert listed.blocks.count >= 999


def test_without_the_right_to_use_bpf(target: Target) -> None:
    """It says what is missing."""
    dropped = "-bpf,-perfmon,-sys_admin"
    command = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"]
    done = outcome(*command, *tracelloc_command("holders", "-p", target.pid, "Session", "--json"))
    found = json.loads(done.stdout)
    assert any("registers were not searched" in note for note in found["notes"])
    assert found["kept_by"][0]["root"] == "app::g_sessions"


@pytest.mark.parametrize(
    ("where", "path"),
    [("", r"head \(movinghead.cpp:12\) → [\d,]+ blocks of 72 B"),
     ("thread", r"own_head \(movinghead-\w+, thread-local of thread N\) → [\d,]+ blocks of 72 B"),
     ("block", r"owner \(movinghead.cpp:14\) → block of 904 B → [\d,]+ blocks of 72 B")],
)  # fmt: skip
def test_a_list_whose_head_moves(targets: Targets, where: str, path: str) -> None:
    """It points to a node that the walk of the heap has not seen."""
    with closing(HolderFinder(Process(targets.cpp("movinghead", where).pid))) as finder:
        for _ in range(3):
            found = finder.top(3)
            first = found.keepers[0]
            assert first.path is not None
            text = re.sub(r"thread \d+", "thread N", path_text(first.path))
            assert re.fullmatch(path, text)
            assert first.retained.count > 20_000
            assert not first.is_shared
            # The lost block is behind free memory, which no block is in by now, either.
            assert found.heap.unreached.count == find(finder, "333").unreached.count == 1


def test_a_map_that_grows_meanwhile(targets: Targets) -> None:
    """Blocks that are newer than the walk, and the malloc library's data, share nothing."""
    target = targets.cpp("movinghead", "map")
    counts = []
    with closing(HolderFinder(Process(target.pid))) as finder:
        for _ in range(3):
            found = finder.top(1)
            (first,) = found.keepers
            assert first.root.name == "sessions"
            assert not first.is_shared
            counts.append(first.retained.count)
            assert found.shared.count <= 2
    # A node, and a session. A branch of the tree may be missing that has been moved meanwhile.
    assert min(counts) >= 90_000
    assert max(counts) >= 100_000


RUNTIMES = {
    "python3": (
        "Python's small objects (tracelloc objects)",
        "-c",
        "kept = [[bytes(600)] for _ in range(9000)]; print('ready', flush=True); input()",
    ),
    "node": (
        "V8 heap",
        "-e",
        "for (a = []; !a[98];) a.push(Buffer.alloc(6e5)); console.log('ready'); repl.start()",
    ),
    "ruby": (
        "Ruby heap pages",
        "-e",
        "$kept = [*1..9000].map { |n| n.to_s * 200 }; puts 'ready'; $stdout.flush; gets",
    ),
}


@pytest.mark.parametrize(
    "program",
    ["python3", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("node", "ruby"))],
)
def test_a_runtimes_own_heap_has_a_name(targets: Targets, program: str) -> None:
    path = shutil.which(program, path="/usr/bin")
    assert path is not None
    name, *arguments = RUNTIMES[program]
    target = targets.start(path, *arguments)
    text = run_tracelloc("holders", "-p", target.pid, "--top", 20).stdout
    assert f"  {name} → " in text, text
