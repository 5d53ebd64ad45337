"""The mappings of a process with their access rights, from /proc/PID/maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Region(NamedTuple):
    """A line of ``/proc/PID/maps`` (proc_pid_maps(5))."""

    start: int
    end: int
    rights: str
    """Such as ``rw-p``."""
    offset: int
    inode: int
    path: str

    @property
    def is_anonymous(self) -> bool:
        """Whether it is private, writable memory without a file or a special purpose."""
        named = self.path and not self.path.startswith("[anon")
        return not self.inode and self.rights[:2] == "rw" and self.rights[3] == "p" and not named


def read_regions(maps_text: str) -> list[Region]:
    """The mappings of a process, by address, from the text of its maps."""
    found = []
    for line in maps_text.split("\n"):
        if line.count(" ") < 4:
            continue
        addresses, rights, offset, _device, inode, *path = line.split(maxsplit=5)
        start, _, end = addresses.partition("-")
        found.append(
            Region(int(start, 16), int(end, 16), rights, int(offset, 16), int(inode), "".join(path))
        )
    return found


def variables_of(regions: Sequence[Region]) -> Iterator[Region]:
    """Yields the files' writable data, and their zeroed parts, which follow without a gap."""
    for number, region in enumerate(regions):
        before = regions[number - 1] if number else region
        is_zeroed = not region.inode and before.inode and before.end == region.start
        if region.rights[:2] == "rw" and (region.inode or is_zeroed):
            yield region
