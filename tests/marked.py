"""Searches with ``BlockBits``, and one without any index to compare with."""

from __future__ import annotations

import numpy as np

from tracelloc.model.figures import U64, Mask
from tracelloc.record.reachability.blockbits import BlockBits
from tracelloc.record.reachability.lostgroups import BlockLinks

_ADDRESS_BITS = np.uint64((1 << 47) - 1)


def bits_of(
    starts: U64, ends: U64, most_edges: int = 1 << 20, *address_bits: int, unit_bits: int = 4
) -> BlockBits:
    """Blocks, of which none is known to be reachable."""
    bits = BlockBits(most_edges, *address_bits, unit_bits=unit_bits)
    bits.add(starts, ends)
    found = np.zeros(len(starts), np.uint8)
    bits.ask(starts, found)
    assert found.all()
    return bits


def reachable_of(bits: BlockBits, starts: U64) -> Mask:
    """Which blocks are known to be reachable by now."""
    found = np.zeros(len(starts), np.uint8)
    bits.are_reachable(starts, found)
    return found.view(np.bool_)


def finished(bits: BlockBits, starts: U64) -> Mask:
    """Which blocks can be reached, after all memory was scanned."""
    bits.finish()
    return reachable_of(bits, starts)


def plainly(
    starts: U64, ends: U64, places: U64, words: U64, roots: list[int], *, are_roots: bool
) -> list[bool]:
    """Which blocks can be reached, given the words at some places."""

    def blocks_at(addresses: U64) -> list[int]:
        at = np.searchsorted(starts, addresses, side="right") - 1
        return np.where((at >= 0) & (addresses < ends[at]), at, -1).tolist()

    leads: dict[int, set[int]] = {}
    for source, target in zip(blocks_at(places), blocks_at(words & _ADDRESS_BITS), strict=True):
        if target >= 0:
            leads.setdefault(source, set()).add(target)
    found = set(roots) | (leads.pop(-1, set()) if are_roots else set())
    waiting = list(found)
    while waiting:
        fresh = leads.get(waiting.pop(), set()) - found
        found |= fresh
        waiting += fresh
    return [number in found for number in range(len(starts))]


def links_of(bits: BlockBits, starts: U64) -> tuple[list[int], list[int]]:
    """The links among blocks: (where each one's begin, targets)."""
    links = BlockLinks.among(bits, starts)
    return links.begins.tolist(), links.targets.tolist()
