"""Metrics of a machine: memory of processes and control groups, and counts of ``watch``.

A metrics database keeps each distinct series forever, so there are no PIDs in labels, and only the
largest names have series of their own. Other commands are summed; control groups are in each other,
so their sum would say nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tracelloc.dataclass import dataclass, field
from tracelloc.machine.machinememory import GroupMemory, MachineMemory
from tracelloc.show.publish.openmetrics import family_lines, label_text

MOST_NAMES: Final = 20  # Commands, and control groups, that have series of their own
OTHERS: Final = "(others)"
_LONGEST_LABEL: Final = 100


@dataclass(slots=True)
class WatchCounts:
    """Counts of events since watching began, restarts included."""

    rules: dict[str, int] = field(default_factory=dict)  # How often rules were broken, by target
    # Processes that the kernel has killed for want of memory, by target.
    kills: dict[str, int] = field(default_factory=dict)
    # Leaking call stacks in the newest recording, by target.
    leaking: dict[str, int] = field(default_factory=dict)


class LargestNames:
    """Chooses the names that get series of their own; a chosen one stays while it is large."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._chosen: set[str] = set()

    def choose(self, sizes: Mapping[str, int]) -> set[str]:
        """Returns at most ``most`` names, mostly those with the largest sizes in bytes."""
        order = sorted(sizes, key=lambda name: (-sizes[name], name))
        stays = self._chosen.intersection(order[: 2 * self._most])
        free = self._most - len(stays)
        self._chosen = stays | set([name for name in order if name not in stays][:free])
        return self._chosen


class MachineMetrics:
    """Formats figures of a machine as metrics. For one thread at a time."""

    def __init__(self) -> None:
        self._commands, self._groups = LargestNames(), LargestNames()

    def lines(self, machine: MachineMemory, counts: WatchCounts) -> Iterator[str]:
        """Yields the lines of an OpenMetrics text, without the final ``# EOF``."""
        yield from _gauge("machine_memory_bytes", "state", "Memory of the machine", {
            "available": machine.available_bytes,
            "used": machine.total_bytes - machine.available_bytes,
            "swapped": machine.swap_used_bytes,
        })  # fmt: skip
        yield from self._processes(machine)
        yield from self._group_lines(machine)
        text = "Leaking call stacks in the newest recording"
        yield from _gauge("leaking_stacks", "target", text, counts.leaking)
        for name, text, by_target in (
            ("rules_broken", "Rules that targets have broken", counts.rules),
            ("memory_kills", "Processes of targets killed for want of memory", counts.kills),
        ):
            yield from family_lines(f"tracelloc_{name}", "counter", "", text)
            for target, count in by_target.items():
                yield f"tracelloc_{name}_total{label_text({'target': target})} {count}"

    def _processes(self, machine: MachineMemory) -> Iterator[str]:
        counts, sizes, rates = Counter[str](), Counter[str](), Counter[str]()
        for process in machine.processes:
            name = _label(process.command)
            counts[name] += 1
            sizes[name] += process.trend.size_bytes
            rates[name] += process.trend.rate
        chosen = self._commands.choose(sizes)
        for metric, text, figures in (
            ("processes", "Processes", counts),
            ("process_memory_bytes", "Memory of processes, swapped out included", sizes),
            ("process_growth_bytes_per_min", "Growth of processes per minute", rates),
        ):
            shown = Counter[str]()
            for name, figure in figures.items():
                shown[name if name in chosen else OTHERS] += figure
            yield from _gauge(metric, "command", text, shown)

    def _group_lines(self, machine: MachineMemory) -> Iterator[str]:
        # Of two groups with one name, as of a container's scope and what is in it, the outer one.
        order = sorted(machine.groups, key=lambda group: (-group.trend.size_bytes, group.path))
        groups: dict[str, GroupMemory] = {}
        for group in order:
            groups.setdefault(_label(group.name), group)
        chosen = self._groups.choose(
            {name: group.trend.size_bytes for name, group in groups.items()}
        )
        shown = {name: group for name, group in groups.items() if name in chosen}
        for metric, text, figure_of in _GROUP_METRICS:
            figures = {name: figure_of(group) for name, group in shown.items()}
            known = {name: figure for name, figure in figures.items() if figure is not None}
            yield from _gauge(metric, "group", text, known)


_GROUP_METRICS: Final[tuple[tuple[str, str, Callable[[GroupMemory], float | None]], ...]] = (
    ("group_memory_bytes", "Memory of control groups", lambda group: group.trend.size_bytes),
    (
        "group_growth_bytes_per_min",
        "Growth of control groups per minute",
        lambda group: group.trend.rate,
    ),
    ("group_limit_bytes", "Limits of control groups", lambda group: group.limit_bytes),
    (
        "group_free_bytes",
        "What is left below the limit, and what the kernel could drop",
        lambda group: group.free_bytes,
    ),
    (
        "group_limit_reached_seconds",
        "Time until the limit is reached if growth goes on",
        lambda group: group.limit_in_s,
    ),
)


def _gauge(name: str, label: str, text: str, figures: Mapping[str, float]) -> Iterator[str]:
    unit = next((unit for unit in ("bytes", "seconds") if name.endswith(unit)), "")
    yield from family_lines(f"tracelloc_{name}", "gauge", unit, text)
    for value, figure in figures.items():
        yield f"tracelloc_{name}{label_text({label: value})} {figure:.15g}"


def _label(name: str) -> str:
    return name[:_LONGEST_LABEL]
