import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

def put_rows(
    sets: U64,
    addresses: U64,
    rows: U64,
    tag: int,
    hashed: int,
    is_free: npt.NDArray[np.uint8],
    rows_under: npt.NDArray[np.int64],
    victim: int,
) -> int: ...
def keep_rows(sets: U64, tag: int, starts: U64, ends: U64) -> int: ...
