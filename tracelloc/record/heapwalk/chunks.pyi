import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

def follow_chunks(
    words: U64, base: int, at: int, before: int, end: int, entries: U64, firsts: U64
) -> tuple[int, int, int, bool]: ...
def in_use_blocks(
    entries: U64, offset: int, starts: U64, reaches: U64, overheads: npt.NDArray[np.uint8]
) -> int: ...
def blocks_between(
    entries: U64, least_bytes: int, most_bytes: int, rows: npt.NDArray[np.intp]
) -> int: ...
def words_within(words: U64, ranges: U64, rows: npt.NDArray[np.intp]) -> int: ...

class ListReader:
    absent: int
    def __init__(self, memory: int, pagemap: int) -> None: ...
    def forget(self) -> None: ...
    def follow(
        self,
        user: int,
        size_bytes: int,
        is_mangled: bool,
        to_user: int,
        lowest: int,
        highest: int,
        found: U64,
    ) -> tuple[int, bool]: ...
