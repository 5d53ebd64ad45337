"""The only module that knows bcc: compiles the probes, loads them, shares their memory.

bcc is part of the distribution (python3-bpfcc on Debian and Ubuntu), never of PyPI,
where that name belongs to a crystal-lattice package.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc import abi, probes, sampling
from tracelloc.capture.drain import Drain, Spill, StackDrain
from tracelloc.capture.ring import EventRing, MissRing, StackRing
from tracelloc.capture.rowtable import RowMemory
from tracelloc.capture.spacewords import SpaceWords
from tracelloc.errors import UnsupportedError
from tracelloc.target.families import MAPPINGS, known_signatures
from tracelloc.target.procfs import pid_namespace
from tracelloc.target.signatures import Signature

PROGRAMS: Final = ("loader_changes", "exception_enter", "call_return", "do_nothing")
"""The programs in ``probes/heap.bpf.c``; one per signature comes on top."""

MAPPINGS_SIZE_BYTES: Final = 4 << 20
"""Ring of what is mapped and unmapped."""

TRACEPOINTS: Final = {"process_execs": "sched_process_exec", "process_forks": "task_newtask"}
"""Programs that are run for every process, and the raw tracepoints they sit on; the second
only where children are followed."""

STOP_SIGNAL: Final = signal.SIGURG
"""What a thread gets that is to stop for us: ignored wherever nobody waits for it."""

INSTALL_HINT: Final = (
    "install the distribution's package: apt install python3-bpfcc (Debian, Ubuntu), "
    "dnf install python3-bcc (Fedora, RHEL); a virtual environment must be made by "
    "/usr/bin/python3 with --system-site-packages"
)


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """What the probes are compiled with. Sizes in bytes."""

    events_size_bytes: int = 8 << 20
    """Ring of events: a power of two of pages."""
    stacks_size_bytes: int = 4 << 20
    """Ring of new stacks: a power of two of pages."""
    max_stacks: int = 1 << 18
    max_threads: int = 1 << 16
    use_rows: bool = True
    """Stacks by call-frame information, else by frame pointers."""
    row_sets: int = 1 << 17
    """Sets of four rows, 64 bytes each: a power of two."""
    misses_size_bytes: int = 16 << 20
    """Ring of stacks that are left to user space: a power of two of pages."""
    max_frames: int = 127
    min_block_bytes: int = 0
    """Smaller allocations are not reported."""
    max_block_bytes: int | None = None
    """Larger allocations are not reported."""
    sample_bytes: int | None = None
    """Mean distance between samples; None: every allocation is reported."""
    follow: bool = False
    """Whether children are traced, too."""
    max_spaces: int = 1024
    """Address spaces at a time; one, if children are not traced."""
    spill_entries: int = 1 << 18
    """Addresses whose changes are kept while the ring of events is full; 0: none, they are
    lost."""
    trace_mappings: bool = False
    """mmap and its kin, too."""
    signatures: tuple[Signature, ...] = ()
    """Of functions that the user has named, beside those that are known."""

    @property
    def entries(self) -> dict[str, str]:
        """The entry programs: name and definition."""
        every = {*known_signatures(), *self.signatures}
        if self.trace_mappings:
            every.update(MAPPINGS.functions.values())
        return {s.entry_program: s.definition for s in sorted(every, key=lambda s: s.entry_program)}

    def cflags(self) -> list[str]:
        """The macros of ``probes/maps.h`` and ``probes/heap.bpf.c``."""
        page = mmap.PAGESIZE
        flags = [
            f"-DPAGE_SIZE={page}",
            f"-DEVENTS_PAGES={self.events_size_bytes // page}",
            f"-DSTACKS_PAGES={self.stacks_size_bytes // page}",
            f"-DMAX_STACKS={self.max_stacks}",
            f"-DMAX_THREADS={self.max_threads}",
            f"-DMAX_FRAMES={self.max_frames}",
            f"-DMIN_SIZE={self.min_block_bytes}ULL",
            f"-DSTOP_SIGNAL={int(STOP_SIGNAL)}",
        ]
        namespace = pid_namespace()
        if namespace is not None:
            flags.append(f"-DPID_NAMESPACE_DEVICE={namespace[0]}ULL")
            flags.append(f"-DPID_NAMESPACE_INODE={namespace[1]}ULL")
        if self.trace_mappings:
            flags.append("-DTRACE_MAPPINGS")
            flags.append(f"-DMAPPINGS_PAGES={MAPPINGS_SIZE_BYTES // page}")
        if self.use_rows:
            flags.append("-DUSE_ROWS")
            flags.append(f"-DROW_SETS_LOG2={(self.row_sets - 1).bit_length()}")
            flags.append(f"-DMISSES_PAGES={self.misses_size_bytes // page}")
        if self.max_block_bytes is not None:
            flags.append(f"-DMAX_SIZE={self.max_block_bytes}ULL")
        if self.sample_bytes is not None:
            flags.append(f"-DSAMPLE_BYTES={self.sample_bytes}ULL")
        if self.follow:
            flags.append("-DFOLLOW")
            flags.append(f"-DMAX_SPACES={self.max_spaces}")
        if self.spill_entries:
            flags.append(f"-DSPILL_ENTRIES={self.spill_entries}")
        return flags


def import_bcc() -> Any:
    """The distribution's bcc module. Raises UnsupportedError if it isn't there."""
    try:
        bcc = importlib.import_module("bcc")
    except ImportError as error:
        if getattr(error, "name", None) in ("bcc", None):
            raise UnsupportedError("bcc is not installed", hint=INSTALL_HINT) from error
        raise UnsupportedError(f"bcc cannot be imported: {error}", hint=INSTALL_HINT) from error
    except OSError as error:
        raise UnsupportedError(f"bcc cannot be loaded: {error}", hint=INSTALL_HINT) from error
    if not hasattr(bcc, "BPF"):
        raise UnsupportedError(
            "the installed bcc is PyPI's crystal-lattice package, not the BPF compiler",
            hint=f"pip uninstall bcc, then {INSTALL_HINT}",
        )
    return bcc


@contextmanager
def _stderr_kept(lines: list[str], *, quiet: bool) -> Iterator[None]:
    """Collects what libbcc writes to descriptor 2 instead of showing it, if ``quiet``."""
    if not quiet:
        yield
        return
    saved = os.dup(2)
    scratch = os.memfd_create("bcc-messages")
    os.dup2(scratch, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        with os.fdopen(scratch, "rb") as messages:
            messages.seek(0)
            lines.extend(messages.read().decode(errors="replace").splitlines())


class Capture:
    """The programs, their rings, counters and control words. Attaches nothing by itself."""

    def __init__(self, config: CaptureConfig, *, debug: bool = False) -> None:
        """Compiles the probes and makes their maps. Raises UnsupportedError."""
        self._bcc: Any = import_bcc()
        self._debug = debug
        os.environ["BCC_KERNEL_SOURCE"] = str(probes.kernel_headers())
        entries = config.entries
        text = probes.source_text(
            use_rows=config.use_rows,
            trace_mappings=config.trace_mappings,
            entries=entries.values(),
        ).encode()
        mapping = ("mapping_return",) if config.trace_mappings else ()
        self._names = (*PROGRAMS, *mapping, *entries)
        with self._explained():
            self._bpf: Any = self._bcc.BPF(text=text, cflags=config.cflags())
        self._programs: dict[str, int] = {}
        self._calls: Any = self._bpf[b"calls"]
        self.events_fd: int = self._bpf[b"events"].map_fd
        """Readable for epoll when the ring is half full."""
        self.misses: MissRing | None = None
        self.misses_fd = -1
        """Readable for epoll at every miss; -1 if there are none."""
        self.rows: RowMemory | None = None
        """The rows of all address spaces, if stacks are walked by rows."""
        if config.use_rows:
            self.misses_fd = self._bpf[b"misses"].map_fd
            self.misses = MissRing(self.misses_fd, config.misses_size_bytes)
            self.rows = RowMemory(self._shared(b"rows", abi.ROW_SET_DTYPE, config.row_sets))
        self._counters = self._shared(b"counters", np.dtype(np.uint64), len(abi.Counter))
        self._control = self._shared(b"control", abi.CONTROL_DTYPE, 1)
        self.drain = self._make_drain(config)
        self.mappings: EventRing | None = None
        """What is mapped and unmapped, if that is traced."""
        if config.trace_mappings:
            self.mappings = EventRing(self._bpf[b"mappings"].map_fd, MAPPINGS_SIZE_BYTES)
        spaces = config.max_spaces if config.follow else 1
        self._spaces = self._shared(b"spaces", abi.SPACE_DTYPE, spaces)
        self._space_of: Any = self._bpf[b"space_of"] if config.follow else None
        self._free_slots = list(range(spaces - 1, -1, -1))
        self._tracepoints: list[int] = []
        self.stacks = self._make_stack_drain(config)
        if config.sample_bytes is not None:
            lengths = sampling.gaps(config.sample_bytes)
            self._shared(b"gaps", lengths.dtype, len(lengths))[:] = lengths

    def _make_drain(self, config: CaptureConfig) -> Drain:
        ring = EventRing(self.events_fd, config.events_size_bytes)
        if not config.spill_entries:
            return Drain(ring, self._control, None)
        try:
            spill = Spill(self._bpf[b"spill"].map_fd, self._bpf[b"pairs"].map_fd)
        except OSError as error:
            raise UnsupportedError(f"the kernel refused a map of maps: {error.strerror}") from error
        return Drain(ring, self._control, spill)

    def _make_stack_drain(self, config: CaptureConfig) -> StackDrain:
        ring = StackRing(self._bpf[b"stacks"].map_fd, config.stacks_size_bytes)
        kept = self._bpf[b"kept_stacks"].map_fd if config.spill_entries else None
        return StackDrain(ring, self._control, kept, config.max_frames)

    def _shared(self, table: bytes, dtype: np.dtype[Any], entries: int) -> npt.NDArray[Any]:
        """The memory of a mappable array map, which lives as long as the array."""
        pages = -(-dtype.itemsize * entries // mmap.PAGESIZE)
        memory = mmap.mmap(self._bpf[table].map_fd, pages * mmap.PAGESIZE)
        return np.frombuffer(memory, dtype, entries)

    def load(self, attach_type: int | None) -> None:
        """Loads every program, for this expected_attach_type of bpf(2) or without one.

        May be called again with another one. Raises UnsupportedError.
        """
        self._programs.clear()
        with self._explained():
            for name in self._names:
                loaded = self._bpf.funcs.pop(name.encode(), None)
                if loaded is not None:
                    os.close(loaded.fd)
                kind = {} if attach_type is None else {"attach_type": attach_type}
                function = self._bpf.load_func(name.encode(), self._bcc.BPF.KPROBE, **kind)
                self._programs[name] = function.fd

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what bcc raises and prints into one UnsupportedError."""
        messages: list[str] = []
        try:
            with _stderr_kept(messages, quiet=not self._debug):
                yield
        except Exception as error:
            raise UnsupportedError(
                _last_words(messages) or f"bcc could not load the probes: {error}",
                hint="run again with --debug to see the compiler's and verifier's messages",
            ) from error

    @property
    def programs(self) -> dict[str, int]:
        """The descriptors of all loaded programs, by name."""
        return dict(self._programs)

    def program(self, name: str) -> int:
        """The descriptor of a loaded program."""
        return self._programs[name]

    def set_live(self, live: bool) -> None:
        """Lets the probes report, or stops them."""
        self._control["live"][0] = live

    def set_stop_at_loads(self, stop: bool) -> None:
        """Whether threads get the stop signal when the loader has mapped something."""
        self._control["stop_at_loads"][0] = stop

    def clear_woken(self) -> None:
        """Allows the next wake-up; to be called before the ring is read."""
        self._control["woken"][0] = 0

    def new_space(self) -> SpaceWords:
        """What the probes are told of one more address space. Raises UnsupportedError."""
        if not self._free_slots:
            raise UnsupportedError(f"more than {len(self._spaces)} processes can't be traced")
        return SpaceWords(self._spaces, self._free_slots.pop())

    def free_space(self, words: SpaceWords) -> None:
        """Nobody has this address space any more."""
        self._free_slots.append(words.slot)

    def assign(self, pid: int, words: SpaceWords) -> None:
        """Which address space a process has, where children are traced."""
        if self._space_of is not None:
            self._space_of[ctypes.c_uint32(pid)] = ctypes.c_uint32(words.slot)

    def unassign(self, pid: int) -> None:
        """The process is not traced any more."""
        with suppress(KeyError):
            del self._space_of[ctypes.c_uint32(pid)]

    def watch(self, pid: int) -> None:
        """Has this process report when it begins another program. Raises UnsupportedError."""
        self._control["tgid"][0] = pid
        for name, tracepoint in TRACEPOINTS.items():
            if name == "process_forks" and self._space_of is None:
                continue
            with self._explained():
                function = self._bpf.load_func(name.encode(), self._bcc.BPF.RAW_TRACEPOINT)
            descriptor = self._bcc.lib.bpf_attach_raw_tracepoint(function.fd, tracepoint.encode())
            if descriptor < 0:
                raise UnsupportedError(f"the kernel refused to watch {tracepoint}")
            self._tracepoints.append(descriptor)

    def set_large_misses(self, large: bool) -> None:
        """Whether misses bring the larger copy of the stack."""
        self._control["large_misses"][0] = large

    def counters(self) -> npt.NDArray[np.uint64]:
        """A copy of all counters, indexed by ``abi.Counter``."""
        return self._counters.copy()

    def forget_threads(self, pid: int, alive: set[int]) -> int:
        """Drops pairing records of this process's threads not in ``alive``; how many.

        The probes see PIDs of the initial namespace: where ours is another one, nothing
        matches and nothing is dropped.
        """
        gone = [
            key.value
            for key in self._calls.keys()  # noqa: SIM118 - bcc's table is no dict
            if key.value >> 32 == pid and key.value & 0xFFFFFFFF not in alive
        ]
        for key in gone:
            with suppress(KeyError):
                del self._calls[ctypes.c_uint64(key)]
        return len(gone)

    def close(self) -> None:
        """Unloads the programs and frees the maps."""
        self.drain.close()
        for descriptor in self._tracepoints:
            os.close(descriptor)
        self._tracepoints.clear()
        self._bpf.cleanup()


def _last_words(messages: list[str]) -> str:
    """One line out of libbcc's messages: the first compile error, or what the kernel said."""
    for line in messages:
        if "error:" in line:
            return f"bcc could not compile the probes: {line.strip()}"
    for line in messages:
        if "Operation not permitted" in line:
            return "the kernel refused to load the probes: Operation not permitted"
    return ""
