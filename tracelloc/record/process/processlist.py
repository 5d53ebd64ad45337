"""Lists all processes, how fast they grow, and which of them can be traced.

Each refresh reads one small file per process (stat). More expensive data, mappings and the symbol
tables of mapped files, is read once per process and once per file, within a time budget: later
refreshes fill in the rest. Formats: proc_pid_stat(5), proc_pid_cmdline(5).
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from tracelloc.dataclass import dataclass, replace
from tracelloc.errors import TracellocError
from tracelloc.files.elf import NotElfError
from tracelloc.model.codefiles import FileId, Mapping, base_name
from tracelloc.model.process import ProcessInfo, Trouble
from tracelloc.record.mallocs.discovery import families_in
from tracelloc.record.mallocs.families import OPERATORS
from tracelloc.record.process.identity import command_line, is_32_bit, user_name
from tracelloc.record.process.procfs import PROC, Process
from tracelloc.record.worker.client import FileReadError, FileWorker
from tracelloc.record.worker.targetfile import TargetFile
from tracelloc.text import NS_PER_S

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD, include/linux/sched.h
_GROWTH_OVER_NS: Final = 60 * NS_PER_S
# What a process has grown in its first seconds here is taken for the growth of so long.
_LEAST_GROWTH_OVER_NS: Final = 5 * NS_PER_S
_MOST_SAMPLES: Final = 32
_SPACING_NS: Final = _GROWTH_OVER_NS // (_MOST_SAMPLES - 2)
_BUDGET_S: Final = 0.05  # Time for inspecting new processes, per call
_PATIENCE_S: Final = 10.0  # Timeout for reading a file
# After this, a process without an allocator is checked again: it may have loaded one.
_LOOK_AGAIN_NS: Final = 30 * NS_PER_S


@dataclass(slots=True)
class _Seen:
    arguments: str
    user: str
    samples: deque[tuple[int, int]]  # (CLOCK_MONOTONIC, resident bytes), oldest first
    allocator: str | None = None
    trouble: Trouble | None = None
    known: bool = False
    look_at_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Stat:
    command: str
    state: str
    flags: int
    start: int
    rss_bytes: int


def parse_stat(text: str) -> _Stat | None:
    """Parses the relevant fields of a line of /proc/PID/stat; None if it is malformed."""
    opening, closing = text.find("("), text.rfind(")")
    fields = text[closing + 1 :].split()
    if opening < 0 or closing < opening or len(fields) < 22:
        return None
    # proc_pid_stat(5) counts from 1, and the state is field 3.
    return _Stat(
        command=text[opening + 1 : closing],
        state=fields[0],
        flags=int(fields[6]),
        start=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def _read_stat(directory: str | Path) -> _Stat | None:
    with suppress(OSError), open(f"{directory}/stat", "rb", buffering=0) as file:
        return parse_stat(file.read(4096).decode(errors="replace"))
    return None


class ProcessScan:
    """Lists all processes of the machine repeatedly. For one thread at a time."""

    def __init__(
        self,
        root: Path = PROC,
        *,
        own_pid: int | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._root = root
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._clock_ns = clock_ns
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._files: dict[FileId, str | FileReadError | None] = {}
        # However often one process's files crash the worker, the files of others are read.
        self._worker = FileWorker("functions", most_ends=sys.maxsize, patience_s=_PATIENCE_S)

    def list_at_once(self) -> list[ProcessInfo]:
        """Lists as ``refresh`` does; the first call inspects none, so that it answers at once."""
        return self.refresh(_BUDGET_S if self._seen else 0.0)

    def refresh(self, budget_s: float = _BUDGET_S) -> list[ProcessInfo]:
        """Lists all processes except kernel threads, the fastest growing first.

        Inspects new processes for about ``budget_s``, at least one unless it is 0; the rest have
        ``known`` false until a later refresh.
        """
        stats = self._read_all()
        now_ns = self._clock_ns()
        seen = {}
        for pid, stat in stats:
            key = pid, stat.start
            entry = self._seen.get(key) or self._meet(pid, stat)
            if not entry.samples or now_ns - entry.samples[-1][0] >= _SPACING_NS:
                entry.samples.append((now_ns, stat.rss_bytes))
            while len(entry.samples) > 2 and now_ns - entry.samples[1][0] >= _GROWTH_OVER_NS:
                entry.samples.popleft()
            seen[key] = entry
        self._seen = seen
        if budget_s:
            self._look_into(stats, now_ns, budget_s)
            self._worker.end_after_answer()
        infos = [_info(pid, stat, seen[pid, stat.start], now_ns) for pid, stat in stats]
        infos.sort(key=by_growth)
        return infos

    def _read_all(self) -> list[tuple[int, _Stat]]:
        found = []
        for pid in [int(each.name) for each in os.scandir(self._root) if each.name.isdecimal()]:
            stat = _read_stat(f"{self._root}/{pid}")
            if stat is not None and stat.state == "Z":
                # Another thread's, if only the main thread has ended.
                other = _read_stat(Process(pid, self._root).memory_directory) or stat
                stat = replace(stat, state=other.state, rss_bytes=other.rss_bytes)
            if stat is not None and not stat.flags & _KERNEL_THREAD:
                found.append((pid, stat))
        return found

    def _meet(self, pid: int, stat: _Stat) -> _Seen:
        arguments = user = ""
        with suppress(OSError):
            arguments = command_line(Process(pid, self._root).memory_directory)
            user = user_name(os.stat(f"{self._root}/{pid}").st_uid)
        return _Seen(arguments or stat.command, user, deque(maxlen=_MOST_SAMPLES))

    def _look_into(self, stats: list[tuple[int, _Stat]], now_ns: int, budget_s: float) -> None:
        every = ((pid, stat, self._seen[pid, stat.start]) for pid, stat in stats)
        due = [one for one in every if now_ns >= one[2].look_at_ns or one[1].state in "ZX"]
        started_ns = self._clock_ns()
        for pid, stat, entry in sorted(due, key=lambda one: (one[2].known, -one[1].rss_bytes)):
            entry.allocator, entry.trouble = self._inspect(pid, stat)
            entry.known = True
            pause_ns = _LOOK_AGAIN_NS if entry.allocator is None else 1 << 62
            entry.look_at_ns = now_ns + pause_ns
            if self._clock_ns() - started_ns > budget_s * NS_PER_S:
                return

    def _inspect(self, pid: int, stat: _Stat) -> tuple[str | None, Trouble | None]:
        """Returns (where a process's malloc library is, why the process can't be traced)."""
        if stat.state in "ZX" or pid == self._own_pid:
            return None, Trouble.ENDED if stat.state in "ZX" else Trouble.SELF
        process = Process(pid, self._root)
        try:
            if is_32_bit(process):
                return None, Trouble.BITS
            found = self._allocator_of(process, process.maps().mappings)
        except (PermissionError, TracellocError):
            return None, Trouble.REFUSED if process.directory.exists() else Trouble.ENDED
        except OSError:
            return None, Trouble.ENDED
        except Exception:  # noqa: BLE001 - one odd process must not end the list of all others
            return None, Trouble.ODD
        return found, None if found else Trouble.NO_ALLOCATOR

    def _allocator_of(self, process: Process, mappings: Iterable[Mapping]) -> str | None:
        found = {}
        for mapping in (each for each in mappings if each.executable and each.is_file):
            if mapping.file_id not in self._files:
                try:
                    self._files[mapping.file_id] = self._families_in(process, mapping)
                except PermissionError:
                    raise
                except OSError:  # it is mapped no more: the next process may tell
                    continue
            families, name = self._files[mapping.file_id], base_name(mapping.path)
            if isinstance(families, FileReadError):
                raise families
            if families:
                found[name] = f"{families} in {name}"
        own = [text for name, text in found.items() if not name.startswith("libc.so")]
        return next(iter(own or found.values()), None)

    def _families_in(self, process: Process, mapping: Mapping) -> str | FileReadError | None:
        try:
            elf = TargetFile(process.open_mapping(mapping), mapping.path, self._worker)
        except NotElfError:
            return None
        except FileReadError as error:
            return error
        with closing(elf):
            names = [family.name for family in families_in(elf) if family is not OPERATORS]
        return ", ".join(names) or None


def _info(pid: int, stat: _Stat, seen: _Seen, now_ns: int) -> ProcessInfo:
    then_ns, then_bytes = seen.samples[0]
    grown = stat.rss_bytes - then_bytes
    elapsed_ns = max(now_ns - then_ns, _LEAST_GROWTH_OVER_NS)
    booted_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return ProcessInfo(
        pid=pid,
        command=stat.command,
        arguments=seen.arguments,
        user=seen.user,
        rss_bytes=stat.rss_bytes,
        growth_bytes_per_min=round(grown * 60 * NS_PER_S / elapsed_ns),
        allocator=seen.allocator,
        trouble=seen.trouble,
        known=seen.known,
        age_s=max(booted_s - stat.start / os.sysconf("SC_CLK_TCK"), 0.0),
    )


def by_growth(info: ProcessInfo) -> tuple[int, int, int]:
    """Returns the sort key of a process: the fastest growing first, then the largest."""
    return -info.growth_bytes_per_min, -info.rss_bytes, info.pid
