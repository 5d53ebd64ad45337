"""How exact are counts of a Python program's objects from outside, and what do they cost?

A program has many objects and, while it runs, makes and drops others all the time. It is counted
between two of its own counts, whose mean is the truth; stopped, the truth is what it said last.
``python -m tests.bench.objectcounts [PYTHON ...]`` prints a table; a Python with blanks is a
command, such as ``chroot /sid python3``.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

from tests.harness import Target
from tracelloc.model.objects import ObjectCensus
from tracelloc.record.process.procfs import Process
from tracelloc.record.runtimes.cpython.census import CensusTaker

OBJECTS: Final = (100_000, 1_000_000)
ROUNDS: Final = 5
NOTABLE: Final = 1000  # Types with fewer objects are not compared one by one
_PROGRAM: Final = """
import collections, gc, json, sys, threading, time
class Session:
    def __init__(self, number):
        self.number, self.fields = number, {"list": [number]}
class Slotted:
    __slots__ = ("item",)
    def __init__(self, number):
        self.item = number
kept = [Session(n) for n in range(int(sys.argv[1]) // 5)]
slotted = collections.deque(Slotted(one.number) for one in kept)
is_busy = False
def churn():
    at = 0
    while True:
        if not is_busy:
            time.sleep(0.01)
            continue
        for _ in range(200):
            at = (at + 7919) % len(kept)
            kept[at] = Session(at)
            slotted.append(Slotted(at))
            slotted.popleft()
            {"short": [at]}
        time.sleep(0)
threading.Thread(target=churn, daemon=True).start()
gc.disable()
def name(kind):
    plain = kind.__module__ == "builtins"
    return kind.__qualname__ if plain else f"{kind.__module__}.{kind.__name__}"
def answer():
    blocks = sys.getallocatedblocks()
    types = collections.Counter(map(type, gc.get_objects()))
    counts = {name(kind): count for kind, count in types.items()}
    print(json.dumps([blocks, counts]), flush=True)
print("ready", flush=True)
for line in sys.stdin:
    is_busy = line == "busy\\n"
    if not is_busy:
        time.sleep(0.05)
        gc.collect()
    answer()
"""

Counts = tuple[int, dict[str, int]]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    python: str
    state: str
    objects: int
    cpu_s: float
    blocks_off: float  # Difference to `sys.getallocatedblocks()`, as a share
    worst: str
    worst_off: float  # The type that differs most from `gc.get_objects()`


def _ask(target: Target, word: str) -> Counts:
    blocks, counts = json.loads(target.ask(word))
    return blocks, counts


def _settle(target: Target, state: str) -> None:
    """Until it has as many objects as it will have: some are made when they are first used."""
    before = 0
    for _ in range(20):
        blocks, _ = _ask(target, state)
        if abs(blocks - before) < blocks / 1000:
            break
        before = blocks


def compare(census: ObjectCensus, truths: list[Counts]) -> tuple[float, str, float]:
    """(share by which blocks differ, the type that differs most, by what share)."""
    blocks = statistics.mean(blocks for blocks, _ in truths)
    found = {one.name: one.count for one in census.types}
    offs = {}
    for name, first in truths[0][1].items():
        # The collector stops tracking tuples, and dictionaries up to 3.13, without containers.
        if name not in ("tuple", "dict") and first >= NOTABLE:
            truth = statistics.mean(counts.get(name, 0) for _, counts in truths)
            offs[name] = found.get(name, 0) / truth - 1
    worst = max(offs, key=lambda name: abs(offs[name]))
    return census.block_count / blocks - 1, worst, offs[worst]


def measure(python: str, objects: int) -> list[Row]:
    """While it runs, and stopped; of some rounds the worst."""
    version = subprocess.check_output([*python.split(), "--version"], text=True).split()[1]
    target = Target([*python.split(), "-c", _PROGRAM, str(objects)])
    rows = []
    try:
        censuses = CensusTaker(Process(target.pid))
        for state in ("stopped", "busy"):
            worst: Row | None = None
            _settle(target, state)
            for _ in range(ROUNDS):
                truths = [_ask(target, state)]
                if state == "stopped":
                    os.kill(target.pid, signal.SIGSTOP)
                began_s = time.process_time()
                census = censuses.take_census()
                cpu_s = time.process_time() - began_s
                os.kill(target.pid, signal.SIGCONT)
                if state == "busy":
                    truths.append(_ask(target, state))
                row = Row(version, state, census.count, cpu_s, *compare(census, truths))
                if worst is None or abs(row.worst_off) >= abs(worst.worst_off):
                    worst = row
            assert worst is not None
            rows.append(worst)
    finally:
        target.kill()
    return rows


def main() -> None:
    print(f"{'':10} {'':8} {'objects':>10} {'CPU s':>7} {'blocks':>8} {'worst type':>11}")
    for python in sys.argv[1:] or ["/usr/bin/python3"]:
        for objects in OBJECTS:
            for row in measure(python, objects):
                print(
                    f"{row.python:10} {row.state:8} {row.objects:>10,} {row.cpu_s:>7.3f} "
                    f"{row.blocks_off:>+8.2%} {row.worst_off:>+11.2%}  {row.worst}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
