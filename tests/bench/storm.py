"""What does each malloc and free cost the target, in nanoseconds, under tracelloc and its peers?

Runs ``tests/targets/storm.c``.
Every round measures every tool once before the next round begins, so that ratios hold
where the machine's speed drifts.
"""

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from tests.bench.allocator import find_allocator
from tests.bench.processes import Program, SkippedError, cpu_seconds, program, rss_bytes
from tests.bench.tools import Tool, Watcher

WARM_UP_S = 0.1


@dataclass(frozen=True)
class Case:
    """How storm is run."""

    threads: int
    frames: int
    live_blocks_per_thread: int = 0

    @property
    def title(self) -> str:
        """For people."""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        live = self.threads * self.live_blocks_per_thread
        return f"{threads}, {self.frames} frames" + (f", {live:,} live" if live else "")


CASES = (Case(1, 12), Case(2, 12), Case(1, 60), Case(2, 60))
SETTLE_S = 1.0  # How long the program runs with a tool attached before it is measured
# Blocks that live on: what the reader does then, and whether it still loses nothing.
CROWDED = Case(2, 12, 50_000)
# The profiler's share of one core at a million events per second, at most.
CPU_TARGETS = {CASES[0]: 0.05, CROWDED: 0.12}
CROWDED_NAMES = ("untraced", "floor", "tracelloc")


@dataclass(frozen=True)
class Sample:
    """One measurement."""

    ns_per_pair: float  # Per malloc/free pair and thread
    # Of it, the time in which the thread had a processor; the tool may have used the processor.
    cpu_ns_per_pair: float | None = None
    profiler_cpu_share: float | None = None  # CPU seconds of the tool's process per second
    profiler_rss_bytes: float | None = None
    events_per_s: float | None = None
    lost_events: float | None = None


def _ns_per_pair(pairs: int, took_s: float, case: Case) -> float:
    if not pairs:
        raise SkippedError("not a single pair was done in time")
    return took_s * case.threads / pairs * 1e9


def _live(tool: Tool, case: Case, running: Program, seconds: float, scratch: Path) -> Sample:
    running.work(WARM_UP_S)
    with tool.attach(find_allocator(running.pid), scratch) as watcher:
        # Tools measure and learn when they have just begun; that is not what lasts.
        settled_s = running.work(SETTLE_S)[1]
        cpu_before_s = cpu_seconds(watcher.pid) if watcher.pid else 0.0
        own_before_s = cpu_seconds(running.pid)
        pairs, took_s = running.work(seconds)
        own_s = cpu_seconds(running.pid) - own_before_s
        cpu_s = cpu_seconds(watcher.pid) - cpu_before_s if watcher.pid else None
        resident = rss_bytes(watcher.pid) if watcher.pid else None
    return Sample(
        ns_per_pair=_ns_per_pair(pairs, took_s, case),
        cpu_ns_per_pair=own_s / pairs * 1e9,
        profiler_cpu_share=None if cpu_s is None else cpu_s / took_s,
        profiler_rss_bytes=resident,
        **_events(watcher, settled_s + took_s),
    )


def _events(watcher: Watcher, took_s: float) -> dict[str, float]:
    report = watcher.report
    if not report:
        return {}
    seen = report["allocations"] + report["frees"] + report["unmatched_frees"]
    lost = report["lost_events"]
    return {"events_per_s": (seen + lost) / took_s, "lost_events": lost}


def measure(tool: Tool, case: Case, storm: Path, seconds: float, scratch: Path) -> Sample:
    """One tool, once. Raises SkippedError."""
    words = [*tool.starts_with, storm, case.threads, case.frames, case.live_blocks_per_thread]
    command = [str(word) for word in words]
    if tool.wrap is None:
        with program(command) as running:
            return _live(tool, case, running, seconds, scratch)
    own = Path(mkdtemp(dir=scratch))
    try:
        with program([*tool.wrap(own), *command]) as running:
            running.work(WARM_UP_S)
            # What such a tool writes grows with every call: half as long will do.
            pairs, took_s = running.work(seconds / 2)
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return Sample(_ns_per_pair(pairs, took_s, case))


def median(samples: Sequence[Sample]) -> Sample:
    """Each figure's median; losses are added up instead."""

    def middle(values: list[float | None]) -> float | None:
        there = [value for value in values if value is not None]
        return statistics.median(there) if there else None

    lost = [sample.lost_events for sample in samples if sample.lost_events is not None]
    return Sample(
        ns_per_pair=statistics.median(sample.ns_per_pair for sample in samples),
        cpu_ns_per_pair=middle([sample.cpu_ns_per_pair for sample in samples]),
        profiler_cpu_share=middle([sample.profiler_cpu_share for sample in samples]),
        profiler_rss_bytes=middle([sample.profiler_rss_bytes for sample in samples]),
        events_per_s=middle([sample.events_per_s for sample in samples]),
        lost_events=sum(lost) if lost else None,
    )
