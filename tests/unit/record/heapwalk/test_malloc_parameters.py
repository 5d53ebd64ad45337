"""Which words near the main arena are glibc's parameters."""

import numpy as np
import pytest

from tracelloc.record.heapwalk.mallocstate import ArenaState, find_parameters
from tracelloc.record.process.regions import Region

PAGE = 4096
ARENA, HEAP = 0x7F0000002000, 0x1000_0000
DEFAULTS = 64, 1032, 7  # tcache_bins, tcache_max_bytes, tcache_count
# An entry of libc's dynamic section, DT_VERDEFNUM, and the next one's tag and value.
DYNAMIC = 0x6FFFFFFD, 39, 0x1E, 16


class Words:
    """The memory around the arena, with some words in it."""

    def __init__(self, *places: tuple[int, tuple[int, ...]]) -> None:
        self._words = np.zeros(3 * PAGE // 8, np.uint64)
        for at, words in places:
            self._words[at : at + len(words)] = words

    def words(self, address: int, size_bytes: int) -> np.ndarray:
        assert (address, size_bytes) == (ARENA - PAGE, 3 * PAGE)
        return self._words


@pytest.mark.parametrize(
    ("parameters", "base"),
    [
        ((HEAP, *DEFAULTS), HEAP),
        # Others have requested memory before malloc did, and a tunable sets the largest size.
        ((HEAP + 0x8000, 8, 128, 7), HEAP + 0x8000),
    ],
)
def test_parameters_are_those_that_fit_the_heap_best(
    parameters: tuple[int, ...], base: int
) -> None:
    arena = ArenaState(ARENA, ARENA + 112, 0, ARENA, 1 << 31, True)
    heap = Region(HEAP, HEAP + (2 << 30), "rw-p", 0, 0, "[heap]")
    reader = Words((40, DYNAMIC), (300, parameters))
    found = find_parameters(reader, arena, [heap])
    assert found.sbrk_base == base
    assert found.mapped_sum_at == ARENA - PAGE + 8 * 298
    assert find_parameters(Words(), arena, [heap]) is None
