"""Reads the memory of control groups: containers, pods and units.

Which groups there are is known from their processes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tracelloc.model.machine import GroupMemory
from tracelloc.record.machine.history import GrowthHistory
from tracelloc.record.process.memorylimits import (
    CGROUPS,
    MemoryGroup,
    group_limit,
    group_usage,
    groups_above,
)

_NAMES: Final = (
    (
        re.compile(r"(?:^|[/-])(?P<id>[0-9a-f]{64})(?:\.scope)?(?:/container)?$"),
        "container {0:.12}",
    ),
    (re.compile(r"[/-]pod(?P<id>[0-9a-f]{8}[-_][-_0-9a-f]{27})(?:\.slice)?$"), "pod {0}"),
    (re.compile(r"/(?P<id>[^/]+\.(?:service|scope|socket|slice))$"), "{0}"),
)
"""How paths of groups end, and what people call such a group."""


def name_of(path: str) -> str:
    """What people call a group."""
    for pattern, text in _NAMES:
        match = pattern.search(path)
        if match:
            return text.format(match["id"].replace("_", "-") if "pod" in text else match["id"])
    return path


class GroupReader:
    """Reads the groups of processes, and those above. For one thread at a time."""

    def __init__(self, root: Path = CGROUPS) -> None:
        self._root = root
        self._history = GrowthHistory(1)
        self._rows: dict[MemoryGroup, int] = {}

    def look(self, now_s: float, groups: Iterable[MemoryGroup]) -> list[GroupMemory]:
        """Reads each group that has a limit, or a name of its own. ``groups``: one per process."""
        counts: Counter[MemoryGroup] = Counter()
        for group, count in Counter(groups).items():
            for above in groups_above(group.path):
                counts[group._replace(path=above)] += count
        used = {}
        for group in counts:
            size_bytes = group_usage(group, self._root)
            if size_bytes is not None:
                used[group] = size_bytes
        for group in self._rows.keys() - used.keys():
            self._history.remove(self._rows.pop(group))
        for group in used.keys() - self._rows.keys():
            self._rows[group] = self._history.add(now_s)
        rows = [self._rows[group] for group in used]
        self._history.record(
            now_s, dict(zip(rows, ([size] for size in used.values()), strict=True))
        )
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
