"""Reads a process's data in /proc. Parsing is pure; the root of /proc is a parameter.

Formats: proc_pid_maps(5), proc_pid_stat(5), proc_pid_status(5).
"""

import bisect
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass
from tracelloc.errors import PrivilegeError, TargetError, TracellocError, privilege_hint
from tracelloc.model.codefiles import Mapping, base_name
from tracelloc.system.syscalls import closed_after, open_inside, open_regular

PROC: Final = Path("/proc")
# The kernel's mapping with the instruction to which hijacked returns go.
TRAMPOLINE_MAPPING: Final = "[uprobes]"

VDSO: Final = "[vdso]"  # The mapping with the kernel's own functions (vdso(7))


_READ_BYTES: Final = 1 << 16
_ADDRESS_SPACE: Final = "Max address space"
# Indexes in /proc/PID/stat, from the state on, of startcode, startstack, start_data, start_brk and
# arg_start (proc_pid_stat(5)).
_PROGRAM_ADDRESSES: Final = 23, 25, 42, 44, 45


def boot_id() -> str:
    """Returns the random ID of this boot of the kernel. Raises OSError."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def parse_maps(text: str, known: dict[str, Mapping] | None = None) -> dict[str, Mapping]:
    """Parses ``/proc/PID/maps``: mappings by line. ``known``: those before, reused."""
    known = known or {}
    return {
        line: known.get(line) or _mapping_of(line)
        for line in text.split("\n")  # the only character that the kernel escapes
        if line.count(" ") >= 4
    }


def _mapping_of(line: str) -> Mapping:
    addresses, rights, offset, device, inode, *path = line.split(maxsplit=5)
    start, _, end = addresses.partition("-")
    name = "".join(path)
    shown = name.removesuffix(" (deleted)")
    places = int(start, 16), int(end, 16), int(offset, 16)
    return Mapping(*places, "x" in rights, device, int(inode), shown, shown != name)


class AddressMap:
    """The mappings of a process at one time, searchable by address."""

    def __init__(self, mappings: Iterable[Mapping]) -> None:
        self.mappings: Sequence[Mapping] = sorted(mappings, key=lambda m: m.start)
        self._starts = [m.start for m in self.mappings]

    def find(self, address: int) -> Mapping | None:
        """Returns the mapping that contains an address; None if there is none."""
        at = bisect.bisect_right(self._starts, address) - 1
        return self.mappings[at] if at >= 0 and address < self.mappings[at].end else None


@dataclass(frozen=True, slots=True)
class Process:
    """A process under a /proc directory, identified by its PID there."""

    pid: int
    root: Path = PROC

    @property
    def directory(self) -> Path:
        """The process's directory, ``/proc/PID``."""
        return self.root / str(self.pid)

    @property
    def thread_id(self) -> int:
        """A thread with the process's memory and files: the main thread unless it has ended.

        A main thread that has ended stays as a zombie while there are others (pthread_exit(3)).
        """
        if self.is_running(self.pid):
            return self.pid
        return next(filter(self.is_running, sorted(self.thread_ids())), self.pid)

    def is_running(self, thread_id: int) -> bool:
        try:
            os.readlink(f"{self.root}/{self.pid}/task/{thread_id}/exe")  # noqa: PTH115 - several times as fast
        except (FileNotFoundError, ProcessLookupError):
            return False
        except OSError:  # access denied
            pass
        return True

    @property
    def memory_directory(self) -> Path:
        """``/proc/TID`` of ``thread_id``, which has all of a process's entries."""
        return self.root / str(self.thread_id)

    def exists(self) -> bool:
        with suppress(TargetError):
            return self.state() not in "ZX" or self.thread_id != self.pid
        return False

    def _read(self, name: str, thread_id: int | None = None) -> bytes:
        path = f"{self.root}/{thread_id or self.pid}/{name}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return b"".join(iter(partial(os.read, descriptor, _READ_BYTES), b""))
            finally:
                os.close(descriptor)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise TargetError(f"there is no process {self.pid}") from error
        except PermissionError as error:
            why = f"process {self.pid} may not be inspected: {error.strerror}"
            raise PrivilegeError(why, hint=privilege_hint()) from error

    def _read_as_thread(self, name: str) -> bytes:
        thread_id = self.thread_id
        while True:
            try:
                content = self._read(name, thread_id)
            except TargetError:
                content = b""
            # A thread that is ending may be the only one left when a successor has just begun.
            if content or (following := self.thread_id) == thread_id:
                return content or self._read(name, thread_id)
            thread_id = following

    def _stat(self) -> list[str]:
        # The command is in parentheses and may contain any characters, even parentheses.
        return self._read("stat").decode(errors="replace").rpartition(")")[2].split()

    def state(self) -> str:
        """Returns the process's state, one letter: R, S, D, T (stopped), Z (zombie) …"""
        return self._stat()[0]

    def how_ended(self) -> str:
        """Returns how a process has ended, `` (SIGTERM)``, until its parent has waited for it."""
        code = 0
        with suppress(TracellocError):
            state, *_, status = self._stat()
            code = os.waitstatus_to_exitcode(int(status)) if state == "Z" else 0
        name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
        return f" (status {code})" if code > 0 else f" ({name})" if code else ""

    def command(self) -> str:
        """Returns the process's short name (comm), at most 15 bytes."""
        return self._read("comm").decode(errors="replace").removesuffix("\n")

    def executable(self) -> str | None:
        """Returns the path of the process's program, in the process's root; None if unknown."""
        return (self.program_paths() or (None, None))[1]

    def program_paths(self) -> tuple[str, str] | None:
        """Returns the program's (file, link by which it was started, or the file); None: unknown.

        Mappings, too, are given the link's path.
        """
        with suppress(OSError):
            path = str((self.memory_directory / "exe").readlink()).removesuffix(" (deleted)")
            return path, self._link_to(path) or path
        return None

    def _link_to(self, path: str) -> str | None:
        """Returns the link beside a program's file with the process's name; None if there is none.

        Thus redis-server, a link to redis-check-rdb, is called redis-server. A file whose name goes
        on where the process's ends is more exact: python3.11.
        """
        with suppress(TargetError, PrivilegeError, OSError):
            name, own, directory = self.command(), base_name(path), self.memory_directory
            if own.startswith(name) or "/" in name or not name.isprintable():
                return None
            link = path.removesuffix(own) + name
            with closed_after(open_inside(directory / "root", link)) as handle:
                if os.path.samestat(os.fstat(handle), os.stat(directory / "exe")):
                    return link
        return None

    def arguments(self) -> list[str]:
        """Returns the words of the command line; none if the process has erased them."""
        words = self._read_as_thread("cmdline").split(b"\0")
        return [word.decode(errors="replace") for word in words if word]

    def start_ticks(self) -> int:
        """Returns the start time in ticks since boot; with the PID, it identifies a process."""
        return int(self._stat()[19])

    def started_s(self) -> float:
        """Returns the process's start time, in seconds since 1970."""
        boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return boot_s + self.start_ticks() / os.sysconf("SC_CLK_TCK")

    def preloaded(self) -> list[str]:
        """Returns the files that LD_PRELOAD names in the initial environment."""
        return self.initial_value("LD_PRELOAD").replace(":", " ").split()

    def initial_value(self, variable: str) -> str:
        """Returns a variable of the initial environment; empty if it is missing or unreadable."""
        start, found = f"{variable}=".encode(), b""
        with suppress(TargetError, PrivilegeError):
            entries = self._read_as_thread("environ").split(b"\0")
            found = next((entry for entry in entries if entry.startswith(start)), b"")
        return os.fsdecode(found[len(start) :])

    def is_kernel_thread(self) -> bool:
        return bool(int(self._stat()[6]) & 0x00200000)

    def maps_text(self, program: tuple[str, str] | None = None) -> str:
        """Returns the current mappings for ``parse_maps``. ``program``: known ``program_paths``."""
        text = self._read_as_thread("maps").decode(errors="surrogateescape")
        path, link = program or self.program_paths() or ("", "")
        return text if path == link else text.replace(f" {path}\n", f" {link}\n")

    def maps(self) -> AddressMap:
        return AddressMap(parse_maps(self.maps_text()).values())

    def rss_bytes(self) -> int | None:
        """Returns resident memory in bytes; None once the process is gone: a zombie has none."""
        with suppress(TargetError, IndexError):
            pages = int(self._read_as_thread("statm").split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") or None
        return None

    def cpu_ns(self) -> int | None:
        """Returns CPU time of all threads, user and system; None once the process is gone."""
        with suppress(TargetError):
            ticks = sum(map(int, self._stat()[11:13]))
            return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
        return None

    def run_ns(self) -> int:
        """Returns the main thread's run time in ns (sched-stats.rst); 0 once it is gone."""
        with suppress(TargetError, IndexError):
            return int(self._read("schedstat").split()[0])
        return 0

    def _status_words(self, key: str, directory: str = ".") -> list[str]:
        with suppress(TargetError):
            text = self._read(f"{directory}/status").decode(errors="replace")
            return next((e.split()[1:] for e in text.split("\n") if e.startswith(f"{key}:")), [])
        return []

    def has_pending(self, number: int) -> bool:
        return bool(int((self._status_words("ShdPnd") or ["0"])[0], 16) >> number - 1 & 1)

    def _status(self, key: str, otherwise: int = 0, directory: str = ".") -> list[int]:
        return [int(w) for w in self._status_words(key, directory) if w != "kB"] or [otherwise]

    def has_seccomp_filter(self, inherited: int = 0) -> bool:
        """Returns whether seccomp(2) restricts any thread, by more than ``inherited`` filters."""
        return any(
            self._status_words("Seccomp", f"task/{thread_id}") in (["1"], ["2"])
            and self.seccomp_filters(f"task/{thread_id}") != inherited
            for thread_id in self.thread_ids()
        )

    def seccomp_filters(self, directory: str = ".") -> int:
        """Returns the number of the process's seccomp(2) filters; 0 before Linux 5.9."""
        return self._status("Seccomp_filters", directory=directory)[0]

    def is_memory_limited(self) -> bool:
        """Returns whether the process's address space is limited (RLIMIT_AS)."""
        text = self._read("limits").decode(errors="replace").partition(_ADDRESS_SPACE)[2]
        return bool(text) and text.split()[0] != "unlimited"

    def locked_bytes(self) -> int:
        return self._status("VmLck")[0] << 10

    def page_table_bytes(self) -> int:
        return self._status("VmPTE")[0] << 10

    def start_stack(self) -> int:
        """Returns where the first thread's stack began; 0 if unknown (proc_pid_stat(5))."""
        return self.program_addresses()[1]

    def program_addresses(self) -> tuple[int, ...]:
        """Returns addresses of code, stack, data, arguments; 0: not visible (proc_pid_stat(5))."""
        fields = self._stat()
        return tuple(int(fields[number]) for number in _PROGRAM_ADDRESSES)

    def has_shadow_stack(self) -> bool:
        """Returns whether return addresses are checked by a shadow stack; False if unknown."""
        found = native().shadow_stack_status
        return found is not None and found[1] in self._status_words(found[0])

    def group_id(self) -> int:
        """Returns the PID of the process that the thread belongs to; its own id once it is gone."""
        return self._status("Tgid", self.pid)[0]

    def tracer_id(self) -> int:
        """Returns the id of the thread that traces this one by ptrace(2); 0 if none."""
        return self._status("TracerPid")[0]

    def parent_pid(self) -> int:
        return self._status("PPid")[0]

    def inner_pid(self) -> int:
        return self._status("NSpid", self.pid)[-1]

    def user_ids(self) -> tuple[int, ...]:
        """Returns the ids of the real and effective user; none once the process is gone."""
        return tuple(map(int, self._status_words("Uid")[:2]))

    def read_memory(self, address: int, size_bytes: int) -> bytes:
        """Returns bytes of the process's memory; empty if they can't be read."""
        try:
            with (self.memory_directory / "mem").open("rb", buffering=0) as memory:
                memory.seek(address)
                return memory.read(size_bytes)
        except (OSError, ValueError, OverflowError):
            return b""

    def can_be_read(self) -> bool:
        """Returns whether the kernel lets tracelloc read the process's memory (ptrace(2))."""
        with suppress(OSError):
            os.close(os.open(f"{self.memory_directory}/mem", os.O_RDONLY | os.O_CLOEXEC))
            return True
        return False

    def thread_ids(self) -> set[int]:
        """Returns the ids of current threads; empty once the process is gone."""
        with suppress(FileNotFoundError, ProcessLookupError):
            return {int(task.name) for task in (self.directory / "task").iterdir()}
        return set()

    def stack_pointers(self) -> Iterator[int]:
        """Yields threads' stack pointers in system calls (proc_pid_syscall(5)). Raises OSError."""
        for task in (self.directory / "task").iterdir():
            with suppress(OSError, ValueError):
                words = (task / "syscall").read_text().split()
                if len(words) > 1:
                    yield int(words[-2], 16)

    def has_thread(self, thread_id: int) -> bool:
        """Returns whether the process has a thread; a listing may miss some while others end."""
        with suppress(FileNotFoundError, ProcessLookupError):
            os.stat(f"{self.root}/{self.pid}/task/{thread_id}")
            return True
        return False

    def child_ids(self) -> set[int]:
        """Returns the PIDs of current child processes; none if the kernel doesn't list them."""
        children: set[int] = set()
        for thread_id in self.thread_ids():
            with suppress(OSError):
                text = (self.directory / "task" / str(thread_id) / "children").read_text()
                children.update(map(int, text.split()))
        return children

    def thread_names(self) -> dict[int, str]:
        """Returns the names (comm) of all threads by id; empty once the process is gone."""
        names = ((each, self.thread_name(each)) for each in self.thread_ids())
        return {thread_id: name for thread_id, name in names if name is not None}

    def thread_name(self, thread_id: int) -> str | None:
        """Returns the name (comm) of a thread of the process; None if there is no such thread."""
        with suppress(OSError):
            name = (self.directory / "task" / str(thread_id) / "comm").read_bytes()
            return name.decode(errors="replace").removesuffix("\n")
        return None

    def open_mapping(self, mapping: Mapping) -> int:
        """Opens the file of a mapping, even if its name is gone; returns the descriptor.

        ``map_files`` leads to the inode, whatever the file's path or mount namespace is now;
        if that is not permitted, the path inside the process's root is used.
        Raises OSError; NotRegularError for a device.
        """
        try:
            descriptor = open_regular(self.mapping_path(mapping))
            # Another file has other numbers; some file systems (btrfs, overlayfs) report other
            # devices in maps than in stat(2).
            status = os.fstat(descriptor)
            major, _, minor = mapping.device.partition(":")
            device = os.makedev(int(major, 16), int(minor, 16))
            if status.st_dev == device and status.st_ino != mapping.inode:
                os.close(descriptor)
                raise FileNotFoundError(f"{mapping.path} is no longer mapped")
            return descriptor
        except PermissionError:
            descriptor = open_inside(self.memory_directory / "root", mapping.path)
            if os.fstat(descriptor).st_ino != mapping.inode:
                os.close(descriptor)
                raise
            return descriptor

    def mapping_path(self, mapping: Mapping) -> str:
        """Returns the path by which the kernel, or tracelloc, opens the file of a mapping."""
        return f"{self.memory_directory}/map_files/{mapping.map_file}"
