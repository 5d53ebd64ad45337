"""Records what real programs do: runs them under the probes and keeps their events.

Usage: python -m tests.corpus.record [MODE...]

Needs root. Writes ``tests/data/streams/MODE.npz``: ten minutes of the program's own clock,
which runs ``SPEED`` times faster than the machine's; times are kept on the program's clock.
What the program says it has leaked is kept beside its events.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.corpus.recorded import FOLDER, Recording
from tests.harness import Builder, Target
from tracelloc.model.events import Events
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.begin import attach_to
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.symbolization.symbolizer import Symbolizer

SECONDS = 600
SPEED = 40
MODES = (
    "steady", "churn", "late", "bursts", "errors", "callers", "container", "extension", "quiet",
    "lru", "slow_lru", "pool", "startup", "arena", "sawtooth", "generations", "log", "threads",
    "mixed",
)  # fmt: skip


def commands(builder: Builder) -> dict[str, list[str | Path]]:
    """What to run, by the name of the recording."""
    specimens = builder.c("specimens")
    found: dict[str, list[str | Path]] = {mode: [specimens, mode] for mode in MODES}
    found["shared_ptr"] = [builder.cpp("cycles")]
    found["rust"] = [builder.rust("cycles")]
    return found


def record(command: list[str | Path]) -> Recording:
    """Runs a program to its end. Raises AssertionError if an event was lost."""
    target = Target([*command, str(SECONDS), str(SPEED)])
    session = attach_to(Process(target.pid), TraceConfig())
    taken: list[Events] = []
    apply = session.root.heap.table.apply

    def keep(events: Events) -> None:
        taken.append(events.copy())
        apply(events)

    session.root.heap.table.apply = keep  # type: ignore[method-assign]
    try:
        target.say("go")
        leaks = []
        while (line := target.hear()) != "done":
            leaks.append(line)
        assert session.snapshot().root.losses.events == 0
        return Recording.from_records(
            np.concatenate(taken),
            session.root.heap.stacks,
            Symbolizer(session.root.space),
            leaks,
            session.root.started_ns,
            SPEED,
        )
    finally:
        session.close()
        target.kill()


def main() -> None:
    """The command."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        for mode, command in commands(Builder(Path(name))).items():
            if len(sys.argv) == 1 or mode in sys.argv[1:]:
                recording = record(command)
                recording.save(FOLDER / f"{mode}.npz")
                print(f"{mode}: {len(recording.kind)} events, {recording.leaks}", flush=True)


if __name__ == "__main__":
    main()
