"""Tracing from the terminal's side: reports on time, signals, one way to end."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelloc.caller import caller
from tracelloc.capture.bpf import CaptureConfig
from tracelloc.command.messages import Messages
from tracelloc.command.options import Mode, Options
from tracelloc.command.pools import load_pools, signatures_of
from tracelloc.command.watch import FAILED_STATUS, Watch
from tracelloc.errors import TargetError, TracellocError
from tracelloc.filters import load_filters
from tracelloc.report.jsonlines import json_report
from tracelloc.report.profile import Profile, Progress, difference, profile_of
from tracelloc.report.text import losses_line, text_report, traced_line
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.symbols import SourceMap, Symbolizer
from tracelloc.target.allocators import Selection
from tracelloc.target.found import found_lines, managed_heap
from tracelloc.target.procfs import Process
from tracelloc.text import printable
from tracelloc.tracing.session import Session
from tracelloc.units import format_duration, format_size
from tracelloc.unwinding.source import NO_INFORMATION
from tracelloc.views.naming import LAST_PATIENCE_S, Namer
from tracelloc.watching.suppressions import read_suppressions

if TYPE_CHECKING:
    from tracelloc.live.sharing import Sharing

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NAMES_PROGRESS_S: Final = 1.0
"""How long names may take before it is said that they do."""


class Tracer:
    """One run of the command: text or JSON reports, or headless."""

    SESSION: type[Session] = Session

    def __init__(self, process: Process, options: Options) -> None:
        """Raises UsageError for a bad filters file."""
        self._options = options
        self._process = process
        self._messages = self._make_messages()
        filters, self._warnings = load_filters(
            options.filters_paths, options.filter_groups, standing=options.use_filters
        )
        pools, warnings = load_pools(options.allocators_paths, caller())
        self._warnings = [*self._warnings, *warnings]
        self._session = self.SESSION(
            process,
            CaptureConfig(
                events_size_bytes=options.events_size_bytes,
                spill_entries=options.spill_entries,
                min_block_bytes=options.min_block_bytes,
                max_block_bytes=options.max_block_bytes,
                sample_bytes=options.sample_bytes,
                use_rows=options.use_rows,
                max_frames=options.max_frames,
                trace_mappings=options.mappings,
                follow=options.follow,
                signatures=signatures_of(pools),
            ),
            selection=Selection(options.allocator, pools, options.mappings),
            soon=options.soon,
            method=options.method,
            debug=options.debug,
        )
        self._session.say = self._messages.say_aside
        self._symbolizer = Symbolizer(self._session.root.space, SourceMap(options.sources))
        self._namer = Namer(self._symbolizer, filters, short_names=options.short_names)
        self._sharing = self._prepare_sharing()
        self._watch = Watch(options.watch, self._messages.say_aside)
        self._allocators_said = 0
        self._reports = 0
        self._stdout_open = True
        self._troubles: list[TracellocError] = []
        self._ending = False
        self._finishing = False
        self._write_files = False
        self._set_mark = False
        self._marks: dict[int, Snapshot] = {}
        """By process, when the mark was set."""

    def _make_messages(self) -> Messages:
        return Messages()

    def _prepare_sharing(self) -> Sharing | None:
        """The endpoint and the push, with names of their own: they have their own threads."""
        options = self._options
        if options.listen is None and options.push is None:
            return None
        from tracelloc.live.sharing import Sharing  # noqa: PLC0415 - slow to import, rarely used

        filters, _ = load_filters(
            options.filters_paths, options.filter_groups, standing=options.use_filters
        )
        namer = Namer(self._symbolizer, filters, short_names=options.short_names)
        suppressions = read_suppressions(options.watch.suppressions)
        session = self._session
        return Sharing(
            listen=options.listen,
            push=options.push,
            target=self._session.root.target,
            take=lambda: suppressions.apply(session.snapshot(), namer),
            namer=namer,
            say=self._messages.say_aside,
        )

    def run(self) -> None:
        """Traces until something ends it. Raises TracellocError."""
        wakeup = self._catch_signals()
        pidfd = self._open_end()
        try:
            self._start()
            for warning in self._warnings:
                self._messages.say(f"warning: {warning}")
            command = printable(self._session.root.target.command)
            self._messages.say(f"tracing {self._process.pid} ({command})…")
            self._say_what_is_traced()
            managed = managed_heap(m.path for m in self._session.root.space.modules)
            if managed is not None:
                self._messages.say(f"warning: {managed}")
            self._say_where_stacks_may_break()
            try:
                if self._sharing is not None:
                    self._sharing.start()
                self._loop(pidfd, wakeup)
            finally:
                self._stop()
                if self._sharing is not None:
                    self._sharing.close()
            self._finish()
        finally:
            if self._sharing is not None:
                self._sharing.close()
            self._watch.close()
            self._close()
            os.close(pidfd)

    def _say_what_is_traced(self) -> None:
        """The allocators that this has not been said of yet."""
        found = self._session.root.found
        new, self._allocators_said = found[self._allocators_said :], len(found)
        for line in found_lines(new):
            self._messages.say(line)

    def _say_where_stacks_may_break(self) -> None:
        for path, method in self._session.root.source.methods().items():
            if self._options.use_rows and method == NO_INFORMATION:
                self._messages.say(f"stacks through {printable(path)}: {method}")

    def _start(self) -> None:
        self._session.start()

    def _stop(self) -> None:
        self._session.stop()

    def _close(self) -> None:
        self._symbolizer.close()
        self._session.close()

    def _open_end(self) -> int:
        """A descriptor that is readable when what is traced has ended."""
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
        if self._options.follow:
            # While we are stopped, whatever forks would be, too.
            signal.signal(signal.SIGTSTP, self._refuse_to_stop)
        signal.signal(signal.SIGUSR1, self._note_write)
        signal.signal(signal.SIGUSR2, self._note_mark)
        return receiver

    def _note_end(self, _number: int, _frame: object) -> None:
        self._ending = True

    def _refuse_to_stop(self, _number: int, _frame: object) -> None:
        self._messages.say_aside("can't be suspended while processes are followed")

    def _note_mark(self, _number: int, _frame: object) -> None:
        self._set_mark = True

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
            if self._set_mark:
                self._set_mark = False
                self._mark(self._snapshot())
            if self._write_files:
                self._write_files = False
                self._write_outputs(self._snapshot())
            if pidfd in ready:
                self._messages.say(f"process {self._process.pid} has ended")
                return

    def _mark(self, snapshot: Snapshot) -> None:
        self._marks = {one.target.pid: one for one, _ in self._watched_for(snapshot)}
        self._messages.say("marked: reports say what has come since")

    def _is_done(self) -> bool:
        count = self._options.count
        return not self._stdout_open or (count is not None and self._reports >= count)

    def _snapshot(self) -> Snapshot:
        options = self._options
        snapshot = self._session.snapshot(options.top, options.min_age_ns, options.wanted)
        return self._watch.suppressions.apply(snapshot, self._namer)

    def _tick(self) -> None:
        snapshot = self._snapshot()
        self._say_what_is_traced()
        if self._options.mode.reports:
            self._report(snapshot)
        else:
            self._progress(snapshot)
        self._look(snapshot)

    def _look(self, snapshot: Snapshot) -> None:
        """What the user watches for; may end tracing."""
        for one, namer in self._watched_for(snapshot):
            if self._watch.look(one, namer):
                self._ending = True

    def _watched_for(self, snapshot: Snapshot) -> list[tuple[Snapshot, Namer]]:
        """Each process by itself."""
        return [(snapshot, self._namer)]

    @property
    def exit_status(self) -> int:
        """Of a run that has ended without an error."""
        return FAILED_STATUS if self._watch.broken is not None else 0

    def _finish(self) -> None:
        """The last report and the files, after the probes are gone."""
        self._finishing = True
        self._let_names_take_longer()
        snapshot = self._snapshot()
        self._messages.end_progress()
        if self._options.mode.reports and not self._is_done():
            self._report(snapshot)
        self._write_outputs(snapshot)
        if not self._options.mode.reports:
            self._messages.say(f"{traced_line(snapshot)}; {losses_line(snapshot)}")
        self._look(snapshot)
        self._watch.close()
        if self._watch.broken is not None:
            self._messages.say(f"--fail-if: {self._watch.broken}")
        if self._troubles:
            raise self._troubles[-1]

    def _let_names_take_longer(self) -> None:
        """What the last report does not know yet, no later one will."""
        self._namer.patience_s = LAST_PATIENCE_S

    def _text_of(self, snapshot: Snapshot) -> str:
        """A report."""
        options, mark = self._options, self._marks.get(snapshot.target.pid)
        top, show = options.top, options.show
        if options.mode is Mode.JSON:
            return json_report(snapshot, self._namer, top, mark, show=show) + "\n"
        lines = text_report(snapshot, self._namer, top, options.min_age_ns, mark, show=show)
        return "".join(f"{line}\n" for line in lines)

    def _report(self, snapshot: Snapshot) -> None:
        text = self._text_of(snapshot)
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

    def _await_names(self, snapshot: Snapshot, *, freed: bool) -> None:
        """Names and lines of everything, said to take its time if it does."""
        indices = [stat.index for stat in snapshot.top_stacks(freed=freed)]
        start = time.monotonic()
        while not self._namer.prepare(snapshot, indices, _NAMES_PROGRESS_S):
            took = format_duration(round(time.monotonic() - start))
            self._messages.show_progress(
                f"reading symbols, {self._namer.waiting} addresses left, {took}"
            )

    def _write_outputs(self, snapshot: Snapshot) -> None:
        outputs = [o.at(self._process.pid, snapshot.time_s) for o in self._options.outputs]
        if not outputs:
            return
        freed = any(output.needs_freed for output in outputs)
        self._await_names(snapshot, freed=freed)
        start = time.monotonic()

        def note(done: int, count: int) -> None:
            if time.monotonic() - start > _NAMES_PROGRESS_S:
                self._messages.show_progress(f"naming stacks, {done} of {count}")

        profile = self._profile_of(snapshot, freed=freed, progress=note)
        for output in outputs:
            try:
                output.write(self._watched(output.content(profile), output.path))
            except TracellocError as error:
                self._messages.end_progress()
                self._note_trouble(error)
            else:
                self._messages.end_progress()
                self._messages.say(f"wrote {printable(str(output.path))}")

    def _profile_of(self, snapshot: Snapshot, *, freed: bool, progress: Progress) -> Profile:
        """What files are written from."""
        profile = profile_of(snapshot, self._namer, freed=freed, progress=progress)
        mark = self._marks.get(snapshot.target.pid)
        if mark is None or not self._options.since_mark:
            return profile
        return difference(profile_of(mark, self._namer, freed=freed), profile)

    def _watched(self, pieces: Iterable[bytes], path: Path) -> Iterator[bytes]:
        """The same pieces; said to take their time if they do."""
        start, size_bytes = time.monotonic(), 0
        for piece in pieces:
            size_bytes += len(piece)
            if time.monotonic() - start > _NAMES_PROGRESS_S:
                name = printable(str(path))
                self._messages.show_progress(f"writing {name}, {format_size(size_bytes)} so far")
            yield piece

    def _note_trouble(self, error: TracellocError) -> None:
        """What can't be written must not keep the rest from being written."""
        self._troubles.append(error)
        if not self._finishing:
            self._messages.say(f"error: {error}")

    def _progress(self, snapshot: Snapshot) -> None:
        self._messages.show_progress(f"{traced_line(snapshot)}, {snapshot.losses.events} lost")
