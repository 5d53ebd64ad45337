"""Turns return addresses into frames, on demand, only for addresses that are shown.

A separate thread reads symbol tables and debug information, so that neither capture nor views
have to wait. A view may take what is known by now (``peek``), or wait for the rest
(``prepare``). Names come first, then lines and inlined functions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from tracelloc.files.demangle import demangle, without_arguments
from tracelloc.files.dwarf import SourceFrame
from tracelloc.files.elf import Symbol
from tracelloc.model.codefiles import GENERATED, CodePlace, Unresolved
from tracelloc.model.frames import Frame, unnamed
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.symbolization.modulesymbols import ModuleSymbols, PerfMap, describe
from tracelloc.record.worker.client import FileReadError


class SourceMap:
    """Replaces directories of source files: ``(as compiled, on this machine)``."""

    def __init__(self, directories: Iterable[tuple[str, str]] = ()) -> None:
        pairs = [(old.rstrip("/"), new.rstrip("/")) for old, new in directories]
        # The longest, most specific match applies.
        self._directories = sorted(pairs, key=lambda pair: -len(pair[0]))

    def apply(self, path: str | None) -> str | None:
        """Returns a path with its directory replaced, if a replacement applies."""
        for old, new in self._directories:
            if path is not None and f"{path}/".startswith(f"{old}/"):
                return new + path[len(old) :]
        return path


T = TypeVar("T")
# Frames of one address: inlined functions first, their containing function last.
Frames = tuple[Frame, ...]
# Addresses in one file, each with its place and the file's own address.
Group = list[tuple[int, CodePlace[Module], int]]

_RETRY_S: Final = 1.0  # Least time between two lookups of generated code without a name
_LAST_S: Final = 1.0  # How long `close` waits for a lookup in progress
_BATCH: Final = 512  # Addresses whose lines are looked up at a time, so that results show soon


class Symbolizer:
    """Names of one process's addresses: frames by address, each looked up once. Thread safe."""

    def __init__(
        self, space: AddressSpace, sources: SourceMap | None = None, like: Symbolizer | None = None
    ) -> None:
        """``like``: symbolizer of a process with some equal files; close it after this one."""
        self.perf_map = PerfMap(space.process)
        self.version = 0  # Grows with every frame that becomes known or is improved
        self._space = space
        self._sources = sources or SourceMap()
        self._modules: dict[int, ModuleSymbols] = {} if like is None else like._modules
        self._owns_modules = like is None
        self._known: dict[int, Frames] = {}
        self._final: set[int] = set()  # Addresses about which nothing more will become known
        self._wanted: dict[int, None] = {}  # Addresses to look up, in the order of requests
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._generation = -1
        self._image = space.image
        self._retried_s = 0.0

    def prepare(self, addresses: Iterable[int], timeout_s: float | None = None) -> bool:
        """Looks up addresses, and waits. Returns whether all are known within the timeout."""
        wanted = dict.fromkeys(addresses)
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._ask(wanted)
            while not self._final.issuperset(wanted):
                if self._failure is not None:
                    raise self._failure
                left = None if end is None else end - time.monotonic()
                if self._closed or (left is not None and left <= 0):
                    return False
                self._changed.wait(left)
        return True

    def peek(self, addresses: Iterable[int]) -> list[Frame]:
        """Returns the frames of return addresses, in order; unknown ones are PENDING."""
        addresses = list(addresses)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._ask(addresses)
            known = [(address, self._known.get(address)) for address in addresses]
        return [frame for a, frames in known for frame in frames or (self._pending(a),)]

    @property
    def waiting(self) -> int:
        return len(self._wanted)

    def place(self, address: int) -> CodePlace[Module] | Unresolved:
        """Returns where a code address lies, or why that is unknown."""
        return self._space.place(address, stored=True)

    def module(self, module: Module) -> ModuleSymbols:
        if id(module) not in self._modules:
            roots = (self._space.process.memory_directory / "root", Path("/"))
            # Another thread may do the same at this time.
            self._modules.setdefault(id(module), ModuleSymbols(module, roots))
        return self._modules[id(module)]

    def close(self) -> None:
        """Ends the lookup thread after its current work; if that takes long, it remains."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_LAST_S)
            if self._thread.is_alive():
                return
        if self._owns_modules:
            for module in self._modules.values():
                module.close()

    def _ask(self, addresses: Iterable[int]) -> None:
        self._forget_outdated()
        new = [a for a in addresses if a not in self._final and a not in self._wanted]
        if not new or self._closed:
            return
        self._wanted.update(dict.fromkeys(new))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="symbols", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _forget_outdated(self) -> None:
        """Forgets unnamed addresses that may have a name by now: new mappings, generated code."""
        reasons: tuple[Unresolved, ...] = ()
        if self._image != self._space.image:
            self._image = self._space.image
            self._known.clear()
            self._final.clear()
            self.version += 1
        if self._generation != self._space.generation:
            self._generation = self._space.generation
            reasons = tuple(Unresolved)
        elif time.monotonic() - self._retried_s > _RETRY_S:
            self._retried_s = time.monotonic()
            reasons = (Unresolved.ANONYMOUS,)
        if reasons:
            stale = [a for a in self._final if self._known[a][-1].reason in reasons]
            self._final.difference_update(stale)

    def _pending(self, address: int) -> Frame:
        if (interpreted := self._interpreted(address)) is not None:
            return interpreted
        place, path, offset = self._space.place(address - 1, stored=True), None, None
        if isinstance(place, CodePlace) and place.module is not None:
            path, inside = place.module.path, place.module.elf.address_of(place.file_offset)
            offset = None if inside is None else inside + 1
        return unnamed(address, path, offset, Unresolved.PENDING)

    def _interpreted(self, address: int) -> Frame | None:
        found = self._space.files.runtime_frames.find(address)
        if found is None:
            return None
        name, file = found.function or "[function that is gone]", self._sources.apply(found.file)
        # Many functions have the same name: file and line distinguish them.
        identity = name if file is None else f"{name} ({file}:{found.first_line})"
        module = f"[{found.runtime}]"
        return Frame(address, name, identity, None, None, module, None, file=file, line=found.line)

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._wanted and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
                    addresses = list(self._wanted)
                self._look_up(addresses)
        except BaseException as failure:  # noqa: BLE001 - raised again where it is asked for
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _publish(self, frames: dict[int, Frames], *, final: bool) -> None:
        with self._changed:
            self._known.update(frames)
            self.version += 1
            if final:
                self._final.update(frames)
                for address in frames:
                    self._wanted.pop(address, None)
            self._changed.notify_all()

    def _look_up(self, addresses: Sequence[int]) -> None:
        in_modules: dict[int, Group] = {}
        generated: list[int] = []
        settled: dict[int, Frames] = {}
        for address in addresses:
            if (interpreted := self._interpreted(address)) is not None:
                settled[address] = (interpreted,)
                continue
            # Behind a call that ends a function is the next one: the byte before is the caller's.
            place = self._space.place(address - 1, stored=True)
            if isinstance(place, CodePlace) and place.module is not None:
                path, inside = place.module.path, place.module.elf.address_of(place.file_offset)
                if inside is not None:
                    in_modules.setdefault(id(place.module), []).append((address, place, inside))
                else:  # mapped, but outside every segment: there is no file address
                    settled[address] = (unnamed(address, path, None, Unresolved.NO_SYMBOL),)
            elif isinstance(place, CodePlace) and place.reason is Unresolved.ANONYMOUS:
                generated.append(address)
            else:
                settled[address] = (_nameless(address, place),)
        if settled:
            self._publish(settled, final=True)
        if generated:
            self._publish(self._generated(generated), final=True)
        named = [(group, self._tried(self._named, group)) for group in in_modules.values()]
        for group, found in named:
            if found is not None:
                self._tried(self._add_lines, group, *found)

    def _tried(self, read: Callable[..., T], group: Group, /, *more: Any) -> T | None:
        """Reads from an untrusted file; if that fails, the group's addresses have no names."""
        try:
            return read(group, *more)
        except Exception as error:  # noqa: BLE001 - whatever it is, others' names don't depend on it
            module = group[0][1].module
            assert module is not None
            kind = "" if isinstance(error, FileReadError) else f"{type(error).__name__}: "
            text = f"{Unresolved.UNREAD.value} ({kind}{error})"
            if text not in module.elf.troubles:
                module.elf.troubles.append(text)
            nameless: dict[int, Frames] = {
                address: self._known.get(address)
                or (unnamed(address, module.path, inside + 1, Unresolved.UNREAD),)
                for address, _, inside in group
                if address not in self._final
            }
            self._publish(nameless, final=True)
            return None

    def _generated(self, addresses: list[int]) -> dict[int, Frames]:
        before = np.array(addresses, np.uint64) - np.uint64(1)
        frames: dict[int, Frames] = {}
        for address, symbol in zip(addresses, self.perf_map.find_all(before), strict=True):
            if symbol is None:
                place = self._space.place(address - 1, stored=True)
                frames[address] = (_nameless(address, place),)
                continue
            function, file, line = describe(symbol.name)
            facts = address, function, symbol.name, address - symbol.address, symbol.size
            frame = Frame(*facts, GENERATED, None, file=self._sources.apply(file), line=line)
            frames[address] = (frame,)
        return frames

    def _named(self, group: Group) -> tuple[ModuleSymbols, list[Symbol | None]]:
        assert group[0][1].module is not None
        module = self.module(group[0][1].module)
        symbols = module.find_all([inside for _, _, inside in group])
        frames: dict[int, Frames] = {
            address: (_named_frame(address, module.module.path, inside, symbol),)
            for (address, _, inside), symbol in zip(group, symbols, strict=True)
        }
        self._publish(frames, final=not module.may_have_lines)
        return module, symbols

    def _add_lines(self, group: Group, module: ModuleSymbols, symbols: list[Symbol | None]) -> None:
        if not module.may_have_lines:
            return
        for start in range(0, len(group), _BATCH):
            if self._closed:
                return
            part, names = group[start : start + _BATCH], symbols[start : start + _BATCH]
            chains = module.lines.chains([inside for _, _, inside in part])
            frames: dict[int, Frames] = {}
            for (address, _, inside), symbol, chain in zip(part, names, chains, strict=True):
                base = _named_frame(address, module.module.path, inside, symbol)
                frames[address] = self._with_lines(base, chain)
            self._publish(frames, final=True)

    def _with_lines(self, base: Frame, chain: Sequence[SourceFrame]) -> Frames:
        """Returns the frames of an address with known source, the innermost inlined one first."""
        if not chain:
            return (base,)

        def frame(base: Frame, source: SourceFrame, raw: str | None, whole: str | None) -> Frame:
            return replace(
                base,
                symbol=None if whole is None else demangle(whole),
                raw_symbol=raw,
                reason=base.reason if raw is None else None,
                file=self._sources.apply(source.file),
                line=source.line,
            )

        *inner, outer = chain
        inlined = replace(base, offset=None, size=None, reason=Unresolved.NO_SYMBOL, inlined=True)
        frames = [frame(inlined, one, _plain(one), one.function) for one in inner]
        raw = whole = base.raw_symbol
        if raw in (None, _plain(outer)):
            # Only debug information has the generic arguments.
            raw, whole = _plain(outer), outer.function
        return (*frames, frame(base, outer, raw, whole))


def _plain(source: SourceFrame) -> str | None:
    return None if source.function is None else without_arguments(source.function)


def _named_frame(address: int, path: str, inside: int, symbol: Symbol | None) -> Frame:
    if symbol is None:
        return unnamed(address, path, inside + 1, Unresolved.NO_SYMBOL)
    name, offset = symbol.name, inside + 1 - symbol.address
    return Frame(address, demangle(name), name, offset, symbol.size or None, path, inside + 1)


def _nameless(address: int, place: CodePlace[Module] | Unresolved) -> Frame:
    if isinstance(place, Unresolved):
        return unnamed(address, None, None, place)
    return unnamed(address, place.mapping.path or None, place.file_offset + 1, place.reason)


class Symbolizers:
    """One symbolizer per process, created on first use. Thread safe."""

    def __init__(self, space_of: Callable[[int], AddressSpace], sources: SourceMap) -> None:
        """``space_of``: returns the address space of a process, by its number in the trace."""
        self._space_of, self._sources = space_of, sources
        self._lock = threading.Lock()
        self._symbolizers: dict[int, Symbolizer] = {}

    def symbols_of(self, number: int) -> Symbolizer:
        with self._lock:
            if number not in self._symbolizers:
                first = next(iter(self._symbolizers.values()), None)
                space = self._space_of(number)
                self._symbolizers[number] = Symbolizer(space, self._sources, like=first)
            return self._symbolizers[number]

    def close(self) -> None:
        with self._lock:
            # The first one owns the symbols of files for all of them.
            for symbolizer in reversed(self._symbolizers.values()):
                symbolizer.close()
