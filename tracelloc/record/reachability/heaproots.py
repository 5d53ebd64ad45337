"""The memory in which paths to blocks begin, divided into roots."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Final

import numpy as np

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass
from tracelloc.model.blocks import HeapRoot, RootKind
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.process.memory import U64
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.regions import Region
from tracelloc.record.reachability.links import BY_ADDRESS
from tracelloc.record.reachability.roots import RootWords, kernel_words_by_kind

_VARIABLE_BYTES: Final = 1 << 16  # Most bytes of a thread's variables that are told from a stack


@dataclass(frozen=True, slots=True)
class ThreadData:
    """Where a thread's own variables are."""

    thread_id: int
    title: str  # Such as `thread 17 (worker)`
    pointer: int  # Thread pointer: beside it are variables, and the C library's record


_U64: Final = np.uint64
# Standard streams of glibc and Rust: pointers in their buffers are stale. The heap's end: blocks
# may be there by now.
_STALE: Final = (
    "_IO_2_1_stdin_", "_IO_2_1_stdout_", "_IO_2_1_stderr_",
    "std::io::stdio::STDOUT", "std::io::stdio::stdin::INSTANCE", "__curbrk",
)  # fmt: skip
_RANKS: Final = {
    RootKind.VARIABLE: 0, RootKind.MODULE: 0, RootKind.THREAD_LOCAL: 0, RootKind.RUNTIME: 1,
    RootKind.MAPPING: 1, RootKind.KERNEL: 2, RootKind.STACK: 4, RootKind.REGISTERS: 5,
}  # fmt: skip
_STALE_RANK: Final = 3
_ANONYMOUS: Final = HeapRoot(RootKind.MAPPING, "anonymous memory")
_NEW: Final = HeapRoot(RootKind.MAPPING, "memory mapped during the search")
_HEAP: Final = HeapRoot(RootKind.MAPPING, "[heap]")  # Not seen by the walk: mostly newer, as `_NEW`
_NEW_RANK: Final = 5  # New blocks point to older ones of their container, which has other roots
RANKS: Final = range(6)


def rank_of(root: HeapRoot) -> int:
    """Returns how good a root is as the beginning of a path: the lowest of ``RANKS`` is best."""
    if root in (_NEW, _HEAP):
        return _NEW_RANK
    return _STALE_RANK if root.name in _STALE else _RANKS[root.kind]


def is_borrower(root: HeapRoot) -> bool:
    """Whether it counts only for blocks to which no better root leads: others are mostly stale."""
    return rank_of(root) >= _STALE_RANK


class _Threads:
    def __init__(self, threads: list[ThreadRegisters], pointer: str) -> None:
        """``pointer``: which one decides where a thread is."""
        self._key = attrgetter(pointer)
        self.sorted = sorted(threads, key=self._key)

    def within(self, region: Region) -> list[ThreadRegisters]:
        low, high = (bisect_left(self.sorted, at, key=self._key) for at in region[:2])
        return self.sorted[low:high]


class RootParts:
    """Address ranges by root. Ranges with variables are divided later, by address."""

    def __init__(self) -> None:
        self.roots: list[HeapRoot] = []
        self.threads: list[ThreadData] = []
        self._numbers: dict[HeapRoot, int] = {}
        self._cuts: list[int] = [0]
        self._owners: list[tuple[int, bool]] = [(self.number(_NEW), False)]
        """The root from each cut on, and whether its words are told apart."""

    def number(self, root: HeapRoot) -> int:
        """Returns the number of a root, from 1 on; a new root gets the next number."""
        found = self._numbers.setdefault(root, len(self.roots) + 1)
        if found > len(self.roots):
            self.roots.append(root)
        return found

    def split(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yields (start, end, number of the root or ``BY_ADDRESS``) for the parts of a range."""
        at = bisect_right(self._cuts, start) - 1
        while start < end:
            stop = min(end, self._cuts[at + 1]) if at + 1 < len(self._cuts) else end
            owner, is_told_apart = self._owners[at]
            yield start, stop, BY_ADDRESS if is_told_apart else owner
            start = stop
            at += 1

    def root_at(self, address: int) -> int:
        return self._owners[bisect_right(self._cuts, address) - 1][0]

    def add_data(self, region: Region) -> None:
        """Adds a mapping with a module's variables. Mappings must be added by address."""
        self._cut(region.start, self.number(mapping_root(region)), is_told_apart=True)
        self._cut(region.end, 1)

    def add_region(
        self, region: Region, by_stack: _Threads, by_data: _Threads, titles: Titles
    ) -> None:
        """Adds a mapping without variables. Mappings must be added by address."""
        stacks = by_stack.within(region)
        root = mapping_root(region)
        if stacks and not region.inode:
            thread_id = stacks[0].thread_id
            name = f"stack of {titles.title_of(thread_id)}"
            root = HeapRoot(RootKind.STACK, name, "", (thread_id,))
        owner, layout = self.number(root), native().threads
        self._cut(region.start, owner)
        for one in by_data.within(region):
            ranges = (
                layout.variables(one.thread_pointer, _VARIABLE_BYTES),
                layout.record(one.thread_pointer),
            )
            low = max(region.start, min(start for start, _ in ranges))
            self._cut(low, owner, is_told_apart=True)
            self._cut(min(max(end for _, end in ranges), region.end), owner)
        self._cut(region.end, 1)

    def name_anonymous(self, name: str, ranges: Iterable[tuple[int, int]]) -> None:
        owner, nameless = self.number(HeapRoot(RootKind.RUNTIME, name)), self.number(_ANONYMOUS)
        for edges in ranges:
            for edge in edges:
                at = bisect_left(self._cuts, edge)
                if self._cuts[at : at + 1] != [edge]:
                    self._cuts.insert(at, edge)
                    self._owners.insert(at, self._owners[at - 1])
            for at in range(*(bisect_left(self._cuts, edge) for edge in edges)):
                if self._owners[at][0] == nameless:
                    self._owners[at] = owner, self._owners[at][1]

    def _cut(self, address: int, owner: int, *, is_told_apart: bool = False) -> None:
        if address <= self._cuts[-1]:
            self._owners[-1] = owner, is_told_apart
            return
        self._cuts.append(address)
        self._owners.append((owner, is_told_apart))


def thread_data_root(thread_id: int, title: str) -> HeapRoot:
    """Returns the root for the variables of a thread that have no names."""
    return HeapRoot(RootKind.THREAD_LOCAL, f"thread-local variables of {title}", "", (thread_id,))


def mapping_root(region: Region) -> HeapRoot:
    """Returns the root for a whole mapping; mappings without a name share one root."""
    return HeapRoot(RootKind.MAPPING, region.path) if region.path else _ANONYMOUS


def is_data(region: Region, before: Region | None, *, after_data: bool) -> bool:
    """Whether a mapping may hold a module's variables; ``after_data``: ``before`` may."""
    if region.inode:
        return "p" in region.rights and not region.path.startswith(("/dev/", "/memfd:", "/SYSV"))
    # Behind a file's data are its variables that are 0 at first.
    follows = after_data and before is not None and before.end == region.start
    follows &= region.rights.startswith("rw")
    return follows and (region.path in ("", "[heap]") or region.path.startswith("[anon:.bss"))


class Titles:
    """Names of a process's threads, in words."""

    def __init__(self, process: Process) -> None:
        self._names = process.thread_names()

    def title_of(self, thread_id: int) -> str:
        """Returns words for a thread, such as ``thread 17 (worker)``."""
        name = self._names.get(thread_id)
        return f"thread {thread_id} ({name})" if name else f"thread {thread_id}"


class RootReader(RootWords):
    """Reads the roots that are not in memory, by name, and where threads have their stacks."""

    def threads(self, process: Process) -> list[ThreadRegisters]:
        """Returns a process's threads; without registers, only stack pointers of waiting ones."""
        if self._registers is not None:
            try:
                if found := self._registers.read_threads(process):
                    return found
                self.missing = "the kernel shows no thread of it"
            except OSError as error:
                self.missing = error.strerror or str(error)
        none = np.empty(0, _U64)
        waiting = []
        for thread_id in sorted(process.thread_ids()):
            with suppress(OSError, ValueError, IndexError):
                words = (process.directory / "task" / str(thread_id) / "syscall").read_text()
                waiting.append(ThreadRegisters(thread_id, 0, int(words.split()[-2], 16), 0, none))
        return waiting

    def words(
        self, process: Process, threads: list[ThreadRegisters], titles: Titles
    ) -> Iterator[tuple[HeapRoot, U64]]:
        """Yields the roots that are not in memory (registers, kernel), with their words."""
        for thread in threads:
            title, ids = titles.title_of(thread.thread_id), (thread.thread_id,)
            yield HeapRoot(RootKind.REGISTERS, f"registers of {title}", "", ids), thread.words
            # Some C libraries have a thread's data in a block.
            yield thread_data_root(thread.thread_id, title), np.array([thread.thread_pointer], _U64)
            yield (
                HeapRoot(RootKind.KERNEL, f"signal stack of {title}", "", ids),
                np.array([thread.signal_stack], _U64),
            )
        for name, words in kernel_words_by_kind(process).items():
            yield HeapRoot(RootKind.KERNEL, name), words


def parts_of(regions: list[Region], threads: list[ThreadRegisters], titles: Titles) -> RootParts:
    """Divides the memory of a process into roots."""
    parts = RootParts()
    by_stack, by_data = _Threads(threads, "stack_pointer"), _Threads(threads, "thread_pointer")
    before, after_data = None, False
    for region in regions:
        after_data = is_data(region, before, after_data=after_data)
        if after_data:
            parts.add_data(region)
        else:
            parts.add_region(region, by_stack, by_data, titles)
        before = region
    parts.threads = [
        ThreadData(one.thread_id, titles.title_of(one.thread_id), one.thread_pointer)
        for one in by_data.sorted
        if one.thread_pointer
    ]
    return parts
