"""OpenTelemetry: its definitions of profiles, and its environment variables.

The protobuf definitions come from an optional package. The variables are resource attributes and
request headers.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and
https://opentelemetry.io/docs/specs/otel/protocol/exporter/. Lists are comma-separated
``key=value`` pairs with percent-encoded values (W3C Baggage).
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from tracelloc.errors import UsageError

_PROFILES: Final = "opentelemetry.proto.profiles.v1development.profiles_pb2"
_INSTALL: Final = "python3 -m pip install 'opentelemetry-proto>=1.40,<2'"
_SERVICE: Final = "opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2"


def check_definitions() -> None:
    """Raises UsageError if the package is missing, or its version has other definitions."""
    try:
        profiles = import_module(_PROFILES)
    except ImportError as error:
        raise UsageError(
            "OTLP needs the Python package opentelemetry-proto, 1.40 or later",
            hint=f"install it: {_INSTALL}",
        ) from error
    # OTLP profiles are under development: fields have been renamed before.
    known = {
        "ProfilesDictionary": "stack_table",
        "Profile": "samples",
        "Sample": "stack_index",
        "Location": "lines",
        "KeyValueAndUnit": "key_strindex",
    }
    messages = profiles.DESCRIPTOR.message_types_by_name
    for name, field in known.items():
        if name not in messages or field not in messages[name].fields_by_name:
            raise UsageError(
                f"the installed opentelemetry-proto defines no {name}.{field}",
                hint=f"install another version: {_INSTALL}",
            )


def new_profiles() -> Any:
    """Returns an empty ``ProfilesData``, the content of a file."""
    return import_module(_PROFILES).ProfilesData()


def new_request() -> Any:
    """Returns an empty ``ExportProfilesServiceRequest``; it has the fields of ``ProfilesData``."""
    return import_module(_SERVICE).ExportProfilesServiceRequest()


def new_response() -> Any:
    """Returns an empty ``ExportProfilesServiceResponse``."""
    return import_module(_SERVICE).ExportProfilesServiceResponse()


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
            raise UsageError(f"{variable} has what no header can hold")
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
