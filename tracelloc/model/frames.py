"""Frames: lines of call stacks as views show them, and frames of interpreted functions.

A stack is a tuple of addresses. A line of interpreted code has no address, so it gets an artificial
one above all addresses of programs. Code that names addresses looks up its meaning here. Equal
lines in several processes have the same address.
"""

from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.model.codefiles import Unresolved

FIRST_ADDRESS: Final = 1 << 62
_MOST: Final = 1 << 20  # Most distinct lines: some 300 MiB


@dataclass(frozen=True, slots=True)
class Frame:
    """One function of a call stack. Inlined functions share their caller's address."""

    address: int  # Return address in the target
    symbol: str | None  # The function's name as in its source, or None
    raw_symbol: str | None  # The function's name as the linker knows it: identifies the function
    offset: int | None  # Bytes from the function's start to the return address; None if inlined
    size: int | None  # Size of the function in bytes, if the symbol has one
    module: str | None  # Path of the mapped file, or the name of a kernel page
    module_offset: int | None  # The return address in the module's own virtual address space
    reason: Unresolved | None = None  # Why there is no symbol
    file: str | None = None  # Source file of the call, from debug information
    line: int | None = None
    inlined: bool = False  # Whether the function is inlined into the function of the next frame


def unnamed(
    address: int, module: str | None, module_offset: int | None, reason: Unresolved | None
) -> Frame:
    """Returns a frame without a name; ``reason`` tells why there is none."""
    return Frame(address, None, None, None, None, module, module_offset, reason)


@dataclass(frozen=True, slots=True)
class RuntimeFrame:
    """A function of a language runtime (such as Python), and the line that it has reached."""

    function: str | None  # Name of the function; None if it could not be read
    file: str | None = None
    line: int | None = None
    first_line: int | None = None  # First line of the function
    runtime: str = "Python"


_OTHERS: Final = RuntimeFrame("[more functions than are told apart]")


class RuntimeFrames:
    """All runtime frames of a trace, by address. One thread adds, any thread may look up."""

    def __init__(self) -> None:
        self._addresses: dict[RuntimeFrame, int] = {}
        self._frames: list[RuntimeFrame] = []

    def address(self, frame: RuntimeFrame) -> int:
        """Returns the artificial address that stands for a frame; assigns one if it is new."""
        address = self._addresses.get(frame)
        if address is None:
            if len(self._frames) >= _MOST and frame is not _OTHERS:
                return self.address(_OTHERS)
            self._frames.append(frame)
            address = self._addresses[frame] = FIRST_ADDRESS + len(self._frames)
        return address

    def find(self, address: int) -> RuntimeFrame | None:
        """Returns the frame that an artificial address stands for; None for an address of code."""
        number = address - FIRST_ADDRESS
        return self._frames[number - 1] if 0 < number <= len(self._frames) else None


def is_runtime_frame(address: int) -> bool:
    """Whether an address is artificial: it stands for a ``RuntimeFrame``."""
    return FIRST_ADDRESS < address <= FIRST_ADDRESS + _MOST + 1
