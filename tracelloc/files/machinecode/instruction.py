"""Instructions and probe offsets, in a form that does not depend on the processor."""

from enum import Enum
from typing import Final, NamedTuple

from tracelloc.dataclass import dataclass

# Most bytes of a function to analyze; a longer one is probed at its entry.
MOST_CODE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ProbeOffset:
    """Where to put a probe in a function, and whether the kernel single-steps there."""

    offset: int  # Bytes from the function's entry
    is_single_stepped: bool  # Whether the kernel can't emulate the instruction there


class CodeFlow(Enum):
    """How execution continues after an instruction."""

    NEXT = "next"
    CALL = "call"
    RETURN = "return"
    JUMP = "jump"
    BRANCH = "branch"  # A conditional jump
    TRAP = "trap"  # The end of the program, or of this path


class Instruction(NamedTuple):
    """One decoded instruction."""

    address: int
    size: int  # In bytes
    flow: CodeFlow
    target: int | None  # Address to which a direct call or jump leads; None otherwise
    text: str  # Disassembly, for display
    can_have_probe: bool = True
