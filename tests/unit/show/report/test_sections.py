"""Sections of reports that are asked for by ``--show``."""

import json
from dataclasses import replace

import pytest

from tests.options import parse_options
from tests.unit.events import records
from tests.unit.reports import json_report, text_report
from tests.unit.show.presentation.test_views import FakeSymbolizer, snapshot_of
from tracelloc.errors import UsageError
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.blocks import Blocks
from tracelloc.model.events import EventKind
from tracelloc.model.snapshotrequest import TOTALS_ONLY, SnapshotRequest
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namer
from tracelloc.show.report.optional import SECTIONS, wanted_by
from tracelloc.show.report.sections import REPORT
from tracelloc.snapshots.snapshot import Snapshot

NAMER = Namer(FakeSymbolizer({}), Filters())


def snapshot_of_sizes(*sizes: int) -> Snapshot:
    table = LiveTable(Stacks())
    events = [(EventKind.ALLOC, 0x1000 * n, size, 0, 1) for n, size in enumerate(sizes, 1)]
    table.apply(records(events))
    return snapshot_of(table, wanted=SnapshotRequest(blocks=True))


def test_names_of_sections() -> None:
    def shown(text: str) -> frozenset[str]:
        return parse_options(["-p", "1", "--show", text]).show

    assert parse_options(["-p", "1"]).show == frozenset()
    assert shown("sizes") == {"sizes"}
    assert shown("sizes, sizes") == {"sizes"}
    assert shown("all") == shown("sizes,all") == set(SECTIONS)
    for wrong in ("", "sizes,", "shapes"):
        with pytest.raises(UsageError, match=r"is not a section; known are .*sizes.* and all"):
            shown(wrong)
    assert [section.name for section in REPORT if section.is_optional] == list(SECTIONS)
    assert wanted_by(frozenset()) == TOTALS_ONLY
    assert wanted_by({"sizes"}).blocks
    assert SnapshotRequest(blocks=True) | SnapshotRequest(threads=True) == SnapshotRequest(
        blocks=True, threads=True
    )


def test_sizes() -> None:
    snapshot = snapshot_of_sizes(0, 5, 6, 7, 40, 40, 4096)
    report = json.loads(json_report(snapshot, NAMER, 2, show={"sizes"}))["sizes"]
    bins = [tuple(bin_.values())[:4] for bin_ in report["bins"] if bin_["allocations"]]
    assert bins == [(0, 0, 1, 0), (4, 7, 3, 18), (32, 63, 2, 80), (4096, 8191, 1, 4096)]
    not_looked = {"usable_bytes": None, "waste_bytes": None, "unknown_allocations": None}
    assert report["top_sizes"] == [
        {"size_bytes": 4096, "allocations": 1, "bytes": 4096, **not_looked},
        {"size_bytes": 40, "allocations": 2, "bytes": 80, **not_looked},
    ]
    assert not_looked.items() <= report.items()
    lines = list(text_report(snapshot, NAMER, 2, show={"sizes"}))
    at = lines.index("==> live blocks by size:")
    assert lines[at + 1] == "                       0-0 B: 0 B in 1 allocation"
    assert "                     32-63 B: 80 B in 2 allocations" in lines
    assert "==> 2 sizes with most bytes:" in lines
    # With descendants, only the sums of those are kept.
    snapshot = replace(snapshot_of_sizes(5, 6), blocks=Blocks.empty())
    report = json.loads(json_report(snapshot, NAMER, 2, show={"sizes"}))["sizes"]
    assert (report["bins"], report["dropped_allocations"]) == ([], 2)
    assert report["waste_bytes"] is None
    lines = list(text_report(snapshot, NAMER, 2, show={"sizes"}))
    assert "==> sizes of 2 allocations are not known: the process has ended" in lines
    assert not any("by size" in line or "wasted" in line for line in lines)
    snapshot = snapshot_of_sizes(40)
    assert "sizes" not in json.loads(json_report(snapshot, NAMER, 2))
    assert not any("by size" in line for line in text_report(snapshot, NAMER, 2))
