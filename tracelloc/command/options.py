"""Derives the settings of the trace, files and addresses from the parsed command line."""

import mmap
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import reduce
from operator import or_
from typing import TypeVar

from tracelloc.architecture import machine_architecture, machine_name
from tracelloc.command.commandline import Options, needs_probes
from tracelloc.command.outputs import outputs_of
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.kernel.method import Method
from tracelloc.record.mallocs.discovery import MallocChoice
from tracelloc.record.session.config import TraceConfig
from tracelloc.show.alerts.rules import WatchOptions
from tracelloc.show.export import check_otlp
from tracelloc.show.publish.address import (
    LISTEN_TOKEN,
    PUSH_INTERVAL_S,
    PUSH_PASSWORD,
    ListenAddress,
    PushConfig,
    authorization,
    read_secret,
)
from tracelloc.show.report.optional import wanted_by

T = TypeVar("T")


def completed(given: Options) -> Options:
    """Returns the options with all derived settings. Raises UsageError."""
    outputs = outputs_of(given)
    files = (output.exporter.wanted for output in outputs)
    return given.but(
        outputs=outputs,
        listen=_listen_of(given),
        pushes_to=_push_of(given),
        trace=_config_of(given),
        watch=WatchOptions(
            tuple(given.fail_if), tuple(given.on_leak or ()), tuple(given.suppressions)
        ),
        wanted=reduce(
            or_, files, wanted_by(given.show) | SnapshotRequest(given.top, given.min_age_ns)
        ),
    )


def _settings(kind: type[T], given: Mapping[str, object], **others: object) -> T:
    names = {field.name for field in fields(kind)} & given.keys()  # type: ignore[arg-type]
    return kind(**({name: given[name] for name in names} | others))


def _can_preload() -> bool:
    machine = machine_architecture(machine_name())
    return machine is not None and machine.has_preloaded_library


def _config_of(given: Options) -> TraceConfig:
    values = vars(given)
    is_free = given.method == "auto" and not needs_probes(given) and _can_preload()
    capture = _settings(
        CaptureConfig,
        values,
        events_size_bytes=max(mmap.PAGESIZE, given.events_size_bytes),
        use_rows=given.stacks != "fp",
        follow=given.follow is not None or given.group_name is not None or given.waits,
    )
    config = _settings(
        TraceConfig,
        values,
        capture=capture,
        method=None if given.method == "auto" else Method(given.method),
        selection=MallocChoice(given.malloc, mappings=given.trace_mappings),
        followed_names=given.follow or frozenset(),
        injects=given.preload == "inject",
        use_library=given.preload in ("on", "inject") or (given.preload == "auto" and is_free),
        spares_runtimes=given.preload == "auto",
        counts_earlier=given.earlier == "on",
    )
    return config if given.source == "auto" else replace(config, use_library=False)


def _listen_of(given: Options) -> ListenAddress | None:
    if given.listen is None:
        return None
    address: ListenAddress = given.listen
    return replace(address, token=read_secret(given.listen_token_file, LISTEN_TOKEN))


def _push_of(given: Options) -> PushConfig | None:
    if given.push is None:
        return None
    url, user, is_otlp = given.push
    headers: dict[str, str] = {}
    if is_otlp:
        check_otlp()
        from tracelloc.show.export.otlp import request_headers  # noqa: PLC0415 - reports need none

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
