from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import Architecture
from tracelloc.files.cfi.walk import Walk

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Rule = tuple[int, int, bytes]

MASK: int
UNDEFINED: int
SAME: int
OFFSET: int
VAL_OFFSET: int
REGISTER: int
EXPRESSION: int
VAL_EXPRESSION: int

def reason_row(reason: int) -> int: ...

class RuleSet:
    cfa_register: int
    cfa_offset: int
    cfa_expression: bytes
    registers: dict[int, Rule]
    return_register: int
    is_signal: bool
    is_fallback: bool
    is_signed: bool
    def __init__(
        self,
        cfa_register: int,
        cfa_offset: int,
        cfa_expression: bytes = ...,
        registers: Mapping[int, Rule] | None = ...,
        return_register: int = ...,
        *,
        is_signal: bool = ...,
        is_fallback: bool = ...,
        architecture: Architecture = ...,
    ) -> None: ...
    def row(self, address: int) -> int: ...

class Entries:
    data: bytes
    address: int
    def __init__(
        self, data: bytes, address: int, *, is_eh: bool, architecture: Architecture = ...
    ) -> None: ...
    def fde(self, offset: int) -> tuple[int, int]: ...
    def scan(self, starts: U64, offsets: I64) -> int: ...
    def rules(self, offset: int, address: int) -> RuleSet | None: ...
    def rows(self, starts: U64, offsets: I64, wanted: U64, found: U64) -> None: ...

def read_header(header: bytes, address: int) -> tuple[int, int, int] | None: ...
def find_calls(
    code: bytes, address: int, start: int, end: int, found: U64, architecture: Architecture = ...
) -> int: ...

class StackCopy:
    address: int
    data: bytes
    def __init__(self, address: int, data: bytes, holes: int = ...) -> None: ...

def unwind(
    registers: Mapping[int, int],
    stack: StackCopy,
    look_up: Callable[[int], RuleSet | None],
    *,
    limit: int = ...,
    is_interrupted: bool = ...,
    architecture: Architecture = ...,
) -> Walk: ...
