"""The functions of a process that the injected library replaces, and whether it can."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass
from tracelloc.errors import TargetError
from tracelloc.model.codefiles import base_name, is_c_library
from tracelloc.record.mallocs import interposed
from tracelloc.record.mallocs.discovery import Allocator, Module, is_preloaded_library
from tracelloc.record.process.procfs import VDSO, Process
from tracelloc.record.process.space import AddressSpace, is_injected
from tracelloc.record.sources.injected.mapping import library_file
from tracelloc.record.sources.injected.redirection import FunctionSymbol
from tracelloc.record.sources.injected.remotecalls import CallPlace
from tracelloc.record.sources.preloaded.preloadedsource import shared_filters
from tracelloc.record.worker.client import FileReadError

_MALLOC: Final = (
    "malloc", "free", "calloc", "realloc", "reallocarray", "posix_memalign", "aligned_alloc",
    "memalign", "valloc", "pvalloc",
)  # fmt: skip
# The fields of `struct next` (probes/preloaded/next.h).
CALLED_OFTEN: Final = (
    *_MALLOC, "fork", "_Fork", "execve", "execvpe", "fexecve", "syscall", "prctl",
)  # fmt: skip
# The fields of `rare` (probes/preloaded/injected.c).
CALLED_RARELY: Final = "dlclose", "dlmopen", "mlockall", "dl_iterate_phdr"
# Functions that the library calls but does not replace.
_CALLED_ONLY: Final = "execve", "execvpe", "fexecve", "dl_iterate_phdr"
_RECORD_FACTS: Final = "sizeof_pthread", "pthread_tid"
_ESSENTIAL_MALLOC: Final = {"malloc", "free", "calloc", "realloc"}
_ESSENTIAL: Final = {"fork", "syscall", "prctl", "dlclose", "mlockall", "dl_iterate_phdr"}


@dataclass(frozen=True, slots=True)
class FunctionProvider:
    """A mapped file that defines some of the functions to replace."""

    module: Module
    functions: dict[str, FunctionSymbol]  # Functions by name
    bias: int  # Difference of process addresses and the file's own addresses
    range: tuple[int, int]  # Start and end of the file's addresses in the process

    def address(self, name: str) -> int:
        """Returns the process address of a function of the file; 0 if it has none."""
        symbol = self.functions.get(name)
        return 0 if symbol is None else self.bias + symbol.value


class ReplacedFunctions:
    """The functions to replace in one process, and code there that makes system calls."""

    def __init__(self, space: AddressSpace, allocators: Sequence[Allocator]) -> None:
        """Looks up all functions. Raises TargetError if some are missing."""
        self._c_library = _c_library(space)
        malloc = malloc_library(space, allocators)
        if malloc is None or malloc is self._c_library.module:
            self._malloc = self._c_library
        else:
            self._malloc = _provider(space, malloc)
        if not self._malloc.functions.keys() >= _ESSENTIAL_MALLOC:
            raise TargetError(f"{base_name(self._malloc.module.path)} lacks functions of malloc's")
        self.place = _find_calls(space, self._c_library)

    def find_tid_offset(self, process: Process, records: Iterable[tuple[int, int]]) -> int:
        """Returns the offset of a thread's id from its thread pointer. Raises TargetError.

        ``records``: (thread id, thread pointer) of all threads.
        """
        known = [(address, thread_id.to_bytes(4, "little")) for thread_id, address in records]
        layout = native().threads
        glibcs = () if layout.program_offset is None else self._glibc_tid_offsets(process)
        for offset in glibcs or layout.tid_offsets:
            if all(process.read_memory(at + offset, 4) == tid for at, tid in known):
                return offset
        raise TargetError("the C library's record of a thread lacks the thread's id")

    def _glibc_tid_offsets(self, process: Process) -> tuple[int, ...]:
        """Returns what glibc tells libthread_db: its record is below the thread pointer."""
        elf, bias = self._c_library.module.elf, self._c_library.bias
        size, field = (elf.find_object(f"_thread_db_{name}") for name in _RECORD_FACTS)
        if size is None or field is None:
            return ()
        # The field's bits, elements and offset
        words = process.read_memory(bias + field, 12)[8:], process.read_memory(bias + size, 4)
        offset, size_bytes = (int.from_bytes(word, "little") for word in words)
        return (offset - size_bytes,)

    def _provider_of(self, name: str) -> FunctionProvider:
        return self._malloc if name in _MALLOC else self._c_library

    def address(self, name: str) -> int:
        """Returns the address of a function in the process; 0 if there is none."""
        return self._provider_of(name).address(name)

    @property
    def replaced(self) -> list[str]:
        """Names of the functions that the library replaces."""
        names = (*CALLED_OFTEN, *CALLED_RARELY)
        return [name for name in names if name not in _CALLED_ONLY and self.address(name)]

    @property
    def other_mallocs(self) -> list[int]:
        """Addresses of the C library's malloc functions, if another malloc library is used."""
        if self._malloc is self._c_library:
            return []
        found = (self._c_library.address(name) for name in _ESSENTIAL_MALLOC)
        return [address for address in found if address]

    def providers(self) -> Iterator[tuple[FunctionProvider, list[str]]]:
        """Yields each file with the names of its functions that are replaced."""
        for each in {one.range: one for one in (self._malloc, self._c_library)}.values():
            yield each, [name for name in self.replaced if self._provider_of(name) is each]

    @property
    def starts(self) -> list[int]:
        """Process addresses at which the defining files are mapped."""
        return [provider.range[0] for provider, _ in self.providers()]


def malloc_library(space: AddressSpace, allocators: Sequence[Allocator]) -> Module | None:
    """Returns the library that replaces the C library's malloc, if any. TargetError: several."""
    found = {
        each.module.open_path: each.module
        for each in allocators
        if not is_c_library(each.module.path)
        and interposed.may_be_interposed(each, space.executable)
    }
    if len(found) > 1:
        names = " and ".join(base_name(module.path) for module in found.values())
        raise TargetError(f"{names} both have a malloc")
    return next(iter(found.values()), None)


def _c_library(space: AddressSpace) -> FunctionProvider:
    for module in space.mapped_modules:
        if is_c_library(module.path):
            provider = _provider(space, module)
            if provider.functions.keys() >= _ESSENTIAL:
                return provider
    raise TargetError("its C library is not a known one (glibc 2.34 and newer, musl)")


def _provider(space: AddressSpace, module: Module) -> FunctionProvider:
    try:
        found = module.elf.find_functions([*CALLED_OFTEN, *CALLED_RARELY])
    except FileReadError as error:
        raise TargetError(f"{base_name(module.path)} can't be read: {error}") from error
    functions = {
        name: FunctionSymbol(*next(iter(places.items()))) for name, places in found.items()
    }
    mappings = [mapping for mapping in space.mappings if space.module_of(mapping) is module]
    biases = {
        mapping.start - (module.elf.address_of(mapping.offset) or 0)
        for mapping in mappings
        if mapping.executable
    }
    if len(biases) > 1:
        raise TargetError(f"it has {base_name(module.path)} twice (dlmopen)")
    bias = biases.pop()
    ends = min(m.start for m in mappings), max(m.end for m in mappings)
    return FunctionProvider(module, functions, bias, ends)


def _find_calls(space: AddressSpace, c_library: FunctionProvider) -> CallPlace:
    mappings = [mapping for mapping in space.mappings if mapping.executable]
    own = [each for each in mappings if space.module_of(each) is c_library.module]
    memories = [
        (each.start, space.process.read_memory(each.start, each.end - each.start))
        for each in (*own, *(each for each in mappings if each.path == VDSO))
    ]

    def find(code: bytes) -> int:
        for start, memory in memories:
            if code in memory:
                return start + memory.index(code)
        raise TargetError(f"{base_name(c_library.module.path)} has no code for system calls")

    machine = native()
    return CallPlace(
        find(machine.system_call_code + machine.return_instruction),
        find(machine.signal_frame.return_code),
    )


def check(space: AddressSpace, allocators: Sequence[Allocator]) -> None:
    """Raises TargetError if the library can't be injected, or would miss calls."""
    if why := _why_not(space.process, space.mapped_modules) or _who_passes(space, allocators):
        raise TargetError(why)


def _why_not(process: Process, modules: Sequence[Module]) -> str | None:  # noqa: PLR0911 - a reason each
    if process.inner_pid() != process.pid:
        return "it is in another PID namespace"
    if process.thread_id != process.pid:
        return "its main thread has ended"
    if process.state() == "T":
        return "it is stopped (SIGSTOP); let it continue first"
    if process.tracer_id():
        return "another debugger traces it"
    if not process.can_be_read():
        return "this user may not read its memory"
    if process.has_seccomp_filter(shared_filters(process)):
        return "it filters its system calls (seccomp)"
    if process.has_shadow_stack():
        return "it has a shadow stack"
    if process.is_memory_limited():
        return "its address space is limited (RLIMIT_AS)"
    if process.locked_bytes():
        return "it locks memory (mlock)"
    if any(is_preloaded_library(each) and not is_injected(each.path) for each in modules):
        return "it has preloaded the library"
    return None


def _who_passes(space: AddressSpace, allocators: Sequence[Allocator]) -> str | None:
    used = malloc_library(space, allocators)
    for allocator in allocators:
        if not interposed.is_standard_malloc(allocator) and allocator.module is not used:
            return f"{base_name(allocator.module.path)} has allocators of its own"
    defined = {*library_file().symbols, *interposed.asked_operators(allocators)}
    modules = space.mapped_modules
    return interposed.direct_caller(defined, modules, allocators) or interposed.filter_maker(
        None, modules
    )
