"""Finds the malloc and free that a running program uses, and whether probes sit on them."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import PATIENCE_S, SkippedError
from tracelloc.files.machinecode.probeoffsets import find_probe_offset
from tracelloc.record.mallocs.discovery import (
    AllocatorFunction,
    MallocChoice,
    discover,
    functions_of,
)
from tracelloc.record.mallocs.families import FunctionKind
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace

BREAKPOINT = b"\xcc"  # int3, what a uprobe puts in an instruction's place
POLL_S = 0.02


@dataclass(frozen=True)
class Allocator:
    """libc's malloc and free in one process."""

    pid: int
    path: str
    malloc: int  # File offset of the function's first byte; as is `free`
    free: int
    # How far past its entry the best place for a probe is; as is `free_shift_bytes`.
    malloc_shift_bytes: int
    free_shift_bytes: int

    def points(self, program: str) -> list[ProbePoint]:
        """Probes on malloc's return and entry and on free's entry, at the best places."""
        malloc, free = self.malloc + self.malloc_shift_bytes, self.free + self.free_shift_bytes
        return [
            ProbePoint(self.path, malloc, program, "malloc", returns=True),
            ProbePoint(self.path, free, program, "free"),
        ]

    def _addresses(self) -> list[int]:
        """Where the process has the two functions' first bytes."""
        found = []
        for offset in (self.malloc, self.free):
            for mapping in Process(self.pid).maps().mappings:
                end = mapping.offset + mapping.end - mapping.start
                if mapping.path == self.path and mapping.offset <= offset < end:
                    found.append(mapping.start + offset - mapping.offset)
                    break
        return found

    def is_probed(self) -> bool:
        """Whether breakpoints stand on both entries."""
        with Path(f"/proc/{self.pid}/mem").open("rb", buffering=0) as memory:
            for address in self._addresses():
                memory.seek(address)
                if memory.read(1) != BREAKPOINT:
                    return False
        return True

    def wait_probed(self, still_running: Callable[[], bool]) -> bool:
        """Waits for both breakpoints; False if the tool ended or took too long."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.is_probed():
                return True
            if not still_running():
                return False
            time.sleep(POLL_S)
        return False


def _shift(function: AllocatorFunction) -> int:
    code = function.module.elf.read(function.offset, function.size)
    return find_probe_offset(code, function.signature.registers).offset


def find_allocator(pid: int) -> Allocator:
    """libc's malloc and free in this process. Raises SkippedError if it has none."""
    with closing(AddressSpace(Process(pid))) as space:
        by_kind = {
            kind: function
            for function in functions_of(discover(space.refresh(), MallocChoice("libc.so")))
            for kind, name in ((FunctionKind.ALLOC, "malloc"), (FunctionKind.FREE, "free"))
            if name in function.names
        }
        if len(by_kind) < 2:
            raise SkippedError("the program does not use libc's malloc as a shared library")
        malloc, free = by_kind[FunctionKind.ALLOC], by_kind[FunctionKind.FREE]
        return Allocator(
            pid=pid,
            path=malloc.module.path,
            malloc=malloc.offset,
            free=free.offset,
            malloc_shift_bytes=_shift(malloc),
            free_shift_bytes=_shift(free),
        )
