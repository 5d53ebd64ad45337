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
def find_common(values: U64, others: U64, found: npt.NDArray[np.uint8]) -> None: ...

MOST_PAGE_BLOCKS: int

class ArenaTally:
    counts: list[int]
    sums: list[int]
    resident: list[int]
    trimmable_bytes: int
    def __init__(self, starts: U64, ends: U64, trims_top: bool) -> None: ...
    def add(self, entries: U64, blocks: U64, sizes: U64, kept: npt.NDArray[np.float64]) -> int: ...
    def finish(self, blocks: U64, sizes: U64, kept: npt.NDArray[np.float64]) -> int: ...

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
