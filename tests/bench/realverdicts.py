"""How right are verdicts on recordings of real programs?

The recordings are those of ``python -m tests.corpus.real``, some of programs that were made to
leak. ``python -m tests.bench.realverdicts --half seen`` prints the table.
"""

import argparse
import multiprocessing
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.corpus.real.__main__ import FOLDER, REALLY
from tests.corpus.real.programs import PROGRAMS
from tests.corpus.real.recording import RealRecording
from tests.corpus.replay import LOOK_S, START_NS, looks
from tracelloc.heap.table import LiveTable
from tracelloc.heap.unreachable import UnreachableBlocks
from tracelloc.model.verdicts import Findings, Suspect, Verdict
from tracelloc.text import NS_PER_S
from tracelloc.verdict.judge import Judge

RANKED_S, CALLED_S, CALLED_NEVER_S = 60 + LOOK_S / 2, 180 + LOOK_S / 2, 300 + LOOK_S / 2
SETTLED_S = 120.0  # Reports from here on should be empty where nothing leaks
SHORT_S = 600.0
RATE_TOLERANCE = 0.1
# Programs that leak by themselves, as valgrind finds, too: what is said of them is no test.
LEAKY = {
    "exim4": "compiled regular expressions",
    "php": "32 bytes per request of the built-in server",
    "xvfb": "what is registered anew when the last client has gone",
}
LEAST_LEAKED = 20  # A program that was made to leak fewer blocks is no test
LEAST_S = 500.0  # A shorter recording is of a program that ended
LEAST_EVENTS = 500  # A program with fewer allocates nothing: it's no test


@dataclass(frozen=True)
class RealLeak:
    """What a program was really made to leak."""

    stacks: frozenset[int]
    onset_s: float  # When the first block leaks
    leaked: int  # Blocks
    never_freed: bool  # Hardly any block of these stacks is freed
    bytes_of: dict[int, int]  # Bytes that each stack has leaked
    seconds: float  # From the onset to the end

    def rate_of(self, stacks: Iterable[int]) -> float:
        """Bytes a minute that some stacks leak."""
        return sum(self.bytes_of.get(stack, 0) for stack in stacks) / self.seconds * 60


def real_leak(recording: RealRecording) -> RealLeak | None:
    """The leak of the program while it was recorded; None if there is none."""
    rows = recording.leaked
    if not len(rows):
        return None
    leaking, first_s = recording.stack[rows].astype(np.int64), recording.leaks_from_s
    total = np.bincount(leaking, recording.size[rows].astype(np.float64))
    bytes_of = {int(stack): int(total[stack]) for stack in np.unique(leaking)}
    own = np.isin(recording.stack, [*bytes_of]) & (recording.time_ms >= first_s * 1000)
    never_freed = len(rows) >= 0.9 * np.count_nonzero(own)
    lasted_s = recording.seconds - first_s
    return RealLeak(frozenset(bytes_of), first_s, len(rows), never_freed, bytes_of, lasted_s)


@dataclass
class RunResult:
    """One replay, with or without a leak."""

    program: str
    leaks: bool
    seconds: float
    alarms: int = 0  # Suspects called leaking that are none, each counted once
    alarms_short: int = 0  # Alarms within the first ten minutes
    reports: int = 0  # Looks from `SETTLED_S` on
    reports_showing: int = 0  # Looks that list an innocent suspect
    first_rows: int = 0
    first_rows_right: int = 0
    never_freed: bool = False
    ranked_s: float | None = None  # From the onset until the leak was the first suspect
    called_s: float | None = None
    leaking_at_end: bool = False
    wrong_at_end: int = 0
    rate_error: float | None = None
    # Confidence of what is called leaking, look by look, and whether it leaks.
    called: list[tuple[float, bool]] = field(default_factory=list)
    contradictions: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def contradictions(findings: Findings, table: LiveTable) -> Iterator[str]:
    """Figures of suspects that can't be true together."""
    watched_s = findings.moment.watched_s
    for suspect in findings.suspects:
        judged = suspect.judgement
        since_s = (findings.moment.now_ns - judged.since_ns) / NS_PER_S
        stacks = [member.stack for member in suspect.members]
        live = float(table.totals.live_bytes[stacks].sum())
        grown = judged.rate_bytes_per_min * since_s / 60
        leaking = judged.verdict is Verdict.LEAKING
        if since_s > watched_s + 1e-6:
            yield "since before tracing began"
        if grown > 1.1 * live + 1024:
            yield "rate x time above the suspect's live bytes"
        if leaking and judged.confidence <= 0:
            yield "called with no confidence"
        if leaking and judged.survivors <= 0:
            yield "called with no survivors"
        if leaking and judged.rate_bytes_per_min <= 0:
            yield "called with no rate"
        if abs(sum(m.rate_bytes_per_min for m in suspect.members) - judged.rate_bytes_per_min) > (
            0.01 * judged.rate_bytes_per_min + 1
        ):
            yield "members' rates do not add up"


def is_true(suspect: Suspect, truth: RealLeak | None) -> bool:
    """Whether most of what a suspect leaks is the leak."""
    if truth is None:
        return False
    return sum(m.share for m in suspect.members if m.stack in truth.stacks) >= 0.5


class Run:
    """Follows one replay."""

    def __init__(self, recording: RealRecording, truth: RealLeak | None) -> None:
        self._recording = recording
        self._truth = truth
        self._alarmed: set[int] = set()

    def note(self, time_s: float, findings: Findings, table: LiveTable, into: RunResult) -> None:
        truth = self._truth
        suspects = findings.suspects
        into.contradictions.update(set(contradictions(findings, table)))
        since_s = -1.0 if truth is None else time_s - truth.onset_s
        if time_s >= SETTLED_S:
            into.reports += 1
            into.reports_showing += any(not is_true(s, truth) for s in suspects)
        if truth is not None and since_s >= RANKED_S and suspects:
            into.first_rows += 1
            into.first_rows_right += is_true(suspects[0], truth)
        if truth is not None and since_s >= 0 and suspects and is_true(suspects[0], truth):
            into.ranked_s = since_s if into.ranked_s is None else into.ranked_s
        for suspect in suspects:
            if suspect.judgement.verdict is not Verdict.LEAKING:
                continue
            right = is_true(suspect, truth)
            into.called.append((suspect.judgement.confidence, right))
            if right and into.called_s is None:
                into.called_s = since_s
            if not right:
                self._alarm(time_s, suspect, into)
        self._note_end(findings, into)

    def _alarm(self, time_s: float, suspect: Suspect, into: RunResult) -> None:
        stacks = {member.stack for member in suspect.members}
        if not stacks & self._alarmed:
            into.alarms += 1
            into.alarms_short += time_s <= SHORT_S
            judged = suspect.judgement
            names = " < ".join(self._recording.names_of(suspect.stack)[:5])
            into.notes.append(
                f"{time_s:.0f} s: {judged.rate_bytes_per_min:.0f} B/min, confidence "
                f"{judged.confidence:.2f}, {len(stacks)} stacks, {judged.evidence}: {names}"
            )
        self._alarmed |= stacks

    def _note_end(self, findings: Findings, into: RunResult) -> None:
        called = [s for s in findings.suspects if s.judgement.verdict is Verdict.LEAKING]
        right = [s for s in called if is_true(s, self._truth)]
        into.leaking_at_end = bool(right)
        into.wrong_at_end = len(called) - len(right)
        if self._truth is not None:
            stacks = {member.stack for suspect in right for member in suspect.members}
            true_rate = self._truth.rate_of(stacks)
            rate = sum(suspect.judgement.rate_bytes_per_min for suspect in right)
            into.rate_error = rate / true_rate - 1 if true_rate else None


def replay(recording: RealRecording, name: str, *, searches: bool = True) -> RunResult | None:
    """One run. ``searches``: what searches found is known."""
    events, truth = recording.events(), real_leak(recording)
    program, _, made_to_leak = name.partition(REALLY)
    if program in LEAKY or (made_to_leak and (truth is None or truth.leaked < LEAST_LEAKED)):
        return None
    result = RunResult(name, truth is not None, recording.seconds)
    run = Run(recording, truth)
    judge = Judge(recording.wrappers().__contains__)
    refused = UnreachableBlocks(is_refused=True)
    search = recording.searches(events) if searches else lambda *_: refused
    for time_s, table, findings in looks(
        events, recording.known_stacks(), recording.seconds, judge=judge, start_ns=START_NS,
        search=search, resident=recording.resident_bytes,
        collection=recording.collection,
    ):  # fmt: skip
        run.note(time_s, findings, table, result)
    if truth is not None:
        result.never_freed = truth.never_freed
        late = (result.ranked_s or np.inf) > RANKED_S or (result.called_s or np.inf) > CALLED_S
        if late or not result.leaking_at_end:
            stack = " < ".join(recording.names_of(min(truth.stacks))[:5])
            result.notes.append(
                f"{'late' if result.leaking_at_end else 'missed'}: first after "
                f"{result.ranked_s} s, "
                f"called after {result.called_s} s; {truth.leaked} blocks, "
                f"{truth.rate_of(truth.stacks):.0f} B/min on {len(truth.stacks)} stacks since "
                f"{truth.onset_s:.0f} s, never freed {truth.never_freed}: {stack}"
            )
    return result


def _replay(job: tuple[Path, bool]) -> RunResult | None:
    path, searches = job
    recording = RealRecording.load(path)
    if len(recording.kind) < LEAST_EVENTS or recording.seconds < LEAST_S:
        return None
    return replay(recording, path.stem, searches=searches)


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def table(results: list[RunResult]) -> Iterator[str]:
    clean = [r for r in results if not r.leaks]
    leaky = [r for r in results if r.leaks]
    hours = sum(r.seconds for r in clean) / 3600
    alarms = sum(r.alarms for r in clean)
    yield f"clean runs                      {len(clean)}, {hours:.1f} program-hours"
    yield f"clean runs with an alarm        {sum(r.alarms > 0 for r in clean)}"
    yield f"alarms per program-hour         {alarms / max(hours, 1e-9):.2f}"
    short = sum(r.alarms_short for r in clean)
    yield f"alarms in the first 10 minutes  {short}"
    showing = sum(r.reports_showing for r in clean)
    yield f"clean reports with a suspect    {percent(showing, sum(r.reports for r in clean))}"
    if not leaky:
        return
    found = sum(r.leaking_at_end for r in leaky)
    wrong = sum(r.wrong_at_end for r in leaky)
    yield f"leaks                           {len(leaky)}"
    yield f"recall at the end               {found / len(leaky):.3f}"
    yield f"precision at the end            {found / max(1, found + wrong):.3f}"
    first = sum(r.ranked_s is not None and r.ranked_s <= RANKED_S for r in leaky)
    yield f"first within 60 s               {percent(first, len(leaky))}"
    in_time = sum(
        r.called_s is not None and r.called_s <= (CALLED_NEVER_S if r.never_freed else CALLED_S)
        for r in leaky
    )
    yield f"called within 180 s (300 s)     {percent(in_time, len(leaky))}"
    rows = sum(r.first_rows for r in leaky)
    yield f"first row right, after 60 s     {percent(sum(r.first_rows_right for r in leaky), rows)}"
    errors = np.array([r.rate_error for r in leaky if r.rate_error is not None], float)
    if len(errors):
        good = np.count_nonzero(np.abs(errors) <= RATE_TOLERANCE)
        yield f"rate within 10 %                {percent(good, len(errors))}"
    called = np.array([pair for r in results for pair in r.called], float).reshape(-1, 2)
    for low in np.arange(0, 1, 0.1):
        within = (called[:, 0] >= low) & (called[:, 0] < low + 0.1)
        if within.any():
            share = percent(called[within, 1].sum(), np.count_nonzero(within))
            yield f"confidence {low:.1f} to {low + 0.1:.1f}: leaks      {share} of {within.sum()}"


def main() -> None:
    parser = argparse.ArgumentParser(
        "tests.bench.realverdicts", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--half", choices=["seen", "unseen"], help="(both)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"({FOLDER})")
    parser.add_argument("--jobs", type=int, default=2, help="replays at a time (2)")
    parser.add_argument("--no-search", action="store_true", help="as with the option of that name")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what was wrong")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    os.nice(5)
    halves = {program.name: program.half for program in PROGRAMS}
    paths = [
        path for path in sorted(options.folder.glob("*.npz"))
        if not path.name.endswith(".part.npz")
        and (options.half is None or halves.get(path.stem.partition(REALLY)[0]) == options.half)
        and (not options.names or path.stem in options.names)
    ]  # fmt: skip
    if not paths:
        sys.exit(
            f"no such recordings in {options.folder}: python -m tests.corpus.real makes them, in "
            "about two hours"
        )
    searches = not options.no_search
    results = []
    with multiprocessing.Pool(options.jobs) as pool:
        for result in pool.imap(_replay, [(path, searches) for path in paths]):
            if result is None:
                continue
            results.append(result)
            if options.verbose and result.notes:
                print(f"{result.program}:", *result.notes, sep="\n    ", flush=True)
    print("\n".join(table(results)))
    said: defaultdict[str, int] = defaultdict(int)
    for result in results:
        for kind in result.contradictions:
            said[kind] += 1
    print("runs with contradictory figures:", dict(said) or "none")


if __name__ == "__main__":
    main()
