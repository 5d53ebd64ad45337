"""The options with which the probes are compiled."""

from __future__ import annotations

import mmap
import os
import signal
from enum import Enum
from typing import Final

from tracelloc import probes
from tracelloc.architecture import native
from tracelloc.dataclass import dataclass
from tracelloc.heap import sampling
from tracelloc.model.events import EVENT_DTYPE
from tracelloc.record.kernel.btf import CFLAGS, type_numbers
from tracelloc.record.kernel.compiler import CompiledProbes
from tracelloc.record.kernel.precompiled import compiled
from tracelloc.record.process.identity import pid_namespace


class Method(Enum):
    """A way to attach probes. The value is the name that users choose."""

    SESSION = "session"
    MULTI = "multi"
    PERF = "perf"

    @property
    def title(self) -> str:
        return _TITLES[self]

    @property
    def has_links(self) -> bool:
        """Whether one descriptor (a link) holds many probes; otherwise one each."""
        return self is not Method.PERF


_TITLES: Final = {
    Method.SESSION: "uprobe sessions",
    Method.MULTI: "uprobe_multi links",
    Method.PERF: "perf events",
}


# Capacity in events of the ring of mmap and munmap events: a power of two.
MAPPING_SLOTS: Final = 1 << 16

# The signal that stops a thread for tracelloc: ignored wherever nobody waits for it.
STOP_SIGNAL: Final = signal.SIGURG


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """The options with which the probes are compiled."""

    events_size_bytes: int = 8 << 20  # Maximum size of the ring of events
    stacks_size_bytes: int = 4 << 20  # Size of the ring of new stacks: a power of two of pages
    max_stacks: int = 1 << 18  # Distinct call stacks that the probes remember
    max_threads: int = 1 << 15  # Threads that may have allocated: a power of two
    # Whether stacks are walked by call-frame information; otherwise by frame pointers.
    use_rows: bool = True
    row_sets: int = 1 << 18  # Number of sets of four rows, 64 bytes each: a power of two
    # Size of the ring of stacks that user space must finish: a power of two of pages.
    misses_size_bytes: int = 16 << 20
    max_frames: int = 127  # Longest call stack, in frames
    min_block_bytes: int = 0  # Smaller allocations are not reported
    max_block_bytes: int | None = None  # Larger allocations are not reported
    sample_bytes: int | None = None  # Mean distance between samples; None reports every allocation
    follow: bool = False  # Whether child processes are traced
    max_spaces: int = 1024  # Concurrent address spaces; one, if children are not traced
    # Most addresses whose events are stored while the ring of events is full; with 0, these events
    # are lost.
    spill_entries: int = 1 << 18
    trace_mappings: bool = False  # Whether mmap and related calls are traced
    usdt: bool = False  # Whether programs' own reports are read, instead of probing functions
    weighted: bool = False  # Whether these are samples with weights
    runtime_frames: bool = False  # Whether stacks have functions of runtimes, such as CPython

    @property
    def table_sample_bytes(self) -> int | None:
        """Mean distance between samples for ``LiveTable``, in bytes; None: not sampled."""
        return sampling.GIVEN if self.weighted else self.sample_bytes

    @property
    def ring_slots(self) -> int:
        """Capacity of the event ring, in events: a power of two."""
        return 1 << (self.events_size_bytes // EVENT_DTYPE.itemsize).bit_length() - 1

    def cflags(self, *, iterates: bool = False) -> list[str]:
        """Returns the compiler's options: macros for ``probes/maps.h`` and ``probes/heap.bpf.c``.

        ``iterates``: the kernel's iterator counts loops, so that the verifier follows each once.
        """
        page, namespace = mmap.PAGESIZE, pid_namespace()
        code_bits = native().return_address_mask.bit_length()
        # By name; None or False: it is not defined.
        macros: dict[str, object] = {
            "PAGE_SIZE": page,
            "EVENTS": self.ring_slots,
            "STACKS_PAGES": self.stacks_size_bytes // page,
            "MAX_STACKS": self.max_stacks,
            "MAX_THREADS": self.max_threads,
            "MAX_FRAMES": self.max_frames,
            "PROCESSORS": os.cpu_count() or 1,
            "MIN_SIZE": f"{self.min_block_bytes}ULL",
            "STOP_SIGNAL": int(STOP_SIGNAL),
            "CODE_BITS": code_bits if code_bits < 64 else None,
            "PID_NAMESPACE_DEVICE": namespace and f"{namespace[0]}ULL",
            "PID_NAMESPACE_INODE": namespace and f"{namespace[1]}ULL",
            "TRACE_MAPPINGS": self.trace_mappings,
            "MAPPINGS": MAPPING_SLOTS if self.trace_mappings else None,
            "USE_ROWS": self.use_rows,
            "ROW_SETS_LOG2": (self.row_sets - 1).bit_length() if self.use_rows else None,
            "MISSES_PAGES": self.misses_size_bytes // page if self.use_rows else None,
            "MAX_SIZE": None if self.max_block_bytes is None else f"{self.max_block_bytes}ULL",
            "SAMPLE_BYTES": None if self.sample_bytes is None else f"{self.sample_bytes}ULL",
            "FOLLOW": self.follow,
            "MAX_SPACES": self.max_spaces if self.follow else None,
            "USDT": self.usdt,
            "USDT_WEIGHTS": self.weighted,
            "PYTHON": self.runtime_frames,
            "SPILL_ENTRIES": self.spill_entries or None,
        }
        used = {name: n for name, n in macros.items() if n is not None and n is not False}
        flags = [f"-D{name}" if n is True else f"-D{name}={n}" for name, n in used.items()]
        return [*flags, *(CFLAGS if iterates else ())]

    def compile(self, *, debug: bool = False, iterates: bool | None = None) -> CompiledProbes:
        """Compiles the probes. Raises UnsupportedError. ``iterates``: None: if the kernel can."""
        if iterates is None:
            iterates = type_numbers() is not None
        text = probes.source_text(
            use_rows=self.use_rows,
            machine=native().name,
            trace_mappings=self.trace_mappings,
            python=self.runtime_frames,
            usdt=self.usdt,
        )
        return compiled(text, self.cflags(iterates=iterates), probes.kernel_headers(), debug=debug)
