"""Accounts for a process's resident memory: each mapping by kind, the heap by state of its blocks.

The kernel says how much of each mapping is resident (``record.process.regions``), and the walk of
the heap which pages of it are in use or free. What the walk explains of a mapping is taken from the
mapping's own part, so the sum of all parts is what the kernel counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass, field
from tracelloc.model.codefiles import base_name
from tracelloc.model.heapusage import ArenaUsage, MemoryAccount, MemoryPart
from tracelloc.record.heapwalk.pieces import AddressRuns
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import PROC, TRAMPOLINE_MAPPING, Process
from tracelloc.record.process.regions import MappingUsage, read_mapping_usages, read_table_bytes
from tracelloc.record.runtimes.supported import runtime_heap
from tracelloc.record.sources.preloaded.sharedarea import AREA_NAME

_MOST_ITEMS: Final = 8
# Bytes without a file behind a library's data up to which they count as its variables.
_MOST_LIBRARY_BSS_BYTES: Final = 1 << 20
# Bytes of a guard before a thread's stack; more is reserved for something else.
_MOST_GUARD_BYTES: Final = 1 << 16
_MEMORY_FILES: Final = "/memfd:", "/SYSV", "/dev/zero"
_MEMORY_SYSTEMS: Final = "tmpfs", "ramfs", "devtmpfs", "hugetlbfs"


@dataclass(slots=True)
class _PartSums:
    parts: dict[MemoryPart, int] = field(default_factory=lambda: defaultdict(int))
    names: dict[MemoryPart, dict[str, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )

    def add(self, part: MemoryPart, size_bytes: int, name: str = "") -> None:
        if size_bytes > 0:
            self.parts[part] += size_bytes
            if name:
                self.names[part][name] += size_bytes

    def largest(self) -> dict[MemoryPart, tuple[tuple[str, int], ...]]:
        return {
            part: tuple(sorted(sizes.items(), key=lambda row: (-row[1], row[0]))[:_MOST_ITEMS])
            for part, sizes in self.names.items()
        }


def account_for(
    memory: RemoteMemory, arenas: Sequence[ArenaUsage], resident: AddressRuns
) -> MemoryAccount:
    """Accounts for the resident memory of a process.

    ``arenas``: the walked heap, empty if it can't be walked; ``resident``: resident parts of it.
    Raises OSError, TargetError and PrivilegeError.
    """
    process = memory.process
    mappings = list(read_mapping_usages(process))
    edges = np.array([(m.start, m.end) for m in mappings], np.uint64).reshape(-1, 2)
    in_heap = resident.bytes_of(edges[:, 0], edges[:, 1]).tolist()
    sums = _PartSums()
    for arena in arenas:
        for part, size_bytes in arena.resident.items():
            sums.add(part, size_bytes, arena.name)
    runtime_name, ranges = runtime_heap(memory)
    in_runtime = AddressRuns.read_resident(memory, ranges).bytes_of(edges[:, 0], edges[:, 1])
    place = _Places(process, mappings)
    for number, (mapping, heap_bytes) in enumerate(zip(mappings, in_heap, strict=True)):
        file_bytes = mapping.rss_bytes - mapping.anonymous_bytes
        part, name = place.of_file(mapping)
        # Blocks may lie in shared memory, too.
        sums.add(part, file_bytes - max(0, heap_bytes - mapping.anonymous_bytes), name)
        rest = max(0, mapping.anonymous_bytes - heap_bytes)
        objects = min(rest, int(in_runtime[number]))
        sums.add(MemoryPart.RUNTIME, objects, runtime_name)
        sums.add(*place.of_rest(number, rest - objects, heap_bytes))
    return MemoryAccount(
        {part: sums.parts[part] for part in MemoryPart if part in sums.parts},
        sums.largest(),
        swapped_bytes=sum(m.swapped_bytes for m in mappings),
        page_table_bytes=read_table_bytes(process),
        huge_bytes=sum(m.huge_bytes for m in mappings),
        hugetlb_bytes=sum(m.hugetlb_bytes for m in mappings),
    )


class _Places:
    """Tells what a process's mappings are for: stacks, variables, files, other memory."""

    def __init__(self, process: Process, mappings: list[MappingUsage]) -> None:
        self._mappings = mappings
        self._devices = _memory_devices(process)
        self._executable = process.executable()
        starts = np.array([m.start for m in mappings], np.uint64)
        pointers = np.array(list(process.stack_pointers()), np.uint64)
        self._with_pointer = set((np.searchsorted(starts, pointers, side="right") - 1).tolist())

    def of_file(self, mapping: MappingUsage) -> tuple[MemoryPart, str]:
        """Returns the part of memory, and a name, for the resident pages of a mapped file."""
        path = mapping.path.removesuffix(" (deleted)")
        if path.startswith(AREA_NAME) or path == TRAMPOLINE_MAPPING:
            return MemoryPart.TRACELLOC, ""
        if path.startswith("/dev/zero"):
            return MemoryPart.SHARED, "without a name"
        is_memory = path.startswith(_MEMORY_FILES) or mapping.device in self._devices
        if mapping.inode and not is_memory:
            return MemoryPart.FILES, base_name(path)
        return (MemoryPart.SHARED, base_name(path)) if mapping.inode else (MemoryPart.OTHER, path)

    def of_rest(self, number: int, size_bytes: int, heap_bytes: int) -> tuple[MemoryPart, int, str]:
        """Returns part, bytes and name for the private pages that a heap walk does not explain."""
        mapping = self._mappings[number]
        path = mapping.path.removesuffix(" (deleted)")
        part, name = MemoryPart.OTHER, path
        if path == TRAMPOLINE_MAPPING:
            part, name = MemoryPart.TRACELLOC, ""
        elif mapping.inode:
            part, name = MemoryPart.DATA, base_name(path)
        elif (path == "[heap]" and heap_bytes) or heap_bytes > size_bytes:
            part, name = MemoryPart.OWN, ""
        elif path.startswith("[stack") or self._is_stack(number):
            part, name = MemoryPart.STACKS, ""
        elif not path and (library := self._library_before(number)):
            part, name = MemoryPart.DATA, library
        return part, size_bytes, name

    def _is_stack(self, number: int) -> bool:
        mapping = self._mappings[number]
        if (mapping.path and "stack" not in mapping.path) or mapping.rights[:2] != "rw":
            return False
        if number in self._with_pointer or mapping.may_have_guards:
            return True
        before = self._mappings[number - 1] if number else None
        return (
            before is not None
            and before.end == mapping.start
            and before.rights.startswith("---")
            and not before.inode
            and before.end - before.start <= _MOST_GUARD_BYTES
        )

    def _library_before(self, number: int) -> str:
        """Returns the file whose variables (bss) a mapping continues; empty if there is none.

        The kernel does not tell a library's bss from memory that was mapped right behind it.
        """
        before, mapping = self._mappings[number - 1], self._mappings[number]
        if not number or before.end != mapping.start or before.rights[:2] != "rw":
            return ""
        part, library = self.of_file(before)
        is_program = before.path == self._executable
        if part is MemoryPart.FILES and (
            is_program or mapping.end - mapping.start <= _MOST_LIBRARY_BSS_BYTES
        ):
            return library
        return ""


def _memory_devices(process: Process) -> set[str]:
    """Returns the devices of file systems in memory, as maps has them (proc_pid_mountinfo(5))."""
    found = {"00:01"}  # of memory that is shared without a file system
    for directory in (process.directory, PROC / "self"):
        try:
            text = (directory / "mountinfo").read_text(errors="replace")
        except OSError:
            continue
        for line in text.split("\n"):
            before, _, after = line.partition(" - ")
            if after.split(" ")[0] in _MEMORY_SYSTEMS:
                major, _, minor = before.split(" ")[2].partition(":")
                found.add(f"{int(major):02x}:{int(minor):02x}")
    return found
