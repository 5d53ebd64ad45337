import numpy as np
import numpy.typing as npt

class Addresses:
    count: int
    def add(self, addresses: npt.NDArray[np.uint64], first: int) -> None: ...
    def fresh(
        self, pointers: npt.NDArray[np.uint64], pools: Addresses, found: npt.NDArray[np.uint64]
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

class References:
    def __init__(
        self,
        words: npt.NDArray[np.uint64],
        pool_words: int,
        pools: Addresses,
        piece_starts: npt.NDArray[np.uint64],
        piece_ends: npt.NDArray[np.uint64],
        piece_at: npt.NDArray[np.int64],
        kinds: npt.NDArray[np.uint8],
        limits: npt.NDArray[np.uint16],
    ) -> None: ...
    def begin(self, word: int) -> int: ...
    def size(self, start: int) -> int: ...
    def target(self, address: int) -> int: ...
    def trace(
        self, parents: npt.NDArray[np.uint32], queue: npt.NDArray[np.uint32], done: int, end: int
    ) -> int: ...
    def referrers(
        self,
        starts: npt.NDArray[np.int64],
        parents: npt.NDArray[np.uint32],
        counts: npt.NDArray[np.uint32],
        last: npt.NDArray[np.uint32],
    ) -> None: ...
