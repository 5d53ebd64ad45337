"""The official protobuf definitions of OTLP, from an optional package."""

from __future__ import annotations

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
