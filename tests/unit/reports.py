"""Reports of one snapshot, as tests ask for them."""

import json
from collections.abc import Set

from tracelloc.show.presentation.naming import Namer
from tracelloc.show.report.content import ReportStyle, Request
from tracelloc.show.report.sections import report_facts, report_lines
from tracelloc.snapshots.snapshot import Snapshot


def text_report(
    snapshot: Snapshot,
    namer: Namer,
    top: int,
    min_age_ns: int | None = None,
    mark: Snapshot | None = None,
    show: Set[str] = frozenset(),
) -> list[str]:
    """Its lines, without a package of any file."""
    style = ReportStyle(top, min_age_ns, show, hints_of=lambda _root, _paths: {})
    return list(report_lines(Request(snapshot, namer, style, mark)))


def json_report(
    snapshot: Snapshot,
    namer: Namer,
    top: int,
    mark: Snapshot | None = None,
    show: Set[str] = frozenset(),
) -> str:
    """One line of JSON."""
    return json.dumps(report_facts(Request(snapshot, namer, ReportStyle(top, show=show), mark)))
