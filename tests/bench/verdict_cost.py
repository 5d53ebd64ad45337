"""What verdicts cost the profiler: per tick of the pump, and per look at all stacks.

``python -m tests.bench.verdict_cost`` prints one JSON object: milliseconds for a table of
300,000 outstanding blocks on 10,000 stacks, 40,000 events a second, ticks of 100 ms.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from tests.corpus.replay import START_NS, events_of, stacks_of
from tests.corpus.streams import NEVER, Stream
from tracelloc.heap.table import LiveTable
from tracelloc.units import NS_PER_S
from tracelloc.verdict.judge import Judge

STACKS = 10_000
BIRTHS_PER_S = 20_000
MEAN_LIFE_S = 13.0
LEAKED = 0.02
"""Of all blocks, on all stacks: the dearest case, as each of them has to be judged."""
END_S = 60.0
TICK_S = 0.1
LOOK_S = 10.0


def measure() -> dict[str, Any]:
    """The figures. Takes a minute."""
    random = np.random.default_rng(1)
    births = np.sort(random.uniform(0, END_S, int(END_S * BIRTHS_PER_S)))
    lives = random.exponential(MEAN_LIFE_S, len(births))
    lives = np.where(random.random(len(births)) < LEAKED, NEVER, lives)
    events = events_of([Stream(births, births + lives, np.full(len(births), 200.0))], END_S)
    born = events["stack_id"] > 0
    events["stack_id"][born] = random.integers(1, STACKS + 1, np.count_nonzero(born))
    stacks = stacks_of([f"function_{n % 2000}/caller_{n}" for n in range(STACKS)])
    table, judge = LiveTable(stacks), Judge()
    table.cohorts.begin(START_NS)
    ticks = np.arange(TICK_S, END_S, TICK_S)
    cuts = np.searchsorted(events["time_ns"], START_NS + (ticks * NS_PER_S).astype(np.uint64))
    tick_s, parts_s, looks_s = [], [], []
    before = 0
    for moment, cut in zip(ticks.tolist(), cuts.tolist(), strict=True):
        began_s = time.perf_counter()
        table.apply(events[before:cut])
        tick_s.append(time.perf_counter() - began_s)
        before = cut
        if moment % LOOK_S < TICK_S / 2:
            parts = []
            now_ns = START_NS + int(moment * NS_PER_S)
            began_s = time.perf_counter()
            for _ in judge.look(table.cohorts, table.totals, stacks, now_ns):
                parts.append(time.perf_counter() - began_s)
                began_s = time.perf_counter()
            parts_s += parts
            looks_s.append(sum(parts))
    return {
        "blocks": table.blocks.count,
        "stacks": STACKS,
        "tick_ms": round(float(np.median(tick_s)) * 1000, 2),
        "look_ms": round(float(np.median(looks_s)) * 1000, 1),
        "look_part_ms": round(float(np.median(parts_s)) * 1000, 2),
        "longest_part_ms": round(max(parts_s) * 1000, 1),
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
