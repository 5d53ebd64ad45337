"""Words that may be pointers, kept while a heap is walked, so that it need not be read again.

Which blocks there are is known only after the walk. Words are kept packed, see ``blockbits.pyx``.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.process.memory import U64, RemoteMemory
from tracelloc.record.process.regions import Region, read_regions
from tracelloc.record.reachability.blockbits import place_shift, select_words, set_bits
from tracelloc.record.sources.preloaded.sharedarea import AREA_NAME

# Names of mappings that are shared anonymous memory (mm/shmem.c, ipc/shm.c).
_SHARED_MEMORY = "/dev/zero", "/memfd:", "/dev/shm/", "/SYSV"  # noqa: S108 - names in maps


class MemoryArea(NamedTuple):
    """Contiguous memory that may contain pointers, from a start address to an end."""

    start: int
    end: int
    is_code: bool  # Whether it holds code without a file, in which pointers need not be aligned


def searched_areas(maps_text: str) -> Iterator[MemoryArea]:
    """Yields the areas to search, from the text of ``/proc/PID/maps`` (proc_pid_maps(5))."""
    for region in read_regions(maps_text):
        is_shared_memory = region.path.startswith(_SHARED_MEMORY)
        if "r" not in region.rights or region.path.startswith(AREA_NAME):
            continue
        if region.path.startswith(("[v", "/dev/")) and not is_shared_memory:
            continue
        # Pages of a file that are not writable are those of the file.
        is_own = "p" in region.rights and ("w" in region.rights or not region.inode)
        if is_own or is_shared_memory:
            yield MemoryArea(region.start, region.end, "x" in region.rights)


_LEAST_BYTES: Final = 1 << 16  # Smaller pieces are read for other purposes, or again
_WORD_BITS: Final = 64
_LARGEST_WORD: Final = (1 << _WORD_BITS) - 1
_MOST_WORDS: Final = 1 << 24  # Most words that are kept: 128 MiB. Memory behind them is read again.
_SPARE_WORDS: Final = 256  # Room that packing needs beyond what it keeps
_FILTER_BYTES: Final = 1 << 20
_PLACE_SHIFT: Final = place_shift()
# Most bytes of a piece: a packed word has so many bits for its place. (8 MiB, or 4 MiB with
# addresses of 48 bits.)
_MOST_BYTES: Final = 8 << _WORD_BITS - _PLACE_SHIFT


class LoggedPiece(NamedTuple):
    """Contiguous memory whose possible pointers are kept."""

    start: int
    end: int
    words: U64  # The packed words, by address

    def part(self, start: int, end: int) -> U64:
        places = ((at - self.start) // 8 for at in (start, end))
        bounds = [min(place << _PLACE_SHIFT, _LARGEST_WORD) for place in places]
        first, last = np.searchsorted(self.words, np.array(bounds, np.uint64))
        return self.words[first:last]

    def addresses(self, words: U64) -> U64:
        return (words >> np.uint64(_PLACE_SHIFT) << np.uint64(3)) + np.uint64(self.start)


class WordLog:
    """Keeps words of the read memory that may point into blocks, as far as there is room."""

    def __init__(
        self, regions: list[Region], areas: list[MemoryArea], blocks: BlockRanges | None
    ) -> None:
        """``blocks``: keep words that point to these; None: to any blocks in these regions.
        ``areas``: memory in which pointers count. All arguments are sorted by address.
        """
        heaps = [region for region in regions if region.path == "[heap]"]
        others = [region for region in regions if region.is_anonymous]
        spans = [(some[0].start, some[-1].end) if some else (0, 0) for some in (heaps, others)]
        self._spans = np.array(spans, np.uint64)
        self._bits = np.zeros(0 if blocks is None else _FILTER_BYTES, np.uint8)
        if blocks is not None:
            set_bits(blocks.starts, blocks.reaches, self._bits)
        self._areas = [area for area in areas if not area.is_code]
        self._starts = [area.start for area in self._areas]
        self._room = np.empty(_MOST_WORDS, np.uint64)  # only what is used takes memory
        self.pieces: list[LoggedPiece] = []

    def add(self, words: U64, start: int) -> None:
        """Adds the words of contiguous memory, if it lies in one area."""
        end = start + words.nbytes
        at = bisect_right(self._starts, start) - 1
        if at < 0 or end > self._areas[at].end or not _LEAST_BYTES <= end - start <= _MOST_BYTES:
            return
        count = select_words(words, self._spans, self._bits, self._room)
        if count >= 0:
            self.pieces.append(LoggedPiece(start, end, self._room[:count]))
            self._room = self._room[count:]

    def pack(self, words: U64, start: int) -> LoggedPiece:
        """Packs the words of a piece of memory, without keeping them."""
        room = np.empty(len(words) + _SPARE_WORDS, np.uint64)
        count = select_words(words, self._spans, self._bits, room)
        return LoggedPiece(start, start + words.nbytes, room[:count])


class LoggingReader(PieceReader):
    """Reads memory for a walk, and keeps the possible pointers in it."""

    def __init__(self, memory: RemoteMemory, log: WordLog) -> None:
        super().__init__(memory)
        self._log = log

    def words(self, address: int, size_bytes: int, into: U64 | None = None) -> U64:
        found = super().words(address, size_bytes, into)
        self._log.add(found, address)
        return found
