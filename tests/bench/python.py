"""What do frames of Python in call stacks cost the target?

Measured as time in BPF, by the kernel's own clock.
One program allocates at several depths of Python, beneath few C frames, with frames of Python
read and without; the difference is theirs. ``PYTHONS`` in the environment names other interpreters.
Runs in a process of its own: ``python -m tests.bench.python`` prints one JSON object.
"""

import json
import os
from typing import Any, Final
from unittest.mock import patch

from tests.harness import Target
from tracelloc.record.kernel.programs import program_info, statistics
from tracelloc.record.process.procfs import Process
from tracelloc.record.session import sessionstart
from tracelloc.record.session.config import TraceConfig

DEPTHS: Final = (1, 10, 50, 200)
PAIRS: Final = 20_000
ROUNDS: Final = 3

_PROGRAM: Final = f"""
import sys
def work():
    for _ in range({PAIRS}):
        bytearray(3000)
def down(depth):
    if depth:
        down(depth - 1)
    else:
        work()
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    down(int(line))
    print("done", flush=True)
"""


def _measure(target: Target, *, merged: bool) -> dict[int, float]:
    """By depth: nanoseconds in BPF for a block allocated and freed."""
    with patch.object(sessionstart, "has_supported", lambda _: merged):
        session = sessionstart.attach_to(Process(target.pid), TraceConfig())
    found = {}
    try:
        programs = [session._probes.program(name) for name in ("allocator_call", "free_call")]
        with statistics():
            for depth in DEPTHS:
                target.ask(str(depth))
                before = [program_info(fd).run_time_ns for fd in programs]
                target.ask(str(depth))
                after = [program_info(fd).run_time_ns for fd in programs]
                found[depth] = (sum(after) - sum(before)) / PAIRS
    finally:
        session.close()
    return found


def measure() -> dict[str, Any]:
    """The figures, in this process: the least of some rounds."""
    figures: dict[str, Any] = {"depths": DEPTHS, "pythons": {}}
    for python in os.environ.get("PYTHONS", "/usr/bin/python3").split():
        with Target([python, "-c", _PROGRAM]) as target:
            runs = [
                (_measure(target, merged=False), _measure(target, merged=True))
                for _ in range(ROUNDS)
            ]
        plain = {depth: min(run[0][depth] for run in runs) for depth in DEPTHS}
        merged = {depth: min(run[1][depth] for run in runs) for depth in DEPTHS}
        figures["pythons"][python] = {
            "plain_ns": plain,
            "merged_ns": merged,
            # Two more: the program's own and what allocates.
            "per_frame_ns": (merged[DEPTHS[-1]] - merged[DEPTHS[0]]) / (DEPTHS[-1] - DEPTHS[0]),
        }
    return figures


if __name__ == "__main__":
    print(json.dumps(measure()))
