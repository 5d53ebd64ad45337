"""A line of a call stack, as views show it, and where its source file lies here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracelloc.target.space import Unresolved


@dataclass(frozen=True, slots=True)
class Frame:
    """One function of a call stack. Inlined functions share their caller's address."""

    address: int
    """Return address in the target."""
    symbol: str | None
    """The function's name as it was written, or None."""
    raw_symbol: str | None
    """The function's name as the linker knows it: its identity."""
    offset: int | None
    """Bytes from the function's start to the return address; None if inlined."""
    size: int | None
    """Size of the function in bytes, if the symbol says."""
    module: str | None
    """Path of the mapped file, or the name of a kernel page."""
    module_offset: int | None
    """The return address in the module's own virtual address space."""
    reason: Unresolved | None = None
    """Why there is no symbol."""
    file: str | None = None
    """Source file of the call, if debug information says."""
    line: int | None = None
    inlined: bool = False
    """Compiled into the function of the next frame."""


def unnamed(
    address: int, module: str | None, module_offset: int | None, reason: Unresolved | None
) -> Frame:
    """A frame that has no name, and why."""
    return Frame(address, None, None, None, None, module, module_offset, reason)


class SourceMap:
    """Directories that stand for others: ``(as compiled, as it is here)``."""

    def __init__(self, directories: Iterable[tuple[str, str]] = ()) -> None:
        pairs = [(old.rstrip("/"), new.rstrip("/")) for old, new in directories]
        # The longest, which says most, decides.
        self._directories = sorted(pairs, key=lambda pair: -len(pair[0]))

    def apply(self, path: str | None) -> str | None:
        """The path with the directory it lies in exchanged, if one is to be."""
        if path is None:
            return None
        for old, new in self._directories:
            if path == old or path.startswith(f"{old}/"):
                return new + path[len(old) :]
        return path
