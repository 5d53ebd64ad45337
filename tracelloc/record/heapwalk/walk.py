"""Walks a process's heap, whichever malloc library it has."""

from collections.abc import Callable
from typing import TypeVar

from tracelloc.errors import TargetError
from tracelloc.record.heapwalk.arenas import NotWalkableError, WalkedHeap
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.glibc import walk_glibc
from tracelloc.record.heapwalk.jemalloc import walk_jemalloc
from tracelloc.record.heapwalk.mimalloc import walk_mimalloc
from tracelloc.record.heapwalk.musl import walk_musl
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.tcmalloc import walk_tcmalloc
from tracelloc.record.process.procfs import Process

Found = TypeVar("Found")


def walk_heap(reader: PieceReader, tally: ClassTally) -> WalkedHeap:
    """Walks the heaps of all malloc libraries that are known. Raises NotWalkableError."""
    found: list[WalkedHeap] = []
    refused: list[NotWalkableError] = []
    for walk in (walk_glibc, walk_jemalloc, walk_mimalloc, walk_tcmalloc, walk_musl):
        if walk is walk_musl and found:
            break
        try:
            if (one := walk(reader, tally)) is not None:
                found.append(one)
        except NotWalkableError as error:
            refused.append(error)
    if not found:
        if refused:
            raise refused[0]
        raise NotWalkableError(
            "it has no heap of glibc, jemalloc, mimalloc, tcmalloc or musl, or has not used it yet",
            hint="tracelloc -p PID --mmap traces what is allocated or mapped from now on",
        )
    heap = found[0]
    for more in found[1:]:
        heap.arenas += more.arenas
        heap.metadata += more.metadata
    heap.notes += [f"not included: {error.message}" for error in refused]
    return heap


def while_alive(process: Process, read: Callable[[Process], Found]) -> Found:
    """Runs ``read`` with a running thread, and again if only that thread ends meanwhile.

    A main thread that has ended has no memory. Raises TargetError if the process ends, as the
    result is then not whole.
    """
    while True:
        thread = Process(process.thread_id, process.root)
        trouble: Exception | None = None
        try:
            found = read(thread)
            if thread.maps_text():
                return found
        except (ProcessLookupError, FileNotFoundError, TargetError, NotWalkableError) as error:
            trouble = error
        if process.exists() and not process.is_running(thread.pid):
            continue
        if isinstance(trouble, TargetError):
            raise trouble
        if isinstance(trouble, NotWalkableError) and process.maps_text():
            raise trouble
        raise TargetError(f"process {process.pid} has ended") from trouble
