"""Limits on the memory of processes and control groups.

Limits are those of the memory controller of cgroups, version 2 (memory.max, the kernel's
cgroup-v2.rst) or 1 (memory.limit_in_bytes, cgroup-v1/memory.rst), of a process's own
group and its ancestors, and the machine's memory (proc_meminfo(5)). What the kernel can reclaim,
page cache and caches of file systems, does not count as used.
"""

import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tracelloc.model.process import MemoryLimit

_PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
LEAST_BYTES: Final = 256 << 20  # What the smallest trace needs, with some room
# The default budget is this fraction (1/n) of the available memory: the second one for little.
_SHARE, _LARGEST_SHARE, _LITTLE_BYTES = 10, 4, 512 << 20
_BEYOND: Final = 4  # Multiple of a budget that RLIMIT_DATA allows
_UNKNOWN_BYTES: Final = 4 << 30  # Available memory to assume if it is unknown
_UNLIMITED: Final = 1 << 62  # cgroup version 1 reports no limit as a number nearly this large


class _Version(NamedTuple):
    """Names of a cgroup version: folders of groups, files, keys of memory.stat by kind."""

    folders: tuple[str, ...]
    limit: str
    usage: str
    reclaimable: tuple[str, ...]
    anonymous: str
    shared: str
    # What each byte of page cache takes in the kernel (buffer heads, tree nodes), if memory.stat
    # does not say what the kernel can reclaim of its own memory.
    cache_overhead: float = 0.0

    def reclaimable_bytes(self, stat: Mapping[str, int]) -> int:
        """Returns what the kernel can reclaim from a group with these numbers in memory.stat."""
        found = sum(stat.get(key, 0) for key in self.reclaimable)
        return found + round(self.cache_overhead * found)


_VERSION_1: Final = _Version(
    ("memory",), "memory.limit_in_bytes", "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"), "total_rss", "total_shmem", 1 / 32,
)  # fmt: skip
_VERSION_2: Final = _Version(
    ("", "unified"), "memory.max", "memory.current",
    ("inactive_file", "active_file", "slab_reclaimable"), "anon", "shmem",
)  # fmt: skip


class MemoryGroup(NamedTuple):
    """A control group that counts memory."""

    path: str  # From the root of its hierarchy; empty if it is not known
    version: _Version

    def directories(self, cgroups: Path) -> list[Path]:
        return [cgroups / folder / self.path.lstrip("/") for folder in self.version.folders]


def closest_limit(process: Path, cgroups: Path = CGROUPS) -> MemoryLimit | None:
    """Returns the limit with the least free memory, or None. ``process``: in /proc."""
    group = memory_group(process)
    groups = (group._replace(path=path) for path in [*group_and_ancestors(group.path), "/"])
    limits = [limit for each in groups if (limit := group_limit(each, cgroups)) is not None]
    machine = numbers_in(process.parent / "meminfo") or numbers_in(_PROC / "meminfo")
    if "MemAvailable" in machine:
        sizes = [machine[name] << 10 for name in ("MemTotal", "MemAvailable")]
        limits.append(MemoryLimit("machine", *sizes))
    return min(limits, key=lambda limit: limit.free_bytes, default=None)


def memory_group(process: Path) -> MemoryGroup:
    """Returns the group that counts a process's memory. ``process``: its directory in /proc."""
    found = MemoryGroup("", _VERSION_2)
    for line in _read_text(process / "cgroup").split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return MemoryGroup(path, _VERSION_1)
        if number == "0":
            found = MemoryGroup(path, _VERSION_2)
    return found


def group_kinds(group: MemoryGroup, cgroups: Path = CGROUPS) -> tuple[int, int, int, int] | None:
    """Returns a group's bytes: anonymous, shared, reclaimable, the kernel's; None: not counted."""
    version = group.version
    for directory in group.directories(cgroups):
        left = _number(directory / version.usage)
        if left is not None:
            stat, sizes = numbers_in(directory / "memory.stat"), []
            kinds = stat.get(version.anonymous, 0), stat.get(version.shared, 0)
            for size in (*kinds, version.reclaimable_bytes(stat)):
                sizes.append(min(left, size))
                left -= sizes[-1]
            anonymous, shared, reclaimable = sizes
            return anonymous, shared, reclaimable, left
    return None


def group_limit(group: MemoryGroup, cgroups: Path = CGROUPS) -> MemoryLimit | None:
    """Returns a group's own limit and the memory left; None if the group has no limit."""
    found = (_limit_in(directory, group.version) for directory in group.directories(cgroups))
    return next((limit for limit in found if limit is not None), None)


def group_and_ancestors(path: str) -> list[str]:
    """Returns the paths of a group and its ancestors but the root; empty if it is not visible."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # outside of the visible part of this cgroup namespace
        return []
    return ["/" + "/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]


def _limit_in(group: Path, version: _Version) -> MemoryLimit | None:
    size, usage = _number(group / version.limit), _number(group / version.usage)
    if size is None or usage is None or size >= _UNLIMITED:
        return None
    reclaimable = version.reclaimable_bytes(numbers_in(group / "memory.stat"))
    return MemoryLimit("cgroup", size, max(0, size - max(0, usage - reclaimable)))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read_text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def numbers_in(path: Path) -> dict[str, int]:
    """Returns the numbers in a file by name: lines ``name: number unit`` or ``name number``."""
    found = {}
    for line in _read_text(path).split("\n"):
        words = line.split()
        if len(words) >= 2 and words[1].isascii() and words[1].isdigit():
            found[words[0].removesuffix(":")] = int(words[1])
    return found


def default_budget() -> int:
    """Returns a tenth of the available memory, or 512 MiB, but no more than a quarter of it."""
    limit = closest_limit(_PROC / str(os.getpid()))
    available = _UNKNOWN_BYTES if limit is None else limit.free_bytes
    share = max(available // _SHARE, min(_LITTLE_BYTES, available // _LARGEST_SHARE))
    return max(LEAST_BYTES, share)


def limit_own_memory(budget_bytes: int) -> None:
    """Has the kernel refuse allocations far beyond a budget (RLIMIT_DATA)."""
    used = numbers_in(_PROC / "self" / "status").get("VmData", 0) << 10
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # Writing names and files at the end briefly takes more than tracing does.
    bound = used + _BEYOND * budget_bytes + LEAST_BYTES
    if soft == resource.RLIM_INFINITY or bound < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
