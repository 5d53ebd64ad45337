"""Probe points: the programs to attach for the allocators that discovery has found.

A worker finds the cheap instruction at a function's beginning, and the exits of functions that
can't have a return probe (``tracelloc.files.machinecode.probeoffsets``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass, replace
from tracelloc.files.elf.usdt import UsdtArgument
from tracelloc.model.codefiles import base_name
from tracelloc.model.process import UnseenFunction
from tracelloc.record import abi
from tracelloc.record.mallocs import discovery, families
from tracelloc.record.worker.codefilereader import Offsets
from tracelloc.record.worker.targetfile import TargetFile

# Number of profilers that wait for the library to start (`probes/preloaded/library.c`).
_MARKER_COUNTER: Final = "tracelloc_preload_awaited"
# Only functions that may throw have probes at their exits.
_EXIT_COOKIE: Final = abi.FunctionCode.EXIT | abi.COOKIE_THROWS
# Bytes at a function's beginning that are searched for an emulated instruction.
_HEAD_BYTES: Final = 64
_LONGEST_FUNCTION: Final = 64 << 10  # Longest function that is searched for branches, in bytes
# The function that C++ calls first to throw (Itanium C++ ABI: Exception Handling, 2.4.2).
EXCEPTION_HOOK: Final = "__cxa_allocate_exception"
_KNOWN_NAMES: Final = frozenset(
    name
    for family in (*families.FAMILIES, families.jemalloc(""), families.OPERATORS)
    for name in family.functions
)
# Where arguments are, by role: the fields of `struct usdt_probe`.
Arguments = tuple[tuple[str, UsdtArgument], ...]


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """A place for a probe: an offset in a file, and the BPF program to run there."""

    open_path: str  # Path by which the kernel can open the file
    offset: int  # Offset in the file, in bytes
    program: str  # Name of the BPF program
    label: str  # For messages: `malloc in libc.so.6`
    cookie: int = 0  # Argument of the program: `COOKIE_` in `probes/event.h`
    returns: bool = False  # Whether the program also runs when the function returns to its caller
    is_single_stepped: bool = False  # Whether the kernel single-steps the instruction there
    # File offset of a 16-bit counter of the attached probes in each process; 0 if there is none.
    counter_offset: int = 0
    arguments: Arguments = ()  # Of a USDT probe: `Capture` makes a cookie of them

    @property
    def is_exit(self) -> bool:
        """Whether the place is an exit of a function that may throw."""
        return self.cookie == _EXIT_COOKIE


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """The probes to attach for some allocators."""

    # Probes in the order of attaching, exits first: no thread must be seen to enter a call whose
    # exit is missed.
    points: tuple[ProbePoint, ...]
    # Allocators with probes; functions without a probe are in `Allocator.unseen`, with the reason.
    allocators: tuple[discovery.Allocator, ...]
    has_throwing: bool  # Whether any function may throw a C++ exception


def plan_probes(allocators: Iterable[discovery.Allocator]) -> ProbePlan:
    """Plans the probes for some allocators."""
    points: dict[tuple[str, int, int | str], ProbePoint] = {}
    kept = []
    allocators = list(allocators)
    for allocator in allocators:
        if isinstance(allocator.family, families.Provider):
            points.update(((p.open_path, p.offset, p.program), p) for p in usdt_points(allocator))
            kept.append(allocator)
            continue
        path, elf = allocator.module.open_path, allocator.module.elf
        offsets = _offsets_of(allocator)
        neighbours = (a for a in allocators if a.module.open_path == path)
        addresses = frozenset(function.address for a in neighbours for function in a.functions)
        functions, unseen = [], list(allocator.unseen)
        for function in allocator.functions:
            others = addresses - {function.address}
            if _may_be_wrapper(function, allocator.family) and elf.always_calls(
                function.address, sorted(others), sorted(_KNOWN_NAMES)
            ):
                continue
            found: list[ProbePoint] | str = "its first instructions can't be probed"
            if function not in offsets or offsets[function] is not None:
                found = _points_of(function, offsets.get(function), others)
            if isinstance(found, str):
                unseen.append(UnseenFunction(function.names[0], found))
                continue
            functions.append(function)
            # Code to which several functions jump ends the calls of all of them.
            points.update(((p.open_path, p.offset, p.cookie), p) for p in found)
        if allocator.family is families.LIBC:
            points.update(((p.open_path, p.offset, p.cookie), p) for p in _cache_points(allocator))
        if functions or unseen:
            kept.append(replace(allocator, functions=tuple(functions), unseen=tuple(unseen)))
    ordered = sorted(points.values(), key=lambda point: not point.is_exit)
    throwing = any(f.signature.throws for allocator in kept for f in allocator.functions)
    return ProbePlan(tuple(ordered), tuple(kept), throwing)


def _may_be_wrapper(function: discovery.AllocatorFunction, family: families.Family) -> bool:
    """Returns whether a function may call others with probes, as the C++ library's operators do."""
    return not family.by_user and (family is families.OPERATORS or function.signature.throws)


def _offsets_of(
    allocator: discovery.Allocator,
) -> dict[discovery.AllocatorFunction, Offsets | None]:
    """Returns probe offsets near functions' entries (None: no instruction); {} if unknown."""
    wanted = [
        (function.offset, function.size, function.signature.registers)
        if 0 < function.size <= _LONGEST_FUNCTION
        else (function.offset, 0, None)
        for function in allocator.functions
    ]
    found = allocator.module.elf.offsets(wanted) or ()
    return dict(zip(allocator.functions, found, strict=False))


def _points_of(
    function: discovery.AllocatorFunction, where: Offsets | None, others: Collection[int]
) -> list[ProbePoint] | str:
    """Returns a function's probes, or why none. ``others``: addresses of probed functions."""
    if where is None:
        return "its code can't be read"
    signature, module = function.signature, function.module
    if signature.kind.returns and module.elf.is_go and "." in function.names[0]:
        return "Go moves its stacks, so its returns can't be probed"
    offset = function.offset + where[0]
    place = (offset & abi.COOKIE_PLACE_MASK) << abi.COOKIE_PLACE_SHIFT
    entry = ProbePoint(
        module.open_path,
        offset,
        signature.kind.program,
        f"{function.names[0]} in {base_name(module.path)}",
        cookie=signature.cookie | place | _slot(module.elf, function.address, others),
        returns=signature.kind.returns and not signature.throws,
        is_single_stepped=where[1],
    )
    if not signature.throws:
        return [entry]
    walk = module.elf.exits(function.address)
    if walk.trouble:
        why = "an exception may leave it, so that it can't have a return probe, and where else "
        return f"{why}it ends can't be told: {walk.trouble}"
    exits = [
        replace(entry, offset=offset, cookie=_EXIT_COOKIE, is_single_stepped=True)
        for offset in map(module.elf.offset_of, walk.rets)
        if offset is not None
    ]
    return [*exits, entry]


def _slot(elf: TargetFile, address: int, others: Collection[int]) -> int:
    """Returns the bits of a cookie that tell where a function stores its return address."""
    if not native().dwarf.has_link_register:
        return 0
    words = elf.return_slot(address, sorted(others))
    return words << abi.COOKIE_SLOT_SHIFT if words <= abi.COOKIE_SLOT_MASK else 0


def _cache_points(allocator: discovery.Allocator) -> Iterator[ProbePoint]:
    elf = allocator.module.elf
    frees = elf.find_functions(["free"]).get("free", {})
    if "__libc_free" not in elf.find_functions(["__libc_free"]):
        return
    address = elf.thread_cache_drain(sorted(frees))
    offset = None if address is None else elf.offset_of(address)
    if address is None or offset is None:
        return
    found = elf.offsets([(offset, _HEAD_BYTES, ())])
    if found and found[0] is not None and not found[0][1]:
        label = f"the end of threads in {base_name(allocator.module.path)}"
        place = allocator.module.open_path, offset + found[0][0]
        cookie = abi.FunctionCode.CACHE_DRAIN | _slot(elf, address, frees)
        yield ProbePoint(*place, families.FREE_PROGRAM, label, cookie)


def place_loader(modules: Iterable[discovery.Module]) -> list[ProbePoint]:
    """Returns the probes that detect loading and unloading of libraries."""
    return _hook_points(modules, discovery.LOADER_HOOK, "loader_changes")


def place_marker(library: discovery.Module) -> list[ProbePoint]:
    """Returns the probe at the preloaded library's start, whose attachment the library awaits."""
    variable = library.elf.find_object(_MARKER_COUNTER)
    offset = None if variable is None else library.elf.offset_of(variable)
    points = _hook_points([library], discovery.PRELOADED_MARKER, "loader_changes")
    return [replace(point, counter_offset=offset or 0) for point in points]


def place_exceptions(modules: Iterable[discovery.Module]) -> list[ProbePoint]:
    """Returns the probes that detect C++ exceptions, needed only if a function may throw."""
    return _hook_points(modules, EXCEPTION_HOOK, "exception_enter")


def _hook_points(modules: Iterable[discovery.Module], name: str, program: str) -> list[ProbePoint]:
    points = []
    for module in modules:
        label = f"{name} in {base_name(module.path)}"
        for address in module.elf.find_functions([name]).get(name, {}):
            offset = module.elf.offset_of(address)
            found = None if offset is None else module.elf.offsets([(offset, 0, None)])
            if offset is not None and found and found[0] is not None:
                points.append(ProbePoint(module.open_path, offset + found[0][0], program, label))
    return points


def usdt_points(allocator: discovery.Allocator) -> Iterator[ProbePoint]:
    """Yields probes on a file's own reports of allocations; frees first."""
    module, provider = allocator.module, allocator.family
    assert isinstance(provider, families.Provider)
    places = module.elf.usdt(provider.name)
    for name, program in ((provider.free, "usdt_free"), (provider.alloc, "usdt_alloc")):
        for place in discovery.usable_places(places, name, provider):
            roles = provider.arguments_of(name).items()
            found = ((role, place.arguments[number - 1]) for role, number in roles)
            yield ProbePoint(
                module.open_path,
                place.offset,
                program,
                f"{provider.name}:{name} in {base_name(module.path)}",
                is_single_stepped=place.nop_bytes > 1,
                counter_offset=place.semaphore,
                arguments=tuple((role, each) for role, each in found if each is not None),
            )
