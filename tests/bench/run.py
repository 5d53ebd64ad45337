"""Runs the measurements of ``make bench`` in interleaved rounds."""

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import following, start, storm, tui, workloads
from tests.bench.processes import SkippedError
from tests.bench.storm import Case, Sample
from tests.bench.tools import LIVE_NAMES, TOOLS, Tool
from tests.harness import Builder

PARTS = ("start", "storm", "tui", "follow", *workloads.NAMES)
TOOL_NAMES = tuple(tool.name for tool in TOOLS)
_PLAIN, _PAIR, _DEEP, _DEEP_PAIR = storm.CASES
# Cost of one over cost of another, and the targets for it.
RATIOS: tuple[tuple[str, str, str, dict[storm.Case, float]], ...] = (
    ("tracelloc", "floor", "at most", {_PLAIN: 1.3, _PAIR: 1.4, _DEEP: 1.45}),
    ("bpftrace", "tracelloc", "at least", {_PLAIN: 4.9, _PAIR: 4.9}),
)
# Why a tool is left out; the others go on.
TROUBLE = (SkippedError, OSError, EOFError, TimeoutError, subprocess.SubprocessError)
# Parts that are measured once, by name, of what, and by what.
SINGLE: tuple[tuple[str, str, Callable[[], dict[str, Any]]], ...] = (
    ("start", f"{len(start.TARGETS)} commands, {start.ROUNDS} times", start.measure),
    ("tui", f"{1 << tui.DEPTH:,} stacks, {tui.BLOCKS << tui.DEPTH:,} blocks", tui.measure),
)


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    seconds: float  # Per measurement
    rounds: int
    parts: Sequence[str]
    tools: Sequence[str]


@dataclass
class Results:
    """What was measured, by what it was measured on."""

    plan: Plan
    storm: dict[Case, dict[str, list[Sample]]] = field(default_factory=dict)  # By tool
    # Units of work per second, by tool.
    workloads: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    single: dict[str, dict[str, Any]] = field(default_factory=dict)  # By part
    follow: dict[str, following.Figures] = field(default_factory=dict)  # By row
    skipped: dict[str, str] = field(default_factory=dict)  # Why a tool or a part is missing


class Bench:
    """One run. ``say`` is called with each line of progress."""

    def __init__(
        self, plan: Plan, program: Path, scratch: Path, say: Callable[[str], None]
    ) -> None:
        self._program = program
        self._scratch = scratch
        self._say = say
        self.results = Results(plan)

    def run(self) -> Results:
        plan = self.results.plan
        for tool in self._tools(plan.tools):
            reason = tool.why_missing()
            if reason is not None:
                self._skip(tool.name, reason)
        if "storm" in plan.parts:
            for case in (*storm.CASES, storm.CROWDED):
                self._storm(case, storm.CROWDED_NAMES if case is storm.CROWDED else TOOL_NAMES)
        for name in workloads.NAMES:
            if name in plan.parts:
                self._workload(name)
        if "follow" in plan.parts:
            self._follow()
        for name, about, measure in SINGLE:
            if name in plan.parts:
                self._say(f"{name}: {about}")
                try:
                    self.results.single[name] = measure()
                except (*TROUBLE, AssertionError) as reason:
                    self._skip(name, str(reason))
        return self.results

    def _tools(self, names: Iterable[str]) -> list[Tool]:
        """Those of the plan that are still in the race."""
        wanted = set(names).intersection(self.results.plan.tools)
        return [t for t in TOOLS if t.name in wanted and t.name not in self.results.skipped]

    def _skip(self, name: str, reason: str) -> None:
        self.results.skipped[name] = reason
        self._say(f"skipped: {name}: {reason}")

    def _storm(self, case: Case, names: Iterable[str]) -> None:
        samples = self.results.storm.setdefault(case, {})
        for number in range(self.results.plan.rounds):
            self._say(f"storm: {case.title}, round {number + 1}")
            for tool in self._tools(names):
                seconds = self.results.plan.seconds
                try:
                    sample = storm.measure(tool, case, self._program, seconds, self._scratch)
                except TROUBLE as reason:
                    self._skip(tool.name, str(reason))
                else:
                    samples.setdefault(tool.name, []).append(sample)

    def _follow(self) -> None:
        forks = Builder(self._scratch).c("forks", "-O2")
        for row in following.ROWS:
            figures = following.Figures()
            for number in range(self.results.plan.rounds):
                self._say(f"follow: {row}, round {number + 1}")
                seconds = self.results.plan.seconds
                try:
                    following.measure(row, forks, seconds, self._scratch, figures)
                except TROUBLE as reason:
                    self._skip(f"follow: {row}", str(reason))
                    break
            if figures.stop_ns:
                self.results.follow[row] = figures

    def _workload(self, name: str) -> None:
        reason = workloads.why_missing(name)
        if reason is not None:
            self._skip(name, reason)
            return
        rates = self.results.workloads.setdefault(name, {})
        failed: set[str] = set()
        for number in range(self.results.plan.rounds):
            self._say(f"{name}: round {number + 1}")
            for tool in self._tools(LIVE_NAMES):
                if tool.name in failed:
                    continue
                seconds = self.results.plan.seconds
                try:
                    rate = workloads.measure(name, tool, seconds, self._scratch)
                except TROUBLE as trouble:
                    failed.add(tool.name)
                    self.results.skipped[f"{tool.name} on {name}"] = str(trouble)
                    self._say(f"skipped: {tool.name} on {name}: {trouble}")
                else:
                    rates.setdefault(tool.name, []).append(rate)


def ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    """The median of the rounds' ratios: each compares what was measured side by side."""
    pairs = list(zip(above, below, strict=False))
    return statistics.median(a / b for a, b in pairs) if pairs else None


def storm_ratios(results: Results) -> list[dict[str, Any]]:
    """All ratios of RATIOS that can be had."""
    rows = []
    for case, samples in results.storm.items():
        cost = {name: [s.ns_per_pair for s in several] for name, several in samples.items()}
        for above, below, bound, targets in RATIOS:
            value = ratio(cost.get(above, []), cost.get(below, []))
            if value is None:
                continue
            target = targets.get(case)
            met = None
            if target is not None:
                met = value <= target if bound == "at most" else value >= target
            rows.append(
                {**asdict(case), "cost_of": above, "over_cost_of": below, "ratio": value,
                 "target": None if target is None else f"{bound} {target:g}",
                 "target_met": met}
            )  # fmt: skip
    return rows


def slowdowns(results: Results) -> list[dict[str, Any]]:
    """How many times slower each workload runs under each tool."""
    return [
        {"workload": name, "tool": tool, "unit": workloads.UNITS[name],
         "rate": statistics.median(several), "rates": several,
         "slowdown_ratio": ratio(rates.get("untraced", []), several)}
        for name, rates in results.workloads.items()
        for tool, several in rates.items()
    ]  # fmt: skip


def as_json(results: Results) -> dict[str, Any]:
    """Everything, single measurements included."""
    return {
        "machine": {"kernel": platform.release(), "architecture": platform.machine(),
                    "cpus": os.cpu_count()},
        "plan": asdict(results.plan),
        "skipped": results.skipped,
        "storm": [
            {**asdict(case), "tool": name, **asdict(storm.median(samples)),
             "ns_per_pair_by_round": [sample.ns_per_pair for sample in samples]}
            for case, by_tool in results.storm.items()
            for name, samples in by_tool.items()
        ],
        "ratios": storm_ratios(results),
        "workloads": slowdowns(results),
        **results.single,
        "follow": {name: figures.as_row() for name, figures in results.follow.items()},
    }  # fmt: skip
