"""The interface of facets, and what they see of a process.

A facet is what is found out about a process beside its events: where its memory is, which blocks
nothing points to, its objects. A new one is a module with a ``Facet``, its line in
``registered.py``, and that of its result in ``snapshots.snapshot.FACET_RESULTS``.
"""

from __future__ import annotations

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
# CPU time limit of one inspection; enough to search about 200 GiB for pointers.
_MOST_CPU_NS: Final = 60 * NS_PER_S

T = TypeVar("T")


class Inspected(Protocol):
    """A traced process that is looked into. Guarded by the session's lock, except the methods."""

    process: Process
    space: AddressSpace
    heap: Heap

    @property
    def findings(self) -> Findings | None:
        """Findings about its stacks; None before any event."""

    @property
    def is_growing(self) -> bool:
        """Whether blocks of some stack seem to accumulate."""

    def old_blocks(self, born_by_ns: int) -> Iterator[Blocks]:
        """Copies the live blocks born by then, some at a time. Takes the lock for each copy."""

    def stacks_at(self, addresses: U64) -> I64:
        """The stacks of the live blocks at these addresses; -1: there is none. Takes the lock."""

    def is_interpreter(self, address: int) -> bool:
        """Whether an address is in the code of a language's runtime or of C's libraries."""


@dataclass(slots=True)
class FacetContext:
    """What the facets of all processes share."""

    supervisor: Supervisor
    memory: MemoryBudget | None = None  # What tracelloc may use; None: unlimited
    reads_memory: bool = True  # Whether tracelloc may read the processes' memory
    reads_registers: bool = False
    debug: bool = False
    _root_words: RootWords | None = None

    def root_words(self) -> RootWords | None:
        """Returns the reader of registers, made at the first call; None: they are not read."""
        if self.reads_registers and self._root_words is None:
            self._root_words = RootWords(debug=self.debug)
            if missing := self._root_words.missing:
                self.supervisor.count(_REGISTERS)
                self.supervisor.say(_NO_REGISTERS.format(why=missing))
        return self._root_words

    def close(self) -> None:
        """Unloads the program that reads registers."""
        if self._root_words is not None:
            self._root_words.close()


@dataclass(frozen=True, slots=True)
class InspectionBudget:
    """What one inspection may use, on the thread that has made this."""

    is_over: Callable[[], bool]  # Whether the trace ends
    now_ns: int  # When it began, CLOCK_MONOTONIC
    memory_bytes: int | None = None  # What is left of tracelloc's own; None: unlimited
    _began_ns: int = field(default_factory=time.thread_time_ns)

    @property
    def used_ns(self) -> int:
        """The CPU time so far."""
        return time.thread_time_ns() - self._began_ns

    def may_take(self, size_bytes: float) -> bool:
        """Whether so much of tracelloc's own memory is left."""
        return self.memory_bytes is None or size_bytes <= self.memory_bytes

    def may_go_on(self) -> bool:
        """Whether the trace goes on and there is time left."""
        return not self.is_over() and self.used_ns < _MOST_CPU_NS

    def check(self) -> None:
        """Raises InterruptedError if the trace ends, TimeoutError if no time is left."""
        if self.is_over():
            raise InterruptedError
        if not self.may_go_on():
            raise TimeoutError("reading its memory takes too long")


class Facet(ABC, Generic[T]):
    """One facet of one memory image. With the session's lock, except ``inspect``."""

    name: ClassVar[str]  # The key of results in snapshots and recordings
    task: ClassVar[str]  # What inspecting is called in messages about failures
    # Largest share of one processor's time that inspecting all processes takes.
    share: ClassVar[float]
    # Whether it is also inspected when tracing begins, and at its end if that is quick.
    at_ends: ClassVar[bool] = False
    # Whether it pauses while tracelloc's memory budget is nearly used up.
    needs_memory: ClassVar[bool] = True
    final_errors: ClassVar[tuple[type[Exception], ...]] = ()  # Errors that will not go away

    result: T | None = None  # What was found last, for snapshots; None: nothing yet
    began_ns: int = 0  # When the last inspection began, CLOCK_MONOTONIC; 0: there was none
    took_ns: int = 0  # CPU time of the last inspection
    # The process's events and RSS when the last one began, and how many before it saw the same.
    _state: tuple[int, int | None] = -1, None
    _repeats: int = 0

    def __init__(self, process: Inspected, context: FacetContext) -> None:
        self.process, self.context = process, context

    def begin(self, now_ns: int) -> None:
        """Notes that an inspection begins."""
        self.began_ns, state = now_ns, self._state_now()
        self._repeats = self._repeats + 1 if state == self._state else 0
        self._state = state

    def has_settled(self, repeats: int) -> bool:
        """Whether nothing has happened since the last inspections: no event, the same RSS.

        ``repeats``: how many inspections after the first one must have seen the same.
        """
        return self._repeats >= repeats and self._state_now() == self._state

    def _state_now(self) -> tuple[int, int | None]:
        return self.process.heap.table.events, self.process.process.rss_bytes()

    @abstractmethod
    def pause_ns(self, now_ns: int, /) -> int | None:
        """The least time from one inspection to the next; None: there is to be none now."""

    @abstractmethod
    def inspect(self, budget: InspectionBudget, /) -> T | None:
        """Returns what it finds; None: nothing. In the background, without the lock."""

    def refresh(self) -> None:
        """Inspects now if a snapshot wants it and what is known is old. Without the lock."""

    def catch_up(self) -> None:
        """Takes over what ``refresh`` has found, before a snapshot."""

    def begin_program(self) -> None:
        """Handles that the memory image is that of a program that was executed just now."""

    def accept(self, result: T) -> None:
        """Takes over what ``inspect`` has found."""
        self.result = result

    def give_up(self) -> None:
        """Does what is to be done if there will be no more inspections."""
