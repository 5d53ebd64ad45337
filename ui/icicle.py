"""Where the boxes of an icicle lie, in cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracelloc.ui.nodes import ROOT, Nodes

_DEEPEST: Final = 2048
"""Lines that are laid out at most: stacks are not deeper."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node in cells: from ``left`` to before ``end``."""

    node: int
    left: int
    end: int


@dataclass(frozen=True, slots=True)
class Level:
    """One line: boxes, and stretches of functions too narrow to be one."""

    boxes: list[Box]
    small: list[tuple[int, int]]


def lay_out(nodes: Nodes, zoomed: int, width: int) -> list[Level]:
    """Boxes from the root on, those above ``zoomed`` over the whole width.

    Each child lies at its exact place, rounded once, so that nothing adds up wrongly.
    """
    above = []
    node = zoomed
    while node != ROOT:
        node = nodes.parent(node)
        above.append(Level([Box(node, 0, width)], []))
    above.reverse()
    whole = nodes.weight(zoomed)
    found = [*above, Level([Box(zoomed, 0, width)], [])]
    line: list[tuple[int, int]] = [(zoomed, 0)]
    while line and whole and len(found) < _DEEPEST:
        boxes: list[Box] = []
        small: list[tuple[int, int]] = []
        following: list[tuple[int, int]] = []
        for parent, start in line:
            at = start
            for child in nodes.children(parent):
                weight = nodes.weight(child)
                if weight * width < whole:
                    # Less than a cell, as all that follow.
                    rest = at * width // whole, (start + nodes.below(parent)) * width // whole
                    if rest[1] > rest[0]:
                        small.append(rest)
                    break
                boxes.append(Box(child, at * width // whole, (at + weight) * width // whole))
                following.append((child, at))
                at += weight
        if not boxes and not small:
            break
        found.append(Level(boxes, small))
        line = following
    return found
