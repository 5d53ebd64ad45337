"""What placement and code paths know of an instruction, whatever the processor."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from tracelloc.dataclass import dataclass

# Most bytes of a function to analyze; a longer one is probed at its entry.
MOST_CODE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ProbeOffset:
    """Where to put a probe, relative to the function's entry."""

    offset: int  # In bytes
    is_single_stepped: bool


class CodeFlow(Enum):
    """How execution continues."""

    NEXT = "next"
    CALL = "call"
    RETURN = "return"
    JUMP = "jump"
    BRANCH = "branch"  # A conditional jump
    TRAP = "trap"  # The end of the program, or of this path


class Instruction(NamedTuple):
    """One instruction of a path."""

    address: int
    size: int  # In bytes
    flow: CodeFlow
    target: int | None  # The target of a direct call or jump
    text: str  # For people
    can_have_probe: bool = True
