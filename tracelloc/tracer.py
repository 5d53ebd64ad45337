"""Tracing from the terminal's side: reports on time, signals, one way to end."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from typing import Final

from tracelloc.capture import CaptureConfig
from tracelloc.errors import TargetError, TracellocError
from tracelloc.filters import Filters, read_rules, shipped_rules
from tracelloc.jsonlines import json_report
from tracelloc.options import Mode, Options
from tracelloc.procfs import Process
from tracelloc.report import losses_line, text_report
from tracelloc.session import Session
from tracelloc.snapshot import Snapshot
from tracelloc.symbols import Symbolizer
from tracelloc.text import printable
from tracelloc.units import NS_PER_S, format_duration, format_size
from tracelloc.view import Namer

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PROGRESS_S: Final = 10.0
"""Time between progress lines where standard error is no terminal."""


class Tracer:
    """One run of the command: text or JSON reports, or headless."""

    def __init__(self, process: Process, options: Options) -> None:
        """Raises UsageError for a bad filters file."""
        self._options = options
        self._process = process
        rules = shipped_rules() if options.use_filters else []
        if options.filters_path is not None:
            rules += read_rules(options.filters_path)
        self._session = Session(
            process,
            CaptureConfig(
                events_size_bytes=options.events_size_bytes,
                min_block_bytes=options.min_block_bytes,
                max_block_bytes=options.max_block_bytes,
                sample_bytes=options.sample_bytes,
            ),
            only_allocator=options.allocator,
            method=options.method,
            debug=options.debug,
        )
        self._namer = Namer(Symbolizer(self._session.space), Filters(rules))
        self._reports = 0
        self._stdout_open = True
        self._troubles: list[TracellocError] = []
        self._ending = False
        self._finishing = False
        self._write_files = False
        self._last_progress_s = 0.0
        self._progress_shown = False

    def run(self) -> None:
        """Traces until something ends it. Raises TracellocError."""
        wakeup = self._catch_signals()
        pidfd = self._open_pidfd()
        try:
            self._session.start()
            self._say(f"tracing {self._process.pid} ({printable(self._session.target.command)})…")
            try:
                self._loop(pidfd, wakeup)
            finally:
                self._session.stop()
            self._finish()
        finally:
            self._session.close()
            os.close(pidfd)

    def _open_pidfd(self) -> int:
        try:
            return os.pidfd_open(self._process.pid)
        except ProcessLookupError as error:
            raise TargetError(f"there is no process {self._process.pid}") from error

    def _catch_signals(self) -> socket.socket:
        """From here on signals only leave a byte to be read: nothing is ever interrupted."""
        receiver, sender = socket.socketpair()
        receiver.setblocking(False)
        sender.setblocking(False)
        self._sender = sender
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        for number in _ENDING:
            # nohup and the like: what the parent told us to ignore stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note_end)
        signal.signal(signal.SIGUSR1, self._note_write)
        return receiver

    def _note_end(self, _number: int, _frame: object) -> None:
        self._ending = True

    def _note_write(self, _number: int, _frame: object) -> None:
        self._write_files = True

    def _loop(self, pidfd: int, wakeup: socket.socket) -> None:
        options = self._options
        start = time.monotonic()
        end = start + options.duration_s if options.duration_s is not None else None
        next_report = start + options.interval_s
        while not self._ending:
            now = time.monotonic()
            if end is not None and now >= end:
                return
            if now >= next_report:
                self._tick()
                if self._is_done():
                    return
                # Reports that took too long are left out, not made up for.
                missed = (time.monotonic() - next_report) // options.interval_s
                next_report += options.interval_s * (1 + max(0.0, missed))
                continue
            until = next_report if end is None else min(next_report, end)
            signalled = wakeup.fileno()
            ready, _, _ = select.select([pidfd, signalled], [], [], max(0.0, until - now))
            if signalled in ready:
                wakeup.recv(4096)
            if self._write_files:
                self._write_files = False
                self._write_outputs(self._snapshot())
            if pidfd in ready:
                self._say(f"process {self._process.pid} has ended")
                return

    def _is_done(self) -> bool:
        count = self._options.count
        return not self._stdout_open or (count is not None and self._reports >= count)

    def _snapshot(self) -> Snapshot:
        return self._session.snapshot(self._options.top, self._options.min_age_ns)

    def _tick(self) -> None:
        snapshot = self._snapshot()
        if self._options.mode is Mode.HEADLESS:
            self._progress(snapshot)
        else:
            self._report(snapshot)

    def _finish(self) -> None:
        """The last report and the files, after the probes are gone."""
        self._finishing = True
        snapshot = self._snapshot()
        self._end_progress()
        if self._options.mode is not Mode.HEADLESS and not self._is_done():
            self._report(snapshot)
        self._write_outputs(snapshot)
        if self._options.mode is Mode.HEADLESS:
            self._say(f"{_summary(snapshot)}; {losses_line(snapshot)}")
        if self._troubles:
            raise self._troubles[-1]

    def _report(self, snapshot: Snapshot) -> None:
        if self._options.mode is Mode.JSON:
            text = json_report(snapshot, self._namer, self._options.top) + "\n"
        else:
            lines = text_report(snapshot, self._namer, self._options.top, self._options.min_age_ns)
            text = "".join(f"{line}\n" for line in lines)
        try:
            sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
            sys.stdout.flush()
        except BrokenPipeError:
            self._stdout_open = False
        except OSError as error:
            self._stdout_open = False
            self._note_trouble(
                TracellocError(f"standard output cannot be written: {error.strerror}")
            )
        else:
            self._reports += 1

    def _write_outputs(self, snapshot: Snapshot) -> None:
        for output in self._options.outputs:
            self._end_progress()
            try:
                output.write(output.exporter(snapshot, self._namer))
            except TracellocError as error:
                self._note_trouble(error)
            else:
                self._say(f"wrote {output.path}")

    def _note_trouble(self, error: TracellocError) -> None:
        """What can't be written must not keep the rest from being written."""
        self._troubles.append(error)
        if not self._finishing:
            self._say(f"error: {error}")

    def _progress(self, snapshot: Snapshot) -> None:
        line = f"{_summary(snapshot)}, {snapshot.losses.events} lost"
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if not terminal and now - self._last_progress_s < _PROGRESS_S:
            return
        self._last_progress_s = now
        if terminal:
            print(f"\rtracelloc: {line}\x1b[K", end="", file=sys.stderr, flush=True)
            self._progress_shown = True
        else:
            self._say(line)

    def _end_progress(self) -> None:
        if self._progress_shown:
            print(file=sys.stderr)
            self._progress_shown = False

    @staticmethod
    def _say(message: str) -> None:
        print(f"tracelloc: {message}", file=sys.stderr, flush=True)


def _summary(snapshot: Snapshot) -> str:
    elapsed_s = snapshot.elapsed_ns / NS_PER_S
    rate = snapshot.events / elapsed_s if elapsed_s > 0 else 0.0
    about = "" if snapshot.sample_bytes is None else "~"
    return (
        f"{format_duration(round(elapsed_s))} traced, {about}{format_size(snapshot.live_bytes)} "
        f"in {about}{snapshot.live_count} allocations from {snapshot.live_stacks} stacks, "
        f"{rate:,.0f} events/s"
    )
