"""Derives settings of the trace, files, addresses and a group's process from the parsed line."""

import itertools
import mmap
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import reduce
from operator import or_
from typing import Final, TypeVar

from tracelloc.architecture import machine_architecture, machine_name
from tracelloc.command.commandline import Options, needs_probes
from tracelloc.command.outputs import outputs_of
from tracelloc.errors import TargetError
from tracelloc.machine.processes import NoGroupError, find_group, members_of
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.record.kernel.captureconfig import CaptureConfig, Method
from tracelloc.record.mallocs.discovery import MallocChoice
from tracelloc.record.session.config import TraceConfig
from tracelloc.show.export import FORMATS
from tracelloc.show.publish import address
from tracelloc.show.report.optional import wanted_by
from tracelloc.startup import STARTUP
from tracelloc.system.memorylimits import MemoryGroup
from tracelloc.text import printable

T = TypeVar("T")
_EVERY_S: Final = 0.1  # How often control groups are looked for


def completed(given: Options) -> Options:
    """Returns the options with all derived settings. Raises UsageError and TargetError."""
    outputs = outputs_of(given)
    files = (output.exporter.wanted for output in outputs)
    listen: address.ListenAddress | None = given.listen
    if listen is not None:
        token = address.read_secret(given.listen_token_file, address.LISTEN_TOKEN)
        listen = replace(listen, token=token)
    found = given.but(
        outputs=outputs, listen=listen, pushes_to=_push_of(given), trace=_config_of(given),
        wanted=reduce(
            or_, files, wanted_by(given.show) | SnapshotRequest(given.top, given.min_age_ns)
        ),
    )  # fmt: skip
    if given.group_name is None:
        return found
    group = _found_group(given.group_name, waits=given.waits)
    members = members_of(group)
    if not members:
        raise TargetError(f"control group {printable(group.path)} has no process any more")
    return found.but(pid=members[0], group=group)


def _found_group(name: str, *, waits: bool) -> MemoryGroup:
    """Returns a control group; ``waits``: until it has processes. Raises TargetError."""
    for number in itertools.count():
        try:
            return find_group(name)
        except NoGroupError:
            if not waits:
                raise
        if not number:
            STARTUP.end()
            print(f"tracelloc: waiting for {printable(name)}", file=sys.stderr, flush=True)
        time.sleep(_EVERY_S)
    raise AssertionError


def _settings(kind: type[T], given: Mapping[str, object], **others: object) -> T:
    names = {field.name for field in fields(kind)} & given.keys()  # type: ignore[arg-type]
    return kind(**({name: given[name] for name in names} | others))


def _config_of(given: Options) -> TraceConfig:
    values = vars(given)
    has_library = machine_architecture(machine_name()) is not None
    is_free = given.method == "auto" and not needs_probes(given) and has_library
    capture = _settings(
        CaptureConfig, values, events_size_bytes=max(mmap.PAGESIZE, given.events_size_bytes),
        use_rows=given.stacks != "fp",
        follow=given.follow is not None or given.group_name is not None or given.waits,
    )  # fmt: skip
    config = _settings(
        TraceConfig, values, capture=capture,
        method=None if given.method == "auto" else Method(given.method),
        selection=MallocChoice(given.malloc, mappings=given.trace_mappings),
        followed_names=given.follow or frozenset(), injects=given.preload == "inject",
        use_library=given.preload in ("on", "inject") or (given.preload == "auto" and is_free),
        spares_runtimes=given.preload == "auto", counts_earlier=given.earlier == "on",
    )  # fmt: skip
    return config if given.source == "auto" else replace(config, use_library=False)


def _push_of(given: Options) -> address.PushConfig | None:
    if given.push is None:
        return None
    url, user, is_otlp = given.push
    headers: dict[str, str] = {}
    if is_otlp:
        FORMATS["otlp"].check()
        from tracelloc.show.export.otlp import request_headers  # noqa: PLC0415 - reports need none

        headers = request_headers(os.environ)
    secret = address.read_secret(given.push_password_file, address.PUSH_PASSWORD)
    who, every_s = address.authorization(user, secret), given.push_interval
    facts = url, who, every_s or address.PUSH_INTERVAL_S, given.push_name
    return address.PushConfig(*facts, tuple(given.push_label), is_otlp, tuple(headers.items()))
