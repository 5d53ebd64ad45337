"""Reads the memory of all processes at intervals, and of their control groups.

/proc/PID/statm (proc_pid_statm(5)) is the quickest to read. The file stays open: reading it fails
with ESRCH after the process has ended, even if its PID is in use again. If its content has changed,
/proc/PID/status (proc_pid_status(5)) has all kinds of memory.
"""

import errno
import heapq
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.errors import TargetError
from tracelloc.machine import machinememory
from tracelloc.record.process.identity import command_line, user_name
from tracelloc.record.process.procfs import PROC, Process
from tracelloc.record.process.residency import read_pss
from tracelloc.startup import TERMINAL_GUARD
from tracelloc.system.confined import CONFINE
from tracelloc.system.groupnames import GroupNames
from tracelloc.system.memorylimits import (
    CGROUPS,
    MemoryGroup,
    group_and_ancestors,
    group_kinds,
    group_limit,
    memory_group,
    numbers_in,
)
from tracelloc.text import printable


class NoGroupError(TargetError):
    """No control group of the wanted name exists now."""


def _is_below(group: MemoryGroup, other: MemoryGroup) -> bool:
    return group.version == other.version and group.path.startswith(f"{other.path}/")


def find_group(wanted: str, root: Path = PROC, names: GroupNames | None = None) -> MemoryGroup:
    """Returns the group that people call so (``GroupName.is_called``), or raises TargetError."""
    names = names or GroupNames()
    pids = (entry for entry in root.iterdir() if entry.name.isdecimal())
    groups = set(map(memory_group, pids))
    every = {each._replace(path=path) for each in groups for path in group_and_ancestors(each.path)}
    found = {one for one in every if names.name(one.path).is_called(one.path, wanted)}
    # Of a group and those below it, as of a container's scope and its payload, the outer one.
    outer = [one for one in found if not any(_is_below(one, other) for other in found)]
    if len(outer) == 1:
        return outer[0]
    if not outer:
        raise NoGroupError(
            f"no control group with processes is called {printable(wanted)}",
            hint="tracelloc top lists those of containers, pods and units",
        )
    lines = "\n".join(
        f"    {printable(one.path)}  {printable(names.name(one.path).of_group(one.path))}"
        for one in sorted(outer)
    )
    raise TargetError(f"{len(outer)} control groups are called {printable(wanted)}:\n{lines}")


def members_of(group: MemoryGroup) -> list[int]:
    """Returns the PIDs of the processes in a group and in groups below it, the oldest first."""
    pids: set[int] = set()
    for directory in group.directories(CGROUPS):
        for file in directory.rglob("cgroup.procs"):
            with suppress(OSError, ValueError):
                pids.update(map(int, file.read_text().split()))
    starts = {}
    for pid in pids - {0}:
        with suppress(TargetError):
            starts[pid] = Process(pid).start_ticks()
    return sorted(starts, key=lambda pid: (starts[pid], pid))


class GroupReader:
    """Reads the memory of the control groups that processes are in. For one thread at a time."""

    def __init__(self, root: Path = CGROUPS) -> None:
        self._root = root
        self.names = GroupNames()
        self._history = machinememory.GrowthHistory(machinememory.GROUP_KINDS)
        self._rows: dict[MemoryGroup, int] = {}

    def read_groups(
        self, now_s: float, groups: Iterable[MemoryGroup]
    ) -> list[machinememory.GroupMemory]:
        """Reads groups that have a limit or a name of their own. ``groups``: one per process."""
        counts: Counter[MemoryGroup] = Counter()
        for group, count in Counter(groups).items():
            for above in group_and_ancestors(group.path):
                counts[group._replace(path=above)] += count
        read = {group: group_kinds(group, self._root) for group in counts}
        used = {group: kinds for group, kinds in read.items() if kinds is not None}
        for group in self._rows.keys() - used.keys():
            self._history.remove(self._rows.pop(group))
        for group in used.keys() - self._rows.keys():
            self._rows[group] = self._history.add(now_s)
        rows = [self._rows[group] for group in used]
        self._history.record(now_s, dict(zip(rows, used.values(), strict=True)))
        found = []
        for group, trend in zip(used, self._history.trends(rows), strict=True):
            limit, owner = group_limit(group, self._root), self.names.name(group.path)
            name = owner.of_group(group.path)
            if limit is not None or name != group.path:
                found.append(machinememory.GroupMemory(
                    group.path, name, counts[group], trend,
                    None if limit is None else limit.size_bytes,
                    None if limit is None else limit.free_bytes, owner,
                ))  # fmt: skip
        return found


_LARGEST_BYTES: Final = 4096
_WORKER: Final = f" -I -S -c {CONFINE[:32]}"  # In the command lines of tracelloc's workers
# Lines of the file; no name in it has a line feed.
_KINDS: Final = re.compile(
    rb"\nRssAnon:\s*(\d+) kB\nRssFile:\s*(\d+) kB\nRssShmem:\s*(\d+) kB\n"
    rb"(?:\w+:.*\n)*?VmPTE:\s*(\d+) kB\nVmSwap:\s*(\d+) kB\n"
)
_GROUPS_EVERY_S: Final = 60.0  # How often it is read again which control group a process is in
# The kernel adds up the proportional set size (Pss) page by page: only that of so many of the
# largest processes is read, at this interval, and in at most this share of the time.
_PSS_COUNT: Final = 16
_PSS_EVERY_S: Final = 60.0
_PSS_COST: Final = 0.01
_PSS_FIRST_S: Final = 0.1


@dataclass(slots=True)
class _Watched:
    file: int  # Descriptor of statm
    pages: bytes  # The last content of statm
    row: int
    name: bytes
    kinds: tuple[int, ...]
    arguments: str
    user: str
    group: MemoryGroup
    pss_bytes: int | None = None
    pss_due_s: float = 0.0


class ProcessReader:
    """Reads the memory of all processes, whose files stay open. For one thread at a time."""

    def __init__(
        self, root: Path = PROC, *, groups: GroupReader | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._root = root
        self._clock_s = clock_s
        self._watched: dict[int, _Watched] = {}
        self._others: set[int] = set()  # Kernel threads, and workers of tracelloc
        self._history = machinememory.GrowthHistory(machinememory.PROCESS_KINDS)
        self._groups = groups or GroupReader()
        self._began_s: float | None = None
        self._groups_read_s = 0.0
        self._pss_took_s = 0.0

    def close(self) -> None:
        for watched in self._watched.values():
            os.close(watched.file)
        self._watched.clear()

    def read_memory(self) -> machinememory.MachineMemory:
        now_s = self._clock_s()
        if self._began_s is None:
            self._began_s = self._groups_read_s = now_s
        unread = self._find_new(now_s)
        self._read_all(now_s)
        self._read_largest(now_s)
        self._history.record(now_s, {each.row: each.kinds for each in self._watched.values()})
        if now_s - self._groups_read_s >= _GROUPS_EVERY_S:
            self._groups_read_s = now_s
            self._groups.names.forget()
            for pid, watched in self._watched.items():
                watched.group = memory_group(self._root / str(pid))
        groups = self._groups.read_groups(now_s, [each.group for each in self._watched.values()])
        machine = {name: kib << 10 for name, kib in numbers_in(self._root / "meminfo").items()}
        return machinememory.MachineMemory(
            time.time(), now_s - self._began_s,
            machine.get("MemTotal", 0), machine.get("MemAvailable", 0),
            machine.get("SwapTotal", 0), machine.get("SwapTotal", 0) - machine.get("SwapFree", 0),
            self._processes(), groups, unread,
        )  # fmt: skip

    def _find_new(self, now_s: float) -> int:
        """Opens the files of new processes. Returns for how many descriptors are lacking."""
        with os.scandir(self._root) as entries:
            pids = {int(entry.name) for entry in entries if entry.name.isdecimal()}
        self._others &= pids
        unread = 0
        for pid in pids - self._others - self._watched.keys():
            try:
                file = os.open(self._root / str(pid) / "statm", os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                unread += error.errno in (errno.EMFILE, errno.ENFILE)
                continue
            status = self._status(pid)
            watched = self._meet(pid, file, status, now_s)
            if watched is not None:
                self._watched[pid] = watched
                continue
            os.close(file)
            if b"\nKthread:\t1" in status or _kinds_in(status) is not None:
                self._others.add(pid)
        return unread

    def _status(self, pid: int) -> bytes:
        try:
            with open(f"{self._root}/{pid}/status", "rb", buffering=0) as stream:
                return stream.read(_LARGEST_BYTES)
        except OSError:
            return b""

    def _meet(self, pid: int, file: int, status: bytes, now_s: float) -> _Watched | None:
        """Reads a new process's constant properties. None: it has no memory, or is a worker."""
        kinds = _kinds_in(status)
        if kinds is None:
            return None
        directory = self._root / str(pid)
        try:
            arguments, user = command_line(directory), user_name(os.fstat(file).st_uid)
        except OSError:
            arguments = user = ""
        if _WORKER in arguments or f" {TERMINAL_GUARD} " in arguments:
            return None
        name = _name_in(status)
        return _Watched(
            file, b"", self._history.add(now_s), name, kinds,
            arguments or name.decode(errors="replace"), user, memory_group(directory),
        )  # fmt: skip

    def _read_all(self, now_s: float) -> None:
        """Reads each process's memory; forgets processes that have ended."""
        for pid, watched in list(self._watched.items()):
            pages = _read(watched.file)
            if pages == watched.pages:
                continue
            status = self._status(pid) if pages else b""
            kinds = _kinds_in(status)
            if kinds is None:
                os.close(watched.file)
                self._history.remove(watched.row)
                del self._watched[pid]
            elif _name_in(status) == watched.name:
                watched.pages, watched.kinds = pages, kinds
            else:  # another program is executed: it has a history of its own
                self._history.remove(watched.row)
                again = self._meet(pid, watched.file, status, now_s)
                if again is None:
                    os.close(watched.file)
                    del self._watched[pid]
                else:
                    self._watched[pid] = again

    def _read_largest(self, now_s: float) -> None:
        assert self._began_s is not None
        most_s = _PSS_FIRST_S + _PSS_COST * (now_s - self._began_s)
        sizes = {pid: sum(watched.kinds) for pid, watched in self._watched.items()}
        for pid in heapq.nlargest(_PSS_COUNT, sizes, key=sizes.__getitem__):
            watched = self._watched[pid]
            if now_s < watched.pss_due_s or self._pss_took_s > most_s:
                continue
            began_s = time.thread_time()
            watched.pss_bytes = read_pss(Process(pid, self._root))
            self._pss_took_s += time.thread_time() - began_s
            watched.pss_due_s = now_s + _PSS_EVERY_S

    def _processes(self) -> list[machinememory.ProcessMemory]:
        rows = [each.row for each in self._watched.values()]
        trends = self._history.trends(rows)
        return [
            machinememory.ProcessMemory(
                pid, each.name.decode(errors="replace"), each.arguments, each.user, trend,
                each.group.path, each.pss_bytes,
            )
            for (pid, each), trend in zip(self._watched.items(), trends, strict=True)
        ]  # fmt: skip


def _read(file: int) -> bytes:
    try:
        return os.pread(file, _LARGEST_BYTES, 0)
    except OSError:
        return b""


def _name_in(text: bytes) -> bytes:
    return text[text.find(b"\t") + 1 : text.find(b"\n")]


def _kinds_in(text: bytes) -> tuple[int, ...] | None:
    """Returns the bytes of `PROCESS_KINDS` in a status file; None: it has no memory."""
    found = _KINDS.search(text)
    if found is None:
        return None
    anonymous, files, shared, tables, swapped = map(int, found.groups())
    return anonymous << 10, files << 10, shared << 10, swapped << 10, tables << 10
