"""The mappings of a process with their access rights, and how much of each is resident.

Formats: ``/proc/PID/maps`` and ``/proc/PID/smaps`` (proc_pid_maps(5), proc_pid_smaps(5); Linux,
Documentation/filesystems/proc.rst). Unlike the counters in ``/proc/PID/status``, which lag behind,
the figures of smaps are counted page by page.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tracelloc.record.process.procfs import Process

_HEADER: Final = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) (\S+) (\d+)[ ]*(.*)$", re.ASCII
)
_FIELDS: Final = {
    b"Rss": 0, b"Anonymous": 1, b"AnonHugePages": 2, b"Swap": 3, b"Private_Hugetlb": 4,
    b"Shared_Hugetlb": 4, b"Pss": 5, b"Shared_Clean": 6, b"Shared_Dirty": 6,
}  # fmt: skip
_SUMS: Final = 7
_DEVICE_FLAGS: Final = {b"io", b"pf"}


class Region(NamedTuple):
    """A line of ``/proc/PID/maps`` (proc_pid_maps(5))."""

    start: int
    end: int
    rights: str  # Such as `rw-p`
    offset: int
    inode: int
    path: str

    @property
    def is_anonymous(self) -> bool:
        """Whether the mapping is private, writable memory without a file or special purpose."""
        named = self.path and not self.path.startswith("[anon")
        return not self.inode and self.rights[:2] == "rw" and self.rights[3] == "p" and not named


def read_regions(maps_text: str) -> list[Region]:
    """Parses the text of ``/proc/PID/maps``: returns a process's mappings, by address."""
    found = []
    for line in (each for each in maps_text.split("\n") if each.count(" ") >= 4):
        addresses, rights, offset, _device, inode, *path = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in addresses.split("-"))
        found.append(Region(start, end, rights, int(offset, 16), int(inode), "".join(path)))
    return found


def variables_of(regions: Sequence[Region]) -> Iterator[Region]:
    """Yields mappings with files' variables: writable data, and the zeroed parts after it."""
    for number, region in enumerate(regions):
        before = regions[number - 1] if number else region
        is_zeroed = not region.inode and before.inode and before.end == region.start
        if region.rights[:2] == "rw" and (region.inode or is_zeroed):
            yield region


class MappingUsage(NamedTuple):
    """The memory of one mapping, in bytes."""

    start: int
    end: int
    rights: str
    offset: int
    device: str  # Major and minor number of the file's device, in hexadecimal: `00:01`
    inode: int
    path: str  # May contain any bytes that a file's name can have
    rss_bytes: int
    anonymous_bytes: int  # Resident memory without a file, or written to privately
    huge_bytes: int  # Resident memory in transparent huge pages
    swapped_bytes: int
    hugetlb_bytes: int
    pss_bytes: int  # Resident memory, each page divided by how often it is mapped
    shared_bytes: int  # Resident memory that is mapped more than once
    is_of_device: bool  # Whether it is memory of a device, which is not counted
    # Whether the process may have installed guard pages in the mapping (MADV_GUARD_INSTALL).
    may_have_guards: bool


def read_mapping_usages(process: Process) -> Iterator[MappingUsage]:
    """Yields all mappings by address; none once the process has ended. Raises OSError."""
    header: re.Match[bytes] | None = None
    path, link = map(os.fsencode, process.program_paths() or ("", ""))
    links = {path: link}
    sums, flags = [0] * _SUMS, set[bytes]()
    with (process.memory_directory / "smaps").open("rb") as lines:
        for line in lines:
            name, colon, rest = line.partition(b":")
            if colon and (field := _FIELDS.get(name)) is not None:
                sums[field] += int(rest.split()[0]) << 10
            elif name == b"VmFlags":
                flags = set(rest.split())
            elif found := _HEADER.match(line):
                if header is not None:
                    yield _usage(header, links, sums, flags)
                header, sums, flags = found, [0] * _SUMS, set()
    if header is not None:
        yield _usage(header, links, sums, flags)


def _usage(
    header: re.Match[bytes], links: Mapping[bytes, bytes], sums: list[int], flags: set[bytes]
) -> MappingUsage:
    start, end, rights, offset, device, inode, path = header.groups()
    name = links.get(path, path).decode(errors="backslashreplace")
    rss, anonymous, huge, swapped, hugetlb, pss, shared = sums
    is_of_device = bool(int(inode)) and not _DEVICE_FLAGS.isdisjoint(flags)
    return MappingUsage(
        int(start, 16), int(end, 16), rights.decode(), int(offset, 16), device.decode(),
        int(inode), name, rss, anonymous, huge, swapped, hugetlb, pss, shared, is_of_device,
        b"gu" in flags,
    )  # fmt: skip
