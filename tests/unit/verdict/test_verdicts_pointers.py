"""Verdicts where it is known which blocks nothing points to: virtual programs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.corpus.replay import START_NS, events_of, looks, stacks_of
from tests.corpus.streams import Stream, churn, every, leak, poisson, some_leak
from tracelloc.heap.table import LiveTable
from tracelloc.heap.unreachable import UnreachableBlocks
from tracelloc.model.blocks import Blocks
from tracelloc.model.verdicts import Findings, Verdict
from tracelloc.show.alerts.rules import parse_rule
from tracelloc.show.alerts.watching import breach
from tracelloc.text import NS_PER_S
from tracelloc.verdict.evidence import explain, stack_judgement

LARGE = 1 << 30  # Bytes of a process in which nothing here matters
SITE, OTHER = 1, 2


def searching(
    unreachable: UnreachableBlocks,
    are_lost: Callable[[Blocks, Any], Any] = lambda blocks, _: np.ones(len(blocks), np.bool_),
    result: Callable[[float], dict[str, Any]] = lambda _: {},
) -> Callable[[float, LiveTable], UnreachableBlocks]:
    """Searches every ten seconds; ``are_lost``: of blocks and their births, in seconds."""

    def search(time_s: float, table: LiveTable) -> UnreachableBlocks:
        if time_s % 10 == 0:
            blocks = table.blocks()
            births_s = (blocks.birth_ns.astype(np.int64) - START_NS) / NS_PER_S
            old = births_s <= time_s - 10
            comparison = unreachable.comparison()
            comparison.add(blocks.select(old), ~are_lost(blocks, births_s)[old])
            unreachable.accept(comparison.result(**result(time_s)))
        return unreachable

    return search


def course(
    site: Stream, is_lost: Callable[[np.ndarray], np.ndarray], end_s: float, resident_bytes: int,
    *, rise_per_s: int = 0, collects: bool = False, kernel_queue: str = "", keeps: bool = False,
) -> list[tuple[float, Findings]]:  # fmt: skip
    """All looks. ``is_lost``: of blocks of the site by birth, in seconds, which are unreachable.

    ``keeps``: whether a variable is known to keep the others.
    ``rise_per_s``: of the resident memory, from ``resident_bytes`` on, in bytes.
    """
    random = np.random.default_rng(1)
    other = churn(random, poisson(random, 20, 0, end_s), 1.0, 200)
    unreachable = UnreachableBlocks(kept_stacks=frozenset({SITE} if keeps else ()))

    search = searching(
        unreachable,
        lambda blocks, births_s: (blocks.stack == SITE) & is_lost(births_s),
        lambda _: {"kernel_queue": kernel_queue},
    )
    return [
        (time_s, findings)
        for time_s, _, findings in looks(
            events_of([site, other], end_s), stacks_of(["site/main", "other/main"]), end_s,
            search=search, resident=lambda time_s: resident_bytes + int(rise_per_s * time_s),
            collection=(collects, collects),
        )
    ]  # fmt: skip


def first(looked: list[tuple[float, Findings]], verdict: Verdict) -> float | None:
    """When the site was first listed with a verdict; nothing else ever is."""
    for time_s, findings in looked:
        for suspect in findings.suspects:
            assert {member.stack for member in suspect.members} == {SITE}
            if suspect.judgement.verdict is verdict:
                return time_s
    return None


all_of_them, none_of_them = np.isfinite, np.isnan  # Of births


def test_lost_blocks_and_their_rates() -> None:
    """Four blocks a minute of 4,000: the others are freed within seconds."""
    random = np.random.default_rng(2)
    births = poisson(random, 66, 0, 240)
    site = some_leak(random, churn(random, births, 0.5, 64), 0.001)
    called_s = first(course(site, lambda births_s: births_s >= 0, 240, LARGE), Verdict.LEAKING)
    assert called_s <= 180
    site = leak(np.random.default_rng(3), every(0.5, 0, 120), 100)
    looked = course(site, all_of_them, 120, LARGE)
    assert first(looked, Verdict.LEAKING) <= 70
    _, last = looked[-1]
    (suspect,) = last.suspects
    judged = suspect.judgement
    assert judged.unreachable == 201, "born by the last but one search, ten seconds old"
    assert judged.searched == 221
    assert "201 of 221 old blocks are unreachable" in judged.evidence
    assert judged.rate_bytes_per_min == pytest.approx(2 * 100 * 60, rel=0.1)
    assert judged.confidence > 0.9
    # One in forty has 100 times the bytes of the others: it is lost, too.
    births = every(1, 0, 240)
    sizes = np.where(np.arange(len(births)) % 40 == 39, 10_000, 100)
    site = leak(np.random.default_rng(10), births, lambda *_: sizes)
    (suspect,) = course(site, all_of_them, 240, LARGE)[-1][1].suspects
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(sizes.mean() * 60, rel=0.15)
    # Idle clients, which only the kernel points to: one each second, closed after two minutes.
    births = every(1, 0, 600)
    site = Stream(births, births + 120, np.full(len(births), 500.0), np.zeros(len(births), bool))
    looked = course(site, all_of_them, 600, LARGE)
    assert first(looked, Verdict.LEAKING) is not None, "as long as none has been freed"
    assert all(not findings.suspects for time_s, findings in looked if time_s > 160)
    # The rate counts from its first block, not from the slice's beginning.
    for start_s in (21.0, 23.0, 25.0, 27.0):
        site = leak(np.random.default_rng(14), every(0.5, start_s, 200), 2000)
        (suspect,) = course(site, all_of_them, 200, LARGE)[-1][1].suspects
        assert suspect.judgement.rate_bytes_per_min == pytest.approx(240_000, rel=0.02)
        (suspect,) = course(site, none_of_them, 200, 1_000_000)[-1][1].suspects
        assert suspect.judgement.rate_bytes_per_min == pytest.approx(240_000, rel=0.02)


@pytest.mark.parametrize("collects", [False, True])
def test_what_is_kept_beside_a_few_lost_blocks_is_no_part_of_the_rate(collects: bool) -> None:
    """A block of 1,000 bytes is lost every ten seconds; the 19 others are kept, too."""
    site = leak(np.random.default_rng(9), every(0.5, 0, 420), 1000)
    looked = course(site, lambda births_s: births_s % 10 < 0.1, 420, LARGE, collects=collects)
    (suspect,) = looked[-1][1].suspects
    assert suspect.judgement.verdict is Verdict.LEAKING
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(6000, rel=0.1)


@pytest.mark.parametrize(("keeps", "rate"), [(True, 60_000), (False, 120_000)])
def test_blocks_that_a_variable_keeps_are_no_part_of_the_rate(keeps: bool, rate: float) -> None:
    """Every other block is lost; pointers to the others may be stale, if nothing is known."""
    site = leak(np.random.default_rng(9), every(0.5, 0, 420), 1000)
    looked = course(site, lambda births_s: births_s % 1 < 0.1, 420, LARGE, keeps=keeps)
    (suspect,) = looked[-1][1].suspects
    assert suspect.judgement.verdict is Verdict.LEAKING
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(rate, rel=0.1)


def test_few_times_are_no_leak() -> None:
    site = leak(np.random.default_rng(4), np.append(every(0.01, 3, 5), every(50, 20, 240)), 100)
    looked = course(site, lambda births_s: births_s < 6, 240, LARGE)
    assert first(looked, Verdict.LEAKING) is None
    assert first(looked, Verdict.GROWING) is None
    site = leak(np.random.default_rng(7), np.array([20.0, 20.1, 20.2, 60.0, 60.1, 60.2]), 100)
    looked = course(site, all_of_them, 150, LARGE)
    assert first(looked, Verdict.LEAKING) is None
    assert first(looked, Verdict.GROWING) is not None
    looked = course(leak(np.random.default_rng(8), every(1, 20, 60), 100), all_of_them, 300, LARGE)
    assert first(looked, Verdict.LEAKING) <= 100
    assert looked[-1][1].suspects == ()
    random = np.random.default_rng(12)
    few = leak(random, every(60, 1, 300), 1 << 20)
    called_s = first(course(few, all_of_them, 300, LARGE), Verdict.LEAKING)
    assert called_s <= 180
    small = leak(random, every(60, 1, 300), 1000)
    called_s = first(course(small, all_of_them, 300, LARGE), Verdict.LEAKING)
    assert called_s > 200


def test_what_is_pointed_to() -> None:
    site = leak(np.random.default_rng(5), every(0.2, 0, 600), 1000)
    looked = course(site, none_of_them, 600, LARGE)
    assert first(looked, Verdict.LEAKING) is None
    assert first(looked, Verdict.GROWING) is None, "of 1 GiB, 300 kB a minute are nothing"
    assert looked[-1][1].verdict(SITE) is Verdict.GROWING
    # 141 KiB/min of 30 MB: not for the first minute and a half, and it is not called a leak.
    random = np.random.default_rng(11)
    looked = course(leak(random, every(0.5, 0, 300), 1200), none_of_them, 300, 30_000_000)
    assert 90 <= first(looked, Verdict.GROWING) <= 120
    assert first(looked, Verdict.LEAKING) is None
    (suspect,) = looked[-1][1].suspects
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(120 * 1200, rel=0.03)
    assert suspect.judgement.confidence < 0.3
    assert "none was freed, but the program still points to all of it" in suspect.judgement.evidence
    random = np.random.default_rng(13)
    looked = course(leak(random, every(0.01, 0, 60), 1200), none_of_them, 60, 3_000_000)
    said = [
        (time_s, stack_judgement(findings, SITE).evidence)
        for time_s, findings in looked
        if findings.verdict(SITE) is Verdict.GROWING
    ]
    early = [time_s for time_s, evidence in said if "are old enough" in evidence]
    later = [time_s for time_s, evidence in said if "still points to all of it" in evidence]
    assert max(early) < min(later)


@pytest.mark.long
def test_until_it_has_doubled_the_process() -> None:
    """Five minutes make 18 MB."""
    random = np.random.default_rng(6)
    site = leak(random, every(0.2, 0, 700), 12_000)
    looked = course(site, none_of_them, 700, 24_000_000, rise_per_s=60_000)
    assert 400 <= first(looked, Verdict.LEAKING) <= 440, "24 MB more"
    looked = course(site, none_of_them, 700, 2_000_000, rise_per_s=60_000)
    assert 300 <= first(looked, Verdict.LEAKING) <= 340, "not before"
    assert first(course(site, none_of_them, 700, 20_000_000), Verdict.LEAKING) is None, "a pool"
    small = leak(random, every(0.2, 0, 700), 4500)
    looked = course(small, none_of_them, 700, 1_000_000, rise_per_s=22_500)
    assert first(looked, Verdict.LEAKING) is None, "15 MB"
    collected = course(site, none_of_them, 700, 2_000_000, rise_per_s=60_000, collects=True)
    assert first(collected, Verdict.LEAKING) is None, "it may be garbage"
    assert first(collected, Verdict.GROWING) is not None


def test_without_and_before_a_search() -> None:
    random = np.random.default_rng(15)
    site = some_leak(random, churn(random, poisson(random, 20, 0, 400), 1.0, 300), 0.05)
    events = events_of([site], 400)
    stacks = stacks_of(["site/main"])
    called: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for is_refused, into in called.items():
        unreachable = UnreachableBlocks(is_refused=True) if is_refused else None
        for time_s, _, findings in looks(events, stacks, 400, search=lambda *_, u=unreachable: u):
            into.extend(
                (time_s, s.judgement.confidence)
                for s in findings.suspects
                if s.judgement.verdict is Verdict.LEAKING
            )
    assert 110 <= called[False][0][0] <= 140
    assert not called[True]
    (suspect,) = findings.suspects
    assert suspect.judgement.verdict is Verdict.GROWING
    assert suspect.judgement.confidence < 0.3
    assert "verdict in about 5" in suspect.judgement.evidence, "minutes"
    # A steady pace is not called uneven because nothing has been searched for yet.
    births = every(0.1, 0, 40)
    site = Stream(births, births + 1e9, np.full(len(births), 500.0), np.zeros(len(births), bool))
    for time_s, _, findings in looks(events_of([site], 40), stacks_of(["site/main"]), 40,
                                     search=lambda *_: UnreachableBlocks()):  # fmt: skip
        for row in np.flatnonzero(findings.sites.confidence > 0).tolist():
            evidence = explain(findings.sites, row, findings.moment)
            assert evidence.startswith("live bytes are rising; verdict in about "), time_s
            seen = time_s
    assert seen > 30


def test_what_stays_lost_or_may_be_held() -> None:
    """Else it would end as a cache, or as allocated at the start."""
    site = leak(np.random.default_rng(8), every(0.5, 0, 150), 10_000)
    looked = course(site, all_of_them, 600, LARGE)
    assert first(looked, Verdict.LEAKING) <= 70
    judged = stack_judgement(looked[-1][1], SITE)
    assert judged.verdict is Verdict.LOST
    assert judged.evidence == "300 blocks are lost (2.86 MiB): nothing points to them"
    assert judged.rate_bytes_per_min == 0
    assert breached("leak", looked) == "leak (293 KiB/min)", "on average, over ten minutes"
    assert breached("lost > 1MiB", looked) == "lost > 1.00 MiB (2.86 MiB)"
    kept = stack_judgement(course(site, none_of_them, 600, LARGE)[-1][1], SITE)
    assert kept.verdict not in (Verdict.LOST, Verdict.LEAKING)
    collected = course(site, all_of_them, 600, LARGE, collects=True)[-1][1]
    assert stack_judgement(collected, SITE).verdict is not Verdict.LOST
    site = leak(np.random.default_rng(8), every(0.5, 0, 600), 100_000)
    looked = course(site, all_of_them, 600, 24_000_000, kernel_queue="io_uring", rise_per_s=200_000)
    assert first(looked, Verdict.LEAKING) is None, "nor by having doubled the process"
    judged = stack_judgement(looked[-1][1], SITE)
    assert judged.verdict is Verdict.GROWING
    assert judged.evidence.endswith(
        " is left, but requests of io_uring in the kernel may hold some"
    )
    short = leak(np.random.default_rng(8), every(0.5, 0, 150), 10_000)
    stopped = course(short, all_of_them, 600, LARGE, kernel_queue="io_uring")[-1][1]
    assert stack_judgement(stopped, SITE).verdict is not Verdict.LOST


def breached(
    rule: str, looked: list[tuple[float, Findings]], *, before: bool = False
) -> str | None:
    """What breaks a rule at the end; ``before``: the site's blocks are from before tracing."""
    are_earlier = np.array([False, before, False])
    last = SimpleNamespace(findings=looked[-1][1], are_earlier=are_earlier)
    return breach(parse_rule(rule), last)


@pytest.mark.parametrize(("count", "is_leak"), [(3000, True), (30, False)])
def test_what_was_lost_at_once_is_a_leak_unless_it_is_little(count: int, is_leak: bool) -> None:
    births = 20 + np.arange(count) / 1e6
    looked = course(leak(np.random.default_rng(8), births, 600), all_of_them, 200, LARGE)
    assert first(looked, Verdict.LEAKING) is None
    assert stack_judgement(looked[-1][1], SITE).verdict is Verdict.LOST
    assert (breached("leak", looked) is not None) == is_leak
    assert breached("lost > 10k", looked)
    # What was lost before tracing breaks only the rule on everything.
    assert breached("leak", looked, before=True) is None
    assert breached("lost > 10k", looked, before=True)


def test_what_is_swapped_out_hides_pointers() -> None:
    """Blocks that were lost before stay lost; no others are."""
    unreachable = UnreachableBlocks()

    site = leak(np.random.default_rng(16), every(0.5, 0, 200), 10_000)
    looked = list(looks(
        events_of([site], 200), stacks_of(["site/main"]), 200,
        search=searching(
            unreachable, result=lambda time_s: {"swapped_bytes": (5 << 20) * (time_s > 30)}
        ),
        resident=lambda _: 30_000_000,
    ))  # fmt: skip
    assert len(unreachable.blocks) == 21, "born by the search before the last one with all memory"
    (suspect,) = looked[-1][2].suspects
    assert suspect.judgement.verdict is Verdict.GROWING


def test_the_parts_of_one_object_are_one_suspect() -> None:
    """Three stacks with different callers. The third also allocates what it frees."""
    random, end_s = np.random.default_rng(12), 150
    parts = [leak(random, poisson(random, 2, 0, end_s), size) for size in (400, 200)]
    parts.append(some_leak(random, churn(random, poisson(random, 20, 0, end_s), 0.5, 100), 0.1))
    unreachable = UnreachableBlocks()

    search = searching(
        unreachable, result=lambda time_s: {"objects": {1: 1, 2: 1, 3: 1} if time_s > 60 else {}}
    )
    names = ["new/parse/one/main", "copy/read/two/main", "grow/log/three/main"]
    looked = {
        time_s: findings
        for time_s, _, findings in looks(
            events_of(parts, end_s), stacks_of(names), end_s, search=search,
            resident=lambda _: LARGE,
        )
    }  # fmt: skip
    assert [len(suspect.members) for suspect in looked[60.0].suspects] == [1, 1, 1]
    (suspect,) = looked[end_s].suspects
    assert [member.stack for member in suspect.members] == [1, 2, 3]
    assert suspect.judgement.verdict is Verdict.LEAKING
    lost = 120 * (400 + 200) + 20 * 60 * 0.1 * 100
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(lost, rel=0.1)
