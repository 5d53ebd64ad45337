"""What the command line asks for, frozen."""

from __future__ import annotations

import argparse
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path

from tracelloc.architecture import machine_name, of_machine
from tracelloc.command.commandline import CommandLine, Mode, needs_probes, parse_command_line
from tracelloc.command.outputs import outputs_of
from tracelloc.model.wanted import Wanted
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.kernel.method import Method
from tracelloc.record.kernel.overheadlimit import OverheadLimit
from tracelloc.record.mallocs.discovery import MallocChoice
from tracelloc.record.process.memorylimits import MemoryGroup
from tracelloc.record.session.config import TraceConfig
from tracelloc.show.alerts.rules import WatchOptions
from tracelloc.show.export import check_otlp
from tracelloc.show.export.outputfile import OutputFile
from tracelloc.show.publish.address import PUSH_INTERVAL_S, ListenAddress, PushConfig
from tracelloc.show.publish.secrets import LISTEN_TOKEN, PUSH_PASSWORD, authorization, read_secret
from tracelloc.show.report.optional import wanted_by
from tracelloc.text import NS_PER_S


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. Times in seconds or ns, sizes in bytes, as named."""

    pid: int | None
    """None: the user chooses from a list, only with a screen; or there is a command, or a name or
    control group to be found."""
    name: str | None
    """Name of the process to find."""
    waits: bool
    """Whether the process or the group is still to be started."""
    group_name: str | None
    """Name of the control group to find."""
    group: MemoryGroup | None
    """The control group that was found: all its processes are traced."""
    as_root: bool
    """Whether a command runs with tracelloc's rights, not those of the user who called sudo."""
    program_output: Path | None
    """File for a copy of the output of a program started with the screen."""
    command: tuple[str, ...]
    """The program to start and trace, with its arguments; empty: a running one is traced."""
    mode: Mode
    report: Path | None
    """Where reports go; None: the standard stream that is free for them."""
    show: frozenset[str]
    """Additional sections of reports."""
    top: int
    min_age_ns: int | None
    interval_s: float | None
    """Time between reports; None: chosen by where reports go."""
    is_every_full: bool
    """Reports repeat what has not changed."""
    long_names: bool
    """Text reports have template arguments and parameters."""
    count: int | None
    duration_s: float | None
    max_memory: int | None
    """Bytes that tracelloc itself may take; None: it chooses."""
    outputs: tuple[OutputFile, ...]
    listen: ListenAddress | None
    push: PushConfig | None
    trace: TraceConfig
    """Without what ``allocators_paths`` name."""
    allocators_paths: tuple[Path, ...]
    """Files that name more allocators."""
    filters_paths: tuple[Path, ...]
    filter_groups: tuple[tuple[str, bool], ...]
    """Groups of filters to switch, in this order."""
    use_filters: bool
    """Whether the shipped and the user's own filters apply."""
    sources: tuple[tuple[str, str], ...]
    """Directories of source files: as compiled, and where they are now."""
    short_names: bool
    watch: WatchOptions
    since_mark: bool
    """Whether files contain changes since the mark, once one is set."""

    @property
    def wanted(self) -> Wanted:
        """What snapshots must have for the reports and files."""
        files = (output.exporter.wanted for output in self.outputs)
        return reduce(or_, files, wanted_by(self.show) | Wanted(self.top, self.min_age_ns))


def parse_options(arguments: Sequence[str], *, terminal: bool = False) -> Options:
    """Options from the arguments after the program's name. Raises UsageError.

    ``terminal``: see ``parse_command_line``.
    """
    return options_of(parse_command_line(arguments, terminal=terminal))


def options_of(line: CommandLine) -> Options:
    """What a command line asks for."""
    given = line.given
    return Options(
        pid=given.pid,
        name=given.name,
        waits=given.wait,
        group_name=given.group,
        group=None,
        as_root=given.as_root,
        program_output=given.program_output,
        command=line.command,
        mode=line.mode,
        report=given.report,
        show=given.show,
        top=given.top,
        min_age_ns=None if given.age is None else round(given.age * NS_PER_S),
        interval_s=given.interval,
        is_every_full=given.every_report or given.json_full,
        long_names=given.long_names,
        count=given.count,
        duration_s=given.duration,
        max_memory=given.max_memory,
        outputs=outputs_of(given),
        listen=_listen_of(given),
        push=_push_of(given),
        trace=_config_of(given),
        allocators_paths=tuple(given.allocators),
        filters_paths=tuple(given.filters),
        filter_groups=tuple(given.filter_group),
        use_filters=not given.no_filters,
        sources=tuple(given.sources),
        short_names=given.short_names,
        watch=WatchOptions(
            tuple(given.fail_if), tuple(given.on_leak or ()), tuple(given.suppressions)
        ),
        since_mark=given.since_mark,
    )


def _can_preload() -> bool:
    """Whether there is a library for this machine that programs could preload."""
    machine = of_machine(machine_name())
    return machine is not None and machine.has_preloaded_library


def _config_of(given: argparse.Namespace) -> TraceConfig:
    capture = CaptureConfig(
        events_size_bytes=max(mmap.PAGESIZE, given.events_size),
        spill_entries=given.overflow_entries,
        min_block_bytes=given.min_size,
        max_block_bytes=given.max_size,
        sample_bytes=given.sample,
        use_rows=given.stacks != "fp",
        max_frames=given.max_frames,
        trace_mappings=given.mmap,
        follow=given.follow is not None or given.group is not None or given.wait,
    )
    config = TraceConfig(
        capture=capture,
        selection=MallocChoice(given.malloc, mappings=given.mmap),
        method=None if given.attach == "auto" else Method(given.attach),
        temporary=given.temporary,
        most_processes=given.follow_limit,
        followed_names=given.follow or frozenset(),
        max_overhead=None if given.max_overhead is None else OverheadLimit(given.max_overhead),
        injects=given.preload == "inject",
        use_library=given.preload in ("on", "inject")
        or (given.preload == given.attach == "auto" and not needs_probes(given) and _can_preload()),
        spares_python=given.preload == "auto",
        max_stall_s=given.max_stall,
        reads_memory=not given.no_search,
        counts_earlier=given.earlier == "on",
        debug=given.debug,
    )
    return config.with_otel if given.source == "otel" else config


def _listen_of(given: argparse.Namespace) -> ListenAddress | None:
    if given.listen is None:
        return None
    address: ListenAddress = given.listen
    return replace(address, token=read_secret(given.listen_token_file, LISTEN_TOKEN))


def _push_of(given: argparse.Namespace) -> PushConfig | None:
    if given.push is None:
        return None
    url, user, is_otlp = given.push
    headers: dict[str, str] = {}
    if is_otlp:
        check_otlp()
        from tracelloc.show.export.otelnames import request_headers  # noqa: PLC0415 - reports need none

        headers = request_headers(os.environ)
    return PushConfig(
        url,
        authorization(user, read_secret(given.push_password_file, PUSH_PASSWORD)),
        given.push_interval or PUSH_INTERVAL_S,
        given.push_name,
        tuple(given.push_label),
        is_otlp,
        tuple(headers.items()),
    )
