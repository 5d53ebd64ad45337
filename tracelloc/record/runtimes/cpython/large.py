"""Reads objects too large for pools, and the tables that containers keep outside themselves.

The collector links the containers that it tracks: the words before an object point to the next
and the previous one (``PyGC_Head``, Include/internal/pycore_gc.h). Objects in pools thus lead to
those outside. Tables of lists, dictionaries and sets are counted with their owners, as
``sys.getsizeof`` does.
"""

from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.record.process.memory import U64, Mask, RemoteMemory
from tracelloc.record.runtimes.cpython.blocks import Addresses
from tracelloc.record.runtimes.cpython.pools import I64, PoolBlocks
from tracelloc.record.runtimes.cpython.types import Objects, Types, are_mapped

HEAD_BYTES: Final = 16
_IMAGE_BYTES: Final = HEAD_BYTES + 40
_MOST_ROUNDS: Final = 4096
_HAVE_GC: Final = 1 << 14
LIST: Final = 1 << 25
DICT: Final = 1 << 29  # Py_TPFLAGS_HAVE_GC, Py_TPFLAGSLIST_SUBCLASS, Py_TPFLAGS_DICT_SUBCLASS
UNCOUNTED: Final = "generator", "coroutine", "async_generator"  # Types whose items have no count
_COUNT: Final = 2  # The word of a variable-size object that holds its number of items
# The word of a list that holds its allocated size, and of a dictionary that points to its keys.
TABLE: Final = 4
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
    """Reads Python objects that are too large for pools, unless their heads were ``seen``.

    Finds only objects that the collector tracks. Raises TargetError, PrivilegeError.
    """
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
    before, base, each = (
        types.column(figure)[of]
        for figure in (
            lambda known: known.words_before,
            lambda known: known.base_bytes,
            lambda known: known.item_bytes,
        )
    )
    sizes: U64 = _WORD * before + base + each * items
    return sizes


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
