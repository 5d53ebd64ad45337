"""Runs one real program under load and records what its allocator does.

Usage: python -m tests.corpus.real.recorder NAME SECONDS PORT FILE [SITE ONE_IN]

With a site and a rate, the program really leaks: ``tests/targets/skipfree.c``.

Needs root and the program's packages. Whatever the program begins has ended when this has:
all of it are this process's descendants, by ``PR_SET_CHILD_SUBREAPER``.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.corpus.real.programs import PROGRAMS, RealProgram
from tests.corpus.real.recording import ASKED_AGE_S, RealRecording
from tests.harness import Builder
from tracelloc.errors import TracellocError
from tracelloc.heap.table import LiveTable
from tracelloc.heap.unreachable import keys_of
from tracelloc.model.blocks import Blocks
from tracelloc.model.codefiles import is_runtime
from tracelloc.model.events import EVENT_DTYPE, EVENT_SIZE_BITS, EventKind, Events
from tracelloc.model.figures import I64
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability.roots import RootWords
from tracelloc.record.reachability.search import PointerSearch
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.session import Session
from tracelloc.record.session.sessionstart import attach_to
from tracelloc.record.symbolization.symbolizer import Symbolizer

WARM_UP_S = 12.0  # From the load's beginning to the attach
PATIENCE_S = 60.0
MOST_EVENTS = 12_000_000  # A recording ends early when it has so many: half a gigabyte
SAMPLE_S = 1.0
SEARCH_S = 10  # From one search for pointers to the next
MOST_LOST = 100_000  # Blocks without pointers that one search may note
SITES = 4  # Classes of call sites, of which one leaks
SKIP_AFTER_S = 90  # From the program's beginning
_PR_SET_CHILD_SUBREAPER = 36


def descendants(pid: int) -> list[int]:
    """All processes below one, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, at = [pid], 0
    while at < len(found):
        found += sorted(children.get(found[at], []))
        at += 1
    return found[1:]


def end_all() -> None:
    """Ends whatever this process has begun, by process id."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for _ in range(20):
            left = descendants(os.getpid())
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            except ChildProcessError:
                return


def is_it(pid: int, wanted: str) -> bool:
    """Whether a process has this command name, or these words in its command line."""
    try:
        if Path(f"/proc/{pid}/comm").read_text().strip() == wanted:
            return True
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (OSError, UnicodeDecodeError):
        return False
    return ":" in wanted and wanted in line


def find_traced(program: RealProgram, main: int) -> int | None:
    """The process to trace, once it is there."""
    if program.traced:
        found = [pid for pid in descendants(main) if is_it(pid, program.traced)]
        return found[-1] if found else None
    try:
        command = Path(f"/proc/{main}/comm").read_text().strip()
    except OSError:
        return None
    return main if command not in ("bash", "sh", "runuser") else None


def anonymous_bytes(pid: int) -> int:
    """Resident anonymous memory; 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((row for row in status.splitlines() if row.startswith("RssAnon")), "x 0")
    return int(line.split()[1]) * 1024


class Stage:
    """A program and its load, in a directory that goes with them."""

    def __init__(
        self, program: RealProgram, directory: Path, port: int, skip: tuple[str, str] | None
    ) -> None:
        """``skip``: the call sites and the share of frees that are left out."""
        load = directory / "load"
        script = Path(__file__).with_name("load.py")
        load.write_text(f'#!/bin/sh\nexec /usr/bin/python3 {script} "$@"\n')
        load.chmod(0o755)
        directory.chmod(0o755)
        self._directory = directory
        self._environment = os.environ | {
            "DIR": str(directory), "PORT": str(port), "ORIGIN": str(port + 2),
            "NAMES": str(port + 3), "LOAD": str(load), "LC_ALL": "C.UTF-8",
        }  # fmt: skip
        self._log = (directory / "log.txt").open("wb")
        self._run(f"{load} origin {port + 2} 1")
        self._run(f"{load} answers {port + 3} 1")
        before, _, command = program.start.rpartition("exec ")
        self.skipped = directory / "skipped"
        if skip is not None:
            library = Builder(directory).c("skipfree", "-shared", "-fPIC")
            site, one_in = skip
            command = (
                f"env LD_PRELOAD={library} SKIP_SITE={site} SKIP_SITES={SITES} "
                f"SKIP_ONE_IN={one_in} SKIP_AFTER_S={SKIP_AFTER_S} "
                f"SKIP_LOG={self.skipped} {command}"
            )
        self.main = self._run(f"{before}exec {command}")
        time.sleep(2)
        self._run(program.load)

    def _run(self, script: str) -> int:
        return subprocess.Popen(
            ["/bin/bash", "-c", script], cwd=self._directory, env=self._environment,
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            start_new_session=True,
        ).pid  # fmt: skip

    def log(self) -> str:
        """The last words of all of them."""
        return (self._directory / "log.txt").read_text(errors="replace")[-2000:]


def record(pid: int, seconds: float, skipped: Path) -> RealRecording:
    """Traces a process for that long, or until it ends. ``skipped``: the log of frees left out."""
    taken: list[Events] = []
    apply = LiveTable.apply

    def noted(table: LiveTable, events: Events, **how: bool) -> None:
        taken.append(events.copy())
        apply(table, events, **how)

    LiveTable.apply = noted  # type: ignore[method-assign, assignment]
    session = attach_to(Process(pid), TraceConfig())
    samples: list[tuple[int, int]] = []
    searches: list[tuple[int, Blocks]] = []
    words = RootWords()
    try:
        while True:
            elapsed_ms = (time.monotonic_ns() - session.root.started_ns) // 1_000_000
            samples.append((elapsed_ms, anonymous_bytes(pid)))
            if elapsed_ms >= (len(searches) + 1) * SEARCH_S * 1000 and samples[-1][1]:
                searches.append((elapsed_ms, unreachable(session, pid, words)))
            full = session.root.heap.table.events > MOST_EVENTS
            if elapsed_ms > seconds * 1000 or not samples[-1][1] or full:
                break
            time.sleep(SAMPLE_S)
        events = np.concatenate([np.empty(0, EVENT_DTYPE), *taken])
        lost = lost_rows(events, [blocks for _, blocks in searches])
        leaked = leaked_rows(events, pid, skipped)
        searched_ms = np.array([elapsed_ms for elapsed_ms, _ in searches], np.int64)
        return _recording(session, events, np.array(samples), leaked, searched_ms, lost)
    finally:
        words.close()
        session.close()


def unreachable(session: Session, pid: int, words: RootWords) -> Blocks:
    """Old blocks that nothing in the process points to, nor the kernel for it."""
    with session._lock:
        blocks = session.root.heap.table.blocks()
    old = blocks.birth_ns + ASKED_AGE_S * 1_000_000_000 < time.monotonic_ns()
    try:
        blocks = blocks.select(old)
        process = Process(pid)
        found = PointerSearch(process, lambda: [blocks], root_words=lambda: words.read(process))
    except TracellocError:
        return Blocks.empty()
    return blocks.select(~found.are_reachable(blocks.address))


def lost_rows(events: Events, searches: list[Blocks]) -> tuple[I64, I64]:
    """(number of the search, row of the allocation) of each block that was unreachable."""
    rows, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    keys = keys_of(events["address"], events["time_ns"])
    order = np.argsort(keys)
    for number, blocks in enumerate(searches if len(keys) else []):
        wanted = keys_of(blocks.address, blocks.birth_ns)[:MOST_LOST]
        at = order[np.minimum(np.searchsorted(keys[order], wanted), len(order) - 1)]
        at = at[keys[at] == wanted]
        rows.append(at)
        numbers.append(np.full(len(at), number))
    return np.concatenate(numbers), np.concatenate(rows)


def leaked_rows(events: Events, pid: int, skipped: Path) -> tuple[I64, I64]:
    """The rows of allocations whose frees were left out, and when, CLOCK_MONOTONIC in ms."""
    if not skipped.exists():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    words = [line.split() for line in skipped.read_text().splitlines()]
    order = np.argsort(events["address"], kind="stable")
    addresses = events["address"][order]
    when_ms: dict[int, int] = {}
    for number, address, time_s in words:
        if int(number) != pid:
            continue
        low, high = np.searchsorted(addresses, [int(address, 16), int(address, 16) + 1])
        mine = order[low:high]
        kind = (events["size_tag"][mine] >> np.uint64(EVENT_SIZE_BITS)) & np.uint64(0xF)
        # It was never given out again.
        made = mine[np.isin(kind, (EventKind.ALLOC, EventKind.LATE_ALLOC))]
        # Blocks from before tracing began are in no row.
        when_ms |= dict.fromkeys(made[-1:].tolist(), round(float(time_s) * 1000))
    rows = sorted(when_ms)
    return np.array(rows, np.int64), np.array([when_ms[row] for row in rows], np.int64)


def _recording(
    session: Session, events: Events, samples: I64, leaked: tuple[I64, I64], searched_ms: I64,
    lost: tuple[I64, I64],
) -> RealRecording:  # fmt: skip
    root = session.root
    stacks = root.heap.stacks
    rows = [stacks.frames(index) or () for index in range(1, len(stacks))]
    flat = np.array([address for row in rows for address in row], np.uint64)
    address, frames = np.unique(flat, return_inverse=True)
    symbolizer = Symbolizer(root.space)
    symbolizer.prepare(address.tolist(), 60)
    # Of several functions that were inlined there, the innermost.
    named = [symbolizer.peek([each])[0] for each in address.tolist()]
    mappings = [root.space.find(int(each)) for each in address]
    return RealRecording(
        **RealRecording.events_of(events, root.started_ns),
        stack=stacks.indices(np.ascontiguousarray(events["stack_id"])).astype(np.uint32)
        * (events["stack_id"] != 0),
        depths=np.array([len(row) for row in rows], np.uint16),
        flags=np.array([int(stacks.flags(n)) for n in range(1, len(stacks))], np.uint16),
        frames=frames.astype(np.uint32),
        address=address,
        name=np.array([
            f"{frame.symbol or '?'} {Path(mapping.path).name if mapping else '?'}"
            for frame, mapping in zip(named, mappings, strict=True)
        ], "U"),
        in_runtime=np.array([m is not None and is_runtime(m.path) for m in mappings], np.bool_),
        anonymous_ms=samples[:, 0],
        anonymous_bytes=samples[:, 1],
        lost=np.array([session.snapshot().root.losses.events]),
        leaked=leaked[0],
        skipped_ms=leaked[1] - root.started_ns // 1_000_000,
        searched_ms=searched_ms,
        lost_search=lost[0],
        lost_row=lost[1],
    )  # fmt: skip


def main() -> None:
    name, seconds, port, file, *skip = sys.argv[1:]
    program = next(each for each in PROGRAMS if each.name == name)
    # So that what was begun is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"{name}: took too long"))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="corpus-") as directory:
        try:
            stage = Stage(program, Path(directory), int(port), (skip[0], skip[1]) if skip else None)
            time.sleep(WARM_UP_S)
            deadline_s = time.monotonic() + PATIENCE_S
            while (pid := find_traced(program, stage.main)) is None:
                if time.monotonic() > deadline_s:
                    sys.exit(f"{name}: nothing to trace\n{stage.log()}")
                time.sleep(0.5)
            recording = record(pid, float(seconds), stage.skipped)
            recording.save(Path(file))
            rate = len(recording.kind) / recording.seconds
            print(f"{name}: {recording.seconds:.0f} s, {rate:.0f} events/s, "
                  f"{len(recording.depths)} stacks, lost {recording.lost[0]}, "
                  f"leaked {len(recording.leaked)}")  # fmt: skip
        finally:
            end_all()


if __name__ == "__main__":
    main()
