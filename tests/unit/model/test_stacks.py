"""Call stacks that are asked about by their frames."""

import numpy as np

from tracelloc.heap.stacks import Stacks
from tracelloc.model.stacks import StackFlag


def test_stacks_that_pass_through_memory() -> None:
    stacks = Stacks()
    stacks.indices(np.array([7], np.uint64))  # its frames are not known yet
    for number, frames in enumerate([(16, 39), (16, 20, 99), (), (60,), (40, 59)]):
        stacks.add(number + 8, frames, StackFlag(0))
    edges = np.array([20, 30, 50, 60], np.uint64)
    assert stacks.pass_through(edges).tolist() == [
        False, False, False, True, False, False, True
    ]  # fmt: skip
    assert not stacks.pass_through(edges[:0]).any()
