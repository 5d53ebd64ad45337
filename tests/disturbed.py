"""Disturbs traces at their steps: one of tracelloc and the program is stopped or killed there.

    python -m tests.disturbed WAY EVERY BOOKS...

A step is a call that changes something in the program or in the kernel, from the beginning of a
trace until it is live, and from its end until nothing is left of it. Each step whose number is a
multiple of EVERY is tried with a program of its own for each disturbance. Afterwards, the program's
books (``books.c``) and the figures of a trace are equal, and it has no other descriptors and
mappings of ours than after a trace that nothing disturbed: the next one removes what a killed one
has left. Says what is not so, then how many were tried.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.harness import PATIENCE_S, PRELOADED, Target
from tracelloc.errors import TracellocError
from tracelloc.record.kernel import attach
from tracelloc.record.kernel.captureconfig import CaptureConfig, Method
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.follower import Follower
from tracelloc.record.session.sessionstart import attach_to
from tracelloc.record.sources.preloaded.holder import AreaHolder
from tracelloc.record.sources.preloaded.sharedarea import SharedArea
from tracelloc.system import syscalls

WAYS: Final[dict[str, Callable[[], TraceConfig]]] = {
    "probes": TraceConfig,
    "perf": lambda: TraceConfig(method=Method.PERF),
    "follow": lambda: TraceConfig(CaptureConfig(follow=True)),
    "inject": lambda: TraceConfig(injects=True, use_library=True, without_probes=True),
    "preloaded": lambda: TraceConfig(use_library=True),
}
STEPS: Final = (
    *((ptrace, name) for name in (
        "seize", "interrupt", "set_registers", "set_signal_mask", "resume_to_call", "resume",
        "listen", "keep_call", "detach")),
    (syscalls, "bpf"), (syscalls, "perf_event_open"), (attach, "_close"), (os, "pwrite"),
    (AreaHolder, "_hold"), (AreaHolder, "release"),
    *((SharedArea, name) for name in ("set_up", "switch_on", "begin_leaving", "switch_off")),
)  # fmt: skip
DISTURBANCES: Final = [
    (whom, number)
    for whom in ("tracelloc", "program")
    for number in (signal.SIGSTOP, signal.SIGKILL)
]
WORKERS: Final = 6
STOPPED_S: Final = 0.02  # Long enough for many steps of the other one
Books = dict[str, list[int]]


class Steps:
    """Counts steps while a trace begins and ends; something happens at one of them."""

    def __init__(self, last: int, act: Callable[[], None]) -> None:
        self.count = 0
        self._is_on, self._last, self._act = False, last, act
        for owner, name in STEPS:
            setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self.count += self._is_on
            if self._is_on and self.count == self._last:
                self._act()
            return function(*arguments, **more)

        return call

    @contextmanager
    def counting(self) -> Iterator[None]:
        self._is_on = True
        yield
        self._is_on = False


def trace(way: str, pid: int, steps: Steps, ask: Callable[[str], None]) -> None:
    """Traces the program while it does something; says the figures, then the number of steps."""
    follower = Follower() if way == "follow" else None
    with steps.counting():
        session = attach_to(Process(pid), WAYS[way]())
        try:
            if follower is not None:
                follower.attach(pid)
                follower.follow(session)
        except BaseException:
            session.close()
            raise
    ask("traced")
    found = session.snapshot().root
    losses = found.losses
    unmatched = losses.oddities.unmatched_frees
    figures = [found.live_count, found.live_bytes, unmatched, losses.events]
    ask(json.dumps(figures))
    with steps.counting():
        if follower is not None:
            follower.stop()
        session.close()
    ask(str(steps.count))


def state_of(pid: int) -> str:
    """The state of a process, a letter."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Traced:
    """A trace in a process of its own, disturbed at a step; 0: at none."""

    def __init__(self, way: str, program: Target, step: int = 0, whom: str = "", number: int = 0):
        (self._hear, child_says), (child_hears, self._say) = os.pipe(), os.pipe()
        acted, child_acts = os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(self._hear)
            os.close(self._say)
            signal.alarm(int(2 * PATIENCE_S))

            def act() -> None:
                os.kill(os.getpid() if whom == "tracelloc" else program.pid, number)
                os.write(child_acts, b"\n")

            def ask(line: str) -> None:
                os.write(child_says, f"{line}\n".encode())
                os.read(child_hears, 1)

            try:
                trace(way, program.pid, Steps(step, act), ask)
            except TracellocError as error:
                os._exit(3 if "\n" in str(error) else 2)
            except BaseException:  # noqa: BLE001 - shown, and counted by who waits
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        for descriptor in (child_says, child_hears, child_acts):
            os.close(descriptor)
        self.status, self.went_on = 0, False
        self.steps = 0  # If it came to its end
        self._stopped = "Tt" if way == "follow" else "T"
        is_stop = (whom, number) == ("program", signal.SIGSTOP)
        self._watchers = [
            threading.Thread(target=self._watch),
            threading.Thread(target=self._let_go_on, args=(program.pid if is_stop else 0, acted)),
        ]
        for each in self._watchers:
            each.start()

    def _let_go_on(self, pid: int, acted: int) -> None:
        """Lets the program go on once it is stopped; notes if it never is."""
        if os.read(acted, 1) and pid:
            end_s = time.monotonic() + PATIENCE_S / 4
            # Stopped by the signal, not by tracelloc, which may follow it.
            while not (is_stopped := state_of(pid) in self._stopped) and time.monotonic() < end_s:
                time.sleep(STOPPED_S)
            self.went_on = not is_stopped
            os.kill(pid, signal.SIGCONT)
        os.close(acted)

    def _watch(self) -> None:
        """Lets it go on each time that it is stopped, and waits for its end."""
        while True:
            _, status = os.waitpid(self._child, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                self.status = os.waitstatus_to_exitcode(status)
                return
            time.sleep(STOPPED_S)
            os.kill(self._child, signal.SIGCONT)

    def hear(self) -> str:
        """Its next line; empty if it has ended."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._hear, 1)
            if not byte:
                return ""
            line += byte
        return line.decode().strip()

    def go_on(self) -> None:
        with suppress(BrokenPipeError):
            os.write(self._say, b"\n")

    def end(self) -> None:
        for each in self._watchers:
            each.join()
        os.close(self._hear)
        os.close(self._say)


def figures_of(way: str, program: Target, before: Books, *disturbance: Any) -> tuple[Traced, str]:
    """Has the program run while it is traced. Returns the trace, ended, and what is wrong."""
    traced, wrong = Traced(way, program, *disturbance), ""
    if traced.hear():
        books = None
        with suppress(EOFError, BrokenPipeError):
            books = json.loads(program.ask("run"))
        traced.go_on()
        found = json.loads(traced.hear() or "null")
        if books and found:
            live, size_bytes, unmatched, lost = found
            earlier, now = (sum(n for n, _ in each.values()) for each in (before, books))
            is_right = lost == 0 and live == now - (earlier - unmatched)
            is_right &= bool(before) or size_bytes == sum(size for _, size in books.values())
            wrong = "" if is_right else f"{found} for {earlier} and {now}"
        before.update(books or {})
        traced.go_on()
        traced.steps = int(traced.hear() or 0)
        traced.go_on()
    traced.end()
    return traced, wrong


def started(way: str, command: Sequence[str]) -> Target:
    preloaded = {"env": {**os.environ, "LD_PRELOAD": str(PRELOADED)}} if way == "preloaded" else {}
    return Target(command, **preloaded)


def ours(pid: int) -> list[str]:
    """A process's descriptors and mappings that are ours."""
    fds = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    paths = (*fds, *(line.split(maxsplit=5)[-1].strip() for line in maps))
    return sorted(path for path in paths if path.startswith("/memfd:"))


def problem(
    way: str, command: Sequence[str], kept: list[str], step: int, whom: str, number: int
) -> str:
    """Tries one disturbance at one step. Returns what is wrong afterwards; empty: nothing."""
    with started(way, command) as program:
        books: Books = {}
        traced, wrong = figures_of(way, program, books, step, whom, number)
        if 0 < traced.steps < step:
            return wrong  # there were not so many
        if traced.went_on:
            return "it went on by itself"
        if (whom, number) == ("program", signal.SIGKILL):
            return "" if traced.status in (0, 2) else f"status {traced.status}"
        is_killed = (whom, number) == ("tracelloc", signal.SIGKILL)
        if traced.status != (-signal.SIGKILL if is_killed else 0):
            return f"status {traced.status}"
        if is_killed and not wrong:
            books.update(json.loads(program.ask("run")))
            traced, wrong = figures_of(way, program, books)
            wrong = wrong or (f"then status {traced.status}" if traced.status else "")
        program.ask("run")
        if not wrong and (left := ours(program.pid)) != kept:
            wrong = f"it has {left}, not {kept}"
        return wrong or ("" if not program.end() else "the program failed")


def main() -> None:
    way, every, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    with started(way, command) as program:
        traced, wrong = figures_of(way, program, {})
        assert (traced.status, wrong) == (0, "")
        kept = ours(program.pid)
    steps = range(every, traced.steps + 1, every)
    cases = [(step, *each) for step in steps for each in DISTURBANCES]
    workers = []
    for share in range(WORKERS):
        worker = os.fork()
        if not worker:
            for step, whom, number in cases[share::WORKERS]:
                wrong = problem(way, command, kept, step, whom, number)
                if wrong:
                    what = f"{way}: {signal.Signals(number).name} of the {whom} at step {step}"
                    os.write(1, f"{what}: {wrong}\n".encode())
            os._exit(0)
        workers.append(worker)
    assert [os.waitpid(worker, 0)[1] for worker in workers] == [0] * WORKERS
    os.write(1, f"{len(cases)} cases of {traced.steps} steps\n".encode())


if __name__ == "__main__":
    main()
