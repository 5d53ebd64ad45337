"""Finds the objects among the blocks, and their types.

An object begins with a reference count and a pointer to its type (``struct _object``). The
collector's two words may precede it (types with ``HAVE_GC``), and before these two more, for a
dictionary and weak references (``PREHEADER``). No symbol is needed to recognize pointers to types:
a type's own type, or that one's, is ``type``, the only object that is of its own type. Layouts:
Include/cpython/object.h, Include/object.h.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.errors import TargetError
from tracelloc.record.process.memory import U64, Mask, RemoteMemory
from tracelloc.record.process.procfs import parse_maps
from tracelloc.record.runtimes.cpython.blocks import Addresses, find_objects
from tracelloc.record.runtimes.cpython.pools import I64, PoolBlocks

I32 = npt.NDArray[np.int32]

_TYPE_BYTES: Final = 272  # Bytes of a type object up to and including tp_dict
_FIELDS: Final = np.array([168, 8, 24, 264, 32, 40, 256]) // 8  # Words of `TypeObject`'s fields
_PREHEADER: Final = 1 << 3 | 1 << 4  # Py_TPFLAGS_MANAGED_WEAKREF (3.12 on), …_DICT (3.11 on)
_READY: Final = 1 << 12
HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: created at run time
_HAVE_GC: Final = 1 << 14
_TYPE_SUBCLASS: Final = 1 << 31
_FROZEN_DICT_BYTES: Final = 56
_MOST_METATYPES: Final = 4
_TYPE_WORDS: Final = (1, 3, 5)  # Words of a block that may point to the object's type


@dataclass(frozen=True, slots=True)
class Objects:
    """The Python objects among the blocks in use, in columns."""

    block: I64  # The rows of the objects' blocks in `PoolBlocks`
    at: I64  # Index in the words of `PoolBlocks` at which each object begins
    type: I32  # Numbers of the objects' types


class TypeObject(NamedTuple):
    """The fields of a Python type object (``PyTypeObject``) that tracelloc needs."""

    flags: int  # Py_TPFLAGS_…
    type: int  # The address of the type's own type
    name: int  # The address of the name, without the module if a class statement created it
    dictionary: int  # The address of the type's dictionary; 0: it is elsewhere
    base_bytes: int  # Size of an object without items
    item_bytes: int  # Size of each item; 0: objects of this type have none
    base: int  # The address of the base class

    @property
    def words_before(self) -> int:
        """Number of words that precede an object in its block: the collector's, and the like."""
        return 2 * bool(self.flags & _HAVE_GC) + 2 * bool(self.flags & _PREHEADER)


class Types:
    """Type objects of a process, by number. Each is read once, as types never move."""

    def __init__(self, memory: RemoteMemory) -> None:
        self.memory = memory
        self.known: list[TypeObject] = []  # All types, by number
        self._addresses: list[int] = []
        self.numbers = Addresses()  # By address; negative if that is not of a type
        self._by_address: dict[int, TypeObject] = {}
        self._root = 0  # The address of `type`; 0 if unknown yet

    def find_objects(self, blocks: PoolBlocks) -> Objects:
        """Finds the Python objects among blocks. Raises TargetError, PrivilegeError."""
        self.learn(blocks, np.concatenate([blocks.words[blocks.at + word] for word in _TYPE_WORDS]))
        if not self._root:
            raise TargetError(
                f"no Python objects were found in process {self.memory.process.pid}",
                hint="they are found in CPython 3.11 and newer, if it uses its own allocator",
            )
        rows = np.empty(len(blocks.at), np.int64)
        at, types = np.empty_like(rows), np.empty(len(rows), np.int32)
        before = self.column("words_before").astype(np.int8)
        count = find_objects(
            blocks.words, blocks.at, blocks.size_bytes, self.numbers, before, rows, at, types
        )
        return Objects(rows[:count].copy(), at[:count].copy(), types[:count].copy())

    def column(self, figure: str) -> U64:
        return np.array([getattr(known, figure) for known in self.known], np.uint64)

    def with_flag(self, flag: int) -> Mask:
        """Returns a mask of the types that have a flag (``Py_TPFLAGS_…``), by number."""
        flagged: Mask = (self.column("flags") & np.uint64(flag)) != 0
        return flagged

    def number(self, addresses: U64) -> I64:
        numbers = np.empty(len(addresses), np.int64)
        self.numbers.look_up(addresses, numbers)
        return numbers

    def address(self, number: int) -> int:
        return self._addresses[number]

    def number_of_type(self, address: int) -> int | None:
        number = int(self.number(np.array([address], np.uint64))[0]) if address else -1
        return None if number < 0 else number

    def number_at(self, address: int) -> int | None:
        """Returns the number of the type of the object at an address; None if unknown."""
        words, was_read = self.memory.read(np.array([address], np.uint64), 16)
        return self.number_of_type(int(words[0, 1])) if was_read[0] else None

    def learn(self, blocks: PoolBlocks, pointers: U64) -> None:
        """Reads unknown objects that ``pointers`` refer to, and adds the types among them."""
        fresh = blocks.beyond(pointers, self.numbers)
        images = self._read(fresh[are_mapped(self.memory, fresh)])
        metatypes = {image.type for image in images.values()} - images.keys()
        images |= self._read(np.array(sorted(metatypes), np.uint64))
        if not self._root:
            own = (address for address, image in images.items() if image.type == address)
            self._root = next((at for at in own if self.memory.text(images[at].name) == "type"), 0)
        found = {
            address: self._with_table(image)
            for address, image in images.items()
            if address not in self._by_address and self._is_type(image, images)
        }
        self._by_address |= found
        self.numbers.add(np.array(list(found), np.uint64), len(self.known))
        self.known.extend(found.values())
        self._addresses.extend(found)

    def _read(self, addresses: U64) -> dict[int, TypeObject]:
        words, was_read = self.memory.read(addresses, _TYPE_BYTES)
        rows = np.flatnonzero(was_read)
        images = words[np.ix_(rows, _FIELDS)].tolist()
        return {
            address: TypeObject(*image)
            for address, image in zip(addresses[rows].tolist(), images, strict=True)
        }

    def _with_table(self, image: TypeObject) -> TypeObject:
        """Flags ``frozendict`` (3.15) as a dictionary, which it is but for a hash at its end."""
        if image.flags & HEAP_TYPE or image.base_bytes != _FROZEN_DICT_BYTES:
            return image
        is_frozen = self.memory.text(image.name) == "frozendict"
        return image._replace(flags=image.flags | DICT) if is_frozen else image

    def _is_type(self, image: TypeObject, images: dict[int, TypeObject]) -> bool:
        """Whether an object is a type: its type, or that one's (…), is ``type``."""
        for _ in range(_MOST_METATYPES):
            if not image.flags & _READY:
                return False
            if image.type == self._root:
                return True
            found = images.get(image.type) or self._by_address.get(image.type)
            if found is None or not found.flags & _TYPE_SUBCLASS:
                return False
            image = found
        return False


def are_mapped(memory: RemoteMemory, addresses: U64) -> Mask:
    """Returns a mask of the addresses that are mapped in the process."""
    mappings = list(parse_maps(memory.process.maps_text()).values())
    starts = np.array([mapping.start for mapping in mappings], np.uint64)
    ends = np.array([mapping.end for mapping in mappings], np.uint64)
    at = np.searchsorted(starts, addresses, side="right") - 1
    # A process that has ended has no mappings at all.
    return (at >= 0) & (addresses < np.append(ends, np.uint64(0))[at])


HEAD_BYTES: Final = 16
_IMAGE_BYTES: Final = HEAD_BYTES + 40
_MOST_ROUNDS: Final = 4096
LIST: Final = 1 << 25
DICT: Final = 1 << 29  # Py_TPFLAGS_HAVE_GC, Py_TPFLAGSLIST_SUBCLASS, Py_TPFLAGS_DICT_SUBCLASS
UNCOUNTED: Final = "generator", "coroutine", "async_generator"  # Types whose items have no count
_COUNT: Final = 2  # The word of a variable-size object that holds its number of items
TABLE: Final = 4  # Word of a list: its allocated size; of a dictionary: where its keys are
KEYS_BYTES: Final = 32  # Bytes of `PyDictKeysObject` before its indices
_SHARED_KEYS: Final = 2
MOST_ITEMS: Final = np.uint64(1 << 40)
_WORD: Final = np.uint64(8)


@dataclass(frozen=True, slots=True)
class LargeObjects:
    """Objects that are too large for pools, in columns."""

    type: I64  # Numbers of the objects' types
    words: U64  # The first 5 words of each object
    addresses: U64


def read_large(
    memory: RemoteMemory, types: Types, blocks: PoolBlocks, objects: Objects, seen: Addresses
) -> LargeObjects:
    """Reads tracked objects beyond pools, unless ``seen``. Raises TargetError, PrivilegeError."""
    heads = objects.at[types.with_flag(_HAVE_GC)[objects.type]] - HEAD_BYTES // 8
    pointers = np.concatenate([blocks.words[heads], blocks.words[heads + 1]])
    found_types, found_words = [np.empty(0, np.int64)], [np.empty((0, 5), np.uint64)]
    found_at = [np.empty(0, np.uint64)]
    for _ in range(_MOST_ROUNDS):
        fresh = blocks.beyond(pointers, seen)
        if not len(fresh):
            break
        fresh = fresh[are_mapped(memory, fresh)]
        images, was_read = memory.read(fresh, _IMAGE_BYTES)
        images, fresh = images[was_read], fresh[was_read]
        types.learn(blocks, images[:, 3].copy())
        of = types.number(images[:, 3].copy())
        # A head of the collector's lists has no object behind it.
        good = (of >= 0) & types.with_flag(_HAVE_GC)[of] & are_counts(images[:, 2])
        found_types.append(of[good])
        found_words.append(images[good, 2:])
        found_at.append(fresh[good] + np.uint64(HEAD_BYTES))
        pointers = images[good, :2].reshape(-1)
    return LargeObjects(
        np.concatenate(found_types), np.concatenate(found_words), np.concatenate(found_at)
    )


def are_counts(words: U64) -> Mask:
    """Returns a mask of words that are nonzero reference counts, as only live objects have."""
    good: Mask = words & np.uint64(0xFFFFFFFF) != 0
    good &= words >> np.uint64(32) & np.uint64(0xFFFF) == 0
    return good


def own_bytes(types: Types, are_uncounted: Mask, of: I64, words: U64) -> U64:
    """Returns the bytes of large objects; of generators, those of local variables are missing.

    ``are_uncounted``: which types are ``UNCOUNTED``, by number; ``of``: the objects' types;
    ``words``: the first words of each object.
    """
    is_counted = (words[:, _COUNT] < MOST_ITEMS) & ~are_uncounted[of]
    items = np.where(is_counted, words[:, _COUNT], np.uint64(0))
    figures = "words_before", "base_bytes", "item_bytes"
    before, base, each = (types.column(figure)[of] for figure in figures)
    return _WORD * before + base + each * items


def table_bytes(memory: RemoteMemory, types: Types, blocks: PoolBlocks, of: I64, words: U64) -> U64:
    """Returns bytes of the tables that objects own. ``words``: each object's word ``TABLE``."""
    sizes = np.zeros(len(of), np.uint64)
    lists, dicts = (np.flatnonzero(types.with_flag(flag)[of]) for flag in (LIST, DICT))
    sizes[lists] = np.where(words[lists] < MOST_ITEMS, words[lists], np.uint64(0)) * _WORD
    sizes[dicts] = _key_bytes(read_keys(memory, blocks, words[dicts]))
    return sizes


def read_keys(memory: RemoteMemory, blocks: PoolBlocks, keys: U64) -> U64:
    """Returns the first words of each ``PyDictKeysObject``; zeros if they can't be read."""
    at = blocks.locate(keys)
    headers = blocks.words[np.maximum(at, 0)[:, None] + np.arange(KEYS_BYTES // 8)]
    outside = np.flatnonzero(at < 0)
    headers[outside] = memory.read(keys[outside], KEYS_BYTES)[0]
    return headers


def _key_bytes(headers: U64) -> U64:
    """Returns bytes of dictionaries' tables, by the first words: reference count, sizes …"""
    index_bits = headers[:, 1] >> np.uint64(8) & np.uint64(0xFF)
    kind = headers[:, 1] >> np.uint64(16) & np.uint64(0xFF)
    entries = headers[:, 2] + headers[:, 3]
    each = np.where(kind == 0, np.uint64(3), np.uint64(2)) * _WORD
    sizes = np.uint64(KEYS_BYTES) + (np.uint64(1) << (index_bits & np.uint64(63))) + entries * each
    # Instances share the keys of their class; each has its own values.
    sizes = np.where(kind == _SHARED_KEYS, entries * _WORD, sizes)
    sane = (index_bits < 40) & (entries < MOST_ITEMS) & (entries > 0)
    # All empty dictionaries share one table.
    sane &= headers[:, 0] < np.uint64(1 << 29)
    return np.where(sane, sizes, np.uint64(0))
