"""How much CPU time do verdicts take, and how long do events wait for them?

Per tick of the pump, and per look at all stacks.
``python -m tests.bench.verdict_cost`` prints one JSON object: milliseconds of the thread's
CPU time for a table of 300,000 outstanding blocks on 10,000 stacks, 40,000 events a second,
ticks of 100 ms. A look is done piece by piece, in turns with events; the longest piece is
how long events wait, and it is named by where the look let others have their turn after it.
"""

import json
import linecache
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.replay import START_NS, events_of, stacks_of
from tests.corpus.streams import NEVER, Stream
from tracelloc.heap.table import LiveTable
from tracelloc.text import NS_PER_S
from tracelloc.verdict.judge import Judge

STACKS = 10_000
BIRTHS_PER_S = 20_000
MEAN_LIFE_S = 13.0
# Share of all blocks, on all stacks: the most expensive case, as each of them has to be judged.
LEAKED = 0.01
END_S = 160.0  # Long enough for leaks to be called so, and looked at whether they belong together
TICK_S = 0.1
LOOK_S = 10.0
LONGEST_LISTED = 5


def where(look: Any) -> str:
    """The line at which a generator is suspended, or the innermost one that it waits for."""
    while isinstance(look.gi_yieldfrom, Generator):
        look = look.gi_yieldfrom
    frame = look.gi_frame
    if frame is None:
        return "its end"
    file = Path(frame.f_code.co_filename)
    line = linecache.getline(str(file), frame.f_lineno).strip()
    return f"{file.stem}.{frame.f_code.co_name}:{frame.f_lineno} {line}"


def pieces(look: Iterator[Any]) -> Iterator[tuple[float, str]]:
    """Seconds of CPU time of each piece, and where it ended."""
    began_s = time.thread_time()
    for _ in look:
        yield time.thread_time() - began_s, where(look)
        began_s = time.thread_time()


def measure() -> dict[str, Any]:
    """The figures. Takes half a minute."""
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
    tick_s, parts, looks_s = [], [], []
    before = 0
    for moment, cut in zip(ticks.tolist(), cuts.tolist(), strict=True):
        began_s = time.thread_time()
        table.apply(events[before:cut])
        tick_s.append(time.thread_time() - began_s)
        before = cut
        if moment % LOOK_S < TICK_S / 2:
            now_ns = START_NS + int(moment * NS_PER_S)
            look = list(pieces(judge.judge_stacks(table.cohorts, table.totals, stacks, now_ns)))
            parts += look
            looks_s.append(sum(part_s for part_s, _ in look))
    parts.sort(reverse=True)
    return {
        "blocks": table.count,
        "stacks": STACKS,
        "tick_ms": round(float(np.median(tick_s)) * 1000, 2),
        "look_ms": round(float(np.median(looks_s)) * 1000, 1),
        "longest_look_ms": round(max(looks_s) * 1000, 1),
        "pieces_per_look": round(len(parts) / len(looks_s)),
        "piece_ms": round(float(np.median([part_s for part_s, _ in parts])) * 1000, 2),
        "longest_pieces_ms": [
            f"{part_s * 1000:.1f} until {end}" for part_s, end in parts[:LONGEST_LISTED]
        ],
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
