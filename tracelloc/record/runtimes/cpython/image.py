"""The memory of all objects and of their tables, combined for following references.

Words of pools come first, then those of pieces outside pools: large objects, the tables of
lists, dictionaries, sets and deques, and the frames of running functions.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass
from tracelloc.record.process.memory import U64, Mask
from tracelloc.record.runtimes.cpython.blocks import References
from tracelloc.record.runtimes.cpython.census import FoundObjects
from tracelloc.record.runtimes.cpython.frames import RunningFrame
from tracelloc.record.runtimes.cpython.pools import I64, POOL_BYTES
from tracelloc.record.runtimes.cpython.types import (
    DICT,
    HEAP_TYPE,
    KEYS_BYTES,
    LIST,
    MOST_ITEMS,
    TABLE,
    UNCOUNTED,
    own_bytes,
    read_keys,
)

MOST_BYTES: Final = 1 << 30  # Most bytes of pieces that are read; further pieces are counted
_MOST_PIECE_BYTES: Final = 1 << 28
_INT: Final = 1 << 24
_LEAVES: Final = _INT | 1 << 27 | 1 << 28
# Py_TPFLAGS_LONG_SUBCLASS, …_BYTES_SUBCLASS, …_UNICODE_SUBCLASS, and …_HAVE_GC. Objects of the
# first three refer to nothing, unless they have attributes: the collector tracks such ones.
_HAVE_GC: Final = 1 << 14
_TYPE: Final = 1 << 31  # Py_TPFLAGS_TYPE_SUBCLASS
_TAGGED_INTS: Final = 3, 12  # The first version whose integers have a tag beside their size
_MOST_COUNT: Final = np.uint64(1 << 12)  # More items than an object in a pool can have
_SET_MASK, _SET_TABLE = 4, 5  # Words of a set: its entries - 1, and the address of its table
# Words of a deque: its first block and its last one, and the positions of its first item and its
# last one in them. In a block, items follow the address of the previous block; its last word is the
# address of the next one (Modules/_collectionsmodule.c).
_DEQUE_LEFT, _DEQUE_RIGHT, _DEQUE_FIRST, _DEQUE_LAST, _DEQUE_BLOCK_BYTES = 3, 4, 5, 6, 66 * 8
_DEQUE_ITEMS: Final = 64  # Items of a block
_MOST_DEQUE_ROUNDS: Final = 1 << 15  # Most blocks of one deque that are followed
_MOST_DEQUE_BLOCKS: Final = MOST_BYTES // _DEQUE_BLOCK_BYTES  # Most blocks of all deques
_SLACK_WORDS: Final = 16  # Zeros behind the image: reading a truncated object stays inside
_POOL_WORDS: Final = POOL_BYTES // 8


_MOST_BASES: Final = 16
_MANAGED_DICT: Final = 1 << 4
_MOST_VALUES: Final = 64

_STATIC_TYPE_BYTES: Final = 400
_INLINE_VALUES: Final = 1 << 2  # Py_TPFLAGS_INLINE_VALUES, 3.13 on: attributes follow the object


class Kind(IntEnum):
    """What begins at a pair of words of the image, for ``blocks.References``."""

    FREE = 0
    TABLE = 1
    OBJECT = 2
    WEAK_REFERENCE = 5
    LEAF = 8
    CLASS = 9
    CODE = 12


@dataclass(frozen=True, slots=True)
class _OtherMemory:
    """Memory outside pools: large objects and tables."""

    rows: U64  # (address, bytes) of each piece
    type: I64  # Type numbers of the objects; -1: a table


class HeapImage:
    """A copy of all memory that may refer to Python objects. Raises TargetError, PrivilegeError."""

    def __init__(
        self, found: FoundObjects, frames: Sequence[RunningFrame], version: tuple[int, int]
    ) -> None:
        """``version``: of the interpreter, such as (3, 11)."""
        self.found = found
        self._has_tagged_ints = version >= _TAGGED_INTS
        self.skipped_count = 0  # Tables that exceeded the size limit, or could not be read
        self._is_weak = np.array([self._is_reference(n) for n in range(len(found.types.known))])
        blocks = found.blocks
        pieces = self._pieces(frames)
        rounded = (pieces.rows[:, 1].astype(np.int64) // 8 + 1) // 2 * 2
        self.pool_words = len(blocks.addresses) * _POOL_WORDS
        self.piece_at = self.pool_words + np.cumsum(rounded) - rounded
        self.words = np.zeros(self.pool_words + int(rounded.sum()) + _SLACK_WORDS, np.uint64)
        self.words[: self.pool_words] = blocks.words[: self.pool_words]
        was_read = self._read(pieces.rows)
        self._clear_stale_items(pieces.rows)
        self.piece_type = pieces.type
        self.piece_starts = pieces.rows[:, 0].copy()
        self.piece_ends = self.piece_starts + pieces.rows[:, 1]
        self.kinds = self._find_kinds(was_read)
        self.references = References(
            self.words, self.pool_words, blocks.pools, self.piece_starts, self.piece_ends,
            self.piece_at, self.kinds, self._find_limits(),
        )  # fmt: skip

    def _is_reference(self, number: int | None) -> bool:
        for _ in range(_MOST_BASES):
            if number is None:
                return False
            if self.found.names.name_of(number).startswith("weakref."):
                return True
            number = self.found.types.number_of_type(self.found.types.known[number].base)
        return False

    def _read(self, rows: U64) -> Mask:
        # They are read back to back; in the image, they begin at multiples of 16 bytes.
        into = np.empty(int(rows[:, 1].sum()) // 8, np.uint64)
        sizes = rows[:, 1].astype(np.int64) // 8
        at = np.cumsum(sizes) - sizes
        was_read = self.found.memory.read_pieces(rows, into, at)
        for start, size, place in zip(
            at.tolist(), sizes.tolist(), self.piece_at.tolist(), strict=True
        ):
            self.words[place : place + size] = into[start : start + size]
        self.skipped_count += int(np.count_nonzero(~was_read))
        return was_read

    def _clear_stale_items(self, rows: U64) -> None:
        """Clears items that deques have dropped: they stay in the first and last blocks."""
        for word, at in ((_DEQUE_LEFT, _DEQUE_FIRST), (_DEQUE_RIGHT, _DEQUE_LAST)):
            pieces = np.searchsorted(rows[:, 0], self._ends_of_deques[:, word])
            for piece, ends in zip(pieces.tolist(), self._ends_of_deques.tolist(), strict=True):
                if piece < len(rows) and rows[piece, 0] == ends[word] and ends[at] < _DEQUE_ITEMS:
                    first = int(self.piece_at[piece]) + 1
                    stale = (0, ends[at]) if word == _DEQUE_LEFT else (ends[at] + 1, _DEQUE_ITEMS)
                    self.words[first + stale[0] : first + stale[1]] = 0

    def _find_kinds(self, was_read: Mask) -> npt.NDArray[np.uint8]:
        found = self.found
        objects, at = found.objects, found.blocks.at
        kinds = np.zeros(len(self.words) // 2 + 1, np.uint8)
        kinds[at >> 1] = Kind.TABLE
        starts = at[objects.block]
        ahead = (objects.at - starts) // 2
        kinds[starts >> 1] = self._object_kinds(objects.type.astype(np.int64), ahead)
        large = self.piece_type >= 0
        kinds[self.piece_at >> 1] = Kind.TABLE
        of = self.piece_type[large]
        kinds[self.piece_at[large] >> 1] = self._object_kinds(of, self._words_before()[large] // 2)
        kinds[self.piece_at[~was_read] >> 1] = Kind.FREE
        return kinds

    def _limit_values(self, limits: npt.NDArray[np.uint16]) -> None:
        """Excludes unused attribute values that 3.11 and 3.12 keep beside instances.

        Bytes before the values tell which of them were set, how many, and the size of these bytes
        (``PyDictValues``, Objects/dictobject.c).
        """
        found = self.found
        at = found.objects.at[found.types.with_flag(_MANAGED_DICT)[found.objects.type]]
        pointers = found.blocks.words[np.concatenate([at - 4, at - 3])]
        # In 3.12, the pointer is marked: it is one less than the address.
        values = found.blocks.locate((pointers + np.uint64(7)) & ~np.uint64(7))
        values = values[values >= 0]
        first = values // _POOL_WORDS * _POOL_WORDS
        size = 2 * ((self.words[first + 4] >> np.uint64(32)).astype(np.int64) + 1)
        starts = first + 6 + (values - first - 6) // size * size
        content = self.words.view(np.uint8)
        good = (starts >= first + 6) & (content[8 * values - 1] == 8 * (values - starts))
        good &= self.kinds[np.maximum(starts, 0) >> 1] == Kind.TABLE
        values, starts = values[good], starts[good]
        counts = content[8 * values - 2].astype(np.int64)
        used = np.zeros(len(values), np.int64)
        for number in range(min(int(counts.max(initial=0)), _MOST_VALUES)):
            places = content[8 * values - 3 - number].astype(np.int64) + 1
            used = np.where(number < counts, np.maximum(used, places), used)
        limits[starts >> 1] = values - starts + used
        # The prefix has room for more bytes than were written.
        for number in range(int((values - starts).max(initial=0))):
            self.words[starts[starts + number < values] + number] = 0

    def _words_before(self) -> I64:
        """Returns how many words precede the object in each piece; 0 for static types."""
        known = self.found.types.column("words_before").astype(np.int64)
        static = self.piece_ends - self.piece_starts == np.uint64(_STATIC_TYPE_BYTES)
        return np.where(static, 0, known[np.maximum(self.piece_type, 0)])

    def _find_limits(self) -> npt.NDArray[np.uint16]:
        """Returns the used words of each block, if fewer than it has: the rest is stale."""
        found, known = self.found, self.found.types
        limits = np.zeros(len(self.kinds), np.uint16)
        figures = "base_bytes", "item_bytes", "words_before"
        base, item, before = (known.column(figure).astype(np.int64) for figure in figures)
        # Other types with items, as the results of `os.stat`, have more than their size says.
        of, at = found.objects.type, found.objects.at
        is_int = known.with_flag(_INT)
        sized = (
            ~known.with_flag(_INLINE_VALUES)
            & (base < 1024)
            & ((item == 0) | is_int | found.names.named("tuple"))
        )
        counts = np.minimum(np.where(is_int[of], self._digits(at), self.words[at + 2]), _MOST_COUNT)
        used = before[of] + (base[of] + item[of] * counts.astype(np.int64) + 7) // 8
        limits[found.blocks.at[found.objects.block] >> 1] = np.where(sized[of], used, 0)
        at = found.blocks.locate(self._tables[:, 0].copy())
        within = (at >= 0) & (self._tables[:, 1] <= 512)
        places = at[within] >> 1
        tables = self.kinds[places] == Kind.TABLE
        self._limit_values(limits)
        limits[places[tables]] = np.maximum(self._tables[within, 1][tables] // np.uint64(8), 1)
        return limits

    def _digits(self, at: I64) -> U64:
        """Returns the number of digits of integers (``struct _longobject``), by their positions."""
        if self._has_tagged_ints:
            return self.words[at + 2] >> np.uint64(3)
        return np.abs(self.words[at + 2].view(np.int64)).view(np.uint64)

    def _object_kinds(self, of: I64, ahead: I64) -> I64:
        types = self.found.types
        kinds = np.where(self._is_weak[of], int(Kind.WEAK_REFERENCE), int(Kind.OBJECT)) + ahead
        kinds = np.where(types.with_flag(_TYPE)[of], int(Kind.CLASS) + ahead, kinds)
        kinds = np.where(self.found.names.named("code")[of], int(Kind.CODE), kinds)
        is_leaf = types.with_flag(_LEAVES) & ~types.with_flag(_HAVE_GC)
        return np.where(is_leaf[of], int(Kind.LEAF), kinds)

    def _pieces(self, frames: Sequence[RunningFrame]) -> _OtherMemory:
        found = self.found
        large = found.large
        before = found.types.column("words_before")[large.type] * np.uint64(8)
        of = np.concatenate([found.objects.type, large.type]).astype(np.int64)
        small_heads = found.blocks.words[found.objects.at[:, None] + np.arange(8)]
        head = np.concatenate([small_heads, found.memory.read(large.addresses, 64)[0]])
        self._refresh(of, head)
        tables = np.concatenate([self._lists(of, head), self._dicts(of, head),
                                 self._sets(of, head), self._deques(of, head)])  # fmt: skip
        self._tables = tables
        tables = tables[(found.blocks.locate(tables[:, 0].copy()) < 0)]
        own = np.array([(f.locals_address, f.size_bytes) for f in frames], np.uint64)
        large_bytes = own_bytes(found.types, found.names.named(*UNCOUNTED), large.type, large.words)
        objects = np.stack([large.addresses - before, large_bytes], axis=1)
        static, of_static = self._static_types()
        rows = np.concatenate([objects, static, tables, own.reshape(-1, 2)])
        types = np.full(len(rows), -1)
        types[: len(objects) + len(static)] = np.concatenate([large.type, of_static])
        # Each address once, ascending, with the larger piece of those that begin there.
        rows[:, 1] = (
            np.minimum(rows[:, 1], np.uint64(_MOST_PIECE_BYTES)) // np.uint64(8) * np.uint64(8)
        )
        good = (rows[:, 1] >= 8) & (rows[:, 0] < np.uint64(native().address_end))
        rows, types = rows[good], types[good]
        order = np.lexsort((-types, rows[:, 0]))
        rows, types = rows[order], types[order]
        first = np.concatenate([[True], rows[1:, 0] != rows[:-1, 0]])
        within = np.cumsum(rows[:, 1]) <= MOST_BYTES
        self.skipped_count += int(np.count_nonzero(first & ~within))
        kept = first & within
        return _OtherMemory(rows[kept], types[kept])

    def _static_types(self) -> tuple[U64, I64]:
        """Returns (address, bytes) of static types, and the numbers of their types."""
        types = self.found.types
        numbers = [n for n, one in enumerate(types.known) if not one.flags & HEAP_TYPE]
        of = [types.number_of_type(types.known[number].type) for number in numbers]
        rows = [(types.address(number), _STATIC_TYPE_BYTES) for number in numbers]
        return np.array(rows, np.uint64).reshape(-1, 2), np.array(
            [-1 if n is None else n for n in of]
        )

    def _refresh(self, of: I64, head: U64) -> None:
        """Reads containers with large tables again, as tables may have moved since the census."""
        found = self.found
        count = len(found.objects.type)
        with_table = found.types.with_flag(LIST | DICT)[of[:count]]
        pointers = head[:count, TABLE].copy()
        lists = found.types.with_flag(LIST)[of[:count]]
        pointers[lists] = head[:count, 3][lists]
        some = np.flatnonzero(with_table & (pointers != 0))
        some = some[found.blocks.locate(pointers[some]) < 0]
        at = found.objects.at[some]
        fresh, was_read = found.memory.read(found.blocks.addresses_of(at), 64)
        # The address must still hold the same kind of object.
        same = was_read & (fresh[:, 1] == head[some, 1]) & (fresh[:, 0] != 0)
        head[some[same]] = fresh[same]
        # Sizes and pointers to tables, from which references are followed.
        found.blocks.words[at[same, None] + np.arange(2, 6)] = fresh[same, 2:6]

    def _lists(self, of: I64, head: U64) -> U64:
        lists = head[self.found.types.with_flag(LIST)[of]]
        items = np.where(lists[:, 2] < MOST_ITEMS, lists[:, 2], np.uint64(0))
        return _rows(lists[:, 3].copy(), items * np.uint64(8))

    def _dicts(self, of: I64, head: U64) -> U64:
        keys = head[self.found.types.with_flag(DICT)[of]][:, TABLE].copy()
        headers = read_keys(self.found.memory, self.found.blocks, keys)
        index_bits = headers[:, 1] >> np.uint64(8) & np.uint64(0xFF)
        kind = headers[:, 1] >> np.uint64(16) & np.uint64(0xFF)
        entries = headers[:, 2] + headers[:, 3]
        sane = (index_bits < 40) & (entries < MOST_ITEMS) & (entries > 0) & (kind < 3)
        each = np.where(kind == 0, np.uint64(24), np.uint64(16))
        used = np.where(sane, headers[:, 3], np.uint64(0))  # The space behind them was never used
        sizes = np.uint64(KEYS_BYTES) + (np.uint64(1) << (index_bits & np.uint64(63))) + used * each
        return _rows(keys, np.where(sane, sizes, np.uint64(0)))

    def _sets(self, of: I64, head: U64) -> U64:
        sets = head[self.found.names.named("set", "frozenset")[of]]
        entries = np.where(sets[:, _SET_MASK] < MOST_ITEMS, sets[:, _SET_MASK], np.uint64(0))
        return _rows(sets[:, _SET_TABLE].copy(), (entries + np.uint64(1)) * np.uint64(16))

    def _deques(self, of: I64, head: U64) -> U64:
        deques = head[self.found.names.named("collections.deque")[of]]
        self._ends_of_deques = deques
        left, right = deques[:, _DEQUE_LEFT].copy(), deques[:, _DEQUE_RIGHT].copy()
        found, room = [np.empty((0, 2), np.uint64)], _MOST_DEQUE_BLOCKS
        for _ in range(_MOST_DEQUE_ROUNDS):
            if not 0 < len(left) <= room:
                break
            room -= len(left)
            found.append(_rows(left, np.full(len(left), _DEQUE_BLOCK_BYTES, np.uint64)))
            more = left != right
            left, right = left[more], right[more]
            blocks, was_read = self.found.memory.read(left, _DEQUE_BLOCK_BYTES)
            left, right = blocks[was_read, -1].copy(), right[was_read]
        self.skipped_count += len(left)
        return np.concatenate(found)

    def address(self, word: int) -> int:
        if word < self.pool_words:
            return int(self.found.blocks.addresses[word // _POOL_WORDS]) + word % _POOL_WORDS * 8
        piece = int(np.searchsorted(self.piece_at, word, side="right")) - 1
        return int(self.piece_starts[piece]) + 8 * (word - int(self.piece_at[piece]))

    def object_in(self, start: int) -> tuple[int, int] | None:
        """Returns (first word, number of the type) of the object in a block; None for a table."""
        if start < self.pool_words:
            at = self.found.objects.at
            place = int(np.searchsorted(at, start))
            if place == len(at) or self.references.begin(int(at[place])) != start:
                return None
            return int(at[place]), int(self.found.objects.type[place])
        piece = int(np.searchsorted(self.piece_at, start, side="right")) - 1
        number = int(self.piece_type[piece])
        if number < 0:
            return None
        return start + int(self._words_before()[piece]), number


def _rows(addresses: U64, size_bytes: U64) -> U64:
    there = (addresses != 0) & (size_bytes != 0)
    return np.stack([addresses[there], size_bytes[there]], axis=1)
