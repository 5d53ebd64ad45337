"""Injects the library into a running process, and withdraws it.

1. Everything that could be in the way is checked; nothing has been changed yet.
2. All threads are stopped. One of them makes the system calls that map the library and the shared
   memory (``remotecalls.py``); no other code of the target runs.
3. All addresses of malloc and related functions are replaced by those of the library's functions
   (``redirection.py``), and the threads go on.

Withdrawing replaces them again. The library stays mapped: threads may be in it, and the program may
have copied its addresses. If tracelloc is killed in between, the program goes on, with the library
idle; the next tracelloc uses it as if it had been preloaded.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from tracelloc.errors import TargetError
from tracelloc.record.mallocs.discovery import Allocator
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace, is_injected
from tracelloc.record.sources.injected import redirection
from tracelloc.record.sources.injected.functions import (
    CALLED_OFTEN,
    CALLED_RARELY,
    FunctionProvider,
    ReplacedFunctions,
    check,
)
from tracelloc.record.sources.injected.mapping import LibraryFile, Mapper, leftovers, library_file
from tracelloc.record.sources.injected.remotecalls import RemoteThread, StoppedProcess, machine
from tracelloc.record.sources.preloaded import ringmerge
from tracelloc.record.sources.preloaded.sharedarea import NEXT_VARIABLE, STATE_VARIABLE, is_used
from tracelloc.system.syscalls import closed_after

_ADDRESSES: Final = (1 << 64) - 1
_RSEQ_CS: Final = 8  # Offset in `struct rseq` of the address of the critical section; 0: in none


class Injection:
    """Injects the library into one process, and withdraws it."""

    def __init__(self, space: AddressSpace, allocators: Sequence[Allocator]) -> None:
        """Checks only, changes nothing. Raises TargetError if the library can't be injected."""
        self._process = space.process
        self._places: set[int] = set()  # Where there were addresses of functions, but for symbols
        with self._explaining():
            check(space, allocators)
            self._library = library_file()
            self._functions = ReplacedFunctions(space, allocators)
            self._base = _find_earlier(space, self._library)
            if self._base is not None and is_used(space):
                raise TargetError("another tracelloc uses the library in it")

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (TargetError, OSError) as error:
            why = error.message if isinstance(error, TargetError) else error.strerror
            raise TargetError(
                f"the library can't be injected into process {self._process.pid}: {why}",
                hint="tracelloc doctor lists other ways",
            ) from error

    def begin(self) -> None:
        """Injects the library. Raises TargetError, with the process unchanged."""
        functions = self._functions
        values = [functions.address(name) for name in functions.replaced]
        if self._base is not None:
            # Of an earlier tracelloc, if it could not put them back.
            values += self._replacements().values()
        with self._explaining():
            earlier = redirection.earlier_words(self._process, [*values, *functions.other_mallocs])
            if not set(functions.other_mallocs).isdisjoint(earlier.values()):
                raise TargetError("it calls the C library's malloc besides another one")
            self._places = set(earlier)
            with _opened(self._process) as (stopped, memory_fd):
                ids = stopped.thread_ids
                records = [(each, ptrace.registers(each).thread_pointer) for each in ids]
                tid_offset = functions.find_tid_offset(self._process, records)
                if self._base is None:
                    self._map(caller_of(self._process, ids), memory_fd, tid_offset)
                self._replace(ids, memory_fd, self._replacements())
                self._set_state(memory_fd, ringmerge.READY)

    def _replace(
        self, thread_ids: Sequence[int], memory_fd: int, values: Mapping[int, int]
    ) -> None:
        """Replaces addresses (old: new) in a stopped process. OSError: none is replaced."""
        assert self._base is not None
        own = range(self._base, self._base + self._library.size_bytes)
        words = redirection.stopped_words(self._process, thread_ids, values, self._places)
        before = {at: value for at, value in words.items() if at not in own}
        self._places.update(before)
        after = {at: values[value] for at, value in before.items()}
        for provider, names in self._functions.providers():
            symbols, others = self._symbols(provider, names, values)
            found = redirection.find_symbols(self._process, provider.range, symbols)
            before |= found
            after |= {at: others[value] for at, value in found.items()}
        redirection.write_words(memory_fd, before, after)
        redirection.replace_registers(thread_ids, values)

    def _symbols(
        self, provider: FunctionProvider, names: Sequence[str], values: Mapping[int, int]
    ) -> tuple[list[redirection.FunctionSymbol], dict[int, int]]:
        """Returns a file's symbols as they are now, and replacements by a symbol's value."""
        assert self._base is not None
        symbols, others = [], {}
        for name in names:
            own = self._base + self._library.symbols[name]
            now = own if own in values else provider.address(name)
            if now in values:
                value = now - provider.bias & _ADDRESSES
                symbols.append(
                    redirection.FunctionSymbol(value, provider.functions[name].size_bytes)
                )
                others[value] = values[now] - provider.bias & _ADDRESSES
        return symbols, others

    def _map(self, thread_id: int, memory_fd: int, tid_offset: int) -> None:
        """Maps the library into the process, not called yet. Raises OSError, TargetError."""
        remote = RemoteThread(self._process, thread_id, self._functions.place, memory_fd)
        mapper = Mapper(remote, self._process.pid, memory_fd)
        try:
            for name, arguments in leftovers(self._process, self._library):
                remote.call(name, *arguments)
            base = mapper.map_library(self._library)
            at = {name: base + inside for name, inside in self._library.symbols.items()}
            control = mapper.map_area()
            address = self._functions.address
            values = {
                "tracelloc_next": b"".join(_pointer(address(name)) for name in CALLED_OFTEN),
                "tracelloc_rare": b"".join(_pointer(address(name)) for name in CALLED_RARELY),
                "tracelloc_tid_offset": _pointer(tid_offset & _ADDRESSES),
                "tracelloc_first_stack": _pointer(self._process.start_stack()),
                NEXT_VARIABLE[0]: _pointer(address("malloc")),
                "tracelloc_guard": _pointer(control),
            }
            for name, value in values.items():
                os.pwrite(memory_fd, value, at[name])
        except BaseException:
            mapper.unmap()
            raise
        finally:
            remote.clear()
        self._base = base
        self._set_state(memory_fd, ringmerge.WITHDRAWN)

    def _replacements(self) -> dict[int, int]:
        """Returns, by address of a function of the process, the library function's address."""
        assert self._base is not None
        return {
            self._functions.address(name): self._base + self._library.symbols[name]
            for name in reversed(self._functions.replaced)
        }

    def _set_state(self, memory_fd: int, state: int) -> None:
        assert self._base is not None
        at = self._base + self._library.symbols[STATE_VARIABLE[0]]
        os.pwrite(memory_fd, state.to_bytes(4, "little"), at)

    def withdraw(self) -> None:
        """Makes the process call its own functions again. Does nothing if the process is gone."""
        if self._base is None:
            return
        with suppress(TargetError, OSError), _opened(self._process) as (stopped, memory_fd):
            starts = {mapping.start for mapping in self._process.maps().mappings}
            if starts.issuperset([self._base, *self._functions.starts]):  # else another program
                self._set_state(memory_fd, ringmerge.WITHDRAWN)
                back = {value: key for key, value in self._replacements().items()}
                self._replace(stopped.thread_ids, memory_fd, back)
        self._base = None


@contextmanager
def _opened(process: Process) -> Iterator[tuple[StoppedProcess, int]]:
    """A context in which a process is stopped, with its memory file open for writing."""
    with StoppedProcess(process) as stopped:
        try:
            fd = os.open(process.memory_directory / "mem", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            why = f"the memory of process {process.pid} can't be written: {error.strerror}"
            raise TargetError(why) from error
        with closed_after(fd):
            yield stopped, fd


def _find_earlier(space: AddressSpace, library: LibraryFile) -> int | None:
    """Returns the address of a complete library that was injected before; None if there is none.

    Raises TargetError if that library is of another version.
    """
    for first in space.mappings:
        if is_injected(first.path) and not first.offset:
            memory = space.process.read_memory(first.start, first.end - first.start)
            if not library.is_at(memory):
                raise TargetError("it has the library of another version of tracelloc")
            state = space.process.read_memory(first.start + library.symbols[STATE_VARIABLE[0]], 4)
            return first.start if any(state) else None
    return None


def caller_of(process: Process, thread_ids: Sequence[int]) -> int:
    """Returns the thread for making system calls: one that is in a system call, if possible.

    The kernel would not restart the critical section of another one (rseq(2)). Raises TargetError.
    """
    rank = machine().rank
    for each in sorted(thread_ids, key=lambda each: rank(process, ptrace.registers(each))):
        area = ptrace.restartable_area(each)
        if not area or not any(process.read_memory(area + _RSEQ_CS, 8)):
            return each
    raise TargetError("all of its threads are in restartable sequences (rseq(2)); try again")


def _pointer(value: int) -> bytes:
    return value.to_bytes(8, "little")
