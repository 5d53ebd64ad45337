"""How fast a traced program still is, and what the profiler costs and loses meanwhile.

Usage: python tests/bench/throughput.py [--seconds S] [--rounds N] [--json FILE]

Each figure is the median of several rounds; untraced and traced alternate, so that the
ratios hold where the machine's speed drifts. Times are per malloc/free pair and thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.harness import Builder, Target, Tracelloc

CASES = [(1, 12, 0), (2, 12, 0), (2, 60, 0), (2, 12, 50_000)]
"""Threads, frames per stack, live blocks per thread."""


@dataclass
class Round:
    """One measurement."""

    untraced_ns: float
    traced_ns: float
    events_per_s: float
    profiler_share: float
    """CPU seconds of the profiler per second."""
    profiler_rss_mib: float
    lost_events: int


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def pairs(target: Target, seconds: float) -> tuple[int, float]:
    """Pairs made, and the seconds they took."""
    done, took_ns = target.ask(str(round(seconds * 1000))).split()
    return int(done), int(took_ns) / 1e9


def measure(program: Path, case: tuple[int, int, int], seconds: float, scratch: Path) -> Round:
    threads, depth, alive = case
    target = Target([program, threads, depth, alive])
    try:
        pairs(target, 0.1)
        done, took_s = pairs(target, seconds / 2)
        untraced_ns = took_s * threads / done * 1e9
        tracer = Tracelloc("-p", target.pid, "--json", "--interval", "1h", directory=scratch)
        before = cpu_seconds(tracer.process.pid)
        done, took_s = pairs(target, seconds)
        used = cpu_seconds(tracer.process.pid) - before
        memory = rss_mib(tracer.process.pid)
        tracer.stop()
        report = tracer.last()
    finally:
        target.kill()
    seen = report["allocations"] + report["frees"] + report["unmatched_frees"]
    return Round(
        untraced_ns=untraced_ns,
        traced_ns=took_s * threads / done * 1e9,
        events_per_s=(seen + report["lost_events"]) / took_s,
        profiler_share=used / took_s,
        profiler_rss_mib=memory,
        lost_events=report["lost_events"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement (3)")
    parser.add_argument("--rounds", type=int, default=3, help="per case (3)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    results = []
    heads = ["threads", "frames", "live", "untraced", "traced", "events/s", "CPU", "RSS", "lost"]
    print(" ".join(f"{head:>9}" for head in heads))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        program = Builder(scratch).c("storm", "-O2")
        for case in CASES:
            rounds = [
                measure(program, case, options.seconds, scratch) for _ in range(options.rounds)
            ]
            median = Round(
                *(statistics.median(values) for values in zip(*map(tuple_of, rounds), strict=True))
            )
            threads, depth, alive = case
            results.append({"threads": threads, "frames": depth, "live": alive, **asdict(median)})
            print(
                f"{threads:9d} {depth:9d} {threads * alive:9d} {median.untraced_ns:6.0f} ns "
                f"{median.traced_ns:6.0f} ns {median.events_per_s:9,.0f} "
                f"{median.profiler_share:8.1%} {median.profiler_rss_mib:5.0f} MiB "
                f"{sum(r.lost_events for r in rounds):5d}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def tuple_of(measured: Round) -> tuple[float, ...]:
    return tuple(asdict(measured).values())


if __name__ == "__main__":
    main()
