"""Searches for holders in processes that make it hard: they end soon and stay small."""

import time
from contextlib import closing, suppress

import numpy as np
import pytest

from tests.harness import Targets, run_measured
from tests.integration.test_heapwalk import await_pauses, damage
from tracelloc.errors import TargetError
from tracelloc.record.heapwalk.arenas import NotWalkableError
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability import blockgraph
from tracelloc.record.reachability.blockholders import HolderFinder, selection

pytestmark = [pytest.mark.bpf, pytest.mark.long]

MOST_BYTES = 400 << 20
MOST_CPU_S = 30


def test_a_heap_that_lies(targets: Targets) -> None:
    """Sizes, links and pointers are damaged at random, a little more each time."""
    target = targets.cpp("holdings", flags=("-pthread",))
    await_pauses(target.pid, 3)
    process = Process(target.pid)
    random = np.random.default_rng(11)
    found = 0
    with closing(HolderFinder(process)) as finder:
        for turn in range(9):
            damage(process, random, everywhere=turn >= 6)
            began_s = time.process_time()
            with suppress(NotWalkableError):
                top = finder.top(20)
                kept = sum(keeper.retained.size_bytes for keeper in top.keepers)
                total = kept + top.others.size_bytes + top.heap.unreached.size_bytes
                assert total == top.heap.in_use.size_bytes
                with suppress(TargetError):
                    finder.holders(selection("Session"))
                found += 1
            assert time.process_time() - began_s < MOST_CPU_S
    assert found >= 6


@pytest.mark.parametrize("kind", ["mappings", "reserved", "restless", "tangle"])
def test_memory_that_sprawls(targets: Targets, kind: str) -> None:
    target = targets.c("sprawl", kind)
    status, found, rss_bytes, cpu_s = run_measured("holders", "-p", target.pid, "--json")
    assert status == 0
    assert found["holders"]
    assert rss_bytes < MOST_BYTES
    assert cpu_s < MOST_CPU_S


def test_no_memory_for_so_many_blocks(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so before it begins."""
    target = targets.cpp("holdings", flags=("-pthread",))
    await_pauses(target.pid, 3)
    monkeypatch.setattr(blockgraph, "_BLOCK_BYTES", 1 << 40)
    with closing(HolderFinder(Process(target.pid))) as finder:
        words = r"finding the holders of 1\d,\d{3} blocks takes about .* PiB of memory, and"
        with pytest.raises(TargetError, match=words):
            finder.top(1)


def test_a_process_that_has_ended(targets: Targets) -> None:
    target = targets.cpp("holdings", flags=("-pthread",))
    with closing(HolderFinder(Process(target.pid))) as finder:
        target.kill()
        with pytest.raises(TargetError, match=r"has ended|no process"):
            finder.top(1)
