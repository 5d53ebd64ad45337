"""``report``: a recording as text, JSON or any file format, as of any of its moments."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace

from tracelloc.command.outputs import Messages, outputs_of, write_files
from tracelloc.errors import TracellocError, UsageError
from tracelloc.show.export import FORMATS, Exporter
from tracelloc.show.filters.files import load_filters
from tracelloc.show.importers.recordings import open_recording
from tracelloc.show.presentation.combined import joined, trace_profiles
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.presentation.profile import METRICS
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.show.recording.replay import blocks_since_s, with_blocks
from tracelloc.show.recording.times import count_words, find_moment
from tracelloc.show.report.content import ReportStyle
from tracelloc.show.report.optional import wanted_by
from tracelloc.show.report.trace import trace_report
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import format_time


def report(given: argparse.Namespace) -> None:
    """Writes what the command line asks for. Raises TracellocError."""
    wanted = wanted_by(given.show)
    if wanted.threads:
        raise UsageError(
            "recordings hold no per-thread data", hint="--show peak,temporary,types,sizes"
        )
    outputs = outputs_of(given)
    messages = Messages()
    filters, warnings = load_filters(
        tuple(given.filters_paths), tuple(given.filter_groups), standing=given.use_filters
    )
    for warning in warnings:
        messages.say(f"warning: {warning}")
    recording = open_recording(given.file)
    namers = Namers(recording, filters)
    since = None if given.since is None else find_moment(recording, given.since)
    at = find_moment(recording, given.at)
    if since is not None and since >= at:
        raise UsageError("--since must be before the snapshot that is shown")
    marks = {} if since is None else _by_number(recording.trace_at(since))
    trace = _cut(recording.trace_at(at), given.top)
    if wanted.blocks:
        trace = _with_blocks(recording, at, trace)
    messages.say(_moment_line(recording, at))
    if outputs:
        failures: list[TracellocError] = []
        write_files(
            outputs, trace, namers, messages=messages, fail=failures.append, marks=marks or None
        )
        if failures:
            raise failures[-1]
    elif given.format in FORMATS:
        _export(FORMATS[given.format], given, trace, namers, marks)
    else:
        _print(given, trace, namers, marks)


def _with_blocks(recording: RecordedTrace, at: int, trace: TraceSnapshot) -> TraceSnapshot:
    if not recording.has_events:
        raise UsageError("this recording has no block sizes", hint="record with --events")
    found = with_blocks(recording, at, trace)
    if all(one.blocks is None for one in found.processes):
        since_s = blocks_since_s(recording)
        begin = "later" if since_s is None else f"at {format_time(since_s)}"
        raise UsageError(f"the recorded events begin {begin}", hint="choose a later --at")
    return found


def _cut(trace: TraceSnapshot, top: int) -> TraceSnapshot:
    """Without the largest blocks that were not asked for."""
    return replace(
        trace,
        processes=tuple(
            replace(one, top_blocks=replace(one.top_blocks, largest=one.top_blocks.largest[:top]))
            for one in trace.processes
        ),
    )


def _by_number(trace: TraceSnapshot) -> Mapping[int, Snapshot]:
    return {one.target.number: one for one in trace.processes}


def _moment_line(recording: RecordedTrace, at: int) -> str:
    moments = recording.moments
    first, now, last = (format_time(moments[index].time_s) for index in (0, at, -1))
    return f"at {now}; recorded from {first} to {last}, {count_words(recording)}"


def _print(
    given: argparse.Namespace, trace: TraceSnapshot, namers: Namers, marks: Mapping[int, Snapshot]
) -> None:
    many = len(trace.processes) > 1
    style = ReportStyle(given.top, None, given.show, has_many=many)
    as_json = given.format == "json"
    text = trace_report(trace, namers, style, marks, ended=True, as_json=as_json)
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


def _export(
    exporter: Exporter,
    given: argparse.Namespace,
    trace: TraceSnapshot,
    namers: Namers,
    marks: Mapping[int, Snapshot],
) -> None:
    exporter.check()
    if exporter.is_binary and os.isatty(sys.stdout.fileno()):
        raise UsageError(f"{given.format} output is binary", hint="write it to a file with -o FILE")
    metric = METRICS[given.metric]
    freed = exporter.needs_freed(metric)
    profile = joined(trace_profiles(trace, namers, freed=freed, marks=marks or None))
    sys.stdout.buffer.writelines(exporter.write(profile, metric))
