"""The JSON report: one object per report, on one line. Sizes in bytes, times in seconds."""

from __future__ import annotations

import json
from collections.abc import Set
from typing import Any

from tracelloc.report.part import Request
from tracelloc.report.sections import parts_of
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.views.facts import stack_facts, summary, suspect_facts
from tracelloc.views.naming import Namer
from tracelloc.views.suspects import NamedSuspect


def json_report(
    snapshot: Snapshot,
    namer: Namer,
    top: int,
    mark: Snapshot | None = None,
    *,
    show: Set[str] = frozenset(),
) -> str:
    """One line without its end."""
    return json.dumps(report_of(snapshot, namer, top, mark, show=show), separators=(",", ":"))


def report_of(
    snapshot: Snapshot,
    namer: Namer,
    top: int,
    mark: Snapshot | None = None,
    *,
    show: Set[str] = frozenset(),
) -> dict[str, Any]:
    """The report.

    ``top_old_allocations`` is there with an age limit only, ``since_mark`` with a mark, and
    each section of ``show`` under its own name (``sections.SECTIONS``).
    """
    given = Request(snapshot, namer, top, mark=mark, show=show)
    parts = sorted(parts_of(given), key=lambda found: (bool(found[0].about), found[0].json_place))
    report = summary(snapshot)
    for section, part in parts:
        fields = part.json(given)
        report |= fields if section.name is None else {section.name: fields}
    return report


def leak_report(snapshot: Snapshot, named: NamedSuspect) -> dict[str, Any]:
    """One suspect with its stack and the figures of its process."""
    return summary(snapshot) | {
        "suspect": suspect_facts(named) | {"stack": stack_facts(named.stack)}
    }
