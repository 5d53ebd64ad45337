import numpy as np
import numpy.typing as npt

class Marks:
    edges_left_out: int
    def __init__(
        self, starts: npt.NDArray[np.uint64], ends: npt.NDArray[np.uint64], most_edges: int
    ) -> None: ...
    def scan(self, words: npt.NDArray[np.uint64], address: int) -> None: ...
    def finish(self, reachable: npt.NDArray[np.uint8]) -> None: ...
