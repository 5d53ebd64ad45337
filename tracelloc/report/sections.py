"""Sections of reports that are there if asked for (``--show``), in one table.

A section is worked out once per report, as a part; then its stacks are named together
with all others, and it is written as text or as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final, Protocol

from tracelloc.report.part import StackFrames, StackLines
from tracelloc.report.peak import PeakPart
from tracelloc.report.sizes import SizesPart
from tracelloc.report.temporary import TemporaryPart
from tracelloc.report.threads import ThreadsPart
from tracelloc.snapshots.snapshot import NOTHING_ELSE, Snapshot, Wanted

_ALL: Final = "all"


class Part(Protocol):
    """A section of one report."""

    @property
    def stacks(self) -> Set[int]:
        """Stacks that it shows, by index."""

    def lines(self, stack: StackLines) -> Iterator[str]:
        """As text; ``stack`` gives the lines of one."""

    def facts(self, stack: StackFrames) -> dict[str, Any]:
        """As JSON; ``stack`` gives the frames of one."""


@dataclass(frozen=True, slots=True)
class Section:
    """What may be asked for."""

    about: str
    """A few words, for help."""
    make: Callable[[Snapshot, int], Part]
    """From a snapshot and the number of entries."""
    wanted: Wanted = NOTHING_ELSE
    """What a snapshot must have for it."""


SECTIONS: Final[Mapping[str, Section]] = {
    "peak": Section("what was outstanding when most was", PeakPart.of),
    "temporary": Section("allocations that were freed soon after", TemporaryPart.of),
    "sizes": Section(
        "outstanding blocks by size, and what the allocator wastes",
        SizesPart.of,
        Wanted(blocks=True, usable=True),
    ),
    "threads": Section("who allocates and who frees", ThreadsPart.of, Wanted(threads=True)),
}
"""By name, in the order in which reports have them. The names are those of JSON's fields."""


def parse_sections(text: str) -> frozenset[str]:
    """Names from a list with commas; ``all`` are all. Raises ValueError."""
    names = {word.strip() for word in text.split(",")}
    for name in sorted(names - {_ALL}):
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise ValueError(f"{name!r} is no section; there are {known} (or {_ALL})")
    return frozenset(SECTIONS) if _ALL in names else frozenset(names)


def wanted_by(names: Set[str]) -> Wanted:
    """What a snapshot must have for these sections."""
    return reduce(or_, (SECTIONS[name].wanted for name in names), NOTHING_ELSE)


def section_facts(snapshot: Snapshot) -> dict[str, Any]:
    """What the sections say as JSON of the whole target, without their stacks.

    Only of what every snapshot has, and of threads if this one has them.
    """
    names = {"peak", "temporary"} | ({"threads"} if snapshot.threads is not None else set())
    found = {}
    for name, part in parts_of(snapshot, 0, names).items():
        facts = part.facts(lambda _stack: [])
        found[name] = {key: value for key, value in facts.items() if key != "top_allocators"}
    return found


def parts_of(snapshot: Snapshot, top: int, names: Set[str]) -> dict[str, Part]:
    """These sections of a report, in their order."""
    return {
        name: section.make(snapshot, top) for name, section in SECTIONS.items() if name in names
    }
