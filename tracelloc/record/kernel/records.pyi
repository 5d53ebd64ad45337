from typing import Any

import numpy as np
import numpy.typing as npt

def copy_events(slots: npt.NDArray[np.uint8], start: int, into: npt.NDArray[np.uint8]) -> int: ...
def sort_events(
    records: npt.NDArray[np.uint8], ordered: npt.NDArray[np.uint8]
) -> list[tuple[int, int]]: ...
def find_fork(records: npt.NDArray[Any], at: int) -> int: ...

class StackRecords:
    end: int
    images: list[tuple[int, int, int]]
    def __init__(self, data: memoryview, size: int, start: int, end: int) -> None: ...
    def copy(
        self,
        ids: npt.NDArray[np.uint64],
        flags: npt.NDArray[np.uint16],
        depths: npt.NDArray[np.int64],
        frames: npt.NDArray[np.uint64],
    ) -> None: ...
