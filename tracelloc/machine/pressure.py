"""Pressure on memory, and processes that the kernel has killed for want of it.

Formats: Documentation/accounting/psi.rst, cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst
(memory.oom_control, which counts a group's own processes only); ``oom_kill`` of /proc/vmstat counts
those of the whole machine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tracelloc.record.process.procfs import PROC
from tracelloc.system.memorylimits import CGROUPS, numbers_in

_SOME: Final = re.compile(r"^some .*\bavg60=(\d+\.\d+)", re.MULTILINE)
_VERSION_2: Final = ("", "unified")  # Where groups of version 2 may be found


def memory_pressure(path: str, cgroups: Path = CGROUPS, root: Path = PROC) -> float | None:
    """Returns the share of the last minute in which a process of a group waited for memory.

    If the group has no figure of its own: the machine's share; None if that is unknown, too.
    """
    places = [cgroups / folder / path.lstrip("/") / "memory.pressure" for folder in _VERSION_2]
    for file in [*places, root / "pressure/memory"]:
        try:
            match = _SOME.search(file.read_text())
        except OSError:
            continue
        if match is not None:
            return float(match[1]) / 100
    return None


def machine_kills(root: Path = PROC) -> int:
    """Returns how many processes the kernel has killed for want of memory since it started."""
    return numbers_in(root / "vmstat").get("oom_kill", 0)


def group_kills(path: str, cgroups: Path = CGROUPS) -> int | None:
    """Returns how many processes of a group were killed for want of memory; None: no group."""
    for folder in _VERSION_2:
        events = numbers_in(cgroups / folder / path.lstrip("/") / "memory.events")
        if "oom_kill" in events:
            return events["oom_kill"]
    group = cgroups / "memory" / path.lstrip("/")
    # Below the root there are all others.
    files = group.glob("memory.oom_control") if path == "/" else group.rglob("memory.oom_control")
    counts = [numbers_in(file).get("oom_kill", 0) for file in files]
    return sum(counts) if counts else None
