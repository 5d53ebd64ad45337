"""Begins a session on a running process, or on one that waits to execute its program."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tracelloc.errors import TargetError, UnsupportedError
from tracelloc.record.kernel.bpf import Capture
from tracelloc.record.mallocs.discovery import allocators_in, provider_in
from tracelloc.record.mallocs.families import PROVIDERS
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.supported import has_supported, supported_names
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.follower import Follower
from tracelloc.record.session.probeset import find_allocators
from tracelloc.record.session.session import Session
from tracelloc.record.sources.eventsource import ProbeSource, Sources
from tracelloc.record.sources.injected.injector import Injection
from tracelloc.record.sources.preloaded.noprobes import NoProbes
from tracelloc.record.sources.preloaded.preloadedsource import PreloadedSource
from tracelloc.record.sources.preloaded.sharedarea import area_mappings
from tracelloc.record.tasks.supervision import Say, say_nothing
from tracelloc.startup import STARTUP


def attach_to(process: Process, config: TraceConfig, say: Say = say_nothing) -> Session:
    """Traces a running process. Raises TracellocError, having attached nothing."""
    STARTUP.note(f"reading the symbol tables of process {process.pid}")
    space = AddressSpace(process)
    started = process.start_ticks()
    try:
        modules = find_allocators(space, config.selection)
    except TargetError as error:
        modules = space.modules
        if config.without_probes or config.selection.only or config.selection.providers:
            raise
        provider = provider_in(modules, PROVIDERS)
        if provider is None:
            raise
        say(f"{error.message}: its own reports are used instead ({provider.name}:{provider.alloc})")
        config = config.with_provider(provider)
    if config.selection.providers and not config.capture.usdt:
        provider = provider_in(modules, config.selection.providers)
        assert provider is not None
        config = config.with_provider(provider)
    may_have_runtime = not config.without_probes and (config.follow or has_supported(modules))
    config = config.with_runtime_frames(may_have_runtime)
    if config.spares_runtimes and not area_mappings(space.mappings):
        # The user has not asked for the preloaded library.
        config = replace(config, use_library=False)
    injection = None
    if config.injects:
        injection = Injection(space, allocators_in(space.mapped_modules, config.selection))
    session = _make(space, config, say, after=injection.withdraw if injection else lambda: None)
    try:
        if injection is not None:
            STARTUP.note(f"injecting the library into process {process.pid}")
            injection.begin()
            space.refresh()
        session.start(modules)
        if process.start_ticks() != started:
            raise TargetError(f"process {process.pid} has ended, and another one has its PID now")
    except BaseException:
        session.close()
        raise
    return session


def await_program(process: Process, config: TraceConfig, say: Say = say_nothing) -> Session:
    """Prepares a session on a process waiting to execute its program. Raises TracellocError."""
    # The program is not known yet.
    config = config.with_runtime_frames(config.in_parts or not config.without_probes)
    session = _make(AddressSpace(process), config, say, waiting=True)
    session.start()
    return session


def _make(
    space: AddressSpace,
    config: TraceConfig,
    say: Say,
    *,
    waiting: bool = False,
    after: Callable[[], None] = lambda: None,
) -> Session:
    for provider in config.selection.providers:
        if provider.note:
            say(f"{provider.name}: {provider.note}")
    probes, config = _probes(config, say, None if waiting else space.process)
    try:
        sources = _sources(probes, config, say, after)
        return Session(sources, config, space, say, waiting=waiting)
    except BaseException:
        probes.close()
        raise


def _sources(
    probes: ProbeSource, config: TraceConfig, say: Say, after: Callable[[], None]
) -> Sources:
    if not config.use_library or (probes.has_probes and not config.capture.use_rows):
        return Sources(probes)
    preloaded = partial(
        PreloadedSource,
        config.capture,
        say=say,
        attach=probes.attach,
        is_alone=config.without_probes,
        spares_runtimes=config.spares_runtimes,
        max_stall_s=config.max_stall_s,
        in_parts=config.in_parts,
    )
    return Sources(probes, preloaded, after)


def _probes(
    config: TraceConfig, say: Say, running: Process | None
) -> tuple[ProbeSource, TraceConfig]:
    """Returns the probes, without runtimes' frames if the kernel refuses the programs for them.

    ``running``: the process, unless tracelloc starts it. Also returns the settings in use.
    """
    if config.without_probes:
        return NoProbes(config.capture, running), config
    capture = Capture(config.capture, config.method, debug=config.debug)
    if not config.capture.runtime_frames:
        return capture, config
    try:
        capture.load()
    except UnsupportedError as error:
        capture.close()
        if config.has_devices:
            raise
        say(f"stacks have no frames of {supported_names()}: {error}")
        return _probes(config.with_runtime_frames(False), say, running)
    except BaseException:
        capture.close()
        raise
    return capture, config


_EVERY_S: Final = 0.5


class ProcessJoiner:
    """Adds running processes to a session that has begun."""

    def __init__(
        self,
        members: Callable[[], Sequence[int]],
        session: Session,
        follower: Follower,
        *,
        is_group: bool,
    ) -> None:
        """``members`` returns the PIDs of a control group's processes, or of others to add now."""
        self._members, self._session, self._follower = members, session, follower
        self._is_group = is_group
        self._ended = threading.Event()
        self._refused: set[int] = set()  # Processes that can't be followed
        self._thread = threading.Thread(target=self._look, name="group", daemon=True)

    def start(self) -> None:
        """Adds all processes; of a group, also new ones, until ``stop``, on a separate thread."""
        while self._add_new():
            pass
        if self._is_group:
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._session.supervisor.run("control group", 0, self._add_new, gives_up=False)

    def _add_new(self) -> bool:
        members = self._members()
        self._refused.intersection_update(members)
        others = (pid for pid in members if pid not in self._refused)
        new = [pid for pid in others if not (self._session.knows(pid) or self._is_born(pid))]
        for pid in new:
            if not self._ended.is_set():
                self._add(pid)
        return bool(new)

    def _add(self, pid: int) -> None:
        try:
            self._session.add_running(Process(pid))
            # What it forks until now is not followed, but found as it was.
            self._follower.join(pid)
        except TargetError as error:
            self._refused.add(pid)
            if Process(pid).exists():
                self._session.supervisor.say(f"warning: {error}")

    def _is_born(self, pid: int) -> bool:
        """Whether a process is a child that the follower is about to report."""
        return Process(pid).tracer_id() == self._follower.thread_id
