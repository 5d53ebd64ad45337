"""Finds the USDT probes by which programs report allocations themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tracelloc.errors import TargetError
from tracelloc.model.codefiles import base_name
from tracelloc.model.process import UnseenFunction
from tracelloc.record.mallocs.discovery import (
    Allocator,
    AllocatorFunction,
    MallocChoice,
    Module,
    discover,
)
from tracelloc.record.mallocs.families import Provider
from tracelloc.record.mallocs.signatures import ALLOC, FREE
from tracelloc.record.worker.codefilereader import UsdtPlace
from tracelloc.text import printable

_MOST_LISTED: Final = 8
_HARMFUL: Final = (
    "it is a nop of five bytes or more: a probe there would kill forked children on Linux 6.18"
)


def allocators_in(modules: Iterable[Module], selection: MallocChoice) -> list[Allocator]:
    """Returns the allocators to probe in files, or the USDT probes that report allocations."""
    if not selection.providers:
        return discover(modules, selection)
    found = [one for provider in selection.providers for one in _reporters(modules, provider)]
    return [one for one in found if any(f.signature is ALLOC for f in one.functions)]


def provider_in(modules: Sequence[Module], providers: Sequence[Provider]) -> Provider | None:
    """Returns the provider whose probes the files have, or None. TargetError if many."""
    found = [one for one in providers if allocators_in(modules, MallocChoice(providers=(one,)))]
    if len(found) > 1:
        names = " and ".join(one.name for one in found)
        raise TargetError(
            f"it reports allocations as {names}, which are not one sum",
            hint=f"name one of them: --source usdt:{found[0].name}",
        )
    return found[0] if found else None


def why_no_reports(modules: Sequence[Module], providers: Iterable[Provider]) -> str:
    """Explains why no file of a process reports allocations."""
    for provider in providers:
        for allocator in _reporters(modules, provider):
            for unseen in allocator.unseen:
                where = f"{provider.name}:{unseen.name} in {base_name(allocator.module.path)}"
                return f"{where} can't be probed: {unseen.reason}"
    found = sorted({name for module in modules for name in module.elf.usdt_providers()})
    listed = ", ".join(printable(name) for name in found[:_MOST_LISTED])
    wanted = " or ".join(f"{provider.name}:{provider.alloc}" for provider in providers)
    return f"it has no probes {wanted}{', only those of ' if found else ''}{listed}"


def _reporters(modules: Iterable[Module], provider: Provider) -> Iterator[Allocator]:
    for module in modules:
        places = module.elf.usdt(provider.name)
        functions = []
        for name, signature in ((provider.alloc, ALLOC), (provider.free, FREE)):
            usable = usable_places(places, name, provider)
            if usable:
                functions.append(
                    AllocatorFunction(module, (name,), signature, 0, usable[0].offset, 0)
                )
        unseen = {
            UnseenFunction(place.name, why): None
            for place in places
            if (why := _why_not(place, provider)) is not None
        }
        if functions or unseen:
            yield Allocator(provider, module, tuple(functions), tuple(unseen))


def usable_places(places: Iterable[UsdtPlace], name: str, provider: Provider) -> list[UsdtPlace]:
    """Returns the places where a provider's USDT probe of this name can be attached."""
    return [each for each in places if each.name == name and _why_not(each, provider) is None]


def _why_not(place: UsdtPlace, provider: Provider) -> str | None:
    if place.name not in (provider.alloc, provider.free):
        return "probes of this name are not known"
    if not place.nop_bytes:
        return "there is no nop where it should be"
    if place.is_harmful:
        return _HARMFUL
    known = dict(enumerate(place.arguments, 1))
    if any(known.get(number) is None for number in provider.arguments_of(place.name).values()):
        return "its arguments are where they can't be read"
    return None
