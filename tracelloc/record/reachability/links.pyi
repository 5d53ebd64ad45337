import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

NO_ROOT: int
BY_ADDRESS: int
MARKED: int

class Links:
    edge_count: int
    root_count: int
    left_out: int
    def __init__(
        self, starts: U64, ends: U64, most: int, address_bits: int = ..., growth: U64 | None = ...
    ) -> None: ...  # fmt: skip
    def scan(self, words: U64, address: int, root: int) -> None: ...
    def roots(self, origins: U64, targets: U64) -> None: ...
    def graph(self, sources: U32, others: U32, begins: U32, targets: U32) -> None: ...
