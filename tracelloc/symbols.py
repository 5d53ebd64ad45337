"""Return addresses to names, at the time they are shown and only for what is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracelloc.demangle import demangle
from tracelloc.space import AddressSpace, Unresolved


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a call stack."""

    address: int
    """Return address in the target."""
    symbol: str | None
    """The function's name as it was written, or None."""
    raw_symbol: str | None
    """The function's name as the linker knows it: its identity."""
    offset: int | None
    """Of the return address from the function's start, in bytes."""
    size: int | None
    """Of the function, in bytes, if the symbol says."""
    module: str | None
    """Path of the mapped file, or the name of a kernel page."""
    module_offset: int | None
    """Of the return address in the module: its own virtual address, in bytes."""
    reason: Unresolved | None = None
    """Why there is no symbol."""
    file: str | None = None
    line: int | None = None
    inlined: bool = False


class Symbolizer:
    """Frames by address, each looked up once. Not thread safe."""

    def __init__(self, space: AddressSpace) -> None:
        self._space = space
        self._frames: dict[int, Frame] = {}
        self._generation = -1

    def frames(self, addresses: Iterable[int]) -> list[Frame]:
        """One frame per return address, in their order."""
        if self._generation != self._space.generation:
            self._generation = self._space.generation
            for address in [a for a, f in self._frames.items() if f.reason is not None]:
                del self._frames[address]
        return [self._frame(address) for address in addresses]

    def _frame(self, address: int) -> Frame:
        frame = self._frames.get(address)
        if frame is None:
            frame = self._frames[address] = self._resolve(address)
        return frame

    def _resolve(self, address: int) -> Frame:
        # A call may be the last thing in its function: the return address is then
        # already the next one's. The byte before it is still the caller's.
        place = self._space.place(address - 1)
        if isinstance(place, Unresolved):
            return _unnamed(address, None, None, place)
        if place.module is None:
            path = place.mapping.path or None
            return _unnamed(address, path, place.file_offset + 1, place.reason)
        path, elf = place.module.path, place.module.elf
        inside = elf.address_of(place.file_offset)
        if inside is None:
            # Mapped, but outside of every segment: no address of the file's own.
            return _unnamed(address, path, None, Unresolved.NO_SYMBOL)
        symbol = elf.symbols.find(inside)
        if symbol is None:
            return _unnamed(address, path, inside + 1, Unresolved.NO_SYMBOL)
        return Frame(
            address=address,
            symbol=demangle(symbol.name),
            raw_symbol=symbol.name,
            offset=inside + 1 - symbol.address,
            size=symbol.size or None,
            module=path,
            module_offset=inside + 1,
        )


def _unnamed(
    address: int, module: str | None, module_offset: int | None, reason: Unresolved | None
) -> Frame:
    return Frame(address, None, None, None, None, module, module_offset, reason)
