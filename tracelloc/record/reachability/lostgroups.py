"""Groups lost blocks into structures, and structures into groups that are alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.model.blocks import BlockSum
from tracelloc.model.figures import F64, U32
from tracelloc.model.lostmemory import LostGroup, Shape
from tracelloc.record.heapwalk.arenas import NO_ENTRIES
from tracelloc.record.heapwalk.classes import ClassNames, ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.process.memory import U64, Mask
from tracelloc.record.reachability.blockbits import BlockBits
from tracelloc.record.reachability.structures import components, gather, led_to

_SHAPES: Final = tuple(Shape)
_AT_ONCE: Final = 1 << 18
_HALF: Final = np.uint64(32)


@dataclass(slots=True)
class BlockLinks:
    """Pointers between blocks: those of block n lead to ``targets[begins[n]:begins[n + 1]]``."""

    begins: U32
    targets: U32

    @classmethod
    def among(cls, bits: BlockBits, starts: U64) -> BlockLinks:
        """Returns the stored pointers between some blocks, which are numbered by address."""
        ends = np.empty((2, bits.edge_count), np.uint64)
        bits.copy_edges(*ends)
        units = starts >> np.uint64(bits.unit_bits) << np.uint64(bits.unit_bits)
        links = [NO_ENTRIES]  # (source << 32 | target) of each, some at a time
        for at in range(0, bits.edge_count if len(starts) else 0, _AT_ONCE):
            some = ends[:, at : at + _AT_ONCE]
            rows = np.minimum(np.searchsorted(units, some), len(starts) - 1).astype(np.uint64)
            links.append((rows[0] << _HALF | rows[1])[(units[rows] == some).all(axis=0)])
        del ends, units
        found = np.concatenate(links)
        found.sort()
        found = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
        places = np.arange(len(starts) + 1, dtype=np.uint64) << _HALF
        begins = np.searchsorted(found, places).astype(np.uint32)
        return cls(begins, found.astype(np.uint32))

    def first_blocks(self) -> tuple[U32, U32]:
        """Returns blocks to which no other component leads (one per ring), and all components. A
        component is a ring of blocks, or a single block; each block has a component's number.
        """
        count = len(self.begins) - 1
        component = np.empty(count, np.uint32)
        number = components(self.begins, self.targets, component)
        is_led_to = np.zeros(number, np.uint8)
        led_to(self.begins, self.targets, component, is_led_to)
        lowest = np.zeros(number, np.uint32)
        lowest[component[::-1]] = np.arange(count, dtype=np.uint32)[::-1]
        return np.sort(lowest[is_led_to == 0]), component


@dataclass(slots=True)
class LostStructures:
    """Lost blocks by structure: what was lost with the pointer to its first block."""

    blocks: BlockRanges  # Nothing points to them except others of them
    firsts: U32  # The first block of each structure
    shapes: npt.NDArray[np.uint8]  # Index of each structure's shape in `Shape`
    nodes: U32  # Number of nodes of each structure
    counts: U32  # Number of blocks of each structure
    size_bytes: F64  # Bytes of its blocks
    classes: U32  # Index of each block's class in `class_names`
    class_names: list[str]
    kinds: U32  # A number for the class, the size and the overhead of each structure's first block

    @classmethod
    def gather(
        cls, reader: PieceReader, tally: ClassTally, blocks: BlockRanges, links: BlockLinks
    ) -> LostStructures:
        """Finds the structures of lost blocks. Raises OSError, TargetError and PrivilegeError."""
        count = len(blocks.starts)
        firsts, component = links.first_blocks()
        classes, names = _classes(reader, tally, blocks)
        size_bytes = blocks.size_bytes()
        kinds = _numbered(
            size_bytes << _HALF | blocks.overhead_bytes.astype(np.uint64) << np.uint64(24) | classes
        )
        structure = np.empty(count, np.uint32)
        about = np.zeros((len(firsts), 4), np.uint32)
        gather(links.begins, links.targets, firsts, kinds, structure, about)
        sums = np.bincount(structure, size_bytes.astype(np.float64), len(firsts))
        is_cyclic = np.bincount(component)[component[firsts]] > 1
        nodes, between, most = about[:, 1].copy(), about[:, 2], about[:, 3]
        nodes[between == 0] = 1
        return cls(
            blocks, firsts, _shapes(nodes, between, most, is_cyclic), nodes,
            about[:, 0].copy(), sums.astype(np.float64), classes, names, kinds[firsts],
        )  # fmt: skip

    def sum(self, rows: Mask) -> BlockSum:
        return BlockSum(int(self.counts[rows].sum()), int(self.size_bytes[rows].sum()))

    def groups(self, rows: Mask) -> Iterator[LostGroup]:
        """Groups structures by shape, size and class of their first blocks; most bytes first."""
        which = np.flatnonzero(rows)
        if not len(which):
            return
        group = self.kinds[which] * np.uint32(len(_SHAPES)) + self.shapes[which]
        nodes, number = self.nodes[which], int(group.max(initial=0)) + 1
        least, most = np.full(number, nodes.max(initial=0)), np.zeros(number, np.uint32)
        np.minimum.at(least, group, nodes)
        np.maximum.at(most, group, nodes)
        example = np.zeros(number, np.intp)
        example[group[::-1]] = which[::-1]
        structures = np.bincount(group, minlength=number)
        counts = np.bincount(group, self.counts[which], number)
        sizes = np.bincount(group, self.size_bytes[which], number)
        firsts = self.firsts[example]
        blocks = self.blocks.select(firsts.astype(np.intp))
        usable_bytes, block_bytes = blocks.usable_bytes(), blocks.size_bytes()
        for at in np.lexsort((block_bytes, -sizes))[: np.count_nonzero(structures)].tolist():
            first = firsts[at]
            yield LostGroup(
                shape=_SHAPES[self.shapes[example[at]]],
                class_name=self.class_names[self.classes[first]],
                usable_bytes=int(usable_bytes[at]),
                structures=int(structures[at]),
                least_nodes=int(least[at]),
                most_nodes=int(most[at]),
                blocks=BlockSum(int(counts[at]), int(sizes[at])),
                example=int(blocks.starts[at]),
            )


def _classes(reader: PieceReader, tally: ClassTally, blocks: BlockRanges) -> tuple[U32, list[str]]:
    names, numbers = [""], dict[int, int]()  # Of classes, and by table
    class_names = ClassNames(reader)
    found = np.zeros(len(blocks.starts), np.uint32)
    for at in range(0, len(found), _AT_ONCE):
        words, was_read = reader.memory.read(blocks.starts[at : at + _AT_ONCE], 8)
        rows = np.flatnonzero(was_read & tally.are_tables(words[:, 0]))
        tables, which = np.unique(words[rows, 0], return_inverse=True)
        for table in tables.tolist():
            if table not in numbers:
                name = class_names.name(table)
                if name not in names:
                    names.append(name)
                numbers[table] = names.index(name)
        found[at + rows] = np.array([numbers[table] for table in tables.tolist()], np.uint32)[which]
    return found, names


def _numbered(values: U64) -> U32:
    slices = [slice(at, at + _AT_ONCE) for at in range(0, len(values), _AT_ONCE)]
    known = np.unique(np.concatenate([NO_ENTRIES, *(np.unique(values[some]) for some in slices)]))
    numbers = np.empty(len(values), np.uint32)
    for some in slices:
        numbers[some] = np.searchsorted(known, values[some])
    return numbers


def _shapes(nodes: U32, between: U32, most: U32, is_cyclic: Mask) -> npt.NDArray[np.uint8]:
    """Returns shapes' indexes, by nodes, pointers ``between`` them, and the ``most`` of one."""
    edges = nodes.astype(np.int64) - 1
    return np.select(
        [
            nodes == 1,
            is_cyclic & (most == 1),
            is_cyclic & (most == 2) & (between >= 2 * edges),
            ~is_cyclic & (most == 1) & (between == edges),
            (between == edges) | (is_cyclic & (between == 2 * edges)),
        ],
        [
            _SHAPES.index(shape)
            for shape in (
                Shape.BLOCK, Shape.RING, Shape.DOUBLY_LINKED_LIST, Shape.LIST, Shape.TREE
            )
        ],
        _SHAPES.index(Shape.GRAPH),
    ).astype(np.uint8)  # fmt: skip
