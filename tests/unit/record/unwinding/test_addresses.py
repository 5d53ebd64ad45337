"""Sets of addresses, against Python's."""

import random

import numpy as np

from tracelloc.record.unwinding.addresses import AddressSet


def test_many_addresses() -> None:
    dice = random.Random(1)
    addresses, plain = AddressSet(), set()
    for _ in range(200):
        some = [dice.choice([0, 16, dice.randrange(1 << 47)]) for _ in range(dice.randrange(200))]
        new = np.empty(len(some), np.uint64)
        count = addresses.add(np.array(some, np.uint64), new)
        # Each once, and in the order in which they came.
        assert new[:count].tolist() == [*dict.fromkeys(a for a in some if a and a not in plain)]
        plain.update(a for a in some if a)
        assert len(addresses) == len(plain)
    every = np.empty(len(addresses), np.uint64)
    addresses.copy(every)
    assert sorted(every.tolist()) == sorted(plain)
    assert len(plain) > 5000
