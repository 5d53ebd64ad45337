"""The schema of JSON against reports and files that have all of its keys."""

import json
import re
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.blockholders import KEPT
from tests.pythonobjects import growing
from tests.schema import FILE, Schema, written
from tests.snapshots import snapshot_of
from tests.unit.events import records
from tests.unit.leaks import watched
from tests.unit.memoryusages import usage
from tests.unit.show.analysis.test_waste import GLIBC, measured
from tests.unit.show.presentation.test_memory import with_memory
from tests.unit.show.presentation.test_views import FakeSymbolizer
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model import heapusage
from tracelloc.model.blocks import (
    BlockSum,
    EarlierBlocks,
    EarlierKind,
    MappedStack,
    Mappings,
    SuspectHolders,
)
from tracelloc.model.events import EventKind
from tracelloc.model.losses import Gap
from tracelloc.model.process import (
    FollowCounts,
    FoundLibrary,
    MallocLibrary,
    MemoryLimit,
    UnseenFunction,
)
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.model.verdicts import Suppressed
from tracelloc.show.export import EXPORTERS
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.combined import profile_of
from tracelloc.show.presentation.facts import summary
from tracelloc.show.presentation.naming import Namer, Namers
from tracelloc.show.presentation.profile import Metric
from tracelloc.show.report.content import ReportStyle
from tracelloc.show.report.optional import SECTIONS
from tracelloc.show.report.sections import trace_report
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot

# Keys that only differences and collapsed frames have.
OF_OTHERS = {("snapshot_stack", key) for key in ("before", "hidden", "labels")}


def whole_snapshot() -> tuple[Snapshot, Namer]:
    """One of a process with suspects, suppressions, a limit, mappings and everything else."""
    found = watched(400.0)
    snapshot = with_memory(
        400.0, anonymous=10 << 20, limit=MemoryLimit("machine", 1 << 33, 1 << 30)
    )
    suppressed = Suppressed(stacks=1, rate_bytes_per_min=2.5, live_bytes=3)
    assert snapshot.findings is not None
    stack, unseen = snapshot.top_blocks.largest[0].stack, UnseenFunction("brk", "a reason")
    libc = FoundLibrary("malloc", "/lib/libc.so.6", ("malloc",), (), MallocLibrary.GLIBC)
    pins = heapusage.PinningStack(stack, 2 << 20, BlockSum(3, 300))
    pinned = heapusage.PinnedPages(3 << 20, BlockSum(4, 400), ((100, BlockSum(4, 400)),), (pins,))
    now = usage(snapshot.time_s, pinned=pinned, in_use=30, free=20, other=30)
    inherited = {heapusage.MemoryPart.IN_USE: 1 << 20}
    runtime = heapusage.RuntimeFigures("Java heap", 1, 2, 3, 4, 5)
    account = replace(now.account, inherited=inherited, runtime=runtime, devices=("nvidia0",))
    now = replace(now, account=account)
    return replace(
        snapshot,
        allocators=(replace(libc, not_probed=(unseen,)),),
        findings=replace(snapshot.findings, suppressed=suppressed),
        earlier=EarlierBlocks((EarlierKind(stack, "app::Circle", 1, 1 << 40, 3, 264),), 1.0),
        old_blocks=snapshot.top_blocks,
        facets={
            "objects": growing(snapshot.time_s),
            "holders": SuspectHolders({each.stack: KEPT for each in snapshot.findings.suspects}),
            "heap": heapusage.HeapUsages(now, usage(in_use=30)),
        },
        gaps=(Gap(1.0, 2.0, 3, "tracelloc could not keep up"),),
        mappings=Mappings((MappedStack(stack, 1, 4096, snapshot.now_ns),), 4096),
    ), found.namer  # fmt: skip


def threaded_snapshot() -> tuple[Snapshot, Namer]:
    """One with every block, and blocks that another thread has freed."""
    table = LiveTable(Stacks())
    made = [(EventKind.ALLOC, 16 * n, 20, 1, tid) for n, tid in ((1, 7), (2, 7), (3, 8))]
    table.apply(records([*made, (EventKind.FREE, 16, 0, 0, 8)]))
    wanted = SnapshotRequest(10, 0, blocks=True, threads=True)
    snapshot = measured(snapshot_of(table, 1000, wanted), GLIBC)
    return snapshot, Namer(FakeSymbolizer({}), Filters())


@pytest.mark.parametrize("make", [whole_snapshot, threaded_snapshot])
def test_every_key_is_in_the_schema(make: Any) -> None:
    check_all(*make())


def check_all(snapshot: Snapshot, namer: Namer) -> Schema:
    schema = Schema()

    class One:
        def namer_of(self, _target: object) -> Namer:
            return namer

    has_all = snapshot.threads is not None
    show = frozenset(SECTIONS) if has_all else frozenset(SECTIONS) - {"threads", "sizes"}
    style = ReportStyle(5, 0, show, has_many=True)
    trace = TraceSnapshot((snapshot,), 2, FollowCounts(1, 2, 3))
    marks = {snapshot.target.number: snapshot}
    lines = trace_report(
        trace, cast("Namers", One()), style, marks, ended=True, as_json=True
    ).splitlines()
    report, sums = map(json.loads, lines)
    schema.check(report, "report")
    schema.check(sums, "sums")
    assert sums.keys() == schema.whole["$defs"]["sums"]["properties"].keys()
    profile = profile_of(snapshot, namer)
    content = json.loads(b"".join(EXPORTERS[".json"].write(profile, Metric.BYTES)))
    schema.check(content, "snapshot")
    for suspect in report["suspects"]:
        schema.check(summary(snapshot) | {"suspect": suspect}, "on_leak")
    return schema


def test_every_key_of_the_schema_is_there() -> None:
    one, two = check_all(*whole_snapshot()), check_all(*threaded_snapshot())
    known = one.keys("report") | one.keys("sums") | one.keys("snapshot")
    assert known - one.seen - two.seen == OF_OTHERS


def test_the_schema_is_that_of_the_declarations() -> None:
    """``make docs`` writes it again."""
    assert FILE.read_text() == written()
    schema = Schema().whole
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(re.findall(r"#/\$defs/(\w+)", json.dumps(schema))) == schema["$defs"].keys()
    kinds = [each["$ref"].rpartition("/")[2] for each in schema["anyOf"]]
    assert kinds == [name for name, one in schema["$defs"].items() if "title" in one]
