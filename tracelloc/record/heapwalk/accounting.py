"""Accounts for a process's resident memory: each mapping by kind, the heap by state of its blocks.

The kernel says how much of each mapping is resident (``record.process.regions``), and the walk of
the heap which pages of it are in use or free. What the walk explains of a mapping is taken from the
mapping's own part, so the sum of all parts is what the kernel counts.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass, field
from tracelloc.model.codefiles import base_name
from tracelloc.model.heapusage import ArenaUsage, MemoryAccount, MemoryPart
from tracelloc.record.heapwalk.pieces import AddressRuns, merged
from tracelloc.record.process.memory import PAGE_BYTES, U64, RemoteMemory
from tracelloc.record.process.procfs import PROC, TRAMPOLINE_MAPPING, Process
from tracelloc.record.process.regions import MappingUsage, read_mapping_usages
from tracelloc.record.runtimes.ownheaps import java_figures, runtime_heaps
from tracelloc.record.sources.preloaded.sharedarea import AREA_NAME

_MOST_ITEMS: Final = 8
_MOST_LIBRARY_BSS_BYTES: Final = 1 << 20  # Memory behind a library's data that may be its variables
_MOST_GUARD_BYTES: Final = 1 << 16  # Before a thread's stack; more is reserved for something else
_MEMORY_FILES: Final = "/memfd:", "/SYSV", "/dev/zero", "[anon_shmem:"
_MEMORY_SYSTEMS: Final = "tmpfs", "ramfs", "devtmpfs", "hugetlbfs"
# What names of mappings say: a pattern, the part of memory, and the title with the first group.
# Programs give names to memory without a file (PR_SET_VMA_ANON_NAME in prctl(2)).
_NAMES: Final = tuple(
    (re.compile(pattern), part, title)
    for pattern, part, title in (
        (r"\[stack.*|\[anon: ?glibc: pthread .*", MemoryPart.STACKS, ""),
        (r"\[anon: ?((?:Go|Ruby|OCaml|cpython|MMTk|mmtk)\b.*|zend_.*|dalvik-.*)\]",
         MemoryPart.RUNTIME, "{}"),
        (r"\[anon: ?(.*)\]", MemoryPart.OTHER, "{}"),
        (r"/memfd:java_heap", MemoryPart.SHARED, "Java heap"),
        (r"/memfd:(?:vmem|doublemapper)", MemoryPart.SHARED, "generated code"),
        (r"\[anon_shmem:(.*)\]", MemoryPart.SHARED, "{}"),
    )
)  # fmt: skip


def kind_by_name(path: str) -> tuple[MemoryPart, str] | None:
    """Returns the part of memory, and a title, that a mapping's name tells; None: it tells none."""
    for pattern, part, title in _NAMES:
        if match := pattern.fullmatch(path):
            return part, title.format(*match.groups())
    return None


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
    """Accounts for resident memory, given the walked heap, and which parts of it are resident."""
    mappings = list(read_mapping_usages(memory.process))
    edges = np.array([(m.start, m.end) for m in mappings], np.uint64).reshape(-1, 2)
    in_heap = resident.bytes_of(edges[:, 0], edges[:, 1]).tolist()
    sums = _PartSums()
    for arena in arenas:
        for part, size_bytes in arena.resident.items():
            sums.add(part, size_bytes, arena.name)
    runtimes = _runtime_bytes(memory, mappings, edges)
    place = _Places(memory, mappings, [name for name, _ in runtimes])
    shared = _shared_files(memory, mappings)
    inherited: dict[MemoryPart, int] = defaultdict(int)
    for number, (mapping, heap_bytes) in enumerate(zip(mappings, in_heap, strict=True)):
        # Blocks may lie in shared memory, too.
        file_bytes = max(0, mapping.rss_bytes - max(mapping.anonymous_bytes, heap_bytes))
        part, name = place.of_file(mapping)
        if part is MemoryPart.SHARED:
            file = mapping.device, mapping.inode
            again, is_alone = shared.get(file, (0, False))
            repeated = min(again, file_bytes)
            shared[file] = again - repeated, is_alone
            sums.add(MemoryPart.AGAIN, repeated)
            file_bytes -= repeated
            name += ", of this process only" if is_alone else ""
        sums.add(part, file_bytes, name)
        rest = max(0, mapping.anonymous_bytes - heap_bytes)
        largest = heap_bytes, MemoryPart.IN_USE
        for title, in_runtime in runtimes:
            objects = min(rest, in_runtime[number])
            sums.add(MemoryPart.RUNTIME, objects, title)
            largest = max(largest, (objects, MemoryPart.RUNTIME), key=itemgetter(0))
            rest -= objects
        found = place.of_rest(number, rest, heap_bytes)
        sums.add(*found)
        if not mapping.inode:
            _, part = max(largest, (rest, found[0]), key=itemgetter(0))
            inherited[part] += min(mapping.shared_bytes, mapping.anonymous_bytes)
    stacks = place.thread_stacks()
    return MemoryAccount(
        {part: sums.parts[part] for part in MemoryPart if part in sums.parts},
        sums.largest(),
        swapped_bytes=sum(m.swapped_bytes for m in mappings),
        page_table_bytes=memory.process.page_table_bytes(),
        huge_bytes=sum(m.huge_bytes for m in mappings),
        hugetlb_bytes=sum(m.hugetlb_bytes for m in mappings),
        device_bytes=sum(m.end - m.start for m in mappings if m.is_of_device),
        devices=tuple({base_name(m.path): None for m in mappings if m.is_of_device})[:_MOST_ITEMS],
        runtime=java_figures(memory, mappings),
        stacks=len(stacks),
        threads=max(0, len(memory.process.thread_ids()) - 1),
        stack_space_bytes=sum(stack.end - stack.start for stack in stacks),
        inherited={part: size for part, size in inherited.items() if size},
    )


def _runtime_bytes(
    memory: RemoteMemory, mappings: Sequence[MappingUsage], edges: U64
) -> list[tuple[str, list[int]]]:
    """Returns (title, resident bytes in each mapping) of the heaps of language runtimes."""
    found = []
    mapped = AddressRuns.from_ranges((m.start, m.end) for m in mappings if m.rss_bytes)
    for name, ranges in runtime_heaps(memory, mappings):
        runs = AddressRuns.from_ranges(merged(ranges)).intersect(mapped)
        areas = list(zip(runs.starts.tolist(), runs.ends.tolist(), strict=True))
        runs = AddressRuns.read_resident(memory, areas)
        found.append((name, runs.bytes_of(edges[:, 0], edges[:, 1]).tolist()))
    return found


def _shared_files(
    memory: RemoteMemory, mappings: Sequence[MappingUsage]
) -> dict[tuple[str, int], tuple[int, bool]]:
    """Looks at files that are mapped to be shared, by device and inode.

    Returns resident bytes at further addresses, where the kernel counts them again, and whether no
    other process maps the file. Raises OSError, PrivilegeError.
    """
    found, files = {}, defaultdict[tuple[str, int], list[MappingUsage]](list)
    for mapping in mappings:
        if mapping.inode and mapping.rights[3] == "s" and mapping.rss_bytes:
            files[mapping.device, mapping.inode].append(mapping)
    for file, parts in files.items():
        ranges = [(part.start, part.end) for part in parts if len(parts) > 1]
        shifts = [part.offset - part.start for part in parts]
        runs = memory.resident_runs(ranges, lambda: True)
        pages = merged((start + shifts[n], end + shifts[n]) for n, start, end in runs)
        rss_bytes = sum(part.rss_bytes for part in parts)
        once_bytes = sum(end - start for start, end in pages) or rss_bytes
        # A page's share is rounded down to KiB in each mapping.
        own_bytes = sum(part.pss_bytes for part in parts) + (len(parts) << 10)
        found[file] = max(0, rss_bytes - once_bytes), own_bytes >= once_bytes
    return found


class _Places:
    """Tells what a process's mappings are for: stacks, variables, files, other memory."""

    def __init__(
        self, memory: RemoteMemory, mappings: list[MappingUsage], runtimes: Sequence[str]
    ) -> None:
        """``runtimes``: titles of the heaps of language runtimes."""
        process = memory.process
        self._memory, self._mappings = memory, mappings
        self._stacks: list[int] = []  # Numbers of mappings
        # Without a library, a Go program's memory is all its runtime's.
        files = {(m.device, m.inode) for m in mappings if m.inode}
        self._is_go = "Go heap" in runtimes and len(files) == 1
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
        if mapping.inode:
            return kind_by_name(path) or (MemoryPart.SHARED, base_name(path))
        return MemoryPart.OTHER, path

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
        elif (kind := kind_by_name(path)) is not None:
            part, name = kind
        elif self._is_stack(number):
            part, name = MemoryPart.STACKS, ""
        elif "x" in mapping.rights and not path:
            part = MemoryPart.CODE
        elif not path and (library := self._library_before(number)):
            part, name = MemoryPart.DATA, library
        elif self._is_go and not path:
            part, name = MemoryPart.RUNTIME, "Go's own data"
        if part is MemoryPart.STACKS and path != "[stack]":
            self._stacks.append(number)
        return part, size_bytes, name

    def thread_stacks(self) -> list[MappingUsage]:
        """Returns stacks that glibc has made for threads; none if several may be in a mapping.

        Fibers have stacks, too; a thread's ends with its description, which points to itself
        twice: on x86-64, its begin (`tcbhead_t`), on all, its empty list of robust mutexes.
        """
        stacks = [self._mappings[number] for number in self._stacks]
        if any(stack.may_have_guards for stack in stacks):
            return []
        starts = np.array([stack.end - PAGE_BYTES for stack in stacks], np.uint64)
        words, _ = self._memory.read(starts, PAGE_BYTES)
        places = starts[:, None] + np.arange(0, PAGE_BYTES, 8, dtype=np.uint64)
        own = words == places
        is_thread = (own[:, :-2] & (words[:, 2:] == places[:, :-2])).any(axis=1)
        is_thread |= (own[:, 1:] & (words[:, :-1] == places[:, 1:])).any(axis=1)
        return [stack for stack, found in zip(stacks, is_thread.tolist(), strict=True) if found]

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
        """Returns the file whose variables (bss) a mapping seems to continue; empty if none."""
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
