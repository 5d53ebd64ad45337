"""The memory areas of a process that may contain pointers to its blocks.

The areas are the process's own: heap, stacks, data of modules, and anonymous mappings, also those
shared with its children. Files are read only where a private copy may have been written to:
addresses in a file would mean nothing to the next process that maps it. The preloaded library's
shared memory has the addresses of blocks in events.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tracelloc.record.process.regions import read_regions
from tracelloc.record.sources.preloaded.sharedarea import AREA_NAME

# Names of mappings that are shared anonymous memory (mm/shmem.c, ipc/shm.c).
_SHARED_MEMORY = "/dev/zero", "/memfd:", "/dev/shm/", "/SYSV"  # noqa: S108 - names in maps


class MemoryArea(NamedTuple):
    """Contiguous memory that may contain pointers, from a start address to an end."""

    start: int
    end: int
    is_code: bool  # Whether it holds code without a file, in which pointers need not be aligned


def searched_areas(maps_text: str) -> Iterator[MemoryArea]:
    """Yields the areas to search, from the text of ``/proc/PID/maps`` (proc_pid_maps(5))."""
    for region in read_regions(maps_text):
        is_shared_memory = region.path.startswith(_SHARED_MEMORY)
        if "r" not in region.rights or region.path.startswith(AREA_NAME):
            continue
        if region.path.startswith(("[v", "/dev/")) and not is_shared_memory:
            continue
        # Pages of a file that are not writable are those of the file.
        is_own = "p" in region.rights and ("w" in region.rights or not region.inode)
        if is_own or is_shared_memory:
            yield MemoryArea(region.start, region.end, "x" in region.rights)
