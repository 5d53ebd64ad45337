import numpy as np
import numpy.typing as npt

class StackIds:
    def get(self, stack_id: int) -> int: ...
    def set(self, stack_id: int, index: int) -> None: ...
    def add(
        self,
        ids: npt.NDArray[np.uint64],
        indices: npt.NDArray[np.int64],
        fresh: npt.NDArray[np.uint8],
        index: int,
    ) -> None: ...
