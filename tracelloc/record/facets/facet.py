"""The interface of facets, and what they see of a process.

A facet is what is found out about a process beside its events: where its memory is, which blocks
nothing points to, its objects. A new facet is a module with a ``Facet``, its line in
``schedule.py``, and its result's line in ``snapshots.snapshot.FACET_RESULTS``.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from tracelloc.dataclass import dataclass, field
from tracelloc.heap.heap import Heap
from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import I64, U64
from tracelloc.model.verdicts import Findings
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.reachability.roots import RootWords
from tracelloc.record.tasks.memorybudget import MemoryBudget
from tracelloc.record.tasks.supervision import Supervisor
from tracelloc.text import NS_PER_S

OLD_NS: Final = 10 * NS_PER_S  # Pointers to younger blocks may be in registers, or being moved
_REGISTERS: Final = "reading of registers"
_NO_REGISTERS: Final = (
    "registers are not searched for pointers ({why}): blocks that only a register points to "
    "count as lost"
)
_MOST_CPU_NS: Final = 60 * NS_PER_S  # Of one inspection; enough to search about 200 GiB

LARGE_HEAP_BYTES: Final = 256 << 20  # RSS of processes whose heaps take long to read

T = TypeVar("T")


class InspectedProcess(Protocol):
    """A traced process, as facets see it. The session's lock guards all but the methods."""

    process: Process
    space: AddressSpace
    heap: Heap

    @property
    def findings(self) -> Findings | None:
        """Findings about the process's stacks; None before any event."""

    @property
    def is_growing(self) -> bool:
        """Whether blocks of some stack seem to accumulate."""

    def old_blocks(self, born_by_ns: int) -> Iterator[Blocks]:
        """Copies live blocks allocated by then, some at a time. Takes the lock for each copy."""

    def stacks_at(self, addresses: U64) -> I64:
        """Returns the stack of the live block at each address; -1 if none. Takes the lock."""

    def is_interpreter(self, address: int) -> bool:
        """Whether an address is in the code of a language's runtime or of C's libraries."""


@dataclass(slots=True)
class FacetContext:
    """Settings and resources that the facets of all processes share."""

    supervisor: Supervisor
    memory: MemoryBudget | None = None  # Memory that tracelloc may use; None: unlimited
    reads_memory: bool = True  # Whether tracelloc may read the processes' memory
    reads_registers: bool = False  # Whether registers are searched for pointers
    debug: bool = False
    large_heap: threading.Lock = field(default_factory=threading.Lock)  # Held while one is read
    _root_words: RootWords | None = None

    def root_words(self) -> RootWords | None:
        """Returns the reader of registers, made at the first call; None if they are not read."""
        if self.reads_registers and self._root_words is None:
            self._root_words = RootWords(debug=self.debug)
            if missing := self._root_words.missing:
                self.supervisor.count(_REGISTERS)
                self.supervisor.say(_NO_REGISTERS.format(why=missing))
        return self._root_words

    def close(self) -> None:
        if self._root_words is not None:
            self._root_words.close()


@dataclass(frozen=True, slots=True)
class InspectionBudget:
    """Limits of time and memory for one inspection, on the thread that created this object."""

    is_over: Callable[[], bool]  # Whether the trace ends
    now_ns: int  # When the inspection began, CLOCK_MONOTONIC
    memory_bytes: int | None = None  # Bytes left of tracelloc's own memory; None: unlimited
    _began_ns: int = field(default_factory=time.thread_time_ns)

    @property
    def used_ns(self) -> int:
        return time.thread_time_ns() - self._began_ns

    def may_take(self, size_bytes: float) -> bool:
        return self.memory_bytes is None or size_bytes <= self.memory_bytes

    def may_go_on(self) -> bool:
        return not self.is_over() and self.used_ns < _MOST_CPU_NS

    def check(self) -> None:
        """Raises InterruptedError if the trace ends, TimeoutError if no time is left."""
        if self.is_over():
            raise InterruptedError
        if not self.may_go_on():
            raise TimeoutError("reading its memory takes too long")


class Facet(ABC, Generic[T]):
    """One facet of one process. Call all but ``inspect`` with the session's lock."""

    name: ClassVar[str]  # The key of results in snapshots and recordings
    task: ClassVar[str]  # Name of inspections in messages about failures
    share: ClassVar[float]  # Of one processor's time that inspecting all processes takes at most
    at_ends: ClassVar[bool] = False  # Also when tracing begins, and, if that is quick, ends
    needs_memory: ClassVar[bool] = True  # Whether they pause while memory is nearly used up
    final_errors: ClassVar[tuple[type[Exception], ...]] = ()  # Errors that will not go away

    result: T | None = None  # Result of the last inspection, for snapshots; None: none yet
    began_ns: int = 0  # When the last inspection began, CLOCK_MONOTONIC; 0: none yet
    took_ns: int = 0  # CPU time of the last inspection
    # The process's events and RSS when the last inspection began, and how many before saw the same.
    _state: tuple[int, int | None] = -1, None
    _repeats: int = 0

    def __init__(self, process: InspectedProcess, context: FacetContext) -> None:
        self.process, self.context = process, context

    def begin(self, now_ns: int) -> None:
        self.began_ns, state = now_ns, self._state_now()
        self._repeats = self._repeats + 1 if state == self._state else 0
        self._state = state

    def has_settled(self, repeats: int) -> bool:
        """Whether so many inspections, after one, have seen no event, and no other RSS."""
        return self._repeats >= repeats and self._state_now() == self._state

    def _state_now(self) -> tuple[int, int | None]:
        return self.process.heap.table.events, self.process.process.rss_bytes()

    @abstractmethod
    def pause_ns(self, now_ns: int, /) -> int | None:
        """Returns the least time from one inspection to the next; None: don't inspect now."""

    @abstractmethod
    def inspect(self, budget: InspectionBudget, /) -> T | None:
        """Inspects the process; returns a result or None. In the background, without the lock."""

    def refresh(self) -> None:
        """Inspects for a snapshot, if the last result is too old. Called without the lock."""

    def catch_up(self) -> None:
        """Takes over the result of ``refresh``, before a snapshot."""

    def begin_program(self) -> None:
        """Called when the memory image is that of a program that was executed just now."""

    def accept(self, result: T) -> None:
        """Takes over a result of ``inspect``."""
        self.result = result

    def give_up(self) -> None:
        """Called when there will be no more inspections."""
