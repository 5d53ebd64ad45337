"""Checks for leaks: ``run --leaks`` at the end of a program, and each test of a pytest.

pytest's plug-in (``tracelloc/testing/measuring.py``) marks the beginning and end of each test among
the events, and asks for the figures of some tests at a time.
"""

import json
import math
import os
import select
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import numpy as np

from tracelloc.architecture import machine_name
from tracelloc.command.commandline import Options
from tracelloc.command.lifecycle import LaunchStart, start_of
from tracelloc.command.options import completed
from tracelloc.command.outputs import Messages
from tracelloc.command.run import Run, trace
from tracelloc.errors import TracellocError
from tracelloc.model.blocks import BlockSum
from tracelloc.model.frames import is_runtime_frame
from tracelloc.model.lostmemory import ExitLeaks, LeakedStack
from tracelloc.record.kernel.capabilities import check_machine, raise_file_limit
from tracelloc.record.session.program import TracedProgram
from tracelloc.record.sources.preloaded.sharedarea import preloaded_library
from tracelloc.show.alerts.rules import FAILED_STATUS
from tracelloc.show.alerts.suppressions import Matcher, is_matched, read_patterns
from tracelloc.show.export import checks
from tracelloc.show.export.outputfile import check_output, filled_in, write_output
from tracelloc.show.filters import NamedStack
from tracelloc.show.filters.files import load_filters
from tracelloc.show.presentation.calltree import shown_frames
from tracelloc.show.presentation.naming import frame_name
from tracelloc.show.report.pointers import LeakReport, NamedLeak, joined_leaks, leak_report_lines
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.startup import STARTUP
from tracelloc.system.invoker import effective_user
from tracelloc.system.syscalls import closed_after
from tracelloc.testing import SEARCH, VARIABLE
from tracelloc.text import printable

_LOOK_S: Final = 0.5
# How long processes that outlive the first one are waited for: they may be about to end.
_OUTLIVING_S: Final = 5.0
_UNCHECKED_STATUS: Final = 1
# How long a program may wait for tracelloc, on a busy machine, before its figures are incomplete;
# and how long names may take: without them, a report is worth little.
_STALL_S: Final = 60.0
_PATIENCE_S: Final = 120.0


class LeakCheck:
    """The front-end of ``run --leaks``: reports leaks of all processes when they have ended."""

    def __init__(
        self,
        suppressions: Sequence[Path],
        top: int,
        *,
        sarif: Path | None = None,
        junit: Path | None = None,
        log: Path | None = None,
        at: int | None = None,
        every_s: float | None = None,
    ) -> None:
        """``at``: a signal for a check; ``every_s``: time between checks. Raises TracellocError."""
        self.messages = Messages()
        self.wishes = () if at is None else (at,)
        self._every_s = math.inf if every_s is None else every_s
        self._has_leaks = self._has_names = False
        self._running: dict[int, LeakReport] = {}  # The last checks of processes that ran
        self._files = {sarif: checks.sarif, junit: checks.junit, log: checks.ctest_log}
        self._top = top
        self._patterns = read_patterns(suppressions)
        for path in filter(None, self._files):
            check_output(path)

    def show(self, run: Run) -> None:
        """Returns at the end of all processes, soon after that of the first, or on a signal."""
        run.answers |= dict.fromkeys(self.wishes, partial(self._check_running, run))
        due_s, last_s = time.monotonic() + self._every_s, math.inf
        while not run.signals.is_ending:
            now_s = time.monotonic()
            if run.session.root.target.has_ended and last_s == math.inf:
                last_s = now_s + _OUTLIVING_S
            if run.wait(min(now_s + _LOOK_S, due_s, last_s)):
                return
            now_s = time.monotonic()
            if now_s >= min(due_s, last_s):
                due_s = now_s + self._every_s
                self._check_running(run)
            if now_s >= last_s:
                return

    def _check_running(self, run: Run) -> None:
        """Reports what each process has leaked by now."""
        for one in run.snapshot().processes:
            if one.target.has_ended:
                continue
            try:
                found = run.session.find_leaks(one.target.number)
            except TracellocError as error:
                if not run.session.processes.tracee_of(one.target.number).process.exists():
                    continue
                found = ExitLeaks(problem=str(error))
            report = self._report(run, one, found, is_end=False)
            self._running[one.target.number] = report
            _print(leak_report_lines(report, self._top))

    def _report(
        self, run: Run, snapshot: Snapshot, found: ExitLeaks, *, is_end: bool = True
    ) -> LeakReport:
        if found.stacks and not self._has_names:
            self._has_names = True
            filters, warnings = load_filters()
            run.namers = run.namers.with_filters(filters)
            for warning in warnings:
                self.messages.say(f"warning: {warning}")
        run.namers.patience_s = _PATIENCE_S
        leaks, known = _unknown_leaks(run, snapshot, found, self._patterns)
        self._has_leaks |= bool(leaks)
        return LeakReport(snapshot.target, found, leaks, known, None if is_end else time.time())

    def finish(self, run: Run, trace: TraceSnapshot) -> None:
        """Reports the leaks, and decides the exit status."""
        reports = []
        for one in trace.processes:
            report = self._report(run, one, run.session.leaks_at_end(one.target.number))
            before = self._running.get(one.target.number) if report.found.problem else None
            if before is None:
                _print(leak_report_lines(report, self._top))
            reports.append(before or report)
        checked = sum(not report.found.problem for report in reports)
        count = len(reports) + trace.untraced_count
        if count > 1:
            _print([f"==> {count:,} processes, {checked:,} checked"])
        if os.environ.get("GITHUB_ACTIONS"):
            _print(checks.github_lines(reports))
        if self._has_leaks or checked < count:
            run.status = FAILED_STATUS if self._has_leaks else _UNCHECKED_STATUS
        target = trace.root.target
        name = printable(target.command).replace("/", "_")
        for path, formatted in self._files.items():
            if path is not None:
                file = filled_in(path, target.pid, trace.root.time_s, name)
                write_output(file, [formatted(reports).encode(errors="replace")])


def _print(lines: Iterable[str]) -> None:
    """Writes lines to standard error: standard output is the program's."""
    text = "".join(f"{line}\n" for line in lines)
    sys.stderr.write(text.encode(errors="backslashreplace").decode(errors="replace"))
    sys.stderr.flush()


def check_leaks(given: Options, check: LeakCheck, *, children: bool) -> int:
    """Runs a program and reports what it leaked. Returns the exit status. Raises TracellocError.

    ``children``: whether all descendants are checked, too.
    """
    check_machine(machine_name())
    STARTUP.is_quiet = True  # The program's output is mixed with tracelloc's
    options = completed(given.but(top=0, use_filters=False))  # names may not be needed
    config = replace(
        options.trace.with_library_only, checks_exit=True, reads_memory=False, max_stall_s=_STALL_S
    )
    options = options.but(trace=replace(config, capture=replace(config.capture, follow=children)))
    return trace(options, start_of(options), check, *check.wishes)


_ALLOCATOR: Final = "PYTHONMALLOC"  # Has Python take each object from malloc, so that it is seen
_MOST_NAMED: Final = 64  # Stacks of the peak that are named; equal lines of source become one
_MOST_LISTED: Final = 10
_UNITS: Final = {"bytes", "blocks", "indirect_bytes"}
# The functions that call a test, with and without a known code object (`testing/apart.pyx`).
_OUTERMOST: Final = "tracelloc_enter_test", "call_far_down"
# Words of a block that may contain the type of a Python object, which the plug-in knows.
_HEAD_WORDS: Final = 6


class TestRun:
    """A front-end that answers the requests of a pytest process until that ends."""

    __test__ = False

    def __init__(self, channel: socket.socket, patterns: Sequence[Matcher]) -> None:
        """``patterns``: match the call stacks of known leaks."""
        self.messages = Messages()
        self._channel, self._patterns = channel, patterns
        self._received = b""
        self._is_open = True

    def show(self, run: Run) -> None:
        # Who started the program, as pytest-xdist does, waits until their other ends are closed.
        with closed_after(os.open(os.devnull, os.O_RDWR)) as nothing:
            for number in (0, 1):
                os.dup2(nothing, number)
        ends, run.namers.patience_s = run.session.end_fd, _PATIENCE_S
        while not run.signals.is_ending:
            requests = [self._channel.fileno()] if self._is_open else []
            ready, _, _ = select.select([ends, run.signals.fileno(), *requests], [], [])
            if run.signals.fileno() in ready:
                run.signals.clear()
                run.answer_signals()
            if self._channel.fileno() in ready:
                self._answer(run)
            if ends in ready:
                return

    def finish(self, run: Run, trace: TraceSnapshot) -> None:
        """Does nothing, as pytest itself reports."""

    def _answer(self, run: Run) -> None:
        data = self._channel.recv(1 << 16)
        self._is_open = bool(data)
        *requests, self._received = (self._received + data).split(b"\n")
        for line in requests:
            request, number = line.split()
            reply = self._searched(run) if request == SEARCH else self._measured(run)
            self._channel.sendall(json.dumps({"number": int(number), **reply}).encode() + b"\n")

    def _measured(self, run: Run) -> dict[str, Any]:
        """Returns the figures of new tests, by their numbers, and why some may be incomplete."""
        ended, problem = run.session.parts.take_figures()
        reply: dict[str, Any] = {}
        for number, figures in ended.items():
            one = reply[str(number)] = {
                "peak_bytes": figures.peak_bytes,
                "allocated_bytes": figures.allocated_bytes,
                "allocated_blocks": figures.allocated_count,
                "live_bytes": figures.live_bytes,
                "live_blocks": figures.live_count,
            }
            if figures.at_peak:  # above the limit
                one["at_peak"] = _at_peak(run, figures.at_peak[:_MOST_NAMED])
        return {"tests": reply, "problem": problem}

    def _searched(self, run: Run) -> dict[str, Any]:
        """Returns the leaks since the last search by the numbers of tests, or a problem."""
        try:
            found = run.session.find_leaks(0)
        except TracellocError as error:
            return {"problem": str(error)}
        if found.problem or not found.stacks:
            return {"problem": found.problem} if found.problem else {}
        run.session.parts.store_stacks({leak.stack for leak in found.stacks})
        snapshot, process = run.session.snapshot().root, run.session.root.process
        leaks: dict[str, list[dict[str, Any]]] = {}
        for one in _unknown_leaks(run, snapshot, found, self._patterns)[0]:
            head = process.read_memory(one.leak.address, 8 * _HEAD_WORDS)
            leaks.setdefault(str(one.leak.part), []).append({
                **_sum(one.leak.blocks),
                "indirect_bytes": one.leak.indirect.size_bytes,
                "head": np.frombuffer(head[: len(head) & ~7], np.uint64).tolist(),
                "stack": _frames(one.stack),
            })  # fmt: skip
        return {"leaks": {part: _joined(some) for part, some in leaks.items()}}


def _named(run: Run, snapshot: Snapshot, leaks: Sequence[LeakedStack]) -> Iterator[NamedLeak]:
    namer = run.namers.namer_of(snapshot.target)
    namer.prepare(snapshot, [leak.stack for leak in leaks], namer.patience_s)
    return (NamedLeak(leak, namer.stack(snapshot, leak.stack)) for leak in leaks)


def _unknown_leaks(
    run: Run, snapshot: Snapshot, found: ExitLeaks, known: Sequence[Matcher]
) -> tuple[Sequence[NamedLeak], BlockSum]:
    """Returns the leaks that no pattern matches, and the blocks of the others."""
    leaks, suppressed = [], BlockSum()
    for one in _named(run, snapshot, found.stacks):
        if is_matched(one.stack, known):
            suppressed += one.leak.blocks
        else:
            leaks.append(one)
    return joined_leaks(leaks), suppressed


def _at_peak(run: Run, stacks: Sequence[tuple[int, BlockSum]]) -> list[dict[str, Any]]:
    run.session.parts.store_stacks({stack for stack, _ in stacks})
    sums = [LeakedStack(stack, blocks, BlockSum()) for stack, blocks in stacks]
    named = joined_leaks(_named(run, run.session.snapshot().root, sums))
    found = ({**_sum(one.leak.blocks), "stack": _frames(one.stack)} for one in named)
    return _joined(found)[:_MOST_LISTED]


def _joined(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins records whose shown stacks are equal; most bytes first."""
    joined: dict[str, dict[str, Any]] = {}
    for one in found:
        same = joined.setdefault(json.dumps(one["stack"]), one)
        if same is not one:
            for unit in _UNITS & same.keys():
                same[unit] += one[unit]
    return sorted(joined.values(), key=lambda one: -one["bytes"])


def _sum(blocks: BlockSum) -> dict[str, int]:
    return {"bytes": blocks.size_bytes, "blocks": blocks.count}


def _frames(stack: NamedStack) -> list[dict[str, Any]]:
    shown = list(shown_frames(stack))
    if stack.frames and shown and shown[0][0].startswith("["):
        # Of collapsed frames, the innermost one says most.
        shown.insert(0, (frame_name(stack.frames[0]), stack.frames[0]))
    within = list(takewhile(lambda one: one[1].symbol not in _OUTERMOST, shown))
    if shown and len(within) < len(shown) and is_runtime_frame(shown[-1][1].address):
        within.append(shown[-1])  # The test's own line
    return [
        {"function": name, "file": frame.file, "line": frame.line, "module": frame.module}
        for name, frame in within
    ]


def serve_tests(given: Options, suppressions: Iterable[Path]) -> int:
    """Runs a pytest whose plug-in asks. Returns its exit status. Raises TracellocError."""
    check_machine(machine_name())
    STARTUP.is_quiet = True
    options = completed(given.but(top=0))
    patterns = read_patterns(suppressions)
    channel, theirs = socket.socketpair()
    theirs.set_inheritable(True)
    added = {} if _ALLOCATOR in os.environ else {_ALLOCATOR: "malloc"}
    program = TracedProgram(
        options.command,
        effective_user(),
        raise_file_limit(),
        preloaded=preloaded_library(),
        variables={VARIABLE: " ".join([str(theirs.fileno()), *added]), **added},
    )
    config = replace(
        options.trace.with_library_only, in_parts=True, reads_memory=False, max_stall_s=_STALL_S
    )
    start = LaunchStart(program)
    return trace(options.but(trace=config), start, TestRun(channel, patterns))
