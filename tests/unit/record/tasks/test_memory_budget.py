"""What is given up, in which order, when memory runs short; and that it is said."""

import resource
import sys

import numpy as np
import pytest

from tests.commands import outcome
from tests.unit.events import sent_stacks
from tracelloc.heap.stacks import Stacks
from tracelloc.model.process import MemoryLimit
from tracelloc.model.stacks import NO_STACK, StackFlag
from tracelloc.record.tasks.memorybudget import MemoryBudget, MemoryStage
from tracelloc.system import memorylimits

MIB = 1 << 20


def test_stages_come_once_each_and_in_order() -> None:
    used = [100 * MIB]
    budget = MemoryBudget(1000 * MIB, lambda: used[0])
    assert budget.take_stage_message() is None
    used[0] = 750 * MIB
    assert budget.take_stage_message() == (
        "warning: tracelloc uses 750 MiB of the 1000 MiB it may (--max-memory): new call stacks "
        "are cut to their innermost frames"
    )
    used[0] = 100 * MIB
    assert budget.take_stage_message() is None
    assert budget.stage is MemoryStage.FOLDED, "what is cut stays cut"
    used[0] = 990 * MIB
    assert budget.take_stage_message() is None
    said: list[str] = []
    budget.when_full(said.append)
    (last_words,) = said
    assert last_words == (
        "tracelloc uses 990 MiB of the 1000 MiB it may (--max-memory): tracing ends here; "
        "with --sample 512k it keeps one block per 512 KiB instead of each"
    )
    other = MemoryBudget(1000 * MIB, lambda: used[0])
    other.when_full(said.append)
    first = other.take_stage_message() or ""
    assert "are cut" in first, "nothing is ended before it has been tried"
    assert len(said) == 1
    other.take_stage_message()
    assert len(said) == 2


@pytest.mark.parametrize(
    ("available", "budget"), [(100, 256), (1200, 300), (3000, 512), (6000, 600), (40_000, 4000)]
)
def test_the_default_budget(monkeypatch: pytest.MonkeyPatch, available: int, budget: int) -> None:
    limit = MemoryLimit("machine", 64_000 * MIB, available * MIB)
    monkeypatch.setattr(memorylimits, "closest_limit", lambda _process: limit)
    assert memorylimits.default_budget() == budget * MIB


def test_folded_stacks() -> None:
    stacks = Stacks()
    stacks.add_sent(sent_stacks((7, 0, (1, 2, 3, 4, 5, 6))))
    stacks.fold()
    many = [(100 + n, 0, (1, 2, 3, 4, 1000 + n)) for n in range(5000)]
    stacks.add_sent(sent_stacks(*many, (9, 0, (1, 2))))
    assert len(stacks) == 4, "none, the whole one, the folded one, the short one"
    assert stacks.frames(1) == (1, 2, 3, 4, 5, 6)
    folded = stacks.ids.get(100)
    assert stacks.frames(folded) == (1, 2, 3, 4)
    assert stacks.flags(folded) == StackFlag.TRUNCATED
    assert stacks.ids.get(5099) == folded
    assert (stacks.frames(stacks.ids.get(9)), stacks.flags(stacks.ids.get(9))) == ((1, 2), 0)
    stacks = Stacks()
    stacks.add_sent(sent_stacks((7, 0, (1, 2))))
    stacks.fold()
    ids = np.array([0, 7, 8, 8, 9], np.uint64)
    assert stacks.indices(ids).tolist() == [0, 1, 0, 0, 0]
    assert stacks.indices(ids).tolist() == [0, 1, 0, 0, 0]
    assert stacks.add(8, (5, 6), StackFlag(0)) == NO_STACK
    assert len(stacks) == 2
    done = outcome(sys.executable, "-c", ENFORCED)
    assert (done.stdout, done.stderr) == ("refused\n", "")
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


ENFORCED = """
from tracelloc.system.memorylimits import limit_own_memory
limit_own_memory(64 << 20)
small = bytearray(128 << 20)
try:
    large = bytearray(3 << 30)
except MemoryError:
    print("refused")
"""
