"""One traced process: its probes, its address space, its heap."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import Final

import numpy as np

from tracelloc.errors import PrivilegeError, TargetError
from tracelloc.heap.heap import Heap, HeapSeries
from tracelloc.heap.ranges import RangeTable
from tracelloc.heap.stacks import StackNumbers, Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.blocks import Blocks, BlockSum, EarlierBlocks, PartFigures
from tracelloc.model.codefiles import FileId, base_name, is_c_library, is_runtime
from tracelloc.model.figures import I64, U32, U64, Rows
from tracelloc.model.losses import count_lost
from tracelloc.model.process import FoundLibrary, Overhead, Runtime, Target
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.model.verdicts import Findings
from tracelloc.record.facets.schedule import FACETS
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.mallocs.families import MAPPINGS
from tracelloc.record.process.identity import renamed_target
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.known import is_python_name, runtimes_of
from tracelloc.record.session.config import TraceContext
from tracelloc.record.session.eventcosts import EventCosts
from tracelloc.record.session.probeset import GapLog, ProbeSet
from tracelloc.record.session.processfacts import ProcessFactReader, ProcessFacts
from tracelloc.record.session.stackjudge import StackJudge
from tracelloc.record.unwinding.stacksource import StackSource
from tracelloc.snapshots.snapshot import ProcessStatus, Snapshot
from tracelloc.text import plural

PROBING: Final = "probing of libraries"
_JAVA_OPTIONS: Final = "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"
_AT_ONCE: Final = 8192  # Blocks copied at a time while events wait
# Age at which a process that the trace did not begin with is first judged.
_FIRST_LOOK_NS: Final = 1_000_000_000
# From how many frees of unknown blocks on, and from what share of all frees, allocations are
# unseen, if the walk has seen so much of the heap.
_LEAST_UNSEEN, _UNSEEN_SHARE, _WHOLE_SHARE = 50, 0.01, 0.99
_UNSEEN: Final = (
    "warning: process {pid} has freed blocks whose allocation was not seen ({frees}): another "
    "process may share its memory (clone(2) with CLONE_VM), which --follow traces, too"
)


class Stage(Enum):
    """How far the start of a process has come."""

    WAITING = auto()  # The process must execute its program first
    LOADING = auto()  # Libraries are not mapped yet
    RUNNING = auto()


class Tracee:
    """One traced process, with its probes, address space and heap; an ``InspectedProcess``.

    The session's lock guards it, except ``outside``, which reads /proc and the process's memory:
    only the thread that takes snapshots uses it.
    """

    def __init__(
        self,
        target: Target,
        space: AddressSpace,
        heap: Heap,
        words: SpaceControl,
        context: TraceContext,
        *,
        parent: Tracee | None = None,
        stage: Stage = Stage.RUNNING,
    ) -> None:
        """Probes nothing yet. ``parent``: the process from which it was forked."""
        config, now_ns = context.config, time.monotonic_ns()
        self.process, self.space = space.process, space
        self.target, self.heap = target, heap
        self.words = words  # Control words of the address space, which the probes read
        # When it was forked: what was allocated by then is its parent's; 0: it has begun empty
        self.forked_ns = 0 if parent is None else now_ns
        self.image = words.image  # The number of the memory image that `heap` describes
        self._stage = stage
        # `started_ns`: when its tracing began, CLOCK_MONOTONIC
        self.started_ns, self.series = now_ns, HeapSeries(now_ns)
        self.outside = ProcessFactReader(space, context.supervisor)
        with_loader = config.capture.use_rows or config.follow or self.is_starting
        self.probes = ProbeSet(
            context.sources, space, words, config.selection, with_loader=with_loader
        )
        self.gaps = GapLog(context.sources, self.probes)  # Periods with missed events
        self.source: StackSource = StackSource(
            space, heap.stacks, words, rows=words.rows, config=config.capture,
            on_modules=self._see, like=None if parent is None else parent.source,
        )  # fmt: skip
        # Code files, and the runtimes among them
        self._runtimes: tuple[tuple[FileId, ...], tuple[Runtime, ...]] | None = None
        # Snapshots by kind. An ended process does not change, so one of each kind suffices.
        self.last_snapshots: dict[SnapshotRequest, Snapshot] = {}
        self._context = context
        self._costs, self._events_before = EventCosts(), 0
        # Of the part of the run that goes on; the stacks' numbers in its table
        self._part: LiveTable | None = None
        self._numbers = StackNumbers()
        # Blocks from before tracing that are in its heap; None if there are none
        self.earlier: EarlierBlocks | None
        self._forget_image(now_ns, None if parent is None else parent._trampoline)
        if parent is not None:
            self.earlier = parent.earlier

    def _forget_image(self, now_ns: int, trampoline: int | None = None) -> None:
        self.problem = ""  # Why the program is not traced
        self._trampoline = trampoline
        self.earlier = None
        # What is known about its memory beside its events, by name
        self.facets = {kind.name: kind(self, self._context.facets) for kind in FACETS}
        # Most short-lived child processes end before they are judged.
        first_look_ns = now_ns + _FIRST_LOOK_NS if self.target.number else now_ns
        self.judging = StackJudge(self, self._context.sources, first_look_ns)
        if self._context.config.checks_exit:
            self.judging.stop()
        self._shortage: str | None = None
        self._has_told_of_unseen = False

    @property
    def is_starting(self) -> bool:
        """Whether the program's libraries are not mapped yet."""
        return self._stage is not Stage.RUNNING

    @property
    def events(self) -> int:
        """Number of events applied since tracing started, in all programs of the process."""
        return self._events_before + self.table.events

    @property
    def table(self) -> LiveTable:
        """The table to which events are applied: that of the heap, or of a part of the run."""
        return self.heap.table if self._part is None else self._part

    def begin(self, modules: Sequence[Module], now_ns: int) -> None:
        """Attaches probes to mapped files, and awaits unwind entries. Raises TracellocError."""
        self.probes.attach(modules, all_loaded=True)
        self.source.leading = self.probes.leading()
        self.source.await_rows()
        self.started_ns = now_ns
        self.outside.residency.restart()
        self.heap = self.heap.renewed(now_ns, self.heap.stacks)

    def begin_image(
        self, now_ns: int, *, execs: int, same_thread: bool, is_stopped: bool = False
    ) -> None:
        """Resets the state after an exec: no block is live, and all mappings are new.

        ``execs``: number of programs executed since the last known one. ``is_stopped``: whether
        the process stops once more when its libraries are mapped (``load``).

        Probes in files that the new program maps as well stay in place, unless a thread other
        than the main thread executed it (not ``same_thread``): the kernel attaches probes through
        the main thread. Raises TracellocError if the new program can't be traced; it then seems
        to allocate nothing. If the process does not stop, ``check_for_changes`` reports why.
        """
        # The program that tracelloc launches does not count.
        has_begun = self._stage is not Stage.WAITING
        exec_count = self.target.exec_count + execs * has_begun
        self.target = renamed_target(self.process, self.target, exec_count)
        self._stage = Stage.RUNNING if has_begun and not is_stopped else Stage.LOADING
        self.image, self.forked_ns = self.words.image, 0
        self._events_before += self.table.events
        self._part = None
        # Stack numbers continue, so that earlier snapshots keep theirs.
        self.heap = self.heap.renewed(now_ns, Stacks(self.heap.stacks))
        self.outside.begin_image()
        self._forget_image(now_ns)
        for facet in self.facets.values():
            facet.begin_program()
        stays = not (was_replaced := self.probes.is_replaced) and same_thread
        self.space.begin_image(keep_modules=stays)
        self.source.begin_image(self.heap.stacks)
        if not stays:
            self.probes.clear(same_thread=same_thread)
        self.source.refresh()
        if not (self.is_starting or was_replaced):
            self.probes.check_later()

    def load(self) -> None:
        """Handles changed mappings of the stopped process. Raises TargetError without allocator."""
        self.source.refresh()
        self.probes.settle(all_loaded=True)
        if self.is_starting:
            self._stage = Stage.RUNNING
            self.probes.check()

    def begin_part(self, now_ns: int) -> None:
        """Begins a part of the run, with an empty table. Frees of earlier blocks are ignored.

        Stacks are not judged from now on: a part is too short for verdicts. It has stack numbers
        of its own, as parts may be many, and each of some stacks that no other one has.
        """
        self._events_before += self.table.events
        table = self.heap.table
        self._numbers = StackNumbers()
        self._part = LiveTable(self._numbers, table.totals.sample_bytes, table.temporary)
        self._part.cohorts.begin(now_ns)
        self.judging.stop()

    def part_blocks(self) -> Blocks:
        """Returns the live blocks of the part, with the stack numbers of the heap."""
        found = self.table.raw_blocks()
        return found if self._part is None else replace(found, stack=self._renumbered(found.stack))

    def _renumbered(self, stacks: Rows | U32) -> U32:
        return self.heap.stacks.indices(self._numbers.known()[stacks]).astype(np.uint32)

    def part(self, most_bytes: int | None) -> PartFigures:
        """Returns the figures since ``begin_part``.

        The stacks at its peak are given, largest first, if that is above ``most_bytes``.
        """
        table, peak = self.table, self.table.peak
        at_peak: Sequence[tuple[int, BlockSum]] = ()
        if peak is not None and most_bytes is not None and peak.size_bytes > most_bytes:
            order = np.argsort(-peak.live_bytes, kind="stable")
            order = order[peak.live_bytes[order] > 0]
            columns = peak.live_count[order].tolist(), peak.live_bytes[order].tolist()
            sums = map(BlockSum, *columns)
            at_peak = tuple(zip(self._renumbered(order).tolist(), sums, strict=True))
        return PartFigures(
            peak_bytes=peak.size_bytes if peak else 0,
            allocated_bytes=int(table.totals.allocated_bytes.sum()),
            allocated_count=int(table.totals.allocated_count.sum()),
            live_bytes=table.live_bytes,
            live_count=table.count,
            at_peak=at_peak,
        )

    def end(self) -> None:
        """Records the end: keeps totals, drops blocks. The probes are still to be detached."""
        self.look_last()
        self.target = replace(self.target, has_ended=True)
        self.source.close()
        self.heap.table.drop_blocks()

    def why_incomplete(self) -> str:
        """Returns why the table may lack blocks of the process; empty if it has them all."""
        if self.problem:
            return self.problem
        if not self.probes.is_complete:
            return "its allocations were not reported"
        self.gaps.run_due(is_last=True)
        return self.gaps.gaps[0].reason if self.gaps.gaps else ""

    def forget_gaps(self) -> str:
        """Returns ``why_incomplete``, and forgets the gaps that have ended."""
        why = self.why_incomplete()
        self.gaps.forget()
        return why

    def look_last(self) -> None:
        """Records what is missing from the figures, when no more events will come."""
        self.gaps.run_due(is_last=True)
        self.probes.check_last(self._context.supervisor.say, has_events=self.heap.table.events > 0)

    def close(self) -> None:
        self.source.close()
        self.space.close()

    # For facets; see ``InspectedProcess``.

    def old_blocks(self, born_by_ns: int) -> Iterator[Blocks]:
        """Copies live blocks allocated by then, some at a time. Takes the lock for each copy."""
        table = self.heap.table
        at: int | None = 0
        while at is not None:
            with self._context.lock:
                at, some = table.some_blocks(at, born_by_ns, _AT_ONCE)
            yield some

    def stacks_at(self, addresses: U64) -> I64:
        """Returns the stack of the live block at each address; -1 if none. Takes the lock."""
        with self._context.lock:
            return self.heap.table.stacks_at(addresses)

    # Upkeep.

    def check_for_changes(self, say: Callable[[str], None]) -> None:
        """Checks for changes; call this often. ``say`` gets messages. Raises TracellocError."""
        self.gaps.run_due()
        self.probes.check_for_changes(say, self.heap.table.raw_blocks, self.source.refresh)
        self.probes.settle(all_loaded=False, say=say)
        # A loaded library may be an allocator that no other event reveals.
        self.source.catch_up()
        if self.source.merger is not None:
            for trouble in self.source.merger.troubles():
                say(f"process {self.process.pid}: {trouble}")
        if self.space.shortage != self._shortage:
            self._shortage = self.space.shortage
            files = f"files of process {self.process.pid}"
            say(f"warning: {files} can't be opened, and are not traced: {self._shortage}")
        has_probes = not self._context.config.without_probes
        if has_probes and self._trampoline is None and self.events:
            self.source.refresh()
        if not self._has_told_of_unseen and self._are_allocations_unseen():
            self._has_told_of_unseen = True
            count = self.heap.table.oddities.unmatched_frees
            say(_UNSEEN.format(pid=self.process.pid, frees=plural(count, "free")))

    def _are_allocations_unseen(self) -> bool:
        """Whether blocks are freed that no probe has seen, nor the walk of the heap before."""
        if self.earlier is None or self.earlier.coverage < _WHOLE_SHARE:
            return False
        table, capture = self.heap.table, self._context.config.capture
        unmatched = table.oddities.unmatched_frees
        return (
            unmatched >= _LEAST_UNSEEN
            and (capture.min_block_bytes, capture.max_block_bytes) == (0, None)
            and bool(unmatched >= _UNSEEN_SHARE * table.totals.freed_count.sum())
            and not count_lost(self._context.sources.counters())
        )

    def take_samples(self, now_ns: int) -> None:
        """Takes the samples over time (history, series) that are due."""
        table = self.heap.table
        costs = None if self.probes.link is None else self.probes.link.costs()
        self._costs.record_counts(now_ns, self.events, costs, self.process)
        self.outside.thread_names.read_new(table.threads().tid)
        if self.heap.history.is_due(now_ns):
            self.heap.history.sample(now_ns, table.totals.live_bytes)
        if self.series.is_due(now_ns):
            usage, objects = self.facets["heap"].result, self.facets["objects"].result
            kept_bytes = 0 if usage is None else usage.now.account.kept_bytes
            census = None if objects is None else objects.now
            object_bytes = 0 if census is None else census.block_bytes
            rss_bytes = self.outside.rss_bytes()
            self.series.add(now_ns, self.heap.live_bytes, rss_bytes, kept_bytes, object_bytes)

    @property
    def findings(self) -> Findings | None:
        """Findings about the process's stacks; None before any event."""
        return self.judging.findings

    @property
    def is_growing(self) -> bool:
        """Whether blocks of some stack seem to accumulate; True if nothing is known yet."""
        return self.findings is None or self.findings.is_growing

    def is_interpreter(self, address: int) -> bool:
        """Whether an address is in the code of a language's runtime or of C's libraries."""
        mapping = self.space.find_stored(address)
        return mapping is not None and (
            is_runtime(mapping.path) or is_python_name(base_name(mapping.path))
        )

    def drop_ended_threads(self) -> int:
        """Frees the probes' records of ended threads. Returns the number of threads."""
        return self._context.sources.forget_threads(
            self.process.pid, lambda thread_id: not self.process.has_thread(thread_id)
        )

    def _see(self, modules: Sequence[Module]) -> None:
        if modules and (self.is_starting or not self.probes.points):
            self.probes.attach(modules)
        elif modules:
            # Allocators that are traced by now stay traced.
            probing = partial(self.probes.attach, modules)
            self._context.supervisor.run(PROBING, self.process.pid, probing, gives_up=False)
        if modules:
            self.source.leading = self.probes.leading()
        trampoline = self.space.trampoline()
        if trampoline is not None and trampoline != self._trampoline:
            self._trampoline = trampoline
            self.words.set_trampoline(trampoline)

    # For snapshots.

    def mapped_ranges(self) -> list[tuple[int, int]] | None:
        """Returns (start, end) of memory that the program itself has mapped; None if not traced."""
        if not self._context.config.capture.trace_mappings:
            return None
        others = allocators_stacks(self.heap.ranges, self.probes.found, self.space)
        ranges = self.heap.ranges.ranges()
        return [(each.start, each.end) for each in ranges if each.stack not in others]

    def read_facts(
        self, wanted: SnapshotRequest, mapped: list[tuple[int, int]] | None
    ) -> ProcessFacts:
        """Reads /proc and memory, within time bounds. ``mapped``: from ``mapped_ranges``."""
        if self.target.has_ended:
            return ProcessFacts(memory=self.outside.residency.last)
        if wanted.objects and self._context.config.reads_memory:
            self.outside.refresh(self.facets["objects"])
        with_names = wanted.threads or wanted.blocks
        ours = [] if self.probes.link is None else self.probes.link.own_ranges()
        return self.outside.read_facts(mapped, ours, with_names=with_names)

    def runtimes(self) -> tuple[Runtime, ...]:
        """Runtimes in the process that have a heap of their own."""
        modules = self.space.modules
        ids = tuple(module.file_id for module in modules)
        if self._runtimes is None or self._runtimes[0] != ids:
            self._runtimes = ids, runtimes_of(modules, self._options)
        return self._runtimes[1]

    def _unsure_stacks(self) -> int:
        if not any(runtime.frames_option for runtime in self.runtimes()):
            return 0
        generated = [each for each in self.space.mappings if each.executable and not each.path]
        edges = np.array([edge for each in generated for edge in each[:2]], np.uint64)
        is_used = self.heap.table.totals.allocated_count > 0
        is_unsure = self.heap.stacks.pass_through(edges)[: len(is_used)]
        return int(np.count_nonzero(is_unsure & is_used[: len(is_unsure)]))

    def _options(self) -> str:
        """Returns what the process was started with, as far as runtimes take options from it."""
        options = [self.process.initial_value(name) for name in _JAVA_OPTIONS]
        with suppress(TargetError, PrivilegeError):  # it may have ended
            options += self.process.arguments()
        return " ".join(options)

    def status(
        self, now_ns: int, outside: ProcessFacts, probe_share: float | None
    ) -> ProcessStatus:
        """Returns the parts of a snapshot that are not about the heap."""
        mappings = None
        if self._context.config.capture.trace_mappings:
            ranges = self.heap.ranges
            mappings = ranges.mappings(allocators_stacks(ranges, self.probes.found, self.space))
        elapsed_ns = now_ns - self.started_ns
        rate = self._costs.rate.per_second(elapsed_ns, self.events)
        share = self._costs.share(elapsed_ns, rate, probe_share)
        if not self.target.has_ended:
            for facet in self.facets.values():
                facet.catch_up()
        results = {name: facet.result for name, facet in self.facets.items()}
        return ProcessStatus(
            target=self.target,
            started_ns=self.started_ns,
            overhead=Overhead(rate, share, self.probes.slow_probes),
            cpu_cores=self._costs.cpu.cores,
            rss_bytes=outside.rss_bytes,
            memory=outside.memory,
            series=self.series.points(),
            allocators=self.probes.found,
            runtimes=self.runtimes(),
            earlier=self.earlier,
            mappings=mappings,
            findings=self.findings,
            gaps=self.gaps.gaps,
            facets={name: result for name, result in results.items() if result is not None},
            unsure_stacks=self._unsure_stacks(),
            stack_methods=self.source.methods(),
            thread_names=outside.thread_names,
        )


def allocators_stacks(
    ranges: RangeTable, found: Iterable[FoundLibrary], space: AddressSpace
) -> set[int]:
    """Returns indices of the call stacks by which malloc libraries map memory for themselves.

    Mappings during a call of malloc are not reported at all. The C library is excluded: outside
    calls of malloc, it maps memory for thread stacks.
    """
    others = (allocator.file for allocator in found if allocator.family != MAPPINGS.name)
    libraries = {file for file in others if ".so" in base_name(file)}

    def file_of(stack: int) -> str | None:
        frames = ranges.stacks.frames(stack)
        mapping = space.find_stored(frames[0] - 1) if frames else None
        return None if mapping is None or is_c_library(mapping.path) else mapping.path

    stacks = {each.stack for each in ranges.ranges()}
    return {stack for stack in stacks if file_of(stack) in libraries}
