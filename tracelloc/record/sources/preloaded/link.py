"""Connects a process to its shared area, and decides which of its functions need probes."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from enum import Enum, auto
from typing import Final

from tracelloc.errors import TargetError, TracellocError
from tracelloc.model.codefiles import Mapping, base_name, is_c_library
from tracelloc.record.kernel.attach import Attachment
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.mallocs import interposed
from tracelloc.record.mallocs.discovery import Allocator, Module, is_preloaded_library
from tracelloc.record.mallocs.families import MIMALLOC
from tracelloc.record.probe_points.placement import place_loader, place_marker
from tracelloc.record.process.procfs import parse_maps
from tracelloc.record.process.space import AddressSpace, is_injected
from tracelloc.record.runtimes.known import is_python_name
from tracelloc.record.runtimes.supported import has_supported, supported_names
from tracelloc.record.sources.injected.remotecalls import CallPlace, RemoteThread
from tracelloc.record.sources.preloaded import sharedarea
from tracelloc.record.sources.preloaded.launching import gains_rights
from tracelloc.record.sources.preloaded.preloadedsource import PreloadedSource, shared_filters

_LOOK_AFTER_S: Final = 0.25
_LOOK_AFTER_TIMES: Final = 50  # Seccomp checks wait this many times as long as one takes
# Longest wait for threads in allocator calls that began before probes take over.
_LEAVE_S: Final = 0.5
# Time after which the initial libraries of an executed program are assumed to be loaded.
_LOADING_S: Final = 1.0
# Least CPU time for reporting an event, measured; up to 95 where its memory is not in a cache.
_EVENT_NS: Final = 40.0


class LinkState(Enum):
    """State of the connection between a process and tracelloc, for one memory image."""

    UNKNOWN = auto()  # The library has not been seen, but may still be loaded
    EXPECTED = auto()  # The library is loaded, and will signal when it is initialized
    CONNECTED = auto()
    LEFT = auto()  # The library is not used; probes are


class PreloadedLink:
    """Connects to a process's preloaded library, if any. Call with the session's lock."""

    def __init__(self, source: PreloadedSource, space: AddressSpace, words: SpaceControl) -> None:
        self.state = LinkState.UNKNOWN
        self.source, self._space, self._words = source, space, words
        self._library: Module | None = None
        # Address of the malloc that the library calls, once it is initialized
        self._next_malloc = 0
        # The probe that makes the library wait for tracelloc; it stays across the process's execs
        self._marker: Attachment | None = None
        self._misses_beginning = False
        self._loaded_s = math.inf
        self._look_after_s = 0.0
        self._loaded = ""  # The loaded file whose calls bypass the library, in words
        # Why probes take over, and since when the process has been waiting for them
        self._leaving: tuple[str, float] | None = None
        self._unsaid = self._trouble = ""
        self._own_ranges: list[tuple[int, int]] = []

    def begin_image(self, *, same_thread: bool) -> None:
        """Resets the state after an exec. ``same_thread``: otherwise the kernel lost the marker."""
        if not same_thread:
            self.close()
        self._misses_beginning, self._loaded, self._leaving = False, "", None
        self._own_ranges = []
        self._loaded_s = time.monotonic() + _LOADING_S
        if self.state is LinkState.CONNECTED:
            self.source.disconnect()
            # A stopped process has allocated nothing; otherwise that depends on its libraries.
            self._misses_beginning = not self._is_attended
        self.state, self._library, self._next_malloc = LinkState.UNKNOWN, None, 0

    def begin_in_child(self, parent: PreloadedLink) -> None:
        """Makes a forked child's library report, before it runs. Raises TargetError."""
        self._library, self._next_malloc = parent._library, parent._next_malloc
        process, at = self._space.process, None
        if parent.state is LinkState.CONNECTED and self._library is not None:
            at = self._space.object(self._library, sharedarea.CHILD_CODE)
        if at is None:
            self._leave("its parent does not report")
        elif sharedarea.area_mappings(self._mappings_now()):
            self._leave("it shares its parent's memory")
        elif process.has_seccomp_filter(shared_filters(process)):
            self._leave("it filters its system calls (seccomp)")
        assert at is not None
        code = process.read_memory(at, 16)
        begin, end = (int.from_bytes(code[n : n + 8], "little") for n in (0, 8))
        with (process.memory_directory / "mem").open("r+b", buffering=0) as memory:
            remote = RemoteThread(process, process.pid, CallPlace(0, end), memory.fileno())
            remote.run(begin, self._connect_now)
            remote.clear()
        if self.source.area is None:
            self._leave("it was forked within a call of malloc, or has no room for the library")
        self.state = LinkState.CONNECTED

    def _connect_now(self) -> None:
        area = sharedarea.area_mappings(self._mappings_now())[0]
        self.source.connect(self._space.process, area, self._words)

    def check_for_changes(self) -> None:
        """Checks whether probes must take over; if so, makes the process wait for them."""
        area, now_s = self.source.area, time.monotonic()
        if area is None:
            return
        if now_s >= self._look_after_s:
            with suppress(TargetError):
                area.check_for_changes()
            # The check reads the status of all threads.
            took_s = time.monotonic() - now_s
            self._look_after_s = now_s + max(_LOOK_AFTER_S, _LOOK_AFTER_TIMES * took_s)
        why = "" if self._leaving is not None else self._why_leave(area)
        if why:
            self._leaving = why, now_s
            with suppress(OSError):
                area.begin_leaving()

    def _why_leave(self, area: sharedarea.SharedArea) -> str:
        """Returns why probes must take over, as words after "the process"; empty: they need not."""
        if self.source.failure is not None:
            self._trouble = f"what the process reported can't be read: {self.source.failure}"
            return "has written what can't be read"
        if area.is_damaged:
            why = "has written to tracelloc's part of its memory"
            self._trouble = f"the process {why}"
            return why
        if area.is_given_up:
            self._trouble = "the process could not wait for probes"
        if area.is_given_up or area.is_leaving or area.why_not:
            return area.why_not or "gives up the library"
        if area.is_filtered:
            return "filters its system calls (seccomp)"
        return f"has loaded a library: {self._loaded}" if self._loaded else ""

    def take_trouble(self) -> str:
        """Takes the reason why events were missed since the last call; empty if none were."""
        area = self.source.area
        if area is not None and area.was_given_up:
            self._trouble, area.was_given_up = "the process could not wait for tracelloc", False
        trouble, self._trouble = self._trouble, ""
        return trouble

    def own_ranges(self) -> list[tuple[int, int]]:
        """Returns (start, end) of the memory shared with tracelloc. From any thread."""
        found = self._own_ranges
        if self.state is LinkState.CONNECTED and not found:
            mappings = self._mappings_now()
            areas = sharedarea.area_mappings(mappings)
            own = (*areas, *(each for each in mappings if is_injected(each.path)))
            found = [(each.start, each.end) for each in own]
            # Most of it is mapped only when the first event is reported.
            self._own_ranges = found if len(areas) > 1 else []
        return found

    def _mappings_now(self) -> list[Mapping]:
        try:
            return list(parse_maps(self._space.process.maps_text()).values())
        except TargetError:
            return []

    def close(self) -> None:
        """Removes the marker, so that no process waits any more. May be called twice."""
        marker, self._marker = self._marker, None
        if marker is not None:
            marker.close()

    @property
    def must_hand_over(self) -> bool:
        """Whether probes must take over now.

        The process waits for them, and all its reports are taken or tracelloc has waited too long.
        """
        area, leaving = self.source.area, self._leaving
        if area is None or leaving is None:
            return False
        return area.is_left or time.monotonic() - leaving[1] > _LEAVE_S

    def begin_hand_over(self) -> None:
        """Starts replacing the library by probes; ends with ``end_hand_over``."""
        assert self._leaving is not None
        self._leave(f"the program {self._leaving[0]}")

    def end_hand_over(self) -> None:
        """Lets the process continue, once its probes are attached."""
        self.source.disconnect()

    @property
    def replaces_probes(self) -> bool:
        """Whether functions that the library interposes need no probes, as far as is known."""
        return self.state is not LinkState.LEFT

    def costs(self) -> tuple[float, float] | None:
        """(CPU time of reporting an event, threads' waits so far) in ns; None if unknown."""
        area = self.source.area if self.state is LinkState.CONNECTED else None
        return None if area is None else (_EVENT_NS, area.waited_ns)

    @property
    def is_expected(self) -> bool:
        """Whether the library is loaded but not yet initialized."""
        return self.state is LinkState.EXPECTED

    @property
    def is_settled(self) -> bool:
        """Whether the choice between library and probes is final."""
        return self.state in (LinkState.CONNECTED, LinkState.LEFT)

    def decide_use(self, allocators: Iterable[Allocator], *, all_loaded: bool) -> None:
        """Decides, as soon as that is possible, whether the library or probes report blocks.

        ``all_loaded``: initial libraries. Raises TargetError if only the library may, and can't.
        """
        modules = self._space.mapped_modules
        if self.is_settled:
            self._look_later(modules, allocators)
            return
        self._library = next(filter(is_preloaded_library, modules), None)
        # Loaders map preloaded libraries before those that the program needs.
        all_loaded |= time.monotonic() > self._loaded_s and not self._is_attended
        all_loaded |= any(is_c_library(m.path) and not place_loader([m]) for m in modules)
        other = self._other(modules, allocators)
        if other is not None:
            self._leave(other)
        elif self._library is not None and self.source.spares_runtimes and has_supported(modules):
            self._leave(f"stacks must have functions of {supported_names()}")
        elif self._library is not None:
            try:
                self._mark(self._library)
            except TracellocError as error:
                self._leave(str(error))
                return
            self.state = LinkState.EXPECTED
            self._settle(modules, allocators)
        elif all_loaded:
            is_setuid = gains_rights(self._space.process.memory_directory / "exe")
            self._leave("the program has not preloaded it" + " (setuid)" * is_setuid)

    def is_behind(self, allocator: Allocator) -> bool:
        """Returns whether an allocator's blocks all pass the library, as far as is known."""
        if interposed.is_standard_malloc(allocator) or self._is_unused(allocator):
            return True
        if not interposed.may_be_interposed(allocator, self._space.executable):
            return False
        # A library loaded later is called by the code that has loaded it.
        return (
            self._space.find(self._next_malloc) is None
            or self._is_called_by_it(allocator)
            or allocator.module.file_id in self._space.permanent_files()
        )

    def _is_unused(self, allocator: Allocator) -> bool:
        """Whether it is the mimalloc within Python 3.13 and later, which PYTHONMALLOC replaces."""
        is_its = allocator.family is MIMALLOC and is_python_name(base_name(allocator.module.path))
        return is_its and self._space.process.initial_value("PYTHONMALLOC").startswith("malloc")

    def _is_called_by_it(self, allocator: Allocator) -> bool:
        mapping = self._space.find(self._next_malloc)
        is_next = mapping is not None and self._space.module_of(mapping) is allocator.module
        return is_next or interposed.is_standard_malloc(allocator)

    def _other(self, modules: Iterable[Module], allocators: Iterable[Allocator]) -> str | None:
        for allocator in allocators:
            if not self.is_behind(allocator):
                return f"{base_name(allocator.module.path)} has allocators of its own"
        if self._library is None:
            return None
        return interposed.filter_maker(self._library, modules) or interposed.direct_caller(
            self._defined(self._library, allocators), modules, allocators
        )

    def _defined(self, library: Module, allocators: Iterable[Allocator]) -> Collection[str]:
        operators = interposed.asked_operators(allocators) if self._is_injected else ()
        return {*interposed.defined_by(library), *operators}

    def _look_later(self, modules: Iterable[Module], allocators: Iterable[Allocator]) -> None:
        """Makes probes take over if the program has loaded code that bypasses the library."""
        if self.state is not LinkState.CONNECTED or self._library is None or self._loaded:
            return
        known = [allocator for allocator in allocators if self.is_behind(allocator)]
        caller = interposed.direct_caller(self._defined(self._library, known), modules, known)
        if caller is not None:
            self._trouble = f"the program has loaded a library: {caller}"
        self._loaded = caller or interposed.filter_maker(self._library, modules) or ""

    @property
    def _is_attended(self) -> bool:
        """Whether a tracer stops the process when it loads a library, and so notices that."""
        with suppress(TargetError):
            return self._space.process.tracer_id() != 0
        return False

    def _mark(self, library: Module) -> None:
        """Makes the library wait for tracelloc, also if executed later. Raises TracellocError."""
        if is_injected(library.path):
            return
        if self._marker is not None and self._marker.points[0].open_path != library.open_path:
            self.close()
        points = place_marker(library) if self._marker is None else []
        if points:
            self._marker = self.source.attach(self._space.process.pid, points)

    def _settle(self, modules: Iterable[Module], allocators: Iterable[Allocator]) -> None:
        begun = self._read(*sharedarea.STATE_VARIABLE)
        if begun:
            self._next_malloc = self._read(*sharedarea.NEXT_VARIABLE)
            other = self._other(modules, allocators)
            if begun == sharedarea.PRECEDED and not all(map(self._is_called_by_it, allocators)):
                other = "another malloc comes before it"
            other = other or sharedarea.REFUSALS.get(begun)
        else:
            other = "a tracelloc was killed while injecting it" if self._is_injected else None
        if other is not None:
            self._leave(other)
            return
        areas = sharedarea.area_mappings(self._space.mappings)
        if not areas and begun:
            # The area may have been mapped since the maps were read.
            areas = sharedarea.area_mappings(self._mappings_now())
        if not areas:
            if begun:
                self._leave("the library belongs to the parent process")
            return
        try:
            self.source.connect(self._space.process, areas[0], self._words)
        except TargetError as error:
            self._leave(str(error))
        else:
            self.state = LinkState.CONNECTED
            late = self.source.area is not None and self.source.area.is_late
            kind = "injected" if self._is_injected else "preloaded"
            self._say(f"events come by the {kind} library, not by probes", is_late=late)

    @property
    def _is_injected(self) -> bool:
        return self._library is not None and is_injected(self._library.path)

    def _read(self, variable: str, field: str, size_bytes: int) -> int:
        """Returns a library variable's value, or its first one if memory may not be read."""
        assert self._library is not None
        at, process = self._space.object(self._library, variable), self._space.process
        word = b"" if at is None else process.read_memory(at, size_bytes)
        if word:
            return int.from_bytes(word, "little")
        areas = sharedarea.area_mappings(self._space.mappings)
        return sharedarea.read_field(process, areas[0], field, size_bytes) if areas else 0

    def _leave(self, why: str) -> None:
        """Decides that probes report blocks. Raises TargetError if there are no probes."""
        self.state = LinkState.LEFT
        self.close()
        if self.source.is_alone:
            raise TargetError(
                f"without probes, process {self._space.process.pid} can't be traced: {why}",
                hint="tracelloc help preload says what the library can't do",
            )
        what = f"events come by probes, not by the preloaded library: {why}"
        self._say(what, is_late=self._misses_beginning)

    def _say(self, what: str, *, is_late: bool) -> None:
        missing = "; what the program allocated before is missing"
        self._unsaid = what + missing * is_late
        if is_late:
            self._trouble = "the program had begun before it could be traced"

    def report_choice(self) -> None:
        """Tells the user about library or probes, once the program is known to be traceable."""
        if self._unsaid:
            self.source.say(self._unsaid)
        self._unsaid = ""
