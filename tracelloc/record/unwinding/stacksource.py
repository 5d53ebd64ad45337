"""Completes, checks and stores the stacks that the probes send, for one process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Final

import numpy as np

from tracelloc.heap.stacks import Stacks
from tracelloc.model.events import Miss, SentStacks
from tracelloc.model.figures import U64, Mask
from tracelloc.model.stacks import Frames, StackFlag
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.kernel.rowtable import RowMemory, RowTable
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.stackmerger import StackMerger
from tracelloc.record.sources.eventsource import Sources
from tracelloc.record.unwinding.addresses import AddressSet
from tracelloc.record.unwinding.framechecker import FrameChecker, LeadingFrames
from tracelloc.record.unwinding.rowsahead import RowsAhead, SiteMemory
from tracelloc.record.unwinding.unwinder import Unwinder
from tracelloc.record.worker.unwindtables import UnwindTables
from tracelloc.system.invoker import invoker

_CODE: Final = int(StackFlag.CODE)
_REFERRING: Final = int(StackFlag.PYTHON | StackFlag.PLACED)  # To the stack of the code
_R_STATE: Final = 24  # Offset of the state in `struct r_debug` (link.h), in bytes
_MOST_LOOKS: Final = 8  # How often the maps are read again if they change while being read
# How long a process waits for rows; those that take longer are made meanwhile. They take a second's
# work at most, but other threads may want the processors, too.
_PATIENCE_S: Final = 3.0
# Programs that live longer get all rows of files of which earlier programs needed some.
_SHORT_LIFE_S: Final = 1.0
# How tracelloc unwinds through such a file; stacks may break there.
NO_INFORMATION: Final = "frame pointers, for want of call-frame information"
# The share that counts as all: there is padding, and some functions are written in assembly.
_NEARLY_ALL: Final = 0.8


class StackSource:
    """Completes and stores the call stacks of one process, for the pump thread.

    Also keeps the address space up to date: on an unknown address, the maps are read again.
    """

    def __init__(
        self,
        space: AddressSpace,
        stacks: Stacks,
        words: SpaceControl,
        *,
        rows: RowMemory | None,
        config: CaptureConfig,
        on_modules: Callable[[Sequence[Module]], None],
        like: StackSource | None = None,
    ) -> None:
        """``on_modules`` gets files that are mapped for the first time. ``like``: the parent's.

        Without ``rows``, stacks are walked by frame pointers. ``config``: settings of the probes.
        """
        self._space, self._stacks, self._words = space, stacks, words
        self._on_modules = on_modules
        self._checker = FrameChecker(space)
        # Inserts a runtime's functions into stacks; None: the probes don't read them
        self.merger: StackMerger | None = None
        if config.runtime_frames:
            self.merger = StackMerger(space, stacks, words, None if like is None else like.merger)
        self.leading: LeadingFrames | None = None  # Allocator code to strip from starts of stacks
        self._unwinder: Unwinder | None = None
        self._is_closed = False
        self._image, self._loader_calls = words.image, words.loader_calls
        self._prewarm_due_s: float | None = None  # When the remaining rows are due
        self._passed = AddressSet()  # Return addresses in this program's stacks
        self._rows, before = rows, None if like is None else like._unwinder
        if like is not None and before is not None and like._rows is rows:
            table = before.table.fork(words.publish_tag, words.generation)
            self._unwinder = before.fork(space, table, self.refresh)
        elif rows is not None:
            if like is not None and before is not None:
                before.ahead.note_passed(like._all_passed())
            table = RowTable(rows, words.publish_tag)
            ahead = RowsAhead(space, table, SiteMemory(invoker()))
            self._unwinder = Unwinder(space, table, config.max_frames, ahead, self.refresh)
            self._find_loader()
            self._renew(words.generation)
        if self.merger is not None:
            self.merger.look_for_runtime()

    @property
    def pid(self) -> int:
        return self._space.process.pid

    def await_rows(self) -> None:
        """Waits until all mapped code has its rows, for a limited time."""
        if self._unwinder is not None:
            self._unwinder.ahead.await_all(_PATIENCE_S)

    def close(self) -> None:
        """Ends background work and drops the rows. May be called twice."""
        if self._unwinder is None or self._is_closed:
            return
        self._is_closed = True
        self._unwinder.ahead.stop()
        self._unwinder.ahead.note_passed(self._all_passed())
        self._unwinder.ahead.remember()
        self._unwinder.table.close()

    def begin_image(self, stacks: Stacks) -> None:
        """Resets after an exec; ``stacks``: for the new program. The space must be reset before."""
        self._stacks = stacks
        self._image = self._words.image
        self._checker = FrameChecker(self._space)
        if self._unwinder is not None:
            self._unwinder.ahead.note_passed(self._all_passed())
            self._unwinder.begin_image()
        self._passed = AddressSet()
        if self.merger is not None:
            self.merger.begin_image(stacks)

    def methods(self) -> dict[str, str]:
        """Returns how stacks are unwound through each code file, in words, by path."""
        if self._unwinder is None:
            return dict.fromkeys((m.path for m in self._space.modules), "frame pointers")
        tables_of = self._space.files.tables
        return {m.path: _in_words(tables_of(m)) for m in self._space.modules}

    def refresh(self) -> None:
        """Reads the mappings again, passes on new ones; not between exec and ``begin_image``."""
        if self._words.image != self._image:
            return
        self._loader_calls = self._words.loader_calls
        for _ in range(_MOST_LOOKS):
            generation = self._words.generation
            before = self._space.generation
            self._on_modules(self._space.refresh())
            self._find_loader()
            if self.merger is not None:
                self.merger.look_for_runtime()
            if self._unwinder is None:
                return
            known = self._unwinder.table.generation
            if generation == known and self._unwinder.lost_code():
                if self._words.generation != generation:
                    continue  # The loader has noted it meanwhile
                self._words.note_change()
                generation = self._words.generation
            if generation == known and self._space.generation == before:
                return
            if self._renew(generation):
                return

    def _find_loader(self) -> None:
        if (address := self._space.variable("_r_debug")) is None:
            self._words.set_loader(0, 0)
        else:
            self._words.set_loader(address + _R_STATE, self._space.last_kept_library(address))

    def _renew(self, generation: int) -> bool:
        """Takes over mappings, read after ``generation``; returns whether they are still valid."""
        assert self._unwinder is not None
        if not self._unwinder.renew(generation, lambda: self._words.generation):
            return False
        if self._unwinder.ahead.supply_passed():
            self._unwinder.ahead.begin(whole=False)
        if self._rows is not None and self._rows.is_filled and self._unwinder.ahead.has_more:
            self._prewarm_due_s = time.monotonic() + _SHORT_LIFE_S
        return True

    def catch_up(self) -> None:
        """Reads the mappings again if the dynamic linker has changed them since the last time."""
        if self._prewarm_due_s is not None and time.monotonic() >= self._prewarm_due_s:
            self._prewarm_due_s = None
            assert self._unwinder is not None
            self._unwinder.ahead.begin(whole=True)
        unwinder = self._unwinder
        is_outdated = unwinder and self._words.generation != unwinder.table.generation
        if is_outdated or self._words.loader_calls != self._loader_calls:
            self.refresh()
        if self.merger is not None:
            self.merger.settle()

    def are_among(self, sent: SentStacks, wanted: Set[int]) -> Mask:
        """Returns which of the stacks have one of these indices."""
        index_of = self._stacks.ids.get
        return np.array([index_of(each) in wanted for each in sent.ids.tolist()], np.bool_)

    def store_sent(self, new: SentStacks) -> None:
        """Stores stacks that the probes could walk to their end."""
        if self.merger is None:
            self._note_code(new)
            return
        is_named = new.flags & np.uint16(StackFlag.NAMES) != 0
        is_merged = new.flags & np.uint16(_REFERRING) != 0
        self.merger.note_names(new.select(is_named))
        self._note_code(new.select(~(is_merged | is_named)))
        self.merger.merge_sent(new.select(is_merged))

    def _note_code(self, new: SentStacks) -> None:
        is_dated = new.flags & np.uint16(StackFlag.DATED) != 0
        if is_dated.any():
            self._note_dated(new.select(is_dated))
            new = new.select(~is_dated)
        if self.leading is not None:
            new = self.leading.without_all(new)
        if self._checker.has_unknown(self._note_passed(new.frames)):
            self.refresh()
        if self._unwinder is None:
            guessed, settle = new, self._checker.trim
        else:
            special = StackFlag.GUESSED | StackFlag.CODE
            is_guessed = new.flags & np.uint16(special) != 0
            guessed, settle = new.select(is_guessed), self._settle
            self._stacks.add_sent(new.select(~is_guessed))
        for stack_id, flags, guess in guessed.rows():
            self._keep(stack_id, flags, *settle(guess, StackFlag(flags)))

    def _note_dated(self, new: SentStacks) -> None:
        """Stores stacks with code that may have been unmapped since, each with its generation."""
        assert self._unwinder is not None
        ends = np.cumsum(new.depths) - 1
        generations, frames = new.frames[ends].tolist(), np.delete(new.frames, ends)
        self._note_passed(frames)
        flags = new.flags ^ np.uint16(StackFlag.DATED)
        stacks = SentStacks(new.ids, flags, new.depths - 1, frames)
        if self.leading is not None:
            stacks = self.leading.without_all(stacks)
        for generation, one in zip(generations, stacks.rows(), strict=True):
            self._store(*one, generation)

    def _store(self, stack_id: int, flags: int, frames: Frames, generation: int) -> None:
        assert self._unwinder is not None
        frames, settled = self._settle(frames, StackFlag(flags & ~_CODE))
        self._keep(stack_id, flags, self._unwinder.as_stored(frames, generation), settled)

    def _keep(self, stack_id: int, sent: int, frames: Frames, settled: StackFlag) -> None:
        """Keeps a settled stack; ``sent``: the flags with which it came."""
        if sent & _CODE and self.merger is not None:
            self.merger.note_code(stack_id, frames, settled)
        else:
            self._stacks.add(stack_id, frames, settled)

    def supply_rows(self, misses: Sequence[Miss]) -> None:
        """Gives the probes the rows for which misses wait. The space must be as recent as these."""
        assert self._unwinder is not None
        self._unwinder.note_loaded(miss for miss in misses if miss.library)
        self._unwinder.supply_rows(miss for miss in misses if not miss.library)

    def finish(self, misses: Sequence[Miss]) -> None:
        """Finishes stacks that the probes could not follow, and supplies the missing rows."""
        assert self._unwinder is not None
        finished = self._unwinder.finish(misses)
        self._note_passed(np.array([f for stack in finished for f in stack.frames], np.uint64))
        for one in finished:
            frames = one.frames if self.leading is None else self.leading.without(one.frames)
            self._store(one.stack_id, int(one.flags), frames, one.generation)
        if self.merger is not None:
            self.merger.settle()

    def _note_passed(self, frames: U64) -> U64:
        """Records the return addresses in stacks. Returns new ones, sorted."""
        new = np.empty_like(frames)
        return np.sort(new[: self._passed.add(frames, new)])

    def _all_passed(self) -> U64:
        """Returns the return addresses in this program's stacks, sorted, each once."""
        passed = np.empty(len(self._passed), np.uint64)
        self._passed.copy(passed)
        return np.sort(passed)

    def _settle(self, frames: Frames, flags: StackFlag) -> tuple[Frames, StackFlag]:
        """Returns the credible part of a stack that was walked by rows, and its flags."""
        if not flags & StackFlag.GUESSED:
            return frames, flags
        assert self._unwinder is not None
        kept = self._checker.credible(frames)
        if len(kept) < len(frames) and self._unwinder.is_bottom(frames[len(kept)]):
            return frames[: len(kept) + 1], StackFlag(0)
        is_whole = len(kept) == len(frames)
        if is_whole and flags != StackFlag.GUESSED:
            return frames, flags & ~StackFlag.GUESSED
        if kept and self._unwinder.is_unreadable(kept[-1]):
            return kept, StackFlag.BAD_CFI
        return kept, StackFlag(0) if is_whole else StackFlag.BROKEN


def _in_words(tables: UnwindTables | None) -> str:
    covered = None if tables is None else tables.covered_share
    if tables is None or covered is None:
        return "call-frame information, rows made when needed"
    if covered > _NEARLY_ALL:
        return "call-frame information"
    if tables.trouble is not None:
        return f"{NO_INFORMATION}: {tables.trouble}"
    if covered < 1 - _NEARLY_ALL:
        return NO_INFORMATION
    return f"call-frame information for {covered:.0%} of its code, frame pointers elsewhere"


_MISSES_AT_ONCE: Final = 64  # Stacks that are finished before the ring is read again
_MOST_TAKEN: Final = 1024  # Misses that are taken from the ring at once
# Stack memory of misses that are queued here before no more are taken. The program goes on: if the
# ring is full, it loses stacks, and waits the longer for the rows of others.
_WAITING_BYTES: Final = 80 << 20
_LONGEST_S: Final = 0.5  # Longest time of reading misses from a program that keeps sending them

Guard = Callable[[int, Callable[[], None]], object]


class StackFeed:
    """Takes stacks out of the sources' rings, and gives them to the processes' ``StackSource``."""

    def __init__(
        self, sources: Sources, *, finishes: bool, guard: Guard = lambda _pid, work: work()
    ) -> None:
        """``finishes``: stacks may come unfinished. ``guard`` runs work for a PID safely."""
        self._sender, self._finishes, self._guard = sources, finishes, guard
        self._sources: dict[int, StackSource] = {}
        self._newest = -1
        # Taken, but not stored: of images that are not known yet, or not wanted
        self._waiting_stacks: list[tuple[int, SentStacks]] = []
        self._early_misses: list[Miss] = []

    def add(self, image: int, source: StackSource) -> None:
        """Sends stacks of a memory image to a ``StackSource``. Image numbers only grow."""
        self._sources[image] = source
        self._newest = max(self._newest, image)

    def drop(self, image: int) -> None:
        self._sources.pop(image, None)

    def take_stacks(self, wanted: Set[int] | None = None) -> None:
        """Takes all stacks from the rings and stores them. Call it after events were taken.

        ``wanted``: store only these (indices in ``Stacks``), and what they refer to: others wait.
        """
        self._take_misses()
        self._waiting_stacks += self._sender.take_stacks()
        if wanted is not None and not wanted:
            return
        taken, self._waiting_stacks = self._waiting_stacks, []
        ids = None if wanted is None else self._with_code(taken, wanted)
        for image, new in taken:
            is_wanted = np.ones(len(new), np.bool_) if ids is None else np.isin(new.ids, ids)
            if image > self._newest or not is_wanted.any():
                self._waiting_stacks.append((image, new))
                continue
            if image in self._sources:
                self._run(image, partial(StackSource.store_sent, new=new.select(is_wanted)))
            if not is_wanted.all():
                self._waiting_stacks.append((image, new.select(~is_wanted)))

    def _with_code(self, sent: Iterable[tuple[int, SentStacks]], wanted: Set[int]) -> U64:
        """Returns the ids of the wanted stacks, and of those to which they refer."""
        found = [np.empty(0, np.uint64)]
        for image, new in sent:
            if image in self._sources:
                is_wanted = self._sources[image].are_among(new, wanted)
                refers = is_wanted & (new.flags & np.uint16(_REFERRING) != 0)
                starts = np.cumsum(new.depths) - new.depths
                found += [new.ids[is_wanted], new.frames[starts[refers]]]
        return np.concatenate(found)

    def _take_misses(self) -> None:
        if not self._finishes:
            return
        waiting: deque[Miss] = deque()
        misses, self._early_misses = self._early_misses, []
        begun_s = time.monotonic()
        waiting_bytes = 0
        while True:
            if waiting_bytes < _WAITING_BYTES and time.monotonic() - begun_s < _LONGEST_S:
                misses += self._sender.take_misses(_MOST_TAKEN)
                # Only now, so that no miss has a later generation than what is read here.
                for image in list(self._sources):
                    self._run(image, StackSource.catch_up)
                for image, new in _by_image(misses).items():
                    if image > self._newest:
                        self._early_misses += new
                    elif image in self._sources:
                        self._run(image, partial(StackSource.supply_rows, misses=new))
                        waiting.extend(miss for miss in new if not miss.library)
                        waiting_bytes += sum(len(miss.stack) for miss in new)
                misses = []
            if not waiting:
                break
            some = [waiting.popleft() for _ in range(min(len(waiting), _MISSES_AT_ONCE))]
            waiting_bytes -= sum(len(miss.stack) for miss in some)
            for image, new in _by_image(some).items():
                self._run(image, partial(StackSource.finish, misses=new))

    def _run(self, image: int, work: Callable[[StackSource], None]) -> None:
        self._guard(self._sources[image].pid, partial(work, self._sources[image]))


def _by_image(misses: Iterable[Miss]) -> dict[int, list[Miss]]:
    found: dict[int, list[Miss]] = {}
    for miss in misses:
        found.setdefault(miss.image, []).append(miss)
    return found
