"""OpenTelemetry profiles (OTLP), written with the official protobuf definitions.

The definitions are https://github.com/open-telemetry/opentelemetry-proto, package
``opentelemetry.proto.profiles.v1development``; its comments describe the messages. A profile
has one sample type there, so each process has one profile per figure. All profiles share a
dictionary, whose tables begin with a zero value. Attributes are those of the semantic
conventions (https://opentelemetry.io/docs/specs/semconv/): ``process.*``, ``container.id``,
``host.name``, ``service.name``, ``profile.frame.type``; losses have tracelloc's own names.

The definitions come from an optional package. Environment variables are resource attributes and
request headers (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/,
https://opentelemetry.io/docs/specs/otel/protocol/exporter/): comma-separated ``key=value`` pairs
with percent-encoded values (W3C Baggage).
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from tracelloc import __version__
from tracelloc.errors import UsageError
from tracelloc.model.codefiles import base_name
from tracelloc.model.frames import Frame
from tracelloc.show.presentation.calltree import code_locations
from tracelloc.show.presentation.profile import (
    ALLOCATED_BYTES,
    ALLOCATED_COUNT,
    LIVE_BYTES,
    LIVE_COUNT,
    Figure,
    FigureUnit,
    FileNumbers,
    MappedFile,
    Metric,
    Profile,
    Sample,
)
from tracelloc.text import printable

_PROFILES: Final = "opentelemetry.proto.profiles.v1development.profiles_pb2"
_INSTALL: Final = "python3 -m pip install 'opentelemetry-proto>=1.40,<2'"
_SERVICE: Final = "opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2"


def check() -> None:
    """Raises UsageError if OTLP can't be written here, or its variables are invalid."""
    try:
        profiles = import_module(_PROFILES)
    except ImportError as error:
        raise UsageError(
            "OTLP needs the Python package opentelemetry-proto, 1.40 or later",
            hint=f"install it: {_INSTALL}",
        ) from error
    # OTLP profiles are under development: fields have been renamed before.
    known = {
        "ProfilesDictionary": "stack_table", "Profile": "samples", "Sample": "stack_index",
        "Location": "lines", "KeyValueAndUnit": "key_strindex",
    }  # fmt: skip
    messages = profiles.DESCRIPTOR.message_types_by_name
    for name, field in known.items():
        if name not in messages or field not in messages[name].fields_by_name:
            raise UsageError(
                f"the installed opentelemetry-proto defines no {name}.{field}",
                hint=f"install another version: {_INSTALL}",
            )
    service_attributes(os.environ)


def new_message(name: str) -> Any:
    """Returns an empty message: a ``Request``, with fields of ProfilesData, or a ``Response``."""
    return getattr(import_module(_SERVICE), f"ExportProfilesService{name}")()


SERVICE_NAME: Final = "OTEL_SERVICE_NAME"
RESOURCE_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"
# Variables with headers; the first one that is set applies.
HEADERS: Final = ("OTEL_EXPORTER_OTLP_PROFILES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")


def service_attributes(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the resource attributes that the user has set. Raises UsageError."""
    found = _pairs(environment, RESOURCE_ATTRIBUTES)
    if name := environment.get(SERVICE_NAME):
        found["service.name"] = name
    return found


def request_headers(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers of each request. Raises UsageError, without quoting them."""
    variable = next((name for name in HEADERS if environment.get(name)), HEADERS[-1])
    found = _pairs(environment, variable)
    for name, value in found.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise UsageError(f"{variable} has characters that no header can have")
    return found


def _pairs(environment: Mapping[str, str], variable: str) -> dict[str, str]:
    found = {}
    for item in environment.get(variable, "").split(","):
        if not item.strip():
            continue
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            # The text may contain a password, so the message does not quote it.
            raise UsageError(f"{variable} must look like KEY=VALUE,KEY=VALUE")
        found[key.strip()] = urllib.parse.unquote(value.strip())
    return found


AttributeValue = str | int | bool | tuple[str, ...]

_FIGURES: Final = (LIVE_BYTES, LIVE_COUNT, ALLOCATED_BYTES, ALLOCATED_COUNT)
# Report keys that count losses.
_COUNTS: Final = (
    "lost_events", "unmatched_frees", "overflows", "truncated_stacks", "broken_stacks",
    "unsure_stacks", "partial_allocations", "unknown_stacks",
)  # fmt: skip
# Frame types by the text in place of a file; frames of other files are native.
_FRAME_TYPES: Final = {"[Python]": "cpython"}
_U64: Final = (1 << 64) - 1
_MOST: Final = (1 << 63) - 1


def write(profile: Profile, metric: Metric) -> Iterator[bytes]:
    """Yields the file, a ``ProfilesData``, in one piece."""
    message = import_module(_PROFILES).ProfilesData()
    fill(message, profile.parts or [profile], metric)
    yield message.SerializeToString()


def fill(
    message: Any, profiles: Sequence[Profile], metric: Metric = Metric.BYTES, *,
    attributes: Mapping[str, str] | None = None, new_id: Callable[[], bytes] | None = None,
) -> None:  # fmt: skip
    """Adds profiles to a message that has the fields of ``ProfilesData``.

    The metric's figure comes first, as viewers show the first one. ``attributes``: the user's
    resource attributes; None: from the environment. ``new_id`` makes 16 bytes per profile.
    """
    user = service_attributes(os.environ) if attributes is None else attributes
    tables = Tables(message.dictionary)
    figure = metric.figure if metric.figure.sample_type else LIVE_BYTES
    figures = (figure, *(one for one in _FIGURES if one is not figure))
    for profile in profiles:
        resource = message.resource_profiles.add()
        for key, value in (_resource(profile) | dict(user)).items():
            entry = resource.resource.attributes.add()
            entry.key = key
            _set(entry.value, value)
        scope = resource.scope_profiles.add()
        scope.scope.name, scope.scope.version = "tracelloc", __version__
        _Writer(scope, tables, profile, new_id).write(figures)


def _resource(profile: Profile) -> dict[str, AttributeValue]:
    target = profile.target
    name = base_name(target.executable) or target.command
    found: dict[str, AttributeValue] = {
        "service.name": target.command or "unknown_service", "process.pid": target.pid,
        "process.parent_pid": target.parent_pid, "process.executable.name": name,
        "process.executable.path": target.executable, "container.id": target.container_id,
        "container.name": target.container, "k8s.namespace.name": target.namespace,
        "k8s.pod.name": target.pod, "k8s.pod.uid": target.pod_uid, "host.name": target.host,
        "host.arch": target.machine,
    }  # fmt: skip
    return {key: value for key, value in found.items() if value}


def _set(message: Any, value: AttributeValue) -> None:
    if isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int):
        message.int_value = _signed(value)
    elif isinstance(value, str):
        message.string_value = printable(value)
    else:
        for each in value:
            message.array_value.values.add().string_value = printable(each)


def _signed(value: int) -> int:
    """Truncates a number to 64 bits; numbers of damaged recordings may have more."""
    return max(-_MOST - 1, min(value, _MOST))


class Tables:
    """The tables of a dictionary; equal values share one entry."""

    def __init__(self, dictionary: Any) -> None:
        self._dictionary = dictionary
        self._strings: dict[str, int] = {"": 0}
        self._known: dict[tuple[Any, ...], int] = {}
        dictionary.string_table.append("")
        for name in ("mapping", "location", "function", "link", "attribute", "stack"):
            # The zero value, which stands for a missing entry.
            getattr(dictionary, f"{name}_table").add()

    def string(self, text: str) -> int:
        """Returns the index of a string, made printable: readers show strings unchanged."""
        text = printable(text)
        known = self._strings.get(text)
        if known is None:
            known = self._strings[text] = len(self._strings)
            self._dictionary.string_table.append(text)
        return known

    def attribute(self, key: str, value: AttributeValue) -> int:
        index, new = self._index("attribute", key, type(value), value)
        if new is not None:
            new.key_strindex = self.string(key)
            _set(new.value, value)
        return index

    def mapping(self, file: MappedFile) -> int:
        index, new = self._index("mapping", file)
        if new is not None:
            new.memory_start, new.memory_limit = file.start & _U64, file.end & _U64
            new.file_offset = file.offset & _U64
            new.filename_strindex = self.string(file.path)
            if file.build_id:
                key = "process.executable.build_id.gnu"
                new.attribute_indices.append(self.attribute(key, file.build_id))
        return index

    def function(self, name: str, raw: str, file: str) -> int:
        """Returns the index of a function. ``raw``: its linker name; ``file``: its source file."""
        index, new = self._index("function", name, raw, file)
        if new is not None:
            new.name_strindex, new.system_name_strindex = self.string(name), self.string(raw)
            new.filename_strindex = self.string(file)
        return index

    def location(
        self, address: int, mapping: int, kind: str | None, lines: tuple[tuple[int, int], ...]
    ) -> int:
        """Returns the index of a location. ``lines``: functions and lines, inlined ones first."""
        index, new = self._index("location", address, mapping, kind, lines)
        if new is not None:
            new.address, new.mapping_index = address & _U64, mapping
            for function, line in lines:
                entry = new.lines.add()
                entry.function_index, entry.line = function, _signed(line)
            if kind is not None:
                new.attribute_indices.append(self.attribute("profile.frame.type", kind))
        return index

    def stack(self, locations: tuple[int, ...]) -> int:
        index, new = self._index("stack", locations)
        if new is not None:
            new.location_indices.extend(locations)
        return index

    def _index(self, table: str, *value: Any) -> tuple[int, Any]:
        known = self._known.get((table, *value))
        if known is not None:
            return known, None
        entries = getattr(self._dictionary, f"{table}_table")
        self._known[table, *value] = index = len(entries)
        return index, entries.add()


class _Writer:
    def __init__(
        self, scope: Any, tables: Tables, profile: Profile, new_id: Callable[[], bytes] | None
    ) -> None:
        self._scope = scope
        self._tables = tables
        self._profile = profile
        self._new_id = new_id
        self._files = FileNumbers(profile)

    def write(self, figures: Sequence[Figure]) -> None:
        attributes = [self._tables.attribute(*pair) for pair in _missing(self._profile)]
        # Stacks by sample number; only stacks with a nonzero figure enter the tables
        stacks: dict[int, int] = {}
        elapsed_ns = max(0, self._profile.elapsed_ns)
        begun_ns = round(self._profile.time_s * 1e9) - elapsed_ns
        for figure in figures:
            message = self._scope.profiles.add()
            self._type(message.sample_type, self._profile.type_of(figure), _unit(figure))
            for number, sample in enumerate(self._profile.samples):
                value = figure.value_of(sample.stat)
                if value:
                    if number not in stacks:
                        stacks[number] = self._stack(sample)
                    entry = message.samples.add()
                    entry.stack_index = stacks[number]
                    entry.values.append(_signed(value))
            message.time_unix_nano = max(0, begun_ns) & _U64
            message.duration_nano = elapsed_ns & _U64
            self._type(message.period_type, "space", "bytes")
            message.period = _signed(self._profile.sample_bytes or 1)
            message.attribute_indices.extend(attributes)
            if self._new_id is not None:
                message.profile_id = self._new_id()

    def _type(self, message: Any, name: str, unit: str) -> None:
        message.type_strindex = self._tables.string(name)
        message.unit_strindex = self._tables.string(unit)

    def _stack(self, sample: Sample) -> int:
        function = self._tables.function
        return self._tables.stack(
            tuple(
                self._location(frame, tuple((function(*names), line) for *names, line in functions))
                for frame, functions in code_locations(sample)
            )
        )

    def _location(self, frame: Frame, lines: tuple[tuple[int, int], ...]) -> int:
        kind = _FRAME_TYPES.get(frame.module or "")
        if kind is not None:
            # Interpreted code has no address.
            return self._tables.location(0, 0, kind, lines)
        number = self._files.find(frame)
        mapping = self._tables.mapping(self._files.files[number - 1]) if number else 0
        # A return address may already belong to another line or function.
        address = max(0, frame.address - 1)
        return self._tables.location(address, mapping, "native" if mapping else None, lines)


def _unit(figure: Figure) -> str:
    return "count" if figure.unit is FigureUnit.BLOCKS else "bytes"


def _missing(profile: Profile) -> Iterator[tuple[str, AttributeValue]]:
    facts = profile.facts
    for key in _COUNTS:
        if isinstance(facts.get(key), int):
            yield f"tracelloc.{key}", facts[key]
    for cause, count in (facts.get("lost") or {}).items():
        yield f"tracelloc.lost.{cause}", count
    if profile.is_difference:
        yield "tracelloc.difference", True
    if profile.sample_bytes is not None:
        yield "tracelloc.sample_bytes", profile.sample_bytes
    if profile.notes:
        yield "tracelloc.notes", tuple(profile.notes)
