"""What made verdicts wrong on programs nobody here wrote; figures that contradict each other."""

from pathlib import Path

import numpy as np
import pytest

from tests.corpus.recorded import FOLDER, Recording
from tests.corpus.replay import contradictions, events_of, looks, stacks_of, watch
from tests.corpus.streams import NEVER, Stream, every
from tracelloc.heap.stacks import Stacks
from tracelloc.model.stacks import StackFlag
from tracelloc.model.verdicts import Verdict
from tracelloc.verdict.evidence import stack_judgement

pytestmark = pytest.mark.long

END_S = 300.0


def leak(period_s: float, size: float, from_s: float = 0.0) -> Stream:
    """A block now and then, never freed, among twenty times as many that are."""
    lost = every(period_s, from_s, END_S)
    brief = every(period_s / 20, 0.0, END_S)
    birth = np.concatenate([lost, brief])
    death = np.concatenate([np.full(len(lost), NEVER), brief + 0.5])
    return Stream(birth, death, np.full(len(birth), size))


def blocks_at(times_s: list[float], size: float) -> Stream:
    """Blocks that stay."""
    birth = np.array(times_s)
    return Stream(birth, np.full(len(birth), NEVER), np.full(len(birth), size))


@pytest.mark.parametrize("common", ["scratch", "worker"])
def test_large_blocks_of_once_are_no_leak(common: str) -> None:
    """A worker begins late and allocates three large blocks beside a small leak."""
    names = {"scratch": ("scratch/{}", "scratch/other_{}"), "worker": ("{}/worker", "x_{}/worker")}
    sites = {names[common][0].format("leak"): leak(2.0, 64)}
    for number in range(3):
        sites[names[common][1].format(number)] = blocks_at([100.0 + 7 * number], 1 << 20)
    (suspect,) = watch(sites, END_S).findings.suspects
    assert suspect.stack == 1
    assert suspect.judgement.verdict is Verdict.LEAKING
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(64 * 30, rel=0.1)


def test_what_is_no_rate_or_not_judged() -> None:
    """What one stack allocated once does not count at its size, either."""
    once = blocks_at([150.0, 150.5, 151.0], 1 << 20)
    (suspect,) = watch({"site": leak(2.0, 64) + once}, END_S).findings.suspects
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(64 * 30, rel=0.15)
    # It is allocated anew, larger each time: its stack grows, but not by much.
    birth = every(10.0, 0.0, END_S)
    array = Stream(birth, np.append(birth[1:], NEVER), 4096 * 1.1 ** np.arange(len(birth)))
    found = watch({"array": array}, END_S).findings
    assert found.verdict(1) is Verdict.GROWING
    assert not found.suspects
    # Blocks were freed before the onset, so a container that only grows is not what it is.
    birth = every(1.0, 0.0, END_S)
    death = np.where(birth < 100, birth + 0.5, NEVER)
    seen = watch({"site": Stream(birth, death, np.full(len(birth), 100.0))}, END_S)
    assert seen.first(1, {Verdict.LEAKING}) - 100 <= 180
    assert not stack_judgement(seen.findings, 1).never_freed
    # Leaks that become faster: rate x time is what has leaked since the onset.
    sites = {"leak": leak(4.0, 100) + leak(1.0, 100, 150.0)}
    events = events_of(list(sites.values()), END_S)
    for _, table, found in looks(events, stacks_of(list(sites)), END_S):
        assert not list(contradictions(found, table))
    # Nothing but the id is known: it may be any call site.
    sites = {"leak": leak(2.0, 64)}
    stacks = Stacks()
    stacks.indices(np.array([1], np.uint64))
    *_, (_, _, found) = looks(events_of(list(sites.values()), END_S), stacks, END_S)
    assert found.verdict(1) is Verdict.UNKNOWN
    assert not found.suspects
    stacks.add(1, (0x400000, 0x401000), StackFlag(0))
    *_, (_, _, found) = looks(events_of(list(sites.values()), END_S), stacks, END_S)
    assert found.verdict(1) is Verdict.LEAKING


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.npz")), ids=lambda path: path.stem)
def test_figures_do_not_contradict_each_other(path: Path) -> None:
    """Figures of all suspects, at each look."""
    recording = Recording.load(path)
    for time_s, table, found in looks(recording.events(), recording.known_stacks(), 600.0):
        assert not list(contradictions(found, table)), time_s
