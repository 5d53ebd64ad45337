"""Real programs, recorded under the probes, each on its own clock; and what made verdicts wrong."""

from pathlib import Path

import numpy as np
import pytest

from tests.corpus.recorded import FOLDER, Recording
from tests.corpus.replay import contradictions, events_of, looks, stacks_of, watch
from tests.corpus.streams import NEVER, Stream, every, kept
from tracelloc.heap.stacks import Stacks
from tracelloc.model.stacks import StackFlag
from tracelloc.model.verdicts import CODE_OF, Verdict
from tracelloc.verdict.evidence import stack_judgement

pytestmark = pytest.mark.long

RECORDED_S = 600.0
END_S = 300.0
# Where a leak is split over stacks, none of which would be noticed alone; and where both nodes of a
# pair are forgotten together.
SEVERAL = {"callers", "shared_ptr"}
LOOKS_LIKE = {
    "lru": ("cache_page", Verdict.CACHE),
    "slow_lru": ("cache_page", Verdict.CACHE),
    "startup": ("load_index", Verdict.START_UP),
    "arena": ("arena_block", Verdict.CACHE),
    "sawtooth": ("arena_block", Verdict.CACHE),
    "log": ("append_log", Verdict.GROWING),
    "threads": ("cache_in_thread", Verdict.CACHE),
}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.npz")), ids=lambda path: path.stem)
def test_recorded(path: Path) -> None:
    """What leaks is called so with the rate of the program's own books; nothing else ever is.

    No figures contradict each other at any look.
    """
    recording = Recording.load(path)
    called: set[int] = set()
    for time_s, table, findings in looks(recording.events(), recording.known_stacks(), RECORDED_S):
        assert not list(contradictions(findings, table)), time_s
        called.update(np.flatnonzero(findings.codes == CODE_OF[Verdict.LEAKING]).tolist())
    assert {recording.leaking(stack) for stack in called} <= recording.leaks.keys()
    for name, (_, size_bytes, onset_s) in recording.leaks.items():
        (suspect,) = (s for s in findings.suspects if recording.leaking(s.stack) == name)
        assert suspect.judgement.verdict is Verdict.LEAKING
        rate = size_bytes / (RECORDED_S - onset_s) * 60
        assert suspect.judgement.rate_bytes_per_min == pytest.approx(rate, rel=0.1)
        assert {recording.leaking(member.stack) for member in suspect.members} == {name}
        assert (len(suspect.members) > 1) == (path.stem in SEVERAL)
    if path.stem in LOOKS_LIKE:
        function, verdict = LOOKS_LIKE[path.stem]
        names = enumerate(recording.stacks, 1)
        assert verdict in {findings.verdict(n) for n, name in names if name.startswith(function)}


RANDOM = np.random.default_rng(1)  # Nothing here is left to it


def leak(period_s: float, size: float, from_s: float = 0.0) -> Stream:
    """A block now and then, never freed, among twenty times as many that are."""
    brief = every(period_s / 20, 0.0, END_S)
    freed = Stream(brief, brief + 0.5, np.full(len(brief), size))
    return kept(RANDOM, every(period_s, from_s, END_S), size) + freed


@pytest.mark.parametrize("common", ["scratch", "worker"])
def test_large_blocks_of_once_are_no_leak(common: str) -> None:
    """A worker begins late and allocates three large blocks beside a small leak."""
    names = {"scratch": ("scratch/{}", "scratch/other_{}"), "worker": ("{}/worker", "x_{}/worker")}
    sites = {names[common][0].format("leak"): leak(2.0, 64)}
    for number in range(3):
        sites[names[common][1].format(number)] = kept(
            RANDOM, np.array([100.0 + 7 * number]), 1 << 20
        )
    (suspect,) = watch(sites, END_S).findings.suspects
    assert suspect.stack == 1
    assert suspect.judgement.verdict is Verdict.LEAKING
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(64 * 30, rel=0.1)


def test_what_is_no_rate_or_not_judged() -> None:
    """What one stack allocated once does not count at its size, either."""
    once = kept(RANDOM, np.array([150.0, 150.5, 151.0]), 1 << 20)
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
