"""Rules on the memory of processes and control groups, their file, and what breaks them."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from tracelloc.dataclass import dataclass, fields
from tracelloc.errors import UsageError
from tracelloc.machine.machinememory import (
    GroupMemory,
    MachineMemory,
    MemoryTrend,
    ProcessMemory,
    by_growth,
)
from tracelloc.show.filters.rules import TomlTables, find_line, nearest
from tracelloc.show.publish.address import ListenAddress, parse_listen, parse_push_url
from tracelloc.text import format_percent, format_size, parse_duration, parse_percent, parse_size

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
    max_per_hour: int = 12  # Processes and groups whose actions begin within an hour
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
    entries = enumerate(tables.entries)
    targets = tuple(_target(entry, partial(tables.fail_at, at)) for at, entry in entries)
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
    "max_per_hour": _count,
    "max_recording": _at_least(parse_size, LEAST_RECORDING_BYTES, "4MiB"),
    "max_memory": _at_least(parse_size, 128 << 20, "128MiB"),
    "listen": lambda value: parse_listen(_text(value)),
}
# Readers of a target's keys, and their defaults; None: the key is required.
_TARGET: Final[dict[str, tuple[Callable[[object], Any], Any]]] = {
    "name": (_label, None), "process": (_text, ""), "group": (_text, ""), "rules": (_rules, None),
    "actions": (_actions, ("heap",)), "record_for": (_at_least(parse_duration, 1, "1s"), 300.0),
    "max_overhead": (_overhead, "5%"), "push": (_url, ""), "push_password_file": (_absolute, ""),
    "hook": (lambda value: tuple(shlex.split(_text(value))), ()),
    "cool_down": (_at_least(parse_duration, 60, "60s"), 3600.0),
}  # fmt: skip


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


# Returns the share of time in which processes of a control group waited for memory.
PressureReader = Callable[[str], float | None]


@dataclass(frozen=True, slots=True)
class Subject:
    """A process or a control group that a target names."""

    target: WatchTarget
    key: str  # Identifies target and process or group at each check
    name: str
    group: str  # The path of its control group; empty if there is none
    processes: tuple[ProcessMemory, ...]  # One, or all in the group, the fastest growing first
    trend: MemoryTrend
    limit_bytes: int  # The closest limit, or the machine's memory
    used_bytes: int  # Memory; of a group, without what the kernel can reclaim

    @property
    def used_share(self) -> float:
        return self.used_bytes / max(self.limit_bytes, 1)


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that a subject breaks."""

    subject: Subject
    rule: MachineRule
    figure: str  # The figure that broke the rule, formatted


def subjects_of(machine: MachineMemory, targets: Sequence[WatchTarget]) -> Iterator[Subject]:
    """Yields the processes and groups that targets name, in the order of the targets."""
    for target in targets:
        if target.group:
            groups = (group for group in machine.groups if _is_named(group, target.group))
            yield from (_group_subject(target, group, machine) for group in groups)
        else:
            for process in machine.processes:
                if fnmatchcase(process.command, target.process):
                    yield _own_subject(target, process, machine)


def is_in(process: ProcessMemory, path: str) -> bool:
    """Whether a process is in a control group or below it."""
    return process.group == path or process.group.startswith(f"{path}/")


def _is_named(group: GroupMemory, pattern: str) -> bool:
    """Whether a pattern matches a group's path, the path's last part, or its short name."""
    short = group.name.rpartition(" ")[2]
    names = group.path, group.path.rpartition("/")[2], group.name, short
    return any(fnmatchcase(name, pattern) for name in names)


def _group_subject(target: WatchTarget, group: GroupMemory, machine: MachineMemory) -> Subject:
    inside = [process for process in machine.processes if is_in(process, group.path)]
    limit = group.limit_bytes or machine.total_bytes
    return Subject(
        target, f"{target.name} {group.path}", group.name, group.path,
        tuple(sorted(inside, key=by_growth)), group.trend, limit, group.trend.used_bytes,
    )  # fmt: skip


def _own_subject(target: WatchTarget, process: ProcessMemory, machine: MachineMemory) -> Subject:
    limits = [each.limit_bytes for each in machine.groups if is_in(process, each.path)]
    limit = min([*(each for each in limits if each is not None), machine.total_bytes])
    return Subject(
        target, f"{target.name} {process.pid}", process.command, process.group, (process,),
        process.trend, limit, process.trend.size_bytes,
    )  # fmt: skip


class RuleBook:
    """Finds rules that have been broken long enough. For one thread at a time."""

    def __init__(self, config: WatchConfig, pressure: PressureReader) -> None:
        self._config, self._pressure = config, pressure
        # When a subject, by its key, began to break a rule, by its text
        self._since: dict[tuple[str, str], float] = {}

    def check(self, subjects: Sequence[Subject], now_s: float) -> list[Breach]:
        """Returns the first broken rule of each subject. ``now_s``: of any monotonic clock."""
        before, self._since = self._since, {}
        found = []
        for subject in subjects:
            # All rules are looked at, as each has its own time.
            broken = [self._check(subject, rule, before, now_s) for rule in subject.target.rules]
            found += list(filter(None, broken))[:1]
        return found

    def _check(
        self, subject: Subject, rule: MachineRule, before: dict[tuple[str, str], float],
        now_s: float,
    ) -> Breach | None:  # fmt: skip
        value = self._measure(subject, rule)
        if value is None or value <= rule.limit:
            return None
        key = subject.key, rule.text
        since_s = self._since[key] = before.get(key, now_s)
        if now_s - since_s < rule.for_s:
            return None
        unit = "/min" if rule.quantity == "growth" else ""
        figure = format_percent(value, 0) if rule.is_share else format_size(round(value)) + unit
        return Breach(subject, rule, figure)

    def _measure(self, subject: Subject, rule: MachineRule) -> float | None:
        if rule.quantity == "growth":
            return subject.trend.rate
        if rule.quantity == "pressure":
            return self._pressure(subject.group)
        return subject.used_share if rule.is_share else subject.used_bytes
