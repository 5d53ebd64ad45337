"""The official protobuf definitions of OTLP, from a package that need not be installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from tracelloc.errors import UsageError

_PROFILES: Final = "opentelemetry.proto.profiles.v1development.profiles_pb2"
_INSTALL: Final = "python3 -m pip install 'opentelemetry-proto>=1.40,<2'"
_SERVICE: Final = "opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2"


def check_definitions() -> None:
    """Raises UsageError if the package is missing, or has definitions of another time."""
    try:
        profiles = import_module(_PROFILES)
    except ImportError as error:
        raise UsageError(
            "OTLP needs the Python package opentelemetry-proto, 1.40 or later",
            hint=f"install it: {_INSTALL}",
        ) from error
    # Profiles are under development: names of fields have changed before.
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
    """An empty ``ProfilesData``: what a file holds. See ``check_definitions``."""
    return import_module(_PROFILES).ProfilesData()


def new_request() -> Any:
    """An empty ``ExportProfilesServiceRequest``, with the same fields."""
    return import_module(_SERVICE).ExportProfilesServiceRequest()


def new_response() -> Any:
    """An empty ``ExportProfilesServiceResponse``."""
    return import_module(_SERVICE).ExportProfilesServiceResponse()
