"""The processes of a trace, their memory images and their live blocks.

A trace begins with one process. If children are followed, a forked child starts with a copy of
its parent's live blocks at the fork, and an executed program starts with none. Both are stopped
until their probes are in place (``follower``), so that no event is missed. The probes mark the
place of a fork in the stream of events, right after the kernel has copied the memory. What other
threads of the parent do in the microseconds in between also counts for the child.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.errors import TargetError, TracellocError
from tracelloc.heap.heap import Heap
from tracelloc.model.events import (
    EVENT_KIND_MASK,
    EVENT_SIZE_BITS,
    EventBatch,
    EventKind,
    Events,
)
from tracelloc.record.kernel.attach import Attachment
from tracelloc.record.kernel.drain import by_image
from tracelloc.record.kernel.records import find_mark
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.identity import forked_target, target_of
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.session.config import TraceContext
from tracelloc.record.session.tracee import Stage, Tracee
from tracelloc.record.tasks.supervision import reason_of
from tracelloc.record.unwinding.stacksource import StackFeed
from tracelloc.text import printable

_APPLYING: Final = "applying events"


class Processes:
    """All processes of a trace. Not thread safe: the session's lock guards this object."""

    def __init__(self, context: TraceContext, space: AddressSpace, *, waiting: bool) -> None:
        """``space``: of the first process. ``waiting``: it must still execute its program."""
        self._context, self._config = context, context.config
        self._probes, self._say = context.sources.probes, context.supervisor.say
        self.files = space.files  # Files that any of the processes has mapped
        self._image_numbers = itertools.count(1)
        self._process_numbers = itertools.count()
        self._by_image: dict[int, Tracee] = {}
        self._by_pid: dict[int, Tracee] = {}
        # Processes that share their parent's memory: the parent, and their own probes
        self._sharing: dict[int, tuple[Tracee, Attachment]] = {}
        # Living processes that are not traced, and whether they should have been
        self._left_out: dict[int, bool] = {}
        # By thread: the heap at birth of the child that the thread has just forked
        self._forks: dict[int, Heap] = {}
        # By thread: children whose fork mark is still to come; None: not traced
        self._unmarked: dict[int, deque[Tracee | None]] = {}
        self._moves = 0
        self.note_part: Callable[[np.void], object] = lambda _: None  # Gets the first one's marks
        self.feed = StackFeed(
            context.sources,
            finishes=context.config.capture.use_rows,
            guard=partial(context.supervisor.run, "reading stacks", gives_up=False),
        )
        self._closer = ThreadPoolExecutor(8, thread_name_prefix="closer")
        self.untraced_count = 0  # Processes that should have been traced, but were not
        # All processes in the order of their start, including ended ones
        self.every: list[Tracee] = []
        stage = Stage.WAITING if waiting else Stage.RUNNING
        self.root = self._add(space, self._new_heap(), stage=stage)

    def _new_heap(self) -> Heap:
        config, sample_bytes = self._config, self._config.capture.table_sample_bytes
        return Heap(time.monotonic_ns(), None, sample_bytes, config.temporary)

    @property
    def living(self) -> Sequence[Tracee]:
        """Traced processes that are not known to have ended."""
        return list(self._by_pid.values())

    def tracee_of(self, number: int) -> Tracee:
        """Returns the process with a number in the trace, even after its end. Thread safe."""
        return next(each for each in list(self.every) if each.target.number == number)

    @property
    def count_left(self) -> int:
        """Returns the number of processes that still exist, traced or not."""
        return len(self._by_pid) + len(self._sharing) + len(self._left_out)

    @property
    def is_full(self) -> bool:
        return len(self._by_pid) >= self._config.most_processes

    # Events from the probes.

    def apply(self, batch: EventBatch, mappings: Events) -> None:
        """Applies a batch of events, and mappings, to the heaps of the processes."""
        self._note_images()
        # Mappings have their own ring. They come first: a fork copies what is mapped by then.
        for image, tracee in self._known_in(mappings):
            tracee.heap.ranges.apply(mappings[mappings["image"] == image])
        # A child's image number is higher than its parent's, so its initial heap is ready.
        for image, events in by_image(batch):
            if image in self._by_image:
                tracee = self._by_image[image]
                self._for_one(tracee, partial(self._apply, tracee, events, batch))
        for image, tracee in self._known_in(batch.pairs):
            pairs = batch.pairs[batch.pairs["image"] == image]
            self._for_one(tracee, partial(tracee.table.apply_pairs, pairs))

    def _for_one(self, tracee: Tracee, work: Callable[[], object]) -> None:
        """Applies events of a process. If that fails, only this process is no longer traced."""
        try:
            work()
        except Exception as error:
            if tracee is self.root:
                raise
            self._context.supervisor.count(_APPLYING)
            why = f"process {tracee.process.pid} is no longer traced: {reason_of(error)}"
            self.give_up(tracee.process.pid, TargetError(why))

    def _apply(self, tracee: Tracee, events: Events, batch: EventBatch) -> None:
        """Applies events of one memory image; forks a child's heap at each fork mark."""
        records, start, by_time = events.view(np.uint8), 0, batch.image is not None
        in_order = not batch.overflowed
        while True:
            mark = find_mark(records, start)
            tracee.table.apply(events[start:mark], in_order=in_order, by_time=by_time)
            if mark == len(events):
                break
            if int(events["size_tag"][mark]) >> EVENT_SIZE_BITS & EVENT_KIND_MASK == EventKind.FORK:
                self._note_fork(tracee, int(events["tid"][mark]))
            elif tracee is self.root:
                self.note_part(events[mark])
            start = mark + 1

    def _known_in(self, records: npt.NDArray[Any]) -> list[tuple[int, Tracee]]:
        known = self._by_image
        images = np.unique(records["image"]).tolist() if len(records) else ()
        return [(image, known[image]) for image in images if image in known]

    def _note_fork(self, parent: Tracee, thread_id: int) -> None:
        waiting, now_ns = self._unmarked.get(thread_id), time.monotonic_ns()
        if not waiting:
            self._forks[thread_id] = parent.heap.fork(now_ns)
            return
        child = waiting.popleft()
        if not waiting:
            del self._unmarked[thread_id]
        if child is not None:
            child.heap = parent.heap.fork(now_ns)

    def _note_images(self) -> None:
        if self._config.follow or not self._probes.notices_execs():
            return
        root = self.root
        execs = root.words.image - root.image
        if not execs:
            return
        moves = root.words.moves  # After the image: the probes change it before that
        same_thread, self._moves = moves == self._moves, moves
        try:
            self._renew(root, execs=execs, same_thread=same_thread)
        except TracellocError as error:
            self._say(f"warning: {error}")
        # The first stacks may have come before the image was known.
        self.feed.take_stacks()
        self._report_exec()

    def _report_exec(self) -> None:
        root = self.root
        if root.target.exec_count:
            pid, command = root.process.pid, printable(root.target.command)
            self._say(f"process {pid} executed {command}; its live table was reset")

    def knows(self, pid: int) -> bool:
        return pid in self._by_pid or pid in self._sharing or pid in self._left_out

    def add_running(self, space: AddressSpace) -> Tracee | None:
        """Prepares to trace a process that runs already, for ``begin_running``.

        Returns None if the limit of traced processes is reached. Raises TracellocError.
        """
        if self.is_full:
            self._leave_out(space.process.pid, is_wanted=True)
            return None
        return self._make(space, self._new_heap())

    def begin_running(self, tracee: Tracee, modules: Sequence[Module]) -> None:
        """Attaches to a process from ``add_running``, and adds it. Raises TracellocError."""
        try:
            tracee.begin(modules, time.monotonic_ns())
        except TracellocError:
            tracee.end()
            self._probes.free_space(tracee.words)
            raise
        # Only now: of a block, the allocation may be probed before the free is.
        self._enter(tracee)

    # Events from the follower.

    def forked(self, pid: int, child_pid: int, *, shares: bool, marked_by: int | None) -> None:
        """Handles a fork; ``shares``: whether parent and child share memory.

        ``marked_by``: the thread that forked, if the probes mark the fork among the events; the
        mark may still be to come. If None, all earlier events have been applied.
        """
        parent = self._owner(pid)
        heap = None if marked_by is None else self._forks.pop(marked_by, None)
        child = None
        try:
            if parent is None or self.is_full:
                self._leave_out(child_pid, parent is not None or self._left_out.get(pid, False))
                self.untraced_count += parent is None and pid not in self._left_out
            elif shares:
                points = parent.probes.points if self._probes.has_probes else ()
                probes = self._probes.attach(child_pid, points)
                self._probes.assign(child_pid, parent.words)
                self._sharing[child_pid] = parent, probes
            else:
                child = self._begin_child(parent, child_pid, heap, is_marked=marked_by is not None)
        except TracellocError as error:
            self.give_up(child_pid, error)
        if marked_by is not None and heap is None:
            self._unmarked.setdefault(marked_by, deque()).append(child)

    def executed(self, pid: int, *, same_thread: bool) -> None:
        """Handles an exec of a process. Raises TracellocError for the first process."""
        self._probes.forget_image(pid)
        same_thread &= self._probes.has_probes
        if not self._config.follow:
            if not self._probes.has_probes:  # else the probes report it themselves
                self._begin_program(self.root, same_thread=False)
                self._report_exec()
            return
        try:
            if pid in self._by_pid:
                self._begin_program(self._by_pid[pid], same_thread=same_thread)
            elif pid in self._sharing or pid in self._left_out:
                self._begin_untraced(pid, same_thread=same_thread)
        except TracellocError as error:
            if pid == self.root.process.pid:
                raise
            self._note_trouble(pid, error)

    def loaded(self, pid: int) -> Tracee | None:
        """Handles changed mappings. Returns the memory's owner; raises as ``executed``."""
        tracee = self._owner(pid)
        try:
            if tracee is not None:
                tracee.load()
        except TracellocError as error:
            if tracee is self.root:
                raise
            self._note_trouble(pid, error)
        return tracee

    def ended(self, pid: int) -> None:
        self._context.supervisor.run("releasing", pid, partial(self._release, pid), gives_up=False)

    def _release(self, pid: int) -> None:
        self._left_out.pop(pid, None)
        if pid in self._sharing:
            self._stop_sharing(pid)
        if (tracee := self._by_pid.get(pid)) is not None:
            self._end(tracee)
            self._closer.submit(tracee.probes.detach)

    def _stop_sharing(self, pid: int) -> None:
        _, probes = self._sharing.pop(pid)
        self._probes.unassign(pid)
        self._closer.submit(probes.close)

    def detach(self) -> None:
        closing = [(tracee.process.pid, tracee.probes.detach) for tracee in self.living]
        closing += [(pid, probes.close) for pid, (_, probes) in self._sharing.items()]
        for pid, close in closing:
            self._context.supervisor.run("detaching", pid, close, gives_up=False)
        self._closer.shutdown()

    def close(self) -> None:
        # The first address space owns the files of all.
        for tracee in reversed(self.every):
            tracee.close()

    # Life cycle of a process.

    def _add(self, space: AddressSpace, heap: Heap, **how: Any) -> Tracee:
        tracee = self._make(space, heap, **how)
        self._enter(tracee)
        return tracee

    def _make(
        self,
        space: AddressSpace,
        heap: Heap,
        *,
        parent: Tracee | None = None,
        exec_count: int = 0,
        **how: Any,
    ) -> Tracee:
        process, number = space.process, next(self._process_numbers)
        if parent is None:
            target = target_of(process, exec_count, number)
        else:
            target = forked_target(process, parent.target, number)
        words = self._probes.new_space()
        words.begin(next(self._image_numbers), None if parent is None else parent.words)
        return Tracee(target, space, heap, words, self._context, parent=parent, **how)

    def _enter(self, tracee: Tracee) -> None:
        pid = tracee.process.pid
        self._probes.assign(pid, tracee.words)
        self.every.append(tracee)
        self._by_pid[pid] = self._by_image[tracee.image] = tracee
        self.feed.add(tracee.image, tracee.source)

    def _owner(self, pid: int) -> Tracee | None:
        shared = self._sharing.get(pid)
        return shared[0] if shared is not None else self._by_pid.get(pid)

    def _begin_child(
        self, parent: Tracee, child_pid: int, heap: Heap | None, *, is_marked: bool
    ) -> Tracee:
        now_ns, now = time.monotonic_ns(), parent.heap
        if heap is None:
            # It is empty until its mark comes, which precedes all of its events.
            heap = now.renewed(now_ns, now.stacks) if is_marked else now.fork(now_ns)
        child = self._add(parent.space.fork(Process(child_pid)), heap, parent=parent)
        try:
            child.probes.attach_like(parent.probes)
            child.source.leading = child.probes.leading()
        except TracellocError as error:
            if not self._config.checks_exit:
                raise
            self._note_trouble(child_pid, error)
        return child

    def _begin_program(self, tracee: Tracee, *, same_thread: bool) -> None:
        if tracee is not self.root and not self._config.is_wanted(tracee.process):
            self._forget(tracee)
            # Before it runs on: detaching a probe while it runs may lose half of a call.
            tracee.probes.detach()
            self._leave_out(tracee.process.pid, is_wanted=False)
            return
        tracee.words.begin(next(self._image_numbers))
        self._renew(tracee, execs=1, same_thread=same_thread, is_stopped=True)
        if not tracee.probes.has_loader:
            # A static program has all its files mapped.
            tracee.load()

    def _renew(self, tracee: Tracee, **how: Any) -> None:
        self._context.supervisor.forget(tracee.process.pid)
        self.feed.drop(tracee.image)
        self._by_image.pop(tracee.image, None)
        try:
            tracee.begin_image(time.monotonic_ns(), **how)
        finally:
            self._by_image[tracee.image] = tracee
            self.feed.add(tracee.image, tracee.source)

    def _begin_untraced(self, pid: int, *, same_thread: bool) -> None:
        process = Process(pid)
        is_wanted = self._config.is_wanted(process)
        memory_owner, probes = self._sharing.pop(pid, (None, None))
        self._probes.unassign(pid)
        if self.is_full or not is_wanted:
            if probes is not None:
                probes.close()
            self._leave_out(pid, is_wanted)
            return
        self._left_out.pop(pid, None)
        space = AddressSpace(process, self.files)
        if memory_owner is not None and same_thread:
            space = memory_owner.space.fork(process)
            space.begin_image(keep_modules=True)
        tracee = self._add(space, self._new_heap(), exec_count=1, stage=Stage.LOADING)
        if memory_owner is not None and probes is not None and same_thread:
            # The probes are in files that the new program maps as well, as most do.
            tracee.probes.take_over(probes, memory_owner.probes)
        elif probes is not None:
            probes.close()
        tracee.source.refresh()
        if not tracee.probes.has_loader:
            tracee.load()

    def _end(self, tracee: Tracee) -> None:
        pid = tracee.process.pid
        self._context.supervisor.forget(pid)
        del self._by_pid[pid]
        self._forks.pop(pid, None)
        self.feed.drop(tracee.image)
        self._by_image.pop(tracee.image, None)
        self._probes.unassign(pid)
        self._context.sources.forget_threads(pid, lambda _: True)
        tracee.end()
        if tracee.probes.link is not None:
            self._context.sources.drop(tracee.probes.link.source)
        for child_pid in [child for child, (owner, _) in self._sharing.items() if owner is tracee]:
            # What the child does with that memory until it executes, it does alone.
            self._stop_sharing(child_pid)
            self._leave_out(child_pid, is_wanted=False)
        self._probes.free_space(tracee.words)

    def _forget(self, tracee: Tracee) -> None:
        self._end(tracee)
        self.every.remove(tracee)

    # Processes that are not traced.

    def _leave_out(self, pid: int, is_wanted: bool) -> None:
        if is_wanted and not self._left_out.get(pid, False):
            if not self.untraced_count:
                most = f"more than {self._config.most_processes} processes at a time"
                self._say(f"warning: {most}: further ones are counted, not traced (--follow-limit)")
            self.untraced_count += 1
        self._left_out[pid] = is_wanted

    def give_up(self, pid: int, error: TracellocError) -> None:
        """Leaves out a process that can't be probed, with a warning unless it has ended."""
        if not Process(pid).exists():
            return
        self._say(f"warning: {error}")
        if (tracee := self._by_pid.get(pid)) is not None:
            self._forget(tracee)
        self.untraced_count += 1
        self._left_out[pid] = True

    def _note_trouble(self, pid: int, error: TracellocError) -> None:
        if self._config.checks_exit and pid in self._by_pid:
            self._by_pid[pid].problem = error.message.rpartition("can't be traced: ")[2]
        elif Process(pid).exists():
            self._say(f"warning: {error}")
