"""Holders of blocks in words."""

import json
from dataclasses import replace

import pytest

from tests.blockholders import HEAP, KEPT, PATH, SESSIONS
from tracelloc.model.blocks import (
    BlockHolders,
    BlockSum,
    HeapRoot,
    HolderPath,
    Keeper,
    PathStep,
    RootKind,
    SuspectHolders,
    TopHolders,
)
from tracelloc.model.process import Target
from tracelloc.show.presentation.blockholders import (
    holders_facts,
    keeper_text,
    retained_by_message,
    root_text,
    top_keeper_text,
)
from tracelloc.show.recording.parts import from_plain, to_plain
from tracelloc.show.report.pointers import holder_lines_of, holders_json, top_holder_lines
from tracelloc.snapshots.snapshot import FACET_RESULTS

TARGET = Target(7, "server")


@pytest.mark.parametrize(
    ("root", "text"),
    [
        (SESSIONS, "app::g_sessions (server)"),
        (HeapRoot(RootKind.VARIABLE, "server+0x40", "/srv/server"), "server+0x40"),
        (HeapRoot(RootKind.MODULE, "data of server", "/srv/server"),
         "data of server (several words)"),
        (HeapRoot(RootKind.THREAD_LOCAL, "cache", "/srv/server", (8,)),
         "cache (server, thread-local of thread 8)"),
        (HeapRoot(RootKind.THREAD_LOCAL, "cache", "/srv/server", (8, 9)),
         "cache (server, thread-local of 2 threads)"),
        (HeapRoot(RootKind.STACK, "stack of thread 8 (a\x1b[1mb)", "", (8,)),
         "stack of thread 8 (a\\x1b[1mb)"),
    ],
)  # fmt: skip
def test_roots(root: HeapRoot, text: str) -> None:
    assert root_text(root) == text


def test_keepers_and_roots_in_words() -> None:
    keeper = Keeper(SESSIONS, None, 0, BlockSum(4, 300), BlockSum(999, 300))
    assert keeper_text(keeper, BlockSum(1000)).endswith("most of these included (999 of 1,000)")
    assert keeper_text(keeper, BlockSum(999)).endswith("all of these included")
    block = replace(keeper, step=PathStep("", 4096, 1), address=0x5000)
    assert keeper_text(block, BlockSum(1)) == (
        "the block of 4.00 KiB at 0x5000 keeps 300 B in 4 blocks"
    )
    keeper = Keeper(SESSIONS, None, 0, BlockSum(4, 300), BlockSum(4, 300), PATH)
    text = "app::g_sessions (server) → 3 blocks of 56 B → Session"
    assert top_keeper_text(keeper) == text
    assert top_keeper_text(replace(keeper, is_shared=True)) == f"{text}; also other roots"
    others = (HeapRoot(RootKind.KERNEL, "timers"), HeapRoot(RootKind.KERNEL, "epoll(7)"))
    shared = replace(keeper, is_shared=True, other_roots=others)
    assert top_keeper_text(shared) == f"{text}; also timers and 1 more"
    found = BlockHolders(HEAP, BlockSum(2, 208), BlockSum(), BlockSum(3, 300), (PATH,), ())
    headline, sentence, _, row, end = holder_lines_of(TARGET, "Session", found)
    assert headline.endswith("Session: 208 B in 2 blocks, which keep 300 B in 3 blocks")
    assert sentence == "no single root keeps most of these"
    assert row.split(maxsplit=5)[2:] == [
        "1", "300", "B", "app::g_sessions (server) → 3 blocks of 56 B → Session"
    ]  # fmt: skip
    assert end == ""


def test_hostile_names_are_escaped() -> None:
    bad = "x\x1b]0;title\x07"
    root = HeapRoot(RootKind.VARIABLE, bad, f"/srv/{bad}")
    path = HolderPath(root, (PathStep(bad, 0, 2),), BlockSum(1, 104), 0x5000, BlockSum(4, 300))
    keeper = Keeper(root, None, 0, BlockSum(4, 300), BlockSum(1, 104))
    heap = replace(HEAP, notes=(bad,), coverage=0.5, swapped_bytes=4096, pointers_left_out=3)
    blocks = BlockSum(2, 208)
    found = BlockHolders(heap, blocks, BlockSum(1, 104), blocks, (path,), (keeper,), 1)
    lines = list(holder_lines_of(Target(7, bad), bad, found))
    top = TopHolders(heap, (replace(keeper, path=path),), BlockSum(1, 8), 1, BlockSum())
    lines += top_holder_lines(Target(7, bad), top)
    assert not [line for line in lines if "\x1b" in line or "\x07" in line]
    assert sum(line.startswith("holders may be missing") for line in lines) == 6
    assert json.loads(holders_json(TARGET, bad, found))["paths"][0]["root"] == bad
    bad = "x\x1b]0;title\x07"
    root = HeapRoot(RootKind.VARIABLE, bad, f"/srv/{bad}")
    path = replace(PATH, root=root, steps=(PathStep(bad, 0, 2),))
    keeper = replace(KEPT.keepers[0], root=root)
    step = replace(keeper, step=PathStep(bad, 0, 1), address=8)
    for found in (
        replace(KEPT, paths=(path,), keepers=(keeper,)),
        replace(KEPT, paths=(path,), keepers=(step,)),
        replace(KEPT, paths=(path,), keepers=()),
    ):
        assert "\x1b" not in sentence(found)
        assert "\\x1b]0;title" in sentence(found)
        assert json.loads(json.dumps(holders_facts(found, "retained")))["paths"][0]["root"] == bad
    # As plain JSON values, and back.
    keeper = replace(KEPT.keepers[0], step=PathStep("", 4096, 1), path=PATH)
    found = SuspectHolders({3: replace(KEPT, keepers=(keeper,))})
    plain = json.loads(json.dumps(to_plain(found)))
    assert from_plain(FACET_RESULTS["holders"], plain) == found


TEXT = "app::g_sessions (server) → 3 blocks of 56 B → Session"


def sentence(found: BlockHolders) -> str:
    (text,) = retained_by_message(found, found.heap.time_s + 59)
    return text


def test_who_keeps_a_suspect() -> None:
    freed = "freeing that frees 156 KiB"
    assert sentence(KEPT) == f"held by {TEXT}; {freed}"
    found = replace(KEPT, keepers=(replace(KEPT.keepers[0], held=BlockSum(999, 103_999)),))
    assert sentence(found) == f"held by {TEXT}, most of it (99 %); {freed}"
    mapped = replace(PATH, root=HeapRoot(RootKind.MAPPING, "anonymous memory"))
    path = replace(found, keepers=(replace(found.keepers[0], root=mapped.root),), paths=(mapped,))
    assert sentence(path).startswith("held by 3 blocks of 56 B → Session, most of it")
    found = replace(found, paths=(replace(PATH, root=HeapRoot(RootKind.KERNEL, "timers")),))
    assert sentence(found) == f"held by app::g_sessions (server), most of it (99 %); {freed}"
    assert not list(retained_by_message(replace(KEPT, blocks=BlockSum()), 0))
    shared = replace(KEPT, keepers=(), paths=(replace(PATH, blocks=BlockSum(600, 62_400)),))
    assert sentence(shared) == (
        f"no single root keeps most of it; most of it (60 %) is pointed to by {TEXT}"
    )
    alone = replace(shared, unreached=BlockSum(900, 93_600))
    assert sentence(alone) == (
        "no variable, stack or other root was found to lead to most of it (90 %)"
    )
    assert sentence(replace(alone, unreached=KEPT.blocks, paths=())).endswith("to all of it")
    (text,) = retained_by_message(KEPT, KEPT.heap.time_s + 240)
    assert text.endswith("freeing that frees 156 KiB (found 4 m ago)")
    text = sentence(replace(KEPT, is_sample=True))
    assert "app::g_sessions (server) → block of 56 B → Session; freeing" in text
    found = replace(KEPT, heap=replace(HEAP, swapped_bytes=4096))
    assert sentence(found).endswith("156 KiB; search incomplete")
    keeper = replace(KEPT.keepers[0], step=PathStep("", 4096, 1), address=0x5000)
    assert sentence(replace(KEPT, keepers=(keeper,))) == (
        "held by the block of 4.00 KiB at 0x5000, to which several roots lead, such as "
        "app::g_sessions (server); freeing that frees 156 KiB"
    )
