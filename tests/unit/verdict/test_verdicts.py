"""Programs of known truth, ten minutes each on a clock of their own: are they told apart?"""

import functools

import numpy as np
import pytest

from tests.corpus.programs import HELD_OUT, PROGRAMS
from tests.corpus.replay import (
    START_NS,
    Course,
    Truth,
    course_of,
    events_of,
    stacks_of,
    truths,
    watch,
)
from tests.corpus.streams import (
    Stream,
    churn,
    first_in_first_out,
    leak,
    poisson,
    regrown,
    replaced_at_random,
    some_leak,
)
from tracelloc.heap.stacks import Stacks
from tracelloc.model.stacks import StackFlag
from tracelloc.model.verdicts import Judgement, Verdict
from tracelloc.text import NS_PER_S
from tracelloc.verdict.evidence import stack_judgement

END_S = 600.0
SUSPECT = {Verdict.LEAKING, Verdict.GROWING}


@functools.cache
def course(name: str) -> tuple[dict[str, Stream], Course]:
    make = (PROGRAMS | HELD_OUT)[name]
    sites = make(np.random.default_rng([1, *name.encode()]), END_S)
    return sites, watch(sites, END_S)


@pytest.mark.parametrize("name", [*PROGRAMS, *HELD_OUT])
def test_program(name: str) -> None:
    """Leaks are called so, in time and with the right rate; nothing else ever is."""
    sites, seen = course(name)
    leaks = truths(sites, END_S)
    grouped = {m.stack for s in seen.findings.suspects if s.frame is not None for m in s.members}
    for stack, truth in leaks.items():
        judgement = stack_judgement(seen.findings, stack)
        assert judgement.verdict is Verdict.LEAKING, judgement
        if stack in grouped:
            continue
        assert_in_time(seen, stack, truth)
        assert judgement.rate_bytes_per_min == pytest.approx(truth.rate_bytes_per_min, rel=0.06)
        since_s = (judgement.since_ns - START_NS) / NS_PER_S
        assert since_s == pytest.approx(truth.onset_s, abs=15)
        assert judgement.never_freed == truth.never_freed
        assert judgement.confidence <= (0.8 if truth.never_freed else 0.97)
    for stack in range(1, len(sites) + 1):
        if stack not in leaks:
            assert seen.first(stack, {Verdict.LEAKING}) is None


def assert_in_time(seen: Course, stack: int, truth: Truth) -> None:
    suspect = seen.first(stack, SUSPECT, truth.onset_s)
    called = seen.first(stack, {Verdict.LEAKING}, truth.onset_s)
    assert suspect - truth.onset_s <= 90
    assert called - truth.onset_s <= (300 if truth.never_freed else 190)
    # Once it is called so, it stays so; uneven leaks with a lapse or two.
    assert seen.lasting(stack, {Verdict.LEAKING}) - called <= 100


@pytest.mark.parametrize(
    ("name", "site", "verdict"),
    [
        ("quiet_server", "startup_tables", Verdict.START_UP),
        ("quiet_server", "request_buffers", Verdict.BUSY),
        ("quiet_server", "name_cache", Verdict.CACHE),
        ("cache_that_fills", "cache", Verdict.CACHE),
        ("random_cache", "cache", Verdict.CACHE),
        ("tables_read_at_start", "tables", Verdict.START_UP),
        ("arena_per_minute", "arena", Verdict.CACHE),
        ("sawtooth", "queue", Verdict.CACHE),
        ("log_regrown", "log", Verdict.GROWING),
        ("rising_load", "work", Verdict.BUSY),
        ("stepping_load", "work", Verdict.BUSY),
    ],
)
def test_what_is_no_leak(name: str, site: str, verdict: Verdict) -> None:
    sites, seen = course(name)
    judgement = stack_judgement(seen.findings, list(sites).index(site) + 1)
    assert judgement.verdict is verdict, judgement
    assert not judgement.evidence.endswith("so far")


def doubling(stop_s: float = END_S, *, factor: float, since_s: float, per_s: float) -> Stream:
    """One block that has room for contents that grow steadily from ``since_s`` on."""
    births, sizes, room = [], [], 64.0
    while since_s + room / per_s < stop_s:
        births.append(since_s + room / per_s)
        room *= factor
        sizes.append(room)
    return regrown(np.array(births), np.array(sizes))


@pytest.mark.parametrize(
    ("factor", "since_s"), [(2, 1.0), (1.5, 1.0), (1.125, 1.0), (2, 20.0), (1.5, 60.0)]
)
def test_one_block_that_grows_for_ever_is_growing(factor: float, since_s: float) -> None:
    stream = doubling(factor=factor, since_s=since_s, per_s=150e3)
    seen = watch({"text": stream}, END_S)
    assert seen.lasting(1, {Verdict.GROWING}) <= since_s + 105
    (suspect,) = seen.findings.suspects
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(150e3 * 60, rel=0.1)
    assert "one block, reallocated larger" in suspect.judgement.evidence


def test_one_large_block_that_grows_by_realloc_is_growing() -> None:
    births = np.arange(1, END_S, 0.1)
    seen = watch({"text": regrown(births, 40e6 + 1000 * np.arange(len(births)))}, END_S)
    assert seen.lasting(1, {Verdict.GROWING}) <= 105
    (suspect,) = seen.findings.suspects
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(600e3, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_one_block_that_is_filled_and_freed_again_and_again_is_no_suspect(seed: int) -> None:
    """Whatever it has whenever a look comes."""
    random = np.random.default_rng(seed)
    births: list[float] = []
    sizes: list[float] = []
    time_s = 1.0
    while time_s < 400:
        count = int(random.integers(3, 9))
        births += [time_s + 0.02 * n for n in range(count)]
        sizes += [9000.0 * 2**n for n in range(count)]
        time_s += 0.02 * count + random.random() * 0.1
    stream = Stream(np.array(births), np.array(births) + 0.02, np.array(sizes))
    assert not any(watch({"buffer": stream}, 400.0).suspects)


@pytest.mark.parametrize("stop_s", [30.0, 60.0, 100.0])
def test_one_block_that_has_stopped_growing_is_none(stop_s: float) -> None:
    seen = watch({"text": doubling(stop_s, factor=2, since_s=1.0, per_s=150e3)}, END_S)
    assert seen.lasting(1, {Verdict.CACHE, Verdict.START_UP, Verdict.BUSY}) <= 2.3 * stop_s + 10
    assert not seen.findings.suspects


@pytest.mark.parametrize(("lives_s", "verdict"), [(5, Verdict.CACHE), (0.5, Verdict.BUSY)])
def test_a_full_cache_is_not_busy_unless_its_blocks_are_short_lived(
    lives_s: float, verdict: Verdict
) -> None:
    random = np.random.default_rng(1)
    births = poisson(random, 300 / lives_s, 0, 200.0)
    seen = watch({"cache": replaced_at_random(random, births, 300, 1024)}, 200.0)
    assert seen.findings.verdict(1) is verdict


@pytest.mark.parametrize("name", ["leak_through_many_functions", "leak_through_allocating_helper"])
def test_functions_below_one_caller_are_one_suspect(name: str) -> None:
    """Forty functions leak a little each; found early by the caller that they share."""
    sites, seen = course(name)
    frame = seen.findings.suspects[0].frame
    stacks = stacks_of(list(sites))
    leaking = truths(sites, END_S)
    assert frame in (stacks.frames(min(leaking)) or ())
    assert not any(frame in (stacks.frames(n) or ()) for n, site in enumerate(sites, 1)
                   if "handle_request" not in site)  # fmt: skip
    (suspect,) = seen.findings.suspects
    members = {member.stack for member in suspect.members}
    assert len(members) >= 38
    assert members <= set(leaking)
    assert suspect.judgement.verdict is Verdict.LEAKING
    truth = sum(s.size[s.is_leaked()].sum() for s in sites.values()) / END_S * 60
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(truth, rel=0.08)
    called = [
        time_s for time_s, suspects in zip(seen.times_s, seen.suspects, strict=True)
        if any(s.frame == frame and s.judgement.verdict is Verdict.LEAKING for s in suspects)
    ]  # fmt: skip
    assert called[0] <= 240
    # It does not fall apart when each of the forty can be told to leak by itself.
    assert called == seen.times_s[seen.times_s.index(called[0]) :]


def test_suspects_of_several_stacks() -> None:
    """Fourteen stacks share the function that leaks; the fifteenth only shares a wrapper."""
    sites, seen = course("some_callers")
    group, single = seen.findings.suspects
    assert {list(sites)[m.stack - 1].split("/")[0] for m in group.members} == {"session_new"}
    assert len(group.members) == 14
    assert [list(sites)[m.stack - 1] for m in single.members] == ["wrapper/leaky"]
    assert single.frame is None
    assert group.frame is not None
    # Three blocks of each forgotten object, made at three places of one function.
    sites, seen = course("reference_cycles")
    (suspect,) = seen.findings.suspects
    names = [list(sites)[member.stack - 1] for member in suspect.members]
    assert names == ["table", "node", "name"]
    shares = [member.share for member in suspect.members]
    assert shares == pytest.approx([320 / 408, 64 / 408, 24 / 408], rel=0.01)
    # 60 stacks, none of them a leak to speak of; the function that they share is one.
    sites, seen = course("many_callers")
    (suspect,) = seen.findings.suspects
    names = {list(sites)[member.stack - 1].split("/")[0] for member in suspect.members}
    assert names == {"session_new"}
    assert len(suspect.members) > 50
    assert suspect.judgement.verdict is Verdict.LEAKING
    truth = sum(s.size[s.is_leaked()].sum() for s in sites.values()) / END_S * 60
    assert suspect.judgement.rate_bytes_per_min == pytest.approx(truth, rel=0.06)
    assert sum(member.share for member in suspect.members) == pytest.approx(1)
    shares = [member.share for member in suspect.members]
    assert shares == sorted(shares, reverse=True)


def test_suspects_apart_and_retracted() -> None:
    """Two leaks of one caller, at equal rates, under a load that goes up and down."""
    random = np.random.default_rng(8)
    load = poisson(random, 20, 0, END_S)
    load = load[random.random(len(load)) < (1 + np.sin(load / 120 * 2 * np.pi)) / 2]
    sites = {
        name: some_leak(random, churn(random, load + 0.001, 0.3, 100), 0.2) for name in ("a", "b")
    }
    findings = watch(sites | busy_program(random, 2), END_S).findings
    assert [len(suspect.members) for suspect in findings.suspects] == [1, 1]
    assert {suspect.judgement.verdict for suspect in findings.suspects} == {Verdict.LEAKING}
    # What looked like a leak for five minutes is then freed.
    random = np.random.default_rng(5)
    births = poisson(random, 3, 0, 400)
    hoard = Stream(births, np.full(len(births), 420.0), np.full(len(births), 100.0))
    seen = watch({"hoard": hoard} | busy_program(random, 2), END_S)
    assert seen.first(1, {Verdict.LEAKING}) is not None
    judgement = stack_judgement(seen.findings, 1)
    assert judgement.verdict is not Verdict.LEAKING
    assert judgement.retracted == 1


def busy_program(random: np.random.Generator, sites: int) -> dict[str, Stream]:
    return {
        f"busy_{n}": churn(random, poisson(random, 15, 0, END_S), 1 + n, 300) for n in range(sites)
    }


def test_losses() -> None:
    """One free in 500 is lost: every busy site keeps some blocks, a real leak many more."""
    random = np.random.default_rng(3)
    sites = busy_program(random, 6)
    sites["leak"] = some_leak(random, churn(random, poisson(random, 15, 0, END_S), 1.0, 300), 0.05)
    lost = {name: some_leak(random, stream, 0.002) for name, stream in sites.items()}
    lost["leak"] = sites["leak"]
    believing = watch(lost, END_S).findings
    doubting = watch(lost, END_S, address_reuses=1).findings
    assert doubting.verdict(7) is Verdict.LEAKING
    called = [believing.verdict(stack) is Verdict.LEAKING for stack in range(1, 7)]
    doubted = [doubting.verdict(stack) is Verdict.LEAKING for stack in range(1, 7)]
    assert sum(called) >= 4, "without proof of losses they do look like leaks"
    assert sum(doubted) == 0
    assert "was lost" in stack_judgement(doubting, 1).evidence
    # One free in 100 is lost, and that is known: a leak of one in ten stands out, one that is
    # as small as the loss does not.
    random = np.random.default_rng(9)
    sites = busy_program(random, 2)
    for name, share in (("leak", 0.1), ("small_leak", 0.01)):
        stream = churn(random, poisson(random, 15, 0, END_S), 1.0, 300)
        sites[name] = some_leak(random, stream, share)
    lossy = {name: some_leak(random, stream, 0.01) for name, stream in sites.items()}
    lossy["leak"] = sites["leak"]
    whole = watch(sites, END_S).findings
    lossy_found = watch(lossy, END_S, frees_lost_per_s=4 * 15 * 0.01).findings
    assert [lossy_found.verdict(stack) is Verdict.LEAKING for stack in (1, 2, 3, 4)] == [
        False, False, True, False,
    ]  # fmt: skip
    assert "was lost" in stack_judgement(lossy_found, 1).evidence
    sure, less_sure = stack_judgement(whole, 3), stack_judgement(lossy_found, 3)
    assert less_sure.survivors == sure.survivors
    assert less_sure.confidence == pytest.approx(sure.confidence * 0.7 * 0.9, rel=0.02)
    # All frees between 100 s and 110 s are lost: no leak, before and after; a real one is.
    random = np.random.default_rng(4)
    sites = busy_program(random, 3)
    for name, stream in sites.items():
        lost = (stream.death > 100) & (stream.death < 110)
        sites[name] = Stream(stream.birth, np.where(lost, np.inf, stream.death), stream.size)
    sites["leak"] = leak(random, poisson(random, 2, 0, END_S), 500)
    seen = watch(sites, END_S, lost_at_s=110)
    assert all(seen.first(stack, {Verdict.LEAKING}) is None for stack in (1, 2, 3))
    assert seen.first(4, {Verdict.LEAKING}) > 110 + 240
    unharmed = watch({"leak": sites["leak"]}, END_S)
    sure = stack_judgement(unharmed.findings, 1).confidence
    assert stack_judgement(seen.findings, 4).confidence < 0.7 * sure


def sampled(random: np.random.Generator, stream: Stream, mean_bytes: int) -> Stream:
    """Those of the blocks that byte-weighted sampling would pick."""
    chosen = random.random(len(stream.birth)) < -np.expm1(-stream.size / mean_bytes)
    return Stream(stream.birth[chosen], stream.death[chosen], stream.size[chosen])


def leak_in_samples(mean_bytes: int | None) -> tuple[Judgement, Course, Truth]:
    """The same leak, each block of it known or samples only, and what is said of all at the end."""
    random = np.random.default_rng(6)
    sites = PROGRAMS["quiet_server"](random, END_S)
    sites["leak"] = some_leak(random, churn(random, poisson(random, 20, 0, END_S), 0.5, 700), 0.1)
    (truth,) = truths(sites, END_S).values()
    if mean_bytes is not None:
        sites = {name: sampled(random, stream, mean_bytes) for name, stream in sites.items()}
    seen = watch(sites, END_S, sample_bytes=mean_bytes)
    *others, leaking = range(1, len(sites) + 1)
    assert all(seen.first(stack, {Verdict.LEAKING}) is None for stack in others)
    return stack_judgement(seen.findings, leaking), seen, truth


def test_samples() -> None:
    """A leak is found among samples, with its whole rate; the fewer they are, the less surely."""
    sure = [leak_in_samples(None)[0].confidence]
    for mean_bytes in (512, 4096, 16384):
        judgement, seen, truth = leak_in_samples(mean_bytes)
        assert judgement.verdict is Verdict.LEAKING
        assert judgement.rate_bytes_per_min == pytest.approx(truth.rate_bytes_per_min, rel=0.25)
        leaked = 20 * 0.1 * (END_S - 5) * -np.expm1(-700 / mean_bytes)
        assert judgement.survivors == pytest.approx(leaked, abs=4 * leaked**0.5)
        assert f"(at least {judgement.survivors:,} sampled blocks)" in judgement.evidence
        sure.append(judgement.confidence)
        assert "sampled blocks are freed" in stack_judgement(seen.findings, 2).evidence
    assert sure == sorted(set(sure), reverse=True)
    # However much they stand for.
    births = np.linspace(5, 55, 6)
    for count, grows in ((6, True), (5, False)):
        leaking = leak(np.random.default_rng(1), births[-count:], 100)
        seen = watch({"leak": leaking}, 60.0, sample_bytes=1 << 20)
        assert (seen.first(1, SUSPECT) is not None) == grows


@pytest.mark.parametrize("residence_s", [400, 900])
def test_a_cache_that_was_full_before(residence_s: int) -> None:
    """What it drops was never seen to be made, so nothing made here seems to be freed."""
    random = np.random.default_rng(7)
    births = poisson(random, 1, -residence_s - 50, END_S)
    cache = first_in_first_out(random, births, residence_s, 2000)
    seen = watch({"cache": cache} | busy_program(random, 3), END_S)
    assert seen.first(1, {Verdict.LEAKING}) is None
    looked = seen.findings
    if residence_s == 900:
        judgement = stack_judgement(looked, 1)
        assert judgement.verdict is Verdict.GROWING
        assert "before tracing" in judgement.evidence


@pytest.mark.parametrize(
    ("flags", "verdict"),
    [
        (StackFlag(0), Verdict.LEAKING),
        (StackFlag.UNMAPPED, Verdict.LEAKING),
        (StackFlag.LOST_MISS, Verdict.UNKNOWN),
        (StackFlag.SHORT_COPY, Verdict.UNKNOWN),
    ],
)
def test_what_was_cut_short_is_not_judged(flags: StackFlag, verdict: Verdict) -> None:
    """Many call sites may look like one: neither it nor a group with it is a suspect."""
    rng = np.random.default_rng(7)
    streams = [leak(rng, poisson(rng, 5, 0, END_S), 64) for _ in range(4)]
    stacks = Stacks()
    for number in range(1, 5):
        stacks.add(number, (0x400000, 0x400100, 0x400200 + number), flags)
    seen = course_of(events_of(streams, END_S), stacks, END_S)
    assert {stack_judgement(seen.findings, n).verdict for n in range(1, 5)} == {verdict}
    is_judged = verdict is Verdict.LEAKING
    assert any(seen.suspects) == is_judged
    assert ("cut short" in stack_judgement(seen.findings, 1).evidence) == (not is_judged)
