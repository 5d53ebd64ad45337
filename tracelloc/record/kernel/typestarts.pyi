import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

def find_starts(words: npt.NDArray[np.uint32], fixed: I64, each: I64, starts: I64) -> int: ...
