"""The watched processes and control groups (subjects), and the rules that they break."""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from tracelloc.dataclass import dataclass
from tracelloc.machine.machinememory import GroupMemory, MachineMemory, MemoryTrend, ProcessMemory
from tracelloc.machine.machinerules import MachineRule, WatchConfig, WatchTarget
from tracelloc.machine.machinetext import by_growth
from tracelloc.text import format_percent, format_size

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
        """The used share of the limit."""
        return self.used_bytes / max(self.limit_bytes, 1)


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that a subject breaks."""

    subject: Subject
    rule: MachineRule
    figure: str  # The figure that broke the rule, formatted


def subjects_of(machine: MachineMemory, targets: Sequence[WatchTarget]) -> Iterator[Subject]:
    """Yields the processes and groups that targets name, in the order of the targets."""
    by_path = {group.path: group for group in machine.groups}
    for target in targets:
        if target.group:
            for group in machine.groups:
                if _is_named(group, target.group):
                    yield _group_subject(target, group, machine)
        else:
            for process in machine.processes:
                if fnmatchcase(process.command, target.process):
                    yield _process_subject(target, process, by_path, machine)


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


def _process_subject(
    target: WatchTarget,
    process: ProcessMemory,
    by_path: dict[str, GroupMemory],
    machine: MachineMemory,
) -> Subject:
    limits = [
        group.limit_bytes
        for path, group in by_path.items()
        if group.limit_bytes is not None and is_in(process, path)
    ]
    limit = min([*limits, machine.total_bytes])
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
            breaches = (self._check(subject, rule, before, now_s) for rule in subject.target.rules)
            # All rules are looked at, as each has its own time.
            broken = [breach for breach in list(breaches) if breach is not None]
            found += broken[:1]
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
