"""One traced process: its probes, its address space, and what it holds.

A session has at least one of these. All of them are fed by the session's pump, under
the session's lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tracelloc.abi import LOST_EVENT_COUNTERS, Counter
from tracelloc.capture.attach import Attachment, Method
from tracelloc.capture.bpf import Capture, CaptureConfig
from tracelloc.capture.spacewords import SpaceWords
from tracelloc.errors import TargetError
from tracelloc.heap.blocks import BlockStore
from tracelloc.heap.history import History
from tracelloc.heap.ranges import Mappings, RangeTable
from tracelloc.heap.series import Series
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.heap.temporary import SOON, Soon
from tracelloc.placement import ProbePoint, place_exceptions, place_loader, plan
from tracelloc.snapshots.snapshot import Target
from tracelloc.target.allocators import Allocator, Module, Selection, discover
from tracelloc.target.found import FoundAllocator, found_of, why_no_allocator
from tracelloc.target.procfs import Process, is_runtime
from tracelloc.target.residency import Residency
from tracelloc.target.space import AddressSpace, MappedFiles
from tracelloc.text import printable
from tracelloc.tracing.measuring import Measuring
from tracelloc.tracing.ownmappings import allocators_stacks
from tracelloc.tracing.survival import check_survival
from tracelloc.tracing.threadnames import ThreadNames
from tracelloc.unwinding.source import StackSource
from tracelloc.verdict.findings import Findings
from tracelloc.verdict.judge import Judge, Losses

_PREWARM_S: Final = 0.5
"""How long tracing waits for rows; those that take longer are made on the way."""
_LOOK_NS: Final = 5_000_000
"""Events wait so long for what is found out about stacks, and for one piece more of it."""


class Tracee:
    """What belongs to one process. Not thread safe, but for ``thread_names``."""

    def __init__(
        self,
        process: Process,
        config: CaptureConfig,
        selection: Selection,
        files: MappedFiles | None = None,
        soon: Soon = SOON,
    ) -> None:
        """``selection``: which allocators to trace; ``files``: see ``AddressSpace``;
        ``soon``: see ``LiveTable``.
        """
        self.process = process
        self.target = Target(process.pid, process.command(), process.parent_pid())
        self.space = AddressSpace(process, files)
        self.has_ended = False
        self.stacks = Stacks()
        self.table = LiveTable(self.stacks, config.sample_bytes, soon)
        self.allocators: list[Allocator] = []
        self.found: tuple[FoundAllocator, ...] = ()
        """The same for people, in the order of being found; only ever grows."""
        self.points: list[ProbePoint] = []
        self.history = History(0)
        self.series = Series(0)
        self.residency: Residency | None = None
        """What it has in memory; None before tracing begins."""
        self.findings: Findings | None = None
        """What was found out about its stacks; None until anything happened."""
        self.measuring = Measuring(self.space)
        """Finds out the usable sizes of its blocks."""
        self.started_ns = 0
        self.is_starting = False
        """It has not begun its program, or its libraries are not there yet."""
        self.method = Method.PERF
        """How probes are attached."""
        self.image = 0
        """The number of the program's memory image."""
        self._events_before = 0
        self._judge = Judge(self._is_in_runtime)
        self._looking: Iterator[Findings | None] | None = None
        self._config = config
        self._selection = selection
        self._capture: Capture | None = None
        self._words: SpaceWords | None = None
        self._stack_source: StackSource | None = None
        self._attachments: list[Attachment] = []
        self._thread_names = ThreadNames(process)
        self._trampoline: int | None = None
        self._has_throwing = False
        self._loader_calls = 0
        self.ranges = RangeTable(self.stacks)

    def find(self) -> tuple[list[Allocator], list[Module]]:
        """Looks for its allocator. Raises TargetError if there is none."""
        modules = self.space.refresh()
        if not modules:
            raise TargetError(f"process {self.process.pid} has ended")
        found = discover(modules, self._selection)
        if found:
            return found, modules
        raise self._no_allocator()

    def look(self) -> tuple[list[Allocator], list[Module]]:
        """The allocators in what is mapped now, and all files of that."""
        modules = self.space.mapped_modules
        return discover(modules, self._selection), modules

    def _no_allocator(self) -> TargetError:
        if self._selection.only is not None:
            return TargetError(
                f"no allocator {self._selection.only!r} in process {self.process.pid}",
                hint="leave --allocator out to search everywhere",
            )
        who = f"process {self.process.pid} ({printable(self.target.command)})"
        what, hint = why_no_allocator(self.process.executable(), self.space.modules)
        return TargetError(f"{who} has no allocator that tracelloc knows: {what}", hint=hint)

    def connect(self, capture: Capture, words: SpaceWords, like: Tracee | None = None) -> None:
        """Takes stacks from here on.

        ``like``: the process that it was forked off, and is a copy of.
        """
        self._capture = capture
        self._words = words
        self.image = words.image
        self._stack_source = StackSource(
            self.space,
            self.stacks,
            self._words,
            rows=capture.rows,
            max_frames=self._config.max_frames,
            on_modules=self._see,
            like=None if like is None else like.source,
        )

    @property
    def words(self) -> SpaceWords:
        """What the probes are told of its address space."""
        assert self._words is not None
        return self._words

    @property
    def events(self) -> int:
        """Events applied since tracing started, in all its programs."""
        return self._events_before + self.table.events

    @property
    def source(self) -> StackSource:
        """Where its stacks come from."""
        assert self._stack_source is not None
        return self._stack_source

    def attach(self, method: Method, found: Iterable[Allocator], modules: Iterable[Module]) -> None:
        """Puts the probes in place that are called for by these allocators and files.

        Raises TracellocError, and has then attached nothing.
        """
        assert self._capture is not None
        check_survival(self.process)
        self.method = method
        planned = plan(found)
        points = list(planned.points)
        if self._config.use_rows or self._config.follow or self.is_starting:
            points += place_loader(modules)
        if planned.has_throwing and not self._has_throwing:
            points += place_exceptions(self.space.modules)
        elif self._has_throwing:
            points += place_exceptions(modules)
        if not points:
            return
        attachment = Attachment(method, self.process.pid, points, self._capture.program)
        self.points.extend(points)
        self._attachments.append(attachment)
        self.allocators.extend(planned.allocators)
        found_now = found_of(planned.allocators)
        self.found += tuple(each for each in found_now if each not in self.found)
        self._has_throwing = self._has_throwing or planned.has_throwing

    @property
    def mappings(self) -> Mappings:
        """What it has mapped by itself."""
        return self.ranges.mappings(allocators_stacks(self.ranges, self.found, self.space))

    @property
    def mapped_ranges(self) -> list[tuple[int, int]]:
        """First addresses and ends of these."""
        others = allocators_stacks(self.ranges, self.found, self.space)
        return [(each.start, each.end) for each in self.ranges.ranges() if each.stack not in others]

    @property
    def dear_probes(self) -> tuple[str, ...]:
        """Functions with probes that cost more than others, each once."""
        dear = (point.label for point in self.points if point.is_dear and not point.is_return)
        return tuple(dict.fromkeys(dear))

    def fork(self, process: Process, heap: tuple[LiveTable, Stacks]) -> Tracee:
        """A child process with a copy of the memory; ``heap``: as it was then."""
        child = Tracee(process, self._config, self._selection)
        child.space = self.space.fork(process)
        child.measuring = Measuring(child.space)
        child.table, child.stacks = heap
        child.ranges = self.ranges.fork(child.stacks)
        child.method = self.method
        child.found = self.found
        return child

    def copy_heap(self) -> tuple[LiveTable, Stacks]:
        """What a child process holds that is forked off now."""
        stacks = self.stacks.fork()
        return self.table.fork(stacks), stacks

    def attach_like(self, parent: Tracee) -> None:
        """Puts the same probes in place as in the process that this one was forked off."""
        assert self._capture is not None
        self._attachments.append(
            Attachment(self.method, self.process.pid, parent.points, self._capture.program)
        )
        self.points.extend(parent.points)
        self.allocators.extend(parent.allocators)
        self._has_throwing = parent._has_throwing

    def end(self) -> None:
        """It has ended: its totals are kept, what they were made of is not.

        Its probes are still to be taken away, but there is nobody left whom they could meet.
        """
        self.has_ended = True
        self.source.close()
        self.table.blocks = BlockStore()

    def begin(self, now_ns: int) -> None:
        """Tracing starts: nothing is outstanding."""
        self.table.cohorts.begin(now_ns)
        self.source.await_rows(_PREWARM_S)
        self.begin_history(now_ns)

    def begin_history(self, now_ns: int) -> None:
        """Notes what it holds over time, from now on."""
        self.started_ns = now_ns
        self.residency = Residency(self.process)
        self.history = History(now_ns)
        self.series = Series(now_ns)

    def begin_image(self, image: int, exec_count: int, now_ns: int, *, same_thread: bool) -> None:
        """It has begun another program: nothing is outstanding, everything is mapped anew.

        Probes in files that the new program maps as well have gone on by themselves, unless
        it was begun by another thread than the first (not ``same_thread``): the kernel knows
        the process by that one. Raises TracellocError if the new program can't be traced;
        it is then seen to allocate nothing.
        """
        command = self.target.command
        self.image = image
        with suppress(TargetError):  # it may have ended meanwhile
            command = self.process.command()
        self.target = replace(self.target, command=command, exec_count=exec_count)
        self._events_before += self.table.events
        soon = self.table.lives.soon
        self.table = LiveTable(self.stacks, self._config.sample_bytes, soon)
        self._thread_names.forget_order()
        self.table.cohorts.begin(now_ns)
        self.ranges = RangeTable(self.stacks)
        self.residency = Residency(self.process)
        self.history = History(now_ns)
        self.findings = None
        self._judge = Judge(self._is_in_runtime)
        self._looking = None
        self._trampoline = None
        self.space.begin_image(keep_modules=same_thread)
        self.source.begin_image()
        if not same_thread:
            self.detach()
            self.points.clear()
            self.allocators.clear()
            self._has_throwing = False
        self.source.refresh()
        if not self.is_starting:
            self.check_allocators()

    def check_allocators(self) -> None:
        """Raises TargetError unless one of its allocators is mapped now."""
        mapped = self.space.mapped_modules
        if not any(allocator.module in mapped for allocator in self.allocators):
            raise self._no_allocator()

    @property
    def has_loader(self) -> bool:
        """Whether a dynamic linker will tell when libraries are there."""
        return any(point.program == "loader_changes" for point in self.points)

    def load(self) -> None:
        """Libraries have come or gone, and it is stopped. Raises TargetError without allocator.

        When these are its first ones, their rows are waited for, but not too long.
        """
        self.source.refresh()
        if self.is_starting:
            self.is_starting = False
            self.source.await_rows(_PREWARM_S)
            self.check_allocators()

    def keep_house(self, now_ns: int) -> None:
        """To be called now and then: looks at what has changed, takes samples that are due."""
        loader_calls = self.words.loader_calls
        if loader_calls != self._loader_calls or (self._trampoline is None and self.table.events):
            # What was loaded may be an allocator that nothing else will ever call.
            self._loader_calls = loader_calls
            self.source.refresh()
        self._thread_names.see(self.table.lives.threads.tids)
        if self.history.is_due(now_ns):
            self.history.sample(now_ns, self.table.totals.live_bytes)
        if self.series.is_due(now_ns):
            held = int(self.table.totals.live_bytes.sum())
            self.series.add(now_ns, held, self.process.rss_bytes())
        if self._looking is None and self._judge.is_due(now_ns):
            self._looking = self._look(now_ns)
        if self._looking is not None:
            self._look_on()

    def _look_on(self) -> None:
        """Looks at some more stacks: events must not wait for all of them."""
        assert self._looking is not None
        until_ns = time.thread_time_ns() + _LOOK_NS
        while time.thread_time_ns() < until_ns:
            try:
                self.findings = next(self._looking) or self.findings
            except StopIteration:
                self._looking = None
                return

    def judge(self, now_ns: int) -> None:
        """Looks at all stacks at once: which of them leak."""
        self._looking = None
        for findings in self._look(now_ns):
            self.findings = findings or self.findings

    def _look(self, now_ns: int) -> Iterator[Findings | None]:
        assert self._capture is not None
        counters = self._capture.counters()
        losses = Losses(
            events=sum(int(counters[counter]) for counter in LOST_EVENT_COUNTERS),
            frees=int(counters[Counter.LOST_FREES]),
            address_reuses=self.table.oddities.address_reuses,
        )
        table = self.table
        return self._judge.look(table.cohorts, table.totals, self.stacks, now_ns, losses)

    def _is_in_runtime(self, address: int) -> bool:
        mapping = self.space.find(address)
        return mapping is not None and is_runtime(mapping.path)

    def thread_names(self) -> dict[int, str]:
        """The threads by id, those included that have ended, as far as they were seen."""
        return self._thread_names.all()

    def drop_ended_threads(self) -> int:
        """Frees what the probes keep of threads that are gone. Returns how many they were."""
        assert self._capture is not None
        alive = self.process.thread_ids()
        return self._capture.forget_threads(self.process.pid, alive) if alive else 0

    def detach(self) -> None:
        """Takes the probes away. May be called twice."""
        for attachment in self._attachments:
            attachment.close()
        self._attachments.clear()

    def close(self) -> None:
        """Closes its files; the probes must be gone."""
        if self._stack_source is not None:
            self._stack_source.close()
        self.space.close()

    def _see(self, modules: Sequence[Module]) -> None:
        """Something else is mapped: perhaps an allocator, too."""
        self.attach(self.method, discover(modules, self._selection), modules)
        trampoline = self.space.trampoline()
        if trampoline is not None and trampoline != self._trampoline:
            self._trampoline = trampoline
            self.words.set_trampoline(trampoline)
