from typing import Final

import numpy as np
import numpy.typing as npt

FIELDS: Final[dict[str, int]]
MAGIC: Final[int]
AT_ROWS: Final[int]
AT_KNOWN: Final[int]
AT_RECORDS: Final[int]
AT_GAPS: Final[int]
AT_FILTER: Final[int]
AT_RINGS: Final[int]
RING_BYTES: Final[int]
GAPS: Final[int]
RECORD_BYTES: Final[int]
FILE_BYTES: Final[int]
RINGS: Final[int]
ROW_SETS: Final[int]
MOST_FRAMES: Final[int]
KIND_SHIFT: Final[int]
RECORD_PAD: Final[int]
RECORD_STACK: Final[int]
RECORD_MISS: Final[int]
CLOCK_TSC: Final[int]
CLOCK_COUNTER: Final[int]
DEEP_BIND: Final[int]
NAMESPACE: Final[int]
NO_CLOCK: Final[int]
FILTERED: Final[int]
NO_ROOM: Final[int]
LOCKED: Final[int]
REFUSED: Final[int]
PRECEDED: Final[int]
CONFINED: Final[int]
LIMITED: Final[int]
READY: Final[int]
WITHDRAWN: Final[int]
VOUCHED: Final[int]
KEPT_FD: Final[int]

def ticks_per_second() -> float: ...
def fence() -> None: ...
def slots_of(ring: int) -> tuple[int, int]: ...

class AreaRings:
    damaged: int
    abandoned: int
    is_unfinished: bool
    fullest: float
    is_quiet: bool
    is_damaged: bool
    inside: int
    def __init__(self, area: memoryview, image: int, now_ns: int) -> None: ...
    def find_events(self, whole: bool, now_ns: int) -> tuple[int, int]: ...
    def merge(self, cut: int, now_ns: int, into: npt.NDArray[np.uint8]) -> int: ...
    def pass_barrier(self) -> None: ...
    def freeze(self) -> None: ...
    def owners(self) -> list[tuple[int, int]]: ...
    def release(self, ring: int) -> None: ...
