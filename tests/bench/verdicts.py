"""How well do verdicts tell leaks from what only looks like one, beside the rules of others?

Usage: python -m tests.bench.verdicts [--seeds N]

Prints a line per program (verdict, time to it, rate found and true) and a table of rules:
precision and recall over all call sites after ten minutes on the programs' own clocks.
Needs neither root nor BPF: programs are generated (``tests/corpus/programs.py``) or were
recorded (``tests/data/streams``), and their time is not the machine's.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tests.corpus.programs import HELD_OUT, PROGRAMS, SPLITTING, Program
from tests.corpus.recorded import FOLDER, Recording
from tests.corpus.replay import START_NS, Course, Truth, course_of, events_of, stacks_of, truths
from tests.corpus.streams import F64
from tracelloc.heap.stacks import Stacks
from tracelloc.model.events import EVENT_SIZE_BITS, EventKind, Events
from tracelloc.model.verdicts import Verdict
from tracelloc.text import NS_PER_S, format_size

END_S = 600.0
RANKED_S = 62.5
# Where some blocks are freed, and where none are. Half a look is allowed for.
CALLED_S = (182.5, 302.5)
OLD_S = 60.0  # Blocks older than this are what memleak's --older shows


@dataclass
class Case:
    """One program and what is true of it."""

    name: str
    events: Events
    stacks: Stacks
    leaks: dict[str, tuple[set[int], Truth]]  # By name: the stacks that make up a leak
    sites: set[int]  # All stacks


@dataclass
class Score:
    """Right and wrong alarms of one rule."""

    hits: int = 0
    misses: int = 0
    false_alarms: int = 0
    sites: int = 0

    def line(self) -> str:
        precision = self.hits / max(1, self.hits + self.false_alarms)
        recall = self.hits / max(1, self.hits + self.misses)
        share = self.false_alarms / max(1, self.sites)
        return f"{precision:9.2f} {recall:7.2f} {share:12.3f}"


@dataclass
class Results:
    """All programs together."""

    ranked: list[bool] = field(default_factory=list)
    called: list[bool] = field(default_factory=list)
    at_end: list[bool] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    ever: int = 0
    end: int = 0
    innocent: int = 0
    rules: dict[str, Score] = field(default_factory=dict)


def generated(make: Program, name: str, seed: int) -> Case:
    """A program of ``tests/corpus/programs.py``; leaks of a common function are one."""
    sites = make(np.random.default_rng([seed, *name.encode()]), END_S)
    names = list(sites)
    leaks: dict[str, tuple[set[int], Truth]] = {}
    for stack, truth in truths(sites, END_S).items():
        function = leaking_function(names[stack - 1])
        members, known = leaks.get(function, (set(), Truth(END_S, 0.0, True)))
        onset_s = min(truth.onset_s, known.onset_s)
        leaked = truth.rate_bytes_per_min * (END_S - truth.onset_s)
        leaked += known.rate_bytes_per_min * (END_S - known.onset_s)
        never = truth.never_freed and known.never_freed
        leaks[function] = (members | {stack}, Truth(onset_s, leaked / (END_S - onset_s), never))
    events = events_of(list(sites.values()), END_S)
    return Case(name, events, stacks_of(names), leaks, set(range(1, len(sites) + 1)))


def leaking_function(site: str) -> str:
    """Where a leak is: in the innermost function, or the one below which it is split."""
    functions = site.split("/")
    return SPLITTING if SPLITTING in functions else functions[0]


def recorded(name: str) -> Case:
    """A program of ``tests/targets`` whose events were recorded."""
    recording = Recording.load(FOLDER / f"{name}.npz")
    events = recording.events()
    leaks = {}
    for function, (_, size_bytes, onset_s) in recording.leaks.items():
        stacks = range(1, len(recording.stacks) + 1)
        members = {stack for stack in stacks if recording.leaking(stack) == function}
        rate = size_bytes / (END_S - onset_s) * 60
        leaks[function] = (members, Truth(onset_s, rate, freed_share(events, members) < 0.1))
    everything = set(range(1, len(recording.stacks) + 1))
    return Case(name, events, recording.known_stacks(), leaks, everything)


def freed_share(events: Events, stacks: set[int]) -> float:
    """Of the blocks that these stacks make, the share that is freed."""
    born, death = blocks(events)
    return float(np.isfinite(death[np.isin(events["stack_id"][born], list(stacks))]).mean())


def blocks(events: Events) -> tuple[np.ndarray, F64]:
    """The rows in which blocks are made, and the time of each block's death in s or infinity."""
    kind = events["size_tag"] >> np.uint64(EVENT_SIZE_BITS)
    order = np.argsort(events["address"], kind="stable")
    next_one = np.append(order[1:], order[:1])
    same = events["address"][next_one] == events["address"][order]
    made = kind[order] == EventKind.ALLOC
    ends = same & (kind[next_one] != EventKind.ALLOC)
    ends[-1] = False
    times = (events["time_ns"][next_one] - np.uint64(START_NS)) / NS_PER_S
    return order[made], np.where(ends, times, np.inf)[made]


def naive(case: Case) -> dict[str, set[int]]:
    """What simple rules call a leak at the end, by stack."""
    born, death = blocks(case.events)
    birth = (case.events["time_ns"][born] - np.uint64(START_NS)) / NS_PER_S
    stack = case.events["stack_id"][born].astype(np.int64)
    size = (case.events["size_tag"][born] & np.uint64((1 << EVENT_SIZE_BITS) - 1)).astype(float)
    count = max(case.sites) + 1
    moments = np.linspace(0, END_S, 121)[1:]
    held = np.array([
        np.bincount(stack, weights=size * ((birth <= t) & (death > t)), minlength=count)
        for t in moments
    ])  # fmt: skip
    old = np.bincount(stack[(death > END_S) & (birth < END_S - OLD_S)], minlength=count)
    spread = moments - moments.mean()
    slope = (spread[:, None] * (held - held.mean(axis=0))).sum(axis=0) / (spread**2).sum()
    fitted = held.mean(axis=0) + slope * spread[:, None]
    error = np.sqrt(((held - fitted) ** 2).sum(axis=0) / (len(moments) - 2) / (spread**2).sum())
    return {
        "largest site": {int(held[-1].argmax())},
        "slope > 0 (p < .01)": set(np.flatnonzero(slope > 2.33 * error + 1e-9).tolist()),
        "any block older than 60 s": set(np.flatnonzero(old).tolist()),
    }


def first_rank(course: Course, members: set[int], after_s: float, others: set[int]) -> float | None:
    """When a leak was first the best suspect, other leaks not counted."""
    for time_s, suspects in zip(course.times_s, course.suspects, strict=True):
        if time_s < after_s:
            continue
        for suspect in suspects:
            stacks = {member.stack for member in suspect.members}
            if stacks & members:
                return time_s
            if not stacks & others:
                break
    return None


def since(time_s: float | None, onset_s: float) -> str:
    return "-" if time_s is None else f"{time_s - onset_s:.0f}"


def judge(case: Case, results: Results) -> Iterator[str]:
    """Replays a program. Yields its lines of the table."""
    course = course_of(case.events, case.stacks, END_S)
    findings = course.findings
    leaking = set().union(*(members for members, _ in case.leaks.values())) if case.leaks else set()
    for function, (members, truth) in case.leaks.items():
        firsts = [course.first(stack, {Verdict.LEAKING}, truth.onset_s) for stack in members]
        called = min((first for first in firsts if first is not None), default=None)
        ranked = first_rank(course, members, truth.onset_s, leaking - members)
        found = [s for s in findings.suspects if {m.stack for m in s.members} & members]
        rate = sum(
            member.rate_bytes_per_min
            for suspect in found
            for member in suspect.members
            if member.stack in members
        )
        verdict = found[0].judgement.verdict if found else Verdict.CACHE
        limit = CALLED_S[truth.never_freed]
        results.called.append(called is not None and called - truth.onset_s <= limit)
        results.ranked.append(ranked is not None and ranked - truth.onset_s <= RANKED_S)
        results.at_end.append(verdict is Verdict.LEAKING)
        results.errors.append(abs(rate / truth.rate_bytes_per_min - 1))
        yield (
            f"{case.name:32} {function:20} {verdict.value:14} "
            f"{since(ranked, truth.onset_s):>6} {since(called, truth.onset_s):>7} "
            f"{format_size(round(rate)):>10} {format_size(round(truth.rate_bytes_per_min)):>10}"
        )
    wrong = {
        stack for stack in case.sites - leaking
        if course.first(stack, {Verdict.LEAKING}) is not None
    }  # fmt: skip
    at_end = {stack for stack in wrong if findings.verdict(stack) is Verdict.LEAKING}
    results.ever += len(wrong)
    results.end += len(at_end)
    results.innocent += len(case.sites - leaking)
    if not case.leaks or wrong:
        alarms = f"{len(wrong)} false alarms, {len(at_end)} at the end" if wrong else "no alarm"
        yield f"{case.name:32} {alarms}"
    said = {stack for stack in case.sites if findings.verdict(stack) is Verdict.LEAKING}
    for rule, alarms_of in (naive(case) | {"tracelloc": said}).items():
        score = results.rules.setdefault(rule, Score())
        for members, _ in case.leaks.values():
            found_one = bool(members & alarms_of)
            score.hits += found_one
            score.misses += not found_one
        score.false_alarms += len((alarms_of & case.sites) - leaking)
        score.sites += len(case.sites - leaking)


def cases(seeds: int) -> Iterator[Case]:
    for name, make in (PROGRAMS | HELD_OUT).items():
        yield from (generated(make, name, seed) for seed in range(1, seeds + 1))
    yield from (recorded(path.stem) for path in sorted(FOLDER.glob("*.npz")))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests.bench.verdicts", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of each program (1)")
    options = parser.parse_args()
    results = Results()
    print(f"{'program':32} {'leak':20} {'verdict':14} {'first':>6} {'called':>7} "
          f"{'found/min':>10} {'true/min':>10}")  # fmt: skip
    print(f"{'':68} {'(s after its onset)':>14}")
    for case in cases(options.seeds):
        for line in judge(case, results):
            print(line, flush=True)
    if results.ranked:
        median, high = np.percentile(results.errors, [50, 95]) * 100
        print(
            f"\n{len(results.ranked)} leaks: ranked first within 60 s "
            f"{np.mean(results.ranked):.3f}, called in time "
            f"{np.mean(results.called):.3f}, leaking at the end {np.mean(results.at_end):.3f}, "
            f"rate error median {median:.1f} %, 95th {high:.1f} %"
        )
    alarms = f"{results.ever} false alarms ever, {results.end} at the end"
    print(f"{results.innocent} other sites: {alarms}")
    print(f"\n{'rule':26} {'precision':>9} {'recall':>7} {'false alarms':>12}")
    for rule, score in results.rules.items():
        print(f"{rule:26} {score.line()}")


if __name__ == "__main__":
    main()
