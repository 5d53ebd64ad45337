import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]

def components(begins: U32, targets: U32, component: U32) -> int: ...
def led_to(begins: U32, targets: U32, component: U32, into: npt.NDArray[np.uint8]) -> None: ...
def gather(
    begins: U32, targets: U32, firsts: U32, kinds: U32, structure: U32, about: U32
) -> None: ...
