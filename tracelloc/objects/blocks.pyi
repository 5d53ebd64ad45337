import numpy as np
import numpy.typing as npt

class Addresses:
    count: int
    def add(self, addresses: npt.NDArray[np.uint64], first: int) -> None: ...
    def fresh(
        self,
        pointers: npt.NDArray[np.uint64],
        pools: Addresses,
        found: npt.NDArray[np.uint64],
    ) -> int: ...
    def look_up(
        self, addresses: npt.NDArray[np.uint64], numbers: npt.NDArray[np.int64]
    ) -> None: ...
    def locate(self, addresses: npt.NDArray[np.uint64], at: npt.NDArray[np.int64]) -> None: ...

def find_blocks(
    words: npt.NDArray[np.uint64],
    pools: npt.NDArray[np.uint64],
    at: npt.NDArray[np.int64],
    size_bytes: npt.NDArray[np.uint64],
) -> tuple[int, int]: ...
def find_objects(
    words: npt.NDArray[np.uint64],
    blocks: npt.NDArray[np.int64],
    size_bytes: npt.NDArray[np.uint64],
    types: Addresses,
    before: npt.NDArray[np.int8],
    row: npt.NDArray[np.int64],
    at: npt.NDArray[np.int64],
    type_: npt.NDArray[np.int32],
) -> int: ...
