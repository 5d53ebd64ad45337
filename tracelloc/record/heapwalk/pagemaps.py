"""Page maps: trees of tables, by bits of an address, that lead to the description of its memory.

The root is in the library's variables. A page map proves itself: a description tells the address
under which the map leads to it. Pages of some libraries have blocks of one size each, and lists of
their free blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.model.figures import I64
from tracelloc.record.heapwalk.arenas import BlockState, joined
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.process.memory import U64, Mask
from tracelloc.record.process.regions import Region

_MOST_TRIED: Final = 256  # Addresses that may be tables of the second kind, in one file's data
_MOST_LEAVES: Final = 1 << 12
MOST_DATA_BYTES: Final = 64 << 20
_LEAST_ADDRESS: Final = 1 << 16


class PageTree(NamedTuple):
    """How a library's page map is built."""

    page_bits: int
    key_bits: int  # Bits of an address by which a table's entry is chosen
    levels: int
    addresses: Callable[[U64], U64]  # Of the descriptions, from rows of a last table's entries
    extents: Callable[[U64], tuple[U64, U64]]  # The first page's address, the number of pages
    leaf_words: int = 1  # Words of an entry in the last tables
    root_bits: int = 0  # If the root has fewer entries
    most_proven: int = 64  # Descriptions of a table that are looked at
    least_share: float = 0.5  # Of these, those that must tell where they are

    @property
    def entries(self) -> int:
        return 1 << self.key_bits

    @property
    def root_entries(self) -> int:
        return 1 << (self.root_bits or self.key_bits)

    def key(self, addresses: U64, level: int) -> U64:
        """Returns the index of each address's entry in a table; level 0 is the last."""
        shift = np.uint64(self.page_bits + level * self.key_bits)
        return (addresses >> shift) & np.uint64(self.entries - 1)

    def leaf(self, words: U64) -> tuple[U64, U64]:
        """Decodes a last table: (rows of entries' words, addresses of their descriptions)."""
        rows = words.reshape(-1, self.leaf_words)
        return rows, self.addresses(rows)


class PageMap(NamedTuple):
    """A process's page map."""

    root: int  # Address
    page_bits: int
    pages: U64  # Addresses of pages that have an entry
    entries: U64  # Rows of each one's words
    leads_to: U64  # Addresses of their descriptions


def may_lead_on(words: U64, reader: PieceReader) -> Mask:
    """Returns a mask of words that may be addresses of a library's own memory."""
    return (words > _LEAST_ADDRESS) & (words < np.uint64(reader.address_end))


def find_page_map(
    reader: PieceReader, regions: list[Region], numbers: list[int], trees: tuple[PageTree, ...]
) -> PageMap | None:
    """Looks for a page map in the zeroed variables that follow some regions with data."""
    for n in numbers:
        bss = regions[(n + 1) % len(regions)]
        follows = bss.start == regions[n].end and not bss.inode and not bss.path.startswith("[")
        if not follows:
            continue
        words = reader.words(bss.start, min(bss.end - bss.start, MOST_DATA_BYTES))
        for tree in trees:
            entries = tree.root_entries
            if len(words) <= entries:
                continue
            good = may_lead_on(words, reader) & (words & np.uint64(63) == 0)
            # The whole table holds only such addresses and zeros: most data are refused by that.
            odd = np.concatenate([[0], np.cumsum((words != 0) & ~good)])
            roots = np.flatnonzero(odd[entries:] == odd[:-entries])
            if not len(roots):
                continue
            places = np.flatnonzero(good)
            places = places[(places >= roots[0]) & (places < roots[-1] + entries)]
            for at in places[:_MOST_TRIED].tolist():
                key = _key_of_table(reader, regions, tree, int(words[at]))
                if key is not None and 0 <= at - key <= len(words) - entries:
                    root = words[at - key :][:entries]
                    return _read(reader, tree, bss.start + 8 * (at - key), root)
    return None


def _read(reader: PieceReader, tree: PageTree, at_root: int, root: U64) -> PageMap:
    keys = np.flatnonzero(root).astype(np.uint64)
    tables = root[root != 0]
    for _ in range(tree.levels - 2):
        below, prefixes = [], []
        for key, table in zip(keys.tolist(), tables.tolist(), strict=True):
            words = reader.words(table, 8 * tree.entries)
            at = np.flatnonzero(words)
            below.append(words[at])
            prefixes.append(np.uint64(key << tree.key_bits) + at.astype(np.uint64))
        keys, tables = np.concatenate(prefixes), np.concatenate(below)
    pages, entries, leads_to = [], [], []
    for key, table in zip(keys[:_MOST_LEAVES].tolist(), tables.tolist(), strict=False):
        rows, addresses = tree.leaf(reader.words(table, tree.leaf_words * 8 * tree.entries))
        at = np.flatnonzero(addresses)
        page = np.uint64(key << tree.key_bits) + at.astype(np.uint64)
        pages.append(page << np.uint64(tree.page_bits))
        entries.append(rows[at])
        leads_to.append(addresses[at])
    columns = (np.concatenate(parts) for parts in (pages, entries, leads_to))
    return PageMap(at_root, tree.page_bits, *columns)


def _key_of_table(
    reader: PieceReader, regions: list[Region], tree: PageTree, address: int
) -> int | None:
    """Returns the index of the root's entry that leads to a table; None if it is no table."""
    for _ in range(tree.levels - 2):
        words = _table(reader, regions, address, 8 * tree.entries)
        at = np.flatnonzero(words)
        if not len(at):
            return None
        address = int(words[at[0]])
    leaf = _table(reader, regions, address, tree.leaf_words * 8 * tree.entries)
    _, descriptions = tree.leaf(leaf)
    at = np.flatnonzero(descriptions)[: tree.most_proven]
    if not len(at):
        return None
    heads, was_read = reader.memory.read(descriptions[at], 24)
    starts, pages = tree.extents(heads)  # Each leads to the extent that its page is in
    firsts, numbers = tree.key(starts, 0), at.astype(np.uint64)
    fits = was_read & (firsts <= numbers) & (numbers - firsts < pages)
    if np.count_nonzero(fits) < max(1, int(len(at) * tree.least_share)):
        return None
    return int(tree.key(starts[np.flatnonzero(fits)[:1]], tree.levels - 1)[0])


def _table(reader: PieceReader, regions: list[Region], address: int, size_bytes: int) -> U64:
    """Returns a copy of a table at an address; empty if there can be none."""
    inside = next((r for r in regions if r.start <= address < r.end), None)
    if inside is None or not (inside.is_anonymous or inside.path == "[heap]"):
        return np.empty(0, np.uint64)
    if address & 63 or address + size_bytes > inside.end:
        return np.empty(0, np.uint64)
    return reader.words(address, size_bytes)


States = npt.NDArray[np.uint8]

_MOST_BLOCKS: Final = 1 << 16  # Of one list


class Followed(NamedTuple):
    """The blocks to which lists of free blocks lead, by list."""

    counts: I64  # Number of blocks
    lasts: U64  # Address of the last block, or what leads to none
    is_whole: Mask  # Whether it has ended as a list does, with blocks of its own only


@dataclass(slots=True)
class BlockPages:
    """Pages by address."""

    starts: U64  # Where each page's first block is
    sizes: U64  # Bytes of each of its blocks
    counts: I64  # Number of its blocks

    def states(self) -> States:
        return np.full(int(self.counts.sum()), BlockState.IN_USE, np.uint8)

    def find(self, addresses: U64) -> tuple[I64, I64, Mask]:
        """Returns each address's page, its block there, and whether it begins one."""
        rows = np.maximum(np.searchsorted(self.starts, addresses, side="right") - 1, 0)
        inside = (addresses - self.starts[rows]).astype(np.int64)
        sizes = self.sizes[rows].astype(np.int64)
        numbers = inside // sizes
        is_block = (inside >= 0) & (numbers < self.counts[rows]) & (inside == numbers * sizes)
        return rows, numbers, is_block

    def follow(
        self,
        reader: PieceReader,
        heads: U64,
        states: States,
        state: BlockState,
        *,
        pages: I64 | None = None,
        sizes: U64 | None = None,
    ) -> Followed:
        """Follows lists of free blocks, all of which may have the same ``pages`` or ``sizes``."""
        if not len(self.starts):
            return Followed(np.zeros(len(heads), np.int64), heads, heads == 0)
        parts, room = [np.empty(0, np.uint64)], np.empty(_MOST_BLOCKS, np.uint64)
        low = int(self.starts[0])
        high = int(self.starts[-1] + self.sizes[-1] * np.uint64(self.counts[-1]))
        lengths, is_whole = np.zeros(len(heads), np.int64), np.ones(len(heads), np.bool_)
        with reader.lists() as links:
            for n in np.flatnonzero(heads).tolist():
                lengths[n], is_whole[n] = links.follow_links(int(heads[n]), low, high, room)
                parts.append(room[: lengths[n]].copy())
        at, lists = np.concatenate(parts), np.repeat(np.arange(len(heads)), lengths)
        lasts = heads.copy()
        lasts[lengths > 0] = at[(np.cumsum(lengths) - 1)[lengths > 0]]
        rows, numbers, good = self.find(at)
        if pages is not None:
            good &= rows == pages[lists]
        if sizes is not None:
            good &= self.sizes[rows] == sizes[lists]
        places = ((np.cumsum(self.counts) - self.counts)[rows] + numbers)[good]
        is_new = np.zeros(len(places), np.bool_)  # Changed lists may be rings, or lead to one block
        is_new[np.unique(places, return_index=True)[1]] = True
        good[good] = is_new & (states[places] == BlockState.IN_USE)
        states[places] = state
        is_whole[lists[~good]] = False
        return Followed(np.bincount(lists[good], minlength=len(heads)), lasts, is_whole)

    def entries(self, states: States, is_sound: Mask, others: U64) -> U64:
        """Returns entries for all blocks of sound pages, and other entries, by address."""
        rows = np.repeat(np.arange(len(self.starts)), self.counts)
        firsts = np.cumsum(self.counts) - self.counts
        numbers = (np.arange(len(rows)) - firsts[rows]).astype(np.uint64)
        starts = self.starts[rows] + numbers * self.sizes[rows]
        ends = (self.starts + self.counts.astype(np.uint64) * self.sizes)[is_sound]
        ends |= np.uint64(BlockState.END)
        return joined(np.concatenate([(starts | states)[is_sound[rows]], ends, others]))
