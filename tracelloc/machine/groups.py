"""Reads the memory of control groups: containers, pods and units.

Which groups there are is known from their processes.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracelloc.errors import TargetError
from tracelloc.machine.machinememory import GROUP_KINDS, GroupMemory, GrowthHistory
from tracelloc.record.process.identity import POD
from tracelloc.record.process.procfs import PROC, Process
from tracelloc.system.memorylimits import (
    CGROUPS,
    MemoryGroup,
    group_and_ancestors,
    group_kinds,
    group_limit,
    memory_group,
)
from tracelloc.text import printable

_CONTAINER: Final = re.compile(r"(?:^|[/-])(?P<id>[0-9a-f]{64})(?:\.scope)?(?:/container)?$")
_LEAST_DIGITS: Final = 4  # Digits of a container's ID that have to be given
# How paths of groups end, and what people call such a group.
_NAMES: Final = (
    (_CONTAINER, "container {0:.12}"),
    (re.compile(rf"{POD}(?:\.slice)?$"), "pod {0}"),
    (re.compile(r"/(?P<id>[^/]+\.(?:service|scope|socket|slice))$"), "{0}"),
)


class NoGroupError(TargetError):
    """No control group of the wanted name exists now."""


def name_of(path: str) -> str:
    """Returns a control group's short name for people, given its path."""
    for pattern, text in _NAMES:
        match = pattern.search(path)
        if match:
            return text.format(match["id"].replace("_", "-") if "pod" in text else match["id"])
    return path


def _is_below(group: MemoryGroup, other: MemoryGroup) -> bool:
    return group.version == other.version and group.path.startswith(f"{other.path}/")


def find_group(wanted: str, root: Path = PROC) -> MemoryGroup:
    """Returns the group of a container (start of its ID), a pod (UID), a unit, or with a path.

    Raises TargetError if several groups match; NoGroupError if no group with processes does.
    """
    found = {
        group._replace(path=path)
        for group in set(_groups_of_all(root))
        for path in group_and_ancestors(group.path)
        if _is_called(path, wanted)
    }
    # Of a group and those below it, as of a container's scope and its payload, the outer one.
    outer = [one for one in found if not any(_is_below(one, other) for other in found)]
    if len(outer) == 1:
        return outer[0]
    if not outer:
        raise NoGroupError(
            f"no control group with processes is called {printable(wanted)}",
            hint="tracelloc top lists those of containers, pods and units",
        )
    lines = "\n".join(f"    {printable(one.path)}" for one in sorted(outer))
    raise TargetError(f"{len(outer)} control groups are called {printable(wanted)}:\n{lines}")


def members_of(group: MemoryGroup) -> list[int]:
    """Returns the PIDs of the processes in a group and in groups below it, the oldest first."""
    pids: set[int] = set()
    for directory in group.directories(CGROUPS):
        for file in directory.rglob("cgroup.procs"):
            with suppress(OSError, ValueError):
                pids.update(map(int, file.read_text().split()))
    starts = {}
    for pid in pids - {0}:
        with suppress(TargetError):
            starts[pid] = Process(pid).start_ticks()
    return sorted(starts, key=lambda pid: (starts[pid], pid))


def _groups_of_all(root: Path) -> Iterator[MemoryGroup]:
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                yield memory_group(root / entry.name)


def _is_called(path: str, wanted: str) -> bool:
    if wanted.startswith("/"):
        return path == wanted
    container = _CONTAINER.search(path)
    if container is not None:
        return len(wanted) >= _LEAST_DIGITS and container["id"].startswith(wanted)
    return wanted in (path.rpartition("/")[2], name_of(path).removeprefix("pod "))


class GroupReader:
    """Reads the memory of the control groups that processes are in. For one thread at a time."""

    def __init__(self, root: Path = CGROUPS) -> None:
        self._root = root
        self._history = GrowthHistory(GROUP_KINDS)
        self._rows: dict[MemoryGroup, int] = {}

    def read_groups(self, now_s: float, groups: Iterable[MemoryGroup]) -> list[GroupMemory]:
        """Reads groups that have a limit or a name of their own. ``groups``: one per process."""
        counts: Counter[MemoryGroup] = Counter()
        for group, count in Counter(groups).items():
            for above in group_and_ancestors(group.path):
                counts[group._replace(path=above)] += count
        used = {}
        for group in counts:
            kinds = group_kinds(group, self._root)
            if kinds is not None:
                used[group] = kinds
        for group in self._rows.keys() - used.keys():
            self._history.remove(self._rows.pop(group))
        for group in used.keys() - self._rows.keys():
            self._rows[group] = self._history.add(now_s)
        rows = [self._rows[group] for group in used]
        self._history.record(now_s, dict(zip(rows, used.values(), strict=True)))
        found = []
        for group, trend in zip(used, self._history.trends(rows), strict=True):
            limit, name = group_limit(group, self._root), name_of(group.path)
            if limit is not None or name != group.path:
                found.append(GroupMemory(
                    group.path, name, counts[group], trend,
                    None if limit is None else limit.size_bytes,
                    None if limit is None else limit.free_bytes,
                ))  # fmt: skip
        return found
