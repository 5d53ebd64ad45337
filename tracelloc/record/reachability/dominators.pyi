import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

def dominate(
    begins: U32, targets: U32, top: int, borrowers: U8, number: U32, order: U32, dominator: U32
) -> int: ...
def renumber(
    begins: U32,
    targets: U32,
    borrowers: U8,
    number: U32,
    order: U32,
    new_begins: U32,
    new_targets: U32,
) -> int: ...
def sum_up(dominator: U32, values: U32 | U64) -> None: ...
def place(dominator: U32, counts: U32 | U64, places: U32) -> None: ...
def heirs(dominator: U32, heir: U32) -> None: ...
