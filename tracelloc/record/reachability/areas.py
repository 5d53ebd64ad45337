"""The memory of a process in which pointers to its blocks may be.

All that is its own: heap, stacks, data of modules, anonymous mappings, also those that it shares
with its children. Files are read only where a private copy may have been written to, as addresses
in a file would mean nothing to the next process that maps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_SHARED_MEMORY = "/dev/zero", "/memfd:", "/dev/shm/", "/SYSV"  # noqa: S108 - names in maps
"""Mappings of these names are anonymous memory that is shared (mm/shmem.c, ipc/shm.c)."""


class Area(NamedTuple):
    """Contiguous memory, from its first address to its end."""

    start: int
    end: int
    is_code: bool
    """Made by the program itself: pointers in instructions are not aligned."""


def searched_areas(maps_text: str) -> Iterator[Area]:
    """Yields the areas from ``/proc/PID/maps`` (proc_pid_maps(5))."""
    for line in maps_text.split("\n"):
        if line.count(" ") < 4:
            continue
        addresses, rights, _offset, _device, inode, *path = line.split(maxsplit=5)
        name = "".join(path)
        is_shared_memory = name.startswith(_SHARED_MEMORY)
        if "r" not in rights or (name.startswith(("[v", "/dev/")) and not is_shared_memory):
            continue
        # Without the right to write, a file's pages are those of the file.
        is_own = "p" in rights and ("w" in rights or inode == "0")
        if is_own or is_shared_memory:
            start, _, end = addresses.partition("-")
            yield Area(int(start, 16), int(end, 16), "x" in rights)
