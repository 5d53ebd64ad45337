"""``report``: one snapshot of a recording, as text, JSON or any file format."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tracelloc.command.outputs import Messages, outputs_of, write_files
from tracelloc.errors import TracellocError, UsageError
from tracelloc.show.export import FORMATS, Exporter
from tracelloc.show.export.outputfile import OutputFile
from tracelloc.show.filters.files import load_filters
from tracelloc.show.importers import check_metrics, read_profile
from tracelloc.show.presentation.combined import joined_profile, trace_profiles
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.presentation.profile import METRICS, Metric, Profile
from tracelloc.show.recording.container import is_recording
from tracelloc.show.recording.joined import count_words, find_moment, open_recordings
from tracelloc.show.report.content import ReportStyle
from tracelloc.show.report.optional import wanted_by
from tracelloc.show.report.sections import trace_report
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import format_time


def report(given: argparse.Namespace) -> None:
    """Writes the report or the files that the command line requests. Raises TracellocError."""
    wanted = wanted_by(given.show)
    if wanted.threads:
        raise UsageError("recordings hold no per-thread data", hint="--show peak,temporary,types")
    if wanted.blocks:
        raise UsageError("recordings hold no block sizes", hint="--show peak,temporary,types")
    outputs = outputs_of(given)
    messages = Messages()
    if len(given.files) == 1 and _is_profile(given.files[0]):
        _convert(given, given.files[0], outputs)
        return
    chosen = given.filters_paths, given.filter_groups
    filters, warnings = load_filters(*chosen, standing=given.use_filters)
    for warning in warnings:
        messages.say(f"warning: {warning}")
    recording = open_recordings(given.files)
    namers = Namers(recording, filters)
    since = None if given.since is None else find_moment(recording, given.since)
    at = find_moment(recording, given.at)
    if since is not None and since >= at:
        raise UsageError("--since must be before the snapshot that is shown")
    before = () if since is None else recording.trace_at(since).processes
    marks = {one.target.number: one for one in before}
    trace = _with_largest(recording.trace_at(at), given.top)
    first, now, last = (format_time(recording.moments[n].time_s) for n in (0, at, -1))
    messages.say(f"at {now}; recorded from {first} to {last}, {count_words(recording)}")
    if outputs:
        failures: list[TracellocError] = []
        write_files(
            outputs, trace, namers, messages=messages, fail=failures.append, marks=marks or None
        )
        if failures:
            raise failures[-1]
    elif (exporter := FORMATS.get(given.format)) is not None:

        def profile_of(metric: Metric) -> Profile:
            freed = exporter.needs_freed(metric)
            return joined_profile(trace_profiles(trace, namers, freed=freed, marks=marks or None))

        _export(exporter, given, profile_of)
    else:
        _print(given, trace, namers, marks)


def _with_largest(trace: TraceSnapshot, top: int) -> TraceSnapshot:
    return replace(
        trace,
        processes=tuple(
            replace(one, top_blocks=replace(one.top_blocks, largest=one.top_blocks.largest[:top]))
            for one in trace.processes
        ),
    )


def _print(
    given: argparse.Namespace, trace: TraceSnapshot, namers: Namers, marks: Mapping[int, Snapshot]
) -> None:
    many = len(trace.processes) > 1
    style = ReportStyle(given.top, None, given.show, has_many=many)
    as_json = given.format == "json"
    text = trace_report(trace, namers, style, marks, ended=True, as_json=as_json)
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


def _export(
    exporter: Exporter, given: argparse.Namespace, profile_of: Callable[[Metric], Profile]
) -> None:
    exporter.check()
    if exporter.is_binary and os.isatty(sys.stdout.fileno()):
        raise UsageError(f"{given.format} output is binary", hint="write it to a file with -o FILE")
    metric = METRICS[given.metric]
    sys.stdout.buffer.writelines(exporter.write(profile_of(metric), metric))


def _convert(given: argparse.Namespace, file: Path, outputs: Sequence[OutputFile]) -> None:
    profile = read_profile(file, given.at or given.since)
    exporter = FORMATS.get(given.format)
    if exporter is None and not outputs:
        hint = "-o FILE writes it in another format, tracelloc diff lists changes"
        raise UsageError(f"{file} is a profile, not a recording", hint=hint)
    check_metrics(profile, file, {METRICS[given.metric]})
    for output in outputs:
        output.at(profile.target.pid, profile.time_s).write(output.content(profile))
    if exporter is not None and not outputs:
        _export(exporter, given, lambda _metric: profile)


def _is_profile(path: Path) -> bool:
    try:
        return not is_recording(path)
    except OSError:
        # Opening it as a recording says why it can't be read.
        return False
