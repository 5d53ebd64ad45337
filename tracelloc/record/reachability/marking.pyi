import numpy as np
import numpy.typing as npt

class Marks:
    edge_count: int
    edges_left_out: int
    def __init__(
        self,
        starts: npt.NDArray[np.uint64],
        ends: npt.NDArray[np.uint64],
        most_edges: int,
        address_bits: int = ...,
    ) -> None: ...
    def scan(self, words: npt.NDArray[np.uint64], address: int, are_roots: bool = True) -> None: ...
    def scan_packed(
        self, packed: npt.NDArray[np.uint64], address: int, are_roots: bool = True
    ) -> None: ...
    def finish(self) -> npt.NDArray[np.uint8]: ...
    def links_among(
        self,
        numbers: npt.NDArray[np.uint32],
        begins: npt.NDArray[np.uint32],
        targets: npt.NDArray[np.uint32],
    ) -> int: ...

def place_shift(address_bits: int = ...) -> int: ...
def set_bits(
    starts: npt.NDArray[np.uint64], ends: npt.NDArray[np.uint64], bits: npt.NDArray[np.uint8]
) -> None: ...
def select_words(
    words: npt.NDArray[np.uint64],
    spans: npt.NDArray[np.uint64],
    bits: npt.NDArray[np.uint8],
    packed: npt.NDArray[np.uint64],
    address_bits: int = ...,
) -> int: ...
