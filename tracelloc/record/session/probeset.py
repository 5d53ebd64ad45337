"""The probes in one process, and the allocators that they probe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tracelloc.errors import TargetError, TracellocError
from tracelloc.model.blocks import Blocks
from tracelloc.model.losses import Gap, count_lost
from tracelloc.model.process import FoundLibrary
from tracelloc.record.kernel.attach import Attachment
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.kernel.trials import Trial, trial_passes
from tracelloc.record.mallocs import discovery
from tracelloc.record.probe_points import placement
from tracelloc.record.process.identity import check_bits
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.session.attachments import Attachments
from tracelloc.record.sources.eventsource import Sources
from tracelloc.record.unwinding.framechecker import LeadingFrames, code_ranges
from tracelloc.text import printable

_LOADER_PROGRAM: Final = "loader_changes"
_LOADING_S: Final = 2.0  # How long an executed program may take to map its malloc library


def find_allocators(
    space: AddressSpace, selection: discovery.MallocChoice
) -> list[discovery.Module]:
    """Returns the mapped code files, newly read; raises TargetError if none has an allocator."""
    modules = space.refresh()
    if not modules and not space.mappings:
        raise TargetError(f"process {space.process.pid} has ended")
    if not discovery.allocators_in(modules, selection):
        raise no_allocator(space, selection)
    return modules


def no_allocator(space: AddressSpace, selection: discovery.MallocChoice) -> TargetError:
    """Returns an error that says why no mapped file has an allocator to trace."""
    process = space.process
    if space.shortage is not None:
        return TargetError(f"files of process {process.pid} can't be opened: {space.shortage}")
    try:
        with suppress(OSError):
            check_bits(process)
    except TargetError as error:
        return error
    if selection.providers:
        why = discovery.why_no_reports(space.modules, selection.providers)
        hint = "leave --source out to probe its malloc library"
        return TargetError(f"process {process.pid} does not report allocations: {why}", hint=hint)
    if selection.only is not None:
        hint = "leave --malloc out to search all files"
        what = f"process {process.pid} has no malloc library {selection.only!r}"
        return TargetError(what, hint=hint)
    who = f"process {process.pid} ({printable(process.command())})"
    what, hint = discovery.why_no_allocator(process.executable(), space.modules)
    return TargetError(f"{who} has no malloc library that tracelloc knows: {what}", hint=hint)


class ProbeSet:
    """The probes in one process. The session's lock guards all but ``detach`` after its end."""

    def __init__(
        self,
        sources: Sources,
        space: AddressSpace,
        words: SpaceControl,
        selection: discovery.MallocChoice,
        *,
        with_loader: bool,
    ) -> None:
        """Attaches nothing yet. ``with_loader``: whether to probe the dynamic linker."""
        self._source, self._space, self._selection = sources.probes, space, selection
        self._with_loader = with_loader
        self._attachments = Attachments(space.process)
        self._allocators: list[discovery.Allocator] = []
        self._has_throwing = False
        self.link = sources.link(space, words)
        # Points in files whose blocks the preloaded library reports
        self._withheld: list[placement.ProbePoint] = []
        self._flaw, self._has_ended = "", False
        # Why the last unprobeable files could not be probed
        self._trouble: TracellocError | None = None
        # Deadline for the last executed program to map an allocator; None: it was checked
        self._check_by_s: float | None = None
        self.points: list[placement.ProbePoint] = []
        # The allocators of all programs so far, in the order of discovery; only grows
        self.found: tuple[FoundLibrary, ...] = ()

    def attach(self, modules: Sequence[discovery.Module], *, all_loaded: bool = False) -> None:
        """Attaches probes to the allocators in newly mapped files. ``all_loaded``: see ``settle``.

        Raises TracellocError, and has then attached nothing in these files.
        """
        # Probes on reports have no return probes.
        if self._source.has_probes and not self._selection.providers:
            check_survival(self._space.process)
        withheld = self._withheld
        planned = placement.plan_probes(discovery.allocators_in(modules, self._selection))
        points = self._wanted(planned, all_loaded=all_loaded)
        if self._with_loader:
            points += placement.place_loader(modules)
        if planned.has_throwing and not self._has_throwing:
            points += placement.place_exceptions(self._space.modules)
        elif self._has_throwing:
            points += placement.place_exceptions(modules)
        if not points and not self._withheld:
            return
        try:
            self._attachments.add(self._source.attach(self._space.process.pid, points))
        except TracellocError as error:
            self._trouble, self._withheld = error, withheld
            self._flaw = f"a file can't be probed: {error}"
            raise
        self.points += points
        self._allocators += planned.allocators
        found = discovery.describe_allocators(planned.allocators)
        self.found += tuple(each for each in found if each not in self.found)
        self._has_throwing = self._has_throwing or planned.has_throwing

    def _wanted(
        self, planned: placement.ProbePlan, *, all_loaded: bool
    ) -> list[placement.ProbePoint]:
        points = [*self._withheld, *planned.points]
        self._withheld = []
        if self.link is not None:
            every = [*self._allocators, *planned.allocators]
            self.link.decide_use(every, all_loaded=all_loaded)
            if every:
                self.link.report_choice()
            if self.link.replaces_probes:
                behind = {a.module.open_path for a in every if self.link.is_behind(a)}
                self._withheld = [point for point in points if point.open_path in behind]
                points = [point for point in points if point.open_path not in behind]
        return points

    @property
    def is_replaced(self) -> bool:
        """Whether the preloaded library replaces probes in the process, or may yet do so.

        If so, a program that the process executes must be probed again.
        """
        return self.link is not None and self.link.replaces_probes

    @property
    def is_complete(self) -> bool:
        """Whether the preloaded library reports all blocks of the process."""
        return self.link is not None and self.link.is_settled and self.link.replaces_probes

    @property
    def awaits_source(self) -> bool:
        """Whether the process has a preloaded library that has not begun to report yet."""
        return self.link is not None and self.link.is_expected

    def settle(self, *, all_loaded: bool, say: Callable[[str], None] | None = None) -> None:
        """Checks whether the preloaded library has begun to report. Raises TracellocError.

        ``all_loaded``: the program's initial libraries are mapped. ``say`` gets a warning if there
        is no allocator.
        """
        if self.link is None or self.link.is_settled:
            return
        self.attach((), all_loaded=all_loaded)
        if say is not None and not self.link.replaces_probes:
            self._warn_unless_probed(say)

    def leading(self) -> LeadingFrames | None:
        """Allocator code with which stacks begin, to be stripped; None if there is none.

        With probes, there is such code if another tracer uses the preloaded library, or if
        the process reports to OpenTelemetry.
        """
        ranges = code_ranges(self._space, self._allocators if self.is_replaced else ())
        return LeadingFrames(ranges) if ranges else None

    def attach_like(self, parent: ProbeSet) -> None:
        """Attaches the parent's probes to this process, a forked child. Raises TracellocError."""
        pid = self._space.process.pid
        is_probed = self._source.has_probes
        self.take_over(self._source.attach(pid, parent.points if is_probed else ()), parent)
        self.found = parent.found
        if self.link is not None and parent.link is not None and not is_probed:
            self.link.begin_in_child(parent.link)

    def take_over(self, attachment: Attachment, memory_owner: ProbeSet) -> None:
        """Takes over probes that were attached to this process for its memory's earlier owner."""
        self._attachments.add(attachment)
        self.points += memory_owner.points
        self._allocators += memory_owner._allocators
        self._has_throwing = memory_owner._has_throwing

    @property
    def has_loader(self) -> bool:
        """Whether a probed dynamic linker reports when libraries are mapped."""
        files = {p.open_path for p in self.points if p.program == _LOADER_PROGRAM}
        return any(module.open_path in files for module in self._space.mapped_modules)

    @property
    def slow_probes(self) -> tuple[str, ...]:
        """Labels of single-stepped probes, such as ``malloc in libc.so.6``, each once."""
        return tuple(dict.fromkeys(p.label for p in self.points if p.is_single_stepped))

    @property
    def _has_allocator(self) -> bool:
        mapped = self._space.mapped_modules
        return any(allocator.module in mapped for allocator in self._allocators)

    def check(self) -> None:
        """Raises TracellocError unless a probed allocator is mapped; reporters may come later."""
        if not self._has_allocator and not self._selection.providers:
            raise self._trouble or no_allocator(self._space, self._selection)

    def check_later(self) -> None:
        self._check_by_s = time.monotonic() + _LOADING_S

    def check_last(self, say: Callable[[str], None], *, has_events: bool) -> None:
        """Warns if tracing ends without events before ``check_for_changes`` could check."""
        is_unknown = self._check_by_s is not None or self._selection.providers
        if is_unknown and not (has_events or self._has_allocator):
            pid = self._space.process.pid
            say(f"warning: tracing of process {pid} ended before an allocator was found")
        self._check_by_s = None

    def _check_late(self, say: Callable[[str], None], refresh: Callable[[], None]) -> None:
        assert self._check_by_s is not None
        is_due = time.monotonic() >= self._check_by_s
        if is_due:
            refresh()
        if is_due or self._has_allocator:
            self._check_by_s = None
            self._warn_unless_probed(say)

    def _warn_unless_probed(self, say: Callable[[str], None]) -> None:
        try:
            self.check()
        except TracellocError as error:
            say(f"warning: {error}")

    def check_for_changes(
        self, say: Callable[[str], None], live: Callable[[], Blocks], refresh: Callable[[], None]
    ) -> None:
        """Reattaches probes, or replaces the preloaded library by probes, if that is necessary.

        ``live``: returns the live blocks. ``refresh``: reads the mappings again.
        """
        if self._source.has_probes:
            self._attachments.check_for_changes(say)
        if self._check_by_s is not None:
            self._check_late(say, refresh)
        if self.link is None:
            return
        self.link.check_for_changes()
        if not self.link.must_hand_over:
            return
        # No thread allocates until this is done.
        try:
            self.link.begin_hand_over()
            self._source.note_sampled(live().address)
            self.attach((), all_loaded=True)
        except TracellocError as error:
            pid = self._space.process.pid
            say(f"warning: process {pid} goes on untraced: {error}")
            self._flaw, self._has_ended = f"probes can't take over: {error}", True
        finally:
            self.link.end_hand_over()

    def take_trouble(self) -> tuple[str, bool]:
        """Returns (why events were missed since the last call, or "", whether all are from now)."""
        flaw, self._flaw = self._flaw, ""
        if self.link is not None:
            flaw = flaw or self.link.take_trouble()
        return flaw, bool(flaw) and self._has_ended

    def detach(self) -> None:
        """Detaches all probes from the process. May be called twice."""
        self._attachments.close()
        if self.link is not None:
            self.link.close()

    def clear(self, *, same_thread: bool) -> None:
        """Detaches and forgets all probes. ``same_thread``: see ``PreloadedLink.begin_image``."""
        self._attachments.close()
        self.points, self._allocators, self._withheld = [], [], []
        if self.link is not None:
            self.link.begin_image(same_thread=same_thread)
        self._has_throwing = False


def check_survival(process: Process) -> None:
    """Raises TargetError if return probes would end this process on this kernel."""
    if process.has_seccomp_filter() and not trial_passes(Trial.SECCOMP):
        _refuse(process, "it runs under a seccomp filter", "6.12.14, 6.13.3 and 6.14")
    if process.has_shadow_stack() and not trial_passes(Trial.SHADOW_STACK):
        _refuse(process, "it has a shadow stack", "6.11")


def _refuse(process: Process, why: str, fixed: str) -> None:
    raise TargetError(
        f"tracing would kill process {process.pid} on this kernel: {why}",
        hint=f"Linux {fixed} or newer do not have that bug",
    )


LOST: Final = "tracelloc could not keep up"
_OFTEN_S: Final = 0.2
_TOGETHER_S: Final = 5.0  # Losses that follow each other more closely are one gap
_MOST: Final = 32  # Gaps that are recorded separately; later ones extend the last


class GapLog:
    """The gaps in the trace of one process. Not thread safe."""

    def __init__(self, sources: Sources, probes: ProbeSet) -> None:
        self._sources, self._probes = sources, probes
        self._checked_s = time.time()
        self._lost = count_lost(sources.counters())  # In all processes together
        self.gaps: tuple[Gap, ...] = ()  # In the order of their starts

    def run_due(self, *, is_last: bool = False) -> None:
        """Records gaps since the last call; does so at most every 0.2 s, unless ``is_last``."""
        before_s, now_s = self._checked_s, time.time()
        if 0 <= now_s - before_s < _OFTEN_S and not is_last:
            return
        self._checked_s = now_s
        lost, self._lost = self._lost, count_lost(self._sources.counters())
        if self._lost > lost:
            self._add(Gap(before_s, self._checked_s, self._lost - lost, LOST))
        flaw, end = self._probes.take_trouble()
        if flaw:
            self._add(Gap(before_s, None if end else self._checked_s, None, flaw))

    def forget(self) -> None:
        """Forgets the gaps that have ended; called when figures begin again."""
        self.run_due(is_last=True)
        self.gaps = tuple(gap for gap in self.gaps if gap.end_s is None)

    def end(self, reason: str) -> None:
        """Records that events are missed from now on. May be called from any thread."""
        self._add(Gap(self._checked_s, None, None, reason))

    def _add(self, new: Gap) -> None:
        last = self.gaps[-1] if self.gaps else None
        if last is not None and last.end_s is not None and new.end_s is not None:
            is_same = last.reason == new.reason and new.start_s - last.end_s <= _TOGETHER_S
            if is_same or len(self.gaps) >= _MOST:
                counts = last.lost_events, new.lost_events
                lost = None if None in counts else sum(n or 0 for n in counts)
                new = replace(last, end_s=new.end_s, lost_events=lost)
                self.gaps = self.gaps[:-1]
        self.gaps = (*self.gaps, new)
