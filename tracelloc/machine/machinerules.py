"""Rules on the memory of processes and control groups, and the file that defines them.

``tracelloc help watch`` has an example, and lists all keys.
"""

import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from tracelloc.dataclass import dataclass, fields
from tracelloc.errors import UsageError
from tracelloc.show.filters.rules import TomlTables, find_line, nearest
from tracelloc.show.publish.address import ListenAddress, parse_listen, parse_push_url
from tracelloc.text import parse_duration, parse_percent, parse_size

# What can be done about a target, in the order in which it is done.
ACTIONS: Final = ("heap", "record", "push", "hook")
LEAST_RECORDING_BYTES: Final = 4 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FORM: Final = re.compile(r"\s*([a-z]+)\s*>\s*([^/]*?)\s*(/\s*min)?\s*(?:\bfor\s+(.+?))?\s*")
_HELP: Final = (
    "write 'memory > 80 %', 'memory > 2 GiB', 'growth > 5 MiB/min for 10m' or 'pressure > 10 %'"
)


@dataclass(frozen=True, slots=True)
class MachineRule:
    """One condition on a subject's memory, such as ``memory > 80 %``."""

    text: str  # The rule as the user wrote it
    quantity: str  # `memory`, `growth` or `pressure`
    limit: float  # Bytes, bytes per minute, or a share
    is_share: bool
    for_s: float  # Seconds for which the condition has to hold


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """Which processes or groups are watched, and actions. Fields are keys of ``[[target]]``."""

    name: str
    process: str  # A glob on the short name; empty for control groups
    group: str  # A glob on names of control groups; empty for processes
    rules: tuple[MachineRule, ...]
    actions: tuple[str, ...]
    record_for: float  # Length of recordings and of pushing, in seconds
    max_overhead: str  # The option's value; empty: no limit
    push: str
    push_password_file: str
    hook: tuple[str, ...]
    cool_down: float  # Seconds until actions may run again


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """The content of a file of targets. Fields are the file's top-level keys."""

    interval: float = 10.0  # Seconds between checks
    directory: Path = Path("/var/lib/tracelloc")
    max_disk: int = 1 << 30  # Bytes of all files
    max_running: int = 1  # Actions at a time
    max_recording: int = 64 << 20  # Bytes of one recording
    max_memory: int = 512 << 20  # Bytes that the tracelloc of one recording may use
    listen: ListenAddress | None = None
    target: tuple[WatchTarget, ...] = ()


def parse_machine_rule(text: str) -> MachineRule:
    """Parses a rule. Raises ValueError with a sentence on what is accepted."""
    match = _FORM.fullmatch(text)
    if match is None or match[1] not in ("memory", "growth", "pressure") or not match[2]:
        raise ValueError(f"{text!r} is not a valid rule: {_HELP}")
    quantity, limit, per_min, time = match.groups()
    is_share = limit.endswith("%")
    allowed = {"memory": (True, False), "growth": (False,), "pressure": (True,)}[quantity]
    if is_share not in allowed or bool(per_min) != (quantity == "growth"):
        raise ValueError(f"{text!r} is not a valid rule: {_HELP}")
    value = parse_percent(limit) if is_share else parse_size(limit)
    return MachineRule(text.strip(), quantity, value, is_share, parse_duration(time or "0"))


def parse_watch_config(text: str, name: str) -> WatchConfig:
    """Reads TOML. ``name``: the file in errors. Raises UsageError, with line and key."""
    own = [field.name for field in fields(WatchConfig) if field.name != "target"]
    tables = TomlTables(text, name, "target", *own)
    given: dict[str, Any] = {}
    for key, value in tables.document.items():
        if key != "target":
            try:
                given[key] = _GLOBAL[key](value)
            except ValueError as error:
                tables.fail(find_line(text, key), f"{key}: {error}")
    targets = tuple(
        _target(entry, partial(tables.fail_at, at)) for at, entry in enumerate(tables.entries)
    )
    names = [target.name for target in targets]
    for at, each in enumerate(names):
        if each in names[:at]:
            tables.fail_at(at, "name", f"there are two targets {each!r}")
    config = WatchConfig(**given, target=targets)
    if config.max_recording > config.max_disk:
        raise UsageError(f"{name}: max_recording is above max_disk: nothing could be recorded")
    return config


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a string is required")
    return value


def _at_least(parse: Callable[[str], Any], least: Any, shown: str) -> Callable[[object], Any]:

    def read(value: object) -> Any:
        found = parse(_text(value))
        if found < least:
            raise ValueError(f"at least {shown} is required")
        return found

    return read


def _count(value: object) -> int:
    if type(value) is not int or not 1 <= value <= 64:
        raise ValueError("a number from 1 to 64 is required")
    return value


def _rules(value: object) -> tuple[MachineRule, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("a list of rules is required")
    return tuple(parse_machine_rule(_text(rule)) for rule in value)


def _actions(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("a list is required")
    for each in value:
        if each not in ACTIONS:
            raise ValueError(f"{each!r} is not an action: known are {', '.join(ACTIONS)}")
    return tuple(action for action in ACTIONS if action in value)


def _overhead(value: object) -> str:
    text = _text(value)
    if text == "none":
        return ""
    if not 0.001 <= parse_percent(text) <= 10:
        raise ValueError("between 0.1% and 1000% is required")
    return text.replace(" ", "")


def _label(value: object) -> str:
    if not _NAME.fullmatch(_text(value)):
        raise ValueError(f"{value!r} has characters other than letters, digits, '.', '_' and '-'")
    return _text(value)


def _url(value: object) -> str:
    parse_push_url(_text(value))
    return _text(value)


def _absolute(value: object) -> str:
    if not Path(_text(value)).is_absolute():
        raise ValueError(f"{value!r} is not an absolute path")
    return _text(value)


_GLOBAL: Final[dict[str, Callable[[object], Any]]] = {
    "interval": _at_least(parse_duration, 0.1, "100ms"),
    "directory": lambda value: Path(_absolute(value)),
    "max_disk": _at_least(parse_size, LEAST_RECORDING_BYTES, "4MiB"),
    "max_running": _count,
    "max_recording": _at_least(parse_size, LEAST_RECORDING_BYTES, "4MiB"),
    "max_memory": _at_least(parse_size, 128 << 20, "128MiB"),
    "listen": lambda value: parse_listen(_text(value)),
}
# Readers of a target's keys, and their defaults; None: the key is required.
_TARGET: Final[dict[str, tuple[Callable[[object], Any], Any]]] = {
    "name": (_label, None),
    "process": (_text, ""),
    "group": (_text, ""),
    "rules": (_rules, None),
    "actions": (_actions, ("heap",)),
    "record_for": (_at_least(parse_duration, 1, "1s"), 300.0),
    "max_overhead": (_overhead, "5%"),
    "push": (_url, ""),
    "push_password_file": (_absolute, ""),
    "hook": (lambda value: tuple(shlex.split(_text(value))), ()),
    "cool_down": (_at_least(parse_duration, 60, "60s"), 3600.0),
}


def _target(entry: dict[str, Any], fail: Callable[..., NoReturn]) -> WatchTarget:
    found = {key: default for key, (_, default) in _TARGET.items()}
    for key, value in entry.items():
        if key not in _TARGET:
            fail(key, f"unknown key {key!r}", nearest(key, _TARGET))
        try:
            found[key] = _TARGET[key][0](value)
        except ValueError as error:
            fail(key, f"{key}: {error}")
    for key, value in found.items():
        if value is None:
            fail(key, f"{key} is missing")
    if bool(found["process"]) == bool(found["group"]):
        fail("group", "either process or group is required")
    for action in ("push", "hook"):
        if (action in found["actions"]) != bool(found[action]):
            fail(action, f"{action} is needed both as a key and in actions")
    return WatchTarget(**found)
