"""The sections of reports, in one list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final

from tracelloc.report.leaks import losses_part, memory_part, suspects_part
from tracelloc.report.part import Part, Request
from tracelloc.report.sizes import sizes_part
from tracelloc.report.threads import threads_part
from tracelloc.report.top import (
    allocations_part,
    allocators_part,
    mappings_part,
    old_allocations_part,
    peak_part,
    since_mark_part,
    temporary_part,
)
from tracelloc.snapshots.snapshot import NOTHING_ELSE, Wanted
from tracelloc.views.facts import summary

_ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Section:
    """What reports have."""

    make: Callable[[Request], Part | None]
    """None: this report does not have it."""
    name: str | None = None
    """The field of JSON that has the fields of the section; None: they are the report's own."""
    about: str = ""
    """A few words, for help, if the section is there only if asked for by its name."""
    wanted: Wanted = NOTHING_ELSE
    """What a snapshot must have for it."""
    json_place: int = 0
    """JSON has what is there unasked in this order, then as it is listed."""


REPORT: Final = (
    Section(suspects_part),
    Section(allocations_part),
    Section(old_allocations_part, json_place=2),
    Section(allocators_part),
    Section(since_mark_part, "since_mark"),
    Section(peak_part, "peak", "what was outstanding when most was"),
    Section(temporary_part, "temporary", "allocations that were freed soon after"),
    Section(
        sizes_part,
        "sizes",
        "outstanding blocks by size, and what the allocator wastes",
        Wanted(blocks=True, usable=True),
    ),
    Section(threads_part, "threads", "who allocates and who frees", Wanted(threads=True)),
    Section(memory_part),
    Section(mappings_part, "mappings", json_place=1),
    Section(losses_part),
)
"""In the order in which text has them."""

SECTIONS: Final = {section.name: section for section in REPORT if section.name and section.about}
"""Those to ask for, by name."""


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


def parts_of(given: Request) -> list[tuple[Section, Part]]:
    """The sections of a report, their stacks with names as far as these are known in time."""
    parts = []
    for section in REPORT:
        if not section.about or section.name in given.show:
            part = section.make(given)
            if part is not None:
                parts.append((section, part))
    indices = {stack for _, part in parts for stack in part.stacks}
    given.namer.prepare(given.snapshot, indices, given.namer.patience_s)
    return parts


def report_lines(given: Request) -> Iterator[str]:
    """The report as lines of text, the last one empty."""
    for _, part in parts_of(given):
        yield from part.text(given)
    yield ""


def report_facts(given: Request) -> dict[str, Any]:
    """The report for JSON: the summary, then the fields of its sections."""
    report = summary(given.snapshot)
    for section, part in sorted(parts_of(given), key=_json_order):
        fields = part.json(given)
        report |= fields if section.name is None else {section.name: fields}
    return report


def _json_order(found: tuple[Section, Part]) -> tuple[bool, int]:
    return bool(found[0].about), found[0].json_place
