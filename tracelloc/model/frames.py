"""A line of a call stack, as views show it."""

from __future__ import annotations

from dataclasses import dataclass

from tracelloc.model.codefiles import Unresolved


@dataclass(frozen=True, slots=True)
class Frame:
    """One function of a call stack. Inlined functions share their caller's address."""

    address: int
    """Return address in the target."""
    symbol: str | None
    """The function's name as in its source, or None."""
    raw_symbol: str | None
    """The function's name as the linker knows it: identifies the function."""
    offset: int | None
    """Bytes from the function's start to the return address; None if inlined."""
    size: int | None
    """Size of the function in bytes, if the symbol has one."""
    module: str | None
    """Path of the mapped file, or the name of a kernel page."""
    module_offset: int | None
    """The return address in the module's own virtual address space."""
    reason: Unresolved | None = None
    """Why there is no symbol."""
    file: str | None = None
    """Source file of the call, from debug information."""
    line: int | None = None
    inlined: bool = False
    """Whether it is compiled into the function of the next frame."""


def unnamed(
    address: int, module: str | None, module_offset: int | None, reason: Unresolved | None
) -> Frame:
    """A frame without a name, and why."""
    return Frame(address, None, None, None, None, module, module_offset, reason)
