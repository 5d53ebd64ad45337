"""Searches for pointers while memory of the program is swapped out, to a file of swap space."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.commands import run
from tests.harness import PATIENCE_S, Target, Targets
from tests.sessions import tracing
from tracelloc.model.blocks import Blocks
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.residency import read_resident
from tracelloc.record.reachability.search import PointerSearch

pytestmark = pytest.mark.bpf

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
    pytest.skip("no file system here can hold swap space")


def swap_out(target: Target, what: str, at_least: int) -> int:
    """Has the program page something out. Returns the bytes of it that are swapped out."""
    process, deadline_s = Process(target.pid), time.monotonic() + PATIENCE_S
    while True:
        assert target.ask(what) == "done"
        found = read_resident(process)
        if found.swapped >= at_least:
            return found.swapped
        # The kernel does not page out what is still in a queue of its own.
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


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
