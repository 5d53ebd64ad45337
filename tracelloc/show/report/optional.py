"""The names of optional sections of reports, for the command line."""

from collections.abc import Set
from functools import reduce
from operator import or_
from typing import Final

from tracelloc.model.snapshotrequest import TOTALS_ONLY, SnapshotRequest

_ALL: Final = "all"

# What a snapshot must have for each; in the order in which text has them.
SECTIONS: Final = {
    "peak": TOTALS_ONLY,  # the stacks that held most at the high-water mark
    "temporary": TOTALS_ONLY,  # allocations freed soon by the same thread
    "sizes": SnapshotRequest(blocks=True, usable=True),  # by size, with the malloc library's waste
    "types": TOTALS_ONLY,  # by type, as far as functions' names or classes in memory tell it
    "threads": SnapshotRequest(threads=True),  # which allocate, and which free
    "objects": SnapshotRequest(objects=True),  # of Python programs, by type
}


def parse_sections(text: str) -> frozenset[str]:
    """Parses names of sections, separated by commas, or ``all``. Raises ValueError."""
    names = {word.strip() for word in text.split(",")}
    for name in sorted(names - {_ALL}):
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise ValueError(f"{name!r} is not a section; known are {known} and {_ALL}")
    return frozenset(SECTIONS) if _ALL in names else frozenset(names)


def wanted_by(names: Set[str]) -> SnapshotRequest:
    """Returns the content that snapshots need for optional sections."""
    return reduce(or_, (SECTIONS[name] for name in names), TOTALS_ONLY)
