"""Programs that report sampled allocations to OpenTelemetry's profiler.

USDT probes ``otel_memory:alloc(pointer, size, weight)`` and ``otel_memory:free(pointer)``: design
document 00003 of https://github.com/open-telemetry/opentelemetry-ebpf-profiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tracelloc.model.codefiles import base_name
from tracelloc.model.process import UnseenFunction
from tracelloc.record import abi
from tracelloc.record.mallocs.discovery import (
    Allocator,
    AllocatorFunction,
    MallocChoice,
    Module,
    discover,
)
from tracelloc.record.mallocs.families import OTEL
from tracelloc.record.mallocs.signatures import ALLOC, FREE, Signature
from tracelloc.record.worker.codefilereader import UsdtPlace

PROVIDER: Final = "otel_memory"
# The number of arguments of each used probe, by its name.
ARGUMENTS: Final = {"alloc": 3, "free": 1}
_SIGNATURES: Final[dict[str, Signature]] = {"alloc": ALLOC, "free": FREE}
# Farthest distance in bytes of an argument from a register's address.
_FARTHEST: Final = 1 << abi.OTEL_DISPLACEMENT_BITS - 1
_HARMFUL: Final = (
    "it is a nop of five bytes or more: a probe there would kill forked children on Linux 6.18"
)


def allocators_in(modules: Iterable[Module], selection: MallocChoice) -> list[Allocator]:
    """Returns the allocators to probe in files, or the USDT probes that report allocations."""
    return otel_allocators(modules) if selection.otel else discover(modules, selection)


def otel_allocators(modules: Iterable[Module]) -> list[Allocator]:
    """Returns the files whose code reports allocations, with their usable probes."""
    found = list(_reporters(modules))
    return [each for each in found if any(f.names == ("alloc",) for f in each.functions)]


def why_no_reports(modules: Iterable[Module]) -> str:
    """Explains why no file of a process reports allocations."""
    for allocator in _reporters(modules):
        for unseen in allocator.unseen:
            where = f"{PROVIDER}:{unseen.name} in {base_name(allocator.module.path)}"
            return f"{where} can't be probed: {unseen.reason}"
    return f"it has no probes {PROVIDER}:alloc"


def _reporters(modules: Iterable[Module]) -> Iterator[Allocator]:
    for module in modules:
        places = module.elf.usdt(PROVIDER)
        functions = []
        for name, signature in _SIGNATURES.items():
            usable = usable_places(places, name)
            if usable:
                functions.append(
                    AllocatorFunction(module, (name,), signature, 0, usable[0].offset, 0)
                )
        unseen = {
            UnseenFunction(place.name, why): None
            for place in places
            if (why := _why_not(place)) is not None
        }
        if functions or unseen:
            yield Allocator(OTEL, module, tuple(functions), tuple(unseen))


def usable_places(places: Iterable[UsdtPlace], name: str) -> list[UsdtPlace]:
    """Returns the places where a USDT probe of this name can be attached."""
    return [place for place in places if place.name == name and _why_not(place) is None]


def _why_not(place: UsdtPlace) -> str | None:
    if place.name not in ARGUMENTS:
        return "probes of this name are not known"
    if not place.nop_bytes:
        return "there is no nop where it should be"
    if place.is_harmful:
        return _HARMFUL
    if (
        place.arguments is None
        or len(place.arguments) < ARGUMENTS[place.name]
        or any(not -_FARTHEST <= distance < _FARTHEST for *_, distance in place.arguments)
    ):
        return "its arguments are where they can't be read"
    return None
