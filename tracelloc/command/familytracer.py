"""A run with ``--follow``: reports and files about a process and all its descendants."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from tracelloc.command.options import Mode, Options
from tracelloc.command.tracer import Tracer
from tracelloc.report.combined import combined
from tracelloc.report.jsonlines import report_of
from tracelloc.report.profile import Profile, Progress, profile_of
from tracelloc.report.text import text_report
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.symbols import SourceMap, Symbolizer
from tracelloc.target.procfs import Process
from tracelloc.text import printable
from tracelloc.tracing.family import FamilySession
from tracelloc.tracing.follower import Follower
from tracelloc.tracing.tracee import Tracee
from tracelloc.units import format_size, plural
from tracelloc.views.naming import Namer

Member = tuple[Tracee, Snapshot]


class FamilyTracer(Tracer):
    """Text or JSON reports, or headless."""

    SESSION = FamilySession

    def __init__(self, process: Process, options: Options) -> None:
        """As ``Tracer``."""
        super().__init__(process, options)
        assert isinstance(self._session, FamilySession)
        self._family: FamilySession = self._session
        self._symbolizers: dict[int, Symbolizer] = {}
        self._namers = {id(self._family.root): self._namer}

    def _start(self) -> None:
        follower = self._follower = Follower(self._family)
        super()._start()
        follower.attach(self._process.pid)

    def _stop(self) -> None:
        self._follower.stop()
        super()._stop()

    def _close(self) -> None:
        for symbolizer in self._symbolizers.values():
            symbolizer.close()
        super()._close()

    def _open_end(self) -> int:
        return os.dup(self._family.end_fd)

    def _text_of(self, snapshot: Snapshot) -> str:
        """Those that live; in the last report, all that there were."""
        every = self._members()
        shown = every if self._finishing else [m for m in every if not m[0].has_ended]
        snapshots = [member[1] for member in every]
        if self._options.mode is Mode.JSON:
            lines = [self._json_line(tracee, one) for tracee, one in shown]
            lines.append(_json_total(snapshot, snapshots))
        else:
            lines = [line for member in shown for line in self._text_lines(*member)]
            lines += [_total_line(snapshots), ""]
        return "".join(f"{line}\n" for line in lines)

    def _text_lines(self, tracee: Tracee, snapshot: Snapshot) -> list[str]:
        target = snapshot.target
        ended = ", ended" if tracee.has_ended else ""
        options = self._options
        return [
            (
                f"==> process {target.pid} ({printable(target.command)}), child of "
                f"{target.parent_pid}{ended}"
            ),
            *text_report(
                snapshot,
                self._namer_of(tracee),
                options.top,
                options.min_age_ns,
                self._marks.get(target.pid),
                show=options.show,
            ),
        ]

    def _json_line(self, tracee: Tracee, snapshot: Snapshot) -> str:
        mark = self._marks.get(snapshot.target.pid)
        options = self._options
        namer = self._namer_of(tracee)
        report = report_of(snapshot, namer, options.top, mark, show=options.show)
        report["ended"] = tracee.has_ended
        return json.dumps(report, separators=(",", ":"))

    def _members(self) -> list[Member]:
        apply, options = self._watch.suppressions.apply, self._options
        return [
            (tracee, apply(snapshot, self._namer_of(tracee)))
            for tracee, snapshot in self._family.snapshots(
                options.top, options.min_age_ns, options.wanted
            )
        ]

    def _watched_for(self, _snapshot: Snapshot) -> list[tuple[Snapshot, Namer]]:
        return [(snapshot, self._namer_of(tracee)) for tracee, snapshot in self._members()]

    def _namer_of(self, tracee: Tracee) -> Namer:
        namer = self._namers.get(id(tracee))
        if namer is None:
            symbolizer = Symbolizer(tracee.space, SourceMap(self._options.sources))
            self._symbolizers[id(tracee)] = symbolizer
            filters = self._namer.filters.copy()
            namer = Namer(symbolizer, filters, short_names=self._options.short_names)
            self._namers[id(tracee)] = namer
        namer.patience_s = self._namer.patience_s
        return namer

    def _profile_of(self, snapshot: Snapshot, *, freed: bool, progress: Progress) -> Profile:
        """All processes in one: each stack begins with its process."""
        return combined(
            snapshot,
            (
                profile_of(one, self._namer_of(tracee), freed=freed, progress=progress)
                for tracee, one in self._members()
            ),
        )


def _sums(snapshots: Sequence[Snapshot]) -> dict[str, int]:
    """What all processes have together. A forked child's copies count as its own."""
    return {
        "live_bytes": sum(one.live_bytes for one in snapshots),
        "live_allocations": sum(one.live_count for one in snapshots),
        "allocated_bytes": sum(int(one.totals.allocated_bytes.sum()) for one in snapshots),
        "allocations": sum(int(one.totals.allocated_count.sum()) for one in snapshots),
    }


def _total_line(snapshots: Sequence[Snapshot]) -> str:
    sums = _sums(snapshots)
    processes = "1 process" if len(snapshots) == 1 else f"{len(snapshots)} processes"
    return (
        f"==> total of {processes}: "
        f"{format_size(sums['live_bytes'])} in {plural(sums['live_allocations'], 'allocation')}"
    )


def _json_total(snapshot: Snapshot, snapshots: Sequence[Snapshot]) -> str:
    report: dict[str, Any] = {
        "time": round(snapshot.time_s, 6),
        "pid": None,
        "processes": len(snapshots),
        **_sums(snapshots),
    }
    return json.dumps(report, separators=(",", ":"))
