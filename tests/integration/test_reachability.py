"""Blocks that nothing points to, found in the memory of real programs while they run."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.commands import run
from tests.harness import Target, Targets, frames_of, refused, wait_until
from tests.sessions import tracing
from tracelloc.model.blocks import Blocks
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.residency import read_resident
from tracelloc.record.reachability.search import PointerSearch
from tracelloc.record.session.session import Session
from tracelloc.record.symbolization.symbolizer import Symbolizer

pytestmark = pytest.mark.bpf

ROUNDS = 400
LOST = {"drop": 1, "drop_pair": 2, "drop_ring": 2}
KEPT = {"keep": 1, "keep_inside": 1, "keep_marked": 1, "keep_in_code": 1}


def by_function(session: Session, blocks: Blocks) -> Counter[str]:
    """Blocks per innermost function."""
    symbolizer = Symbolizer(session.root.space)
    counts: Counter[str] = Counter()
    for stack, count in zip(*np.unique(blocks.stack, return_counts=True), strict=True):
        addresses = session.root.heap.stacks.frames(int(stack)) or ()
        counts[str(frames_of(symbolizer, addresses)[0].symbol)] += int(count)
    return counts


@pytest.mark.long
def test_each_block_that_nothing_points_to(targets: Targets) -> None:
    target = targets.c("lost")
    with tracing(target, reads_memory=False) as session:
        assert target.ask(f"{ROUNDS} 0") == "done"
        session.snapshot()
        blocks = session.root.heap.table.blocks()
        found = PointerSearch(session.root.process, lambda: [blocks])
        reachable = found.are_reachable(blocks.address)
        assert by_function(session, blocks.select(reachable)) == {
            name: ROUNDS * blocks for name, blocks in KEPT.items()
        }
        assert by_function(session, blocks.select(~reachable)) == {
            name: ROUNDS * blocks for name, blocks in LOST.items()
        }
        assert found.bits.edges_left_out == 0
        assert target.ask("1 0") == "done"


COUNT = 64
ROOM = 64 << 10
PAGE = 4096


@pytest.fixture(scope="module")
def _swap_space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A file of swap space in use, beside what the machine has."""
    # Not every file system can hold one (swapon(8)).
    for directory in (tmp_path_factory.mktemp("swap"), Path("/var/tmp"), Path.cwd()):
        file = directory / f"swap-{os.getpid()}"
        file.touch(0o600)
        file.write_bytes(bytes(64 << 20))
        subprocess.run(["mkswap", file], check=True, stdout=subprocess.DEVNULL)
        if subprocess.run(["swapon", file], check=False).returncode == 0:
            yield
            run("swapoff", file)
            file.unlink()
            return
        file.unlink()
    refused("no file system here can hold swap space")


def swap_out(target: Target, what: str, at_least: int) -> int:
    """Has the program page something out. Returns the bytes of it that are swapped out."""

    def swapped() -> int:
        assert target.ask(what) == "done"
        found = read_resident(Process(target.pid)).swapped
        return found * (found >= at_least)

    # The kernel does not page out what is still in a queue of its own.
    return int(wait_until(swapped, 0.05))


def lost_and_swapped(process: Process, blocks: Blocks) -> tuple[int, int]:
    """Blocks that nothing leads to, and bytes where pointers may be."""
    found = PointerSearch(process, lambda: [blocks])
    return int(np.count_nonzero(~found.are_reachable(blocks.address))), found.swapped_bytes


@pytest.mark.usefixtures("_swap_space")
def test_pointers_that_are_swapped_out(targets: Targets) -> None:
    """They may lead to whatever was not found. Lost blocks that are swapped out lead nowhere."""
    target = targets.c("pagedout")
    with tracing(target, reads_memory=False) as session:
        assert target.ask("allocate") == "done"
        session.snapshot()
        blocks = session.root.heap.table.blocks()
    assert len(blocks) == 2 * COUNT
    process = Process(target.pid)
    assert lost_and_swapped(process, blocks) == (COUNT, 0)
    swapped_bytes = swap_out(target, "lost", COUNT * (ROOM - 2 * PAGE))
    assert lost_and_swapped(process, blocks) == (COUNT, 0)
    swap_out(target, "pointers", swapped_bytes + PAGE)
    assert lost_and_swapped(process, blocks) == (2 * COUNT, PAGE)
    assert target.ask("touch") == "done"
    assert lost_and_swapped(process, blocks) == (COUNT, 0)
